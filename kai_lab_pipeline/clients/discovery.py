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

_NAMED = 3
"""Versions named per reason in a sentence."""


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
    repushed: tuple[str, ...] = ()
    """Versions whose chart has other content now than is known of it."""
    undigested: Mapping[str, str] = field(default_factory=dict)
    """Versions whose digest nobody knows, with the reason: whether they were pushed again cannot be told."""

    @property
    def newer(self) -> tuple[str, ...]:
        return self.versions.newer if self.versions is not None else ()

    @property
    def sentence(self) -> str:
        """The answer for a person: what is new, what was left out and why, or why nobody could look."""
        if self.error is not None:
            return f"could not look: {self.error.what}"
        parts = [self.note] if self.versions is None else self._found(self.versions)
        return "; ".join([*parts, *self.content])

    @property
    def content(self) -> tuple[str, ...]:
        """What is to be told about charts that have other content under the same version."""
        again = f"pushed again with other content: {', '.join(self.repushed)}"
        unknown = f"not known whether pushed again: {_reasons(self.undigested)}"
        return (*([again] if self.repushed else []), *([unknown] if self.undigested else []))

    def _found(self, found: ComponentVersions) -> list[str]:
        parts = [f"new: {', '.join(found.newer)}" if found.newer else "nothing new"]
        left_out = found.newer_but_excluded
        if left_out:
            parts.append("new but excluded: " + ", ".join(f"{entry.tag} ({entry.reason})" for entry in left_out))
        if found.unknown:
            parts.append(f"not understood: {', '.join(found.unknown)}")
        if not found.same:
            parts.append(f"the pinned {self.pinned} is not there any more")
        return parts

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
            "repushed": list(self.repushed),
            "undigested": [{"version": version, "reason": reason} for version, reason in self.undigested.items()],
        }


def _reasons(by_version: Mapping[str, str]) -> str:
    """``v1, v2 and 7 more (why)`` per reason: a registry may have thousands."""
    versions: dict[str, list[str]] = {}
    for version, reason in by_version.items():
        versions.setdefault(reason, []).append(version)
    return ", ".join(
        ", ".join(some[:_NAMED]) + (f" and {len(some) - _NAMED} more" if some[_NAMED:] else "") + f" ({reason})"
        for reason, some in versions.items()
    )


def look_up(
    settings: Settings, *, client: Callable[[Settings], OciClient] = OciClient.from_settings
) -> dict[str, Lookup]:
    """Ask about every chart, all registries at the same time. A registry that fails is an answer, not an exception.

    Raises WrongUse for settings that cannot be asked with.
    """
    charts = settings.charts.by_component()
    with ThreadPoolExecutor(max_workers=len(charts)) as pool:
        asked = {
            component: pool.submit(_look_up_chart, component, chart, settings, client)
            for component, chart in charts.items()
        }
        return {component: future.result() for component, future in asked.items()}


def _look_up_chart(component: str, chart: Chart, settings: Settings, make: Callable[[Settings], OciClient]) -> Lookup:
    if not chart.chart.startswith("oci://"):
        note = "a local chart is pinned: there is no registry to ask"
        return Lookup(component, chart.version, chart.chart, note=note)
    try:
        with make(settings) as client:
            versions = classify(component, client.tags(chart.chart), chart.version)
    except WrongUse:
        raise
    except LabError as error:
        return Lookup(component, chart.version, chart.chart, error=error)
    return Lookup(component, chart.version, chart.chart, versions)


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
