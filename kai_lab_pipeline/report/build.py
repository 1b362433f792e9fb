"""From verdicts, evidence and context to the report's values: all wording and all cleaning happens here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime

from kai_lab_pipeline.lab.evidence import Evidence
from kai_lab_pipeline.lab.spec import ASSETS, CHECKS, Expectations
from kai_lab_pipeline.lab.verdict import Boundary, CheckResult, ClaimResult, Excuse, Judgement, Verdict
from kai_lab_pipeline.report.commands import commands
from kai_lab_pipeline.report.context import AssetRun, Cause, ReportContext
from kai_lab_pipeline.report.degrees import degrees
from kai_lab_pipeline.report.excerpts import excerpt
from kai_lab_pipeline.report.model import CauseRow, CheckRow, ClaimRow, Origin, Report, Step, Tone
from kai_lab_pipeline.report.text import one_line

SIDE_LIMIT = 600
"""Characters shown of expected and observed."""
SENTENCE_LIMIT = 1500
"""Characters shown of a message, note or cause."""
NAME_LIMIT = 120

_LABELS: Mapping[Verdict, tuple[str, Tone]] = {
    Verdict.HELD: ("held", Tone.GOOD),
    Verdict.BROKEN: ("broken", Tone.BAD),
    Verdict.NOT_REACHABLE: ("not reachable", Tone.BEYOND),
    Verdict.NOT_EVALUATED: ("not evaluated", Tone.UNKNOWN),
}
_EXCUSED = ("broken, excused", Tone.EXCUSED)

_BOUNDARY_TONES: Mapping[Boundary, Tone] = {
    Boundary.EXPECTED: Tone.GOOD,
    Boundary.CROSSED: Tone.GOOD,
    Boundary.DIFFERENT: Tone.BAD,
    Boundary.NOT_EVALUATED: Tone.UNKNOWN,
}

_ORIGINS: Mapping[str, str] = {
    "kind": "Real components in a kind cluster made for this lab; the GPUs are fake.",
    "context": "Real components in a cluster that was there before this lab.",
    "recorded": "Evidence recorded earlier from real components, judged offline.",
}


def build_report(
    judgement: Judgement,
    evidence: Evidence,
    context: ReportContext,
    expectations: Expectations | None = None,
) -> Report:
    """The report of one lab; pure. `expectations` names the lab's pods and queues (the pinned lab's when None)."""
    lab = expectations or Expectations()
    origin = _origin(judgement, evidence)
    claims = tuple(_claim(claim, evidence, context, lab, origin) for claim in judgement.claims)
    headline, tone = _headline(judgement)
    outcome = _find(judgement, "reservation_boundary.boundary_outcome")
    return Report(
        lab=one_line(context.lab, NAME_LIMIT),
        generated_at=context.generated_at,
        origin=origin,
        headline=headline,
        tone=tone,
        exit_code=judgement.exit_code(),
        boundary=judgement.boundary,
        boundary_tone=_boundary_tone(judgement.boundary, outcome),
        boundary_sentence=_boundary_sentence(judgement.boundary, outcome, evidence),
        counts=judgement.counts(),
        excused_checks=sum(_is_excused(check) for check in judgement.checks),
        claims=claims,
        degrees=degrees(judgement, evidence, lab),
        versions=tuple(
            (one_line(str(name), NAME_LIMIT), one_line(str(version), NAME_LIMIT))
            for name, version in sorted(judgement.versions.items())
        ),
        steps=tuple(_steps(evidence, context)),
        notes=tuple(_notes(judgement, evidence, context)),
        causes=tuple(map(_cause, context.causes)),
        time_scale=evidence.time_scale if math.isfinite(evidence.time_scale) else 1.0,
        group_url=context.group_url,
        evidence_folder=one_line(context.evidence_folder, SIDE_LIMIT) if context.evidence_folder else None,
        judgement=judgement,
    )


def _origin(judgement: Judgement, evidence: Evidence) -> Origin:
    backend = one_line(judgement.backend, NAME_LIMIT) or "unknown"
    if "rehearsal" in (judgement.backend, evidence.backend):
        return Origin(
            backend,
            True,
            f"SIMULATED (backend: {backend})",
            "Made by the rehearsal, a model of the components, and not by the components themselves. "
            "A simulated result never passes for a real one.",
        )
    if backend in _ORIGINS:
        return Origin(backend, False, f"backend: {backend}", _ORIGINS[backend])
    return Origin(
        backend,
        False,
        f"UNKNOWN ORIGIN (backend: {backend})",
        "The evidence does not say how it was made, so this report vouches for nothing about where it comes from.",
    )


def _clean_excuse(excuse: Excuse | None) -> Excuse | None:
    if excuse is None:
        return None
    return Excuse(one_line(excuse.reason, SENTENCE_LIMIT), one_line(excuse.until, NAME_LIMIT))


def _is_excused(check: CheckResult) -> bool:
    return check.verdict is Verdict.BROKEN and check.excused is not None


def _check(
    result: CheckResult, evidence: Evidence, context: ReportContext, lab: Expectations, origin: Origin
) -> CheckRow:
    label, tone = _EXCUSED if _is_excused(result) else _LABELS[result.verdict]
    spec = next((spec for spec in CHECKS.get(result.asset, ()) if spec.name == result.check), None)
    listing = f"{context.evidence_folder or '.'}/{{asset}}/helm.json" if origin.simulated else None
    by_hand = commands(result.name, context.cluster_access, evidence.node, lab, listing)
    return CheckRow(
        asset=one_line(result.asset, NAME_LIMIT),
        check=one_line(result.check, NAME_LIMIT),
        description=spec.description if spec else "",
        verdict=result.verdict,
        label=label,
        tone=tone,
        excused=_clean_excuse(result.excused),
        expected=one_line(result.finding.expected, SIDE_LIMIT),
        observed=one_line(result.finding.observed, SIDE_LIMIT),
        message=one_line(result.finding.message, SENTENCE_LIMIT),
        excerpt=excerpt(result.name, evidence, lab),
        commands=tuple(one_line(line, SENTENCE_LIMIT) for line in by_hand),
    )


def _claim(
    claim: ClaimResult, evidence: Evidence, context: ReportContext, lab: Expectations, origin: Origin
) -> ClaimRow:
    broken = [check for check in claim.checks if check.verdict is Verdict.BROKEN]
    excused = bool(broken) and all(map(_is_excused, broken))
    label, tone = _EXCUSED if excused else _LABELS[claim.verdict]
    checks = tuple(_check(check, evidence, context, lab, origin) for check in claim.checks)
    return ClaimRow(claim.id, one_line(claim.statement, SENTENCE_LIMIT), claim.verdict, label, tone, checks)


def _headline(judgement: Judgement) -> tuple[str, Tone]:
    total = len(judgement.claims)
    counts = judgement.counts()
    code = judgement.exit_code()
    if not total:
        return "No claim was judged", Tone.UNKNOWN
    if code == 1:
        unexcused = sum(
            any(check.verdict is Verdict.BROKEN and check.excused is None for check in claim.checks)
            for claim in judgement.claims
        )
        return f"{unexcused} of {_claims(total)} broken", Tone.BAD
    if code == 3:
        missing = sum(check.verdict is Verdict.NOT_EVALUATED for check in judgement.checks)
        checks = "1 check" if missing == 1 else f"{missing} checks"
        return f"Not fully judged: {counts['held']} of {_claims(total)} held, {checks} not evaluated", Tone.UNKNOWN
    if counts["held"] == total:
        return (f"All {_claims(total)} held" if total > 1 else "The claim held"), Tone.GOOD
    if counts["broken"]:
        return f"{counts['held']} of {_claims(total)} held; what is broken is excused", Tone.EXCUSED
    return f"{counts['held']} of {_claims(total)} held; the rest is not reachable on this backend", Tone.GOOD


def _claims(count: int) -> str:
    return f"{count} claim" if count == 1 else f"{count} claims"


def _find(judgement: Judgement, name: str) -> CheckResult | None:
    return next((check for check in judgement.checks if check.name == name), None)


def _boundary_tone(boundary: Boundary, outcome: CheckResult | None) -> Tone:
    """The colour of the outcome, unless it is not the outcome this backend must give."""
    if outcome is not None and outcome.verdict is Verdict.BROKEN:
        return _EXCUSED[1] if outcome.excused else Tone.BAD
    return _BOUNDARY_TONES[boundary]


def _boundary_sentence(boundary: Boundary, outcome: CheckResult | None, evidence: Evidence) -> str:
    said = one_line(outcome.finding.message, SENTENCE_LIMIT) if outcome else ""
    if boundary is Boundary.EXPECTED and not evidence.crossing:
        return (
            "The boundary stands, as it must here: KAI scheduled and wired the shared pod, but its reservation pod "
            "cannot load NVML, so no GPU is reserved and the shared pod cannot run."
        )
    if boundary is Boundary.EXPECTED:
        return (
            f"The boundary stands although a crossing was set up ({one_line(evidence.crossing or '', NAME_LIMIT)}): "
            f"the reservation pod still cannot load NVML. {said}".rstrip()
        )
    if boundary is Boundary.CROSSED and evidence.crossing:
        return (
            "The boundary is crossed, as set up: a GPU was reserved, the shared pod is bound and runs with its limit. "
            f"NVML gets into pods through: {one_line(evidence.crossing, SIDE_LIMIT)}."
        )
    if boundary is Boundary.CROSSED:
        return (
            "The boundary is crossed: a GPU was reserved, the shared pod is bound and runs with its limit. "
            "No crossing is named in the evidence: on a mock this means that the boundary moved, good news to look at."
        )
    if boundary is Boundary.DIFFERENT:
        return f"Another failure than the known one: {said or 'see the checks of claim 8.'}"
    return f"The boundary was not judged. {said}".rstrip()


def _steps(evidence: Evidence, context: ReportContext) -> Iterable[Step]:
    known = [*ASSETS, *sorted({*evidence.observations, *context.durations, *context.runs} - set(ASSETS))]
    for asset in known:
        seen = evidence.observations.get(asset)
        run = context.runs.get(asset) or (
            AssetRun(seen.run_id, seen.observed_at or evidence.captured_at) if seen else AssetRun()
        )
        run_id = one_line(run.run_id, NAME_LIMIT) if run.run_id else None
        if seen is None and run_id is None and asset not in context.durations:
            continue
        yield Step(
            asset=one_line(asset, NAME_LIMIT),
            captured=seen is not None,
            duration_s=context.durations.get(asset),
            run_id=run_id,
            run_url=context.run_url(run_id) if run_id else None,
            observed_at=run.observed_at,
            age=_evidence_age(asset, seen is not None, run.observed_at, context.generated_at),
        )


def _evidence_age(asset: str, captured: bool, observed_at: datetime | None, now: datetime) -> str:
    if captured or observed_at is not None:
        return age(observed_at, now)
    return "nothing captured" if CHECKS.get(asset) else "needs no evidence"


def age(then: datetime | None, now: datetime) -> str:
    """How old something is in its two greatest units (``3 d 4 h``); ``unknown`` without a time."""
    if then is None:
        return "unknown"
    seconds = int((now - then).total_seconds())
    if seconds < 0:
        return "in the future"
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def _notes(judgement: Judgement, evidence: Evidence, context: ReportContext) -> Iterable[str]:
    notes = [*context.notes]
    if judgement.backend != evidence.backend:
        notes.append(f"Judged as backend {judgement.backend}, but the evidence says {evidence.backend}.")
    notes += [
        f"{check.name} held although an exception in lab.toml excuses it until {check.excused.until}: "
        "the exception can go."
        for check in judgement.checks
        if check.excused is not None and check.verdict is Verdict.HELD
    ]
    notes += [*judgement.notes, *evidence.notes]
    return dict.fromkeys(one_line(note, SENTENCE_LIMIT) for note in notes if note.strip())


def _cause(cause: Cause) -> CauseRow:
    def lines(texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(one_line(text, SIDE_LIMIT) for text in texts)

    return CauseRow(one_line(cause.cause, SENTENCE_LIMIT), lines(cause.remedy), lines(cause.evidence), cause.transient)
