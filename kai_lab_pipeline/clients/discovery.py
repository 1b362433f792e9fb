"""Looking for new versions: every chart's registry asked, and the checkout's git tags where one is given.

"Nothing new", "could not look" and "new but excluded, because" stay three different answers all the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from kai_lab_pipeline.clients.git_refs import git_blobs, git_tags
from kai_lab_pipeline.clients.oci import OciClient
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.lab.versions import ComponentVersions, Excluded, classify
from kai_lab_pipeline.settings import Chart, Settings


@dataclass(frozen=True)
class Lookup:
    """What asking about one component gave."""

    component: str
    pinned: str
    source: str
    """Where was asked: a chart reference, or a checkout."""
    versions: ComponentVersions | None = None
    """None when nothing could be looked up."""
    error: LabError | None = None
    note: str = ""
    """A sentence where there was nothing to ask."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Manifest digest by tag, of the pinned and the newer versions, where asked for."""

    @property
    def newer(self) -> tuple[str, ...]:
        return self.versions.newer if self.versions is not None else ()

    @property
    def sentence(self) -> str:
        """The answer for a person: what is new, what was left out and why, or why nobody could look."""
        if self.error is not None:
            return f"could not look: {self.error.what}"
        if self.versions is None:
            return self.note
        parts = [f"new: {', '.join(self.newer)}" if self.newer else "nothing new"]
        left_out = self.versions.newer_but_excluded
        if left_out:
            parts.append("new but excluded: " + ", ".join(f"{entry.tag} ({entry.reason})" for entry in left_out))
        if self.versions.unknown:
            parts.append(f"not understood: {', '.join(self.versions.unknown)}")
        if not self.versions.same:
            parts.append(f"the pinned {self.pinned} is not there any more")
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """One component of ``kai-lab versions --json``."""
        found = self.versions
        return {
            "pinned": self.pinned,
            "status": "ok" if self.error is None else "lookup_failed",
            "error": None if self.error is None else self.error.text(),
            "newer": list(self.newer),
            "excluded": [{"tag": entry.tag, "reason": entry.reason} for entry in found.excluded] if found else [],
            "unknown": list(found.unknown) if found else [],
        }


def look_up(
    settings: Settings, *, with_digests: bool = False, client: Callable[[Settings], OciClient] = OciClient.from_settings
) -> dict[str, Lookup]:
    """Ask about every chart, all registries at the same time. A registry that fails is an answer, not an exception.

    `with_digests` also asks what the pinned and the newer tags point at, so that a re-pushed tag can be noticed.
    Raises WrongUse for settings that cannot be asked with.
    """
    charts = settings.charts.by_component()
    with ThreadPoolExecutor(max_workers=len(charts)) as pool:
        asked = {
            component: pool.submit(_look_up_chart, component, chart, settings, with_digests, client)
            for component, chart in charts.items()
        }
        return {component: future.result() for component, future in asked.items()}


def _look_up_chart(
    component: str, chart: Chart, settings: Settings, with_digests: bool, make: Callable[[Settings], OciClient]
) -> Lookup:
    if not chart.chart.startswith("oci://"):
        note = "a local chart is pinned: there is no registry to ask"
        return Lookup(component, chart.version, chart.chart, note=note)
    try:
        with make(settings) as client:
            versions = classify(component, client.tags(chart.chart), chart.version)
            wanted = (*versions.same, *versions.newer) if with_digests else ()
            digests = {tag: client.digest(chart.chart, tag) for tag in wanted}
    except WrongUse:
        raise
    except LabError as error:
        return Lookup(component, chart.version, chart.chart, error=error)
    return Lookup(component, chart.version, chart.chart, versions, digests=digests)


def look_up_git(settings: Settings) -> dict[str, Lookup]:
    """What the checkouts that lab.toml names tell, by component; empty where none is named. Nothing is fetched."""
    found = {"nvml_mock": look_up_git_tags(settings), "device_plugin": look_up_manifest(settings)}
    return {component: lookup for component, lookup in found.items() if lookup is not None}


def look_up_git_tags(settings: Settings) -> Lookup | None:
    """Releases in the checkout that the nvml-mock image is built from; None where none is named."""
    image = settings.image.nvml_mock
    if image.checkout is None:
        return None
    checkout = settings.project_file(image.checkout)
    try:
        tags = git_tags(checkout)
    except LabError as error:
        return Lookup("nvml_mock", image.git_ref, str(checkout), error=error)
    return Lookup("nvml_mock", image.git_ref, str(checkout), classify("nvml_mock", tags, image.git_ref))


def look_up_manifest(settings: Settings) -> Lookup | None:
    """Releases that have another device plugin manifest than the pinned one; None where no checkout is named.

    A release without it, or with the very same one, is new but excluded.
    """
    manifest = settings.manifests.device_plugin
    named = manifest.checkout or settings.image.nvml_mock.checkout
    if named is None:
        return None
    checkout, pinned, path = settings.project_file(named), manifest.git_ref, manifest.path
    source = f"{checkout}/{path}"
    try:
        versions = classify("device_plugin", git_tags(checkout), pinned)
        here = git_blobs(checkout, [pinned, *versions.newer, *versions.older], path)
        if not any(here.values()):
            what = f"No release in the checkout has {path}."
            step = "Name its path in manifests.device_plugin.path, or another checkout; run `git fetch --tags` in it."
            raise LabError(what, where=str(checkout), next_step=step)
    except LabError as error:
        return Lookup("device_plugin", pinned, source, error=error)
    reasons = {tag: _no_news(here, tag, pinned, path) for tag in versions.newer}
    left_out = [Excluded(tag, reason) for tag, reason in reasons.items() if reason]
    newer = tuple(tag for tag, reason in reasons.items() if not reason)
    return Lookup(
        "device_plugin", pinned, source, replace(versions, newer=newer, excluded=(*versions.excluded, *left_out))
    )


def _no_news(blobs: Mapping[str, str | None], tag: str, pinned: str, path: str) -> str:
    """Why a release is nothing to judge anew; empty where it is."""
    if blobs[tag] is None:
        return f"has no {path}"
    return f"its {path.rpartition('/')[2]} is the one of {pinned}" if blobs[tag] == blobs[pinned] else ""
