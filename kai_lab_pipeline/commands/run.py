"""`kai-lab run`: materialise assets, follow them in the terminal, judge what was seen, leave a report."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kai_lab_pipeline.automation.unfinished import PROCESS_TAG, process_tag
from kai_lab_pipeline.backends import make_backend
from kai_lab_pipeline.commands.claims_table import claims_json, print_causes, print_claims
from kai_lab_pipeline.commands.common import (
    BROKEN,
    INFRASTRUCTURE,
    OK,
    console,
    instance_for_runs,
    settings_with,
)
from kai_lab_pipeline.commands.unsynced import with_unsynced
from kai_lab_pipeline.lab.diagnosis.model import Diagnosis
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.lab.spec import ASSETS, CHECKS
from kai_lab_pipeline.lab.verdict import Judgement
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.apply import check_manifests
from kai_lab_pipeline.workbench.diagnosing import diagnose_run
from kai_lab_pipeline.workbench.lab import Lab, descendants
from kai_lab_pipeline.workbench.reporting import report_lab
from kai_lab_pipeline.workbench.state import LabState, WriteLock, check_writable

BOUNDARY, REPORT = "reservation_boundary", "boundary_report"
INVOCATION_TAG = "kai_lab/invocation"


def run_command(
    *, backend: str | None, scenario: str | None, select: Sequence[str], as_json: bool, report_dir: Path | None
) -> int:
    """Run the lab or some of its assets; returns the exit code. Raises LabError, SettingsError."""
    settings = settings_with({"KAI_LAB_BACKEND": backend, "KAI_LAB_SCENARIO": scenario})
    named = with_unsynced(settings, select)
    if select and not named:
        console(stderr=as_json).print("Everything is in sync with the project: nothing to do.")
        return OK
    assets = selected_assets(named)
    check_manifests(settings, assets)
    state = LabState.of(settings)
    state.check_backend()
    WriteLock(state.folder).check_free()
    make_backend(settings)
    if report_dir is not None:
        _writable(report_dir)
    state.open()
    out = console(stderr=as_json)
    run_id, success, step_error = _execute(settings, assets, out)
    lab = Lab(settings, run_id, lambda _: None)
    try:
        judgement, diagnosis, made = _judged(lab, assets, partial=bool(select))
    finally:
        lab.release()
    if report_dir is not None and made is not None:
        _copy_report(made, report_dir)
    if as_json:
        print(json.dumps(claims_json(judgement, diagnosis), indent=1))
        print_causes(out, diagnosis)
    else:
        print_claims(out, judgement, diagnosis)
    _tell_report(out, lab, made, report_dir)
    return _exit_code(judgement, success=success, step_error=step_error)


def selected_assets(select: Sequence[str]) -> list[str]:
    """Assets named on the command line; ``NAME+`` adds all its descendants, none selects the whole lab."""
    if not select:
        return list(ASSETS)
    chosen: set[str] = set()
    for name in select:
        asset = name.removesuffix("+")
        if asset not in ASSETS:
            raise WrongUse(
                f"No asset of the lab is named {asset!r}",
                next_step=f"Choose from: {', '.join(ASSETS)}; NAME+ adds descendants.",
            )
        chosen.add(asset)
        if name.endswith("+"):
            chosen.update(descendants(asset))
    return [asset for asset in ASSETS if asset in chosen]


def build_lab_job() -> Any:
    """The job `build_lab`, for Dagster to build again in each process of a run."""
    from kai_lab_pipeline.definitions import defs

    return defs.resolve_job_def("build_lab")


def _execute(settings: Settings, assets: Sequence[str], out: Any) -> tuple[str, bool, LabError | None]:
    import dagster as dg

    from kai_lab_pipeline.commands.follow import Follower
    from kai_lab_pipeline.lab.spec import UPSTREAM

    invocation = uuid.uuid4().hex
    pinned = {name for asset in assets for name in UPSTREAM[asset] if "/" in name}
    keys = [dg.AssetKey(name.split("/")) for name in [*sorted(pinned), *assets]]
    whole = len(assets) == len(ASSETS)
    with instance_for_runs(settings) as (instance, killed):
        for run in killed:
            out.print(f"Run {run.run_id[:8]} was killed before it ended; this one goes on from what is there.")
        follower = Follower(instance, {INVOCATION_TAG: invocation}, out, expected=len(assets))
        with follower:
            result = dg.execute_job(
                dg.reconstructable(build_lab_job),
                instance=instance,
                asset_selection=None if whole else keys,
                tags={INVOCATION_TAG: invocation, "kai_lab/lab": settings.lab.name, PROCESS_TAG: process_tag()},
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
                raise_on_error=False,
            )
            run_id, success = result.run_id, result.success
        if follower.interrupted:
            raise KeyboardInterrupt
        return run_id, success, follower.first_error


def _judged(lab: Lab, assets: Sequence[str], *, partial: bool) -> tuple[Judgement, Diagnosis, Path | None]:
    """Judge and diagnose this run's assets; a run that ended before its report gets one from the evidence there is.

    The boundary is told where this run looked at it; the report alone is judged as it was made.
    """
    evidence = lab.newest_evidence()
    if list(assets) == [REPORT]:
        seen, judgement = evidence, lab.judge(evidence)
    else:
        only = [f"{asset}.{check.name}" for asset in assets for check in CHECKS.get(asset, ())]
        seen = lab.of_this_run(evidence, assets)
        judgement = lab.judge(lab.of_this_run(seen, [BOUNDARY]), only=only)
    diagnosis = diagnose_run(lab, seen, judgement)
    made = lab.state.reports / lab.run_id
    if (made / "report.html").is_file():
        return judgement, diagnosis, made
    if partial and REPORT not in assets:
        return judgement, diagnosis, None
    report_lab(lab)
    return judgement, diagnosis, made


def _exit_code(judgement: Judgement, *, success: bool, step_error: LabError | None) -> int:
    code = judgement.exit_code()
    if code == BROKEN:
        return BROKEN
    if step_error is not None:
        return step_error.exit_code
    if not success:
        return INFRASTRUCTURE
    return code if judgement.claims else OK


def _writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder)
    except OSError as error:
        raise WrongUse(
            "The report folder cannot be written", where=str(folder), seen=error.strerror or str(error)
        ) from error


def _copy_report(made: Path, folder: Path) -> None:
    import shutil

    for file in made.iterdir():
        shutil.copyfile(file, folder / file.name)


def _tell_report(out: Any, lab: Lab, made: Path | None, report_dir: Path | None) -> None:
    if made is None:
        return
    folder = report_dir or lab.state.latest_report
    said = f"Report: {folder / 'report.html'} (also report.md, report.json, junit.xml)"
    out.print(said, style="bold", markup=False, soft_wrap=True)
    if any(path.is_file() for path in lab.bundle_dir.rglob("*")):  # the report alone looks at nothing
        out.print(f"Evidence: {lab.bundle_dir}", markup=False, soft_wrap=True)
