"""A run whose steps have a process each holds the lab from its first step to its end, or to its death."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.commands.common import prepare_dagster_home
from kai_lab_pipeline.lab.errors import WrongUse
from kai_lab_pipeline.workbench.state import WriteLock
from kai_lab_pipeline_tests import waiting_job
from kai_lab_pipeline_tests.lab_project import LabProject, make_project
from kai_lab_pipeline_tests.soak.kills import left_running
from kai_lab_pipeline_tests.waiting_job import ALIVE, FOLDER, GO_ON

PATIENCE_S = 100.0


class Waiting:
    """The run with a process per step, in a step that waits."""

    def __init__(self, made: LabProject) -> None:
        self.made = made
        os.mkfifo(made.folder / ALIVE)
        os.mkfifo(made.folder / GO_ON)
        self._alive = self._open()
        self.process = self.start()

    def _open(self) -> int:
        return os.open(self.made.folder / ALIVE, os.O_RDONLY | os.O_NONBLOCK)

    def start(self) -> subprocess.Popen[str]:
        """One more process of this run's kind."""
        home = str(self.made.settings.dagster_home)
        return subprocess.Popen(
            [sys.executable, "-c", f"import sys; from {waiting_job.__name__} import main; sys.exit(main())"],
            env=self.made.environment(DAGSTER_HOME=home, **{FOLDER: str(self.made.folder)}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def read(self) -> bytes:
        """What a step has written, empty once its process is gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._alive, selectors.EVENT_READ)
            assert selector.select(PATIENCE_S), "nothing happened on the FIFO"
        return os.read(self._alive, 100)

    def read_next(self) -> bytes:
        """What the next step has written; the one before it has closed its end."""
        until = time.monotonic() + PATIENCE_S
        while not (found := self.read()):
            assert time.monotonic() < until, "the next step did not begin"
            os.close(self._alive)
            self._alive = self._open()
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self._alive)


def with_home(folder: Path) -> LabProject:
    made = make_project(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", "")
        prepare_dagster_home(made.settings)
    return made


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    run = Waiting(with_home(tmp_path / "project"))
    try:
        yield run
    finally:
        run.end()


def test_the_runs_own_process_holds_the_lab_and_its_death_frees_it(waiting: Waiting) -> None:
    assert waiting.read() == b"beside", "no step's process holds the lab now"
    lock = WriteLock(waiting.made.lab_dir)
    holder = lock.holder()
    assert holder is not None
    assert holder["pid"] == waiting.process.pid
    assert holder["purpose"] == f"run {holder['owner'][:8]} of waiting"
    with pytest.raises(WrongUse, match=f"pid {waiting.process.pid}"):
        lock.acquire("another", "a test")
    second = waiting.start()
    said, _ = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 1
    assert "Another writer is at work on this lab" in said
    assert f"of waiting since {holder['since']}, pid {waiting.process.pid}" in said
    with open(waiting.made.folder / GO_ON, "w") as go_on:
        go_on.write("go on")
    assert waiting.read_next() == b"within", "a step of the same run enters under it"
    assert lock.holder() == holder
    waiting.process.send_signal(signal.SIGKILL)
    waiting.process.wait(PATIENCE_S)
    assert waiting.read() == b"", "the step's process is gone as well"
    lock.acquire("another", "a test")
    lock.release()
    assert [pid for pid in left_running(waiting.made) if "waiting_job" in _command(pid)] == []


def test_slots_that_killed_runs_kept_hold_nobody_up(tmp_path: Path) -> None:
    made = with_home(tmp_path / "project")
    pool = Group("lab", made.settings).pool
    with dg.DagsterInstance.from_config(str(made.settings.dagster_home)) as instance:
        instance.event_log_storage.set_concurrency_slots(pool, 1)  # a limit that somebody set in the UI
        kept = instance.event_log_storage.claim_concurrency_slot(pool, "killed", "kai_release")
        assert kept.is_claimed
        runs = [dg.DagsterRun("build_lab", run_id=f"killed-{number}") for number in range(5)]
        for run in runs:  # each is killed while its step has what it claimed
            with InstanceConcurrencyContext(instance, run) as steps:
                assert steps.claim(pool, "kai_release")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
