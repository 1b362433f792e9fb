"""The night in Dagster: a sensor that finds version sets, and a schedule that runs them."""

import time
from collections.abc import Iterable
from datetime import timedelta

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition as AssetJob
from dagster._utils.schedules import is_valid_cron_schedule

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.matrix import SCHEDULE, ZONE
from kai_lab_pipeline.assets.versions import LAB_TAG
from kai_lab_pipeline.automation.executor import PARTITION_TAG
from kai_lab_pipeline.automation.partitions import (
    VERSION_SETS,
    begin_night,
    look,
    not_looked,
    retire,
    retired,
    to_confirm,
)
from kai_lab_pipeline.automation.unfinished import close_unfinished
from kai_lab_pipeline.clients.discovery import Lookup
from kai_lab_pipeline.lab.morning import Nightly
from kai_lab_pipeline.settings import SETTINGS_FILE, Settings, SettingsError, load_settings
from kai_lab_pipeline.workbench.candidates import own_cluster
from kai_lab_pipeline.workbench.diagnosing import within
from kai_lab_pipeline.workbench.mendable import MENDABLE, as_lab_error
from kai_lab_pipeline.workbench.nights import Nights
from kai_lab_pipeline.workbench.state import WriteLock

CANDIDATE_JOB = "candidate_lab"
MATRIX_JOB = "write_matrix"
NIGHT_TAG = "kai_lab/night"
"""Tag of a scheduled night's runs: when the night began."""
LOOK_EVERY = timedelta(hours=1)
LOOK_S = 40.0
"""Longest time a tick waits for the registries, seconds: Dagster gives up a tick after 60, and the night with it."""


def candidate_job(candidate: Group) -> AssetJob:
    return dg.define_asset_job(
        CANDIDATE_JOB,
        selection=dg.AssetSelection.groups(candidate.name) - dg.AssetSelection.assets("version_matrix"),
        description="Build, judge and remove the lab of one version set.",
    )


def matrix_job() -> AssetJob:
    return dg.define_asset_job(
        MATRIX_JOB,
        selection=dg.AssetSelection.assets("version_matrix"),
        description="Write the version matrix anew.",
    )


