"""Who owns which field of an object, read from its managedFields, and what hands have written there.

A path is a tuple of steps as `fieldsV1` writes them: ``f:NAME`` is a field, ``k:{...}`` the item of a list by its key,
``v:...`` the item of a set (Kubernetes, structured-merge-diff v6). A step with nothing below it is owned as one value.
Which lists have keys is known from there too, so that no schema is needed.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Path = tuple[str, ...]
Tree = Mapping[str, Any]

_HANDS = ("kubectl", "k9s", "lens", "headlamp", "freelens", "octant", "python", "node-fetch", "curl", "unknown")
"""Field managers behind which a person or a script stands; any other one is a controller's or an installer's."""
_NOT_CONTENT = frozenset({"apiVersion", "kind", "metadata", "status"})
_OF_METADATA = ("labels", "annotations")
_BOOKKEEPING = "f:kubectl.kubernetes.io/"
"""Annotations that kubectl keeps for itself: what it applied last, and the stamp of a restart, which is no content."""
_HIDDEN = frozenset({"f:env", "f:data", "f:binaryData", "f:stringData"})
"""Fields below which a value may be a secret: it is never told."""
LONGEST_TOLD = 80
"""Longest text value that is told, characters."""


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = _Absent()
"""The value of a field that is not there."""


@dataclass(frozen=True)
class Change:
    """A field that is other than it was made; `should` and `there` are ABSENT where it is not there."""

    path: Path
    there: Any
    should: Any
    manager: str = ""
    """Who owns the field now, and since when (RFC 3339); empty where nobody does."""
    when: str = ""

    def text(self) -> str:
        return told(self.path, self.there, self.should)


def content_of(obj: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest decides about an object: without its status, which controllers go on writing, and bookkeeping."""
    content = {key: value for key, value in obj.items() if key not in _NOT_CONTENT}
    content["metadata"] = {part: obj["metadata"].get(part) or {} for part in _OF_METADATA}
    return content


def owner_of(obj: Mapping[str, Any], path: Path) -> tuple[str, str]:
    """Who owns a field and when they last wrote (RFC 3339); the newest where several do, empty where nobody does."""
    owners = [
        (str(entry.get("time") or ""), str(entry.get("manager") or ""))
        for entry in _entries(obj)
        if _owns(entry.get("fieldsV1") or {}, path)
    ]
    when, manager = max(owners, default=("", ""))
    return manager, when


