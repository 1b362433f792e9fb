"""A night whose process is killed: neither Dagster nor the next night takes it for one that still goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import dagster as dg
import pytest

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.automation.after_candidate import after_candidate_sensor
from kai_lab_pipeline.automation.nightly import at_work, candidate_job, matrix_job, nightly_schedule
from kai_lab_pipeline.automation.unfinished import PROCESS_TAG
from kai_lab_pipeline.rehearsal.state import process_start
from kai_lab_pipeline.workbench.state import WriteLock, now
from kai_lab_pipeline_tests.api_suite.support import until
from kai_lab_pipeline_tests.lab_project import LabProject, processes_in, project
from kai_lab_pipeline_tests.soak.kills import history

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("nightly-killed")]
PATIENCE_S = 240.0
"""Longest wait for the night to be at work, seconds: a machine that does much else at the same time."""


def killed_at_work(made: LabProject) -> str:
    """`kai-lab nightly`, killed while it builds its first version set; returns that set's key."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kai_lab_pipeline.cli", "nightly"],
        cwd=made.folder,
        env=made.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        labs = made.settings.state_root

        def busy() -> str:
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"the night ended before it was killed: exit code {process.wait(0.1)}")
            servers = [path.parents[1] for path in labs.glob("*/rehearsal/server.json")]
            return next((lab.name for lab in servers if WriteLock(lab).holder() is not None), "")

        return until(busy, "no version set is being built", PATIENCE_S)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


def test_a_killed_night_is_closed_tried_again_and_cleaned_up(tmp_path: Path) -> None:
    with project(tmp_path / "project", KAI_LAB_PATIENCE_S="30") as made:
        made.edit("lab.toml", "cap = 12", "cap = 1")
        key = killed_at_work(made)
        assert set(history(made).values()) == {"STARTED"}, "a kill leaves no time to tell"
        with dg.DagsterInstance.from_config(str(made.folder / ".dagster_home")) as instance:
            assert at_work(instance) == {key}
            candidate = candidate_job(Group("candidate", made.settings, ("candidate",)))
            schedule = nightly_schedule(made.settings, candidate)
            asked = schedule(dg.build_schedule_context(instance=instance, scheduled_execution_time=now()))
            assert isinstance(asked, list)
            assert [request.partition_key for request in asked] == [key], "the same version set is tried again"
            assert set(history(made).values()) == {"FAILURE"}
            sensor = after_candidate_sensor(made.settings, candidate, matrix_job())
            after = sensor(dg.build_sensor_context(instance=instance))
            assert isinstance(after, dg.SensorResult)
            assert after.run_requests
        assert not (made.settings.state_root / key / "rehearsal" / "server.json").exists(), "its cluster is gone"
        said = made.run("down", "--all")
        assert said.code == 0, said.text
        nights = made.settings.state_root / "_nightly"
        for path in sorted(nights.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        nights.rmdir()
        made.settings.state_root.rmdir()
    assert processes_in(tmp_path) == []


def test_commands_that_start_runs_close_what_was_killed_before(tmp_path: Path) -> None:
    with project(tmp_path / "project", KAI_LAB_PATIENCE_S="30") as made:
        assert made.run("run", "--select", "cluster").code == 0
        with (
            subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process,
            dg.DagsterInstance.from_config(str(made.folder / ".dagster_home")) as instance,
        ):
            tags = {PROCESS_TAG: f"{process.pid} {process_start(process.pid)}"}
            run = dg.DagsterRun(job_name="check", status=dg.DagsterRunStatus.STARTED, tags=tags)
            instance.add_run(run)
            process.kill()
            process.wait(60)
        said = made.run("check", "cluster")
        assert said.code == 0, said.text
        assert f"Run {run.run_id[:8]} was killed before it ended." in said.out
        assert history(made)[run.run_id] == "FAILURE"
        with dg.DagsterInstance.from_config(str(made.folder / ".dagster_home")) as instance:
            checks = instance.get_runs(dg.RunsFilter(job_name="check", statuses=[dg.DagsterRunStatus.SUCCESS]))
        assert [PROCESS_TAG in found.tags for found in checks] == [True], "a check that is killed can be closed as well"
