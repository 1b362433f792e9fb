"""Writes the table of built-in kinds' fields from the official client: `python -m ...api_suite.builtin_fields`.

The rehearsal's API server must start fast, and importing the client's models takes a second; so it reads this table.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kubernetes import client

import kai_lab_pipeline.rehearsal.api
from kai_lab_pipeline.rehearsal.api.resources import BUILTIN

TABLE = Path(kai_lab_pipeline.rehearsal.api.__file__).with_name("builtin_fields.json")

_QUANTITIES = frozenset(
    {
        "allocatable", "capacity", "default", "defaultRequest", "divisor", "hard", "limits", "max", "min", "overhead",
        "podFixed", "requests", "sizeLimit", "used",
    }
)  # fmt: skip
_SCALARS = {"str": "string", "int": "integer", "bool": "boolean", "float": "number"}


def model_of(group: str, version: str, kind: str) -> str | None:
    """The client's class for a kind; events exist twice."""
    prefix = {"events.k8s.io": "Events", "": "Core"}.get(group, "") if kind == "Event" else ""
    name = f"{prefix}{version[0].upper()}{version[1:]}{kind}"
    return name if hasattr(client, name) else None


def reference(field: str, declared: str) -> str:
    """A field's type: a scalar's name, a model's name, `[X` for lists, `{X` for maps, `*` for anything."""
    if field in _QUANTITIES:
        return "*"
    listed = re.fullmatch(r"[Ll]ist\[(.*)\]", declared)
    if listed:
        return "[" + reference("", listed[1])
    mapped = re.fullmatch(r"[Dd]ict[\[(]str, (.*)[\])]", declared)
    if mapped:
        return "{" + reference("", mapped[1])
    if declared in _SCALARS:
        return _SCALARS[declared]
    return declared if hasattr(getattr(client, declared, None), "openapi_types") else "*"


def table() -> dict[str, Any]:
    kinds: dict[str, str] = {}
    models: dict[str, dict[str, str]] = {}
    waiting = []
    for resource in BUILTIN:
        name = model_of(resource.group, resource.version, resource.kind)
        if name is not None:
            kinds[f"{resource.group_version}/{resource.kind}"] = name
            waiting.append(name)
    while waiting:
        name = waiting.pop()
        if name in models:
            continue
        model = getattr(client, name)
        fields = {
            model.attribute_map[attribute]: reference(model.attribute_map[attribute], declared)
            for attribute, declared in model.openapi_types.items()
        }
        models[name] = dict(sorted(fields.items()))
        waiting += [ref.lstrip("[{") for ref in fields.values() if hasattr(client, ref.lstrip("[{"))]
    return {"kinds": kinds, "models": dict(sorted(models.items()))}


if __name__ == "__main__":
    TABLE.write_text(json.dumps(table(), separators=(",", ":")) + "\n")
