"""Field management: who owns which field, and server-side apply.

A field set is a set of paths. A path is a tuple of steps: `f:NAME` a field, `k:{...}` an item of a map list by key,
`v:...` an item of a set. That is how `metadata.managedFields[].fieldsV1` writes it (structured-merge-diff v6).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeAlias

from kai_lab_pipeline.rehearsal.api.errors import Obj, apply_conflict, bad_request
from kai_lab_pipeline.rehearsal.api.listtypes import ListType, Types, item_key

Path: TypeAlias = tuple[str, ...]
Fields: TypeAlias = dict[Path, Any]
"""The owned paths of an object with the value each has."""

_NEVER_OWNED = frozenset(
    {
        ("f:apiVersion",), ("f:kind",), ("f:metadata",), ("f:metadata", "f:name"), ("f:metadata", "f:namespace"),
        ("f:metadata", "f:creationTimestamp"), ("f:metadata", "f:selfLink"), ("f:metadata", "f:uid"),
        ("f:metadata", "f:resourceVersion"), ("f:metadata", "f:generation"), ("f:metadata", "f:managedFields"),
        ("f:metadata", "f:deletionTimestamp"), ("f:metadata", "f:deletionGracePeriodSeconds"),
    }
)  # fmt: skip

_PRESENT = object()
_ABSENT = object()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def item_step(listed: ListType, item: Any) -> str:
    """The step that names an item of a map list or set.

    Raises: ApiError 400 when a key is missing.
    """
    if listed.is_set:
        return "v:" + _json(item)
    try:
        return "k:" + _json(dict(item_key(listed, item)))
    except KeyError as error:
        raise bad_request(f"associative list with keys has an element that omits key field {error}") from error


def fields_of(value: Any, types: Types) -> Fields:
    """Every path of an object that can be owned."""
    found: Fields = {}
    _walk(value, types, (), found)
    for path in _NEVER_OWNED:
        found.pop(path, None)
    return found


def _mergeable(types: Types) -> ListType | None:
    listed = types.list_type()
    return listed if listed is not None and (listed.is_set or listed.keys) else None


def _walk(value: Any, types: Types, path: Path, found: Fields) -> None:
    if isinstance(value, dict) and value and not types.atomic_map():
        for key, inner in value.items():
            if path == () and key == "metadata" and isinstance(inner, dict):
                inner = {name: part for name, part in inner.items() if name != "managedFields"}
            _walk(inner, types.child(key), (*path, "f:" + key), found)
        return
    listed = _mergeable(types) if isinstance(value, list) and value else None
    if listed is None:
        found[path] = value
        return
    for item in value:
        step = (*path, item_step(listed, item))
        found[step] = _PRESENT
        if not listed.is_set:
            _walk(item, types.item(), step, found)


def to_fields_v1(paths: Iterable[Path]) -> Obj:
    """Paths as the tree of `fieldsV1`; a path that is owned itself and has owned fields below shows as `.`."""
    tree: Obj = {}
    owned = set(paths)
    for path in sorted(owned):
        node = tree
        for depth, step in enumerate(path):
            node = node.setdefault(step, {})
            if depth + 1 < len(path) and path[: depth + 1] in owned:
                node.setdefault(".", {})
    return tree


def from_fields_v1(tree: Obj) -> set[Path]:
    found: set[Path] = set()

    def walk(node: Obj, path: Path) -> None:
        if path and (not node or "." in node):
            found.add(path)
        for step, inner in node.items():
            if step != ".":
                walk(inner, (*path, step))

    walk(tree, ())
    return found


def _readable(path: Path) -> str:
    said = ""
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "f":
            said += f".{rest}"
        elif kind == "k":
            said += "[" + ",".join(f"{k}={_json(v)}" for k, v in json.loads(rest).items()) + "]"
        else:
            said += f"[={rest}]"
    return said


def _entry(manager: str, operation: str, version: str, subresource: str, time: str, paths: Iterable[Path]) -> Obj:
    entry: Obj = {
        "manager": manager,
        "operation": operation,
        "apiVersion": version,
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": to_fields_v1(paths),
    }
    if subresource:
        entry["subresource"] = subresource
    return entry


def _identity(entry: Obj) -> tuple[str, str, str]:
    return entry["manager"], entry["operation"], entry.get("subresource", "")


def changed_paths(old: Fields, new: Fields) -> set[Path]:
    """Paths that were added or have another value."""
    return {path for path, value in new.items() if path not in old or old[path] != value}


def difference(old: Obj | None, new: Obj, types: Types) -> tuple[set[Path], set[Path]]:
    """(paths of `new` that were added or changed, paths of `old` that are gone); equal parts are not looked into."""
    changed: set[Path] = set()
    gone: set[Path] = set()
    _diff(old, new, types, (), changed, gone)
    return changed - _NEVER_OWNED, gone - _NEVER_OWNED


def _diff(old: Any, new: Any, types: Types, path: Path, changed: set[Path], gone: set[Path]) -> None:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict) and old and new and not types.atomic_map():
        for key in old.keys() | new.keys():
            if not (key == "managedFields" and path == ("f:metadata",)):
                here, inner = (*path, "f:" + key), types.child(key)
                _diff_part(old.get(key, _ABSENT), new.get(key, _ABSENT), inner, here, changed, gone)
        return
    listed = _mergeable(types) if isinstance(old, list) and isinstance(new, list) and old and new else None
    if listed is None:
        before, after = _below(old, types, path), _below(new, types, path)
        changed |= after
        gone |= before - after
        return
    old_items = {item_step(listed, item): item for item in old}
    new_items = {item_step(listed, item): item for item in new}
    for step in old_items.keys() | new_items.keys():
        here = (*path, step)
        if step not in old_items:
            changed.add(here)
        elif step not in new_items:
            gone.add(here)
        if not listed.is_set:
            was, now = old_items.get(step, _ABSENT), new_items.get(step, _ABSENT)
            _diff_part(was, now, types.item(), here, changed, gone)


def _diff_part(old: Any, new: Any, types: Types, path: Path, changed: set[Path], gone: set[Path]) -> None:
    if old is _ABSENT:
        changed |= _below(new, types, path)
    elif new is _ABSENT:
        gone |= _below(old, types, path)
    else:
        _diff(old, new, types, path, changed, gone)


def _below(value: Any, types: Types, path: Path) -> set[Path]:
    found: Fields = {}
    if value is not None or path:
        _walk(value, types, path, found)
    return set(found)


def record_update(
    old: Obj | None, new: Obj, *, types: Types, manager: str, version: str, subresource: str, now: str
) -> None:
    """Give the fields this write changed to `manager` (operation Update) and take them from all others; in place."""
    entries: list[Obj] = list((old or {}).get("metadata", {}).get("managedFields") or ())
    if old is not None and not entries:
        _set(new, entries)  # an object that nobody manages stays so until somebody applies it
        return
    changed, gone = difference(old, new, types)
    if not changed and not gone:
        _set(new, entries)
        return
    me = (manager, "Update", subresource)
    kept: list[Obj] = []
    previous: Obj | None = None
    mine = changed
    for entry in entries:
        paths = from_fields_v1(entry["fieldsV1"])
        if _identity(entry) == me:
            previous, mine = entry, changed | (paths - gone)
            if mine == paths and changed:
                kept.append({**entry, "apiVersion": version, "time": now})
            continue
        left = paths - changed - gone
        if left == paths:
            kept.append(entry)
        elif left:
            kept.append({**entry, "fieldsV1": to_fields_v1(left)})
    if not any(_identity(entry) == me for entry in kept):
        if changed:
            kept.append(_entry(manager, "Update", version, subresource, now, mine))
        elif mine and previous is not None:
            kept.append({**previous, "fieldsV1": to_fields_v1(mine)})
    _set(new, kept)


def _set(obj: Obj, entries: list[Obj]) -> None:
    if entries:
        obj["metadata"]["managedFields"] = entries
    else:
        obj["metadata"].pop("managedFields", None)


def apply(
    live: Obj | None, wanted: Obj, *, types: Types, manager: str, version: str, subresource: str, force: bool, now: str
) -> Obj:
    """`live` after a server-side apply of `wanted` by `manager`.

    Fields the manager applied before and no longer names are removed unless someone else owns them too.

    Raises: ApiError 409 naming the other managers and fields when `wanted` changes what they own, unless `force`.
    """
    entries: list[Obj] = list((live or {}).get("metadata", {}).get("managedFields") or ())
    me = (manager, "Apply", subresource)
    asked = fields_of(wanted, types)
    current = fields_of(live, types) if live else {}
    if current and not entries:
        entries = [_entry("before-first-apply", "Update", version, "", now, current)]
    own: set[Path] = set()
    others: list[tuple[Obj, set[Path]]] = []
    for entry in entries:
        paths = from_fields_v1(entry["fieldsV1"])
        if _identity(entry) == me:
            own = paths
        else:
            others.append((entry, paths))
    different = changed_paths(current, asked)
    conflicts = [
        (_said(entry), _readable(path))
        for entry, paths in others
        for path in sorted(paths & different)
        if path in current
    ]
    if conflicts and not force:
        raise apply_conflict(conflicts)

    shared = set().union(*(paths for _, paths in others)) if others else set()
    merged: Obj = _merge(live or {}, wanted, types)
    kept = shared | asked.keys()
    # Whole items first: their fields go with them, and the fields that identify an item must not go before it.
    for path in sorted(own - kept, key=len):
        if not _identifies(path) and not any(other[: len(path)] == path for other in kept):
            _remove(merged, path)
    remaining = [(entry, paths - different) for entry, paths in others]
    result = [
        entry if paths == from_fields_v1(entry["fieldsV1"]) else {**entry, "fieldsV1": to_fields_v1(paths)}
        for entry, paths in remaining
        if paths
    ]
    previous = next((entry for entry in entries if _identity(entry) == me), None)
    if previous is not None and own == asked.keys() and not different:
        result = [*result, previous]
    elif asked:
        result = [*result, _entry(manager, "Apply", version, subresource, now, asked)]
    merged["metadata"] = dict(merged["metadata"])
    _set(merged, result)
    return merged


def _identifies(path: Path) -> bool:
    """Whether the path is one of the fields by which its list item is known."""
    return len(path) > 1 and path[-2].startswith("k:") and path[-1][2:] in json.loads(path[-2][2:])


def _said(entry: Obj) -> str:
    text = f'"{entry["manager"]}"'
    if entry.get("subresource"):
        text += f' with subresource "{entry["subresource"]}"'
    return text if entry["operation"] == "Apply" else f"{text} using {entry['apiVersion']}"


def _merge(live: Any, wanted: Any, types: Types) -> Any:
    if isinstance(wanted, dict) and not types.atomic_map():
        merged = dict(live) if isinstance(live, dict) else {}
        for key, value in wanted.items():
            if value is not None:
                merged[key] = _merge(merged.get(key), value, types.child(key))
        return merged
    listed = _mergeable(types) if isinstance(wanted, list) else None
    if listed is None or not isinstance(live, list):
        return wanted
    steps = {item_step(listed, item): item for item in wanted}
    merged_items = []
    for item in live:
        step = item_step(listed, item)
        merged_items.append(_merge(item, steps.pop(step), types.item()) if step in steps else item)
    return merged_items + list(steps.values())


def _remove(obj: Any, path: Path) -> None:
    """Take the field or item at `path` out of `obj`, copying what is changed on the way (objects are shared)."""
    step, rest = path[0], path[1:]
    kind, _, name = step.partition(":")
    if isinstance(obj, dict) and kind == "f" and name in obj:
        if not rest:
            del obj[name]
            return
        inner = obj[name] = dict(obj[name]) if isinstance(obj[name], dict) else list(obj[name])
        _remove(inner, rest)
        if not inner and isinstance(inner, (dict, list)):
            del obj[name]
    elif isinstance(obj, list):
        for index, item in enumerate(obj):
            if _is_item(kind, name, item):
                if not rest:
                    del obj[index]
                else:
                    obj[index] = dict(item)
                    _remove(obj[index], rest)
                return


def _is_item(kind: str, text: str, item: Any) -> bool:
    if kind == "v":
        return bool(item == json.loads(text))
    return isinstance(item, dict) and all(
        item.get(k, "TCP" if k == "protocol" else None) == v for k, v in json.loads(text).items()
    )
