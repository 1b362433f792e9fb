"""A version set's cluster: made anew for each attempt, its own, and nothing but what was told outlives it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import dagster as dg
import pytest

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.automation.nightly import at_work, candidate_job, nightly_schedule
from kai_lab_pipeline.automation.partitions import VERSION_SETS
from kai_lab_pipeline.definitions import build_definitions
from kai_lab_pipeline.lab.errors import WrongUse
from kai_lab_pipeline.lab.version_sets import version_set
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.candidates import candidate_settings, clean_up_candidate
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.nights import Nights, StoredSet
from kai_lab_pipeline.workbench.state import LIVING, LabState, now
from kai_lab_pipeline_tests.lab_project import LabProject, make_project
from kai_lab_pipeline_tests.test_nights import record

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@pytest.fixture
def project(tmp_path: Path) -> LabProject:
    return make_project(tmp_path / "project")


@pytest.fixture
def stored(project: LabProject) -> StoredSet:
    found = StoredSet(version_set(project.settings.version_set(), {"kai_scheduler": "v0.18.2"}), {}, {})
    Nights(project.settings).save(found)
    return found


@pytest.fixture
def running(project: LabProject, stored: StoredSet) -> Iterator[None]:
    """What is made of the candidate is gone afterwards."""
    yield
    clean_up_candidate(project.settings, stored, broken=False)
    assert not backend_of(project.settings, stored).backend.cluster_exists()


def backend_of(settings: Settings, stored: StoredSet) -> Lab:
    return Lab(candidate_settings(settings, stored), "test", lambda _: None, candidate=stored, project=settings)


def make_cluster(project: LabProject, stored: StoredSet) -> tuple[str, str]:
    """Materialise the candidate's cluster alone; (its incarnation, what the step says of it)."""
    cluster = dg.AssetKey(["candidate", "cluster"])
    with mock.patch.dict(os.environ, project.environment(), clear=True), dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(VERSION_SETS.name or "", [stored.version_set.key])
        result = (
            build_definitions(project.settings)
            .resolve_job_def("candidate_lab")
            .execute_in_process(
                instance=instance,
                asset_selection=[cluster],
                tags={"dagster/partition": stored.version_set.key},
                run_config=QUIET,
            )
        )
    Lab(candidate_settings(project.settings, stored), result.run_id, lambda _: None).release()
    [event] = result.get_asset_materialization_events()
    told = event.step_materialization_data.materialization.metadata
    return str(told["incarnation"].value), str(told["step"].value)


def test_a_second_attempt_meets_nothing_of_the_first(project: LabProject, stored: StoredSet, running: None) -> None:
    first, _ = make_cluster(project, stored)
    living = LabState.of(candidate_settings(project.settings, stored)).folder / LIVING
    living.write_text(first, encoding="utf-8")
    second, said = make_cluster(project, stored)
    assert (second != first, said) == (True, "made the cluster")
    assert not living.exists(), "the pinned lab is built again before the upgrade"


def test_once_its_cluster_is_gone_a_version_set_may_be_judged_on_another_backend(
    project: LabProject, stored: StoredSet
) -> None:
    make_cluster(project, stored)
    state = LabState.of(candidate_settings(project.settings, stored))
    report = state.reports / "run" / "report.html"
    report.parent.mkdir(parents=True)
    report.write_text("told", encoding="utf-8")
    on_kind = LabState(state.name, "kind", state.folder)
    with pytest.raises(WrongUse, match="was made with backend 'rehearsal'"):
        on_kind.open()
    clean_up_candidate(project.settings, stored, broken=False)
    assert on_kind.open().recorded() is not None
    assert report.exists(), "the matrix links to it"


def test_down_leaves_the_reports_that_the_matrix_links_to(project: LabProject, stored: StoredSet) -> None:
    make_cluster(project, stored)
    state = LabState.of(candidate_settings(project.settings, stored))
    report = state.reports / "run" / "report.html"
    report.parent.mkdir(parents=True)
    report.write_text("told", encoding="utf-8")
    Nights(project.settings).add_record(record(stored))
    for _ in range(2):
        said = project.run("down", "--all")
        assert said.code == 0, said.text
        assert report.exists()
    assert not (state.folder / "rehearsal" / "server.json").exists()
    assert not (state.folder / "lab.json").exists()


