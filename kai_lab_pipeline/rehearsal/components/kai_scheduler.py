"""KAI's scheduler: in each cycle it divides resources among queues and makes BindRequests for pods that fit."""

from __future__ import annotations

import asyncio
import random
import string
from dataclasses import replace

from kai_lab_pipeline.rehearsal.client import RESOURCES, STRATEGIC_PATCH, Object
from kai_lab_pipeline.rehearsal.components import kai_accounting as accounting
from kai_lab_pipeline.rehearsal.components.informers import Key, key_of
from kai_lab_pipeline.rehearsal.components.kai_accounting import NodeState, Placement, QueueShares, Task, Unfit
from kai_lab_pipeline.rehearsal.components.kai_operator import SCHEDULER, KaiController
from kai_lab_pipeline.rehearsal.components.programs import stamp
from kai_lab_pipeline.rehearsal.components.runtime import Sim, now
from kai_lab_pipeline.rehearsal.components.webhooks import container_log
from kai_lab_pipeline.rehearsal.components.workloads import finished

SCHEDULER_NAME = "kai-scheduler"
POD_GROUP = "pod-group-name"
_CYCLE: Key = ("", "cycle")
_CYCLE_S = 1.0
_SLOWEST_CYCLE_S = 10.0
"""Real seconds: a pod that stays pending must not keep an idle lab busy."""
_HEARTBEAT_S = 30.0
_ACTIONS = (
    ("allocate", "Allocate", 32, 47),
    ("consolidation", "Consolidation", 37, 34),
    ("reclaim", "Reclaim", 34, 47),
    ("preempt", "Preempt", 31, 47),
)


