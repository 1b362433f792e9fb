"""Scenarios: faults to rehearse, each with what a person sees, which checks turn red and why. Pure data."""

from __future__ import annotations

from collections.abc import Mapping

from kai_lab_pipeline.lab.scenarios.model import Scenario

SCENARIOS: Mapping[str, Scenario] = {}
