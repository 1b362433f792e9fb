"""A run that is killed at a random point: the next one ends as if nothing had been, and nothing of before is lost."""

from __future__ import annotations

import pytest

from kai_lab_pipeline_tests.lab_project import LabProject, processes_in, project
from kai_lab_pipeline_tests.soak.kills import (
    HOW,
    drawn,
    history,
    kept,
    kill_server,
    left_running,
    strike,
    verdicts,
    whole_run,
)

SEEDS = (0, 1, 2, 3, 4, 12)
"""Each way once, and one more SIGKILL; `make soak` goes on from there."""
GOING = ("STARTING", "STARTED", "CANCELING")


def test_each_way_of_killing_is_drawn() -> None:
    assert {drawn(seed).how for seed in SEEDS} == set(HOW)
    assert drawn(7) == drawn(7) != drawn(8)


@pytest.mark.timeout(900)
@pytest.mark.xdist_group("interruption")
def test_the_next_run_ends_as_an_undisturbed_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    with project(tmp_path_factory.mktemp("killed"), KAI_LAB_PATIENCE_S="30") as made:
        told = [struck(made, seed) for seed in SEEDS[:3]]  # on the way to the first whole lab
        undisturbed = verdicts(whole_run(made))
        assert set(undisturbed.values()) <= {"held", "not_reachable", "expected"}, told
        before, past = kept(made), history(made)
        told += [struck(made, seed) for seed in SEEDS[3:]]  # while a whole lab is made again
        kill_server(made)  # a server that was started within the full disk's limit would go on within it
        assert verdicts(whole_run(made)) == undisturbed, told
        now = kept(made)
        assert {name: now.get(name) for name in before} == before, "evidence and reports of earlier runs are intact"
        later = history(made)
        assert {run: later.get(run) for run in past} == past, "what was recorded of earlier runs stays"
        assert [run for run, status in later.items() if status in GOING] == [], "no killed run seems to go on"
        assert len(later) > len(past)
        folder = made.folder
    assert processes_in(folder) == []


def struck(made: LabProject, seed: int) -> str:
    kill = drawn(seed)
    code, text = strike(made, kill)
    assert "Traceback" not in text, f"{kill}: {text}"
    assert left_running(made) == [], f"{kill} left something running"
    return f"seed {seed}: {kill}: exit code {code}"
