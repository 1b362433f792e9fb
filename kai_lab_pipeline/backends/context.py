"""The lab on a cluster that somebody else runs: a named context, and nothing touched that the lab did not make.

The cluster gets the lab's mark (`backends.owner`), which lists the releases the lab installed and what was there before
it came; tear-down goes by that list. Where nodes have real GPUs the mock is skipped, and the boundary is expected to be
crossed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kai_lab_pipeline.backends.base import ClusterFacts, Log, StepFacts
from kai_lab_pipeline.backends.borrowed_image import borrowed_digests, provide_borrowed
from kai_lab_pipeline.backends.given import Given
from kai_lab_pipeline.backends.inventory import Inventory
from kai_lab_pipeline.backends.kai_made import kai_made
from kai_lab_pipeline.backends.owner import (
    Mark,
    key,
    lab_id,
    mark_brought,
    mark_release,
    new_mark,
    read_mark,
    remove_mark,
    write_mark,
)
from kai_lab_pipeline.backends.releases import Releases
from kai_lab_pipeline.backends.removal import Removal
from kai_lab_pipeline.backends.tenancy import handed_over, refuse_another_lab, refuse_foreign_queues, taken
from kai_lab_pipeline.backends.toolbox import install_deadline_s, lab_helm, lab_toolbox, user_kubeconfig
from kai_lab_pipeline.clients.api_errors import UNAUTHORIZED
from kai_lab_pipeline.clients.helm import Helm
from kai_lab_pipeline.clients.kubeconfig import check_plugin, own_context, write_kubeconfig
from kai_lab_pipeline.clients.kubernetes import ApiError, Cluster
from kai_lab_pipeline.clients.process import Toolbox
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.settings import BackendName, Chart, Settings

GPU_RESOURCE = "nvidia.com/gpu"
T = TypeVar("T")


class ContextBackend:
    """Implements `backends.base.Backend` on a kubeconfig context."""

    def __init__(self, settings: Settings, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._settings = settings
        self._pause = pause
        self._kubeconfig = settings.lab_dir / "kubeconfig"
        self._given = Given(settings.lab_dir / "given.json")
        self._inventory = Inventory(settings)
        self._before: frozenset[str] | None = None
        self.use(lab_toolbox(settings))

    def use(self, tools: Toolbox) -> None:
        """Run the command lines with `tools`; its `transcripts` is where their whole output is kept."""
        self.tools = tools
        self._helm: Helm | None = None

    @property
    def name(self) -> BackendName:
        return "context"

    @property
    def time_scale(self) -> float:
        return 1.0

    @property
    def makes_cluster(self) -> bool:
        return False

    def kubeconfig_hint(self) -> Path:
        return self._kubeconfig

    # -- cluster -----------------------------------------------------------------------------------------------------

    def ensure_cluster(self, log: Log) -> ClusterFacts:
        """Copy the named context into the lab's own kubeconfig, and mark the cluster as used by this lab.

        Until the mark is the lab's, nothing of the lab points to the cluster. Raises WrongUse without a context,
        LabError when the cluster does not answer, is not free for the lab, or the lab is on another one.
        """
        self.tools.end_leftovers(log)
        context = self._named_context()
        with self._persons(context) as cluster:
            version, incarnation = cluster.version(), cluster.incarnation()
            self._refuse_another(incarnation, context)
            refuse_foreign_queues(cluster)
            mark = read_mark(cluster)
            if mark is None:
                first, before = self._first_mark(cluster), self._given.read()
                self._given.write(context, incarnation, leaving=True)  # until the mark is there
                mark = write_mark(cluster, first)
                log(f"the cluster of context {context} is marked as used by lab {mark.lab}")
                if mark.lab_id != first.lab_id and before is None:
                    self._given.forget()
            refuse_another_lab(context, mark, self._settings.lab_dir)
            self._given.write(context, incarnation)
            os.replace(cluster.kubeconfig, self._kubeconfig)
        self._helm = self._before = None
        note = f"context {context}, Kubernetes {version}"
        if self._real_gpus(self._cluster()):
            note += "; its nodes have real GPUs, so the mock is skipped"
        return ClusterFacts(self._kubeconfig, context, incarnation, made=False, note=note)

    def cluster_exists(self) -> bool:
        """Whether the cluster carries this lab's mark; False only where that is known.

        Raises LabError when the cluster cannot be asked, or is the very one and has no mark of this lab any more: what
        the lab made may be there all the same.
        """
        given = self._given.read()
        if given is None:
            return False
        if not self._kubeconfig.is_file():
            write_kubeconfig(self._kubeconfig, user_kubeconfig(self._settings).minimal(given.context))
        if self._renewing(Cluster.incarnation) != given.incarnation:
            return False  # another cluster was made at its address
        cluster = self._cluster()
        mark = read_mark(cluster)
        if mark is not None and mark.lab_id == lab_id(self._settings.lab_dir):
            return True
        if given.leaving:
            return False  # a tear-down that found nothing left was cut off at its last step
        whose = f"is now that of lab {mark.lab!r}" if mark else "is gone"
        raise LabError(
            f"The mark of this lab on the cluster of context {given.context} {whose}",
            where=str(cluster),
            seen="without it nothing tells what the lab made there from what was there before",
            next_step="Remove by hand what is left (helm list -A, and what the manifests name), then the lab's folder: "
            f"rm -r {self._settings.lab_dir}",
        )

    def connect(self) -> Cluster:
        if not self._kubeconfig.is_file():
            raise LabError(
                "The lab has not been given its cluster yet",
                where=str(self._kubeconfig),
                next_step="Materialise 'cluster' first, or the whole lab with 'kai-lab run --backend context'.",
            )
        cluster = self._cluster()
        named = self._settings.lab.context
        if named is not None and named != cluster.context:
            raise self._elsewhere(cluster.context, named)
        if self._before is None:
            self._before = self._renewing(self._own_mark).found
        return self._cluster()

    def remove_cluster(self, log: Log) -> StepFacts:
        """Take away the last of what the lab made here: releases, namespaces, and the mark when nothing is left.

        The cluster, and all that was there before, stay. What could not be removed is in the leftovers, with the
        command that removes it; until that is done the mark stays, so that the next tear-down goes on from there.
        """
        self.tools.end_leftovers(log)
        if not self._kubeconfig.is_file():
            return StepFacts("the lab has no cluster", changed=False)
        cluster = self.connect()
        mark = self._own_mark(cluster)
        self._inventory.remove_moved(cluster, mark, self._pause)
        removal = self._removal(cluster, mark, log)
        removal.all_releases(self._settings.charts.nvml_mock)
        left = removal.remains()
        self._inventory.remove_namespaces(cluster, mark, log, self._pause)
        left += self._inventory.leftovers(cluster, mark)
        kept = self._inventory.kept_definitions(cluster)
        if not left:
            self._given.leave()
            remove_mark(cluster)
            self._kubeconfig.unlink()
            self._given.forget()
        facts = {f"left behind {n}": f"{item.what}: {item.command}" for n, item in enumerate([*left, *kept], start=1)}
        said = f"removed what the lab made on context {cluster.context}; the cluster itself is not the lab's"
        return StepFacts(said, facts=facts, leftovers=tuple(left), kept=tuple(kept))

    # -- image and releases ------------------------------------------------------------------------------------------

    def was_there(self, resource: str, namespace: str | None, name: str) -> bool:
        self.connect()
        return key(resource, namespace, name) in (self._before or ())

    def note_made(self, resource: str, namespace: str | None, name: str) -> None:
        mark_brought(self.connect(), key(resource, namespace, name), ours=True)

    def keep_output(self, folder: Path) -> None:
        self.tools.transcripts = folder

    def skips(self) -> Mapping[str, str]:
        """Assets that make no sense on this cluster, with the reason."""
        if not self._real_gpus(self.connect()):
            return {}
        return dict.fromkeys(("nvml_mock_image", "nvml_mock_release", "device_plugin"), self._real_gpus_reason())

    def crossing(self) -> str | None:
        """How NVML gets into pods here: the settings' word, or real GPUs; None where it is not known to."""
        if self._settings.boundary.crossing:
            return self._settings.boundary.crossing
        return "the nodes have real GPUs" if self._real_gpus(self.connect()) else None

    def provide_image(self, log: Log) -> StepFacts:
        """Skipped, with the reason, unless the nodes are a kind cluster's on this machine."""
        cluster = self.connect()
        if self._real_gpus(cluster):
            return StepFacts(self._real_gpus_reason(), changed=False, skipped=True)
        return provide_borrowed(self._settings, self.tools.run, cluster, log)

    def image_digests(self) -> Mapping[str, frozenset[str]]:
        return borrowed_digests(self._settings, self.tools.run, self.connect())

    def install(self, component: str, chart: Chart, log: Log, *, repair: bool = False) -> StepFacts:
        """Install a chart; refuses a release of this name that the lab did not install."""
        cluster = self.connect()
        mark = self._own_mark(cluster)
        if component == "nvml_mock" and self._real_gpus(cluster):
            return StepFacts(self._real_gpus_reason(), changed=False, skipped=True)
        releases = self._releases(cluster)
        name = f"{chart.namespace}/{chart.release}"
        if name not in mark.releases:
            if any(f"{row.get('namespace')}/{row.get('name')}" == name for row in releases.rows()):
                raise taken(
                    cluster.context,
                    f"the release {chart.release} in namespace {chart.namespace} was not installed by this lab",
                    f"Take another release name in lab.toml, or remove it: {_helm_of(cluster)} uninstall "
                    f"{chart.release} -n {chart.namespace}",
                )
            self._inventory.note_namespaces(cluster, component, chart)
            mark_release(cluster, chart.namespace, chart.release, component)  # before: a cut-off install is ours
        deadline_s = install_deadline_s(self._settings, component)
        return releases.install(chart, log, deadline_s=deadline_s, repair=repair)

    def render(self, chart: Chart, archive: Path) -> Sequence[Mapping[str, Any]]:
        return lab_helm(self._settings, self.tools.run, self._cluster()).template(chart, archive)

    def manifest(self, chart: Chart) -> Sequence[Mapping[str, Any]]:
        return lab_helm(self._settings, self.tools.run, self.connect()).manifest(chart.release, chart.namespace)

    def releases(self) -> Sequence[Mapping[str, Any]]:
        return self._releases(self.connect()).rows()

    def uninstall(self, component: str, chart: Chart, log: Log) -> StepFacts:
        """Remove a release if the lab installed it, and what it made; `remove_cluster` lists what stays, too."""
        cluster = self.connect()
        mark = self._own_mark(cluster)
        if f"{chart.namespace}/{chart.release}" not in mark.releases:
            return StepFacts(f"{chart.release} is not the lab's", changed=False, skipped=True)
        removal = self._removal(cluster, mark, log)
        return removal.release(chart, kai=component == "kai_scheduler", mock=component == "nvml_mock")

    # -- how ---------------------------------------------------------------------------------------------------------

    def _named_context(self) -> str:
        context = self._settings.lab.context
        if not context:
            raise WrongUse(
                "Backend 'context' needs the name of a kubeconfig context; the current one is never used",
                where="lab.context",
                next_step="Set lab.context in lab.toml or KAI_LAB_CONTEXT; 'kubectl config get-contexts' lists them.",
            )
        return context

    def _cluster(self) -> Cluster:
        # The lab's own kubeconfig holds the one context it was given: no setting is needed to find it again.
        context = own_context(self._kubeconfig)
        if context is None:
            raise LabError("The lab's own kubeconfig names no context", where=str(self._kubeconfig))
        return Cluster(self._kubeconfig, context)

    @contextlib.contextmanager
    def _persons(self, context: str) -> Iterator[Cluster]:
        """A context as the person's kubeconfig has it now, in a file that is gone afterwards unless it is moved."""
        persons = user_kubeconfig(self._settings)
        content = persons.minimal(context)
        # Without transcripts: what a credential plugin prints are credentials.
        check_plugin(content, Toolbox(self.tools.registry).run)
        folder = self._settings.lab_dir
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".kubeconfig-") as scratch:
            file = Path(scratch) / "kubeconfig"
            write_kubeconfig(file, content)
            try:
                yield Cluster(file, context, shown=persons.where(context))
            finally:
                self._helm = None  # it may have been asked by that file

    def _renewing(self, ask: Callable[[Cluster], T]) -> T:
        """What the cluster answers. Where the credentials of the lab's copy are refused, the person's of now are taken.

        They are renewed in the person's kubeconfig alone: a cloud's log-in, a client certificate that had expired.
        """
        cluster = self._cluster()
        try:
            return ask(cluster)
        except ApiError as error:
            given = self._given.read()
            if error.code != UNAUTHORIZED or given is None:
                raise
            with self._persons(cluster.context) as renewed:
                if renewed.incarnation() != given.incarnation:
                    raise  # the context means another cluster by now
                os.replace(renewed.kubeconfig, self._kubeconfig)
        return ask(self._cluster())

    def _refuse_another(self, incarnation: str, context: str) -> None:
        """Raise WrongUse while the lab is on another cluster: that one would be forgotten with all that is on it."""
        given = self._given.read()
        if given is None or given.incarnation == incarnation or given.leaving:
            return
        try:
            if not self.cluster_exists():
                return
        except LabError as error:
            raise self._elsewhere(given.context, context, error.text()) from error
        raise self._elsewhere(given.context, context)

    def _elsewhere(self, here: str, asked: str, seen: str = "") -> WrongUse:
        return WrongUse(
            f"This lab is on the cluster of context {here}, and {asked} is another one",
            where=f"lab {self._settings.lab.name}, {self._kubeconfig}",
            seen=seen,
            next_step="Take it down there first ('kai-lab down'), or give the new one a lab of its own (KAI_LAB_NAME).",
        )

    def _releases(self, cluster: Cluster) -> Releases:
        if self._helm is None:
            self._helm = lab_helm(self._settings, self.tools.run, cluster)
        return Releases(
            self._helm,
            cluster,
            pause=self._pause,
            foreign=lambda resource, name: key(resource, None, name) in (self._before or ()),
        )

    def _removal(self, cluster: Cluster, mark: Mark, log: Log) -> Removal:
        return Removal(cluster, mark, self._releases(cluster), log, self._pause)

    def _own_mark(self, cluster: Cluster) -> Mark:
        mark = read_mark(cluster)
        if mark is None or mark.lab_id != lab_id(self._settings.lab_dir):
            raise taken(cluster.context, "it does not carry this lab's mark", "Materialise 'cluster' first.")
        return mark

    def _first_mark(self, cluster: Cluster) -> Mark:
        """The mark for a cluster that has none; raises LabError when KAI is there and was not handed to the lab."""
        given = handed_over(cluster, self._settings, self._releases(cluster).rows())
        found = self._inventory.present(cluster)
        namespaces = {name.split("/", 1)[0] for name in given} or {self._settings.charts.kai_scheduler.namespace}
        kais = frozenset(made.key for namespace in namespaces for made in kai_made(cluster, namespace))
        if given:  # handed over with its queues, and all that it made
            found = frozenset(name for name in found - kais if not name.startswith("queues/"))
        else:
            found |= kais  # what an earlier KAI has left
        releases = dict.fromkeys(given, "kai_scheduler")
        return new_mark(self._settings.lab.name, self._settings.lab_dir, made=False, found=found, releases=releases)

    def _real_gpus(self, cluster: Cluster) -> bool:
        """Whether a node advertises GPUs and the mock is not what shows them.

        Where the lab installed the mock they are not real, also while the mock is away: the node shows its GPUs on.
        """
        chart, mark = self._settings.charts.nvml_mock, read_mark(cluster)
        if mark is not None and f"{chart.namespace}/{chart.release}" in mark.releases:
            return False
        shown = [(node.get("status") or {}).get("allocatable") or {} for node in cluster.objects("nodes")]
        if not any(str(resources.get(GPU_RESOURCE, "0")) != "0" for resources in shown):
            return False
        try:
            daemonsets = cluster.objects("daemonsets")
        except ApiError:
            return True
        return not any("nvml-mock" in str(item["metadata"]["name"]) for item in daemonsets)

    @staticmethod
    def _real_gpus_reason() -> str:
        return (
            "the nodes advertise nvidia.com/gpu and no mock is there: these are real GPUs, and the mock would hide them"
        )


def _helm_of(cluster: Cluster) -> str:
    """helm on this cluster and no other, as a person types it."""
    return f"helm --kubeconfig {cluster.kubeconfig} --kube-context {cluster.context}"
