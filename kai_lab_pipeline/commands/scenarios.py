"""`kai-lab scenarios`: the faults that can be rehearsed, to learn the lab by breaking it."""

from __future__ import annotations

import json
from typing import Any

from kai_lab_pipeline.lab.scenarios import SCENARIOS, Scenario


def scenarios_command(*, as_json: bool) -> int:
    """Print the scenarios; returns the exit code."""
    if as_json:
        print(json.dumps({"scenarios": [_json(scenario) for scenario in SCENARIOS.values()]}, indent=1))
        return 0
    width = max(map(len, SCENARIOS))
    for scenario in SCENARIOS.values():
        print(f"{scenario.name:<{width}}  {scenario.title}")
    print("\nRehearse one with 'kai-lab run --scenario NAME'; docs/scenarios.md says what each shows and why.")
    return 0


def changes(scenario: Scenario) -> list[str]:
    """What is different from the pinned lab, as it could stand in lab.toml."""
    faults = [f"fault {name} = {json.dumps(value)}" for name, value in scenario.faults.items()]
    return faults + [f"{'.'.join(path)} = {json.dumps(value)}" for path, value in scenario.settings.items()]


def _json(scenario: Scenario) -> dict[str, Any]:
    return {
        "name": scenario.name,
        "title": scenario.title,
        "rehearses": scenario.rehearses,
        "sees": scenario.sees,
        "red": list(scenario.red),
        "stops": scenario.stops or None,
        "why": scenario.why,
        "cause": scenario.cause,
        "changes": changes(scenario),
    }