class Scheduler(KaiController):
    name = SCHEDULER_NAME
    app = SCHEDULER

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self.pods = self.watch("pods", self._pod_keys)
        self.nodes = self.watch("nodes", self._any)
        self.queues = self.watch("queues", self._any)
        self.groups = self.watch("podgroups", self._any)
        self.requests = self.watch("bindrequests", self._any)
        self._fresh_change = False
        self._interval_s = sim.seconds(_CYCLE_S)
        self._rng = random.Random()
        self._last = 0.0

    def _any(self, obj: Object) -> list[Key]:
        self._fresh_change = True
        return [_CYCLE]

    def _pod_keys(self, pod: Object) -> list[Key]:
        return self._any(pod) if pod["spec"].get("schedulerName") == SCHEDULER_NAME else []

    def wake_all(self) -> None:
        self.queue.add(_CYCLE)

    async def reconcile(self, key: Key) -> None:
        if self.sim.faults.on("scheduler_silent"):
            return
        loop = asyncio.get_running_loop()
        pause = self._last + self.sim.seconds(_CYCLE_S) - loop.time()
        if pause > 0:
            await asyncio.sleep(pause)
        self._last = loop.time()
        if self._fresh_change:
            self._interval_s = self.sim.seconds(_CYCLE_S)
            self._fresh_change = False
        waiting = await self._cycle()
        if waiting:
            self.queue.add(_CYCLE, after_s=self._interval_s)
            self._interval_s = min(self._interval_s * 1.5, max(_SLOWEST_CYCLE_S, self._interval_s))
        else:
            self.queue.add(_CYCLE, after_s=_HEARTBEAT_S)

    async def _cycle(self) -> bool:
        """One scheduling session; whether pods remain that fit nowhere."""
        await self._drop_failed_requests()
        tasks = self._tasks()
        queues = {name: queue for (_, name), queue in ((key_of(q), q) for q in self.queues.all())}
        states = {node["metadata"]["name"]: accounting.node_state(node) for node in self.nodes.all() if _ready(node)}
        for task in tasks:
            if task.node in states:
                states[task.node].take(task)
        shares = accounting.divide(queues, tasks, {name: state.label for name, state in states.items()})
        self._distort(shares)
        pending = [task for task in tasks if task.node is None]
        self._log(shares, states, len(tasks), len(pending))
        stuck = False
        for task in pending:
            placed = await self._try(task, queues, states)
            stuck = stuck or not placed
        return stuck

    def _distort(self, shares: dict[str, QueueShares]) -> None:
        if not self.sim.faults.on("fraction_wrong"):
            return
        extra = self.sim.faults.number("fraction_wrong", 0.01)
        for share in shares.values():
            if share.gpu.allocated > 0:
                share.gpu.allocated += extra
                share.gpu.requested += extra

    async def _drop_failed_requests(self) -> None:
        for request in list(self.requests.all()):
            if (request.get("status") or {}).get("phase") == "Failed":
                namespace, name = key_of(request)
                uid = request["metadata"]["uid"]
                await self.api.delete(RESOURCES["bindrequests"], namespace, name, uid=uid)
                self.requests.forget(namespace, name, uid)

    def _tasks(self) -> list[Task]:
        tasks: list[Task] = []
        for pod in self.pods.all():
            if pod["spec"].get("schedulerName") != SCHEDULER_NAME or finished(pod):
                continue
            leaving = pod["metadata"].get("deletionTimestamp") and not pod["spec"].get("nodeName")
            if leaving or POD_GROUP not in (pod["metadata"].get("annotations") or {}):
                continue
            request = self.requests.get(*key_of(pod))
            if request is not None and not _belongs(request, pod):
                request = None
            tasks.append(accounting.task_of(pod, request))
        return tasks

    async def _try(self, task: Task, queues: dict[str, Object], states: dict[str, NodeState]) -> bool:
        pod = self.pods.get(task.namespace, task.name)
        if pod is None:
            return True
        if not accounting.usable(task.queue, queues):
            text = f"QueueDoesNotExist: Queue '{task.queue}' does not exist."
            await self._refuse(pod, text, text)
            return False
        if not accounting.is_leaf(task.queue, queues):
            await self._refuse(pod, "Unable to schedule pod", "Unable to schedule podgroup")
            return False
        try:
            placement = accounting.place(task, states.values())
        except Unfit as unfit:
            lead = f"PodSchedulingErrors: Resources were not found for pod {task.namespace}/{task.name} due to: "
            await self._refuse(pod, str(unfit), f"{lead}{unfit}.")
            return False
        await self._request(pod, placement)
        states[placement.node].take(_placed(task, placement))
        return True

    async def _request(self, pod: Object, placement: Placement) -> None:
        namespace, name = key_of(pod)
        spec: Object = {
            "podName": name,
            "receivedGPU": {"count": placement.count, "portion": f"{placement.portion:.2f}"},
            "receivedResourceType": placement.kind,
            "selectedNode": placement.node,
        }
        if placement.groups:
            spec["selectedGPUGroups"] = list(placement.groups)
        request = {
            "apiVersion": "scheduling.run.ai/v1alpha2",
            "kind": "BindRequest",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {"selected-node": placement.node},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]},
                ],
            },
            "spec": spec,
        }
        self.sim.informers.learn(await self.api.create(request))
        where = f"to node {placement.node} at node-pool default"
        text = f"Successfully assigned pod {namespace}/{name} {where}"
        await self.sim.recorder.record(pod, "Normal", "Scheduled", text, self.name)
        group = self._group_of(pod)
        if group is not None:
            started = {"metadata": {"annotations": {"kai.scheduler/last-start-timestamp": now()}}}
            await self.patch(group, started)
            if (group.get("status") or {}).get("schedulingConditions"):
                await self.patch(group, {"status": {"schedulingConditions": None}}, subresource="status")

    def _group_of(self, pod: Object) -> Object | None:
        name = (pod["metadata"].get("annotations") or {}).get(POD_GROUP, "")
        return self.groups.get(pod["metadata"]["namespace"], name)

    async def _refuse(self, pod: Object, text: str, group_text: str) -> None:
        await self.sim.recorder.record(pod, "Warning", "Unschedulable", text, self.name)
        conditions = (pod.get("status") or {}).get("conditions") or []
        if not any(entry["type"] == "PodScheduled" and entry.get("message") == text for entry in conditions):
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": text,
                "lastProbeTime": None,
                "lastTransitionTime": now(),
            }
            patch = {"status": {"conditions": [condition]}}
            await self.patch(pod, patch, content_type=STRATEGIC_PATCH, subresource="status")
        group = self._group_of(pod)
        if group is None:
            return
        await self.sim.recorder.record(group, "Normal", "Unschedulable", group_text, self.name)
        known = (group.get("status") or {}).get("schedulingConditions") or []
        if known and known[0].get("message") == group_text:
            return
        transition = str(int(known[0].get("transitionID", 0)) + 1) if known else "0"
        entry = {
            "type": "UnschedulableOnNodePool",
            "nodePool": "default",
            "reason": "PodSchedulingErrors",
            "message": group_text,
            "status": "True",
            "transitionID": transition,
            "lastTransitionTime": now(),
        }
        await self.patch(group, {"status": {"schedulingConditions": [entry]}}, subresource="status")

    def _log(self, shares: dict[str, QueueShares], states: dict[str, NodeState], jobs: int, pending: int) -> None:
        pod = self.own_pod()
        if pod is None:
            return
        session = "".join(self._rng.choice(string.ascii_letters + string.digits) for _ in range(6))
        colour = self._rng.randint(31, 37)
        mark = f"[\x1b[{colour}m{session}\x1b[0m]"
        lines: list[str] = []

        def say(place: str, text: str) -> None:
            lines.append(f"{stamp()}\t\x1b[34mINFO\x1b[0m\t{place}\t{mark} {text}")

        say("scheduler/scheduler.go:124", "Start scheduling ...")
        say("framework/session.go:499", "Taking cluster snapshot ...")
        counts = f"<{jobs}> Jobs, <{len(shares)}> Queues and <{len(states)}> Nodes"
        say("framework/session.go:508", f"Session {session} with {counts}")
        names = list(shares)
        self._rng.shuffle(names)
        for name in names:
            say("resource_division/resource_division.go:68", shares[name].line(name))
        cpu = sum(state.cpu for state in states.values())
        memory = sum(state.memory_bytes for state in states.values()) / 1e9
        gpus = sum(state.gpus for state in states.values())
        total = f"<CPU: {cpu:g} (cores), memory: {memory:.3f} (GB), Gpus: {gpus}>"
        say(
            "proportion/proportion.go:256",
            f"Total allocatable resources are {total}, number of nodes: <{len(states)}>, "
            f"number of queues: <{len(shares)}>",
        )
        for action, title, tint, row in _ACTIONS:
            lead = f"[\x1b[{tint}m{action}\x1b[0m]"
            say(f"{action}/{action}.go:{row}", f"{lead} Enter {title} ...")
            say(
                f"{action}/{action}.go:{row + 10}",
                f"{lead} There are <{pending}> PodGroupInfos and <{max(len(shares) - 1, 0)}> Queues in total "
                "for scheduling",
            )
            say(f"{action}/{action}.go:{row + 30}", f"{lead} Leaving {title} ...")
        say("scheduler/scheduler.go:146", "End scheduling ...")
        container_log(self.sim, pod, pod["spec"]["containers"][0]["name"]).write(*lines)


def _ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def _belongs(request: Object, pod: Object) -> bool:
    owners = request["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == pod["metadata"]["uid"] for owner in owners)


def _placed(task: Task, placement: Placement) -> Task:
    return replace(task, node=placement.node, groups=placement.groups)
