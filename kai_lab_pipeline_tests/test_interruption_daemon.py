"""Dagster's daemon is killed, or there are two of it: the lab has one writer all the same, and no run is lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from kai_lab_pipeline_tests.lab_project import TEST_S, make_project, processes_in
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
    made = make_project(tmp_path / "project", KAI_LAB_PATIENCE_S="30")
    try:
        with dev(made) as first, dev(made) as second:
            runs = [_launch(first), _launch(second)]
            assert [second.wait_ended(runs[0]), first.wait_ended(runs[1])] == ["SUCCESS", "SUCCESS"]
            times = sorted(
                (found["startTime"], found["endTime"])
                for found in (first.ask(TIMES, id=run)["runOrError"] for run in runs)
            )
            assert times[0][1] <= times[1][0], "the second one waited for the first"
        assert left_running(made) == []
        rows = made.call("status", "--json").json
        assert {row["sync"] for row in rows["assets"]} == {"in sync"}
        assert rows["writer"] is None
    finally:
        made.end()
    assert processes_in(made.folder) == []
