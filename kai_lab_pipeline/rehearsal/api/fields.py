"""Which fields built-in kinds have: for strict decoding."""

from __future__ import annotations

from kai_lab_pipeline.rehearsal.api.errors import Obj


def unknown_fields(group: str, version: str, kind: str, obj: Obj) -> list[str]:
    """Paths of the fields that a built-in kind does not have."""
    return []
