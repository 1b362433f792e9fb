"""A gate that fails stops what lies behind it, in one run; the report is written all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kai_lab_pipeline.lab.judge import upstream_of
from kai_lab_pipeline.lab.spec import ASSETS
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline_tests.lab_project import TEST_S, LabProject, Said, make_project, project

pytestmark = [pytest.mark.xdist_group("e2e-gates"), pytest.mark.timeout(TEST_S)]

GATE = "device_plugin.eight_whole_gpus"
BEHIND = {asset for asset in ASSETS if "device_plugin" in upstream_of(asset)}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProject]:
    """A lab whose device plugin is Ready and never registers its cards with the kubelet."""
    made = make_project(tmp_path_factory.mktemp("gates"))
    with open(made.folder / "lab.toml", "a", encoding="utf-8") as file:
        file.write("[rehearsal.faults]\nplugin_not_registering = true\n")
    yield made
    made.end()


@pytest.fixture(scope="module")
def red(lab: LabProject) -> Said:
    return lab.run("run", "--json")


def test_a_failed_gate_is_a_broken_claim(red: Said) -> None:
    assert red.code == 1, red.text
    claims = {claim["id"]: claim["verdict"] for claim in red.json["claims"]}
    assert claims[1] == "broken"
    assert [check["check"] for check in red.json["claims"][0]["checks"] if check["verdict"] == "broken"] == [
        "eight_whole_gpus"
    ]
    assert "Traceback" not in red.err


def test_what_lies_behind_the_gate_is_not_made_and_says_what_blocked_it(lab: LabProject, red: Said) -> None:
    checks = [check for claim in red.json["claims"] for check in claim["checks"]]
    behind = [check for check in checks if check["asset"] in BEHIND]
    assert behind
    assert {check["verdict"] for check in behind} == {"not_evaluated"}
    assert {check["observed"] for check in behind} == {f"blocked by {GATE}"}
    seen = {folder.name for folder in lab.newest_bundle().iterdir() if folder.is_dir()}
    assert not seen & BEHIND
    assert lab.server() is not None
    with lab.cluster() as living:
        assert living.get("pods", "kai-whole-gpu", "default") is None
        assert not living.all("deployments", "kai-scheduler")


def test_what_does_not_lie_behind_the_gate_is_made(red: Said) -> None:
    checks = [check for claim in red.json["claims"] for check in claim["checks"]]
    beside = {check["asset"] for check in checks if check["verdict"] == "held"}
    assert beside >= {"cluster", "nvml_mock_release", "nvidia_runtime_class", "isolator_release"}


def test_a_red_run_leaves_its_report(lab: LabProject, red: Said) -> None:
    told = json.loads((lab.report_dir / "report.json").read_text(encoding="utf-8"))
    assert told["counts"]["broken"] >= 1
    text = (lab.report_dir / "report.md").read_text(encoding="utf-8")
    assert "rehearsal" in text.splitlines()[0].lower()
    assert f"blocked by {GATE}" in text
    assert str(lab.report_dir / "report.html") in red.err


def test_an_asset_behind_a_broken_gate_refuses_to_be_made_alone(lab: LabProject, red: Said) -> None:
    assert red.code == 1
    said = lab.run("run", "--json", "--select", "kai_release")
    assert said.code in (1, 3), said.text
    assert "kai_release is built on device_plugin" in said.err
    assert "eight_whole_gpus is broken" in said.err
    assert "kai-lab run --select 'device_plugin+'" in said.err


def test_without_the_fault_the_lab_is_green_from_the_gate_on(lab: LabProject, red: Said) -> None:
    assert red.code == 1
    lab.edit("lab.toml", "plugin_not_registering = true", "plugin_not_registering = false")
    healed = lab.run("run", "--json")
    assert healed.code == 0, healed.text
    assert healed.json["counts"]["held"] == 8


def test_what_a_gate_stops_leaves_no_evidence_that_could_read_as_broken(tmp_path: Path) -> None:
    # The gate is red because KAI's admission denied a dry-run: those words are about the gate, not about what it stops.
    with project(tmp_path / "lab", KAI_LAB_SCENARIO="sharing-off") as made:
        assert not made.materialise().success
        alone = made.materialise("shared_gpu_pod")
        assert not alone.success
        assert alone.materialised == frozenset()
        lab = Lab(made.settings, alone.run_id, lambda _: None)
        step = lab.steps()["shared_gpu_pod"]
        assert "denied the request" in step["error"]
        assert not (lab.bundle_dir / "shared_gpu_pod").exists()
        judgement = lab.judge(lab.of_this_run(lab.newest_evidence(), ["shared_gpu_pod"]))
        found = {check.name: check for check in judgement.checks if check.asset == "shared_gpu_pod"}
        assert {check.verdict for check in found.values()} == {Verdict.NOT_EVALUATED}
        assert {check.finding.observed for check in found.values()} == {"blocked by isolator_release.webhook_mutates"}
