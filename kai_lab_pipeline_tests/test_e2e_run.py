"""The whole lab from the command line on the rehearsal: built, judged, looked at, rebuilt in part, taken away."""

from __future__ import annotations

import html
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import jsonschema
import pytest

from kai_lab_pipeline.lab.spec import ASSETS, CHECKS, CLAIMS
from kai_lab_pipeline_tests.explain_shape import SHAPE as EXPLAIN_SHAPE
from kai_lab_pipeline_tests.lab_project import TEST_S, LabProject, Said, listens, make_project, processes_in

pytestmark = [pytest.mark.xdist_group("e2e-run"), pytest.mark.timeout(TEST_S)]

EXPECTED = Path(__file__).parent / "data" / "recordings" / "real-kai-v0.17.0" / "expected.json"
VERDICTS = ["held", "broken", "not_reachable", "not_evaluated"]
TEXT = {"type": "string", "minLength": 1}
CHECK_SHAPE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["asset", "check", "verdict", "expected", "observed", "message"],
    "properties": {
        "asset": TEXT,
        "check": TEXT,
        "verdict": {"enum": VERDICTS},
        "expected": TEXT,
        "observed": TEXT,
        "message": TEXT,
        "excused": {"type": "object", "required": ["reason", "until"]},
    },
}
SHAPE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["backend", "versions", "boundary", "claims", "counts", "causes"],
    "properties": {
        "backend": {"enum": ["rehearsal", "kind", "context", "recorded"]},
        "versions": {"type": "object", "additionalProperties": TEXT, "minProperties": 4},
        "boundary": {"enum": ["expected", "crossed", "different", "not_evaluated"]},
        "claims": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["id", "statement", "verdict", "checks"],
                "properties": {
                    "id": {"type": "integer", "minimum": 1, "maximum": 8},
                    "statement": TEXT,
                    "verdict": {"enum": VERDICTS},
                    "checks": {"type": "array", "minItems": 1, "items": CHECK_SHAPE},
                },
            },
        },
        "causes": EXPLAIN_SHAPE["properties"]["causes"],
        "counts": {
            "type": "object",
            "additionalProperties": False,
            "required": VERDICTS,
            "properties": {verdict: {"type": "integer", "minimum": 0} for verdict in VERDICTS},
        },
    },
}
"""The public shape of `--json` of run, judge, check and report."""

PINNED = {"charts/kai_scheduler", "charts/nvml_mock", "charts/kai_resource_isolator", "manifests/device_plugin"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProject]:
    made = make_project(tmp_path_factory.mktemp("whole-run"))
    yield made
    made.end()


@pytest.fixture(scope="module")
def first(lab: LabProject) -> Said:
    """`kai-lab run` in a folder where nothing was made yet."""
    return lab.run("run")


def verdicts(document: Any) -> dict[str, str]:
    return {f"{c['asset']}.{c['check']}": c["verdict"] for claim in document["claims"] for c in claim["checks"]}


def materialised_in(lab: LabProject, run_id: str) -> set[str]:
    """What Dagster's event log says was materialised in a run."""
    with dg.DagsterInstance.from_config(str(lab.folder / ".dagster_home")) as instance:
        records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION).records
        events = [record.event_log_entry.get_dagster_event() for record in records]
        return {event.step_materialization_data.materialization.asset_key.to_user_string() for event in events}


def test_a_first_run_builds_the_lab_and_holds_every_claim(lab: LabProject, first: Said) -> None:
    assert first.code == 0, first.text
    for asset in ASSETS:
        assert asset in first.out, first.text
    for claim in CLAIMS:
        assert claim.statement[:40] in first.out, first.text
    assert "Claims: 8 held. Boundary: expected." in first.out
    assert str(lab.report_dir / "report.html") in first.out
    captured = [path for path in (lab.folder / ".dagster_home" / "storage").rglob("*") if path.is_file()]
    assert captured == [], "nothing stands between the run and the terminal"
    assert first.err == "", "progress belongs on standard output, and nothing else was to be said"


def test_the_report_of_a_run_is_there_in_four_forms_and_names_the_backend_first(lab: LabProject, first: Said) -> None:
    assert first.code == 0
    lines = (lab.report_dir / "report.md").read_text(encoding="utf-8").splitlines()
    assert "rehearsal" in lines[0].lower()
    page = html.unescape((lab.report_dir / "report.html").read_text(encoding="utf-8"))
    assert "rehearsal" in page
    assert all(claim.statement in page for claim in CLAIMS)
    told = json.loads((lab.report_dir / "report.json").read_text(encoding="utf-8"))
    assert told["backend"] == "rehearsal"
    suite = ElementTree.parse(lab.report_dir / "junit.xml").getroot()
    cases = list(suite.iter("testcase"))
    assert len(cases) == sum(map(len, CHECKS.values()))
    assert not list(suite.iter("failure"))


def test_the_evidence_of_a_run_gives_what_the_recording_of_real_components_gives(lab: LabProject, first: Said) -> None:
    assert first.code == 0
    said = lab.call("judge", str(lab.newest_bundle()), "--json")
    assert said.code == 0, said.text
    judged = said.json
    jsonschema.validate(judged, SHAPE)
    recorded = json.loads(EXPECTED.read_text(encoding="utf-8"))
    found = verdicts(judged)
    assert set(found) == set(recorded["checks"])
    allowed = {name: [value] if isinstance(value, str) else value for name, value in recorded["checks"].items()}
    assert {name: verdict for name, verdict in found.items() if verdict not in allowed[name]} == {}
    assert judged["boundary"] in recorded["boundary"]
    assert judged["backend"] == "rehearsal"


