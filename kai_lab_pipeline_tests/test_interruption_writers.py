"""One writer per lab, with real processes: who comes second is told who holds it, a crash frees it, labs are apart."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sqlite3
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from kai_lab_pipeline.lab.spec import ASSETS
from kai_lab_pipeline_tests.lab_project import LabProject, project
from kai_lab_pipeline_tests.living_lab import LivingLab
from kai_lab_pipeline_tests.rehearsal_lab import NODE
from kai_lab_pipeline_tests.soak.kills import Run, history, history_is_being_written

pytestmark = [pytest.mark.xdist_group("writers"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProject]:
    with project(tmp_path_factory.mktemp("writers"), KAI_LAB_PATIENCE_S="30") as found:
        yield found


@pytest.fixture(scope="module")
def holder(made: LabProject) -> Iterator[Run]:
    """A run that has begun and is halted there, so that it holds the lab for as long as the tests look."""
    with _halted(made) as run:
        yield run


@contextlib.contextmanager
def _halted(made: LabProject) -> Iterator[Run]:
    run = Run(made)
    try:
        for steps in itertools.count(1):
            run.wait_steps(steps)
            run.halt()
            if not history_is_being_written(made):  # halted there, it would keep all labs from their common history
                break
            run.process.send_signal(signal.SIGCONT)
        yield run
    finally:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGKILL)
        run.end()


@pytest.mark.parametrize("command", ["down", "check cluster", "run --select cluster"])
def test_a_second_writer_is_refused_and_told_who_holds_the_lab(made: LabProject, holder: Run, command: str) -> None:
    said = made.run(*command.split())
    assert said.code == 2, said.text
    assert "Another writer is at work on this lab" in said.text
    assert f"pid {holder.process.pid}" in said.text
    assert "kai-lab status" in said.text
    assert made.server() is not None, "the cluster was left alone"


def test_a_run_of_the_ui_is_refused_as_well(made: LabProject, holder: Run) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        ran = LivingLab(made.folder, made.variables, instance=instance).remake("queues")
    assert not ran.success
    assert ran.assets == ()
    assert "Another writer is at work on this lab" in ran.said["queues"]
    assert f"pid {holder.process.pid}" in ran.said["queues"]


def test_status_shows_the_writer(made: LabProject, holder: Run) -> None:
    writer = made.call("status", "--json").json["writer"]
    assert writer["pid"] == holder.process.pid
    assert writer["purpose"] == f"run {writer['owner'][:8]} of build_lab"


def test_the_first_one_goes_on_after_that_as_if_nothing_had_been(made: LabProject, holder: Run) -> None:
    assert made.call("down").code == 2
    holder.process.send_signal(signal.SIGCONT)
    assert holder.end() == 0, holder.text


def test_status_tells_what_is_unsynced_and_what_was_changed_by_hand(made: LabProject) -> None:
    def assets() -> dict[str, dict[str, Any]]:
        return {row["asset"]: row for row in made.call("status", "--json").json["assets"]}

    before = assets()
    assert {name: (row["sync"], row["drift"]) for name, row in before.items()} == dict.fromkeys(ASSETS, ("in sync", []))
    made.edit("manifests/queues.yaml", "overQuotaWeight: 1", "overQuotaWeight: 2")
    with made.cluster() as cluster:
        cluster.patch("nodes", NODE, {"metadata": {"labels": {"nvidia.com/gpu.count": "4"}}})
    after = assets()
    assert (after["queues"]["sync"], after["queues"]["reason"]) == ("unsynced", "manifests/queues.yaml has changed")
    assert after["whole_gpu_pod"]["sync"] == "behind"
    assert after["labelled_node"]["sync"] == "in sync"
    (drift,) = after["labelled_node"]["drift"]
    assert drift.startswith(f"Node {NODE}: label nvidia.com/gpu.count is '4', not '8'; written by test at ")
    shown = made.call("status").out
    assert "queues is unsynced: manifests/queues.yaml has changed" in shown
    assert f"drift labelled_node: {drift}" in shown
    made.edit("manifests/queues.yaml", "overQuotaWeight: 2", "overQuotaWeight: 1")
    nothing = made.run("run", "--select", "unsynced")
    assert (nothing.code, "nothing to do" in nothing.out) == (0, True), nothing.text
    made.edit("manifests/whole-gpu-pod.yaml", '"3600"', '"7200"')
    remade = made.run("run", "--select", "unsynced,labelled_node")
    assert remade.code == 0, remade.text
    told = {line.split()[1] for line in remade.out.splitlines() if line.startswith("✓ ")}
    assert told == {"labelled_node", "whole_gpu_pod", "shared_gpu_pod", "reservation_boundary", "boundary_report"}
    assert {(row["sync"], *row["drift"]) for row in assets().values()} == {("in sync",)}


def test_a_crash_frees_the_lab_and_the_next_run_closes_the_dead_one(made: LabProject) -> None:
    with _halted(made) as run:
        run.process.kill()
        run.end()
    assert made.call("status", "--json").json["writer"] is None
    said = made.run("run", "--select", "cluster")
    assert said.code == 0, said.text
    assert "was killed before it ended" in said.text
    assert set(history(made).values()) <= {"SUCCESS", "FAILURE"}


def test_another_lab_is_built_at_the_same_time(made: LabProject) -> None:
    with _halted(made) as run:
        said = made.run("run", "--select", "cluster", KAI_LAB_NAME="beside")
        assert said.code == 0, said.text
        assert run.process.poll() is None
        (row,) = (row for row in made.call("status", "--json").json["assets"] if row["asset"] == "cluster")
        assert row["reason"].startswith("last made in lab beside")
        assert made.run("down", KAI_LAB_NAME="beside").code == 0


def test_a_history_that_a_halted_process_keeps_is_told_with_the_way_out(made: LabProject) -> None:
    runs = made.folder / ".dagster_home" / "history" / "runs.db"
    with contextlib.closing(sqlite3.connect(runs, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        said = made.run("run", "--select", "cluster")
        database.execute("ROLLBACK")
    assert said.code == 3, said.text
    assert "Dagster's history cannot be written or read" in said.err
    assert "database is locked" in said.err
    assert "let it go on (fg, or kill -CONT) or end it, then run it again" in said.err
    assert "Traceback" not in said.text
