"""What one judged version set leaves behind, so that nights can be compared long after their clusters are gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal

from kai_lab_pipeline.lab.evidence import parse_time
from kai_lab_pipeline.lab.verdict import Boundary, CheckResult, Excuse, Judgement, Verdict, worst
from kai_lab_pipeline.lab.version_sets import Lane, VersionSet, texts


@dataclass(frozen=True)
class ClaimVerdict:
    """One claim as it came out, and the checks that decided it."""

    verdict: Verdict
    excused: Excuse | None = None
    """Where every broken check had an excuse in lab.toml: their reasons, and until when all of them count."""
    checks: tuple[str, ...] = ()
    """``asset.check`` of what broke or was not evaluated."""
    message: str = ""
    """The sentence of the first of them."""

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.value,
            "excused": None if self.excused is None else self.excused.to_json(),
            "checks": list(self.checks),
            "message": self.message,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ClaimVerdict:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError on something else.

        Records of an older version say only that something was excused. Without a day until when, it does not count.
        """
        excuse = data.get("excused")
        return cls(
            Verdict(data["verdict"]),
            None if excuse is None or isinstance(excuse, bool) else _excuse(excuse),
            tuple(data.get("checks", ())),
            str(data.get("message", "")),
        )


def _excuse(data: Mapping[str, Any]) -> Excuse:
    return Excuse(str(data["reason"]), date.fromisoformat(data["until"]).isoformat())


Subject = int | Literal["values"]
"""What a version set is judged on: a claim, by its number, or the values that the lab sets in its charts."""
VALUES: Literal["values"] = "values"


@dataclass(frozen=True)
class VerdictRecord:
    """The verdicts of one attempt at one version set, on one lane and backend."""

    key: str
    versions: Mapping[str, str]
    lane: Lane
    backend: str
    at: datetime
    """When the attempt was judged; with time zone."""
    run_id: str
    claims: Mapping[int, ClaimVerdict] = field(default_factory=dict)
    boundary: Boundary = Boundary.NOT_EVALUATED
    crossing: str | None = None
    """How the boundary was meant to be crossed; None where it is meant to stand."""
    evidence: str = ""
    """Path of the evidence folder or report, relative to the lab's state folder."""
    infrastructure: str = ""
    """Why nothing could be judged (registry, Docker, network); empty when the lab was judged."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Chart digest by component, where known: the same version with another digest is another content."""
    unexpected_passes: tuple[str, ...] = ()
    """Checks that are excused and held all the same."""
    values: ClaimVerdict | None = None
    """Whether the lab's values have an effect in the charts; beside the claims. None where nobody looked."""

    def verdict_of(self, subject: Subject) -> ClaimVerdict | None:
        """The verdict of a claim, by number, or of the charts' values."""
        return self.values if isinstance(subject, str) else self.claims.get(subject)

    @property
    def judged(self) -> bool:
        """Whether the attempt gave a verdict on anything."""
        verdicts = {found.verdict for found in self.claims.values()}
        return not self.infrastructure and bool(verdicts - {Verdict.NOT_EVALUATED})

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "versions": dict(self.versions),
            "lane": self.lane.value,
            "backend": self.backend,
            "at": self.at.isoformat(),
            "run_id": self.run_id,
            "claims": {str(claim): found.to_json() for claim, found in self.claims.items()},
            "values": None if self.values is None else self.values.to_json(),
            "boundary": self.boundary.value,
            "crossing": self.crossing,
            "evidence": self.evidence,
            "infrastructure": self.infrastructure,
            "digests": dict(self.digests),
            "unexpected_passes": list(self.unexpected_passes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> VerdictRecord:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError on something else."""
        at = parse_time(data["at"])
        if at is None:
            raise ValueError(f"'at' is no RFC 3339 time: {data['at']!r}")
        claims = {int(claim): ClaimVerdict.from_json(found) for claim, found in data["claims"].items()}
        values = data.get("values")
        return cls(
            key=str(data["key"]),
            versions=texts(data["versions"]),
            lane=Lane(data["lane"]),
            backend=str(data["backend"]),
            at=at,
            run_id=str(data["run_id"]),
            claims=claims,
            boundary=Boundary(data.get("boundary", Boundary.NOT_EVALUATED.value)),
            crossing=data.get("crossing"),
            evidence=str(data.get("evidence", "")),
            infrastructure=str(data.get("infrastructure", "")),
            digests=texts(data.get("digests", {})),
            unexpected_passes=tuple(data.get("unexpected_passes", ())),
            values=None if values is None else ClaimVerdict.from_json(values),
        )


def record_of(
    judgement: Judgement,
    version_set: VersionSet,
    *,
    at: datetime,
    run_id: str,
    crossing: str | None = None,
    evidence: str = "",
    infrastructure: str = "",
    digests: Mapping[str, str] | None = None,
    excuses: Mapping[str, Excuse] | None = None,
    values: Sequence[CheckResult] = (),
) -> VerdictRecord:
    """The record of a judged version set. `excuses` are those of lab.toml, to notice a check that passes anyway.

    `values` are the checks of its charts' values, one per release.
    """
    checks = (*judgement.checks, *values)
    passes = {check.name for check in checks if check.verdict is Verdict.HELD} & set(excuses or ())
    return VerdictRecord(
        key=version_set.key,
        versions=version_set.versions,
        lane=version_set.lane,
        backend=judgement.backend,
        at=at,
        run_id=run_id,
        claims={claim.id: _rolled_up(claim.verdict, claim.checks) for claim in judgement.claims},
        boundary=judgement.boundary,
        crossing=crossing,
        evidence=evidence,
        infrastructure=infrastructure,
        digests=digests or {},
        unexpected_passes=tuple(sorted(passes)),
        values=_rolled_up(worst(check.verdict for check in values), values) if values else None,
    )


def _rolled_up(verdict: Verdict, checks: Sequence[CheckResult]) -> ClaimVerdict:
    deciding = [check for check in checks if check.verdict is verdict]
    if verdict not in (Verdict.BROKEN, Verdict.NOT_EVALUATED) or not deciding:
        return ClaimVerdict(verdict)
    blamed = [check for check in deciding if check.excused is None] or deciding
    names = tuple(check.name for check in deciding)
    return ClaimVerdict(verdict, _together(deciding), names, blamed[0].finding.message)


def _together(checks: Sequence[CheckResult]) -> Excuse | None:
    """One excuse for all that broke; None where something has none."""
    excuses = [check.excused for check in checks if check.excused is not None]
    if len(excuses) < len(checks):
        return None
    reasons = "; ".join(dict.fromkeys(excuse.reason for excuse in excuses))
    return Excuse(reasons, min(excuse.until for excuse in excuses))
