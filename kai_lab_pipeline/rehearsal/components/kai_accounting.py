"""How KAI's scheduler counts: what a pod asks, what a queue has, where a pod fits. Pure functions.

Source: KAI Scheduler v0.17.0, pkg/scheduler (node_info, gpu_sharing_node_info, proportion); confirmed by measurement.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kai_lab_pipeline.lab.gpu import floored_memory_mib, format_quantity, fraction_of_memory, label_memory_mib
from kai_lab_pipeline.rehearsal.client import Object
from kai_lab_pipeline.rehearsal.components.default_scheduler import quantity, requested
from kai_lab_pipeline.rehearsal.components.kai_admission import GPU_DEVICES, GPU_FRACTION, GPU_MEMORY
from kai_lab_pipeline.rehearsal.components.node import GPU, gpus_of

QUEUE_LABEL = "kai.scheduler/queue"
DEFAULT_QUEUE = "default-queue"
UNLIMITED = -1.0
_GB = 1e9


@dataclass(frozen=True)
class Task:
    """A pod as the scheduler sees it; memory in MiB, cores, bytes."""

    namespace: str
    name: str
    uid: str
    queue: str
    whole: int = 0
    memory_mib: int | None = None
    fraction: float | None = None
    devices: int = 1
    cpu: float = 0.0
    memory_bytes: float = 0.0
    node: str | None = None
    """Where it was put, bound or about to be; None while it waits."""
    groups: tuple[str, ...] = ()

    @property
    def shares(self) -> bool:
        return self.memory_mib is not None or self.fraction is not None

    def share_of(self, label: str | None) -> float:
        """Portion of one card, rounded up as KAI allocates it."""
        if self.memory_mib is not None:
            return fraction_of_memory(self.memory_mib, label)
        return math.ceil((self.fraction or 0.0) * 100.0) / 100.0

    def need_mib(self, label: str | None) -> float:
        """Memory of one card it needs."""
        if self.memory_mib is not None:
            return float(self.memory_mib)
        return (self.fraction or 0.0) * floored_memory_mib(label)


def task_of(pod: Object, bind_request: Object | None) -> Task:
    """The pod with what its BindRequest (unless that failed) says it received."""
    meta = pod["metadata"]
    annotations = meta.get("annotations") or {}
    memory, fraction = annotations.get(GPU_MEMORY), annotations.get(GPU_FRACTION)
    spec = (bind_request or {}).get("spec") or {}
    failed = ((bind_request or {}).get("status") or {}).get("phase") == "Failed"
    bound = pod["spec"].get("nodeName")
    placed = spec.get("selectedNode") if bind_request is not None and not failed else None
    return Task(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        queue=(meta.get("labels") or {}).get(QUEUE_LABEL) or DEFAULT_QUEUE,
        whole=gpus_of(pod),
        memory_mib=int(memory) if memory and memory.isdigit() else None,
        fraction=_number(fraction),
        devices=int(annotations.get(GPU_DEVICES) or 1),
        cpu=requested(pod, "cpu"),
        memory_bytes=requested(pod, "memory"),
        node=bound or placed,
        groups=tuple(spec.get("selectedGPUGroups") or ()) if bound or placed else (),
    )


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


@dataclass
class NodeState:
    """The node with what is in use on it."""

    name: str
    label: str | None
    gpus: int
    cpu: float
    memory_bytes: float
    whole_used: int = 0
    cpu_used: float = 0.0
    memory_used: float = 0.0
    groups: dict[str, float] = field(default_factory=dict)
    """MiB in use on each shared card."""

    @property
    def idle_gpus(self) -> int:
        return self.gpus - self.whole_used - len(self.groups)

    def take(self, task: Task) -> None:
        self.whole_used += task.whole
        self.cpu_used += task.cpu
        self.memory_used += task.memory_bytes
        for group in task.groups:
            self.groups[group] = self.groups.get(group, 0.0) + task.need_mib(self.label)


def node_state(node: Object) -> NodeState:
    labels = node["metadata"].get("labels") or {}
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return NodeState(
        name=node["metadata"]["name"],
        label=labels.get("nvidia.com/gpu.memory"),
        gpus=int(quantity(allocatable.get(GPU))),
        cpu=quantity(allocatable.get("cpu")),
        memory_bytes=quantity(allocatable.get("memory")),
    )


class Unfit(Exception):
    """The pod fits nowhere now; the text is the scheduler's."""


@dataclass(frozen=True)
class Placement:
    node: str
    groups: tuple[str, ...]
    portion: float
    count: int
    kind: str


def place(task: Task, nodes: Iterable[NodeState]) -> Placement:
    """Where the pod goes: shared cards are filled before new ones are opened. Raises Unfit."""
    states = list(nodes)
    problems: list[list[str]] = []
    for state in states:
        lacking = _lacking(task, state)
        if not lacking:
            return _placement(task, state)
        problems.append(lacking)
    top = max((state.gpus for state in states), default=0)
    if task.whole > top:
        raise Unfit(
            f"The pod {task.namespace}/{task.name} requires GPU: {task.whole}. Max GPU resources available in a single "
            f"node in the default node-pool is topped at {top}"
        )
    if len(problems) == 1 and problems[0][0].startswith("node is not a gpu node"):
        raise Unfit(problems[0][0])
    kinds = sorted({kind for lacking in problems for kind in lacking}, key=len, reverse=True)
    lines = [f"{sum(kind in p for p in problems)} node(s) didn't have enough resources: {kind}." for kind in kinds]
    raise Unfit("no nodes with enough resources were found: " + " \n".join(lines))


