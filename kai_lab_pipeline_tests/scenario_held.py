"""Each scenario in a lab of its own: exactly its checks are red, and the diagnosis names the planted cause alone.

The tests stand in several files, because a file is what one test process takes on.
"""

from __future__ import annotations

from pathlib import Path

from kai_lab_pipeline.lab.judge import PINNED_GATES
from kai_lab_pipeline.lab.scenarios import SCENARIOS, Scenario
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline_tests.scenario_runs import rehearse

PARTS = 4


def part(number: int) -> list[Scenario]:
    """Every fourth scenario, beginning with this one: a fair share, and together all of them."""
    return list(SCENARIOS.values())[number::PARTS]


def hold(scenario: Scenario, tmp_path: Path) -> None:
    seen = rehearse(tmp_path / "lab", scenario)
    assert seen.broken == set(scenario.red)
    assert seen.failed == ((scenario.stops,) if scenario.stops else ())
    assert seen.causes == [scenario.cause]
    assert seen.diagnosis.causes[0].remedy
    # What Dagster shows agrees with the judge's word; without a red gate or a failed step the run itself is green.
    shown = {name for name, verdict in seen.executed.red.items() if verdict == str(Verdict.BROKEN)}
    assert shown <= set(scenario.red)
    assert seen.executed.success == (not scenario.stops and set(PINNED_GATES).isdisjoint(scenario.red))
