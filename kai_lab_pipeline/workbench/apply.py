"""Manifests on the cluster: what `kubectl apply` is in the lab, minimal and told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kai_lab_pipeline.backends.base import Backend, Log, StepFacts
from kai_lab_pipeline.clients.kubernetes import REPAIR_MANAGER, ApiError, Cluster, Invalid
from kai_lab_pipeline.clients.manifests import CANARY, QUEUES, RUNTIME_CLASS, SHARED_POD, WHOLE_POD, judged_manifest
from kai_lab_pipeline.lab.field_owners import Change, changed_by_hand, content_of, readable, restoring
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.ownership import is_foreign, refuse_foreign
from kai_lab_pipeline.workbench.patience import retry_transient, wait_gone

T = TypeVar("T")
MANIFESTS: Mapping[str, str] = {
    "queues": QUEUES,
    "nvidia_runtime_class": RUNTIME_CLASS,
    "whole_gpu_pod": WHOLE_POD,
    "shared_gpu_pod": SHARED_POD,
}
"""The manifest of each asset that is one; the device plugin's is named in lab.toml."""
REPLACEABLE = ("RuntimeClass",)
"""Kinds besides pods with fields that cannot change (a RuntimeClass's handler) and that hold no state of their own."""
POD_END_S = 60.0
"""Longest time a replaced pod gets to end, real seconds: busybox's sleep ignores TERM for its 30 s of grace."""


def manifest_of(settings: Settings, asset: str) -> str:
    return settings.manifests.device_plugin.file if asset == "device_plugin" else MANIFESTS[asset]


def manifest_text(settings: Settings, asset: str) -> str:
    """The text of an asset's manifest as it is now."""
    return file_text(settings, manifest_of(settings, asset))


def file_text(settings: Settings, name: str) -> str:
    """A project file's text as it is now, or a note that it cannot be read (the step says so when it runs)."""
    path = settings.project_file(name)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return f"unreadable: {type(error).__name__}"


def check_manifests(settings: Settings, assets: Collection[str]) -> None:
    """Read what these assets apply. Raises ManifestError while nothing is touched yet, also for a renamed object."""
    names = [manifest_of(settings, asset) for asset in assets if asset in (*MANIFESTS, "device_plugin")]
    for name in (*names, *([CANARY] if "kai_release" in assets else [])):
        judged_manifest(settings, name)


