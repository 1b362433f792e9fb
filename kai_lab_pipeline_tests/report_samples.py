"""Hand-made judgements and evidence for the tests of the report."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from kai_lab_pipeline.lab.evidence import ContainerLog, Evidence, Observation
from kai_lab_pipeline.lab.spec import CLAIMS
from kai_lab_pipeline.lab.verdict import (
    Boundary,
    CheckResult,
    ClaimResult,
    Excuse,
    Finding,
    Judgement,
    Verdict,
    worst,
)
from kai_lab_pipeline.report import Report, ReportContext, build_report

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=timezone.utc)
LIMIT = "shared_gpu_pod.memory_limit_value"
UID = "8106e871"


def judgement(
    verdicts: Mapping[str, Verdict] | None = None,
    *,
    backend: str = "kind",
    boundary: Boundary = Boundary.EXPECTED,
    excuses: Mapping[str, Excuse] | None = None,
    text: str = "",
    only: tuple[str, ...] | None = None,
) -> Judgement:
    """A judgement of the pinned lab: all held but the limit (not reachable), changed by `verdicts` per asset.check.

    `text` is put into every finding; `only` keeps these checks alone, as a partial run does.
    """
    chosen = {LIMIT: Verdict.NOT_REACHABLE, **(verdicts or {})}
    claims = []
    for spec in CLAIMS:
        results = tuple(
            CheckResult(
                *_split(name),
                Finding(
                    chosen.get(name, Verdict.HELD), f"want {name}{text}", f"saw {name}{text}", f"about {name}{text}"
                ),
                (excuses or {}).get(name),
            )
            for name in spec.checks
            if only is None or name in only
        )
        if results:
            claims.append(ClaimResult(spec.id, spec.statement, worst(row.verdict for row in results), results))
    versions = {"kubernetes": "v1.34.0", "kai_scheduler": "v0.17.0"}
    return Judgement(backend, versions, boundary, tuple(claims))


def _split(name: str) -> tuple[str, str]:
    asset, _, check = name.partition(".")
    return asset, check


def shared_pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "gpu-sharing-with-isolation",
            "namespace": "default",
            "uid": UID,
            "annotations": {"runai/shared-gpu-configmap": "gpu-sharing-with-isolation-abc-shared-gpu"},
        },
        "spec": {"runtimeClassName": "nvidia", "nodeName": status.pop("node", None), "containers": []},
        "status": {"phase": "Pending", **status},
    }


def evidence(
    backend: str = "kind", *, pod: dict[str, Any] | None = None, log: str = "", crossing: str | None = None
) -> Evidence:
    """Evidence with the shared pod and one reservation log; everything else was not captured."""
    seen = Observation(
        resources={"pods": (pod or shared_pod(),)},
        logs=(ContainerLog("kai-resource-reservation", "gpu-reservation-1", "resource-reservation", log),),
        run_id="run-0001",
        observed_at=NOW - timedelta(minutes=5),
    )
    return Evidence(backend=backend, crossing=crossing, observations={"reservation_boundary": seen})


def context(**changes: Any) -> ReportContext:
    values: dict[str, Any] = {"generated_at": NOW, "lab": "kai-hami-test", "evidence_folder": "../evidence"}
    return ReportContext(**{**values, **changes})


def report(verdicts: Mapping[str, Verdict] | None = None, **changes: Any) -> Report:
    """A report of `judgement` with evidence of the same backend."""
    made = judgement(verdicts, **changes)
    return build_report(made, evidence(made.backend), context())
