"""A run keeps the lab's order also where its selection skips a link of the chain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest
from dagster._core.execution.api import create_execution_plan
from dagster._core.execution.plan.plan import ExecutionPlan

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.automation import executor
from kai_lab_pipeline.automation.nightly import CANDIDATE_JOB
from kai_lab_pipeline.automation.order import in_order
from kai_lab_pipeline.automation.partitions import CANDIDATE_GATES, VERSION_SETS
from kai_lab_pipeline.definitions import build_definitions
from kai_lab_pipeline_tests.lab_project import make_project


class Started:
    """A plan's steps as an executor starts them."""

    def __init__(self, folder: Path) -> None:
        self.settings = make_project(folder / "project").settings
        self.lab = Group("lab", self.settings)
        self.jobs = build_definitions(self.settings)

    def plan(self, *assets: str, job: str = "build_lab") -> ExecutionPlan:
        whole = self.jobs.resolve_job_def(job)
        keys = {dg.AssetKey(asset.split("/")) for asset in assets}
        return create_execution_plan(whole.get_subset(asset_selection=keys) if keys else whole)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Started:
    return Started(tmp_path_factory.mktemp("order"))


def test_what_is_selected_waits_for_all_of_its_upstream_that_is(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[ExecutionPlan] = []

    class Inner:
        retries = None

        def execute(self, _: Any, plan: ExecutionPlan) -> Iterator[dg.DagsterEvent]:
            plans.append(plan)
            yield from ()

    monkeypatch.setattr(executor, "_hold", lambda *_: None)
    held = executor._Holding(cast(dg.Executor, Inner()), [started.lab])
    assert list(held.execute(cast(Any, None), started.plan("isolator_release", "reservation_boundary"))) == []
    assert plans[0].get_executable_step_deps() == {
        "isolator_release": set(),
        "lab_isolator_release_checks": {"isolator_release"},
        "reservation_boundary": {"isolator_release", "lab_isolator_release_checks"},
        "lab_reservation_boundary_checks": {"reservation_boundary"},
    }


def test_a_whole_lab_waits_for_nothing_more_than_it_did(started: Started) -> None:
    plan = started.plan()
    before = plan.get_executable_step_deps()

    def behind(step: str) -> set[str]:
        return before[step].union(*(behind(upper) for upper in before[step]))

    after = in_order(plan, [started.lab]).get_executable_step_deps()
    assert after.keys() == before.keys()
    assert {step: needs - behind(step) for step, needs in after.items() if needs - behind(step)} == {}


def test_a_candidates_steps_are_ordered_by_their_own_names(started: Started) -> None:
    group = Group("candidate", started.settings, ("candidate",), VERSION_SETS, CANDIDATE_GATES)
    plan = started.plan("candidate/kai_release", "candidate/shared_gpu_pod", job=CANDIDATE_JOB)
    ordered = in_order(plan, [started.lab, group]).get_executable_step_deps()
    assert ordered["candidate__shared_gpu_pod"] == {"candidate__kai_release"}, "none of its gates is shut by KAI"
