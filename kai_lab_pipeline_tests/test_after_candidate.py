"""What follows a candidate's run: its cluster is removed under the lab's lock, now or at the next tick."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.automation import nightly
from kai_lab_pipeline.automation.after_candidate import after_candidate_sensor
from kai_lab_pipeline.automation.nightly import NIGHT_TAG, candidate_job, matrix_job
from kai_lab_pipeline.backends.base import StepFacts
from kai_lab_pipeline.commands.nightly import _clean_up
from kai_lab_pipeline.lab.due import Due
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.lab.morning import Nightly
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline.lab.version_sets import version_set
from kai_lab_pipeline.settings import Settings, load_settings
from kai_lab_pipeline.workbench import lab as lab_module
from kai_lab_pipeline.workbench.candidates import candidate_settings
from kai_lab_pipeline.workbench.nights import Nights, StoredSet
from kai_lab_pipeline.workbench.state import LabState, WriteLock, now
from kai_lab_pipeline_tests.lab_project import CHECKOUT
from kai_lab_pipeline_tests.test_nights import record


class Clusters:
    """A backend of which only the cluster's being there matters."""

    name = "rehearsal"
    makes_cluster = True
    time_scale = 0.01

    def __init__(self) -> None:
        self.there = True
        self.silent = False
        self.removed = 0

    def keep_output(self, folder: Path) -> None:
        pass

    def cluster_exists(self) -> bool:
        if self.silent:
            raise LabError("kind cannot be asked for its clusters", seen="docker does not answer")
        return self.there

    def remove_cluster(self, log: Any) -> StepFacts:
        self.there, self.removed = False, self.removed + 1
        return StepFacts("the cluster is removed")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    shutil.copy(CHECKOUT / "lab.toml", tmp_path)
    return load_settings(tmp_path, environ={})


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    made = Clusters()
    monkeypatch.setattr(lab_module, "make_backend", lambda _: made)
    return made


@pytest.fixture
def stored(settings: Settings) -> StoredSet:
    found = StoredSet(version_set(settings.version_set(), {"kai_scheduler": "v0.18.2"}), {}, {})
    Nights(settings).save(found)
    return found


def state(settings: Settings, stored: StoredSet) -> LabState:
    return LabState.of(candidate_settings(settings, stored)).open()


def ended(
    instance: dg.DagsterInstance,
    stored: StoredSet,
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.FAILURE,
    job: str = "candidate_lab",
    night: Nightly | None = None,
    **more: Any,
) -> str:
    tags = {"dagster/partition": stored.version_set.key}
    tags |= {NIGHT_TAG: night.started_at.isoformat()} if night is not None else {}
    run = dg.DagsterRun(job_name=job, status=status, tags=tags, **more)
    instance.add_run(run)
    return run.run_id


def tick(
    settings: Settings, instance: dg.DagsterInstance, cursor: str | None = None
) -> tuple[list[str], str, str | None]:
    """One tick: the run keys asked for, what it said, and its cursor."""
    candidate = candidate_job(Group("candidate", settings, ("candidate",)))
    sensor = after_candidate_sensor(settings, candidate, matrix_job())
    found = sensor(dg.build_sensor_context(instance=instance, cursor=cursor))
    if isinstance(found, dg.SkipReason):
        return [], found.skip_message or "", cursor
    assert isinstance(found, dg.SensorResult)
    said = found.skip_reason.skip_message if isinstance(found.skip_reason, dg.SkipReason) else found.skip_reason
    return [str(one.run_key) for one in found.run_requests or ()], said or "", found.cursor


def test_what_an_ended_run_left_is_removed_and_the_matrix_is_written_once(
    settings: Settings, clusters: Clusters, stored: StoredSet
) -> None:
    state(settings, stored)
    with dg.DagsterInstance.ephemeral() as instance:
        run = ended(instance, stored)
        keys, _, cursor = tick(settings, instance)
        assert (keys, clusters.removed) == ([f"after/{run}"], 1)
        keys, said, _ = tick(settings, instance, cursor)
        assert (keys, said, clusters.removed) == ([], "no candidate's run has ended since", 1)


