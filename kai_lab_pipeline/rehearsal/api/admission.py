"""What stands between a request and the store: decoding, defaults, built-in admission, webhooks, validation."""

from __future__ import annotations

from typing import Any

from kai_lab_pipeline.rehearsal.api import defaulting, schema, validation
from kai_lab_pipeline.rehearsal.api.errors import Cause, Obj, bad_request, forbidden, invalid, not_found
from kai_lab_pipeline.rehearsal.api.fields import read_builtin
from kai_lab_pipeline.rehearsal.api.resources import Resource
from kai_lab_pipeline.rehearsal.api.webhooks import Operation, Webhooks
from kai_lab_pipeline.rehearsal.store import Store


class Admission:
    """Checks and completes objects on their way in."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.webhooks = Webhooks(store)

    def checked(self, resource: Resource, body: Any, strictness: str, warnings: list[str]) -> Obj:
        """The request's object: of the right kind, without unknown fields."""
        if not isinstance(body, dict):
            raise bad_request(f"the object provided is unrecognized (must be of type {resource.kind})")
        body.setdefault("apiVersion", resource.group_version)
        body.setdefault("kind", resource.kind)
        if (body["apiVersion"], body["kind"]) != (resource.group_version, resource.kind):
            given, wanted = (
                f"{body['apiVersion']}, Kind={body['kind']}",
                f"{resource.group_version}, Kind={resource.kind}",
            )
            raise bad_request(f"the object provided ({given}) does not match the expected object ({wanted})")
        metadata = body.get("metadata")
        if metadata is None:
            body["metadata"] = metadata = {}
        if not isinstance(metadata, dict):
            raise bad_request("the object provided is unrecognized: metadata is not an object")
        for key in [key for key, value in metadata.items() if value is None or value in ({}, [])]:
            del metadata[key]
        unhandled = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        if resource.custom:
            unknown = schema.prune(body, resource.schema) if resource.schema else []
        else:
            unknown, wrong = read_builtin(resource.group, resource.version, resource.kind, body)
            if wrong:
                raise bad_request(f"{unhandled}: {wrong}")
        if unknown and strictness == "Strict":
            said = ", ".join(f'unknown field "{path}"' for path in unknown)
            raise bad_request(f"{unhandled}: strict decoding error: {said}")
        if unknown and strictness == "Warn":
            warnings += [f'unknown field "{path}"' for path in unknown]
        return body

    def place(self, resource: Resource, namespace: str, metadata: Obj) -> None:
        given = metadata.get("namespace")
        if not resource.namespaced:
            metadata.pop("namespace", None)
        elif given and given != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        else:
            metadata["namespace"] = namespace
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"][:58] + defaulting.random_suffix()
        if not metadata.get("name"):
            causes = validation.check_metadata(resource, metadata)
            raise invalid(resource.group, resource.kind, "", causes)

    def require_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        if not resource.namespaced:
            return
        stored = self.store.get("namespaces", ("", namespace))
        if stored is None:
            raise not_found("", "namespaces", namespace)
        if stored.obj["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            raise forbidden(resource.group, resource.plural, name, why, [cause])

    def default(self, resource: Resource, obj: Obj) -> None:
        if not resource.custom:
            try:
                defaulting.apply_defaults(resource.storage, obj)
            except (KeyError, TypeError, AttributeError) as error:
                # A field of the wrong type or a required one left out: the real decoder refuses it as well.
                raise bad_request(
                    f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {error!r}'
                ) from error
        elif resource.schema:
            schema.prune(obj, resource.schema)
            schema.apply_defaults(obj, resource.schema)

    def admit_builtin(self, resource: Resource, obj: Obj) -> None:
        if resource.storage != "pods":
            return
        classes = {key[1]: pc.obj for key, pc in self.store.objects("priorityclasses.scheduling.k8s.io")}
        refused = defaulting.admit_pod(obj, classes)
        if refused:
            raise forbidden("", "pods", obj["metadata"]["name"], refused)

    def check_runtime_class(self, pod: Obj) -> None:
        name = pod["spec"].get("runtimeClassName")
        if name and self.store.get("runtimeclasses.node.k8s.io", ("", name)) is None:
            why = f'pod rejected: RuntimeClass "{name}" not found'
            raise forbidden("", "pods", pod["metadata"]["name"], why)

    async def admit(self, operation: Operation, obj: Obj, warnings: list[str]) -> Obj:
        """The object after mutating and validating webhooks."""
        resource = operation.resource
        changed = await self.webhooks.mutate(operation, obj, warnings)
        if changed is not obj:
            obj = changed
            self.default(resource, obj)
        await self.webhooks.validate(operation, obj, warnings)
        return obj

    def validate(self, resource: Resource, obj: Obj, old: Obj | None) -> None:
        name = obj["metadata"].get("name", "")
        causes: list[Cause]
        if resource.custom:
            causes = validation.check_metadata(resource, obj["metadata"])
            causes += schema.validate(obj, resource.schema) if resource.schema else []
        else:
            try:
                causes = validation.check_object(resource, obj, old)
            except (KeyError, TypeError, AttributeError) as error:
                raise bad_request(
                    f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {error!r}'
                ) from error
        if causes:
            raise invalid(resource.group, resource.kind, name, causes)
