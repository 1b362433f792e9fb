"""Sensors of the pinned lab."""

import dagster as dg

from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.settings import load_settings
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.reporting import report_lab


@dg.run_failure_sensor(
    name="report_of_a_red_run",
    description="A run that ends red still leaves its report, made from the evidence there is.",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=5,
)
def report_of_a_red_run(context: dg.RunFailureSensorContext) -> dg.SkipReason | None:
    run = context.dagster_run
    lab = Lab(load_settings(), run.run_id, context.log.info)
    if (lab.state.reports / run.run_id).is_dir():
        return dg.SkipReason(f"run {run.run_id[:8]} has its report")
    try:
        reported = report_lab(lab, notes=[f"Run {run.run_id[:8]} ended red: {context.failure_event.message}"])
    except LabError as error:
        return dg.SkipReason(error.text())
    context.instance.report_engine_event(f"The report of this red run: {reported.files.html}", run)
    return None
