"""A diagnosis in words for a person: what the terminal, a failed step and a red check say of it."""

from __future__ import annotations

from collections.abc import Iterable

from kai_lab_pipeline.lab.diagnosis.model import Cause, Diagnosis

SHOWN = 3
"""Causes told in words; all of them stand in the report."""


def cause_of(diagnosis: Diagnosis, check: str) -> Cause | None:
    """The cause that names this check (``asset.check``), else the one that explains most; None where none is known."""
    naming = [cause for cause in diagnosis.causes if any(line.startswith(f"{check}: ") for line in cause.evidence)]
    return next(iter((*naming, *diagnosis.causes)), None)


def in_words(causes: Iterable[Cause], *, evidence: bool = False) -> list[str]:
    """Causes as lines: the cause, what it was seen in (on demand), what to do, and where it is described."""
    lines: list[str] = []
    for cause in list(causes)[:SHOWN]:
        lines.append(f"Cause: {cause.cause}")
        lines += [f"Seen: {line}" for line in cause.evidence if evidence]
        lines += [f"Do: {step}" for step in cause.remedy]
        if cause.transient:
            lines.append("It goes away by itself or with a retry.")
        lines.append(f"More: {cause.known_issue}")
    return lines
