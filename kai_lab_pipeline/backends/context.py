"""The lab on a cluster that somebody else runs: a named context, and nothing touched that the lab did not make.

The cluster gets the lab's mark (`backends.owner`), which lists the releases the lab installed and what was there before
it came; tear-down goes by that list. Where nodes have real GPUs the mock is skipped, and the boundary is expected to be
crossed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kai_lab_pipeline.backends.base import ClusterFacts, Leftover, Log, StepFacts
from kai_lab_pipeline.backends.image import ImageProvider
from kai_lab_pipeline.backends.inventory import Inventory, key
from kai_lab_pipeline.backends.owner import (
    PART_OF,
    Mark,
    lab_id,
    mark_release,
    new_mark,
    read_mark,
    remove_mark,
    write_mark,
)
from kai_lab_pipeline.backends.releases import Releases
from kai_lab_pipeline.backends.toolbox import install_deadline_s, lab_helm, lab_toolbox, user_kubeconfig
from kai_lab_pipeline.clients.docker import Docker, full_name
from kai_lab_pipeline.clients.helm import Helm
from kai_lab_pipeline.clients.kind import Kind
from kai_lab_pipeline.clients.kubeconfig import check_plugin, own_context, write_kubeconfig
from kai_lab_pipeline.clients.kubernetes import ApiError, Cluster, NotFound
from kai_lab_pipeline.clients.process import Toolbox
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.settings import BackendName, Chart, Settings

LAB_QUEUES = frozenset({"default", "default-queue", "default-parent-queue"})
"""Queues that the lab or KAI's own chart makes; any other is somebody's."""
KAI_DEPLOYMENTS = frozenset({"kai-operator", "kai-scheduler-default"})
MOCK_CHART = "nvml-mock-"
GPU_RESOURCE = "nvidia.com/gpu"


class ContextBackend:
    """Implements `backends.base.Backend` on a kubeconfig context."""

    def __init__(self, settings: Settings, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._settings = settings
        self._pause = pause
        self._kubeconfig = settings.lab_dir / "kubeconfig"
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

        Raises WrongUse without a context, LabError when the cluster does not answer or is not free for the lab.
        """
        self.tools.end_leftovers(log)
        context = self._context()
        content = user_kubeconfig(self._settings).minimal(context)
        # Without transcripts: what a credential plugin prints are credentials.
        check_plugin(content, Toolbox(self.tools.registry).run)
        write_kubeconfig(self._kubeconfig, content)
        cluster = self._cluster()
        version = cluster.version()
        self._refuse_foreign_queues(cluster)
        mark = read_mark(cluster)
        if mark is None:
            mark = self._first_mark(cluster)
            write_mark(cluster, mark)
            log(f"marked the cluster of context {context} as used by lab {self._settings.lab.name}")
        elif mark.lab_id != lab_id(self._settings.lab_dir):
            raise self._taken(
                f"it is used by lab {mark.lab!r} with another state folder, since {mark.since}",
                "Tear that lab down first ('kai-lab down' in its folder), or take another cluster.",
            )
        note = f"context {context}, Kubernetes {version}"
        if self._real_gpus(cluster):
            note += "; its nodes have real GPUs, so the mock is skipped"
        return ClusterFacts(self._kubeconfig, context, cluster.incarnation(), made=False, note=note)

    def cluster_exists(self) -> bool:
        """Whether the cluster carries this lab's mark; False only where that is known.

        Raises LabError when the cluster cannot be asked: not answering is not being gone.
        """
        if not self._kubeconfig.is_file():
            return False
        mark = read_mark(self._cluster())
        return mark is not None and mark.lab_id == lab_id(self._settings.lab_dir)

    def connect(self) -> Cluster:
        if not self._kubeconfig.is_file():
            raise LabError(
                "The lab has not been given its cluster yet",
                where=str(self._kubeconfig),
                next_step="Materialise 'cluster' first, or the whole lab with 'kai-lab run --backend context'.",
            )
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
        charts = self._settings.charts.by_component()
        for component in reversed(charts):
            self.uninstall(component, charts[component], log)
        self._inventory.remove_namespaces(cluster, mark, log, self._pause)
        left = [*self._releases_left(cluster), *self._inventory.leftovers(cluster, mark)]
        kept = self._inventory.kept_definitions(cluster, mark)
        if not left:
            remove_mark(cluster)
            self._kubeconfig.unlink()
        facts = {f"left behind {n}": f"{item.what}: {item.command}" for n, item in enumerate([*left, *kept], start=1)}
        said = f"removed what the lab made on context {cluster.context}; the cluster itself is not the lab's"
        said += f"; {len(left)} things stay" if left else ""
        if kept:
            said += "; helm keeps CRDs by design: " + "; ".join(f"{item.what} ({item.command})" for item in kept)
        return StepFacts(said, facts=facts, leftovers=tuple(left))

    # -- image and releases ------------------------------------------------------------------------------------------

    def was_there(self, resource: str, namespace: str | None, name: str) -> bool:
        if self._before is None:
            self._before = self._own_mark(self.connect()).found
        return key(resource, namespace, name) in self._before

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
        image = self._settings.image.nvml_mock.name
        names = {
            full_name(str(name))
            for node in cluster.objects("nodes")
            for item in (node.get("status") or {}).get("images") or ()
            for name in item.get("names") or ()
        }
        if full_name(image) in names:
            return StepFacts(f"{image} is on the nodes", changed=False)
        kind_name = cluster.context.removeprefix("kind-")
        docker, kind = Docker(self.tools.run), Kind(self.tools.run)
        if kind_name != cluster.context:
            try:
                mine = kind_name in kind.clusters()
            except LabError as error:
                log(f"no kind cluster of this machine: {error.what}")
            else:
                if mine:
                    return ImageProvider(self._settings, self.tools.run, docker, kind).provide(kind_name, log)
        return StepFacts(
            f"the lab cannot load images into the nodes of context {cluster.context}. They pull what the chart names: "
            f'push {image} to a registry they reach, and set "image.repository" and "image.tag" of charts.nvml_mock',
            changed=False,
            skipped=True,
        )

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
                raise self._taken(
                    f"the release {chart.release} in namespace {chart.namespace} was not installed by this lab",
                    f"Take another release name in lab.toml, or remove it: helm uninstall {chart.release} "
                    f"-n {chart.namespace}",
                )
            mark_release(cluster, chart.namespace, chart.release, ours=True)  # before: a cut-off install is ours
        deadline_s = install_deadline_s(self._settings, component)
        return releases.install(chart, log, deadline_s=deadline_s, repair=repair)

    def render(self, chart: Chart, archive: Path) -> Sequence[Mapping[str, Any]]:
        return lab_helm(self._settings, self.tools.run, self._cluster()).template(chart, archive)

    def releases(self) -> Sequence[Mapping[str, Any]]:
        return self._releases(self.connect()).rows()

    def uninstall(self, component: str, chart: Chart, log: Log) -> StepFacts:
        """Remove a release if the lab installed it."""
        cluster = self.connect()
        mark = self._own_mark(cluster)
        if f"{chart.namespace}/{chart.release}" not in mark.releases:
            return StepFacts(f"{chart.release} is not the lab's", changed=False, skipped=True)
        facts = self._releases(cluster).uninstall(chart, log)
        mark_release(cluster, chart.namespace, chart.release, ours=False)
        return facts

    # -- how ---------------------------------------------------------------------------------------------------------

    def _context(self) -> str:
        # The lab's own kubeconfig holds the one context it was given: a tear-down needs no setting to find it again.
        context = self._settings.lab.context or own_context(self._kubeconfig)
        if not context:
            raise WrongUse(
                "Backend 'context' needs the name of a kubeconfig context; the current one is never used",
                where="lab.context",
                next_step="Set lab.context in lab.toml or KAI_LAB_CONTEXT; 'kubectl config get-contexts' lists them.",
            )
        return context

    def _cluster(self) -> Cluster:
        return Cluster(self._kubeconfig, self._context())

    def _releases(self, cluster: Cluster) -> Releases:
        if self._helm is None:
            self._helm = lab_helm(self._settings, self.tools.run, cluster)
        return Releases(self._helm, cluster, pause=self._pause)

    def _releases_left(self, cluster: Cluster) -> list[Leftover]:
        """Releases that the mark still calls the lab's: `uninstall` takes out what it removed."""
        helm = f"helm --kubeconfig {cluster.kubeconfig} --kube-context {cluster.context}"
        names = [name.split("/", 1) for name in sorted(self._own_mark(cluster).releases)]
        return [Leftover(f"helm release {name}", f"{helm} uninstall {name} -n {space}") for space, name in names]

    def _own_mark(self, cluster: Cluster) -> Mark:
        mark = read_mark(cluster)
        if mark is None or mark.lab_id != lab_id(self._settings.lab_dir):
            raise self._taken("it does not carry this lab's mark", "Materialise 'cluster' first.")
        return mark

    def _first_mark(self, cluster: Cluster) -> Mark:
        """The mark for a cluster that has none; raises LabError when KAI is there and was not handed to the lab."""
        chart = self._settings.charts.kai_scheduler
        prefix = f"{chart.chart.rsplit('/', 1)[-1]}-"
        rows = self._releases(cluster).rows()
        theirs = [row for row in rows if str(row.get("chart", "")).startswith(prefix)]
        given = frozenset(
            f"{row['namespace']}/{row['name']}" for row in theirs if self._given(cluster, row["namespace"])
        )
        key, value = next(iter(PART_OF.items()))
        for row in theirs:
            name, namespace = row["name"], row["namespace"]
            if f"{namespace}/{name}" not in given:
                raise self._taken(
                    f"KAI Scheduler is there (release {name} in namespace {namespace}), and not by this lab",
                    f"Take another cluster. Or hand it over, to be changed and removed by the lab: kubectl --context "
                    f"{cluster.context} label namespace {namespace} {key}={value}",
                )
        others = [d for d in cluster.objects("deployments") if d["metadata"]["name"] in KAI_DEPLOYMENTS]
        if others and not theirs:
            meta = others[0]["metadata"]
            raise self._taken(
                f"KAI Scheduler runs there without a helm release ({meta['namespace']}/{meta['name']})",
                "Take another cluster, or remove that KAI first.",
            )
        found = self._inventory.present(cluster)
        return new_mark(self._settings.lab.name, self._settings.lab_dir, made=False, found=found, releases=given)

    @staticmethod
    def _given(cluster: Cluster, namespace: str) -> bool:
        found = cluster.find("namespaces", namespace) or {}
        labels = (found.get("metadata") or {}).get("labels") or {}
        return all(labels.get(key) == value for key, value in PART_OF.items())

    def _refuse_foreign_queues(self, cluster: Cluster) -> None:
        try:
            names = {str(queue["metadata"]["name"]) for queue in cluster.objects("queues")}
        except NotFound:
            return
        foreign = sorted(names - LAB_QUEUES)
        if foreign:
            raise self._taken(
                f"it has KAI queues that are not the lab's: {', '.join(foreign[:5])}",
                "Others work with KAI there, and the lab would change its default queues: take another cluster.",
            )

    def _taken(self, why: str, next_step: str) -> LabError:
        return LabError(
            f"The cluster of context {self._context()} is not free for the lab", seen=why, next_step=next_step
        )

    def _real_gpus(self, cluster: Cluster) -> bool:
        """Whether a node advertises GPUs and the mock is not what shows them."""
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
