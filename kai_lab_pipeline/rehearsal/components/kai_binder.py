"""KAI's binder: binds pods, after it has reserved the cards of those that share one.

A reservation is a pod that takes a whole card from the kubelet and writes the card's UUID on itself. The binder waits
40 seconds for that. Source: KAI Scheduler v0.17.0, pkg/binder; confirmed by measurement.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

from kai_lab_pipeline.lab.gpu import memory_limit_mib
from kai_lab_pipeline.rehearsal import profiles
from kai_lab_pipeline.rehearsal.client import RESOURCES, STRATEGIC_PATCH, ApiError, Object
from kai_lab_pipeline.rehearsal.components.informers import Key, key_of
from kai_lab_pipeline.rehearsal.components.kai_admission import CONFIGMAP_ANNOTATION
from kai_lab_pipeline.rehearsal.components.kai_groups import GPU_GROUP_LABEL
from kai_lab_pipeline.rehearsal.components.kai_operator import KaiController
from kai_lab_pipeline.rehearsal.components.node import GPU
from kai_lab_pipeline.rehearsal.components.programs import RESERVED_INDEX, zap
from kai_lab_pipeline.rehearsal.components.runtime import Sim, now
from kai_lab_pipeline.rehearsal.components.webhooks import container_log
from kai_lab_pipeline.rehearsal.components.workloads import finished

RESERVATION_NAMESPACE = "kai-resource-reservation"
ALLOCATION_TIMEOUT_S = 40.0
_BRISK_ATTEMPTS = 4
"""Attempts at the rehearsal's pace; then each takes twice as long, up to real time: an idle lab should rest."""
_GRACE_S = 10.0
_CLEANUP: Key = ("", "unused reservations")


class ReservationFailed(Exception):
    """The card was not reserved in time."""


def reservation_name(node: str, group: str) -> str:
    """Name of the reservation pod of a GPU group on a node (the first 8 bytes of a hash, as 16 hex digits)."""
    return f"gpu-reservation-{hashlib.sha256(f'{node}/{group}'.encode()).hexdigest()[:16]}"


def _came_to_something(pod: Object) -> bool:
    """Whether a reservation pod's container has ended once, or cannot start."""
    status = pod.get("status") or {}
    if status.get("phase") == "Failed":
        return True
    for container in status.get("containerStatuses") or []:
        waiting = (container["state"].get("waiting") or {}).get("reason", "ContainerCreating")
        if container["state"].get("terminated") or container.get("restartCount") or waiting != "ContainerCreating":
            return True
    return False


