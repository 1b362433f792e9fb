"""The report as values: what the renderers show, already cleaned, bounded and in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from kai_lab_pipeline.lab.verdict import Boundary, Excuse, Judgement, Verdict

_HELD = "held"


class Answer(str, Enum):
    """Whether the shared pod got as far as one of its four degrees."""

    YES = "yes"
    NO = "no"
    NOT_REACHABLE = "not reachable"
    """Beyond the boundary on this backend."""
    NOT_EVALUATED = "not evaluated"

    def __str__(self) -> str:
        return self.value


class Tone(str, Enum):
    """How a state is coloured; the words beside it carry the meaning alone."""

    GOOD = "good"
    BAD = "bad"
    EXCUSED = "excused"
    BEYOND = "beyond"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Origin:
    """Where the evidence comes from, said so that nobody can take one thing for another."""

    backend: str
    simulated: bool
    label: str
    """A few words for the first line, such as ``SIMULATED (backend: rehearsal)``."""
    sentence: str


@dataclass(frozen=True)
class CheckRow:
    """One check with both sides of its comparison, the evidence that decides, and the way to see it by hand."""

    asset: str
    check: str
    description: str
    verdict: Verdict
    label: str
    tone: Tone
    excused: Excuse | None
    expected: str
    observed: str
    message: str
    excerpt: tuple[str, ...]
    commands: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.asset}.{self.check}"


@dataclass(frozen=True)
class ClaimRow:
    """One claim with its checks."""

    id: int
    statement: str
    verdict: Verdict
    label: str
    tone: Tone
    checks: tuple[CheckRow, ...]

    @property
    def tally(self) -> str:
        """How its checks came out, such as ``3 of 4 checks held, 1 not reachable``."""
        counts = Counter(check.label for check in self.checks)
        held = counts.pop(_HELD, 0)
        rest = "".join(f", {count} {label}" for label, count in counts.items())
        return f"{held} of {len(self.checks)} checks held{rest}"


@dataclass(frozen=True)
class Degree:
    """One of the four things that "GPU sharing works" can mean for the shared pod."""

    name: str
    meaning: str
    answer: Answer
    tone: Tone
    sources: tuple[str, ...]
    """The checks (``asset.check``) the answer comes from."""
    message: str


@dataclass(frozen=True)
class Step:
    """One asset: how long its step took, and the run and age of its evidence."""

    asset: str
    captured: bool
    duration_s: float | None
    run_id: str | None
    run_url: str | None
    observed_at: datetime | None
    age: str


@dataclass(frozen=True)
class CauseRow:
    """One diagnosed cause, cleaned."""

    cause: str
    remedy: tuple[str, ...]
    evidence: tuple[str, ...]
    transient: bool


@dataclass(frozen=True)
class Report:
    """Everything the four formats show. Texts in it are free of escape sequences and control characters."""

    lab: str
    generated_at: datetime
    origin: Origin
    headline: str
    tone: Tone
    exit_code: int
    boundary: Boundary
    boundary_tone: Tone
    boundary_sentence: str
    counts: Mapping[str, int]
    """Claims per verdict (held, broken, not_reachable, not_evaluated)."""
    excused_checks: int
    claims: tuple[ClaimRow, ...]
    degrees: tuple[Degree, ...]
    versions: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    notes: tuple[str, ...]
    causes: tuple[CauseRow, ...]
    time_scale: float
    """Seconds here per second of a real cluster."""
    group_url: str
    evidence_folder: str | None
    judgement: Judgement
    """The judgement as given, for the JSON format."""

    @property
    def checks(self) -> tuple[CheckRow, ...]:
        return tuple(check for claim in self.claims for check in claim.checks)
