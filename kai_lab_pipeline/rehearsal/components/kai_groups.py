"""KAI's pod-grouper, podgroup-controller and queue-controller: groups of pods, and what queues hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kai_lab_pipeline.lab.gpu import label_memory_mib
from kai_lab_pipeline.rehearsal.client import Object
from kai_lab_pipeline.rehearsal.components.default_scheduler import quantity, requested
from kai_lab_pipeline.rehearsal.components.informers import Key, key_of
from kai_lab_pipeline.rehearsal.components.kai_accounting import DEFAULT_QUEUE, QUEUE_LABEL, Task, task_of
from kai_lab_pipeline.rehearsal.components.kai_operator import KaiController
from kai_lab_pipeline.rehearsal.components.kai_scheduler import POD_GROUP, SCHEDULER_NAME
from kai_lab_pipeline.rehearsal.components.node import GPU
from kai_lab_pipeline.rehearsal.components.runtime import Sim
from kai_lab_pipeline.rehearsal.components.workloads import finished

GPU_MEMORY_RESOURCE = "run.ai/gpu.memory"
GPU_GROUP_LABEL = "runai-gpu-group"
Amounts = dict[str, float]


def group_name(pod: Object) -> str:
    return f"pg-{pod['metadata']['name']}-{pod['metadata']['uid']}"


class PodGrouper(KaiController):
    name = "pod-grouper"
    app = "pod-grouper"

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self.pods = self.watch("pods", _kai_pod)
        self.groups = self.watch("podgroups", lambda group: [])

    def wake_all(self) -> None:
        for pod in self.pods.all():
            for key in _kai_pod(pod):
                self.queue.add(key)

    async def reconcile(self, key: Key) -> None:
        pod = self.pods.get(*key)
        if pod is None or finished(pod) or pod["metadata"].get("deletionTimestamp"):
            return
        name = group_name(pod)
        if self.groups.get(key[0], name) is None:
            await self.ensure(_group_for(pod, name))
        if (pod["metadata"].get("annotations") or {}).get(POD_GROUP) != name:
            await self.patch(pod, {"metadata": {"annotations": {POD_GROUP: name}}})


def _kai_pod(pod: Object) -> list[Key]:
    return [key_of(pod)] if pod["spec"].get("schedulerName") == SCHEDULER_NAME else []


def _group_for(pod: Object, name: str) -> Object:
    meta = pod["metadata"]
    owner = f'name: {meta["name"]}\nuid: {meta["uid"]}\ngroup: ""\nversion: v1\nkind: Pod\n'
    annotations = {key: value for key, value in (meta.get("annotations") or {}).items() if key != POD_GROUP}
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": dict(meta.get("labels") or {}),
            "annotations": annotations | {"kai.scheduler/top-owner-metadata": owner},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}],
        },
        "spec": {
            "minMember": 1,
            "priorityClassName": "train",
            "queue": (meta.get("labels") or {}).get(QUEUE_LABEL) or DEFAULT_QUEUE,
            "topologyConstraint": {},
        },
    }


class PodGroupController(KaiController):
    name = "podgroup-controller"
    app = "podgroup-controller"

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self.groups = self.watch("podgroups")
        self.pods = self.watch("pods", self._group_keys)

    def _group_keys(self, pod: Object) -> list[Key]:
        name = (pod["metadata"].get("annotations") or {}).get(POD_GROUP)
        return [(pod["metadata"]["namespace"], name)] if name else []

    def wake_all(self) -> None:
        for group in self.groups.all():
            self.queue.add(key_of(group))

    async def reconcile(self, key: Key) -> None:
        group = self.groups.get(*key)
        if group is None:
            return
        asked: Amounts = {}
        held: Amounts = {}
        for pod in self.pods.all(key[0]):
            if (pod["metadata"].get("annotations") or {}).get(POD_GROUP) != key[1] or finished(pod):
                continue
            task = task_of(pod, None)
            _add(asked, _requested(pod, task))
            if pod["spec"].get("nodeName"):
                _add(held, self._allocated(pod, task))
        status = {"resourcesStatus": {"allocated": _text(held) or None, "requested": _text(asked) or None}}
        known = (group.get("status") or {}).get("resourcesStatus") or {}
        if known != {name: value for name, value in status["resourcesStatus"].items() if value}:
            await self.patch(group, {"status": status}, subresource="status")

    def _allocated(self, pod: Object, task: Task) -> Amounts:
        """What a bound pod holds: a share counts as its memory of the node's whole, unrounded, label."""
        held = {name: amount for name, amount in _requested(pod, task).items() if name != GPU_MEMORY_RESOURCE}
        if task.memory_mib is not None:
            node = self.sim.of("nodes").get("", str(task.node)) or {}
            label = (node.get("metadata", {}).get("labels") or {}).get("nvidia.com/gpu.memory")
            whole = label_memory_mib(label)
            if whole:
                held[GPU] = held.get(GPU, 0.0) + task.memory_mib * task.devices / whole
        return held


