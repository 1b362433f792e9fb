"""`kai-lab status`: rows of the lab that is asked about, and what could not be asked said as such."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from dagster._core.scheduler.instigation import InstigatorStatus

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.versions import mark_gone
from kai_lab_pipeline.automation.drift import drift_schedule
from kai_lab_pipeline.automation.staleness import Sync, sync_states
from kai_lab_pipeline.clients.manifests import QUEUES, load_manifest
from kai_lab_pipeline.commands.common import dagster_instance
from kai_lab_pipeline.commands.status import live_drift
from kai_lab_pipeline.definitions import build_definitions
from kai_lab_pipeline.lab.morning import Nightly
from kai_lab_pipeline.lab.spec import CHECKS
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench import drift
from kai_lab_pipeline.workbench import lab as lab_module
from kai_lab_pipeline.workbench.nights import Nights
from kai_lab_pipeline.workbench.state import LabState, now
from kai_lab_pipeline_tests.lab_project import LabProject, make_project
from kai_lab_pipeline_tests.test_after_candidate import Clusters
from kai_lab_pipeline_tests.test_nightly_schedule import turn


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LabProject:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))  # so that what commands set there does not outlive the test
    return make_project(tmp_path / "project")


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    made = Clusters()
    made.there = False
    monkeypatch.setattr(lab_module, "make_backend", lambda _: made)
    return made


def of(project: LabProject, name: str) -> Settings:
    lab = project.settings.lab.model_copy(update={"name": name})
    return project.settings.model_copy(update={"lab": lab})


def made(project: LabProject, name: str, *assets: str, run_id: str, backend: str = "rehearsal") -> None:
    """History of a lab that made these assets, with all their checks passed."""
    settings = of(project, name)
    LabState.of(settings).open()
    where = {"lab": name, "backend": backend}
    with dagster_instance(settings) as instance:
        instance.add_run(dg.DagsterRun(job_name="build_lab", run_id=run_id, tags={"kai_lab/lab": name}))
        for asset in assets:
            key = dg.AssetKey([asset])
            instance.report_runless_asset_event(dg.AssetMaterialization(key, metadata={**where, "run": run_id}))
            for check in CHECKS.get(asset, ()):
                instance.report_runless_asset_event(
                    dg.AssetCheckEvaluation(asset_key=key, check_name=check.name, passed=True, metadata=where)
                )


def rows(project: LabProject, name: str) -> dict[str, dict[str, object]]:
    said = project.call("status", "--json", KAI_LAB_NAME=name)
    assert said.code == 0, said.text
    return {row["asset"]: row for row in said.json["assets"]}


def test_rows_of_another_lab_are_not_shown(project: LabProject, clusters: Clusters) -> None:
    made(project, "one", "cluster", "queues", run_id="1" * 32)
    made(project, "two", "cluster", run_id="2" * 32)
    one, two = rows(project, "one"), rows(project, "two")
    assert one["cluster"]["materialised_at"] != two["cluster"]["materialised_at"]
    assert one["queues"]["passed"] == one["queues"]["checks"] == len(CHECKS["queues"])
    assert two["queues"]["materialised_at"] is None
    assert two["queues"]["passed"] == 0
    assert two["queues"]["sync"] == "never made"
    assert "last made in lab one" in str(two["queues"]["reason"])


def test_what_another_lab_tore_down_is_not_gone_here(project: LabProject, clusters: Clusters) -> None:
    made(project, "one", "queues", run_id="1" * 32)
    made(project, "two", "queues", run_id="2" * 32)
    settings = of(project, "two")
    with dagster_instance(settings) as instance:
        assert mark_gone(instance, Group("lab", settings), "torn down") == ["queues"]
        states = sync_states(instance, build_definitions(of(project, "one")), Group("lab", of(project, "one")))
    assert states["queues"].sync is Sync.UNSYNCED
    assert rows(project, "one")["queues"]["passed"] == len(CHECKS["queues"])
    assert rows(project, "two")["queues"]["passed"] == 0
    assert rows(project, "two")["queues"]["sync"] == "gone"


def test_what_was_torn_down_is_gone_although_another_lab_made_its_own_since(
    project: LabProject, clusters: Clusters
) -> None:
    made(project, "one", "queues", run_id="1" * 32)
    made(project, "two", "queues", run_id="2" * 32)
    settings = of(project, "one")
    with dagster_instance(settings) as instance:
        LabState.of(settings).note_gone(["queues"])
        assert mark_gone(instance, Group("lab", settings), "torn down", ["queues"]) == [], "the newest is of lab two"
    row = rows(project, "one")["queues"]
    assert (row["sync"], row["passed"], row["materialised_at"]) == ("gone", 0, None)
    assert str(row["reason"]).startswith("torn down at ")
    assert rows(project, "two")["queues"]["passed"] == len(CHECKS["queues"])
    made(project, "one", "queues", run_id="3" * 32)
    made(project, "two", "queues", run_id="4" * 32)
    assert rows(project, "one")["queues"]["sync"] == "unsynced"


def test_rows_of_another_backend_under_the_same_name_are_not_shown(project: LabProject, clusters: Clusters) -> None:
    made(project, "one", "queues", run_id="1" * 32, backend="kind")
    row = rows(project, "one")["queues"]
    assert (row["materialised_at"], row["passed"]) == (None, 0)


@pytest.mark.parametrize(("planned_in", "passed"), [("one", len(CHECKS["queues"]) - 1), ("two", len(CHECKS["queues"]))])
def test_a_check_that_was_to_run_here_and_did_not_is_not_passed(
    project: LabProject, clusters: Clusters, planned_in: str, passed: int
) -> None:
    made(project, "one", "queues", run_id="1" * 32)
    made(project, planned_in, run_id="2" * 32)
    planned = dg.DagsterEvent(
        event_type_value=dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value,
        job_name="build_lab",
        event_specific_data=AssetCheckEvaluationPlanned(
            asset_key=dg.AssetKey(["queues"]), check_name=CHECKS["queues"][0].name
        ),
    )
    with dagster_instance(project.settings) as instance:
        instance.report_dagster_event(planned, run_id="2" * 32)
    assert rows(project, "one")["queues"]["passed"] == passed


def test_a_cluster_that_cannot_be_asked_for_is_not_gone(project: LabProject, clusters: Clusters) -> None:
    made(project, "one", "cluster", run_id="1" * 32)
    clusters.silent = True
    said = project.call("status", "--json", KAI_LAB_NAME="one")
    assert said.code == 0, said.text
    cluster = said.json["cluster"]
    assert (cluster["exists"], cluster["answers"]) == (None, False)
    assert "kind cannot be asked for its clusters" in cluster["error"]
    text = project.call("status", KAI_LAB_NAME="one").out
    assert "whether there is a cluster could not be asked: kind cannot be asked for its clusters" in text
    assert "gone" not in text
    assert "there is no cluster" not in text


def test_a_manifest_that_cannot_be_read_is_told_where_it_belongs(
    project: LabProject, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = project.settings.project_file("manifests/queues.yaml")
    file.write_text("- a: [")
    cluster = SimpleNamespace(incarnation=lambda: "the one")
    monkeypatch.setattr(clusters, "connect", lambda: cluster, raising=False)
    monkeypatch.setattr(
        drift, "drift_of", lambda lab, asset: load_manifest(lab.settings, QUEUES) if asset == "queues" else []
    )
    found = live_drift(lab_module.Lab(project.settings, "status", lambda _: None), "the one", {"exists": True})
    assert {asset: lines for asset, lines in found.items() if lines} == {
        "queues": [f"cannot be compared with the cluster: A manifest is not YAML ({file})"]
    }


def test_a_nightly_that_is_missing_is_told_by_status_itself(project: LabProject, clusters: Clusters) -> None:
    assert project.call("status", "--json").json["nightly"] is None, "none ever ran, and none is scheduled"
    nights = Nights(project.settings)
    nights.add_nightly(Nightly(now() - timedelta(hours=30)))
    for history in (False, True):
        if history:
            project.settings.dagster_home.mkdir()
        found = project.call("status", "--json").json["nightly"]
        assert found["alarm"] == "the last nightly is 30 h old: is the daemon running, and the schedule on?"
        text = project.call("status").out
        assert f"ALARM: {found['alarm']}" in text
        assert "no next one is scheduled: the schedule is off." in text
    nights.add_nightly(Nightly(now()))
    said = project.call("status")
    assert "ALARM" not in said.out
    assert "Last nightly ran at" in said.out


def test_status_tells_of_a_schedule_that_is_on_and_never_ran(project: LabProject, clusters: Clusters) -> None:
    with dagster_instance(project.settings) as instance:
        turn(instance, InstigatorStatus.RUNNING)
    found = project.call("status", "--json").json["nightly"]
    assert (found["last"], found["alarm"]) == (None, "")
    assert found["next_at"] is not None
    with dagster_instance(project.settings) as instance:
        turn(instance, InstigatorStatus.RUNNING, since=now() - timedelta(hours=27))
    assert "no nightly has run yet, although the schedule is on since" in project.call("status").out


def test_the_drift_watch_says_that_it_could_not_ask(
    project: LabProject, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    LabState.of(project.settings).open()
    clusters.silent = True
    monkeypatch.setenv("KAI_LAB_PROJECT", str(project.folder))
    found = drift_schedule()(dg.build_schedule_context())
    assert isinstance(found, dg.SkipReason)
    assert "kind cannot be asked for its clusters" in (found.skip_message or "")


def test_a_broken_lab_toml_is_told_by_the_drift_watch(
    project: LabProject, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.edit("lab.toml", "gpu_count = 8", "gpu_count = 0")
    monkeypatch.setenv("KAI_LAB_PROJECT", str(project.folder))
    found = drift_schedule()(dg.build_schedule_context())
    assert isinstance(found, dg.SkipReason)
    assert "profile.gpu_count" in (found.skip_message or "")
