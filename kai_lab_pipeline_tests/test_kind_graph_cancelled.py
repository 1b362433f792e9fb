"""A run that is cancelled in the middle of a command leaves no process, and the next run heals what it left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline_tests.lab_project import CHECKOUT, processes_in
from kai_lab_pipeline_tests.soak.kills import Run, command_of, history, left_running, marked
from kai_lab_pipeline_tests.stubs import workplace
from kai_lab_pipeline_tests.stubs.simulated_place import kind_project, simulated_cluster
from kai_lab_pipeline_tests.stubs.workplace import Alive, Workplace, make_workplace

pytestmark = pytest.mark.timeout(300)

NAME = "kai-hami-test"
INTERRUPTED, INFRASTRUCTURE = 130, 3
PATIENCE_S = 120.0
"""Longest time until a run reaches the command it is cancelled in, seconds: far more than on a quiet machine."""


@dataclass(frozen=True)
class Phase:
    """The command in which a run is cancelled, what the command has done by then, and what the next run does first."""

    match: str
    heals: tuple[str, ...]
    half_done: dict[str, Any] = field(default_factory=dict)


PHASES = {
    "cluster": Phase("^kind create", ("kind", "delete", "cluster", "--name", NAME), {"makes_cluster": [NAME]}),
    "image": Phase("^kind load", ("kind", "load", "docker-image", "nvml-mock:local")),
    "install": Phase(
        "^helm upgrade --install nvml-mock ", ("helm", "uninstall", "nvml-mock"), {"half_done": "pending-install"}
    ),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    monkeypatch.setattr(workplace, "PATIENCE_S", PATIENCE_S)
    yield from make_workplace(tmp_path, monkeypatch)


@pytest.mark.parametrize(("phase", "how"), [("cluster", "ctrl-c"), ("image", "terminate"), ("install", "ctrl-c")])
def test_no_process_is_left_and_the_next_run_heals(place: Workplace, tmp_path: Path, phase: str, how: str) -> None:
    at = PHASES[phase]
    project = kind_project(place)
    alive = Alive(tmp_path / "alive")
    place.rules({"match": at.match, "alive": str(alive.path), "times": 1, **at.half_done})
    with simulated_cluster(place, tmp_path / "simulated"):
        run = Run(project)
        try:
            alive.wait_up()
            if how == "ctrl-c":  # a terminal signals all that belongs to its job
                os.killpg(run.process.pid, signal.SIGINT)
            else:
                run.process.send_signal(signal.SIGTERM)
            code = run.end()
            alive.wait_gone()
        finally:
            run.process.kill()
            alive.close()
        assert code == INTERRUPTED, run.text
        assert "the next run goes on from here" in run.text
        assert f'File "{CHECKOUT}/kai_lab_pipeline' not in run.text, (
            "no stack trace of ours; Dagster's helpers have theirs"
        )
        assert processes_in(place.project) == []
        place.forget_calls()
        again = project.here("run", "--json")
        assert again.code == 0, again.text
        assert again.json["counts"]["held"] == 8
        assert place.calls(*at.heals), place.calls(at.heals[0])
        assert list((project.lab_dir / "running").iterdir()) == []


def test_a_killed_process_of_a_step_ends_the_run_and_the_next_one_heals(place: Workplace, tmp_path: Path) -> None:
    at = PHASES["install"]
    project = kind_project(place)
    alive = Alive(tmp_path / "alive")
    place.rules({"match": at.match, "alive": str(alive.path), "times": 1, **at.half_done})
    with simulated_cluster(place, tmp_path / "simulated"):
        run = Run(project)
        try:
            alive.wait_up()
            (step,) = {parent_of(pid) for pid in marked(place.project) if "watchdog.py" in command_of(pid)}
            os.kill(step, signal.SIGKILL)
            code = run.end()
            alive.wait_gone()
        finally:
            run.process.kill()
            alive.close()
        assert code == INFRASTRUCTURE, run.text
        assert "nvml_mock_release" in run.text
        assert f'File "{CHECKOUT}/kai_lab_pipeline' not in run.text
        assert left_running(project) == []
        before = history(project)
        assert list(before.values()) == ["FAILURE"]
        again = project.here("run", "--json")
        assert again.code == 0, again.text
        assert again.json["counts"]["held"] == 8
        assert place.calls(*at.heals), place.calls(at.heals[0])
        assert sorted(history(project).values()) == ["FAILURE", "SUCCESS"]


def parent_of(pid: int) -> int:
    """The process that started this one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
