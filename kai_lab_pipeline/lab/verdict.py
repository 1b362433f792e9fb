"""Verdicts, findings and judgements: the words in which the lab's claims are judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Any


class Verdict(str, Enum):
    """What evidence says about one check or claim."""

    HELD = "held"
    BROKEN = "broken"
    NOT_REACHABLE = "not_reachable"
    """Beyond the boundary on this backend; said honestly, never counted as held."""
    NOT_EVALUATED = "not_evaluated"
    """Not captured, blocked by a gate, or the infrastructure failed first."""

    def __str__(self) -> str:
        return self.value


class Boundary(str, Enum):
    """How the reservation boundary came out."""

    EXPECTED = "expected"
    CROSSED = "crossed"
    DIFFERENT = "different"
    NOT_EVALUATED = "not_evaluated"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Finding:
    """What one check found: a verdict, both sides of the comparison, and a sentence a person understands."""

    verdict: Verdict
    expected: str
    observed: str
    message: str
    transient: bool = False
    """The finding may still turn by itself (a label not written yet, an attempt still running): worth waiting for."""


def held(expected: str, observed: str, message: str) -> Finding:
    return Finding(Verdict.HELD, expected, observed, message)


def broken(expected: str, observed: str, message: str, *, transient: bool = True) -> Finding:
    return Finding(Verdict.BROKEN, expected, observed, message, transient)


def not_evaluated(expected: str, message: str, *, observed: str = "not captured", transient: bool = True) -> Finding:
    return Finding(Verdict.NOT_EVALUATED, expected, observed, message, transient)


def not_reachable(expected: str, observed: str, message: str) -> Finding:
    return Finding(Verdict.NOT_REACHABLE, expected, observed, message)


@dataclass(frozen=True)
class Excuse:
    """A named exception from lab.toml: the check stays broken and does not make the run red until the date."""

    reason: str
    until: str
    """RFC 3339 full-date; the excuse no longer counts after this day."""

    def counts(self, today: date | None) -> bool:
        """Whether it still does on a day; with None as if it were its last one."""
        return today is None or today <= date.fromisoformat(self.until)

    def to_json(self) -> dict[str, str]:
        return {"reason": self.reason, "until": self.until}


@dataclass(frozen=True)
class CheckResult:
    """The finding of one named check of one asset."""

    asset: str
    check: str
    finding: Finding
    excused: Excuse | None = None

    @property
    def verdict(self) -> Verdict:
        return self.finding.verdict

    @property
    def name(self) -> str:
        """``asset.check``, the name used in expected.json files and in settings."""
        return f"{self.asset}.{self.check}"

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "asset": self.asset,
            "check": self.check,
            "verdict": self.verdict.value,
            "expected": self.finding.expected,
            "observed": self.finding.observed,
            "message": self.finding.message,
        }
        if self.excused is not None:
            out["excused"] = self.excused.to_json()
        return out


@dataclass(frozen=True)
class ClaimResult:
    """One of the lab's eight claims with the checks that make it up."""

    id: int
    statement: str
    verdict: Verdict
    checks: tuple[CheckResult, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "statement": self.statement,
            "verdict": self.verdict.value,
            "checks": [check.to_json() for check in self.checks],
        }


@dataclass(frozen=True)
class Judgement:
    """All claims of one lab, judged from evidence of one backend."""

    backend: str
    versions: Mapping[str, str]
    boundary: Boundary
    claims: tuple[ClaimResult, ...]
    notes: tuple[str, ...] = field(default=())
    """Sentences about the evidence itself, such as a file that could not be read."""

    @property
    def checks(self) -> tuple[CheckResult, ...]:
        return tuple(check for claim in self.claims for check in claim.checks)

    @property
    def all_is_well(self) -> bool:
        """Whether every check is held, or honestly not reachable."""
        return all(check.verdict in (Verdict.HELD, Verdict.NOT_REACHABLE) for check in self.checks)

    def counts(self) -> dict[str, int]:
        """How many claims have each verdict (keys: held, broken, not_reachable, not_evaluated)."""
        counts = {verdict.value: 0 for verdict in Verdict}
        for claim in self.claims:
            counts[claim.verdict.value] += 1
        return counts

    def exit_code(self) -> int:
        """0 all held (or honestly not reachable), 1 a claim broken and not excused, 3 something was not evaluated."""
        if any(check.verdict is Verdict.BROKEN and check.excused is None for check in self.checks):
            return 1
        if any(check.verdict is Verdict.NOT_EVALUATED for check in self.checks):
            return 3
        return 0

    def to_json(self) -> dict[str, Any]:
        """The public JSON shape of ``kai-lab judge --json`` and ``kai-lab run --json``."""
        return {
            "backend": self.backend,
            "versions": dict(self.versions),
            "boundary": self.boundary.value,
            "claims": [claim.to_json() for claim in self.claims],
            "counts": self.counts(),
        }


_WORST_FIRST = (Verdict.BROKEN, Verdict.NOT_EVALUATED, Verdict.HELD, Verdict.NOT_REACHABLE)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Roll-up of a claim: broken, then not_evaluated, then held; not_reachable counts only if it stands alone."""
    present = set(verdicts)
    for verdict in _WORST_FIRST:
        if verdict in present:
            return verdict
    return Verdict.NOT_EVALUATED
