"""Looking at the live cluster: one observation per asset, as plain as `kubectl -o json` would print it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kai_lab_pipeline.backends.base import Backend
from kai_lab_pipeline.backends.releases import SHARED_NAMESPACES
from kai_lab_pipeline.clients.kubernetes import ApiError, Cluster, Conflict, NotFound
from kai_lab_pipeline.clients.manifests import CANARY, SHARED_POD, WHOLE_POD, judged_manifest, lab_queue, load_manifest
from kai_lab_pipeline.lab.evidence import ContainerLog, Observation
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.ownership import refuse_foreign
from kai_lab_pipeline.workbench.state import now

_PODS = ("nodes", "pods", "events")
_WORKLOADS = (*_PODS, "queues", "podgroups", "bindrequests", "configmaps")
RESOURCES: Mapping[str, tuple[str, ...]] = {
    "cluster": _PODS,
    "nvml_mock_release": (*_PODS, "daemonsets"),
    "device_plugin": (*_PODS, "daemonsets"),
    "labelled_node": ("nodes",),
    "kai_release": (
        *_PODS,
        "deployments",
        "configs",
        "schedulingshards",
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
    ),
    "queues": ("queues", "events", "pods", "deployments", "validatingwebhookconfigurations"),
    "nvidia_runtime_class": ("runtimeclasses",),
    "isolator_release": (*_PODS, "deployments", "daemonsets", "mutatingwebhookconfigurations"),
    "whole_gpu_pod": (*_WORKLOADS, "runtimeclasses"),
    "shared_gpu_pod": (*_WORKLOADS, "runtimeclasses"),
    "reservation_boundary": _WORKLOADS,
}
"""Lists captured when an asset is observed: what its checks, its report and a diagnosis read. Secrets never."""
_WITH_MANAGED_FIELDS = ("nodes",)
"""Lists in which who wrote a field is evidence: the node's labels."""
WATCHED: Mapping[str, tuple[str, ...]] = {
    "cluster": ("nodes",),
    "nvml_mock_release": ("nodes", "daemonsets"),
    "device_plugin": ("nodes", "pods"),
    "labelled_node": ("nodes",),
    "kai_release": ("deployments", "validatingwebhookconfigurations", "pods"),
    "queues": ("queues",),
    "nvidia_runtime_class": ("runtimeclasses",),
    "isolator_release": ("pods", "mutatingwebhookconfigurations"),
    "whole_gpu_pod": ("pods",),
    "shared_gpu_pod": ("pods", "events", "bindrequests", "configmaps"),
    "reservation_boundary": ("pods", "events"),
}
"""What changes while an asset is waited for."""

LOG_LINES = 4000
"""Newest lines kept of a log; the isolator's webhook is kept whole, its first line is evidence."""


@dataclass(frozen=True)
class _LogSource:
    namespace: str
    """A namespace, or the component whose namespace lab.toml names."""
    app: str = ""
    """Only pods with this app (or name) label; empty takes all of the namespace."""
    pod: str = ""
    """Only the pod of this name."""
    whole: bool = False
    previous: bool = False
    """Ask for the attempt before as well where nothing says that there was one: it may have come since."""
    always: bool = True
    """Also where all is well."""

    def names(self, meta: Mapping[str, Any]) -> bool:
        """Whether it is about the pod of this metadata, given that the namespace is right."""
        if self.pod:
            return bool(meta["name"] == self.pod)
        labels = meta.get("labels") or {}
        named = (labels.get("app"), labels.get("name"), labels.get("app.kubernetes.io/name"))
        return not self.app or self.app in named


