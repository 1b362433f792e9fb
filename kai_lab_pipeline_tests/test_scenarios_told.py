"""Where a run goes wrong, cause and remedy are said first: by the failed step, the red check, the report, the end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg
import pytest

from kai_lab_pipeline.definitions import build_definitions
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.workbench import diagnosing
from kai_lab_pipeline.workbench.diagnosing import within
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline_tests.lab_project import LabProject, Said, project

SLICED = "Cause: The node advertises slices in place of cards"


def in_process(made: LabProject, *assets: str, scenario: str | None = None) -> dg.ExecuteInProcessResult:
    """A run of these assets as the UI starts it, with the scenario in its run config."""
    config: dict[str, Any] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    if scenario:
        config["resources"] = {"lab": {"config": {"scenario": scenario}}}
    with (
        mock.patch.dict("os.environ", made.environment(), clear=True),
        dg.DagsterInstance.ephemeral() as instance,
    ):
        result = (
            build_definitions(made.settings)
            .resolve_job_def("build_lab")
            .execute_in_process(
                instance=instance,
                asset_selection=[dg.AssetKey([name]) for name in assets],
                run_config=config,
                raise_on_error=False,
            )
        )
    Lab(made.settings, result.run_id, lambda _: None).release()
    return result


def failure_of(result: dg.ExecuteInProcessResult, asset: str) -> tuple[list[str], Any]:
    """The lines of a failed step's description, and its metadata."""
    data = result.failure_data_for_node(asset)
    assert data is not None
    failure = data.user_failure_data
    assert failure is not None
    return str(failure.description).splitlines(), failure.metadata


