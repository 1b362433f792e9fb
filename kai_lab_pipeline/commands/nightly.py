"""`kai-lab nightly`: look for new versions, build and judge a lab for each, clean up, and say what changed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kai_lab_pipeline.automation.unfinished import PROCESS_TAG, process_tag
from kai_lab_pipeline.commands.common import console, instance_for_runs, settings_with, told, told_lines
from kai_lab_pipeline.commands.follow import is_interrupt
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.lab.morning import Summary, alarm
from kai_lab_pipeline.lab.version_matrix import Matrix
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.adding import add_version_set
from kai_lab_pipeline.workbench.candidates import clean_up_candidate, own_cluster, write_matrix_now
from kai_lab_pipeline.workbench.nights import Nights, StoredSet
from kai_lab_pipeline.workbench.state import WriteLock, now

if TYPE_CHECKING:
    import dagster as dg


def nightly_command(*, add: Sequence[str], chart: Sequence[str], image: Sequence[str] = (), as_json: bool) -> int:
    """Run a night now; returns the exit code. Raises LabError, SettingsError.

    0: nothing new, or all that is new holds. 1: a claim broke with some version. 3: a registry could not be asked, or
    something could not be judged; the same version sets are tried the next time.
    """
    from kai_lab_pipeline.automation.nightly import check_cron

    settings = settings_with({})
    check_cron(settings)
    own_cluster(settings)
    nights = Nights(settings)
    nights.folder.mkdir(parents=True, exist_ok=True)
    lock = WriteLock(nights.folder)
    lock.acquire(uuid.uuid4().hex, "a nightly")
    try:
        return _night(settings, nights, _added(settings, add, chart, image), as_json=as_json)
    finally:
        lock.release()


def _night(settings: Settings, nights: Nights, added: Sequence[StoredSet], *, as_json: bool) -> int:
    from kai_lab_pipeline.assets.matrix import next_night, on_since
    from kai_lab_pipeline.automation.nightly import at_work
    from kai_lab_pipeline.automation.partitions import begin_night, look, not_looked, retire

    out = console(stderr=as_json)
    found = look(settings, nights)
    for component, lookup in found.items():
        out.print(f"{component} {told(lookup.pinned)}: {told(lookup.sentence)}")
    for stored in added:
        out.print(f"added {stored.version_set.key}: {stored.version_set.description}", markup=False)
    with instance_for_runs(settings) as (instance, killed):
        for run in killed:
            _tell_killed(settings, nights, run, out)
        busy = at_work(instance)
        for key in sorted(busy):
            out.print(f"{key}: a run that Dagster shows is at work on it", markup=False)
        for sentence in retire(instance, settings, nights, busy | {stored.version_set.key for stored in added}):
            out.print(sentence, markup=False)
        late = alarm(now(), nights.last_nightly(), next_night(instance, settings), on_since(instance))
        if late:
            out.print(f"ALARM: {late}", markup=False)
        night = begin_night(settings, nights, busy, not_looked(found))
        if night.said_of_waiting:
            out.print(night.said_of_waiting, markup=False)
        matrix, summary = _run_all(settings, nights, instance, night.keys, out)
    _say(settings, nights, matrix, summary, out, as_json=as_json)
    return summary.exit_code()


def _tell_killed(settings: Settings, nights: Nights, run: dg.DagsterRun, out: Any) -> None:
    """A killed night left a cluster, perhaps of a version set that is not due any more."""
    out.print(f"Run {run.run_id[:8]} was killed before it ended.")
    key = run.tags.get("dagster/partition")
    if key in nights.sets():
        _clean_up(settings, nights.load(key), out, judged=False)


def _run_all(
    settings: Settings, nights: Nights, instance: dg.DagsterInstance, keys: Sequence[str], out: Any
) -> tuple[Matrix, Summary]:
    from kai_lab_pipeline.assets.matrix import next_night, on_since
    from kai_lab_pipeline.automation.partitions import to_confirm

    if keys:
        instance.add_dynamic_partitions("version_sets", list(keys))
    for number, key in enumerate(keys, 1):
        out.print(f"[{number}/{len(keys)}] {key}: {nights.load(key).version_set.description}", markup=False)
        _run_one(settings, nights, instance, key, out)
    for found in to_confirm(settings, nights, keys):
        out.print(f"{told(found.version_set.key)}: {told(found.sentence)}")
        _run_one(settings, nights, instance, found.version_set.key, out)
    _materialise_matrix(instance, out)
    matrix, summary, _ = write_matrix_now(settings, next_at=next_night(instance, settings), on_since=on_since(instance))
    return matrix, summary


def candidate_lab_job() -> Any:
    """The job `candidate_lab`, for Dagster to build again in each process of a run."""
    from kai_lab_pipeline.definitions import defs

    return defs.resolve_job_def("candidate_lab")


def _run_one(settings: Settings, nights: Nights, instance: dg.DagsterInstance, key: str, out: Any) -> None:
    import dagster as dg

    stored = nights.load(key)
    before = len(nights.records())
    judged = False
    try:
        result = dg.execute_job(
            dg.reconstructable(candidate_lab_job),
            instance=instance,
            tags={"dagster/partition": key, "kai_lab/lab": key, PROCESS_TAG: process_tag()},
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            raise_on_error=False,
        )
        run_id, judged = result.run_id, result.success
    finally:
        _clean_up(settings, stored, out, judged=judged)
    if any(event.is_step_failure and is_interrupt(event.step_failure_data) for event in result.all_events):
        raise KeyboardInterrupt  # Dagster has turned it into a failed step: the night ends, not this one run
    records = nights.records()[before:]
    if not records:
        out.print(f"  no verdict: run {run_id[:8]} ended before its report; it is tried again", markup=False)
        return
    latest = records[-1]
    broken = [str(claim) for claim, found in latest.claims.items() if found.verdict == "broken"]
    said = f"claims {', '.join(broken)} broken" if broken else latest.infrastructure or "every claim held"
    if latest.values is not None and latest.values.verdict == "broken":
        said += f"; {latest.values.message}"
    out.print(f"  {told(said.splitlines()[0])}; boundary {latest.boundary}")


def _clean_up(settings: Settings, stored: StoredSet, out: Any, *, judged: bool) -> None:
    """The cluster of a candidate is gone after its run, however that ended; where that fails, it is told and goes on.

    Where another run is at work on it, its own end takes it away. What a judged one left is there because somebody
    asked to keep it.
    """
    try:
        clean_up_candidate(settings, stored, broken=judged)
    except LabError as error:
        out.print(f"  {told(stored.version_set.key)}: {told_lines(error.text())}")


def _materialise_matrix(instance: dg.DagsterInstance, out: Any) -> None:
    from kai_lab_pipeline.assets.matrix import UNTOLD
    from kai_lab_pipeline.definitions import defs

    result = defs.resolve_job_def("write_matrix").execute_in_process(
        instance=instance,
        raise_on_error=False,
        tags={PROCESS_TAG: process_tag()},
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
    )
    for event in result.get_asset_materialization_events():
        untold = event.step_materialization_data.materialization.metadata.get(UNTOLD)
        if untold is not None:
            out.print(told_lines(str(untold.value)))


def _added(settings: Settings, add: Sequence[str], chart: Sequence[str], image: Sequence[str]) -> list[StoredSet]:
    """A version set that a person names: ``component=version``, and for its chart and image ``component=reference``."""
    versions, charts, images = _pairs(add, "--add"), _pairs(chart, "--chart"), _pairs(image, "--image")
    return add_version_set(settings, versions, charts, images) if versions or charts or images else []


def _pairs(options: Sequence[str], option: str) -> dict[str, str]:
    pairs = {}
    for text in options:
        component, separator, value = text.partition("=")
        if not separator or not value:
            raise WrongUse(f"{option} needs component=value, got {text!r}")
        pairs[component] = value
    return pairs


def _say(settings: Settings, nights: Nights, matrix: Matrix, summary: Summary, out: Any, *, as_json: bool) -> None:
    from kai_lab_pipeline.report.matrix import render_matrix_json

    if as_json:
        print(json.dumps(json.loads(render_matrix_json(matrix, summary)), indent=1))
        return
    out.print(told_lines(summary.text()))
    out.print(f"Matrix: {nights.folder / 'matrix' / 'matrix.html'}", markup=False)
