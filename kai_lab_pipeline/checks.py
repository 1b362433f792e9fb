"""Every expected output of the lab as an asset check.

What is expected, and how evidence is judged, stands in `lab.claims`; here the verdicts meet Dagster. In the run that
made an asset, its checks judge what that run saw; executed alone they look at the live cluster.
"""

from collections.abc import Iterator

import dagster as dg

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.step import LabResource, failure, lab_of, passes
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.lab.spec import CHECKS, CLAIMS
from kai_lab_pipeline.lab.verdict import CheckResult, Verdict
from kai_lab_pipeline.workbench.lab import Lab

ALONE_PATIENCE_S = 15.0
"""How long a check that is executed alone waits for a finding that can still turn, in seconds of a real cluster."""


def lab_checks(group: Group) -> list[dg.AssetChecksDefinition]:
    """One multi-asset-check per asset, so that each expectation can also be executed alone."""
    return [*(_checks_of(group, asset) for asset in CHECKS), _report_check(group)]


def _checks_of(group: Group, asset: str) -> dg.AssetChecksDefinition:
    specs = [
        dg.AssetCheckSpec(
            check.name,
            asset=group.key(asset),
            description=check.description,
            blocking=f"{asset}.{check.name}" in group.gates,
            partitions_def=group.partitions,
        )
        for check in CHECKS[asset]
    ]

    @dg.multi_asset_check(name=f"{group.name}_{asset}_checks", specs=specs, can_subset=True, pool=f"lab-{group.name}")
    def checks(context: dg.AssetCheckExecutionContext, lab: LabResource) -> Iterator[dg.AssetCheckResult]:
        wanted = frozenset(key.name for key in context.selected_asset_check_keys)
        try:
            opened = lab_of(context, lab, group)
            opened.hold(f"checking {asset} in run {context.run.run_id[:8]}")
            results, source = _judge(opened, asset, wanted)
        except LabError as error:
            raise failure(error) from None
        for result in results:
            if result.check in wanted:
                yield _shown(group, opened, result, source)

    return checks


def _report_check(group: Group) -> dg.AssetChecksDefinition:
    key = group.key("boundary_report")

    @dg.asset_check(
        asset=key,
        name="every_claim_judged",
        description="All eight claims have a verdict that rests on evidence.",
        partitions_def=group.partitions,
        pool=f"lab-{group.name}",
    )
    def every_claim_judged(context: dg.AssetCheckExecutionContext, lab: LabResource) -> dg.AssetCheckResult:
        opened = lab_of(context, lab, group)
        try:
            judgement = opened.judge(opened.newest_evidence())
        except LabError as error:
            raise failure(error) from None
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

    return every_claim_judged


def _judge(lab: Lab, asset: str, wanted: frozenset[str]) -> tuple[tuple[CheckResult, ...], str]:
    seen = lab.seen_in_this_run(asset)
    if seen is not None:
        return lab.judge_asset(asset, seen), "what this run saw when it made the asset"
    patience_s = max(ALONE_PATIENCE_S * lab.backend.time_scale, 2.0)
    settled = lab.look(asset, deadline_s=min(patience_s, lab.settings.deadline_s(asset)), only=wanted)
    return settled.results, "the live cluster"


def _shown(group: Group, lab: Lab, result: CheckResult, source: str) -> dg.AssetCheckResult:
    finding = result.finding
    description = finding.message
    if result.verdict is Verdict.NOT_REACHABLE:
        description = f"not reachable on this backend: {finding.message}"
    elif result.verdict is not Verdict.HELD:
        description = f"{result.verdict}: expected {finding.expected}; observed {finding.observed}. {finding.message}"
    excused = result.excused is not None
    if result.excused is not None:
        description += f" (excused until {result.excused.until}: {result.excused.reason})"
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
            "backend": lab.backend.name,
            "judged from": source,
            "evidence": dg.MetadataValue.path(str(lab.bundle_dir / result.asset)),
        },
    )