def _requested(pod: Object, task: Task) -> Amounts:
    asked: Amounts = {}
    if task.whole:
        asked[GPU] = float(task.whole)
    if task.fraction is not None:
        asked[GPU] = asked.get(GPU, 0.0) + task.fraction * task.devices
    if task.memory_mib is not None:
        asked[GPU_MEMORY_RESOURCE] = float(task.memory_mib * task.devices)
    for resource in ("cpu", "memory"):
        amount = requested(pod, resource)
        if amount:
            asked[resource] = amount
    return asked


def _add(total: Amounts, more: Mapping[str, float]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0.0) + amount


def _text(amounts: Amounts) -> dict[str, str]:
    return {name: quantity_text(value, binary=name == "memory") for name, value in sorted(amounts.items())}


def quantity_text(value: float, *, binary: bool = False) -> str:
    """A number in Kubernetes' canonical form: the largest suffix that leaves a whole number."""
    nano = round(value * 1e9)
    if nano % 10**9 == 0:
        whole = nano // 10**9
        if binary:
            for suffix, factor in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
                if whole and whole % factor == 0:
                    return f"{whole // factor}{suffix}"
            return str(whole)
        for suffix, factor in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
            if whole and whole % factor == 0:
                return f"{whole // factor}{suffix}"
        return str(whole)
    for suffix, factor in (("m", 10**6), ("u", 10**3)):
        if nano % factor == 0:
            return f"{nano // factor}{suffix}"
    return f"{nano}n"


class QueueController(KaiController):
    name = "queue-controller"
    app = "queue-controller"

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self.queues = self.watch("queues", self._all)
        self.groups = self.watch("podgroups", self._all)

    def _all(self, obj: Object) -> list[Key]:
        return [key_of(queue) for queue in self.queues.all()]

    def wake_all(self) -> None:
        for queue in self.queues.all():
            self.queue.add(key_of(queue))

    async def reconcile(self, key: Key) -> None:
        queue = self.queues.get(*key)
        if queue is None:
            return
        name = key[1]
        children = sorted(self._children(name))
        members = set(self._below(name))
        totals: dict[str, Amounts] = {"allocated": {}, "requested": {}}
        for group in self.groups.all():
            if (group.get("spec") or {}).get("queue") not in members:
                continue
            resources: Mapping[str, Any] = (group.get("status") or {}).get("resourcesStatus") or {}
            for kind, total in totals.items():
                _add(total, {res: quantity(amount) for res, amount in (resources.get(kind) or {}).items()})
        status: dict[str, Any] = {kind: _text(total) or None for kind, total in totals.items()}
        status["childQueues"] = children or None
        known = queue.get("status")
        wanted = {field: value for field, value in status.items() if value}
        if known is None or {field: known.get(field) for field in status if known.get(field)} != wanted:
            # Whole maps are replaced: a resource that is no longer held must not stay behind.
            patch = {field: _replacing((known or {}).get(field), value) for field, value in status.items()}
            await self.patch(queue, {"status": patch}, subresource="status")

    def _children(self, name: str) -> Iterable[str]:
        for queue in self.queues.all():
            if (queue.get("spec") or {}).get("parentQueue") == name:
                yield queue["metadata"]["name"]

    def _below(self, name: str, depth: int = 0) -> Iterable[str]:
        yield name
        if depth < 20:
            for child in self._children(name):
                yield from self._below(child, depth + 1)


def _replacing(old: Any, new: Any) -> Any:
    """A merge patch that turns a map into another."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {**dict.fromkeys(old), **new}
    return new
