"""What chart versions hold now, as digests: a tag of the same name with another digest is another chart."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from kai_lab_pipeline.clients.local_chart import content_of
from kai_lab_pipeline.clients.mirrors import OCI
from kai_lab_pipeline.clients.oci import OciClient
from kai_lab_pipeline.clients.oci_errors import RegistryNotFound
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.settings import Settings

DIGESTS_S = 10.0
"""No digest is asked for later than this, seconds: a tick of Dagster has 60 for all that it does."""
_ANSWER_S = 8.0
"""Longest wait for one digest, with its retries, seconds."""
_WORKERS = 8


class ChartAt(NamedTuple):
    """A chart's version and where it is: an ``oci://`` reference, or a file or folder of the project."""

    reference: str
    version: str


@dataclass(frozen=True)
class Digests:
    """What was found out about charts."""

    known: Mapping[ChartAt, str] = field(default_factory=dict)
    unknown: Mapping[ChartAt, str] = field(default_factory=dict)
    """Why nobody knows the digest, as a sentence."""


def digests_of(
    settings: Settings,
    charts: Iterable[ChartAt],
    *,
    silent: Collection[str] = (),
    seconds: float = DIGESTS_S,
    client: Callable[..., OciClient] = OciClient.from_settings,
) -> Digests:
    """Ask what charts hold now, in this order, those of registries some at a time. Each that fails costs only its own.

    References in `silent` are not asked: their registry has just failed. The same goes for the other versions of a
    reference that does not answer, and for all that is left after so many seconds.
    """
    wanted = list(dict.fromkeys(charts))
    asked = [chart for chart in wanted if chart.reference.startswith(OCI) and chart.reference not in silent]
    known = {chart: content for chart in wanted if (content := _content(settings, chart))}
    failed: dict[str, str] = {}
    unknown: dict[ChartAt, str] = {}
    until = time.monotonic() + seconds

    def work(mine: list[ChartAt]) -> None:
        with client(settings, deadline_s=_ANSWER_S) as registry:
            for chart in mine:
                if chart.reference in failed:
                    unknown[chart] = failed[chart.reference]
                elif time.monotonic() > until:
                    unknown[chart] = f"not asked for within {seconds:g} s"
                else:
                    ask(registry, chart)

    def ask(registry: OciClient, chart: ChartAt) -> None:
        try:
            known[chart] = registry.digest(*chart)
        except LabError as error:
            unknown[chart] = error.what.rstrip(".")
            if not isinstance(error, RegistryNotFound | WrongUse):
                failed[chart.reference] = unknown[chart]

    workers = min(_WORKERS, len(asked))
    if workers:
        with ThreadPoolExecutor(max_workers=workers) as pool:
            list(pool.map(work, [asked[number::workers] for number in range(workers)]))
    return Digests(known, unknown)


def _content(settings: Settings, chart: ChartAt) -> str:
    """Digest of a chart on this machine; empty for one that is not there, or not here."""
    if chart.reference.startswith(OCI):
        return ""
    path = settings.project_file(chart.reference)
    return f"content:{content_of(path)}" if path.exists() else ""