def test_a_second_run_is_green_and_its_json_is_all_of_standard_output(lab: LabProject, first: Said) -> None:
    assert first.code == 0
    elsewhere = lab.folder / "elsewhere"
    said = lab.run("run", "--json", "--report-dir", str(elsewhere))
    assert said.code == 0, said.text
    document = said.json
    jsonschema.validate(document, SHAPE)
    assert document["counts"] == {"held": 8, "broken": 0, "not_reachable": 0, "not_evaluated": 0}
    assert document["boundary"] == "expected"
    assert document["versions"]["kai_scheduler"] == "v0.17.0"
    assert "kai_release" in said.err
    assert {file.name for file in elsewhere.iterdir()} >= {"report.md", "report.html", "report.json", "junit.xml"}
    assert materialised_in(lab, lab.newest_bundle().name) == {*ASSETS, *PINNED}


def test_a_selection_makes_exactly_that_asset_and_its_descendants(lab: LabProject, first: Said) -> None:
    assert first.code == 0
    said = lab.run("run", "--json", "--select", "shared_gpu_pod+")
    assert said.code == 0, said.text
    assert materialised_in(lab, lab.newest_bundle().name) == {
        "shared_gpu_pod",
        "reservation_boundary",
        "boundary_report",
    }
    document = said.json
    jsonschema.validate(document, SHAPE)
    assert [claim["id"] for claim in document["claims"]] == [6, 7, 8]
    wanted = {f"{a}.{check.name}" for a in ("shared_gpu_pod", "reservation_boundary") for check in CHECKS[a]}
    assert set(verdicts(document)) == wanted
    report = json.loads((lab.report_dir / "report.json").read_text(encoding="utf-8"))
    assert len(report["claims"]) == 8


def test_status_says_what_is_built_and_that_the_cluster_answers(lab: LabProject, first: Said) -> None:
    assert first.code == 0
    said = lab.call("status")
    assert said.code == 0, said.text
    assert "the cluster answers" in said.out
    told = lab.call("status", "--json").json
    assert told["backend"] == "rehearsal"
    assert told["cluster"]["answers"] is True
    assert told["writer"] is None
    rows = {row["asset"]: row for row in told["assets"]}
    assert list(rows) == list(ASSETS)
    for asset, checks in CHECKS.items():
        assert (rows[asset]["passed"], rows[asset]["checks"]) == (len(checks), len(checks)), asset
        assert rows[asset]["run_id"]


def test_checks_are_executed_alone_by_name(lab: LabProject, first: Said) -> None:
    assert first.code == 0
    said = lab.call("check", "--json", "queues", "cluster.node_ready", "kai_release.sharing_enabled")
    assert said.code == 0, said.text
    jsonschema.validate(said.json, SHAPE)
    assert verdicts(said.json) == {
        "cluster.node_ready": "held",
        "kai_release.sharing_enabled": "held",
        "queues.queues_exist": "held",
        "queues.default_queue_is_leaf_of_default": "held",
        "queues.queues_unlimited": "held",
    }
    with dg.DagsterInstance.from_config(str(lab.folder / ".dagster_home")) as instance:
        run = instance.get_run_records(limit=1)[0].dagster_run
    assert not materialised_in(lab, run.run_id)
    assert run.is_success


def test_the_report_can_be_written_anew(lab: LabProject, first: Said) -> None:
    assert first.code == 0
    page = lab.report_dir / "report.html"
    page.unlink()
    said = lab.call("report")
    assert said.code == 0, said.text
    assert page.is_file()
    assert str(page) in said.out
    told = lab.call("report", "--json")
    jsonschema.validate(told.json, SHAPE)
    assert told.json["counts"]["held"] == 8, "a check that was executed alone left nothing half-seen behind"


def test_a_run_that_makes_the_report_alone_judges_all_that_is_in_it(lab: LabProject, first: Said) -> None:
    assert first.code == 0
    said = lab.run("run", "--select", "boundary_report")
    assert said.code == 0, said.text
    assert "Claims: 8 held. Boundary: expected." in said.out
    assert "Evidence:" not in said.out


def test_down_takes_everything_away_and_can_be_said_twice(lab: LabProject, first: Said) -> None:
    assert first.code == 0
    handle = lab.server()
    assert handle is not None
    assert listens(handle.port)
    said = lab.call("down")
    assert said.code == 0, said.text
    assert "nothing is left" in said.out
    assert lab.server() is None
    assert not listens(handle.port)
    assert not processes_in(lab.folder)
    assert lab.newest_bundle().is_dir(), "evidence outlives the cluster"
    again = lab.call("down")
    assert again.code == 0, again.text
    told = lab.call("status", "--json").json
    assert told["cluster"] == {"exists": False}
    assert sum(row["passed"] for row in told["assets"]) == 0, "nothing that is gone stays green"
    page = (lab.report_dir / "report.html").read_bytes()
    report = lab.call("report")
    assert report.code == 3, report.text
    assert "There is no evidence to report on" in report.err
    assert "Left out, because it was taken away at" in report.err
    assert (lab.report_dir / "report.html").read_bytes() == page, "the last report stays"
    gone = lab.call("down", "--all")
    assert gone.code == 0, gone.text
    assert not lab.settings.state_root.exists()
    assert lab.call("down", "--all").code == 0
