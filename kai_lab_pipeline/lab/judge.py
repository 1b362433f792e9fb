"""From evidence to claims: every check judged, rolled up, and what lies behind a failed gate named as such.

What was captured is judged as it is. A check is blocked by a gate only when its own asset was never observed and a
gate upstream of it is broken: that is why it was not observed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from datetime import date

from kai_lab_pipeline.lab.claims import CHECK_FUNCTIONS
from kai_lab_pipeline.lab.claims.boundary import boundary_of
from kai_lab_pipeline.lab.evidence import Evidence
from kai_lab_pipeline.lab.spec import CHECKS, CLAIMS, UPSTREAM, Expectations
from kai_lab_pipeline.lab.verdict import (
    CheckResult,
    ClaimResult,
    Excuse,
    Finding,
    Judgement,
    Verdict,
    not_evaluated,
    not_reachable,
    worst,
)

__all__ = ["PINNED_GATES", "boundary_of", "expectations_for", "judge", "judge_asset", "upstream_of"]

PINNED_GATES: tuple[str, ...] = tuple(f"{c.asset}.{c.name}" for checks in CHECKS.values() for c in checks if c.gate)
"""Gates of the pinned lab, as ``asset.check``; a candidate version has only ``cluster.node_ready``."""
_OWN_NODES = ("kind", "rehearsal")
"""Backends whose clusters we make, so that exactly the configured nodes must be there."""


def judge(
    evidence: Evidence,
    expectations: Expectations,
    *,
    only: Container[str] | None = None,
    excuses: Mapping[str, Excuse] | None = None,
    today: date | None = None,
    gates: Iterable[str] = PINNED_GATES,
    blocked: Mapping[str, str] | None = None,
) -> Judgement:
    """Judge all claims.

    `only` restricts to selected ``asset.check`` names and lists only claims that have some of them; `excuses` by
    ``asset.check`` mark a broken check as expected up to and including their date (without `today` they all count).
    `blocked` names the gate that kept an asset from being tried, as it was seen then.
    """
    excuses = excuses or {}
    findings = {name: _finding(name, evidence, expectations) for name in CHECK_FUNCTIONS if _in(name, only)}
    shut = tuple(gate for gate in gates if gate not in excuses or not excuses[gate].counts(today))
    behind = _Gates(evidence, expectations, shut, findings, blocked or {})
    claims, notes = [], list(evidence.notes)
    for claim in CLAIMS:
        results = tuple(
            _result(name, behind.explain(name, findings[name]), excuses.get(name), today)
            for name in claim.checks
            if name in findings
        )
        if results:
            claims.append(ClaimResult(claim.id, claim.statement, worst(r.verdict for r in results), results))
    for name, excuse in excuses.items():
        if name in findings and findings[name].verdict is Verdict.HELD:
            notes.append(f"{name} holds although it is excused ({excuse.reason}): the excuse can go.")
    return Judgement(
        evidence.backend, evidence.versions, boundary_of(evidence, expectations), tuple(claims), tuple(notes)
    )


def judge_asset(
    evidence: Evidence,
    expectations: Expectations,
    asset: str,
    *,
    only: Container[str] | None = None,
    gates: Iterable[str] = PINNED_GATES,
) -> tuple[CheckResult, ...]:
    """Judge the checks of one asset, in the order in which they are shown; none for an asset without checks."""
    names = [f"{asset}.{check.name}" for check in CHECKS.get(asset, ())]
    findings = {name: _finding(name, evidence, expectations) for name in names if _in(name, only)}
    behind = _Gates(evidence, expectations, tuple(gates), findings, {})
    return tuple(_result(name, behind.explain(name, finding), None, None) for name, finding in findings.items())


_STANDS_WITHOUT_STEP = ("device_plugin.eight_whole_gpus",)
"""Checks of a fact that is there whoever made it: real GPUs are advertised by somebody else's plugin."""


def _finding(name: str, evidence: Evidence, expectations: Expectations) -> Finding:
    """Judge one check; what belongs to a step that makes no sense on this cluster is not reachable there."""
    finding = CHECK_FUNCTIONS[name](evidence, expectations)
    reason = evidence.skipped.get(name.partition(".")[0])
    if reason is None or name in _STANDS_WITHOUT_STEP:
        return finding
    return not_reachable(finding.expected, "skipped here", reason)


def expectations_for(evidence: Evidence, base: Expectations) -> Expectations:
    """What a bundle is judged against: versions, card and crossing as it says itself, the rest from `base`.

    Exactly one node is expected only where we make the cluster ourselves.
    """
    own = (evidence.node,) if evidence.backend in _OWN_NODES and evidence.node else None
    expect = replace(
        base,
        versions={**base.versions, **evidence.versions},
        crossing=evidence.crossing,
        node_names=base.node_names if own is not None and base.node_names and own[0] in base.node_names else own,
    )
    count, memory, product = (evidence.profile.get(key) for key in ("gpu_count", "gpu_memory_mib", "gpu_product"))
    if isinstance(count, int):
        expect = replace(expect, gpu_count=count)
    if isinstance(memory, int):
        expect = replace(expect, gpu_memory_mib=memory)
    if isinstance(product, str):
        expect = replace(expect, gpu_product=product)
    return expect


def upstream_of(asset: str) -> frozenset[str]:
    """All assets that `asset` needs, directly or through others."""
    found: set[str] = set()
    waiting = list(UPSTREAM.get(asset, ()))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(UPSTREAM.get(name, ()))
    return frozenset(found)


class _Gates:
    """Tells of a check that was not captured which broken gate is the reason."""

    def __init__(
        self,
        evidence: Evidence,
        expect: Expectations,
        gates: tuple[str, ...],
        findings: Mapping[str, Finding],
        blocked: Mapping[str, str],
    ) -> None:
        self._evidence = evidence
        self._expect = expect
        self._gates = gates
        self._blocked = blocked
        self._verdicts = {name: finding.verdict for name, finding in findings.items()}

    def explain(self, name: str, finding: Finding) -> Finding:
        asset = name.partition(".")[0]
        if asset in self._evidence.observations or finding.verdict is not Verdict.NOT_EVALUATED:
            return finding
        gate = self._blocked.get(asset) or self._red_gate(asset)
        if gate is None:
            return finding
        return not_evaluated(finding.expected, f"blocked by {gate}", observed=f"blocked by {gate}")

    def _red_gate(self, asset: str) -> str | None:
        upstream = upstream_of(asset)
        behind = (gate for gate in self._gates if gate.partition(".")[0] in upstream)
        return next((gate for gate in behind if self._verdict(gate) is Verdict.BROKEN), None)

    def _verdict(self, gate: str) -> Verdict:
        if gate not in self._verdicts:
            self._verdicts[gate] = CHECK_FUNCTIONS[gate](self._evidence, self._expect).verdict
        return self._verdicts[gate]


def _in(name: str, only: Container[str] | None) -> bool:
    return only is None or name in only


def _result(name: str, finding: Finding, excuse: Excuse | None, today: date | None) -> CheckResult:
    asset, _, check = name.partition(".")
    counts = excuse is not None and finding.verdict is Verdict.BROKEN and excuse.counts(today)
    return CheckResult(asset, check, finding, excuse if counts else None)
