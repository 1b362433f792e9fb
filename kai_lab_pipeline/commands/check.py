"""`kai-lab check`: execute checks alone against the live cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kai_lab_pipeline.automation.unfinished import PROCESS_TAG, process_tag
from kai_lab_pipeline.commands.claims_table import claims_json, print_claims
from kai_lab_pipeline.commands.common import BROKEN, console, instance_for_runs, settings_with
from kai_lab_pipeline.commands.follow import asset_of, print_failure, step_error
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.lab.spec import CHECKS
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.diagnosing import diagnose_run
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.state import LabState, WriteLock

if TYPE_CHECKING:
    from dagster import DagsterEvent


def check_command(names: Sequence[str], *, as_json: bool) -> int:
    """Execute checks (``asset`` or ``asset.check``; all by default) and print them; returns the exit code."""
    wanted = selected_checks(names)
    settings = settings_with({})
    state = LabState.of(settings)
    state.check_backend()
    WriteLock(state.folder).check_free()
    Lab(settings, "check", lambda _: None).backend.connect()
    state.open()
    out = console(stderr=as_json)
    lab, failed = _execute(settings, wanted, out)
    try:
        assets = list(dict.fromkeys(name.partition(".")[0] for name in wanted))
        seen = lab.of_this_run(lab.newest_evidence(), assets)
        judgement = lab.judge(seen, only=wanted)
        diagnosis = diagnose_run(lab, seen, judgement)
    finally:
        lab.release()
    for name, error in failed[:1]:  # what stopped the others is nearly always the same
        print_failure(out, name, error)
    if as_json:
        print(json.dumps(claims_json(judgement, diagnosis), indent=1))
    else:
        print_claims(out, judgement, diagnosis)
    code = judgement.exit_code()
    return code if code == BROKEN or not failed else failed[0][1].exit_code


def selected_checks(names: Sequence[str]) -> list[str]:
    """Full names (``asset.check``) of what is named. Raises WrongUse for a name that is none."""
    every = [f"{asset}.{check.name}" for asset, checks in CHECKS.items() for check in checks]
    if not names:
        return every
    chosen = {full for name in names for full in every if full == name or full.partition(".")[0] == name}
    unknown = [name for name in names if not any(full == name or full.partition(".")[0] == name for full in every)]
    if unknown:
        raise WrongUse(
            f"No asset or check is named {unknown[0]!r}", next_step=f"Choose from: {', '.join(CHECKS)}, or asset.check."
        )
    return [full for full in every if full in chosen]


def _execute(settings: Settings, wanted: Sequence[str], out: Any) -> tuple[Lab, list[tuple[str, LabError]]]:
    """Execute the checks; the lab they were executed on, and the steps that could not be done with their errors."""
    import dagster as dg

    from kai_lab_pipeline.definitions import build_definitions

    keys = [dg.AssetCheckKey(dg.AssetKey([a]), c) for a, _, c in (name.partition(".") for name in wanted)]
    job = dg.define_asset_job("check", selection=dg.AssetSelection.checks(*keys))
    definitions = dg.Definitions.merge(build_definitions(settings), dg.Definitions(jobs=[job]))
    with instance_for_runs(settings) as (instance, killed):
        for run in killed:
            out.print(f"Run {run.run_id[:8]} was killed before it ended.")
        result = definitions.resolve_job_def("check").execute_in_process(
            instance=instance,
            raise_on_error=False,
            tags={"kai_lab/lab": settings.lab.name, PROCESS_TAG: process_tag()},
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )
    failures = [(asset_of(str(event.step_key)), event) for event in result.all_events if event.is_step_failure]
    failed = [(name, step_error(name, event.step_failure_data)) for name, event in failures if not _is_gate(event)]
    return Lab(settings, result.run_id, lambda _: None), failed


def _is_gate(event: DagsterEvent) -> bool:
    """Whether a step failed because a blocking check did: a result, which its own line tells."""
    error = event.step_failure_data.error
    return error is not None and error.cls_name == "DagsterAssetCheckFailedError"