_MOCK_LOGS = _LogSource("nvml_mock", app="nvml-mock", always=False)
_KAI_LOGS = _LogSource("kai_scheduler")
_SCHEDULER_LOG = _LogSource("kai_scheduler", app="kai-scheduler-default")
_BINDER_LOG = _LogSource("kai_scheduler", app="binder")
_ISOLATOR_LOGS = _LogSource("kai_resource_isolator", whole=True)
_RESERVATION_LOGS = _LogSource("kai-resource-reservation", previous=True)
_LOGS: Mapping[str, tuple[_LogSource, ...]] = {
    "nvml_mock_release": (_MOCK_LOGS,),
    "device_plugin": (_LogSource("kube-system", app="nvidia-device-plugin-mock"), _MOCK_LOGS),
    "kai_release": (_KAI_LOGS,),
    "isolator_release": (_ISOLATOR_LOGS,),
    "whole_gpu_pod": (_SCHEDULER_LOG, _BINDER_LOG),
    "shared_gpu_pod": (_SCHEDULER_LOG, _BINDER_LOG, _ISOLATOR_LOGS, _RESERVATION_LOGS),
    "reservation_boundary": (_SCHEDULER_LOG, _BINDER_LOG, _RESERVATION_LOGS),
}
_OWN_POD = {"whole_gpu_pod": WHOLE_POD, "shared_gpu_pod": SHARED_POD, "reservation_boundary": SHARED_POD}
"""The lab's pod whose own log tells why it does not come up, by the manifest that makes it."""
_WEBHOOK_LOGS: Mapping[str, tuple[_LogSource, ...]] = {
    "queues": (_LogSource("kai_scheduler", app="queue-controller"),),
    "whole_gpu_pod": (_LogSource("kai_scheduler", app="admission"), _ISOLATOR_LOGS),
    "shared_gpu_pod": (_LogSource("kai_scheduler", app="admission"),),
}
"""What serves the webhooks that may refuse an asset's objects, where that log is not kept anyway."""


