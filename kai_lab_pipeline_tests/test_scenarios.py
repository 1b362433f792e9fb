"""Scenarios as data, as a setting, as a command and as a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kai_lab_pipeline.lab.diagnosis.catalogue import FAULTS as KNOWN_FAULTS
from kai_lab_pipeline.lab.scenarios import SCENARIOS, Scenario
from kai_lab_pipeline.lab.spec import ASSETS, CHECKS
from kai_lab_pipeline.rehearsal.components.faults import FAULTS, Faults
from kai_lab_pipeline.settings import SettingsError, load_settings
from kai_lab_pipeline_tests.lab_project import CHECKOUT, make_project
from kai_lab_pipeline_tests.scenario_runs import OUTPUTS, PAGE, readable, render_page

EVERY_CHECK = {f"{asset}.{check.name}" for asset, checks in CHECKS.items() for check in checks}
each = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)


def test_there_are_enough_of_them_and_none_is_like_another() -> None:
    assert len(SCENARIOS) >= 25
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in SCENARIOS)
    titles = [scenario.title for scenario in SCENARIOS.values()]
    made_of = [f"{dict(scenario.faults)} {dict(scenario.settings)}" for scenario in SCENARIOS.values()]
    assert len(set(titles)) == len(titles)
    assert len(set(made_of)) == len(made_of)


@each
def test_a_scenario_speaks_of_what_there_is(scenario: Scenario) -> None:
    assert set(scenario.red) <= EVERY_CHECK
    assert scenario.red or scenario.stops, "a scenario that nothing shows teaches nothing"
    assert scenario.stops in ("", *ASSETS)
    assert set(scenario.faults) <= set(FAULTS)
    assert scenario.cause in {fault.id for fault in KNOWN_FAULTS}
    for text in (scenario.rehearses, scenario.sees, scenario.why):
        assert text.endswith(".")


@each
def test_a_scenario_resolves_to_faults_and_settings(scenario: Scenario) -> None:
    settings = load_settings(CHECKOUT, environ={"KAI_LAB_SCENARIO": scenario.name})
    assert settings.rehearsal.faults == scenario.faults
    assert Faults.parse(settings.rehearsal.faults).values == scenario.faults
    pinned = load_settings(CHECKOUT, environ={})
    assert (settings.charts, settings.boundary, settings.profile) != (
        pinned.charts,
        pinned.boundary,
        pinned.profile,
    ) or not scenario.settings


def test_faults_set_by_hand_stay_beside_those_of_the_scenario(tmp_path: Path) -> None:
    made = make_project(tmp_path, KAI_LAB_SCENARIO="time-slicing")
    made.edit("lab.toml", "[rehearsal]\n", "[rehearsal]\nfaults = { gpu_count = 2, time_slicing = 4 }\n")
    assert made.settings.rehearsal.faults == {"gpu_count": 2, "time_slicing": 4}


def test_an_unknown_scenario_is_refused_with_those_there_are(tmp_path: Path) -> None:
    made = make_project(tmp_path)
    said = made.call("run", "--scenario", "time-sliceing")
    assert said.code == 2, said.text
    assert "KAI_LAB_SCENARIO: no scenario is named 'time-sliceing'. Choose from: node-not-ready, " in said.err
    assert all(name in said.err for name in SCENARIOS)
    assert not made.lab_dir.exists(), "nothing was touched"
    made.edit("lab.toml", "[rehearsal]\n", '[rehearsal]\nscenario = "nope"\n')
    with pytest.raises(SettingsError, match=r"lab\.toml: no scenario is named 'nope'"):
        load_settings(tmp_path, environ={})


@pytest.mark.parametrize("backend", ["kind", "context"])
def test_a_scenario_is_for_the_rehearsal_alone(tmp_path: Path, backend: str) -> None:
    said = make_project(tmp_path).call("run", "--backend", backend, "--scenario", "time-slicing")
    assert said.code == 2, said.text
    assert f"scenario time-slicing can only be rehearsed, and this lab's backend is '{backend}'" in said.err


def test_no_scenario_can_be_said_too(tmp_path: Path) -> None:
    made = make_project(tmp_path, KAI_LAB_SCENARIO="")
    made.edit("lab.toml", "[rehearsal]\n", '[rehearsal]\nscenario = "time-slicing"\n')
    assert made.settings.rehearsal.faults == {}


def test_the_command_lists_them(tmp_path: Path) -> None:
    made = make_project(tmp_path)
    said = made.call("scenarios")
    assert said.code == 0, said.text
    listed = dict(line.split(maxsplit=1) for line in said.out.splitlines()[: len(SCENARIOS)])
    assert listed == {name: scenario.title for name, scenario in SCENARIOS.items()}
    told = made.call("scenarios", "--json").json["scenarios"]
    assert [one["name"] for one in told] == list(SCENARIOS)
    slicing = next(one for one in told if one["name"] == "time-slicing")
    assert slicing["red"] == ["device_plugin.eight_whole_gpus"]
    assert slicing["cause"] == "gpu.sliced"
    assert slicing["changes"] == ["fault time_slicing = 10"]
    assert slicing["stops"] is None


@each
def test_what_was_printed_agrees_with_what_is_said(scenario: Scenario) -> None:
    output = (OUTPUTS / f"{scenario.name}.txt").read_text(encoding="utf-8")
    broken = re.findall(r"^broken (\S+):", output, re.MULTILINE)
    assert sorted(broken) == sorted(scenario.red)
    assert f"More: docs/known-issues.md#{scenario.cause.replace('.', '-')}\n" in output
    assert re.findall(r"^Cause: ", output, re.MULTILINE) == ["Cause: "], "one cause and no other"
    assert readable(output) == output


def test_no_output_is_left_of_a_scenario_that_is_gone() -> None:
    assert {file.stem for file in OUTPUTS.glob("*.txt")} == set(SCENARIOS)


def test_the_page_is_current() -> None:
    again = "python -m kai_lab_pipeline_tests.scenario_runs --page"
    assert PAGE.read_text(encoding="utf-8") == render_page(), f"write it anew: {again}"
