"""Looking for drift on a schedule: the job `drift`, off until somebody turns it on."""

from __future__ import annotations

import dagster as dg

from kai_lab_pipeline.assets.versions import LAB_TAG
from kai_lab_pipeline.settings import load_settings
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.mendable import MENDABLE, as_lab_error
from kai_lab_pipeline.workbench.state import WriteLock

EVERY_15_MINUTES = "*/15 * * * *"


def drift_schedule() -> dg.ScheduleDefinition:
    """Execute all checks against the live cluster every quarter of an hour, where there is a lab that nobody works on.

    The settings are read at each tick: the daemon lives longer than an edit of lab.toml.
    """

    @dg.schedule(
        name="drift_watch",
        job_name="drift",
        cron_schedule=EVERY_15_MINUTES,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Execute all checks against the live cluster and show what was changed there. Off by default.",
    )
    def drift_watch() -> dg.SkipReason | dg.RunRequest:
        try:
            settings = load_settings()
            lab = Lab(settings, "drift-watch", lambda _: None)
            if lab.state.recorded() is None or not lab.backend.cluster_exists():
                return dg.SkipReason(f"Lab {lab.state.name} has no cluster: nothing can drift.")
            holder = WriteLock(lab.state.folder).holder()
        except MENDABLE as error:
            return dg.SkipReason(as_lab_error(error).text())
        if holder is not None:
            return dg.SkipReason(f"Lab {lab.state.name} is at work: {holder.get('purpose')}, pid {holder.get('pid')}.")
        return dg.RunRequest(tags={LAB_TAG: settings.lab.name})

    return drift_watch