def test_a_cluster_that_a_run_is_at_work_on_is_left_for_the_next_tick(
    settings: Settings, clusters: Clusters, stored: StoredSet
) -> None:
    lock = WriteLock(state(settings, stored).folder)
    with dg.DagsterInstance.ephemeral() as instance:
        run = ended(instance, stored)
        lock.acquire(run, "materialising kai_release")  # even the run that is said to have ended: a step of it lives on
        keys, _, cursor = tick(settings, instance)
        assert keys == [f"after/{run}"], "the matrix need not wait for it"
        keys, said, cursor = tick(settings, instance, cursor)
        assert (keys, clusters.there) == ([], True)
        assert f"{stored.version_set.key} is left for the next tick: Another writer is at work" in said
        assert "materialising kai_release" in said
        lock.release()
        tick(settings, instance, cursor)
        assert not clusters.there


def test_a_cluster_that_cannot_be_asked_for_is_not_taken_for_gone(
    settings: Settings, clusters: Clusters, stored: StoredSet
) -> None:
    state(settings, stored)
    clusters.silent = True
    with dg.DagsterInstance.ephemeral() as instance:
        ended(instance, stored)
        _, _, cursor = tick(settings, instance)
        _, said, cursor = tick(settings, instance, cursor)
        assert "kind cannot be asked for its clusters" in said
        assert clusters.removed == 0
        clusters.silent = False
        tick(settings, instance, cursor)
        assert clusters.removed == 1


def test_a_broken_candidate_is_kept_where_that_is_asked_and_a_cancelled_one_is_not(
    settings: Settings, clusters: Clusters, stored: StoredSet
) -> None:
    state(settings, stored)
    toml = settings.root / "lab.toml"
    toml.write_text(toml.read_text(encoding="utf-8").replace("keep_failed = false", "keep_failed = true"))
    with dg.DagsterInstance.ephemeral() as instance:
        ended(instance, stored, dg.DagsterRunStatus.SUCCESS)
        _, _, cursor = tick(settings, instance)
        assert clusters.there
        ended(instance, stored, dg.DagsterRunStatus.CANCELED)
        tick(settings, instance, cursor)
        assert not clusters.there


def test_a_whole_candidate_built_from_the_ui_is_cleaned_up_and_one_asset_is_not(
    settings: Settings, clusters: Clusters, stored: StoredSet
) -> None:
    state(settings, stored)
    candidate = Group("candidate", settings, ("candidate",))
    with dg.DagsterInstance.ephemeral() as instance:
        ended(instance, stored, job="__ASSET_JOB", asset_selection=frozenset({candidate.key("kai_release")}))
        assert tick(settings, instance)[0] == []
        assert clusters.there
        ended(instance, stored, job="__ASSET_JOB", asset_selection=frozenset({candidate.key("boundary_report")}))
        assert len(tick(settings, instance)[0]) == 1
        assert not clusters.there


def test_a_night_with_nothing_to_run_has_its_page_too(settings: Settings, clusters: Clusters) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        _, _, cursor = tick(settings, instance)
        nightly = Nightly(now())
        Nights(settings).add_nightly(nightly)
        keys, _, cursor = tick(settings, instance, cursor)
        assert keys == [f"after/{nightly.started_at.isoformat()}"]
        assert tick(settings, instance, cursor)[0] == []


@pytest.fixture
def night(settings: Settings, clusters: Clusters, stored: StoredSet) -> Nightly:
    """A scheduled night with one version set, which broke in its only attempt."""
    nights = Nights(settings)
    nights.add_record(record(StoredSet(version_set(settings.version_set(), {}), {}, {})))
    nights.add_record(record(stored, Verdict.BROKEN))
    made = Nightly(now(), (stored.version_set.key,))
    nights.add_nightly(made)
    return made


def again(night: Nightly) -> list[str]:
    return [f"again/{night.started_at.isoformat()}/{key}" for key in night.keys]


