"""Scenarios, part 1 of 4: see `scenario_held`."""

from __future__ import annotations

from pathlib import Path

import pytest

from kai_lab_pipeline.lab.scenarios import Scenario
from kai_lab_pipeline_tests.scenario_held import hold, part


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", part(0), ids=lambda scenario: scenario.name)
def test_a_scenario_turns_exactly_its_checks_red_and_its_cause_is_named(
    scenario: Scenario, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    assert pytestconfig.cache is not None
    hold(scenario, tmp_path, pytestconfig.cache)
