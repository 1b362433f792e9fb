"""kube-scheduler: puts pods that are not KAI's on the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kai_lab_pipeline.rehearsal.client import STRATEGIC_PATCH, Object
from kai_lab_pipeline.rehearsal.components.informers import Key, key_of, matches
from kai_lab_pipeline.rehearsal.components.node import GPU, gpus_of
from kai_lab_pipeline.rehearsal.components.runtime import Controller, Sim, now
from kai_lab_pipeline.rehearsal.components.workloads import finished

_NAME = "default-scheduler"
_PREEMPTION = (
    "no new claims to deallocate, preemption: 0/{0} nodes are available: {0} Preemption is not helpful for scheduling."
)
_UNITS = {"": 1.0, "m": 1e-3, "n": 1e-9, "u": 1e-6, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def quantity(value: Any) -> float:
    """A Kubernetes quantity as a number (cores, bytes); 0 when it cannot be read."""
    text = str(value or "0").strip()
    try:
        for suffix, factor in _BINARY.items():
            if text.endswith(suffix):
                return float(text[: -len(suffix)]) * factor
        suffix = text[-1] if text[-1:] in _UNITS else ""
        return float(text[: len(text) - len(suffix)]) * _UNITS[suffix]
    except ValueError:
        return 0.0


def requested(pod: Mapping[str, Any], resource: str) -> float:
    """What all containers of a pod request of a resource."""
    total = 0.0
    for container in pod["spec"].get("containers") or []:
        resources = container.get("resources") or {}
        amount = (resources.get("requests") or {}).get(resource) or (resources.get("limits") or {}).get(resource)
        total += quantity(amount)
    return total


class DefaultScheduler(Controller):
    name = _NAME

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self.pods = self.watch("pods", self._waiting_keys)
        self.watch("nodes", lambda node: [key_of(pod) for pod in self.pods.all() if self._is_waiting(pod)])
        self._said: dict[str, str] = {}

    def _is_waiting(self, pod: Object) -> bool:
        spec = pod["spec"]
        return (
            spec.get("schedulerName", _NAME) == _NAME
            and not spec.get("nodeName")
            and not pod["metadata"].get("deletionTimestamp")
        )

    def _waiting_keys(self, pod: Object) -> list[Key]:
        if self._is_waiting(pod):
            return [key_of(pod)]
        if pod["metadata"].get("deletionTimestamp") or finished(pod):
            # What it held may be free now.
            return [key_of(other) for other in self.pods.all() if self._is_waiting(other)]
        return []

    async def reconcile(self, key: Key) -> None:
        pod = self.pods.get(*key)
        if pod is None or not self._is_waiting(pod):
            return
        reasons: list[str] = []
        nodes = list(self.sim.of("nodes").all())
        for node in nodes:
            problem = self._problem(pod, node)
            if problem is None:
                await self._bind(pod, node)
                return
            reasons.append(problem)
        await self._fail(pod, len(nodes), reasons)

    def _problem(self, pod: Object, node: Object) -> str | None:
        labels = node["metadata"].get("labels") or {}
        status = node.get("status") or {}
        daemon = any(ref["kind"] == "DaemonSet" for ref in pod["metadata"].get("ownerReferences") or [])
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or [])
        if not ready and not daemon:
            return "node(s) had untolerated taint {node.kubernetes.io/not-ready: }"
        if not matches(labels, pod["spec"].get("nodeSelector") or {}):
            return "node(s) didn't match Pod's node affinity/selector"
        allocatable = status.get("allocatable") or {}
        others = [
            other
            for other in self.pods.all()
            if other["spec"].get("nodeName") == node["metadata"]["name"] and not finished(other)
        ]
        for resource in ("cpu", "memory"):
            used = sum(requested(other, resource) for other in others)
            if requested(pod, resource) and used + requested(pod, resource) > quantity(allocatable.get(resource)):
                return f"Insufficient {resource}"
        gpus = gpus_of(pod)
        if gpus and sum(gpus_of(other) for other in others) + gpus > quantity(allocatable.get(GPU)):
            return f"Insufficient {GPU}"
        return None

    async def _bind(self, pod: Object, node: Object) -> None:
        namespace, name = key_of(pod)
        target = node["metadata"]["name"]
        await self.api.bind(namespace, name, target)
        self._said.pop(pod["metadata"]["uid"], None)
        text = f"Successfully assigned {namespace}/{name} to {target}"
        await self.sim.recorder.scheduled(pod, "Normal", "Scheduled", text, self.name)

    async def _fail(self, pod: Object, nodes: int, reasons: list[str]) -> None:
        counted = ", ".join(f"{reasons.count(reason)} {reason}" for reason in sorted(set(reasons)))
        text = f"0/{nodes} nodes are available: {counted}. {_PREEMPTION.format(nodes)}"
        if not nodes:
            text = "no nodes available to schedule pods"
        uid = pod["metadata"]["uid"]
        if self._said.get(uid) == text:
            return
        self._said[uid] = text
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
        await self.sim.recorder.scheduled(pod, "Warning", "FailedScheduling", text, self.name)