class Observer:
    """Captures observations of one lab's live cluster."""

    def __init__(self, settings: Settings, backend: Backend, cluster: Cluster, run_id: str) -> None:
        self.settings = settings
        self.backend = backend
        self.cluster = cluster
        self.run_id = run_id
        self._canary_made = False

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the canary pod, if one was made; an error here never hides the first one."""
        if self._canary_made:
            with suppress(ApiError):
                self._remove_canary()

    @cached_property
    def _incarnation(self) -> str:
        return self.cluster.incarnation()

    def observe(self, asset: str, *, refused: bool = False) -> Observation:
        """Everything the checks of `asset` may need, seen now. Raises LabError when the API server is gone.

        Where its objects were `refused`, the logs of the webhooks that may have done it as well.
        """
        if asset == "kai_release":
            self._send_canary()
        resources = {resource: self._list(resource) for resource in RESOURCES[asset]}
        return Observation(
            resources={name: objects for name, objects in resources.items() if objects is not None},
            helm=tuple(self.backend.releases()),
            dryrun=self._dry_runs(asset),
            logs=tuple(self._logs(self._sources(asset, refused), resources.get("pods") or ())),
            run_id=self.run_id,
            observed_at=now(),
            cluster=self._incarnation,
        )

    def observe_for_gates(self, assets: Iterable[str]) -> Observation:
        """One observation that serves the gates of several assets: lists and dry-runs, no logs and no canary."""
        wanted = [asset for asset in assets if asset in RESOURCES]
        names = dict.fromkeys(resource for asset in wanted for resource in RESOURCES[asset])
        lists = {name: self._list(name) for name in names}
        answers: dict[str, Mapping[str, Any]] = {}
        for asset in wanted:
            answers |= self._dry_runs(asset)
        return Observation(
            resources={name: objects for name, objects in lists.items() if objects is not None},
            helm=tuple(self.backend.releases()),
            dryrun=answers,
            run_id=self.run_id,
            observed_at=now(),
        )

    def _list(self, resource: str) -> tuple[Mapping[str, Any], ...] | None:
        namespace = "default" if resource == "configmaps" else None
        try:
            objects = self.cluster.objects(resource, namespace=namespace)
        except NotFound:
            return None  # the kind is not installed: the list was not captured, and the checks say so
        if resource not in _WITH_MANAGED_FIELDS:
            for obj in objects:
                obj["metadata"].pop("managedFields", None)  # kubectl does not show them either
        return tuple(objects)

    def _send_canary(self) -> None:
        """Make the canary pod once; while KAI's admission does not serve yet it is refused, and the next look tries."""
        if self._canary_made:
            return
        pod = judged_manifest(self.settings, CANARY)[0]
        try:
            # A canary that is there already was bound by an earlier scheduler: it would prove nothing.
            living = self.cluster.find("pods", pod["metadata"]["name"], namespace=pod["metadata"]["namespace"])
            if living is not None:
                refuse_foreign(self.backend, "pods", living)
                self._remove_canary()
            self.cluster.create(pod)
            self._canary_made = True
        except Conflict:
            pass
        except ApiError as error:
            if error.code == 0:
                raise

    def _remove_canary(self) -> None:
        meta = load_manifest(self.settings, CANARY)[0]["metadata"]
        self.cluster.delete("pods", meta["name"], namespace=meta["namespace"], grace_s=0)

    def _dry_runs(self, asset: str) -> dict[str, Mapping[str, Any]]:
        answers: dict[str, Mapping[str, Any]] = {}
        if asset in ("kai_release", "queues"):
            answers["queue"] = self._dry_run(lab_queue(self.settings))
        if asset == "isolator_release":
            answers["shared_pod"] = self._dry_run(probe_pod(self.settings))
        return answers

    def _dry_run(self, obj: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return self.cluster.apply(obj, dry_run=True)
        except ApiError as error:
            if error.code == 0:
                raise
            return error.status()

    def _sources(self, asset: str, refused: bool) -> Iterator[_LogSource]:
        yield from _LOGS.get(asset, ())
        if refused:
            yield from _WEBHOOK_LOGS.get(asset, ())
        if asset in _OWN_POD:
            meta = load_manifest(self.settings, _OWN_POD[asset])[0]["metadata"]
            yield _LogSource(meta["namespace"], pod=meta["name"], always=False)

    def _logs(self, sources: Iterable[_LogSource], pods: tuple[Mapping[str, Any], ...]) -> Iterator[ContainerLog]:
        """Logs of the sources, and of what is in trouble beside them in a namespace that is the lab's."""
        releases = self.settings.charts.by_component()
        taken: set[tuple[str, str]] = set()
        for source in sources:
            namespace = releases[source.namespace].namespace if source.namespace in releases else source.namespace
            for pod in pods:
                meta = pod["metadata"]
                named = source.names(meta)
                if meta.get("namespace") != namespace or (not named and namespace in SHARED_NAMESPACES):
                    continue
                for container, condition in _containers(pod):
                    wanted = condition.in_trouble or (named and source.always and not condition.init)
                    if not wanted or (meta["name"], container) in taken:
                        continue
                    taken.add((meta["name"], container))
                    previous = source.previous or condition.restarts > 0
                    log = self._log(namespace, meta["name"], container, whole=source.whole, previous=previous)
                    if log is not None:
                        yield log

    def _log(self, namespace: str, pod: str, container: str, *, whole: bool, previous: bool) -> ContainerLog | None:
        tail = None if whole else LOG_LINES
        try:
            text = self.cluster.logs(namespace, pod, container, tail=tail)
        except ApiError as error:
            if error.code == 0:
                raise
            return None  # waiting to start, or already gone: there is no log to keep
        before = None
        if previous:
            try:
                before = self.cluster.logs(namespace, pod, container, tail=tail, previous=True)
            except ApiError:
                before = None  # there was no earlier attempt
        return ContainerLog(namespace, pod, container, text, before)


@dataclass(frozen=True)
class _Condition:
    """How a container is doing."""

    init: bool
    restarts: int
    in_trouble: bool
    """It has restarted, ended badly, or is not ready; not what was never given to a node: that said nothing yet."""


def _containers(pod: Mapping[str, Any]) -> Iterator[tuple[str, _Condition]]:
    status = pod.get("status") or {}
    for part, statuses in (("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")):
        seen = {str(item.get("name")): item for item in status.get(statuses) or ()}
        for container in pod["spec"].get(part) or ():
            found = seen.get(container["name"]) or {}
            ended, restarts = (found.get("state") or {}).get("terminated"), int(found.get("restartCount") or 0)
            unwell = bool(found) and not found.get("ready") if ended is None else bool(ended.get("exitCode"))
            yield container["name"], _Condition(part == "initContainers", restarts, restarts > 0 or unwell)


def probe_pod(settings: Settings) -> dict[str, Any]:
    """The shared pod under a name of its own, for the dry-run that shows whether the isolator's webhook mutates."""
    pod = load_manifest(settings, SHARED_POD)[0]
    return pod | {"metadata": pod["metadata"] | {"name": "kai-lab-injection-probe"}}
