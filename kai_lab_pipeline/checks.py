"""Every expected output of the lab as an asset check.

What is expected, and how evidence is judged, stands in `lab.claims`; here the verdicts meet Dagster. In the run that
made an asset, its checks judge what that run saw; executed alone they look at the live cluster.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster._utils.warnings import PreviewWarning

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.step import LabResource, diagnosis_metadata, lab_of, passes, told
from kai_lab_pipeline.assets.versions import BACKEND, LAB
from kai_lab_pipeline.backends.doctor import Level, examine
from kai_lab_pipeline.lab.chart_values import values_check
from kai_lab_pipeline.lab.diagnosis import Diagnosis
from kai_lab_pipeline.lab.diagnosis.words import cause_of, in_words
from kai_lab_pipeline.lab.spec import CHECKS, CLAIMS, RELEASED, VALUES_HAVE_EFFECT
from kai_lab_pipeline.lab.verdict import CheckResult, Verdict
from kai_lab_pipeline.report.text import markdown
from kai_lab_pipeline.workbench.chart_comparison import compare_chart, compared, values_result
from kai_lab_pipeline.workbench.diagnosing import diagnose_asset, diagnose_error
from kai_lab_pipeline.workbench.drift import drift_of
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.reporting import evidence_for_report

ALONE_PATIENCE_S = 15.0
"""How long a check that is executed alone waits for a finding that can still turn, in seconds of a real cluster."""
ATTEMPT_PATIENCE_S = 45.0
"""The same of the boundary: what comes after a gap shows within one attempt of the binder (40 s, KAI v0.17.0)."""
LEAST_PATIENCE_S = 2.0
"""Least wait of a check that is executed alone, seconds: on the rehearsal scaled time is shorter than a pause."""
LIVE = "the live cluster"
"""Where a check that is executed alone looks."""
_COMPONENTS = {asset: component for component, asset in RELEASED.items()}


def lab_checks(group: Group) -> list[dg.AssetChecksDefinition]:
    """One multi-asset-check per asset, so that each expectation can also be executed alone."""
    return [_machine_check(group), *(_checks_of(group, asset) for asset in CHECKS), _report_check(group)]


def _checks_of(group: Group, asset: str) -> dg.AssetChecksDefinition:
    component = _COMPONENTS.get(asset) if group.partitions is not None else None
    expectations = [*CHECKS[asset], *([values_check(asset)] if component else [])]
    with _quiet_preview():
        specs = [
            dg.AssetCheckSpec(
                check.name,
                asset=group.key(asset),
                description=check.description,
                blocking=f"{asset}.{check.name}" in group.gates,
                **_partitioned(group),
            )
            for check in expectations
        ]

    @dg.multi_asset_check(name=group.checks_of(asset), specs=specs, can_subset=True, pool=group.pool)
    def checks(context: dg.AssetCheckExecutionContext, lab: LabResource) -> Iterator[dg.AssetCheckResult]:
        wanted = frozenset(key.name for key in context.selected_asset_check_keys)
        with told():
            opened = lab_of(context, lab, group)
            opened.hold(f"checking {asset} in run {context.run.run_id[:8]}")
        with told(lambda error: diagnose_error(opened, error.text())):
            results, source = _judge(opened, asset, wanted)
            if component is not None and VALUES_HAVE_EFFECT in wanted:
                results = (*results, _values(opened, asset, component))
            changes = [drift.text() for drift in drift_of(opened, asset)] if source == LIVE else []
            unwell = not all(passes(result) for result in results if result.check in wanted)
            diagnosis = diagnose_asset(opened, asset) if unwell else Diagnosis()
        if changes:
            said = "Changed on the cluster: " + ". ".join(changes)
            context.log.warning(f"{asset}: {said}")
            context.op_execution_context.log_event(
                dg.AssetObservation(group.key(asset), description=said, partition=_partition(context))
            )
        for result in results:
            if result.check in wanted:
                yield _shown(group, opened, result, source, changes, diagnosis)

    return checks


def _values(lab: Lab, asset: str, component: str) -> CheckResult:
    """As the step compared the charts in this run; executed alone, the check compares them itself."""
    moved = lab.candidate is not None and component in lab.candidate.version_set.moved
    if moved and compared(lab, component) is None and lab.seen_in_this_run(asset) is None:
        compare_chart(lab, component)
    return values_result(lab, component)


def _machine_check(group: Group) -> dg.AssetChecksDefinition:
    def machine(context: dg.AssetCheckExecutionContext, lab: LabResource) -> dg.AssetCheckResult:
        with told():
            settings = lab.settings()
            findings = examine(settings, settings.lab.backend)
        lacking = [finding for finding in findings if finding.level is Level.BLOCKED]
        rows = [
            dg.TableRecord({"what": one.name, "found": one.found, "needed": one.needed, "fix": one.fix})
            for one in findings
        ]
        return dg.AssetCheckResult(
            passed=not lacking,
            severity=dg.AssetCheckSeverity.WARN,
            description="; ".join(f"{one.name}: {one.found}, needed {one.needed}" for one in lacking)
            or "nothing lacks",
            metadata={"findings": dg.MetadataValue.table(rows), "backend": settings.lab.backend},
        )

    with _quiet_preview():
        return dg.asset_check(
            asset=group.key("cluster"),
            name="machine_ready",
            description="What this machine has and lacks for the backend, as kai-lab doctor says it.",
            **_partitioned(group),
        )(machine)


def _report_check(group: Group) -> dg.AssetChecksDefinition:
    key = group.key("boundary_report")

    def judged(context: dg.AssetCheckExecutionContext, lab: LabResource) -> dg.AssetCheckResult:
        with told():
            opened = lab_of(context, lab, group)
            judgement = opened.judge(evidence_for_report(opened))
        unjudged = [str(claim.id) for claim in judgement.claims if claim.verdict is Verdict.NOT_EVALUATED]
        return dg.AssetCheckResult(
            passed=not unjudged and len(judgement.claims) == len(CLAIMS),
            description=f"not judged: {', '.join(unjudged)}" if unjudged else "all eight claims are judged",
            metadata={
                "claims": dg.MetadataValue.table(
                    [
                        dg.TableRecord({"id": claim.id, "claim": claim.statement, "verdict": str(claim.verdict)})
                        for claim in judgement.claims
                    ]
                ),
                "backend": judgement.backend,
            },
        )

    with _quiet_preview():
        return dg.asset_check(
            asset=key,
            name="every_claim_judged",
            description="All eight claims have a verdict that rests on evidence.",
            pool=group.pool,
            **_partitioned(group),
        )(judged)


def _partitioned(group: Group) -> dict[str, Any]:
    return {} if group.partitions is None else {"partitions_def": group.partitions}


@contextmanager
def _quiet_preview() -> Iterator[None]:
    """Dagster 1.13 calls partitioned checks a preview; they are pinned to one minor version and tested here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreviewWarning)
        yield