def _lacking(task: Task, state: NodeState) -> list[str]:
    lacking: list[str] = []
    if task.cpu and state.cpu_used + task.cpu > state.cpu:
        lacking.append("CPU cores")
    if task.memory_bytes and state.memory_used + task.memory_bytes > state.memory_bytes:
        lacking.append("memory")
    if task.whole > state.idle_gpus:
        lacking.append("GPUs")
    if task.shares:
        unlabelled = label_memory_mib(state.label) is None
        if unlabelled and task.memory_mib is not None and task.memory_mib % 100 == 0 and task.memory_mib > 100:
            # A whole multiple of the assumed 100 MiB passes for a number of cards and is stopped only later.
            text = "node is not a gpu node or the gpu memory count on the node was not synced yet, task: "
            return [f"{text}<{task.namespace}/{task.name}>, node: <{state.name}>"]
        if task.need_mib(state.label) > floored_memory_mib(state.label):
            return [*lacking, "GPU memory", "GPUs"]
        if len(_open_groups(task, state)) + state.idle_gpus < task.devices:
            lacking.append("GPUs")
    return lacking


def _open_groups(task: Task, state: NodeState) -> list[str]:
    """Shared cards with room for the pod, fullest first."""
    room = floored_memory_mib(state.label)
    need = task.need_mib(state.label)
    fitting = [group for group, used in state.groups.items() if used + need <= room]
    return sorted(fitting, key=lambda group: -state.groups[group])


def _placement(task: Task, state: NodeState) -> Placement:
    if not task.shares:
        return Placement(state.name, (), float(1 if task.whole else 0), task.whole, "Regular")
    groups = _open_groups(task, state)[: task.devices]
    groups += [str(uuid.uuid4()) for _ in range(task.devices - len(groups))]
    return Placement(state.name, tuple(groups), task.share_of(state.label), task.devices, "Fraction")


@dataclass
class Share:
    """A queue's numbers for one resource, as its log line shows them."""

    deserved: float = UNLIMITED
    limit: float = UNLIMITED
    requested: float = 0.0
    allocated: float = 0.0

    @property
    def fair(self) -> float:
        return self.requested if self.limit == UNLIMITED else min(self.requested, self.limit)

    def text(self) -> str:
        pairs = (
            ("deserved", self.deserved),
            ("requested", self.requested),
            ("maxAllowed", self.limit),
            ("allocated", self.allocated),
            ("historicalUsage", 0.0),
            ("fairShare", self.fair),
        )
        return ", ".join(f"{name}: <{format_quantity(value)}>" for name, value in pairs)


@dataclass
class QueueShares:
    gpu: Share
    cpu: Share
    memory: Share
    priority: int = 100

    def line(self, name: str) -> str:
        """The scheduler's division line for this queue."""
        return (
            f"Resource division result for queue <{name}>: Queue Priority: <{self.priority}>, GPU: {self.gpu.text()} "
            f"CPU (cores): {self.cpu.text()} memory (GB): {self.memory.text()} "
        )


def divide(
    queues: Mapping[str, Object], tasks: Iterable[Task], labels: Mapping[str, str | None]
) -> dict[str, QueueShares]:
    """Every queue's shares, a parent's being the sum of its children's. `labels`: memory label per node."""
    shares = {name: _empty_shares(queue) for name, queue in queues.items() if not _orphan(queue, queues)}
    known = [label for label in labels.values() if (label_memory_mib(label) or 0) > 100]
    smallest = min(known, key=floored_memory_mib, default=None)
    for task in tasks:
        gpus = float(task.whole) + _asked_share(task, smallest, labels)
        got = gpus if task.node else 0.0
        name: str | None = task.queue
        while name and name in shares:
            queue = shares[name]
            for share, amount, held in (
                (queue.gpu, gpus, got),
                (queue.cpu, task.cpu, task.cpu if task.node else 0.0),
                (queue.memory, task.memory_bytes / _GB, task.memory_bytes / _GB if task.node else 0.0),
            ):
                share.requested += amount
                share.allocated += held
            name = (queues[name].get("spec") or {}).get("parentQueue")
    return shares


def _asked_share(task: Task, smallest: str | None, labels: Mapping[str, str | None]) -> float:
    if not task.shares:
        return 0.0
    if task.node:
        # Counted anew from the node's label in every cycle, not from the portion its BindRequest was made with.
        return task.share_of(labels.get(task.node)) * task.devices
    if task.memory_mib is not None:
        # A waiting pod counts unrounded, against the smallest card; where no node has a readable label, as nothing.
        return task.memory_mib / floored_memory_mib(smallest) * task.devices if smallest is not None else 0.0
    return (task.fraction or 0.0) * task.devices


def _orphan(queue: Object, queues: Mapping[str, Object]) -> bool:
    parent = (queue.get("spec") or {}).get("parentQueue")
    return bool(parent) and parent not in queues


def is_leaf(name: str, queues: Mapping[str, Object]) -> bool:
    return not any((queue.get("spec") or {}).get("parentQueue") == name for queue in queues.values())


def usable(name: str, queues: Mapping[str, Object]) -> bool:
    return name in queues and not _orphan(queues[name], queues)


def _empty_shares(queue: Object) -> QueueShares:
    resources = (queue.get("spec") or {}).get("resources") or {}

    def share(resource: str, unit: float) -> Share:
        amounts = resources.get(resource) or {}
        quota, limit = (float(amounts.get(field, default)) for field, default in (("quota", 0), ("limit", UNLIMITED)))
        return Share(
            deserved=quota if quota == UNLIMITED else quota / unit,
            limit=limit if limit == UNLIMITED else limit / unit,
        )

    priority = int((queue.get("spec") or {}).get("priority") or 100)
    return QueueShares(share("gpu", 1.0), share("cpu", 1000.0), share("memory", 1000.0), priority)
