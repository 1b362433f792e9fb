"""Structural schemas of custom resources: defaults, pruning of unknown fields, and validation."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from kai_lab_pipeline.rehearsal.api.errors import Cause, Obj

_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def apply_defaults(value: Any, schema: Obj) -> None:
    """Fill in the defaults of absent fields, in place."""
    if isinstance(value, dict):
        for name, inner in (schema.get("properties") or {}).items():
            if name not in value and "default" in inner:
                value[name] = copy.deepcopy(inner["default"])
            if name in value:
                apply_defaults(value[name], inner)
        more = schema.get("additionalProperties")
        if isinstance(more, dict):
            for name, inner_value in value.items():
                if name not in (schema.get("properties") or {}):
                    apply_defaults(inner_value, more)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for item in value:
            apply_defaults(item, schema["items"])


def prune(value: Any, schema: Obj, path: str = "", *, root: bool = True) -> list[str]:
    """Remove fields the schema does not know, in place; the paths of what was removed."""
    removed: list[str] = []
    if isinstance(value, dict):
        if schema.get("x-kubernetes-embedded-resource") and not root:
            return removed
        properties = schema.get("properties") or {}
        more = schema.get("additionalProperties")
        for name in list(value):
            here = f"{path}.{name}" if path else name
            if root and name in ("apiVersion", "kind", "metadata"):
                continue
            if name in properties:
                removed += prune(value[name], properties[name], here, root=False)
            elif isinstance(more, dict):
                removed += prune(value[name], more, here, root=False)
            elif not (more is True or schema.get(_PRESERVE)):
                del value[name]
                removed.append(here)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, item in enumerate(value):
            removed += prune(item, schema["items"], f"{path}[{index}]", root=False)
    return removed


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    return next(
        (name for name in ("boolean", "integer", "number", "string", "array", "object") if _is(value, name)), ""
    )


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind != "boolean":
        return False
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, (object,)))


def _said(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def validate(value: Any, schema: Obj, path: str = "") -> list[Cause]:
    """What of an object breaks its schema, in the API server's words."""
    if value is None and schema.get("nullable"):
        return []
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        if _is(value, "integer") or isinstance(value, str):
            return []
        return [_wrong(path, "integer,string", value)]
    if kind and not _is(value, kind):
        return [_wrong(path, kind, value)]
    causes = _limits(value, schema, path)
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        causes += [
            Cause(f"{path}.{name}".lstrip("."), "Required value", "FieldValueRequired")
            for name in schema.get("required") or ()
            if name not in value
        ]
        more = schema.get("additionalProperties")
        for name, inner in value.items():
            rule = properties.get(name) or (more if isinstance(more, dict) else None)
            if rule and not (path == "" and name == "metadata"):
                causes += validate(inner, rule, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, item in enumerate(value):
            causes += validate(item, schema["items"], f"{path}[{index}]")
    return causes


def _wrong(path: str, kind: str, value: Any) -> Cause:
    got = _type_name(value)
    return Cause(
        path,
        f"Invalid value: {_said(got)}: {path} in body must be of type {kind}: {_said(got)}",
        "FieldValueTypeInvalid",
    )


def _limits(value: Any, schema: Obj, path: str) -> list[Cause]:
    """enum, bounds, lengths and patterns."""
    causes: list[Cause] = []

    def bad(text: str, reason: str = "FieldValueInvalid") -> None:
        causes.append(Cause(path, text, reason))

    enum = schema.get("enum")
    if enum is not None and value not in enum:
        allowed = ", ".join(_said(item) for item in enum)
        bad(f"Unsupported value: {_said(value)}: supported values: {allowed}", "FieldValueNotSupported")
    if _is(value, "number"):
        low, high = schema.get("minimum"), schema.get("maximum")
        if low is not None and (value < low or (schema.get("exclusiveMinimum") and value == low)):
            bad(f"Invalid value: {_said(value)}: {path} in body should be greater than or equal to {low}")
        if high is not None and (value > high or (schema.get("exclusiveMaximum") and value == high)):
            bad(f"Invalid value: {_said(value)}: {path} in body should be less than or equal to {high}")
    if isinstance(value, str):
        if "minLength" in schema and len(value) < schema["minLength"]:
            bad(f"Invalid value: {_said(value)}: {path} in body should be at least {schema['minLength']} chars long")
        if "maxLength" in schema and len(value) > schema["maxLength"]:
            bad(f"Too long: may not be more than {schema['maxLength']} bytes", "FieldValueTooLong")
        if "pattern" in schema and not re.search(schema["pattern"], value):
            bad(f"Invalid value: {_said(value)}: {path} in body should match '{schema['pattern']}'")
    if isinstance(value, list):
        if "minItems" in schema and len(value) < schema["minItems"]:
            bad(f"Invalid value: {len(value)}: {path} in body should have at least {schema['minItems']} items")
        if "maxItems" in schema and len(value) > schema["maxItems"]:
            bad(f"Too many: {len(value)}: must have at most {schema['maxItems']} items", "FieldValueTooMany")
    return causes
