"""What a backend does for the lab: the cluster, the image, the chart releases, and taking all of it away again.

Everything else (labels, manifests, waiting, evidence) goes through the Kubernetes client and is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kai_lab_pipeline.clients.kubernetes import Cluster
from kai_lab_pipeline.settings import BackendName, Chart

Log = Callable[[str], None]
"""Takes one line for the person who follows the run."""


@dataclass(frozen=True)
class ClusterFacts:
    """The cluster of a lab as it was made or found."""

    kubeconfig: Path
    """The lab's own kubeconfig file, mode 0600."""
    context: str
    incarnation: str
    """uid of the kube-system namespace: another value means another cluster, whatever its name."""
    made: bool
    """True when this call made it, False when it was there and was adopted."""
    note: str = ""


@dataclass(frozen=True)
class Leftover:
    """Something that is still there after a tear-down, and the command that removes it."""

    what: str
    command: str


@dataclass(frozen=True)
class StepFacts:
    """What a backend did for one step."""

    summary: str
    changed: bool = True
    skipped: bool = False
    """The step makes no sense on this backend; `summary` says why."""
    attempts: int = 1
    facts: Mapping[str, str] = field(default_factory=dict)
    """Names and digests worth showing, such as the image digest or the chart digest."""
    leftovers: tuple[Leftover, ...] = ()
    """What a removal found still there at its end."""
    kept: tuple[Leftover, ...] = ()
    """What stays by design, such as CRDs, with the command that removes it."""


class Backend(Protocol):
    """One way to have a cluster with the lab's releases on it. Methods raise `LabError` only."""

    @property
    def name(self) -> BackendName: ...

    @property
    def time_scale(self) -> float:
        """Seconds here per second of a real cluster; 1.0 on real ones."""
        ...

    @property
    def makes_cluster(self) -> bool:
        """Whether the lab's cluster is the lab's own, to be removed as a whole."""
        ...

    def kubeconfig_hint(self) -> Path:
        """Where the lab's own kubeconfig is, or will be, for commands that a person copies."""
        ...

    def was_there(self, resource: str, namespace: str | None, name: str) -> bool:
        """Whether an object was on the cluster before the lab came: it is never replaced and never removed.

        Raises LabError where that cannot be told.
        """
        ...

    def note_made(self, resource: str, namespace: str | None, name: str) -> None:
        """Note that the lab is about to make an object: tear-down then finds it whatever the manifests say by then.

        Raises LabError where that cannot be written down.
        """
        ...

    def keep_output(self, folder: Path) -> None:
        """Keep the whole output of the command lines of a run in this folder."""
        ...

    def skips(self) -> Mapping[str, str]:
        """Assets whose step makes no sense on this cluster, with the reason."""
        ...

    def crossing(self) -> str | None:
        """How NVML gets into pods here, from the settings or seen on the cluster; None where it does not."""
        ...

    def ensure_cluster(self, log: Log) -> ClusterFacts:
        """Make the lab's cluster, or adopt it when it is there, healthy and ours."""
        ...

    def connect(self) -> Cluster:
        """A client for the lab's cluster; raises LabError when there is none."""
        ...

    def provide_image(self, log: Log) -> StepFacts:
        """Make the nvml-mock image present on the nodes."""
        ...

    def image_digests(self) -> Mapping[str, frozenset[str]]:
        """Per node, the ``sha256:...`` of the nvml-mock image that it has now; empty where that is not known."""
        ...

    def install(self, component: str, chart: Chart, log: Log, *, repair: bool = False) -> StepFacts:
        """Install or upgrade the chart release of a component (``nvml_mock``, ``kai_scheduler``, ...).

        A release that is deployed with this chart, version and values already is left alone (`changed` is False),
        unless `repair` asks to apply it again, over what somebody changed on the cluster.
        """
        ...

    def render(self, chart: Chart, archive: Path) -> Sequence[Mapping[str, Any]]:
        """The objects that a chart makes of its values, as ``helm template`` prints them; touches no cluster.

        `archive` is the chart itself, a folder or .tgz that was fetched already. Raises LabError where nothing can
        render it: no helm, or a chart that refuses the values.
        """
        ...

    def manifest(self, chart: Chart) -> Sequence[Mapping[str, Any]]:
        """The objects of a release as its chart made them, without hooks (``helm get manifest``)."""
        ...

    def releases(self) -> Sequence[Mapping[str, Any]]:
        """Rows of ``helm list -A -a -o json``."""
        ...

    def uninstall(self, component: str, chart: Chart, log: Log) -> StepFacts:
        """Remove a release; a release that is not there is not an error."""
        ...

    def remove_cluster(self, log: Log) -> StepFacts:
        """Remove the cluster if this lab made it, verified."""
        ...

    def cluster_exists(self) -> bool:
        """Whether the lab's cluster is there now, without making or healing it."""
        ...
