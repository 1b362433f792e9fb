"""Scenarios: faults to rehearse, each with what a person sees, which checks turn red and why. Pure data."""

from __future__ import annotations

from collections.abc import Mapping

from kai_lab_pipeline.lab.scenarios import gpus, isolation, scheduler
from kai_lab_pipeline.lab.scenarios.model import Scenario

SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario for scenario in (*gpus.SCENARIOS, *scheduler.SCENARIOS, *isolation.SCENARIOS)
}
"""By name, in the order of the lab's steps."""

__all__ = ["SCENARIOS", "Scenario"]
