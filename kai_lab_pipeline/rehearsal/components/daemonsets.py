"""The daemon set controller: a pod on every node that the template's selector takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kai_lab_pipeline.rehearsal.client import Object
from kai_lab_pipeline.rehearsal.components.informers import Key, key_of, matches
from kai_lab_pipeline.rehearsal.components.runtime import Sim
from kai_lab_pipeline.rehearsal.components.workloads import (
    WorkloadController,
    finished,
    owner_keys,
    pod_ready,
    template_hash,
)


class DaemonSetController(WorkloadController):
    name = "daemonset-controller"

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self.sets = self.watch("daemonsets")
        self.watch("pods", owner_keys("DaemonSet"))
        self.watch("nodes", lambda node: [key_of(ds) for ds in self.sets.all()])

    async def reconcile(self, key: Key) -> None:
        found = self.sets.get(*key)
        if found is None or found["metadata"].get("deletionTimestamp"):
            return
        selector = found["spec"]["template"]["spec"].get("nodeSelector") or {}
        nodes = [node for node in self.sim.of("nodes").all() if matches(node["metadata"].get("labels"), selector)]
        pods = self.pods_of(found)
        generation = str(found["metadata"].get("generation", 1))
        desired = {node["metadata"]["name"] for node in nodes}
        placed: dict[str, Object] = {}
        for pod in pods:
            stale = (pod["metadata"].get("labels") or {}).get("pod-template-generation") != generation
            if finished(pod) or _target(pod) not in desired or stale:
                await self.remove_pod(found, pod)
            placed[_target(pod)] = pod
        for node in sorted(desired - set(placed)):
            await self.make_pod(found, lambda pod, node=node: _pin(pod, node, generation, found))  # type: ignore[misc]
        current = [pod for pod in pods if _target(pod) in desired and not pod["metadata"].get("deletionTimestamp")]
        ready = sum(pod_ready(pod) for pod in current)
        status = {
            "currentNumberScheduled": len(current),
            "desiredNumberScheduled": len(desired),
            "numberAvailable": ready or None,
            "numberMisscheduled": 0,
            "numberReady": ready,
            "numberUnavailable": (len(desired) - ready) or None,
            "observedGeneration": int(generation),
            "updatedNumberScheduled": len(current) or None,
        }
        await self.set_status(found, status)


def _target(pod: Mapping[str, Any]) -> str:
    """The node a daemon set's pod is meant for."""
    spec = pod["spec"]
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    try:
        terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        return str(terms[0]["matchFields"][0]["values"][0])
    except (KeyError, IndexError):
        return ""


def _pin(pod: Object, node: str, generation: str, owner: Object) -> None:
    """Ties a daemon set's pod to its node, and lets it stay where others are driven out."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    pod["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    }
    labels = pod["metadata"]["labels"]
    labels["pod-template-generation"] = generation
    labels["controller-revision-hash"] = template_hash(owner["spec"]["template"])
    tolerations = list(pod["spec"].get("tolerations") or [])
    tolerated = (
        ("NoExecute", ("not-ready", "unreachable")),
        ("NoSchedule", ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")),
    )
    for effect, names in tolerated:
        own = [{"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect} for name in names]
        tolerations += [entry for entry in own if entry not in tolerations]
    pod["spec"]["tolerations"] = tolerations
