"""JSON merge patch (RFC 7396), JSON patch (RFC 6902) and Kubernetes' strategic merge patch."""

from __future__ import annotations

from typing import Any

import jsonpatch

from kai_lab_pipeline.rehearsal.api.errors import ApiError, Obj, bad_request
from kai_lab_pipeline.rehearsal.api.listtypes import ListType, Types

_DIRECTIVES = ("$patch", "$retainKeys")


def merge_patch(target: Any, patch: Any) -> Any:
    """`target` with `patch` merged in; null removes. Lists are replaced."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def json_patch(target: Obj, operations: Any) -> Obj:
    """`target` after a list of JSON patch operations.

    Raises: ApiError 400 for what is no JSON patch, 422 when an operation does not fit the object.
    """
    if not isinstance(operations, list):
        raise bad_request("error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    try:
        patched = jsonpatch.JsonPatch(operations).apply(target)
    except jsonpatch.InvalidJsonPatch as error:
        raise bad_request(f"error decoding patch: {error}") from error
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        message = f"the server rejected our request due to an error in our request: {error}"
        raise ApiError(422, "Invalid", message, {}) from error
    if not isinstance(patched, dict):
        raise bad_request("error applying patch: the result is not an object")
    return patched


def strategic_patch(target: Any, patch: Any, types: Types) -> Any:
    """`target` with a strategic merge patch: lists with a merge key merge item by item; `$patch`,
    `$setElementOrder/...` and `$deleteFromPrimitiveList/...` are obeyed as kubectl writes them.
    """
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if patch.get("$patch") == "delete":
        return {}
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key in _DIRECTIVES or key.startswith("$setElementOrder/"):
            continue
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.partition("/")[2]
            merged[field] = [item for item in merged.get(field) or [] if item not in value]
        elif value is None:
            merged.pop(key, None)
        elif isinstance(value, list):
            merged[key] = _merge_list(merged.get(key), value, types.child(key))
        else:
            merged[key] = strategic_patch(merged.get(key), value, types.child(key))
    for key, order in patch.items():
        if key.startswith("$setElementOrder/"):
            field = key.partition("/")[2]
            if isinstance(merged.get(field), list):
                merged[field] = _ordered(merged[field], order, types.child(field).list_type())
    if "$retainKeys" in patch:
        merged = {key: value for key, value in merged.items() if key in patch["$retainKeys"]}
    return merged


def _merge_list(present: Any, patch: list[Any], types: Types) -> list[Any]:
    listed = types.list_type()
    current: list[Any] = list(present) if isinstance(present, list) else []
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if not (isinstance(item, dict) and "$patch" in item)]
    if listed is not None and listed.is_set:
        return current + [item for item in patch if item not in current]
    if listed is None or not listed.patch_key:
        return patch
    by = listed.patch_key
    for change in patch:
        if not isinstance(change, dict) or by not in change:
            raise bad_request(f"map: {change} does not contain declared merge key: {by}")
        at = next((i for i, item in enumerate(current) if item.get(by) == change[by]), None)
        if change.get("$patch") == "delete":
            if at is not None:
                current.pop(at)
        elif at is None:
            current.append(strategic_patch({}, change, types.item()))
        else:
            current[at] = strategic_patch(current[at], change, types.item())
    return current


def _ordered(items: list[Any], order: list[Any], listed: ListType | None) -> list[Any]:
    """Items in the order the patch names; items it does not name keep their place after their predecessor."""
    by = listed.patch_key if listed else ""

    def identity(item: Any) -> Any:
        return item.get(by) if by and isinstance(item, dict) else item

    wanted = [identity(item) for item in order]
    named = [item for item in items if identity(item) in wanted]
    named.sort(key=lambda item: wanted.index(identity(item)))
    following = iter(named)
    return [next(following) if identity(item) in wanted else item for item in items]
