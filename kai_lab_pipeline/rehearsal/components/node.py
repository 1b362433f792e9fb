"""The node: its object, readiness, images and GPU devices, as a kubelet reports and hands them out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kai_lab_pipeline.rehearsal import profiles
from kai_lab_pipeline.rehearsal.client import RESOURCES, STRATEGIC_PATCH, ApiError, Object
from kai_lab_pipeline.rehearsal.components.runtime import Sim, now

GPU = "nvidia.com/gpu"
FAULTS_ANNOTATION = "rehearsal.kai-lab/faults"
SCALE_ANNOTATION = "rehearsal.kai-lab/time-scale"
NODE_IP = "127.0.0.1"
_READY_S = 14.0
"""Seconds from a node's registration until its network is up (kind v0.33, measured)."""
_NOT_READY = (
    "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady "
    "message:Network plugin returns error: cni plugin not initialized"
)


def canonical_image(image: str) -> str:
    """The full name of an image: registry, repository and tag (``busybox`` is ``docker.io/library/busybox:latest``)."""
    name, at, digest = image.partition("@")
    first, slash, _ = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        name = f"docker.io/{name}" if slash else f"docker.io/library/{name}"
    if not at and ":" not in name.rsplit("/", 1)[-1]:
        name += ":latest"
    return f"{name}{at}{digest}"


def gpu_uuid(index: int) -> str:
    """UUID of a card as nvml-mock's profiles number them."""
    return f"GPU-12345678-1234-1234-1234-{123456780000 + index:012d}"


def gpus_of(pod: Object) -> int:
    """Whole GPUs a pod asks of the kubelet."""
    total = 0
    for container in pod["spec"].get("containers") or []:
        resources = container.get("resources") or {}
        amount = (resources.get("limits") or {}).get(GPU) or (resources.get("requests") or {}).get(GPU) or 0
        total += int(amount)
    return total


class Devices:
    """The kubelet's device manager for nvidia.com/gpu: which pod holds which device, kept over restarts."""

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._file = sim.state_dir / "devices.json"
        self.capacity = 0
        self.assigned: dict[str, list[int]] = {}
        try:
            saved = json.loads(self._file.read_text())
            self.assigned = {uid: list(ids) for uid, ids in saved.items()}
        except (OSError, ValueError, AttributeError):
            self.assigned = {}

    def available(self) -> int:
        return self.capacity - sum(len(ids) for ids in self.assigned.values())

    def allocate(self, uid: str, count: int) -> list[int]:
        """Devices for a pod, the same ones if it has them already. Raises LookupError when too few are free."""
        if uid in self.assigned:
            return self.assigned[uid]
        taken = {index for ids in self.assigned.values() for index in ids}
        free = [index for index in range(self.capacity) if index not in taken]
        if len(free) < count:
            raise LookupError(
                f"Allocate failed due to requested number of devices unavailable for {GPU}. "
                f"Requested: {count}, Available: {len(free)}, which is unexpected"
            )
        # The kubelet promises no order, and the lab's whole pod got any card from 0 to 7: spread by uid.
        start = sum(uid.encode()) % max(len(free), 1)
        chosen = (free[start:] + free[:start])[:count]
        self.assigned[uid] = chosen
        self._save()
        return chosen

    def release(self, uid: str) -> None:
        if self.assigned.pop(uid, None) is not None:
            self._save()

    def keep_only(self, uids: Iterable[str]) -> None:
        known = set(uids)
        for uid in [uid for uid in self.assigned if uid not in known]:
            self.release(uid)

    def _save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self.assigned))


