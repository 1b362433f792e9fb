"""Which fields built-in kinds have, and of which type: what the real server's decoder refuses."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from kai_lab_pipeline.rehearsal.api.errors import Obj

_JSON_TYPES: dict[type, str] = {
    str: "string",
    bool: "bool",
    int: "number",
    float: "number",
    list: "array",
    dict: "object",
}
_SHOWN_EMPTY = frozenset({("V1ClusterRole", "rules"), ("V1Role", "rules")})
_GO_TYPES = {"string": "string", "integer": "int32", "number": "float64", "boolean": "bool"}


@cache
def _table() -> Obj:
    table: Obj = json.loads(Path(__file__).with_name("builtin_fields.json").read_text())
    return table


class _Reader:
    def __init__(self, models: dict[str, dict[str, str]]) -> None:
        self._models = models
        self.unknown: list[str] = []
        self.wrong: str | None = None

    def read(self, value: Any, ref: str, path: str, plain: str, owner: str) -> None:
        """`path` has list indexes, `plain` has none: the decoder says the one, the type check the other."""
        if value is None or ref == "*":
            return
        if ref[0] == "[":
            if not isinstance(value, list):
                return self._mismatch(value, "[]" + _go(ref[1:]), plain, owner)
            for index, item in enumerate(value):
                self.read(item, ref[1:], f"{path}[{index}]", plain, owner)
        elif ref[0] == "{":
            if not isinstance(value, dict):
                return self._mismatch(value, "map[string]" + _go(ref[1:]), plain, owner)
            for key, item in value.items():
                self.read(item, ref[1:], f"{path}.{key}", plain, owner)
        elif ref in self._models:
            if not isinstance(value, dict):
                return self._mismatch(value, _go(ref), plain, owner)
            fields = self._models[ref]
            for key in list(value):
                here = f"{path}.{key}".lstrip(".")
                if key in fields:
                    self.read(value[key], fields[key], here, f"{plain}.{key}".lstrip("."), ref)
                    if (ref, key) not in _SHOWN_EMPTY and _left_out(key, value[key], fields[key]):
                        del value[key]
                else:
                    del value[key]
                    self.unknown.append(here)
        elif not _scalar(value, ref):
            self._mismatch(value, _GO_TYPES[ref], plain, owner)

    def _mismatch(self, value: Any, wanted: str, plain: str, owner: str) -> None:
        given = _JSON_TYPES.get(type(value), "value")
        said = f"json: cannot unmarshal {given} into Go struct field {_go(owner)}.{plain} of type {wanted}"
        self.wrong = self.wrong or said


def _go(ref: str) -> str:
    """A model's name as Go says it: V1EnvVar is v1.EnvVar."""
    if ref in _GO_TYPES:
        return _GO_TYPES[ref]
    name = ref.removeprefix("Core").removeprefix("Events")
    return name[2:] if name.startswith("V1") else name


def _scalar(value: Any, ref: str) -> bool:
    if ref == "boolean":
        return isinstance(value, bool)
    if ref == "string":
        return isinstance(value, str)
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and (ref == "number" or value.is_integer()))


def _left_out(key: str, value: Any, ref: str) -> bool:
    """Whether typed structures do not show a field: maps and lists without content, and null but for times."""
    if value is None:
        return not key.endswith(("Time", "Timestamp"))
    return not value and ref[0] in "[{"


def read_builtin(group: str, version: str, kind: str, obj: Obj) -> tuple[list[str], str | None]:
    """(paths of fields that a built-in kind does not have, what is of the wrong type or None).

    Unknown and empty fields are taken out of `obj`: a decoder into typed structures drops them.
    """
    table = _table()
    model = table["kinds"].get(f"{group}/{version}/{kind}" if group else f"{version}/{kind}")
    if model is None:
        return [], None
    reader = _Reader(table["models"])
    reader.read(obj, model, "", "", kind)
    return reader.unknown, reader.wrong
