"""The report for programs: the judge's own JSON, with what the report adds under one key."""

from __future__ import annotations

import json
from typing import Any

from kai_lab_pipeline.report.model import CheckRow, Report, Step

FORMAT = 1


def render_json(report: Report) -> str:
    """JSON text whose first line names the backend.

    Top level: exactly the shape of ``kai-lab judge --json`` (``backend``, ``versions``, ``boundary``, ``claims``,
    ``counts``), plus ``report``::

        {"format": 1, "lab", "generated_at": RFC 3339, "simulated": bool, "origin": sentence, "headline",
         "exit_code": 0|1|3, "boundary_sentence", "time_scale": seconds here per second of a real cluster,
         "excused_checks": int, "notes": [sentence],
         "degrees": [{"name", "answer": "yes|no|not reachable|not evaluated", "checks": ["asset.check"], "message"}],
         "checks": {"asset.check": {"evidence": [line], "commands": [command line]}},
         "steps": [{"asset", "captured": bool, "duration_s": number|null, "run_id", "run_url", "observed_at", "age"}],
         "causes": [{"cause", "remedy": [step], "transient": bool, "evidence": [line]}],
         "links": {"dagster_group", "evidence"}}
    """
    document = {**report.judgement.to_json(), "report": _report(report)}
    text = json.dumps(document, indent=2, allow_nan=False, default=str)
    return text.replace("{\n  ", "{ ", 1) + "\n"


def _report(report: Report) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "lab": report.lab,
        "generated_at": report.generated_at.isoformat(),
        "simulated": report.origin.simulated,
        "origin": report.origin.sentence,
        "headline": report.headline,
        "exit_code": report.exit_code,
        "boundary_sentence": report.boundary_sentence,
        "time_scale": report.time_scale,
        "excused_checks": report.excused_checks,
        "notes": list(report.notes),
        "degrees": [
            {
                "name": degree.name,
                "answer": degree.answer.value,
                "checks": list(degree.sources),
                "message": degree.message,
            }
            for degree in report.degrees
        ],
        "checks": {check.name: _check(check) for check in report.checks},
        "steps": [_step(step) for step in report.steps],
        "causes": [
            {
                "cause": cause.cause,
                "remedy": list(cause.remedy),
                "transient": cause.transient,
                "evidence": list(cause.evidence),
            }
            for cause in report.causes
        ],
        "links": {"dagster_group": report.group_url, "evidence": report.evidence_folder},
    }


def _check(check: CheckRow) -> dict[str, list[str]]:
    return {"evidence": list(check.excerpt), "commands": list(check.commands)}


def _step(step: Step) -> dict[str, Any]:
    return {
        "asset": step.asset,
        "captured": step.captured,
        "duration_s": step.duration_s,
        "run_id": step.run_id,
        "run_url": step.run_url,
        "observed_at": step.observed_at.isoformat() if step.observed_at else None,
        "age": step.age,
    }
