"""The isolator's webhook: mounts HAMi-core into pods that share a GPU.

Source: KAI-resource-isolator 1.1.0 (trigger, names, order); 1.0.x injected one volume and two mounts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kai_lab_pipeline.rehearsal.client import Object

MOUNT = "/usr/local/vgpu"
INJECT = "kai-resource-isolator.io/inject"
FRACTION_CONTAINER = "gpu-fraction-container-name"
_NAME = "kai-resource-isolator-vgpu"


class UnknownContainer(LookupError):
    """The annotation names a container that the pod does not have."""


def skip_reason(pod: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    """Why the webhook leaves the pod alone; None when it injects."""
    annotations = pod["metadata"].get("annotations") or {}
    if annotations.get(INJECT) == "false":
        return f"injection disabled by annotation {INJECT}"
    if not any(key in annotations for key in keys):
        return "missing annotations " + " or ".join(f'"{key}"' for key in keys)
    return None


def injection(pod: Mapping[str, Any], *, full: bool) -> list[Object]:
    """The JSON patch that mounts HAMi-core. Raises UnknownContainer."""
    group, index, container = _target(pod)
    complete = full and group == "containers"
    volumes = [_volume(_NAME, MOUNT)]
    mounts: list[Object] = [
        {"name": _NAME, "mountPath": MOUNT},
        {"name": _NAME, "mountPath": "/etc/ld.so.preload", "subPath": "ld.so.preload", "readOnly": True},
    ]
    if complete:
        volumes += [
            _volume("kai-resource-isolator-containers", f"{MOUNT}/containers"),
            _volume("kai-resource-isolator-vgpulock", "/tmp/vgpulock"),
        ]
        mounts += [
            {"name": "kai-resource-isolator-containers", "mountPath": f"{MOUNT}/containers"},
            {"name": "kai-resource-isolator-vgpulock", "mountPath": "/tmp/vgpulock"},
        ]
    patch = _appended("/spec/volumes", pod["spec"].get("volumes"), volumes)
    where = f"/spec/{group}/{index}"
    patch += _appended(f"{where}/volumeMounts", container.get("volumeMounts"), mounts)
    if complete:
        env: list[Object] = [
            {"name": "POD_UID", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}},
            {"name": "CONTAINER_NAME", "value": container["name"]},
            {"name": "CONTAINER_VGPU_MOUNT", "value": MOUNT},
        ]
        patch += _appended(f"{where}/env", container.get("env"), env)
    return patch


def _target(pod: Mapping[str, Any]) -> tuple[str, int, Mapping[str, Any]]:
    wanted = (pod["metadata"].get("annotations") or {}).get(FRACTION_CONTAINER)
    for group in ("initContainers", "containers"):
        for index, container in enumerate(pod["spec"].get(group) or []):
            if container.get("name") == wanted or (wanted is None and group == "containers"):
                return group, index, container
    raise UnknownContainer(f"container with name {wanted} not found for fraction request")


def _volume(name: str, path: str) -> Object:
    return {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}


def _appended(path: str, present: Any, additions: list[Object]) -> list[Object]:
    if not present:
        return [{"op": "add", "path": path, "value": additions}]
    return [{"op": "add", "path": f"{path}/-", "value": value} for value in additions]
