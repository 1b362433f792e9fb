"""What the API does with objects: read, create, update, patch, delete, with admission and field management."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kai_lab_pipeline.rehearsal.api import defaulting, managed, patches, versions
from kai_lab_pipeline.rehearsal.api.admission import Admission
from kai_lab_pipeline.rehearsal.api.deletion import Deletion, copy_of, now
from kai_lab_pipeline.rehearsal.api.errors import (
    ApiError,
    Cause,
    Obj,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    internal,
    invalid,
    not_found,
    unsupported_media_type,
)
from kai_lab_pipeline.rehearsal.api.listtypes import BuiltinTypes, SchemaTypes, Types
from kai_lab_pipeline.rehearsal.api.resources import Registry, Resource
from kai_lab_pipeline.rehearsal.api.selectors import Matcher
from kai_lab_pipeline.rehearsal.api.webhooks import Operation
from kai_lab_pipeline.rehearsal.store import Change, Key, Store, Stored, encode

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_CRDS = "customresourcedefinitions.apiextensions.k8s.io"
_KEPT = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")
_STATUS_ON_CREATE = frozenset({"nodes"})
"""Built-in kinds whose status may be given at creation, although they have a status subresource."""


@dataclass
class WriteOptions:
    """The query parameters and headers that shape a write."""

    manager: str = "unknown"
    manager_given: bool = False
    """Whether the client named the manager, as apply demands, or it was guessed from the user agent."""
    dry_run: bool = False
    force: bool = False
    field_validation: str = "Warn"
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class DeleteOptions:
    """How to delete; `grace` in seconds."""

    grace: int | None = None
    propagation: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


class Service:
    """The API server's logic over one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.registry = Registry()
        self.admission = Admission(store)
        for _, stored in store.objects(_CRDS):
            self.registry.set_crd(stored.obj)
        store.listeners.append(self._on_change)
        self.deletion = Deletion(store, self._is_namespaced)

    def _is_namespaced(self, storage: str) -> bool:
        return any(r.namespaced for r in self.registry if r.storage == storage)

    def _on_change(self, resource: str, key: Key, change: Change) -> None:
        if resource != _CRDS:
            return
        if change.kind == "DELETED":
            spec = change.new.obj["spec"]
            storage = f"{spec['names']['plural']}.{spec['group']}"
            for instance, _ in self.store.objects(storage):
                self.store.remove(storage, instance)
            self.registry.drop_crd(key[1])
            self.store.close_watchers(storage)
        else:
            self.registry.set_crd(change.new.obj)

    # Reading

    def get(self, resource: Resource, namespace: str, name: str) -> Stored:
        """Raises: ApiError 404."""
        stored = self.store.get(resource.storage, (namespace, name))
        if stored is None:
            raise not_found(resource.group, resource.plural, name)
        return stored

    # Creating

    async def create(
        self, resource: Resource, namespace: str, body: Obj, options: WriteOptions, *, applied: bool = False
    ) -> Stored:
        """Store a new object, as POST does; `applied` for one made by server-side apply, which owns its fields.

        Raises: ApiError for everything the API refuses.
        """
        obj = self.admission.checked(resource, body, options.field_validation, options.warnings)
        metadata = obj["metadata"]
        self.admission.place(resource, namespace, metadata)
        name = metadata["name"]
        self.admission.require_namespace(resource, namespace, name)
        if metadata.pop("resourceVersion", None):
            raise bad_request("resourceVersion should not be set on objects to be created")
        for key in (*_KEPT, *(() if applied else ("managedFields",))):
            metadata.pop(key, None)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = now()
        if resource.has_generation:
            metadata["generation"] = 1
        if resource.has_status and resource.storage not in _STATUS_ON_CREATE:
            obj.pop("status", None)
        obj = versions.to_stored(resource, obj)
        self.admission.default(resource, obj)
        self.admission.admit_builtin(resource, obj)
        operation = Operation("CREATE", resource, namespace, name, None, options.dry_run)
        obj = await self.admission.admit(operation, obj, options.warnings)
        if resource.storage == "pods":
            self.admission.check_runtime_class(obj)
        if resource.storage == _CRDS:
            _establish(obj)
        self.admission.validate(resource, obj, None)
        if not applied:
            version, types = resource.group_version, self.types(resource)
            managed.record_update(
                None, obj, types=types, manager=options.manager, version=version, subresource="", now=now()
            )
        status = defaulting.first_status(resource.storage, obj)  # the server's, so nobody's field
        if status is not None:
            obj["status"] = status
        existing = self.store.get(resource.storage, (namespace, name))
        if existing is not None:
            gone = bool(existing.obj["metadata"].get("deletionTimestamp")) and resource.plural == "namespaces"
            raise already_exists(resource.group, resource.plural, name, being_deleted=gone)
        self.admission.require_namespace(resource, namespace, name)  # it may have gone while webhooks were asked
        if options.dry_run:
            return Stored(obj, encode(obj), 0)
        stored = self.store.put(resource.storage, (namespace, name), obj)
        if resource.plural == "namespaces":
            self.furnish_namespace(name)
        return stored

    def furnish_namespace(self, namespace: str) -> None:
        """What controllers of the control plane put into every namespace."""
        furniture: tuple[tuple[str, str, Obj], ...] = (
            ("serviceaccounts", "default", {"kind": "ServiceAccount"}),
            ("configmaps", "kube-root-ca.crt", {"kind": "ConfigMap", "data": {"ca.crt": ""}}),
        )
        for resource, name, body in furniture:
            if self.store.get(resource, (namespace, name)) is None:
                self.put_system(resource, namespace, name, body)

    def put_system(self, resource: str, namespace: str, name: str, body: Obj) -> Stored:
        """Store an object on behalf of the control plane, without admission."""
        metadata: Obj = {"name": name, "uid": str(uuid.uuid4()), "creationTimestamp": now()}
        if namespace:
            metadata["namespace"] = namespace
        metadata.update(body.pop("metadata", {}))
        return self.store.put(resource, (namespace, name), {"apiVersion": "v1", **body, "metadata": metadata})

    # Changing

    def types(self, resource: Resource) -> Types:
        return SchemaTypes(resource.schema, root=True) if resource.custom else BuiltinTypes()

    async def update(
        self, resource: Resource, namespace: str, name: str, body: Obj, options: WriteOptions, subresource: str = ""
    ) -> Stored:
        """Replace an object, as PUT does. Raises: ApiError, 409 when the resourceVersion is not the newest."""
        obj = self.admission.checked(resource, body, options.field_validation, options.warnings)
        _same_name(obj["metadata"], name)
        self.admission.place(resource, namespace, obj["metadata"])
        pinned = obj["metadata"].get("resourceVersion")
        obj = versions.to_stored(resource, obj)

        def make(current: Stored) -> Obj:
            new = copy.deepcopy(obj)
            new["metadata"]["resourceVersion"] = pinned or str(current.rv)
            return new

        return await self._change(resource, (namespace, name), make, options, subresource)

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        content_type: str,
        body: Any,
        options: WriteOptions,
        subresource: str = "",
    ) -> tuple[Stored, bool]:
        """Patch an object; (the result, whether it was created by server-side apply).

        Raises: ApiError, 415 for a patch type the resource does not take.
        """
        if content_type == APPLY_PATCH:
            return await self._apply(resource, namespace, name, body, options, subresource)
        accepted = [JSON_PATCH, MERGE_PATCH, *(() if resource.custom else (STRATEGIC_PATCH,)), APPLY_PATCH]
        if content_type not in accepted:
            raise unsupported_media_type(accepted if resource.custom else None)

        def make(current: Stored) -> Obj:
            seen = versions.to_asked(resource, copy_of(current))
            if content_type == JSON_PATCH:
                new = patches.json_patch(seen, body)
            elif not isinstance(body, dict):
                raise bad_request("error decoding patch: the patch is not an object")
            elif content_type == MERGE_PATCH:
                new = patches.merge_patch(seen, body)
            else:
                new = patches.strategic_patch(seen, body, self.types(resource))
            new = self.admission.checked(resource, new, options.field_validation, options.warnings)
            self.admission.place(resource, namespace, new["metadata"])
            _same_name(new["metadata"], name)
            if new["metadata"].get("uid") not in (None, current.obj["metadata"]["uid"]):
                cause = Cause("metadata.uid", f'Invalid value: "{new["metadata"]["uid"]}": field is immutable')
                raise invalid(resource.group, resource.kind, name, [cause])
            return versions.to_stored(resource, new)

        return await self._change(resource, (namespace, name), make, options, subresource), False

    async def _apply(
        self, resource: Resource, namespace: str, name: str, body: Any, options: WriteOptions, subresource: str
    ) -> tuple[Stored, bool]:
        if not options.manager_given:
            cause = Cause("fieldManager", "Required value: is required for apply patch", "FieldValueRequired")
            raise invalid("meta.k8s.io", "PatchOptions", "", [cause])
        wanted = self.admission.checked(resource, body, options.field_validation, options.warnings)
        if wanted["metadata"].get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        _same_name(wanted["metadata"], name)
        wanted["metadata"]["name"] = name
        self.admission.place(resource, namespace, wanted["metadata"])
        wanted = versions.to_stored(resource, wanted)

        def merged(live: Obj | None) -> Obj:
            return managed.apply(
                live,
                copy.deepcopy(wanted),
                types=self.types(resource),
                manager=options.manager,
                version=resource.group_version,
                subresource=subresource,
                force=options.force,
                now=now(),
            )

        if self.store.get(resource.storage, (namespace, name)) is None:
            if subresource:
                raise not_found(resource.group, resource.plural, name)
            return await self.create(resource, namespace, merged(None), options, applied=True), True

        def make(current: Stored) -> Obj:
            return merged(copy_of(current))

        return await self._change(resource, (namespace, name), make, options, subresource, applied=True), False

    async def _change(
        self,
        resource: Resource,
        key: Key,
        make: Callable[[Stored], Obj],
        options: WriteOptions,
        subresource: str,
        *,
        applied: bool = False,
    ) -> Stored:
        """Make the new state from the newest one until nobody else was faster."""
        for _ in range(10):
            current = self.get(resource, *key)
            new = make(current)
            pinned = new["metadata"].get("resourceVersion")
            if pinned and pinned != str(current.rv):
                raise conflict(resource.group, resource.plural, key[1])
            self._keep(resource, current, new, subresource)
            operation = Operation("UPDATE", resource, *key, current.obj, options.dry_run, subresource)
            self.admission.default(resource, new)
            new = await self.admission.admit(operation, new, options.warnings)
            if self.store.get(resource.storage, key) is not current:
                continue
            self.admission.validate(resource, new, current.obj)
            return self._commit(resource, key, current, new, options, subresource, applied)
        raise conflict(resource.group, resource.plural, key[1])

    def _keep(self, resource: Resource, current: Stored, new: Obj, subresource: str) -> None:
        """Put back what this write may not change: identity, lifecycle, and the other half of status isolation."""
        old, metadata = current.obj["metadata"], new["metadata"]
        if metadata.get("uid") not in (None, "", old["uid"]):
            why = f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: {old['uid']}"
            raise conflict(resource.group, resource.plural, old["name"], why)
        for name in _KEPT:
            metadata.pop(name, None)
            if name in old:
                metadata[name] = old[name]
        if subresource == "status":
            status = new.get("status")
            kept = copy_of(current)
            if resource.custom:
                kept["metadata"]["managedFields"] = metadata.get("managedFields") or []
            else:
                kept["metadata"] = metadata
            new.clear()
            new.update(kept)
            if status is not None:
                new["status"] = status
            else:
                new.pop("status", None)
        elif resource.has_status and not subresource:
            new.pop("status", None)
            if "status" in current.obj:
                new["status"] = copy_of(current)["status"]

    def _commit(
        self,
        resource: Resource,
        key: Key,
        current: Stored,
        new: Obj,
        options: WriteOptions,
        subresource: str,
        applied: bool,
    ) -> Stored:
        if not applied:
            managed.record_update(
                current.obj,
                new,
                types=self.types(resource),
                manager=options.manager,
                version=resource.group_version,
                subresource=subresource,
                now=now(),
            )
        if _same(current.obj, new):
            return current
        if resource.has_generation and _spec_differs(resource, current.obj, new):
            new["metadata"]["generation"] = current.obj["metadata"].get("generation", 0) + 1
        if options.dry_run:
            return Stored(new, encode(new), current.rv)
        if self.deletion.released(resource.storage, key, new):
            return self.store.remove(resource.storage, key, new)
        return self.store.put(resource.storage, key, new)

    # Deleting

    async def delete(
        self, resource: Resource, namespace: str, name: str, options: DeleteOptions, warnings: list[str]
    ) -> tuple[Stored, bool]:
        """Delete an object; (its last state, whether it is gone). Raises: ApiError."""
        stored = self.get(resource, namespace, name)
        for wanted, actual, what in (
            (options.uid, stored.obj["metadata"]["uid"], "UID"),
            (options.resource_version, str(stored.rv), "ResourceVersion"),
        ):
            if wanted and wanted != actual:
                why = f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {actual}"
                raise conflict(resource.group, resource.plural, name, why)
        operation = Operation("DELETE", resource, namespace, name, stored.obj, options.dry_run)
        await self.admission.webhooks.validate(operation, None, warnings)
        if resource.plural == "namespaces" and name in ("default", "kube-system", "kube-public"):
            raise forbidden("", "namespaces", name, "this namespace may not be deleted")
        if options.dry_run:
            return stored, True
        try:
            return self.deletion.delete(
                resource.storage, (namespace, name), grace=options.grace, propagation=options.propagation
            )
        except KeyError:  # gone while webhooks were asked
            raise not_found(resource.group, resource.plural, name) from None

    async def delete_collection(
        self,
        resource: Resource,
        namespace: str | None,
        matches: Matcher | None,
        options: DeleteOptions,
        warnings: list[str],
    ) -> list[Stored]:
        deleted = []
        for key, stored in self.store.objects(resource.storage, namespace):
            if matches is not None and not matches(stored.obj):
                continue
            try:
                deleted.append((await self.delete(resource, *key, options, warnings))[0])
            except ApiError as error:
                if error.code != 404:
                    raise
        return deleted

    def bind(self, namespace: str, name: str, binding: Obj, *, dry_run: bool) -> None:
        """Put a pod on a node, as schedulers do through pods/binding. Raises: ApiError 400, 404, 409."""
        pods = self.registry.find("", "v1", "pods")
        if pods is None:
            raise internal("the registry has no pods")
        stored = self.get(pods, namespace, name)
        node = (binding.get("target") or {}).get("name")
        if not node:
            raise bad_request("target.name is required")
        pod = copy_of(stored)
        assigned = pod["spec"].get("nodeName")
        if assigned:
            raise conflict("", "pods/binding", name, f'pod {name} is already assigned to node "{assigned}"')
        if pod["metadata"].get("deletionTimestamp"):
            raise conflict("", "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
        pod["spec"]["nodeName"] = node
        for part in ("annotations", "labels"):
            extra = (binding.get("metadata") or {}).get(part)
            if extra:
                pod["metadata"][part] = {**(pod["metadata"].get(part) or {}), **extra}
        conditions = [c for c in pod["status"].get("conditions") or () if c["type"] != "PodScheduled"]
        scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now()}
        pod["status"]["conditions"] = [*conditions, scheduled]
        if not dry_run:
            self.store.put("pods", (namespace, name), pod)


