"""Dagster's daemon is killed, or there are two of it: the lab has one writer all the same, and no run is lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import dagster as dg
import pytest

from kai_lab_pipeline_tests.lab_project import TEST_S, LabProject, free_port, make_project, processes_in
from kai_lab_pipeline_tests.soak.kills import command_of, history, kept, left_running, marked, whole_run
from kai_lab_pipeline_tests.test_interruption_ui import _launch, _wait_for_step
from kai_lab_pipeline_tests.test_ui import _pause, dev

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(600)]
TIMES = """query($id: ID!) { runOrError(runId: $id) { ... on Run { startTime endTime } } }"""


def test_a_killed_daemon_costs_no_run(tmp_path: Path) -> None:
    """`dagster dev` ends with its daemon; the run's own process goes on to the run's end, and ends with it."""
    made = make_project(tmp_path / "project", KAI_LAB_PATIENCE_S="30")
    try:
        with dev(made) as ui:
            run_id = _launch(ui)
            _wait_for_step(ui, run_id, "cluster")
            (daemon,) = [pid for pid in marked(made.folder) if "dagster._daemon" in command_of(pid)]
            os.kill(daemon, signal.SIGKILL)
            until = time.monotonic() + TEST_S
            while left := left_running(made):
                assert time.monotonic() < until, [command_of(pid) for pid in left]
                _pause()
        assert history(made) == {run_id: "SUCCESS"}
        before = kept(made)
        assert whole_run(made)["counts"]["held"] == 8
        now = kept(made)
        assert {name: now.get(name) for name in before} == before, "evidence and reports of the run before are intact"
    finally:
        made.end()
    assert processes_in(made.folder) == []


def test_two_uis_on_one_project_build_one_lab_one_after_the_other(tmp_path: Path) -> None:
    """A second `kai-lab dev` is refused. Dagster's own command is not, and its daemon shares the queue with the first.

    The two may take both runs from it in one moment: then the lab's own lock refuses the later one.
    """
    made = make_project(tmp_path / "project", KAI_LAB_PATIENCE_S="30")
    try:
        with dev(made) as first, dev(made, plain=True) as second:
            refused = made.run("dev", "--port", str(free_port()))
            assert refused.code == 2, refused.text
            assert "The UI of this project is running already" in refused.err
            assert first.url in refused.err
            runs = [_launch(first), _launch(second)]
            ended = {runs[0]: second.wait_ended(runs[0]), runs[1]: first.wait_ended(runs[1])}
            built = [run for run, status in ended.items() if status == "SUCCESS"]
            for late in set(runs) - set(built):
                (holder,) = built
                assert f"by run {holder[:8]} of build_lab" in _failure(made, late), "it says who holds the lab"
                built.append(_launch(second))
                assert second.wait_ended(built[-1]) == "SUCCESS"
            times = sorted(
                (found["startTime"], found["endTime"])
                for found in (first.ask(TIMES, id=run)["runOrError"] for run in built)
            )
            assert times[0][1] <= times[1][0], "no two runs built the lab at one time"
        assert left_running(made) == []
        rows = made.call("status", "--json").json
        assert {row["sync"] for row in rows["assets"]} == {"in sync"}
        assert rows["writer"] is None
    finally:
        made.end()
    assert processes_in(made.folder) == []


def _failure(made: LabProject, run_id: str) -> str:
    """What the step of a run that failed said."""
    with dg.DagsterInstance.from_config(str(made.folder / ".dagster_home")) as instance:
        records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    failures = [record.event_log_entry.get_dagster_event().step_failure_data.user_failure_data for record in records]
    return "\n".join(str(failure.description) for failure in failures if failure is not None)