class Node:
    """The one node of the simulated cluster."""

    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.name = sim.options.node_name
        self.api = sim.api.acting_as("kubelet")
        self.devices = Devices(sim)
        self.mock_files: dict[str, Any] | None = None
        """What nvml-mock put on the node (its count of cards); None when its library is not there."""

    @property
    def object(self) -> Object | None:
        return self.sim.of("nodes").get("", self.name)

    async def register(self, kubelet_port: int) -> None:
        """Makes the node, or takes it over after a restart with the kubelet's new port."""
        annotations = {SCALE_ANNOTATION: str(self.sim.options.time_scale)}
        faults = self.sim.faults.values
        found = self.object
        if found is None:
            self.sim.informers.learn(await self.api.create(_fresh_node(self.name)))
            await self._patch_status({"status": _fresh_status(self.name, kubelet_port)})
            self.sim.spawn(self._become_ready(), "node readiness")
        else:
            endpoints = {"daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}}}
            await self._patch_status({"status": endpoints})
            capacity = found.get("status", {}).get("allocatable", {}).get(GPU)
            self.devices.capacity = int(capacity or 0)
            ready = any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"].get("conditions", []))
            if ready == self.sim.faults.on("node_not_ready"):
                self.sim.spawn(self._become_ready(), "node readiness")
        marks: dict[str, str | None] = {**annotations, FAULTS_ANNOTATION: json.dumps(dict(faults)) if faults else None}
        await self._patch({"metadata": {"annotations": marks}})

    async def _become_ready(self) -> None:
        broken = self.sim.faults.on("node_not_ready")
        if not broken:
            await self.sim.sleep(_READY_S)
        stamp = now()
        condition = {
            "type": "Ready",
            "status": "False" if broken else "True",
            "reason": "KubeletNotReady" if broken else "KubeletReady",
            "message": _NOT_READY if broken else "kubelet is posting ready status",
            "lastHeartbeatTime": stamp,
            "lastTransitionTime": stamp,
        }
        await self._patch_status({"status": {"conditions": [condition]}})

    async def advertise(self, count: int) -> None:
        """Publishes so many nvidia.com/gpu as capacity and allocatable."""
        self.devices.capacity = count
        amount = {GPU: str(count)}
        await self._patch_status({"status": {"capacity": amount, "allocatable": amount}})

    def has_image(self, image: str) -> bool:
        wanted = canonical_image(image)
        status = (self.object or {}).get("status", {})
        return any(wanted in (entry.get("names") or []) for entry in status.get("images") or [])

    async def add_image(self, image: str) -> None:
        images = list((self.object or {}).get("status", {}).get("images") or [])
        await self._patch_status({"status": {"images": profiles.with_image(images, canonical_image(image))}})

    async def label(self, labels: dict[str, str | None], manager: str) -> None:
        """Sets labels in the name of a field manager."""
        answer = await self.api.patch(
            RESOURCES["nodes"], None, self.name, {"metadata": {"labels": labels}}, manager=manager
        )
        self.sim.informers.learn(answer)

    async def _patch(self, patch: Any) -> None:
        self.sim.informers.learn(await self.api.patch(RESOURCES["nodes"], None, self.name, patch))

    async def _patch_status(self, patch: Any) -> None:
        for attempt in range(5):
            try:
                answer = await self.api.patch(
                    RESOURCES["nodes"], None, self.name, patch, content_type=STRATEGIC_PATCH, subresource="status"
                )
            except ApiError as error:
                if not error.conflict or attempt == 4:
                    raise
            else:
                self.sim.informers.learn(answer)
                return


def _fresh_node(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "labels": {
                "beta.kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node-role.kubernetes.io/control-plane": "",
                "node.kubernetes.io/exclude-from-external-load-balancers": "",
            },
        },
        "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]},
    }


def _fresh_status(name: str, kubelet_port: int) -> Object:
    stamp = now()
    amounts = {
        "cpu": "2",
        "ephemeral-storage": "264212084Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "memory": "24684092Ki",
        "pods": "110",
    }

    def condition(kind: str, reason: str, message: str) -> Object:
        times = {"lastHeartbeatTime": stamp, "lastTransitionTime": stamp}
        return {"type": kind, "status": "False", "reason": reason, "message": message, **times}

    return {
        "addresses": [{"type": "InternalIP", "address": NODE_IP}, {"type": "Hostname", "address": name}],
        "allocatable": amounts,
        "capacity": amounts,
        "conditions": [
            condition("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            condition("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            condition("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            condition("Ready", "KubeletNotReady", _NOT_READY),
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
        "images": profiles.node_images(),
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": "00000000-0000-4000-8000-000000000001",
            "containerRuntimeVersion": "containerd://1.6.20",
            "kernelVersion": "6.1.0-rehearsal",
            "kubeProxyVersion": "",
            "kubeletVersion": "v1.34.0",
            "machineID": "00000000000000000000000000000001",
            "operatingSystem": "linux",
            "osImage": "Debian GNU/Linux 12 (bookworm)",
            "systemUUID": "00000000000000000000000000000001",
        },
    }
