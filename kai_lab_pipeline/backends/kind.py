"""The lab as it is written: a kind cluster of its own, made, adopted, healed or refused by what is really there."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kai_lab_pipeline.backends.ahead import PullAhead
from kai_lab_pipeline.backends.base import ClusterFacts, Log, StepFacts
from kai_lab_pipeline.backends.image import ImageProvider
from kai_lab_pipeline.backends.kind_owner import MADE, KindOwner
from kai_lab_pipeline.backends.node_mirrors import authorities, mirrors_config, write_mirrors
from kai_lab_pipeline.backends.owner import lab_id, new_mark, write_mark
from kai_lab_pipeline.backends.releases import Releases
from kai_lab_pipeline.backends.toolbox import install_deadline_s, lab_helm, lab_toolbox
from kai_lab_pipeline.clients.docker import Docker
from kai_lab_pipeline.clients.kind import MINIMUM, Kind
from kai_lab_pipeline.clients.kubernetes import ApiError, Cluster, Unreachable
from kai_lab_pipeline.clients.process import Toolbox
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.settings import BackendName, Chart, Settings

ADOPT_DEADLINE_S = 60.0
"""Seconds that a cluster which is there gets to answer: after a restart of the daemon the API is back in 6-8 s."""


class KindBackend:
    """Implements `backends.base.Backend` with docker, kind and helm."""

    def __init__(self, settings: Settings, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._settings = settings
        self._pause = pause
        self._name = settings.lab.name
        self._kubeconfig = settings.lab_dir / "kubeconfig"
        self._marked = False
        """Whether the cluster behind the lab's kubeconfig was seen to carry the lab's mark."""
        self.use(lab_toolbox(settings))

    def use(self, tools: Toolbox) -> None:
        """Run the command lines with `tools`; its `transcripts` is where their whole output is kept."""
        self.tools = tools
        self._docker = Docker(tools.run)
        self._kind = Kind(tools.run)
        self._owner = KindOwner(self._settings, self._docker, self._kind)
        self._images = ImageProvider(self._settings, tools.run, self._docker, self._kind)
        self._ahead = PullAhead(self._settings, self._docker)
        self._helm = lab_helm(self._settings, tools.run, self._cluster())

    @property
    def name(self) -> BackendName:
        return "kind"

    @property
    def time_scale(self) -> float:
        return 1.0

    @property
    def makes_cluster(self) -> bool:
        return True

    def was_there(self, resource: str, namespace: str | None, name: str) -> bool:
        """Nothing was there before a cluster that the lab makes itself."""
        return False

    def note_made(self, resource: str, namespace: str | None, name: str) -> None:
        """The cluster goes as a whole."""

    def keep_output(self, folder: Path) -> None:
        self.tools.transcripts = folder

    def skips(self) -> Mapping[str, str]:
        return {}

    def crossing(self) -> str | None:
        return self._settings.boundary.crossing

    def kubeconfig_hint(self) -> Path:
        return self._kubeconfig

    # -- cluster -----------------------------------------------------------------------------------------------------

    def ensure_cluster(self, log: Log) -> ClusterFacts:
        """Make the cluster, or adopt a healthy one with our mark; heal what an earlier run left half-made.

        Refuses a cluster of this name that another lab or a person made. While kind works, the image is built.
        Raises WrongUse, before anything is touched, where a file that the settings name cannot be used.
        """
        self._check_files()
        self.tools.end_leftovers(log)
        lab_id(self._settings.lab_dir)
        self._docker.daemon()
        self._check_version()
        self._helm.version()  # before a cluster is made that nothing could be installed on
        if self.cluster_exists():
            adopted = self._adopt(log)
            if adopted is not None:
                return adopted
        return self._make(log)

    def cluster_exists(self) -> bool:
        """Whether kind has the cluster. Raises LabError where it looks elsewhere than where the lab's cluster is."""
        return self._owner.exists()

    def connect(self) -> Cluster:
        """A client for the lab's cluster; raises LabError when there is none, or it does not carry the lab's mark."""
        if not self._kubeconfig.is_file():
            raise LabError(
                "The lab has no cluster yet",
                where=str(self._kubeconfig),
                next_step="Materialise 'cluster' first, or the whole lab with 'kai-lab run --backend kind'.",
            )
        cluster = self._cluster()
        if not self._marked:
            try:
                self._owner.refuse_unmarked(cluster)
            except Unreachable:
                return cluster  # whoever asks it next is told, or waits until it answers
            self._marked = True
        return cluster

    def remove_cluster(self, log: Log) -> StepFacts:
        """Delete the cluster if this lab made it, and see that it is gone."""
        self.tools.end_leftovers(log)
        self._docker.daemon()
        if not self.cluster_exists():
            self._forget()
            return StepFacts(f"there is no kind cluster {self._name}", changed=False)
        self._owner.refuse_foreign()
        self._ahead.remember(self._kind.nodes(self._name), log)
        self._kind.delete(self._name, kubeconfig=self._kubeconfig, log=log)
        self._forget()
        return StepFacts(f"kind cluster {self._name} is deleted, with everything in it")

    # -- image and releases ------------------------------------------------------------------------------------------

    def provide_image(self, log: Log) -> StepFacts:
        return self._images.provide(self._name, log)

    def image_digests(self) -> Mapping[str, frozenset[str]]:
        return self._images.digests(self._name)

    def install(self, component: str, chart: Chart, log: Log, *, repair: bool = False) -> StepFacts:
        deadline_s = install_deadline_s(self._settings, component)
        return self._releases().install(chart, log, deadline_s=deadline_s, repair=repair)

    def render(self, chart: Chart, archive: Path) -> Sequence[Mapping[str, Any]]:
        return self._helm.template(chart, archive)

    def manifest(self, chart: Chart) -> Sequence[Mapping[str, Any]]:
        return self._helm.manifest(chart.release, chart.namespace)

    def releases(self) -> Sequence[Mapping[str, Any]]:
        return self._releases().rows()

    def uninstall(self, component: str, chart: Chart, log: Log) -> StepFacts:
        return self._releases().uninstall(chart, log)

    # -- how ---------------------------------------------------------------------------------------------------------

    def _cluster(self) -> Cluster:
        return Cluster(self._kubeconfig, f"kind-{self._name}")

    def _releases(self) -> Releases:
        cluster = self.connect()
        return Releases(self._helm, cluster, pause=self._pause)

    def _check_files(self) -> None:
        if self._settings.kind.config:
            self._images.file(self._settings.kind.config, "kind.config")
        self._images.preloads()
        authorities(self._settings)

    def _check_version(self) -> None:
        version = self._kind.version()
        if version is not None and version < MINIMUM:
            raise LabError(
                f"kind {'.'.join(map(str, version))} is too old: the lab needs 0.20 or newer",
                where="kind version",
                next_step="Install a newer kind: https://kind.sigs.k8s.io/docs/user/quick-start/.",
            )

    def _adopt(self, log: Log) -> ClusterFacts | None:
        """The cluster that is there, if it is ours and healthy; None after an unhealthy one of ours was removed."""
        if self._owner.half_made():
            log(f"an earlier run was cut off while it made {self._name}; making it anew")
            self._kind.delete(self._name, kubeconfig=self._kubeconfig, log=log)
            return None
        ours = self._owner.made_nodes()
        for node in self._kind.containers(self._name):
            if not self._docker.running(node):
                if not ours:
                    raise self._owner.foreign(f"its node {node} is stopped, and is none that this lab made")
                log(f"starting the stopped node {node}")
                self._docker.start(node)
        with self._owner.exported() as seen:
            try:
                self._wait_until(lambda: self._not_answering(seen), ADOPT_DEADLINE_S, "the API server does not answer")
                self._owner.refuse_unmarked(seen)
                ours = True
                if self._owner.made_otherwise():
                    log(
                        f"{self._name} is ours; its node image, kind config, mirrors or ca_file changed: making it anew"
                    )
                    self._kind.delete(self._name, kubeconfig=self._kubeconfig, log=log)
                    return None
                self._wait_until(lambda: _nodes_not_ready(seen), ADOPT_DEADLINE_S, "a node is not Ready")
            except _GaveUp as error:
                if not ours:
                    raise self._owner.foreign(error.last) from error
                log(f"{self._name} is ours and not healthy ({error.last}); making it anew")
                self._keep_logs(log)
                self._kind.delete(self._name, kubeconfig=self._kubeconfig, log=log)
                return None
            cluster = self._owner.keep(seen)
        self._owner.note_nodes(MADE)
        log(f"adopted the cluster {self._name}, which this lab made")
        self._preload(log)
        return self._facts(cluster, made=False)

    def _make(self, log: Log) -> ClusterFacts:
        kind = self._settings.kind
        self._owner.note_making()
        with self._meanwhile(log) as pull_ahead:
            try:
                with self._owner.touched():
                    self._kind.create(
                        self._name,
                        kubeconfig=self._kubeconfig,
                        image=kind.node_image,
                        config=self._config(),
                        deadline_s=self._settings.deadlines.cluster + 120,
                        log=log,
                    )
                self._owner.note_nodes()
                self._kubeconfig.chmod(0o600)
                cluster = self._cluster()
                deadline_s = self._settings.deadlines.cluster
                self._wait_until(lambda: self._not_answering(cluster), deadline_s, "the API server does not answer")
                write_mark(cluster, new_mark(self._name, self._settings.lab_dir, made=True))
                self._owner.refuse_unmarked(cluster)
                write_mirrors(self._settings, self._docker, self._kind.nodes(self._name), log)
                pull_ahead.start()
                self._wait_until(lambda: _nodes_not_ready(cluster), deadline_s, "a node is not Ready")
            except LabError as error:
                if "already exist for a cluster" in error.seen:
                    self._forget()  # somebody made it in the meantime: its nodes are not ours
                else:
                    self._clean_after(error, log)
                raise
            self._owner.note_nodes(MADE)
            self._preload(log)
        return self._facts(cluster, made=True)

    def _preload(self, log: Log) -> None:
        """Load the archives that kind.preload names and that no earlier run loaded to its end."""
        for word, archive in self._images.preloads().items():
            if not self._owner.preloaded(word):
                log(f"loading {archive.name} into the nodes")
                self._kind.load_archive(self._name, archive, log=log)
                self._owner.note_preloaded(word)

    @contextlib.contextmanager
    def _meanwhile(self, log: Log) -> Iterator[threading.Thread]:
        """Build the image while kind makes the cluster; a failure of it is told again by its own step.

        The thread that is given lets the nodes pull ahead. It is started when they can, and nobody waits for it: when
        the cluster is ready and the image built, what it has not done is left to the pods.
        """

        def build() -> None:
            try:
                self._images.prepare(log)
            except (LabError, OSError) as error:
                log(f"the image is not ready, its own step will try again: {getattr(error, 'what', error)}")

        stop = threading.Event()
        builder = threading.Thread(target=build, name="image", daemon=True)
        puller = threading.Thread(
            target=lambda: self._ahead.pull(lambda: self._kind.nodes(self._name), stop, log), name="pulls", daemon=True
        )
        builder.start()
        try:
            yield puller
        except BaseException:
            self.tools.end_all()
            raise
        finally:
            builder.join()
            stop.set()
            if puller.ident is not None:
                if puller.is_alive():
                    self.tools.end_all()
                puller.join()
            self.tools.reopen()

    def _clean_after(self, error: LabError, log: Log) -> None:
        """Keep the logs of the nodes that failed, then delete them."""
        folder = self._keep_logs(log)
        if folder is not None:
            error.next_step += f" The nodes' logs are in {folder}."
            error.args = (error.text(),)
        try:
            self._kind.delete(self._name, kubeconfig=self._kubeconfig, log=log)
            self._forget()
        except LabError as second:
            log(f"the failed cluster could not be deleted, the next run will: {second.what}")

    def _keep_logs(self, log: Log) -> Path | None:
        base = self.tools.transcripts or self._settings.lab_dir / "commands"
        folder = base / f"kind-logs-{time.strftime('%Y%m%dT%H%M%S')}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._kind.export_logs(self._name, folder)
        except (LabError, OSError) as error:
            log(f"the nodes' logs could not be kept: {getattr(error, 'what', error)}")
            return None
        log(f"kept the nodes' logs in {folder}")
        return folder

    def _config(self) -> Path | None:
        if self._settings.kind.config:
            return self._images.file(self._settings.kind.config, "kind.config")
        return mirrors_config(self._settings)

    def _wait_until(self, trouble: Callable[[], str], deadline_s: float, what: str) -> None:
        """Look until `trouble` finds none; raises _GaveUp with what it last found."""
        deadline = time.monotonic() + deadline_s
        while True:
            last = trouble()
            if not last:
                return
            if time.monotonic() >= deadline:
                raise _GaveUp(what, deadline_s, last, where=str(self._cluster()))
            self._pause(0.5)

    @staticmethod
    def _not_answering(cluster: Cluster) -> str:
        try:
            cluster.version()
            cluster.incarnation()
        except ApiError as error:
            return error.message
        return ""

    def _forget(self) -> None:
        self._marked = False
        self._owner.forget()

    def _facts(self, cluster: Cluster, *, made: bool) -> ClusterFacts:
        note = f"kind {'.'.join(map(str, self._kind.version() or ()))}, nodes {', '.join(self._kind.nodes(self._name))}"
        return ClusterFacts(self._kubeconfig, cluster.context, cluster.incarnation(), made, note)


class _GaveUp(LabError):
    """A wait ran out."""

    def __init__(self, what: str, deadline_s: float, last: str, *, where: str) -> None:
        self.last = last
        super().__init__(
            f"After {deadline_s:.0f} s {what}",
            where=where,
            seen=last,
            next_step="Run it again; on a slow machine raise deadlines.cluster in lab.toml.",
        )


def _nodes_not_ready(cluster: Cluster) -> str:
    """Which nodes are not Ready, as a sentence; empty when all are, and there is at least one."""
    try:
        nodes = cluster.objects("nodes")
    except ApiError as error:
        return error.message
    waiting = [node["metadata"]["name"] for node in nodes if not _ready(node)]
    if not nodes:
        return "there is no node"
    return f"not Ready: {', '.join(waiting)}" if waiting else ""


def _ready(node: Mapping[str, Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)
