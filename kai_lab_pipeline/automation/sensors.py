"""Sensors of the pinned lab."""

import dagster as dg

from kai_lab_pipeline.assets.versions import LAB_TAG
from kai_lab_pipeline.lab.spec import ASSETS
from kai_lab_pipeline.settings import Settings, load_settings
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.mendable import MENDABLE, as_lab_error
from kai_lab_pipeline.workbench.reporting import report_lab

BUILD_JOB = "build_lab"
AD_HOC_JOB = "__ASSET_JOB"
"""What Dagster calls the job behind a selection of assets in the UI."""


@dg.run_failure_sensor(
    name="report_of_a_red_run",
    description="A run of the pinned lab that ends red still leaves its report, made from the evidence there is.",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=5,
)
def report_of_a_red_run(context: dg.RunFailureSensorContext) -> dg.SkipReason | None:
    run = context.dagster_run
    try:
        settings = load_settings()
        if not of_pinned_lab(run, settings):
            return dg.SkipReason(f"run {run.run_id[:8]} built nothing of the pinned lab {settings.lab.name}")
        lab = Lab(settings, run.run_id, context.log.info)
        if (lab.state.reports / run.run_id).is_dir():
            return dg.SkipReason(f"run {run.run_id[:8]} has its report")
        reported = report_lab(lab, notes=[f"Run {run.run_id[:8]} ended red: {context.failure_event.message}"])
    except MENDABLE as error:
        return dg.SkipReason(as_lab_error(error).text())
    context.instance.report_engine_event(f"The report of this red run: {reported.files.html}", run)
    return None


def of_pinned_lab(run: dg.DagsterRun, settings: Settings) -> bool:
    """Whether a run built something of the pinned lab: by its job, or by a selection in the UI.

    A candidate's run leaves a report of its own, and one of another lab is none of this one's.
    """
    if run.tags.get(LAB_TAG, settings.lab.name) != settings.lab.name:
        return False
    if run.job_name == BUILD_JOB:
        return True
    ours = {dg.AssetKey([name]) for name in ASSETS}
    return run.job_name == AD_HOC_JOB and not ours.isdisjoint(run.asset_selection or ())
