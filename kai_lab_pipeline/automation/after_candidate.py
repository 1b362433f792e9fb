"""What follows a candidate's run: its cluster is gone, what broke once is run again, the matrix is written anew."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition as AssetJob

from kai_lab_pipeline.automation.executor import PARTITION_TAG
from kai_lab_pipeline.automation.nightly import CANDIDATE_JOB, MATRIX_JOB, run_again
from kai_lab_pipeline.automation.unfinished import close_unfinished
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.settings import Settings, load_settings
from kai_lab_pipeline.workbench.candidates import clean_up_candidate
from kai_lab_pipeline.workbench.mendable import MENDABLE, as_lab_error
from kai_lab_pipeline.workbench.nights import Nights

ENDED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
LOOK_BACK = 100
"""The newest ended runs that a tick looks at: far more than end between two ticks."""
TICK_S = 20.0
"""No removal is begun later in a tick than this, seconds: Dagster gives a tick up after 60."""


@dataclass(frozen=True)
class _Seen:
    """The sensor's cursor: run ids and not times, because clocks jump."""

    done: frozenset[str] = frozenset()
    """Runs whose cluster is gone or was kept as asked."""
    asked: frozenset[str] = frozenset()
    """Runs for which the matrix was asked for."""
    nightly: str = ""
    """When the last nightly began that the matrix was asked for."""
    open: bool = False
    """Whether it could not be told yet what a night has to run again."""

    @classmethod
    def read(cls, cursor: str | None) -> "_Seen":
        found = json.loads(cursor) if cursor else {}
        done, asked = frozenset(found.get("done", ())), frozenset(found.get("asked", ()))
        return cls(done, asked, str(found.get("nightly", "")), bool(found.get("open", False)))

    def text(self) -> str:
        sets = {"done": sorted(self.done), "asked": sorted(self.asked)}
        return json.dumps({**sets, "nightly": self.nightly, "open": self.open})


def after_candidate_sensor(settings: Settings, candidate: AssetJob, matrix: AssetJob) -> dg.SensorDefinition:
    """Looks at every candidate's run until its cluster is gone; what is held or cannot be asked now is left for later.

    A scheduled night's version sets that broke in one attempt are run once more when the others are through. It also
    has the matrix written for a night that had nothing to run, so that the morning's page is of that night.
    """

    @dg.sensor(
        name="after_candidate",
        jobs=[matrix, candidate],
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=5,
        description=(
            "Removes what a candidate's run left, runs once more what broke once in a scheduled night, and writes the "
            "version matrix anew."
        ),
    )
    def after_candidate(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        try:
            return _after(context, load_settings(settings.root))
        except MENDABLE as error:
            return dg.SkipReason(as_lab_error(error).text())

    return after_candidate


def _after(context: dg.SensorEvaluationContext, settings: Settings) -> dg.SensorResult:
    close_unfinished(context.instance)
    nights, seen = Nights(settings), _Seen.read(context.cursor)
    ended = _ended_runs(context.instance, list(nights.sets()))
    known = frozenset(run.run_id for run in ended)
    done, said = _clean_up(settings, nights, [run for run in ended if run.run_id not in seen.done])
    last = nights.last_nightly()
    began = last.started_at.isoformat() if last else ""
    news = [*(run.run_id for run in ended if run.run_id not in seen.asked), *([began] if began != seen.nightly else [])]
    # What is to be run again changes with the verdicts alone, and weighing all of them is too much for each tick.
    again = run_again(context.instance, settings, ended) if news or seen.open else []
    cursor = _Seen((seen.done & known) | done, known, began, open=again is None).text()
    for line in said:
        context.log.info(line)
    requests = [dg.RunRequest(run_key=f"after/{news[0]}", job_name=MATRIX_JOB)] if news else []
    if again:
        requests += again
    if requests:
        return dg.SensorResult(run_requests=requests, cursor=cursor)
    return dg.SensorResult(skip_reason="; ".join(said) or "no candidate's run has ended since", cursor=cursor)


def _ended_runs(instance: dg.DagsterInstance, keys: Sequence[str]) -> list[dg.DagsterRun]:
    """The newest ended runs that built a whole candidate, newest first, from the schedule or from the UI."""
    wanted = dg.RunsFilter(statuses=list(ENDED), tags={PARTITION_TAG: list(keys)})
    return [run for run in instance.get_runs(wanted, limit=LOOK_BACK) if _of_candidate(run)] if keys else []


def _of_candidate(run: dg.DagsterRun) -> bool:
    report = dg.AssetKey(["candidate", "boundary_report"])
    return run.job_name == CANDIDATE_JOB or report in (run.asset_selection or ())


def _clean_up(settings: Settings, nights: Nights, runs: Sequence[dg.DagsterRun]) -> tuple[set[str], list[str]]:
    """Remove what these runs left, each version set once; the ids of those with nothing left, and what is to be said.

    `runs` are newest first: the newest of a version set tells whether its cluster is kept.
    """
    until = time.monotonic() + TICK_S
    done: set[str] = set()
    said: list[str] = []
    by_key: dict[str, list[dg.DagsterRun]] = {}
    for run in runs:
        by_key.setdefault(run.tags[PARTITION_TAG], []).append(run)
    for key, ended in by_key.items():
        if time.monotonic() > until:
            break
        try:
            broken = ended[0].status is dg.DagsterRunStatus.SUCCESS
            told = clean_up_candidate(settings, nights.load(key), broken=broken)
        except LabError as error:
            said.append(f"{key} is left for the next tick: {error.text()}")
            continue
        done.update(run.run_id for run in ended)
        if told:
            said.append(f"{key}: {told}")
    return done, said
