"""The night in Dagster: a sensor that finds version sets, a schedule that runs them, and what follows a run."""

from datetime import timedelta

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition as AssetJob

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.automation.jobs import LAB_TAG
from kai_lab_pipeline.automation.partitions import VERSION_SETS, keep_sets, retired, sets_found, waiting
from kai_lab_pipeline.clients.discovery import look_up
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.lab.morning import Nightly
from kai_lab_pipeline.settings import Settings, load_settings
from kai_lab_pipeline.workbench.candidates import candidate_settings, remove_candidate
from kai_lab_pipeline.workbench.chart_comparison import with_registry
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.nights import Nights
from kai_lab_pipeline.workbench.state import now

PARTITION_TAG = "dagster/partition"
LOOK_EVERY = timedelta(hours=1)


def candidate_job(candidate: Group) -> AssetJob:
    return dg.define_asset_job(
        "candidate_lab",
        selection=dg.AssetSelection.groups(candidate.name) - dg.AssetSelection.assets("version_matrix"),
        description="Build, judge and remove the lab of one version set.",
    )


def matrix_job() -> AssetJob:
    return dg.define_asset_job(
        "write_matrix",
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
    def new_chart_versions(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        fresh = load_settings(settings.root)
        nights = Nights(fresh)
        with with_registry(fresh) as asked:
            found = look_up(asked, with_digests=True)
        sets = sets_found(fresh, found)
        keep_sets(nights, sets)
        known = set(context.instance.get_dynamic_partitions(VERSION_SETS.name or ""))
        new = [stored.version_set.key for stored in sets if stored.version_set.key not in known]
        said = "; ".join(f"{component}: {lookup.sentence}" for component, lookup in found.items())
        context.log.info(said)
        reason = f"added {', '.join(new)}. {said}" if new else said
        requests = [VERSION_SETS.build_add_request(new)] if new else []
        return dg.SensorResult(dynamic_partitions_requests=requests, skip_reason=reason, cursor=said[:4000])

    return new_chart_versions


def nightly_schedule(settings: Settings, job: AssetJob) -> dg.ScheduleDefinition:
    """Off by default. Runs every version set that has no verdict yet, so that a lost night is tried again."""

    @dg.schedule(name="nightly", job=job, cron_schedule=settings.nightly.cron, execution_timezone="UTC")
    def nightly(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        fresh = load_settings(settings.root)
        nights = Nights(fresh)
        at = context.scheduled_execution_time
        nights.schedule_next(at + timedelta(days=1))
        for key in retired(fresh, nights):
            nights.forget(key)
            context.instance.delete_dynamic_partition(VERSION_SETS.name or "", key)
        busy = _at_work(context.instance)
        keys = [found.version_set.key for found in waiting(fresh, nights) if found.version_set.key not in busy]
        nights.add_nightly(Nightly(now(), tuple(keys)))
        if not keys:
            return dg.SkipReason("every version set has its verdict, or is being judged now")
        known = set(context.instance.get_dynamic_partitions(VERSION_SETS.name or ""))
        missing = [key for key in keys if key not in known]
        if missing:
            context.instance.add_dynamic_partitions(VERSION_SETS.name or "", missing)
        return [
            dg.RunRequest(run_key=f"{at.isoformat()}/{key}", partition_key=key, tags={LAB_TAG: key}) for key in keys
        ]

    return nightly


def _at_work(instance: dg.DagsterInstance) -> set[str]:
    """Partitions whose run of an earlier night still goes on."""
    unfinished = [
        dg.DagsterRunStatus.QUEUED,
        dg.DagsterRunStatus.NOT_STARTED,
        dg.DagsterRunStatus.STARTING,
        dg.DagsterRunStatus.STARTED,
        dg.DagsterRunStatus.CANCELING,
    ]
    runs = instance.get_runs(dg.RunsFilter(job_name="candidate_lab", statuses=unfinished))
    return {run.tags[PARTITION_TAG] for run in runs if PARTITION_TAG in run.tags}


def after_candidate_sensors(settings: Settings, matrix: AssetJob) -> list[dg.SensorDefinition]:
    """After each candidate run: its cluster is gone, however the run ended, and the matrix is written anew."""
    ended = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
    return [_after(settings, matrix, status) for status in ended]


def _after(settings: Settings, matrix: AssetJob, status: dg.DagsterRunStatus) -> dg.SensorDefinition:
    @dg.run_status_sensor(
        run_status=status,
        name=f"after_candidate_{status.value.lower()}",
        request_job=matrix,
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=5,
        description="Removes what a candidate's run left, and writes the version matrix anew.",
    )
    def after(context: dg.RunStatusSensorContext) -> dg.RunRequest | dg.SkipReason:
        run = context.dagster_run
        key = run.tags.get(PARTITION_TAG)
        if run.job_name != "candidate_lab" or key is None:
            return dg.SkipReason("not a candidate's run")
        fresh = load_settings(settings.root)
        try:
            stored = Nights(fresh).load(key)
            lab = Lab(candidate_settings(fresh, stored), run.run_id, context.log.info, candidate=stored, project=fresh)
            if lab.state.folder.is_dir() and lab.backend.cluster_exists():
                context.log.info(remove_candidate(lab, broken=status is dg.DagsterRunStatus.SUCCESS))
        except LabError as error:
            context.log.error(error.text())
        return dg.RunRequest(run_key=run.run_id)

    return after
