"""The public shape of `kai-lab explain --json`; its causes stand in what run, check and judge print as well."""

from __future__ import annotations

from typing import Any

SHAPE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["known", "causes"],
    "properties": {
        "known": {"type": "boolean"},
        "causes": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["id", "component", "cause", "remedy", "transient", "evidence"],
                "properties": {
                    "id": {"type": "string"},
                    "component": {"type": "string"},
                    "cause": {"type": "string"},
                    "remedy": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                    "transient": {"type": "boolean"},
                    "evidence": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                },
            },
        },
    },
}