def test_what_broke_once_in_a_scheduled_night_is_run_again_in_the_same_night(
    settings: Settings, stored: StoredSet, night: Nightly
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run = ended(instance, stored, night=night)
        keys, _, cursor = tick(settings, instance)
        assert keys == [f"after/{run}", *again(night)]
        Nights(settings).add_record(record(stored, Verdict.BROKEN))
        assert tick(settings, instance, cursor)[0] == [], "two attempts say the same"


def test_it_is_run_again_only_when_the_rest_of_the_night_is_through(
    settings: Settings, stored: StoredSet, night: Nightly
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        ended(instance, stored, night=night)
        other = ended(instance, stored, dg.DagsterRunStatus.STARTED, night=night)
        keys, _, cursor = tick(settings, instance)
        assert not set(again(night)) & set(keys)
        instance.delete_run(other)
        assert tick(settings, instance, cursor)[0] == again(night)


def test_what_a_person_runs_or_an_earlier_night_ran_is_not_run_again_by_itself(
    settings: Settings, stored: StoredSet, night: Nightly
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run = ended(instance, stored)
        assert tick(settings, instance)[0] == [f"after/{run}"], "a run from the UI"
        run = ended(instance, stored, night=Nightly(now(), night.keys))
        assert tick(settings, instance)[0] == [f"after/{run}"], "of another night"


def test_a_tick_in_which_nothing_has_ended_weighs_no_verdicts(
    settings: Settings, stored: StoredSet, night: Nightly, monkeypatch: pytest.MonkeyPatch
) -> None:
    weighed: list[object] = []

    def weigh(*arguments: object) -> list[Due]:
        weighed.append(arguments)
        return []

    monkeypatch.setattr(nightly, "to_confirm", weigh)
    with dg.DagsterInstance.ephemeral() as instance:
        ended(instance, stored, night=night)
        cursor = None
        for _ in range(3):
            _, _, cursor = tick(settings, instance, cursor)
        assert len(weighed) == 1
        ended(instance, stored)
        tick(settings, instance, cursor)
        assert len(weighed) == 2


def test_while_the_command_is_at_work_nothing_is_run_again(
    settings: Settings, stored: StoredSet, night: Nightly
) -> None:
    lock = WriteLock(Nights(settings).folder)
    lock.acquire("a night", "a nightly")
    with dg.DagsterInstance.ephemeral() as instance:
        run = ended(instance, stored, night=night)
        keys, _, cursor = tick(settings, instance)
        assert keys == [f"after/{run}"]
        lock.release()
        assert tick(settings, instance, cursor)[0] == again(night)


def test_a_broken_lab_toml_is_told_in_the_tick_and_nothing_is_forgotten(
    settings: Settings, clusters: Clusters, stored: StoredSet
) -> None:
    state(settings, stored)
    toml = settings.root / "lab.toml"
    good = toml.read_text(encoding="utf-8")
    toml.write_text(good.replace("cap = 12", "cap = 0"), encoding="utf-8")
    with dg.DagsterInstance.ephemeral() as instance:
        ended(instance, stored)
        keys, said, cursor = tick(settings, instance)
        assert keys == []
        assert "nightly.cap" in said
        toml.write_text(good, encoding="utf-8")
        assert len(tick(settings, instance, cursor)[0]) == 1


def test_the_command_leaves_a_cluster_that_a_run_is_at_work_on(
    settings: Settings, clusters: Clusters, stored: StoredSet
) -> None:
    class Out:
        def __init__(self) -> None:
            self.said: list[str] = []

        def print(self, text: str, **_: object) -> None:
            self.said.append(text)

    out, lock = Out(), WriteLock(state(settings, stored).folder)
    lock.acquire("a run of the UI", "materialising queues")
    _clean_up(settings, stored, out, judged=False)
    assert clusters.there
    assert "Another writer is at work on this lab" in out.said[0]
    lock.release()
    _clean_up(settings, stored, out, judged=False)
    assert not clusters.there
    assert WriteLock(state(settings, stored).folder).holder() is None, "the lock is free again"


def test_the_cursor_stays_short(settings: Settings, clusters: Clusters, stored: StoredSet) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(120):
            ended(instance, stored)
        _, _, cursor = tick(settings, instance)
        assert len(json.loads(cursor or "{}")["done"]) == 100