def _judge(lab: Lab, asset: str, wanted: frozenset[str]) -> tuple[tuple[CheckResult, ...], str]:
    if wanted == {VALUES_HAVE_EFFECT}:
        return (), "the charts"
    seen = lab.seen_in_this_run(asset)
    if seen is not None:
        return lab.judge_asset(asset, seen), "what this run saw when it made the asset"
    deadline_s = min(alone_patience_s(asset, lab.backend.time_scale), lab.settings.deadline_s(asset))
    # All of the asset's checks are waited for: what is kept becomes its newest evidence, by which all are judged later.
    settled = lab.look(asset, deadline_s=deadline_s)
    return settled.results, LIVE


def alone_patience_s(asset: str, time_scale: float) -> float:
    """Seconds that checks of an asset which are executed alone wait for what can still turn.

    Between two reservation pods nothing says how NVML came out, and the next one is known to come.
    """
    real = ATTEMPT_PATIENCE_S if asset == "reservation_boundary" else ALONE_PATIENCE_S
    return max(real * time_scale, LEAST_PATIENCE_S)


def _partition(context: dg.AssetCheckExecutionContext) -> str | None:
    return context.partition_key if context.has_partition_key else None


def _shown(
    group: Group, lab: Lab, result: CheckResult, source: str, changes: Sequence[str], diagnosis: Diagnosis
) -> dg.AssetCheckResult:
    finding = result.finding
    evidence = str(lab.bundle_dir / result.asset)
    cause = None if passes(result) else cause_of(diagnosis, result.name)
    description = finding.message
    if result.verdict is Verdict.NOT_REACHABLE:
        description = f"not reachable on this backend: {finding.message}"
    elif result.verdict is not Verdict.HELD:
        description = f"{result.verdict}: expected {finding.expected}; observed {finding.observed}. {finding.message}"
    if changes and not passes(result):
        description += " Changed on the cluster: " + ". ".join(changes)
    excused = result.excused is not None
    if result.excused is not None:
        description += f" (excused until {result.excused.until}: {result.excused.reason})"
    if not passes(result):
        description = "\n".join([*in_words([cause] if cause else []), description, f"Evidence: {evidence}"])
    # A check's page renders this as Markdown; the description of a failed step is shown as it is.
    description = "  \n".join(map(markdown, description.split("\n")))
    return dg.AssetCheckResult(
        asset_key=group.key(result.asset),
        check_name=result.check,
        passed=passes(result),
        severity=dg.AssetCheckSeverity.WARN if excused else dg.AssetCheckSeverity.ERROR,
        description=description,
        metadata={
            "expected and observed": dg.MetadataValue.table(
                [dg.TableRecord({"expected": finding.expected, "observed": finding.observed})]
            ),
            "verdict": str(result.verdict),
            BACKEND: lab.backend.name,
            LAB: lab.state.name,
            "judged from": source,
            "evidence": dg.MetadataValue.path(evidence),
            **diagnosis_metadata(Diagnosis(causes=(cause,)) if cause else Diagnosis()),
        },
    )