def test_down_leaves_nothing_of_a_version_set_that_was_never_judged(project: LabProject, stored: StoredSet) -> None:
    make_cluster(project, stored)
    folder = LabState.of(candidate_settings(project.settings, stored)).folder
    clean_up_candidate(project.settings, stored, broken=False)
    assert folder.is_dir()
    said = project.run("down", "--all")
    assert said.code == 0, said.text
    assert not folder.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        {"job_name": "candidate_lab"},
        {"job_name": "__ASSET_JOB", "asset_selection": frozenset({dg.AssetKey(["candidate", "kai_release"])})},
    ],
)
def test_a_version_set_that_any_run_is_at_work_on_is_not_run_by_the_night(
    project: LabProject, stored: StoredSet, arguments: dict[str, object]
) -> None:
    key, settings = stored.version_set.key, project.settings
    schedule = nightly_schedule(settings, candidate_job(Group("candidate", settings, ("candidate",))))
    run = dg.DagsterRun(
        status=dg.DagsterRunStatus.STARTED,
        tags={"dagster/partition": key},
        **arguments,  # type: ignore[arg-type]
    )
    with dg.DagsterInstance.local_temp() as instance:
        instance.add_run(run)
        assert at_work(instance) == {key}
        with dg.build_schedule_context(instance=instance, scheduled_execution_time=now()) as context:
            asked = schedule(context)
    assert isinstance(asked, list)
    assert asked
    assert key not in {request.partition_key for request in asked}


# -- a context of their own --------------------------------------------------------------------------------------------


def on_context(settings: Settings, own: str | None) -> Settings:
    lab = settings.lab.model_copy(update={"backend": "context", "context": "mine"})
    return settings.model_copy(update={"lab": lab, "nightly": settings.nightly.model_copy(update={"context": own})})


def test_candidates_use_the_context_that_is_named_for_them(project: LabProject, stored: StoredSet) -> None:
    found = candidate_settings(on_context(project.settings, "spare"), stored)
    assert (found.lab.context, found.lab.name) == ("spare", stored.version_set.key)


@pytest.mark.parametrize("own", [None, "", "mine"])
def test_without_one_of_their_own_nothing_is_begun(project: LabProject, stored: StoredSet, own: str | None) -> None:
    with pytest.raises(WrongUse, match=r"Candidates need a cluster of their own") as told:
        candidate_settings(on_context(project.settings, own), stored)
    assert "Name a context whose cluster only candidates use as nightly.context" in told.value.text()


def test_a_night_on_a_context_without_one_is_refused_before_anything_is_asked(project: LabProject) -> None:
    project.variables.update(KAI_LAB_BACKEND="context", KAI_LAB_CONTEXT="mine")
    before = project.tree()
    said = project.run("nightly")
    assert said.code == 2, said.text
    assert said.err.startswith("Candidates need a cluster of their own, and backend 'context' makes none")
    assert project.tree() == before


def test_on_a_shared_context_one_candidate_follows_the_other(project: LabProject, stored: StoredSet) -> None:
    project.variables.update(KAI_LAB_BACKEND="context", KAI_LAB_CONTEXT="mine")
    project.edit("lab.toml", "[nightly]\n", '[nightly]\ncontext = "spare"\n')
    schedule = nightly_schedule(project.settings, candidate_job(Group("candidate", project.settings, ("candidate",))))
    with (
        mock.patch.dict(os.environ, project.environment(), clear=True),
        dg.DagsterInstance.local_temp() as instance,
        dg.build_schedule_context(instance=instance, scheduled_execution_time=now()) as context,
    ):
        asked = schedule(context)
    assert isinstance(asked, list)
    assert len(asked) > 1
    assert {request.tags["kai_lab/lab"] for request in asked} == {"context spare"}
