"""A gate that lab.toml excuses stays broken and stops nothing, as long as the excuse is valid."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.lab.evidence import Evidence, Observation
from kai_lab_pipeline.lab.judge import judge
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.lab.verdict import Excuse, Verdict
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline_tests.lab_project import make_project

GATE = "nvidia_runtime_class.runtime_class_handler"
NO_CLASS = Observation(resources={"runtimeclasses": ()})


def lab(folder: Path, excuse: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab whose cluster lacks the RuntimeClass, and nothing else that can be seen."""
    project = make_project(folder / "project")
    with open(project.folder / "lab.toml", "a", encoding="utf-8") as file:
        file.write(excuse)

    class Sees:
        def observe_for_gates(self, assets: list[str]) -> Observation:
            return NO_CLASS

    @contextmanager
    def observer(self: Lab) -> Iterator[Sees]:
        yield Sees()

    monkeypatch.setattr(Lab, "observer", observer)
    return Lab(project.settings, "run", lambda _: None)


def excused(until: str) -> str:
    return f'\n[[excuses]]\ncheck = "{GATE}"\nreason = "another class is used here"\nuntil = {until}\n'


def test_an_excused_gate_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = lab(tmp_path, excused("2999-01-01"), monkeypatch)
    opened.require_upstream("whole_gpu_pod")
    (result,) = opened.judge_asset("nvidia_runtime_class", NO_CLASS)
    assert result.verdict is Verdict.BROKEN, "it is excused, and not held"
    assert result.excused is not None


@pytest.mark.parametrize("excuse", ["", excused("2020-01-01")])
def test_a_gate_without_a_valid_excuse_stops_what_is_built_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, excuse: str
) -> None:
    opened = lab(tmp_path, f"{excuse}\n[deadlines]\ndefault = 1\n", monkeypatch)
    with pytest.raises(LabError, match="runtime_class_handler is broken"):
        opened.require_upstream("whole_gpu_pod")


def test_what_was_not_seen_is_not_blamed_on_an_excused_gate() -> None:
    evidence = Evidence(backend="recorded", observations={"nvidia_runtime_class": NO_CLASS})

    def observed(excuses: dict[str, Excuse]) -> set[str]:
        judgement = judge(evidence, Expectations(), excuses=excuses)
        return {check.finding.observed for check in judgement.checks if check.asset == "whole_gpu_pod"}

    assert observed({}) == {f"blocked by {GATE}"}
    assert f"blocked by {GATE}" not in observed({GATE: Excuse("another class is used here", "2999-01-01")})