def differences(living: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[Change]:
    """Where the content of two forms of an object differs, with who owns that in `living`."""
    trees = [entry.get("fieldsV1") or {} for obj in (living, wanted) for entry in _entries(obj)]
    for path, there, should in _differences(content_of(living), content_of(wanted), trees, ()):
        yield Change(path, there, should, *owner_of(living, path))


def changed_by_hand(living: Mapping[str, Any], made: Mapping[str, Any]) -> list[Change]:
    """What hands own in `living` and is other than in `made`, the object as it comes out of its manifest.

    What a hand has set back to what it was is no change, nor is what somebody else has applied with the same value.
    """
    return list(_by_hand(living, made))


def written_by_hand(living: Mapping[str, Any]) -> list[Change]:
    """What hands own in an object of which nobody knows how it was made."""
    return list(_by_hand(living, {}))


def taken_out(living: Mapping[str, Any], declared: Mapping[str, Any]) -> list[Path]:
    """The topmost fields and items that a manifest declares and a living object lacks; an empty value declares none."""
    trees = [entry.get("fieldsV1") or {} for entry in _entries(living)]
    found = _differences(content_of(living), content_of(declared), trees, ())
    return [path for path, there, should in found if there is ABSENT and should]


def value_at(obj: Any, path: Path) -> Any:
    """The value at a path, ABSENT where there is none."""
    found = obj
    for step in path:
        found = _below(found, step)
        if found is ABSENT:
            return ABSENT
    return found


def restoring(living: Mapping[str, Any], made: Mapping[str, Any], paths: Iterable[Path]) -> dict[str, Any]:
    """The JSON merge patch that gives these fields of `living` the values they have in `made`; empty for none."""
    target: dict[str, Any] = copy.deepcopy(dict(living))
    for path in paths:
        should = value_at(made, path)
        _put(target, path, should)
        if should is ABSENT:
            _drop_emptied(target, made, path)
    return _merge_patch(living, target)


def readable(path: Path) -> str:
    """A path as a person writes it.

    >>> readable(("f:spec", "f:containers", 'k:{"name":"a"}', "f:image"))
    'spec.containers[name=a].image'
    """
    said = ""
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "k":
            said += "[" + ",".join(f"{key}={value}" for key, value in json.loads(rest).items()) + "]"
        elif kind == "v":
            said += f"[{json.loads(rest)}]"
        else:
            said += f".{rest}"
    return said.removeprefix(".")


def told(path: Path, there: Any, should: Any) -> str:
    """A difference as a sentence, without values that may be secret or fill the page."""
    name = readable(path)
    open_ = _HIDDEN.isdisjoint(path)
    if there is ABSENT:
        return f"{name} is gone"
    if should is ABSENT:
        return f"{name} was added: {there}" if open_ and _short(there) else f"{name} was added"
    if open_ and _short(there) and _short(should):
        return f"{name} is {there}, not {should}"
    return f"{name} is another than was applied"


def told_written(path: Path, there: Any) -> str:
    """What a hand has written where nobody knows what was there before."""
    open_ = _HIDDEN.isdisjoint(path) and _short(there)
    return f"{readable(path)} is {there}" if open_ else f"{readable(path)} was set"


# -- how ---------------------------------------------------------------------------------------------------------------


def _entries(obj: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return obj.get("metadata", {}).get("managedFields") or ()


def _by_hand(living: Mapping[str, Any], made: Mapping[str, Any]) -> Iterator[Change]:
    hands: dict[Path, tuple[str, str]] = {}
    others: set[Path] = set()
    declared: set[Path] = set()
    for entry in _entries(living):
        manager, paths = str(entry.get("manager") or "unknown"), set(_leaves(entry.get("fieldsV1") or {}, ()))
        if not manager.lower().startswith(_HANDS):
            others |= paths
            declared |= paths if entry.get("operation") == "Apply" else set()
        elif entry.get("subresource") != "status":
            hands |= {path: (manager, str(entry.get("time") or "")) for path in paths if _is_content(path)}
    seen: set[Path] = set()
    for path, (manager, when) in hands.items():
        there = value_at(living, path)
        if path in declared or there is ABSENT or there == value_at(made, path):
            continue
        top = _whole_item(path, made, others)
        if top not in seen:
            seen.add(top)
            yield Change(top, value_at(living, top), value_at(made, top), manager, when)


def _is_content(path: Path) -> bool:
    if any(step.startswith(_BOOKKEEPING) for step in path):
        return False
    if path[0] == "f:metadata":
        return len(path) > 2 and path[1].removeprefix("f:") in _OF_METADATA
    return path[0].removeprefix("f:") not in _NOT_CONTENT


def _whole_item(path: Path, made: Mapping[str, Any], others: set[Path]) -> Path:
    """The list item that a hand has added and this field is of; the field itself where there is none."""
    for length in range(1, len(path)):
        top = path[:length]
        added = top[-1].startswith("k:") and value_at(made, top) is ABSENT
        if added and not any(other[:length] == top for other in others):
            return top
    return path


def _leaves(tree: Tree, path: Path) -> Iterator[Path]:
    below = {step: inner for step, inner in tree.items() if step != "."}
    if not below and path:
        yield path
    for step, inner in below.items():
        yield from _leaves(inner or {}, (*path, step))


def _owns(tree: Tree, path: Path) -> bool:
    for number, step in enumerate(path):
        if number and not tree:
            return True  # what is above is owned as one value
        found = tree.get(step)
        if found is None:
            return False
        tree = found
    return True


def _differences(there: Any, should: Any, trees: Sequence[Tree], path: Path) -> Iterator[tuple[Path, Any, Any]]:
    if there == should:
        return
    if isinstance(there, Mapping) and isinstance(should, Mapping):
        steps = {f"f:{key}": (there.get(key, ABSENT), should.get(key, ABSENT)) for key in (*there, *should)}
    elif isinstance(there, list) and isinstance(should, list) and (keys := _keys(trees)):
        ours, theirs = _by_key(there, keys), _by_key(should, keys)
        if ours is None or theirs is None:
            yield path, there, should
            return
        steps = {step: (ours.get(step, ABSENT), theirs.get(step, ABSENT)) for step in (*ours, *theirs)}
    else:
        yield path, there, should
        return
    for step, (one, other) in steps.items():
        inner = [tree[step] for tree in trees if tree.get(step)]
        yield from _differences(one, other, inner, (*path, step))


def _keys(trees: Sequence[Tree]) -> tuple[str, ...]:
    """The fields by which the items of a list are known; none where it is one value, or a set."""
    found = (step for tree in trees for step in tree if step.startswith("k:"))
    step = next(found, None)
    return () if step is None else tuple(json.loads(step[2:]))


def _by_key(items: Sequence[Any], keys: Sequence[str]) -> dict[str, Any] | None:
    """A list's items by their steps; None where one lacks its key or two have the same."""
    found: dict[str, Any] = {}
    for item in items:
        if not isinstance(item, Mapping) or not all(key in item or key == "protocol" for key in keys):
            return None
        named = {key: item.get(key, "TCP") for key in keys}
        found["k:" + json.dumps(named, separators=(",", ":"), ensure_ascii=False)] = item
    return found if len(found) == len(items) else None


def _below(found: Any, step: str) -> Any:
    kind, _, rest = step.partition(":")
    if kind == "f":
        return found.get(rest, ABSENT) if isinstance(found, Mapping) else ABSENT
    items = found if isinstance(found, list) else ()
    return next((item for item in items if _is_item(kind, rest, item)), ABSENT)


def _is_item(kind: str, text: str, item: Any) -> bool:
    named = json.loads(text)
    if kind == "v":
        return bool(item == named)
    return isinstance(item, Mapping) and all(
        item.get(key, "TCP" if key == "protocol" else None) == value for key, value in named.items()
    )


def _put(obj: dict[str, Any], path: Path, value: Any) -> None:
    """Set or, with ABSENT, remove what is at a path, in place; what lies above it must be there."""
    holder, step = value_at(obj, path[:-1]), path[-1]
    kind, _, rest = step.partition(":")
    if kind == "f" and isinstance(holder, dict):
        if value is ABSENT:
            holder.pop(rest, None)
        else:
            holder[rest] = copy.deepcopy(value)
    elif isinstance(holder, list):
        place = next((at for at, item in enumerate(holder) if _is_item(kind, rest, item)), len(holder))
        holder[place : place + 1] = [] if value is ABSENT else [copy.deepcopy(value)]


def _drop_emptied(obj: dict[str, Any], made: Mapping[str, Any], path: Path) -> None:
    """Remove what holds nothing any more and is not there in `made` either."""
    while len(path) > 1:
        path = path[:-1]
        if value_at(obj, path) not in ({}, []) or value_at(made, path) is not ABSENT:
            return
        _put(obj, path, ABSENT)


def _merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key, ABSENT)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            inner = _merge_patch(old, value)
            patch |= {key: inner} if inner else {}
        elif old != value:
            patch[key] = value
    return patch


def _short(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST_TOLD and "\n" not in value
    return value is None or isinstance(value, (bool, int, float))
