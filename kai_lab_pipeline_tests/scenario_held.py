"""Each scenario in a lab of its own: exactly its checks are red, and the diagnosis names the planted cause alone.

The tests stand in several files, because a file is what one test process takes on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kai_lab_pipeline.lab.judge import PINNED_GATES
from kai_lab_pipeline.lab.scenarios import SCENARIOS, Scenario
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline_tests.damages.in_scenarios import IN_SCENARIOS, do_all
from kai_lab_pipeline_tests.scenario_runs import rehearse

PARTS = 4
LEAST_APPLIED = 30
"""Damages that have their fact even where a run ends with its first asset."""


def part(number: int) -> list[Scenario]:
    """Every fourth scenario, beginning with this one: a fair share, and together all of them."""
    return list(SCENARIOS.values())[number::PARTS]


def hold(scenario: Scenario, tmp_path: Path, cache: pytest.Cache) -> None:
    """Rehearse a scenario, and do every damage to the bundle it left; what they did is kept for the table."""
    seen = rehearse(tmp_path / "lab", scenario)
    assert seen.broken == set(scenario.red)
    assert seen.failed == ((scenario.stops,) if scenario.stops else ())
    assert seen.causes == [scenario.cause]
    assert seen.diagnosis.causes[0].remedy
    # What Dagster shows agrees with the judge's word; without a red gate or a failed step the run itself is green.
    shown = {name for name, verdict in seen.executed.red.items() if verdict == str(Verdict.BROKEN)}
    assert shown <= set(scenario.red)
    assert seen.executed.success == (not scenario.stops and set(PINNED_GATES).isdisjoint(scenario.red))
    done = do_all(scenario.name, seen.bundle)
    done.write(cache.mkdir(IN_SCENARIOS))
    assert list(done.wrong) == []
    assert done.applied >= LEAST_APPLIED
    # No check that is held in a scenario is decorative there.
    assert [name for name in seen.held if not done.total[name]] == []