@dataclass(frozen=True)
class Applier:
    """Applies manifests to one cluster within a deadline (seconds), telling what it waits for."""

    backend: Backend
    cluster: Cluster
    deadline_s: float
    log: Log

    def apply(self, objects: list[dict[str, Any]]) -> StepFacts:
        """Apply objects server-side; pods that differ are replaced, what is the same is left alone. Raises LabError."""
        done, attempts = [], 1
        for obj in objects:
            said, tries = self._pod(obj) if obj["kind"] == "Pod" else self._object(obj)
            done.append(f"{obj['kind']} {obj['metadata']['name']} {said}")
            attempts = max(attempts, tries)
        changed = any(not said.endswith("unchanged") for said in done)
        return StepFacts(", ".join(done), changed=changed, attempts=attempts)

    def _object(self, obj: Mapping[str, Any]) -> tuple[str, int]:
        meta = obj["metadata"]
        resource = self.cluster.resource_of(obj)
        before = self.cluster.find(resource, meta["name"], namespace=meta.get("namespace"))
        if before is not None and is_foreign(self.backend, resource, before):
            return self._as_it_was(obj, resource, before), 1
        if before is None:
            self.backend.note_made(resource, meta.get("namespace"), meta["name"])
        try:
            after, attempts = self._retry(lambda: self.cluster.apply(obj), f"apply {obj['kind']} {meta['name']}")
        except Invalid as error:
            if obj["kind"] not in REPLACEABLE:
                raise
            return self._replace(obj, f"what cannot be changed is different ({error.message[:160]})")
        if before is None:
            return "created", attempts
        removed = self._take_away(obj, resource, after)
        said = "unchanged" if content_of(before) == content_of(after) else "configured"
        return f"configured (removed what was added by hand: {removed})" if removed else said, attempts

    def _take_away(self, obj: Mapping[str, Any], resource: str, after: Mapping[str, Any]) -> str:
        """Remove what a hand has added to an object and an apply therefore leaves; returns what that was, or ''."""
        added, made = additions(self.cluster, obj, after)
        if added:
            patch = restoring(after, made, [change.path for change in added])
            meta = obj["metadata"]
            self.cluster.patch(resource, meta["name"], patch, namespace=meta.get("namespace"), manager=REPAIR_MANAGER)
        return ", ".join(readable(change.path) for change in added)

    def _as_it_was(self, obj: Mapping[str, Any], resource: str, before: Mapping[str, Any]) -> str:
        """Somebody else's object serves when it is what the manifest says; else the step stops. Raises LabError."""
        try:
            differs = content_of(self.cluster.apply(obj, dry_run=True)) != content_of(before)
        except Invalid as error:
            refuse_foreign(self.backend, resource, before, error.message[:160])
        else:
            if differs:
                refuse_foreign(self.backend, resource, before, "it is not as the manifest says")
        return "was there before the lab, and is left unchanged"

    def _pod(self, obj: Mapping[str, Any]) -> tuple[str, int]:
        """A pod is made once: what was decided at its creation (spec, what webhooks injected) cannot change later."""
        meta = obj["metadata"]
        living = self.cluster.find("pods", meta["name"], namespace=meta["namespace"])
        if living is None:
            self.backend.note_made("pods", meta["namespace"], meta["name"])
            return self._create(obj, "created")
        refuse_foreign(self.backend, "pods", living)
        reason, _ = self._retry(lambda: _why_replace(self.cluster, obj, living), f"compare pod {meta['name']}")
        return ("unchanged", 1) if reason is None else self._replace(obj, reason)

    def _replace(self, obj: Mapping[str, Any], reason: str) -> tuple[str, int]:
        resource, meta = self.cluster.resource_of(obj), obj["metadata"]
        name, namespace = meta["name"], meta.get("namespace")
        self.log(f"{obj['kind']} {name} is replaced: {reason}")
        self.cluster.delete(resource, name, namespace=namespace)
        wait_gone(
            self.cluster, resource, name, namespace=namespace, deadline_s=max(POD_END_S * self.backend.time_scale, 10.0)
        )
        return self._create(obj, f"replaced ({reason})")

    def _create(self, obj: Mapping[str, Any], said: str) -> tuple[str, int]:
        _, attempts = self._retry(lambda: self.cluster.apply(obj), f"create {obj['kind']} {obj['metadata']['name']}")
        return said, attempts

    def _retry(self, call: Callable[[], T], what: str) -> tuple[T, int]:
        return retry_transient(call, what=what, deadline_s=self.deadline_s, log=self.log)


def additions(
    cluster: Cluster, obj: Mapping[str, Any], applied: Mapping[str, Any]
) -> tuple[list[Change], Mapping[str, Any]]:
    """What hands have written into an applied object besides what its manifest says, and how it would come out new.

    An apply gives back only what it names: what somebody else has added stays (server-side apply). Raises ApiError
    where the API server does not answer.
    """
    if not changed_by_hand(applied, obj):
        return [], obj  # nothing at all that the manifest does not say
    made = as_made(cluster, obj)
    return changed_by_hand(applied, made), made


def as_made(cluster: Cluster, obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object as it comes out when it is made anew, with its defaults, by a dry-run under another name.

    The object as it was given where the API server refuses that. Raises ApiError where it does not answer.
    """
    try:
        return cluster.apply(_renamed(obj), dry_run=True)
    except ApiError as error:
        if error.code == 0:
            raise
        return obj


def _renamed(obj: Mapping[str, Any]) -> dict[str, Any]:
    return {**obj, "metadata": {**obj["metadata"], "name": f"{obj['metadata']['name']}-probe"}}


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
    made = cluster.apply(_renamed(obj), dry_run=True)
    added = changed_by_hand(wanted, made)
    if added:
        return f"{readable(added[0].path)} was added by hand"
    if _injected(made) != _injected(living):
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