class Binder(KaiController):
    name = "binder"
    app = "binder"

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self.requests = self.watch("bindrequests")
        self.pods = self.watch("pods", self._pod_keys)
        self._attempts: dict[str, int] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._reserving: dict[str, int] = {}

    def _pod_keys(self, pod: Object) -> list[Key]:
        namespace, name = key_of(pod)
        if namespace == RESERVATION_NAMESPACE:
            event = self._changed.get(name)
            if event is not None:
                event.set()
            return []
        gone = self.sim.of("pods").get(namespace, name) is None or finished(pod)
        if gone:
            for event in self._changed.values():
                event.set()
        shared = GPU_GROUP_LABEL in (pod["metadata"].get("labels") or {})
        return [_CLEANUP] if shared and gone else []

    def wake_all(self) -> None:
        for request in self.requests.all():
            self.queue.add(key_of(request))
        self.queue.add(_CLEANUP)

    async def reconcile(self, key: Key) -> None:
        if key == _CLEANUP:
            await self._drop_unused()
            return
        request = self.requests.get(*key)
        if request is None or (request.get("status") or {}).get("phase"):
            return
        pod = self.pods.get(key[0], request["spec"]["podName"])
        if pod is None or pod["spec"].get("nodeName"):
            return
        try:
            await self._bind(request, pod)
        except ReservationFailed as error:
            await self._failed(request, pod, str(error))
            await self._again(request, pod)

    async def _again(self, request: Object, pod: Object) -> None:
        """The status of the failed request wakes the binder once more for the same request and GPU group.

        Its second failure changes nothing in the status, which KAI up to v0.17 takes for success: a Bound event and a
        condition that are not true.
        """
        current = self.pods.get(*key_of(pod))
        if current is None or current["metadata"]["uid"] != pod["metadata"]["uid"] or not self.alive():
            return
        try:
            await self._bind(request, current)
        except ReservationFailed as error:
            if self._version().false_bound:
                await self._report_bound(current, request["spec"]["selectedNode"])
            else:
                await self._failed(request, current, str(error))

    def _version(self) -> profiles.KaiVersion:
        pod = self.own_pod()
        return profiles.kai_of_image(pod["spec"]["containers"][0]["image"]) if pod else profiles.KAI["v0.17.0"]

    async def _bind(self, request: Object, pod: Object) -> None:
        namespace, name = key_of(pod)
        spec = request["spec"]
        node, kind = spec["selectedNode"], spec["receivedResourceType"]
        self._log("Binding pod", {"pod": name, "namespace": namespace, "node": node})
        labels: dict[str, str] = {}
        if kind == "Fraction":
            groups = spec["selectedGPUGroups"]
            devices = [await self._reserve(pod, node, group) for group in groups]
            await self._make_configmaps(pod, node, devices, float(spec["receivedGPU"]["portion"]))
            if len(groups) == 1:
                labels[GPU_GROUP_LABEL] = groups[0]
            else:
                labels = {f"{GPU_GROUP_LABEL}/{group}": group for group in groups}
        meta: Object = {"annotations": {"received-resource-type": kind}}
        if labels:
            meta["labels"] = labels
        try:
            await self.patch(pod, {"metadata": meta})
            await self.api.bind(namespace, name, node)
        except ApiError as error:
            if error.not_found:
                self.queue.add(_CLEANUP)
                return
            raise
        stored = self.requests.get(*key_of(request))
        if stored is not None:
            await self.patch(stored, {"status": {"phase": "Succeeded"}}, subresource="status")
        self._attempts.pop(pod["metadata"]["uid"], None)
        await self._report_bound(pod, node)

    async def _reserve(self, pod: Object, node: str, group: str) -> str:
        """The UUID of the card of a GPU group, reserving one if the group has none. Raises ReservationFailed."""
        name = reservation_name(node, group)
        event = self._changed.setdefault(name, asyncio.Event())
        self._reserving[group] = self._reserving.get(group, 0) + 1
        try:
            found = self.pods.get(RESERVATION_NAMESPACE, name)
            if found is None:
                found = await self.ensure(self._reservation(pod, node, group, name))
                details = {"nodeName": node, "namespace": RESERVATION_NAMESPACE, "name": name}
                self._log("Successfully created GPU resource reservation pod", details)
            device = await self._wait_for_device(name, event, pod)
            if device is not None:
                return device
            uid = found["metadata"]["uid"]
            await self.api.delete(RESOURCES["pods"], RESERVATION_NAMESPACE, name, grace_s=0, uid=uid)
            self.pods_forget(name, uid)
            namespace, own = key_of(pod)
            raise ReservationFailed(
                f"failed to reserve GPUs for pod <{namespace}/{own}> in gpu group <{group}>: failed waiting for GPU "
                f"reservation pod to allocate: {RESERVATION_NAMESPACE}/{name}"
            )
        finally:
            self._reserving[group] -= 1
            if not self._reserving[group]:
                del self._reserving[group]
                self._changed.pop(name, None)

    def pods_forget(self, name: str, uid: str) -> None:
        self.sim.of("pods").forget(RESERVATION_NAMESPACE, name, uid)

    def _patience_s(self, pod: Object) -> float:
        """Seconds to wait for a reservation."""
        uid = pod["metadata"]["uid"]
        attempts = self._attempts[uid] = self._attempts.get(uid, 0) + 1
        brisk = self.sim.seconds(ALLOCATION_TIMEOUT_S)
        slow = brisk * 2.0 ** min(max(attempts - _BRISK_ATTEMPTS, 0), 20)
        return max(brisk, min(slow, ALLOCATION_TIMEOUT_S))

    async def _wait_for_device(self, name: str, event: asyncio.Event, pod: Object) -> str | None:
        """The card that the reservation pod found; None when the patience with it is at its end.

        Once the pod it is for is gone, or the kubelet has refused the reservation pod for good, no more than the
        rehearsal's pace is waited: a slow attempt would outlive what a person mends meanwhile.
        """
        loop = asyncio.get_running_loop()
        start, patience = loop.time(), self._patience_s(pod)
        while True:
            found = self.pods.get(RESERVATION_NAMESPACE, name)
            device = ((found or {}).get("metadata", {}).get("annotations") or {}).get(RESERVED_INDEX)
            current = self.pods.get(*key_of(pod))
            gone = current is None or current["metadata"]["uid"] != pod["metadata"]["uid"]
            if gone or (found is not None and finished(found)):
                patience = self.sim.seconds(ALLOCATION_TIMEOUT_S)
            left = start + patience - loop.time()
            if left <= 0 and found is not None and not _came_to_something(found):
                # A busy machine is slower than scaled time: 40 seconds always see the container's first failure.
                left = start + patience + _GRACE_S - loop.time()
            if device or left <= 0:
                return device or None
            event.clear()
            try:
                await asyncio.wait_for(event.wait(), left)
            except (asyncio.TimeoutError, TimeoutError):
                continue

    def _args(self) -> list[str]:
        pod = self.own_pod()
        return [str(arg) for arg in (pod["spec"]["containers"][0].get("args") or [])] if pod else []

    def _flag(self, name: str, default: str = "") -> str:
        args = self._args()
        for index, arg in enumerate(args):
            if arg == name and index + 1 < len(args):
                return args[index + 1]
            if arg.startswith(f"{name}="):
                return arg.partition("=")[2]
        return default

    def _reservation(self, pod: Object, node: str, group: str, name: str) -> Object:
        one = {GPU: "1"}

        def from_field(variable: str, path: str) -> Object:
            return {"name": variable, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}

        security = json.loads(self._flag("--resource-reservation-container-security-context", "{}"))
        spec: Object = {
            "nodeName": node,
            "serviceAccountName": self._flag("--resource-reservation-service-account", RESERVATION_NAMESPACE),
            "tolerations": pod["spec"].get("tolerations") or [],
            "containers": [
                {
                    "name": "resource-reservation",
                    "image": self._flag("--resource-reservation-pod-image"),
                    "imagePullPolicy": "IfNotPresent",
                    "env": [from_field("POD_NAME", "metadata.name"), from_field("POD_NAMESPACE", "metadata.namespace")],
                    "resources": {"limits": one, "requests": one},
                    "securityContext": security,
                }
            ],
        }
        runtime_class = self._flag("--runtime-class-name")
        if runtime_class:
            spec["runtimeClassName"] = runtime_class
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": RESERVATION_NAMESPACE,
                "labels": {"app": RESERVATION_NAMESPACE, GPU_GROUP_LABEL: group},
                "annotations": {"karpenter.sh/do-not-disrupt": "true"},
            },
            "spec": spec,
        }

    async def _make_configmaps(self, pod: Object, node: str, devices: list[str], portion: float) -> None:
        meta = pod["metadata"]
        prefix = (meta.get("annotations") or {}).get(CONFIGMAP_ANNOTATION)
        if not prefix:
            return
        name = self._configmap_name(pod, prefix)
        text = f"{portion:.2f}"
        data = {"GPU_PORTION": text, "NVIDIA_VISIBLE_DEVICES": ",".join(devices), "RUNAI_NUM_OF_GPUS": text}
        limit = self._limit(node, portion)
        if limit is not None:
            data["CUDA_DEVICE_MEMORY_LIMIT"] = limit
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        for suffix, content in (("-evar", None), ("", data)):
            obj: dict[str, Any] = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": f"{name}{suffix}",
                    "namespace": meta["namespace"],
                    "ownerReferences": [owner],
                },
            }
            if content is not None:
                obj["data"] = content
            await self.ensure(obj)

    def _configmap_name(self, pod: Object, prefix: str) -> str:
        """The name the pod refers to: it tells which container gets the card."""
        for volume in pod["spec"].get("volumes") or []:
            name = str((volume.get("configMap") or {}).get("name", ""))
            if name.startswith(f"{prefix}-"):
                return name
        return f"{prefix}-0"

    def _limit(self, node: str, portion: float) -> str | None:
        """What the hamicore plugin writes: trunc(label x portion) MiB; nothing where the label is unreadable."""
        plugins = json.loads(self._flag("--plugins", "{}"))
        if not plugins.get("hamicore", {}).get("enabled"):
            return None
        if self.sim.faults.on("limit_wrong"):
            return self.sim.faults.text("limit_wrong", "20480m")
        found = self.sim.of("nodes").get("", node) or {}
        labels = found.get("metadata", {}).get("labels") or {}
        limit = memory_limit_mib(labels.get("nvidia.com/gpu.memory"), portion)
        return f"{limit}m" if limit is not None else None

    async def _failed(self, request: Object, pod: Object, cause: str) -> None:
        namespace, name = key_of(pod)
        text = f"Failed to bind pod {namespace}/{name} to node {request['spec']['selectedNode']}: {cause}"
        current = self.pods.get(namespace, name)
        if current is not None and current["metadata"]["uid"] == pod["metadata"]["uid"]:
            await self.sim.recorder.record(pod, "Warning", "BindingError", text, self.name)
            await self._condition(pod, "False", "BindingError", text)
        stored = self.requests.get(*key_of(request))
        if stored is not None and stored["metadata"]["uid"] == request["metadata"]["uid"]:
            status = {"phase": "Failed", "reason": text}
            await self.patch(stored, {"status": status}, subresource="status")

    async def _report_bound(self, pod: Object, node: str) -> None:
        text = f"Pod bound successfully to node {node}"
        await self.sim.recorder.record(pod, "Normal", "Bound", text, self.name)
        await self._condition(pod, "True", "Bound", text)

    async def _condition(self, pod: Object, status: str, reason: str, message: str) -> None:
        condition = {
            "type": "PodBound",
            "status": status,
            "reason": reason,
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": now(),
        }
        try:
            patch = {"status": {"conditions": [condition]}}
            await self.patch(pod, patch, content_type=STRATEGIC_PATCH, subresource="status")
        except ApiError as error:
            if not error.not_found:
                raise

    async def _drop_unused(self) -> None:
        """Removes reservation pods of groups that no pod and no request uses any more."""
        used = set(self._reserving)
        for pod in self.pods.all():
            if pod["metadata"]["namespace"] != RESERVATION_NAMESPACE and not finished(pod):
                labels = pod["metadata"].get("labels") or {}
                used |= {value for label, value in labels.items() if label.startswith(GPU_GROUP_LABEL)}
        for request in self.requests.all():
            if self.pods.get(request["metadata"]["namespace"], request["spec"]["podName"]) is not None:
                used |= set(request["spec"].get("selectedGPUGroups") or ())
        for pod in list(self.pods.all(RESERVATION_NAMESPACE, {"app": RESERVATION_NAMESPACE})):
            if pod["metadata"].get("labels", {}).get(GPU_GROUP_LABEL) not in used:
                namespace, name = key_of(pod)
                uid = pod["metadata"]["uid"]
                await self.api.delete(RESOURCES["pods"], namespace, name, grace_s=0, uid=uid)

    def _log(self, text: str, details: Object) -> None:
        pod = self.own_pod()
        if pod is not None:
            line = zap("INFO", text, details={"controller": "bindrequest", **details})
            container_log(self.sim, pod, pod["spec"]["containers"][0]["name"]).write(line)
