"""`kai-lab judge`: the claims of a bundle, why one is red and what to do about it, and excuses that end."""

from __future__ import annotations

import shutil
from pathlib import Path

import jsonschema
import pytest

from kai_lab_pipeline.commands.claims_table import claims_json
from kai_lab_pipeline.lab.diagnosis import diagnose_evidence
from kai_lab_pipeline_tests.damages import judged, recorded
from kai_lab_pipeline_tests.damages.draft import LAB, RECORDINGS
from kai_lab_pipeline_tests.explain_shape import SHAPE
from kai_lab_pipeline_tests.lab_project import LabProject, make_project

WITHDRAWN = "kai-v0.20.1"
PRODUCT = "labelled_node.gpu_product_label"


@pytest.fixture
def project(tmp_path: Path) -> LabProject:
    return make_project(tmp_path / "project")


def bundle(recording: str) -> str:
    return str(RECORDINGS / recording / "bundle")


def test_red_claims_come_with_the_ranked_causes_their_evidence_and_the_remedy(project: LabProject) -> None:
    said = project.call("judge", bundle(WITHDRAWN))
    assert said.code == 1, said.text
    causes = diagnose_evidence(recorded(WITHDRAWN)).causes
    assert [cause.id for cause in causes] == ["kai.cluster-policy-missing"]
    told = [line.strip() for line in said.out.splitlines()]
    assert f"Cause: {causes[0].cause}" in told
    assert causes[0].evidence
    for line in (*(f"Seen: {seen}" for seen in causes[0].evidence), *(f"Do: {step}" for step in causes[0].remedy)):
        assert line in told
    assert said.out.index("Cause: ") < said.out.index("broken kai_release.seven_components_running: ")


def test_json_has_the_same_causes_beside_the_claims(project: LabProject) -> None:
    said = project.call("judge", bundle(WITHDRAWN), "--json")
    assert said.code == 1, said.text
    assert said.json == claims_json(judged(recorded(WITHDRAWN)), diagnose_evidence(recorded(WITHDRAWN)))
    assert set(said.json) == {"backend", "versions", "boundary", "claims", "counts", "causes"}
    jsonschema.validate(said.json["causes"], SHAPE["properties"]["causes"])
    assert [cause["id"] for cause in said.json["causes"]] == ["kai.cluster-policy-missing"]


def test_where_all_is_well_nothing_is_explained(project: LabProject) -> None:
    assert project.call("judge", bundle(LAB), "--json").json["causes"] == []
    said = project.call("judge", bundle(LAB))
    assert said.code == 0, said.text
    assert "Cause: " not in said.out


@pytest.mark.parametrize(("until", "code"), [("2000-01-01", 1), ("2999-12-31", 0)])
def test_an_excuse_counts_until_its_date(project: LabProject, until: str, code: int) -> None:
    red = project.folder / "bundle"
    shutil.copytree(bundle(LAB), red)
    nodes = red / "labelled_node" / "nodes.json"
    text = nodes.read_text(encoding="utf-8")
    nodes.write_text(text.replace("NVIDIA-A100-SXM4-40GB", "NVIDIA-H100"), encoding="utf-8")
    with open(project.folder / "lab.toml", "a", encoding="utf-8") as file:
        file.write(f'[[excuses]]\ncheck = "{PRODUCT}"\nreason = "another card"\nuntil = {until}\n')
    said = project.call("judge", str(red), "--json")
    assert said.code == code, said.text
    checks = {f"{one['asset']}.{one['check']}": one for claim in said.json["claims"] for one in claim["checks"]}
    assert {name for name, one in checks.items() if one["verdict"] == "broken"} == {PRODUCT}
    assert ("excused" in checks[PRODUCT]) == (code == 0)
