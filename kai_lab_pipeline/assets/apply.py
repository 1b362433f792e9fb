"""Manifests: what `kubectl apply` is in the lab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from kai_lab_pipeline.assets.step import Step
from kai_lab_pipeline.backends.base import StepFacts
from kai_lab_pipeline.clients.kubernetes import Cluster, Invalid
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.observe import load_manifest
from kai_lab_pipeline.workbench.patience import retry_transient, wait_gone

MANIFESTS: Mapping[str, str] = {
    "queues": "manifests/queues.yaml",
    "nvidia_runtime_class": "manifests/runtime-class.yaml",
    "whole_gpu_pod": "manifests/whole-gpu-pod.yaml",
    "shared_gpu_pod": "manifests/shared-gpu-pod.yaml",
}
"""The manifest of each asset that is one; the device plugin's is named in lab.toml."""
POD_END_S = 60.0
"""Longest time a replaced pod gets to end, real seconds: busybox's sleep ignores TERM for its 30 s of grace."""


def manifest_of(settings: Settings, asset: str) -> str:
    return settings.manifests.device_plugin.file if asset == "device_plugin" else MANIFESTS[asset]


def read_manifest(settings: Settings, asset: str) -> str:
    """The manifest's text as it is now, or a note that it cannot be read (the step says so when it runs)."""
    path = settings.project_file(manifest_of(settings, asset))
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return f"unreadable: {type(error).__name__}"


def apply_manifest(step: Step, *, change: Mapping[str, Any] | None = None) -> dg.MaterializeResult[Any]:
    """Apply the asset's manifest server-side and wait for its checks; pods that differ are replaced, and it is said.

    `change` is merged into the first object, where a setting decides a field of it.
    """
    name = manifest_of(step.settings, step.asset)
    objects = load_manifest(step.settings, name)
    objects[0] = {**objects[0], **(change or {})}
    cluster = step.lab.backend.connect()
    done, attempts = [], 1
    for obj in objects:
        said, tries = _pod(step, cluster, obj) if obj["kind"] == "Pod" else _apply(step, cluster, obj)
        done.append(f"{obj['kind']} {obj['metadata']['name']} {said}")
        attempts = max(attempts, tries)
    changed = any(not said.endswith("unchanged") for said in done)
    step.metadata["manifest"] = dg.MetadataValue.path(name)
    step.tell(StepFacts(", ".join(done), changed=changed, attempts=attempts))
    return step.seen(version_of=[cluster.incarnation(), objects])


def _apply(step: Step, cluster: Cluster, obj: Mapping[str, Any]) -> tuple[str, int]:
    meta = obj["metadata"]
    before = cluster.find(cluster.resource_of(obj), meta["name"], namespace=meta.get("namespace"))
    after, attempts = retry_transient(
        lambda: cluster.apply(obj),
        what=f"apply {obj['kind']} {meta['name']}",
        deadline_s=step.settings.deadline_s(step.asset),
        log=step.log,
    )
    if before is None:
        return "created", attempts
    same = before["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]
    return "unchanged" if same else "configured", attempts


def _pod(step: Step, cluster: Cluster, obj: Mapping[str, Any]) -> tuple[str, int]:
    """A pod is made once: what was decided at its creation (its spec, what webhooks injected) cannot change later."""
    meta = obj["metadata"]
    living = cluster.find("pods", meta["name"], namespace=meta["namespace"])
    if living is None:
        return _create(step, cluster, obj, "created")
    reason = _why_replace(cluster, obj, living)
    if reason is None:
        return "unchanged", 1
    step.log(f"pod {meta['name']} is replaced: {reason}")
    cluster.delete("pods", meta["name"], namespace=meta["namespace"])
    deadline_s = max(POD_END_S * step.lab.backend.time_scale, 10.0)
    wait_gone(cluster, "pods", meta["name"], namespace=meta["namespace"], deadline_s=deadline_s)
    return _create(step, cluster, obj, f"replaced ({reason})")


def _create(step: Step, cluster: Cluster, obj: Mapping[str, Any], said: str) -> tuple[str, int]:
    _, attempts = retry_transient(
        lambda: cluster.apply(obj),
        what=f"create pod {obj['metadata']['name']}",
        deadline_s=step.settings.deadline_s(step.asset),
        log=step.log,
    )
    return said, attempts


def _why_replace(cluster: Cluster, obj: Mapping[str, Any], living: Mapping[str, Any]) -> str | None:
    if living["metadata"].get("deletionTimestamp"):
        return "it is being deleted"
    phase = (living.get("status") or {}).get("phase")
    if phase in ("Failed", "Succeeded"):
        return f"it has ended ({phase})"
    try:
        wanted = cluster.apply(obj, dry_run=True)
    except Invalid as error:
        return f"its manifest changed in what a living pod cannot change ({error.message[:160]})"
    for part in ("labels", "annotations"):
        if (wanted["metadata"].get(part) or {}) != (living["metadata"].get(part) or {}):
            return f"its {part} differ from the manifest"
    fresh = {**obj, "metadata": {**obj["metadata"], "name": f"{obj['metadata']['name']}-probe"}}
    if _injected(cluster.apply(fresh, dry_run=True)) != _injected(living):
        return "a pod made now would be given other mounts, variables or runtime class"
    return None


def _injected(pod: Mapping[str, Any]) -> tuple[Any, ...]:
    """What admission webhooks decide about a pod, without the names that are random in each."""
    spec = pod["spec"]
    containers = spec.get("containers") or ()
    return (
        spec.get("runtimeClassName"),
        sorted(entry["name"] for container in containers for entry in container.get("env") or ()),
        sorted(mount["mountPath"] for container in containers for mount in container.get("volumeMounts") or ()),
        sorted(str(volume["hostPath"]["path"]) for volume in spec.get("volumes") or () if "hostPath" in volume),
    )
