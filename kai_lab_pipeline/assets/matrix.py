"""The version matrix: which version broke which claim, over all nights."""

from datetime import datetime, timezone
from typing import Any

import dagster as dg
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    ScheduleInstigatorData,
)
from dagster._utils.schedules import cron_string_iterator

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.step import LabResource, told
from kai_lab_pipeline.report.matrix import render_matrix_markdown
from kai_lab_pipeline.report.text import markdown
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.candidates import write_matrix_now
from kai_lab_pipeline.workbench.nights import Nights
from kai_lab_pipeline.workbench.notices import send_notices
from kai_lab_pipeline.workbench.state import now

SCHEDULE = "nightly"
ZONE = "UTC"
"""Time zone of the schedule's cron."""
UNTOLD = "not told"
"""Metadata: notices that a channel did not take, as sentences; absent where there are none."""


def version_matrix_asset(candidate: Group) -> dg.AssetsDefinition:
    """One asset that fans in the reports of all version sets."""

    @dg.asset(
        group_name=candidate.name,
        deps=[candidate.key("boundary_report")],
        kinds={"markdown"},
        description=(
            "Version sets by claims: what holds since when, the last good and first bad version, and which component's "
            "step broke it, with links to the evidence and the difference of the charts. Made from the durable store "
            "of verdicts, so it outlives clusters, partitions and a lost history. A regression is told once, to the "
            "command and the address that lab.toml names."
        ),
    )
    def version_matrix(context: dg.AssetExecutionContext, lab: LabResource) -> dg.MaterializeResult[Any]:
        with told():
            settings = lab.settings()
            matrix, summary, files = write_matrix_now(
                settings, next_at=next_night(context.instance, settings), on_since=on_since(context.instance)
            )
            notices = send_notices(settings, Nights(settings), matrix)
        for line in notices.failed:
            context.log.warning(line)
        return dg.MaterializeResult(
            metadata={
                "summary": dg.MetadataValue.md("  \n".join(map(markdown, summary.text().split("\n")))),
                "matrix": dg.MetadataValue.md(render_matrix_markdown(matrix, summary)),
                "html": dg.MetadataValue.path(str(files.html)),
                "json": dg.MetadataValue.path(str(files.json)),
                "regressions": len(matrix.regressions()),
                "version_sets": len(matrix.rows),
                "notices": notices.text(),
                **({UNTOLD: "\n".join(notices.failed)} if notices.failed else {}),
            }
        )

    return version_matrix


def next_night(instance: dg.DagsterInstance, settings: Settings) -> datetime | None:
    """When the schedule `nightly` runs next, by its cron; None while it is off."""
    if _turned_on(instance) is None:
        return None
    return next(cron_string_iterator(now().timestamp(), settings.nightly.cron, ZONE))


def on_since(instance: dg.DagsterInstance) -> datetime | None:
    """When the schedule `nightly` was turned on; None while it is off, or where Dagster does not know."""
    state = _turned_on(instance)
    data = state.instigator_data if state is not None else None
    started = data.start_timestamp if isinstance(data, ScheduleInstigatorData) else None
    return None if started is None else datetime.fromtimestamp(started, tz=timezone.utc)


def _turned_on(instance: dg.DagsterInstance) -> InstigatorState | None:
    if instance.schedule_storage is None:
        return None  # an instance without a daemon's storage, in which nothing can be scheduled
    states = instance.all_instigator_state(instigator_type=InstigatorType.SCHEDULE)
    return next((s for s in states if s.instigator_name == SCHEDULE and s.status is InstigatorStatus.RUNNING), None)
