"""A lab.toml that cannot be used ends checks, tear-down and the matrix with its sentence, not with a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg
import pytest

from kai_lab_pipeline.definitions import build_definitions
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.state import LabState
from kai_lab_pipeline_tests.lab_project import LabProject, make_project

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
SENTENCE = "lab.toml: profile.gpu_count: Input should be greater than or equal to 1, got 0."


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[LabProject, dg.Definitions]:
    """A project whose lab.toml was spoilt after Dagster had loaded it, as while the UI runs."""
    project = make_project(tmp_path_factory.mktemp("project"))
    definitions = build_definitions(project.settings)
    project.edit("lab.toml", "gpu_count = 8", "gpu_count = 0")
    return project, definitions


def failures(definitions: dg.Definitions, job: str, **selected: Any) -> dict[str, str]:
    """What each failed step of a job said, by step."""
    with dg.DagsterInstance.ephemeral() as instance:
        result = definitions.resolve_job_def(job).execute_in_process(
            instance=instance, raise_on_error=False, run_config=QUIET, **selected
        )
    said = {}
    for event in result.all_events:
        if event.is_step_failure:
            failure = event.step_failure_data.user_failure_data
            said[str(event.step_key)] = str(failure.description if failure else event.step_failure_data.error)
    return said


@pytest.mark.parametrize("job", ["drift", "tear_down", "write_matrix"])
def test_a_broken_lab_toml_is_told(broken: tuple[LabProject, dg.Definitions], job: str) -> None:
    said = failures(broken[1], job)
    assert said
    assert all(text.endswith(SENTENCE) for text in said.values()), said
    assert not any("Traceback" in text for text in said.values())


@pytest.mark.parametrize("check", [("cluster", "machine_ready"), ("boundary_report", "every_claim_judged")])
def test_a_broken_lab_toml_is_told_by_the_checks_of_the_machine_and_the_report(
    broken: tuple[LabProject, dg.Definitions], check: tuple[str, str]
) -> None:
    asset, name = check
    selection = dg.AssetSelection.checks(dg.AssetCheckKey(dg.AssetKey([asset]), name))
    job = dg.define_asset_job("one_check", selection=selection)
    said = failures(dg.Definitions.merge(broken[1], dg.Definitions(jobs=[job])), "one_check")
    assert [text.endswith(SENTENCE) for text in said.values()] == [True], said


def test_a_damaged_memory_of_the_cluster_is_as_none(tmp_path: Path) -> None:
    settings = make_project(tmp_path / "project").settings
    LabState.of(settings).open()
    (settings.lab_dir / "nature.json").write_text('{"crossing": ', encoding="utf-8")
    lab = Lab(settings, "run", lambda _: None)
    with mock.patch.object(type(lab.backend), "crossing", side_effect=LabError("no cluster")):
        assert (lab.expectations.crossing, dict(lab.skipped)) == (None, {})


def test_a_lab_toml_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    definitions = build_definitions(project.settings)
    toml = project.folder / "lab.toml"
    toml.unlink()
    toml.mkdir()
    said = failures(definitions, "tear_down")
    assert list(said.values()) == [f"{toml} cannot be read: Is a directory."]
