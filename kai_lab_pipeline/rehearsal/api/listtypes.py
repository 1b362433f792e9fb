"""How lists and maps of an object merge: whole, by key, or as sets.

Built-in kinds follow the struct tags of k8s.io/api v0.34 (patchMergeKey, listType, listMapKey, mapType); custom
resources say it in their schema (x-kubernetes-list-type and friends).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kai_lab_pipeline.rehearsal.api.errors import Obj


@dataclass(frozen=True)
class ListType:
    """`keys` identify an item of a map list (apply); `patch_key` is the one a strategic merge patch looks at."""

    keys: tuple[str, ...] = ()
    patch_key: str = ""
    is_set: bool = False
    defaults: Mapping[str, Any] | None = None
    """Values of keys that an item may leave out."""


_BY_FIELD: dict[str, ListType] = {
    **{
        field: ListType(("name",), "name")
        for field in (
            "containers", "initContainers", "ephemeralContainers", "env", "volumes", "imagePullSecrets",
            "resourceClaims", "webhooks", "validations", "matchConditions",
        )
    },
    "secrets": ListType(("name",), "name"),
    "volumeMounts": ListType(("mountPath",), "mountPath"),
    "volumeDevices": ListType(("devicePath",), "devicePath"),
    "hostAliases": ListType(("ip",), "ip"),
    "podIPs": ListType(("ip",), "ip"),
    "hostIPs": ListType((), "ip"),
    "topologySpreadConstraints": ListType(("topologyKey", "whenUnsatisfiable"), "topologyKey"),
    "ownerReferences": ListType(("uid",), "uid"),
    "conditions": ListType(("type",), "type"),
    "addresses": ListType(("type",), "type"),
    "taints": ListType((), "key"),
    "finalizers": ListType(is_set=True),
    "drivers": ListType(("name",), "name"),
}  # fmt: skip

_CONTAINER_PORTS = ListType(("containerPort", "protocol"), "containerPort", defaults={"protocol": "TCP"})
_SERVICE_PORTS = ListType(("port", "protocol"), "port", defaults={"protocol": "TCP"})

_ATOMIC_MAPS = frozenset(
    {
        "selector", "nodeSelector", "labelSelector", "namespaceSelector", "objectSelector", "podSelector", "fieldRef",
        "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "involvedObject", "target", "claimRef", "scopeSelector",
    }
)  # fmt: skip


class Types(Protocol):
    """What merging needs to know about the value at a field."""

    def list_type(self) -> ListType | None:
        """None: the list is one value (atomic)."""

    def atomic_map(self) -> bool: ...

    def child(self, field: str) -> Types: ...

    def item(self) -> Types: ...


@dataclass(frozen=True)
class BuiltinTypes:
    """Merging of built-in kinds, by the names of the field and of the list it stands in."""

    field: str = ""
    parent: str = ""

    def list_type(self) -> ListType | None:
        if self.field == "ports":
            if self.parent.endswith("ontainers"):
                return _CONTAINER_PORTS
            return _SERVICE_PORTS if self.parent == "spec" else None
        if self.field == "addresses" and self.parent != "status":
            return None
        return _BY_FIELD.get(self.field)

    def atomic_map(self) -> bool:
        return self.field in _ATOMIC_MAPS

    def child(self, field: str) -> Types:
        return BuiltinTypes(field, self.field)

    def item(self) -> Types:
        return self


@dataclass(frozen=True)
class SchemaTypes:
    """Merging of a custom resource, as its structural schema says; metadata merges like everyone's."""

    schema: Obj | None
    root: bool = False

    def list_type(self) -> ListType | None:
        schema = self.schema or {}
        kind = schema.get("x-kubernetes-list-type")
        if kind == "map":
            properties = (schema.get("items") or {}).get("properties") or {}
            keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
            return ListType(keys, defaults={key: (properties.get(key) or {}).get("default") for key in keys})
        return ListType(is_set=True) if kind == "set" else None

    def atomic_map(self) -> bool:
        return (self.schema or {}).get("x-kubernetes-map-type") == "atomic"

    def child(self, field: str) -> Types:
        if self.root and field == "metadata":
            return BuiltinTypes("metadata")
        schema = self.schema or {}
        properties = schema.get("properties") or {}
        more = schema.get("additionalProperties")
        return SchemaTypes(properties.get(field) or (more if isinstance(more, dict) else None))

    def item(self) -> Types:
        return SchemaTypes((self.schema or {}).get("items"))


def item_key(listed: ListType, item: Obj) -> tuple[tuple[str, Any], ...]:
    """The key of one item of a map list, in the order of the keys' names.

    Raises: KeyError when the item lacks a key that has no default.
    """
    defaults = listed.defaults or {}
    pairs = []
    for key in sorted(listed.keys):
        value = item.get(key, defaults.get(key))
        if value is None:
            raise KeyError(key)
        pairs.append((key, value))
    return tuple(pairs)