@pytest.fixture(scope="module")
def sliced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LabProject, Said]]:
    """A run from the command line whose device plugin advertises slices."""
    with project(tmp_path_factory.mktemp("sliced"), KAI_LAB_PATIENCE_S="1") as made:
        yield made, made.run("run", "--scenario", "time-slicing")


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("scenarios-told")
def test_the_end_of_a_red_run_says_cause_then_mismatch_then_where_the_evidence_is(
    sliced: tuple[LabProject, Said],
) -> None:
    made, said = sliced
    assert said.code == 1, said.text
    assert "could not be carried out" not in said.text, "a gate that closes is a finding: the run did what it should"
    config = made.lab_dir / "rehearsal" / "kubeconfig"
    order = [
        SLICED,
        f"  Do: Leave one plugin without sharing: kubectl --kubeconfig {config} apply -f manifests/device-plugin.yaml",
        "  More: docs/known-issues.md#gpu-sliced",
        "broken device_plugin.eight_whole_gpus: ",
        "    observed 80",
        "blocked by device_plugin.eight_whole_gpus: kai_release.release_deployed, ",
        f"Evidence: {made.newest_bundle()}",
    ]
    places = [said.out.find(text) for text in order]
    assert -1 not in places, said.out
    assert places == sorted(places)
    assert said.out.count("Cause: ") == 1


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("scenarios-told")
def test_the_status_names_the_scenario_that_the_cluster_rehearses_and_the_project_does_not(
    sliced: tuple[LabProject, Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = sliced
    monkeypatch.setenv("DAGSTER_HOME", str(made.folder / ".dagster_home"))  # put back what the command sets
    said = made.call("status", "--json")
    assert said.json["cluster"]["scenario"] == "time-slicing"
    rows = {row["asset"]: (row["sync"], row["reason"]) for row in said.json["assets"]}
    reason = "lab.backend, boundary.crossing or what is rehearsed (rehearsal in lab.toml) has changed"
    assert rows["cluster"] == ("unsynced", reason)
    assert "It rehearses scenario time-slicing" in made.call("status").out


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("scenarios-told")
def test_the_report_carries_the_cause(sliced: tuple[LabProject, Said]) -> None:
    made, _ = sliced
    told = json.loads((made.report_dir / "report.json").read_text(encoding="utf-8"))
    assert [cause["cause"] for cause in told["report"]["causes"]] == [
        SLICED.removeprefix("Cause: ")
        + ": time slicing is on, or HAMi's own device plugin runs. KAI would take every slice for a whole GPU."
    ]
    assert told["report"]["causes"][0]["remedy"]
    assert SLICED.removeprefix("Cause: ") in (made.report_dir / "report.md").read_text(encoding="utf-8")


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("scenarios-told")
def test_another_scenario_needs_the_cluster_made_anew(sliced: tuple[LabProject, Said]) -> None:
    made, _ = sliced
    said = made.run("run", "--scenario", "four-gpus", "--select", "device_plugin")
    assert said.code in (2, 3), said.text
    assert "This lab rehearses time-slicing, and scenario four-gpus is asked for" in said.out
    assert "kai-lab run --scenario four-gpus" in said.out
    staying = made.call("check", "device_plugin", KAI_LAB_SCENARIO="time-slicing")
    assert staying.code == 1, staying.text
    assert SLICED in staying.out
    healed = made.run("run", "--select", "cluster,nvml_mock_image,nvml_mock_release,device_plugin")
    assert healed.code == 0, healed.text
    assert "Cause: " not in healed.out, "nothing is said where all is well"


@pytest.mark.timeout(300)
def test_a_red_check_in_the_ui_is_enough_to_act_on(tmp_path: Path) -> None:
    with project(tmp_path / "lab", KAI_LAB_PATIENCE_S="1") as made:
        result = in_process(made, "cluster", scenario="node-not-ready")
        assert not result.success
        checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
        red = checks["node_ready"]
        assert not red.passed
        lines = (red.description or "").splitlines()
        assert lines[0].startswith("Cause: The node kai-hami-test-control-plane is not Ready")
        assert lines[1].startswith("Do: ")
        assert lines[-2].startswith("broken: expected ")
        assert lines[-1] == f"Evidence: {made.newest_bundle() / 'cluster'}"
        assert "known-issues.md#node-not-ready" in str(red.metadata["diagnosis"].value)
        assert "diagnosis" not in checks["kubernetes_version_supported"].metadata


@pytest.mark.timeout(300)
def test_a_failed_step_says_the_cause_first_and_its_checks_stay_unjudged(tmp_path: Path) -> None:
    with project(tmp_path / "lab", KAI_LAB_PATIENCE_S="1", KAI_LAB_SCENARIO="registry-rate-limit") as made:
        result = in_process(made, "cluster", "nvml_mock_image", "nvml_mock_release")
        lines, metadata = failure_of(result, "nvml_mock_release")
        assert lines[0].startswith("Cause: ")
        assert "Do: " in lines[1]
        assert lines.index("helm could not do it") > 1
        assert "429: toomanyrequests" in lines[-1]
        assert "registry-rate-limit" in str(metadata["diagnosis"].value)
        assert not (made.newest_bundle() / "nvml_mock_release").exists(), "what never came must not read as broken"


def test_looking_for_a_cause_takes_no_longer_than_it_may_and_never_fails() -> None:
    never = threading.Event()
    assert within(0.01, never.wait) is None
    assert within(5, lambda: 1 / 0) is None
    assert within(5, lambda: "found") == "found"
    assert diagnosing.GATHER_S + diagnosing.DIAGNOSE_S <= 20


@pytest.mark.timeout(300)
def test_a_look_that_fails_leaves_the_first_error_as_it_is(tmp_path: Path) -> None:
    first = LabError("the first error", seen="its last line", next_step="its remedy")
    with (
        project(tmp_path / "lab", KAI_LAB_PATIENCE_S="1") as made,
        mock.patch.object(Lab, "observer", side_effect=WrongUse("a second error")),
    ):
        with mock.patch("kai_lab_pipeline.backends.rehearsal.RehearsalBackend.ensure_cluster", side_effect=first):
            result = in_process(made, "cluster")
        lines, _ = failure_of(result, "cluster")
        assert lines[-3:] == ["the first error", "Last seen: its last line", "Next: its remedy"]
        assert not any("second" in line for line in lines)