def new_chart_versions_sensor(settings: Settings) -> dg.SensorDefinition:
    """Only adds partitions; its tick says what it found, what it left out and why, and where it could not look."""

    @dg.sensor(
        name="new_chart_versions",
        minimum_interval_seconds=int(LOOK_EVERY.total_seconds()),
        description="Looks for new chart versions and adds a partition per version set worth a lab.",
    )
    def new_chart_versions(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        try:
            fresh = load_settings(settings.root)
            nights = Nights(fresh)
            found, failed = _looked(fresh, nights)
            there = {*context.instance.get_dynamic_partitions(VERSION_SETS.name or ""), *retired(fresh, nights)}
            new = [key for key in nights.sets() if key not in there]
            damages = nights.damages()
        except MENDABLE as error:
            return dg.SkipReason(as_lab_error(error).text())
        looked = [f"{component}: {lookup.sentence}" for component, lookup in found.items()]
        said = "; ".join([*(looked or failed), *damages])
        context.log.info(said)
        reason = f"added {', '.join(new)}. {said}" if new else said
        requests = [VERSION_SETS.build_add_request(new)] if new else []
        return dg.SensorResult(dynamic_partitions_requests=requests, skip_reason=reason, cursor=said[:4000])

    return new_chart_versions


def check_cron(settings: Settings) -> None:
    """Raises SettingsError where Dagster could not run the schedule by `nightly.cron`."""
    if not is_valid_cron_schedule(settings.nightly.cron):
        raise SettingsError(
            f"{settings.root / SETTINGS_FILE}: nightly.cron is {settings.nightly.cron!r}, and that is no time that "
            "ever comes. Write five fields: minute, hour, day of the month, month, day of the week, e.g. '0 2 * * *'."
        )


def nightly_schedule(settings: Settings, job: AssetJob) -> dg.ScheduleDefinition:
    """Off by default. Looks once more, then runs every version set without a verdict: a lost night is tried again.

    Raises SettingsError where its cron cannot be used.
    """
    check_cron(settings)

    @dg.schedule(name=SCHEDULE, job=job, cron_schedule=settings.nightly.cron, execution_timezone=ZONE)
    def nightly(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        try:
            fresh = load_settings(settings.root)
            night = _tonight(context, fresh)
            damages = Nights(fresh).damages()
        except MENDABLE as error:
            return dg.SkipReason(as_lab_error(error).text())
        for sentence in (*night.could_not_look, *damages):
            context.log.warning(sentence)
        if night.said_of_waiting:
            context.log.info(night.said_of_waiting)
        if not night.keys:
            why = "every version set has its verdict, or is being judged now"
            return dg.SkipReason(". ".join((why, *night.could_not_look)))
        known = set(context.instance.get_dynamic_partitions(VERSION_SETS.name or ""))
        missing = [key for key in night.keys if key not in known]
        if missing:
            context.instance.add_dynamic_partitions(VERSION_SETS.name or "", missing)
        at = context.scheduled_execution_time.isoformat()
        tags = {NIGHT_TAG: night.started_at.isoformat()}
        return [
            dg.RunRequest(run_key=f"{at}/{key}", partition_key=key, tags={LAB_TAG: _place(fresh, key), **tags})
            for key in night.keys
        ]

    return nightly


def _place(settings: Settings, key: str) -> str:
    """What only one run at a time may work on: a version set's own cluster, or the context that all of them share."""
    return f"context {settings.nightly.context}" if settings.lab.backend == "context" else key


def run_again(
    instance: dg.DagsterInstance, settings: Settings, ended: Iterable[dg.DagsterRun]
) -> list[dg.RunRequest] | None:
    """Once a scheduled night is through: one more run for each of its version sets that broke in a single attempt.

    `ended` are the newest ended runs of candidates. None while a run of the night goes on, since what another
    version set shows may tell already that it is no chance, nor while `kai-lab nightly` is at work. Each set is asked
    for once a night, by its run key.
    """
    nights = Nights(settings)
    night = nights.last_nightly()
    if night is None:
        return []
    at = night.started_at.isoformat()
    mine = {run.tags[PARTITION_TAG] for run in ended if run.tags.get(NIGHT_TAG) == at}
    if not mine:
        return []
    if WriteLock(nights.folder).holder() is not None or at_work(instance) & set(night.keys):
        return None
    return [
        dg.RunRequest(
            run_key=f"again/{at}/{one.version_set.key}",
            job_name=CANDIDATE_JOB,
            partition_key=one.version_set.key,
            tags={LAB_TAG: _place(settings, one.version_set.key)},
        )
        for one in to_confirm(settings, nights, mine)
    ]


def _tonight(context: dg.ScheduleEvaluationContext, settings: Settings) -> Nightly:
    """The version sets that this night takes on, kept in the store with what could not be looked up.

    Raises WrongUse while `kai-lab nightly` is at work, and where candidates have no cluster of their own.
    """
    own_cluster(settings)
    began, nights = time.monotonic(), Nights(settings)
    if nights.folder.is_dir():
        WriteLock(nights.folder).check_free()  # `kai-lab nightly` is at it: the same versions must not be built twice
    _, failed = _looked(settings, nights)
    close_unfinished(context.instance)
    busy = at_work(context.instance)
    for sentence in retire(context.instance, settings, nights, busy, until=began + LOOK_S):
        context.log.info(sentence)
    return begin_night(settings, nights, busy, failed)


def _looked(settings: Settings, nights: Nights) -> tuple[dict[str, Lookup], tuple[str, ...]]:
    """What there is of new versions, and sentences about what could not be looked up, which costs no night."""

    def ask() -> tuple[dict[str, Lookup], tuple[str, ...]]:
        try:
            found = look(settings, nights)
        except MENDABLE as error:
            return {}, (f"could not look: {' '.join(as_lab_error(error).text().split())}",)
        return found, not_looked(found)

    late = f"could not look: the registries were not asked through within {LOOK_S:g} s"
    return within(LOOK_S, ask) or ({}, (late,))


def at_work(instance: dg.DagsterInstance) -> set[str]:
    """Partitions that a run is still at work on: of an earlier night, or any that was started by hand."""
    unfinished = [
        dg.DagsterRunStatus.QUEUED,
        dg.DagsterRunStatus.NOT_STARTED,
        dg.DagsterRunStatus.STARTING,
        dg.DagsterRunStatus.STARTED,
        dg.DagsterRunStatus.CANCELING,
    ]
    runs = instance.get_runs(dg.RunsFilter(statuses=unfinished))
    return {run.tags[PARTITION_TAG] for run in runs if PARTITION_TAG in run.tags}