def _same_name(metadata: Obj, name: str) -> None:
    given = metadata.get("name")
    if given and given != name:
        raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")


def _establish(crd: Obj) -> None:
    names = crd["spec"]["names"]
    conditions = [
        {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"},
        {
            "type": "Established", "status": "True", "reason": "InitialNamesAccepted",
            "message": "the initial names have been accepted",
        },
    ]  # fmt: skip
    crd["status"] = {
        "acceptedNames": dict(names),
        "conditions": [{**condition, "lastTransitionTime": now()} for condition in conditions],
        "storedVersions": [v["name"] for v in crd["spec"]["versions"] if v.get("storage")],
    }


def _without_times(metadata: Obj) -> Obj:
    plain = {key: value for key, value in metadata.items() if key not in ("managedFields", "resourceVersion")}
    plain["managedFields"] = [
        {key: value for key, value in entry.items() if key != "time"} for entry in metadata.get("managedFields") or ()
    ]
    return plain


def _same(old: Obj, new: Obj) -> bool:
    """Whether a write changes nothing but the times of field managers, and so is no write."""
    if old.keys() != new.keys() or any(old[key] != new[key] for key in old if key != "metadata"):
        return False
    return _without_times(old["metadata"]) == _without_times(new["metadata"])


def _spec_differs(resource: Resource, old: Obj, new: Obj) -> bool:
    ignored = (
        {"metadata", "status", "apiVersion", "kind"} if resource.has_status else {"metadata", "apiVersion", "kind"}
    )
    return any(old.get(key) != new.get(key) for key in (old.keys() | new.keys()) - ignored)
