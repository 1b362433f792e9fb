"""Looking for new versions: every chart's registry asked, and the checkout's git tags where one is given.

"Nothing new", "could not look" and "new but excluded, because" stay three different answers all the way.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kai_lab_pipeline.clients.oci import OciClient
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.lab.versions import ComponentVersions, classify
from kai_lab_pipeline.settings import Chart, Settings

GIT_TIMEOUT_S = 20.0


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


def look_up_git_tags(settings: Settings) -> Lookup | None:
    """Releases in the nvml-mock checkout (its image and the device plugin's manifest come from there), or None."""
    image = settings.image.nvml_mock
    if image.checkout is None:
        return None
    checkout = settings.project_file(image.checkout)
    try:
        tags = git_tags(checkout)
    except LabError as error:
        return Lookup("nvml_mock", image.git_ref, str(checkout), error=error)
    return Lookup("nvml_mock", image.git_ref, str(checkout), classify("nvml_mock", tags, image.git_ref))


def git_tags(checkout: Path) -> Sequence[str]:
    """Tag names of a git checkout, as it is now: nothing is fetched. Raises LabError."""
    command = ["git", "-C", str(checkout), "for-each-ref", "--format=%(refname:strip=2)", "refs/tags"]
    step = "Name a clone of k8s-test-infra (KAI_LAB_IMAGE_CHECKOUT), and run `git fetch --tags` in it."
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            check=False,
            env=os.environ | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
        )
    except FileNotFoundError as error:
        what = "The checkout's tags could not be read: git is not installed."
        raise LabError(what, where=str(checkout), next_step="Install git, or leave the checkout out.") from error
    except subprocess.TimeoutExpired as error:
        what = f"The checkout's tags could not be read in {GIT_TIMEOUT_S:g} s."
        raise LabError(what, where=str(checkout), next_step=step, transient=True) from error
    if done.returncode != 0:
        what = "The checkout's tags could not be read."
        raise LabError(what, where=str(checkout), seen=done.stderr.strip()[-300:], next_step=step)
    return done.stdout.split()
