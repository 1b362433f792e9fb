"""Subresources with a shape of their own: scale, eviction, and a namespace's finalize."""

from __future__ import annotations

from typing import Any

from kai_lab_pipeline.rehearsal.api import patches
from kai_lab_pipeline.rehearsal.api.deletion import copy_of
from kai_lab_pipeline.rehearsal.api.errors import ApiError, Obj, bad_request, method_not_allowed
from kai_lab_pipeline.rehearsal.api.resources import Resource
from kai_lab_pipeline.rehearsal.api.selectors import matches_structure
from kai_lab_pipeline.rehearsal.api.service import JSON_PATCH, MERGE_PATCH, DeleteOptions, Service, WriteOptions
from kai_lab_pipeline.rehearsal.store import Stored

_PDBS = "poddisruptionbudgets.policy"


class Subresources:
    """Handlers over the service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def scale(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        method: str,
        content_type: str,
        body: Any,
        options: WriteOptions,
    ) -> Obj:
        """Read or set the number of replicas, as an autoscaling/v1 Scale."""
        stored = self._service.get(resource, namespace, name)
        current = _scale(stored)
        if method == "GET":
            return current
        if method == "PUT":
            wanted = body
        elif method == "PATCH":
            patch_with = patches.json_patch if content_type == JSON_PATCH else patches.merge_patch
            wanted = patch_with(current, body)
        else:
            raise method_not_allowed(method)
        replicas = (wanted.get("spec") or {}).get("replicas", 0)
        if not isinstance(replicas, int) or replicas < 0:
            raise bad_request(f"spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0")
        patch: Obj = {"spec": {"replicas": replicas}}
        version = (wanted.get("metadata") or {}).get("resourceVersion")
        if version and method == "PUT":
            patch["metadata"] = {"resourceVersion": version}
        changed, _ = await self._service.patch(resource, namespace, name, MERGE_PATCH, patch, options)
        return _scale(changed)

    async def evict(
        self, resource: Resource, namespace: str, name: str, options: DeleteOptions, warnings: list[str]
    ) -> None:
        """Delete a pod unless a PodDisruptionBudget forbids it. Raises: ApiError 429 when one does."""
        pod = self._service.get(resource, namespace, name)
        labels = pod.obj["metadata"].get("labels") or {}
        for _, budget in self._service.store.objects(_PDBS, namespace):
            selector = (budget.obj.get("spec") or {}).get("selector")
            allowed = (budget.obj.get("status") or {}).get("disruptionsAllowed", 0)
            if selector and matches_structure(selector, labels) and allowed <= 0:
                message = "Cannot evict pod as it would violate the pod's disruption budget."
                raise ApiError(429, "TooManyRequests", message, {"causes": [{"reason": "DisruptionBudget"}]})
        await self._service.delete(resource, namespace, name, options, warnings)

    async def finalize(self, resource: Resource, name: str, body: Obj, options: WriteOptions) -> Stored:
        """Set a namespace's spec.finalizers; one that is being deleted goes once they are empty."""
        stored = self._service.get(resource, "", name)
        namespace = copy_of(stored)
        namespace["spec"]["finalizers"] = (body.get("spec") or {}).get("finalizers") or []
        key = ("", name)
        if options.dry_run:
            return stored
        if self._service.deletion.released(resource.storage, key, namespace):
            return self._service.store.remove(resource.storage, key, namespace)
        return self._service.store.put(resource.storage, key, namespace)


def _scale(stored: Stored) -> Obj:
    obj = stored.obj
    metadata = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    selector = ((obj["spec"].get("selector") or {}).get("matchLabels") or {}).items()
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {"replicas": obj["spec"].get("replicas", 0)},
        "status": {
            "replicas": (obj.get("status") or {}).get("replicas", 0),
            "selector": ",".join(f"{key}={value}" for key, value in selector),
        },
    }
