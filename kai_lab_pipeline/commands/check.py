"""`kai-lab check`: execute checks alone against the live cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kai_lab_pipeline.automation.unfinished import PROCESS_TAG, process_tag
from kai_lab_pipeline.commands.claims_table import print_claims
from kai_lab_pipeline.commands.common import console, instance_for_runs, settings_with
from kai_lab_pipeline.lab.errors import WrongUse
from kai_lab_pipeline.lab.spec import CHECKS
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.diagnosing import diagnose_run
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.state import LabState, WriteLock


def check_command(names: Sequence[str], *, as_json: bool) -> int:
    """Execute checks (``asset`` or ``asset.check``; all by default) and print them; returns the exit code."""
    wanted = selected_checks(names)
    settings = settings_with({})
    state = LabState.of(settings)
    state.check_backend()
    WriteLock(state.folder).check_free()
    Lab(settings, "check", lambda _: None).backend.connect()
    state.open()
    lab = _execute(settings, wanted, console(stderr=as_json))
    try:
        assets = list(dict.fromkeys(name.partition(".")[0] for name in wanted))
        seen = lab.of_this_run(lab.newest_evidence(), assets)
        judgement = lab.judge(seen, only=wanted)
        diagnosis = diagnose_run(lab, seen, judgement)
    finally:
        lab.release()
    if as_json:
        print(json.dumps(judgement.to_json(), indent=1))
    else:
        print_claims(console(), judgement, diagnosis)
    return judgement.exit_code()


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


def _execute(settings: Settings, wanted: Sequence[str], out: Any) -> Lab:
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
    return Lab(settings, result.run_id, lambda _: None)
