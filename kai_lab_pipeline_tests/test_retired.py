"""Version sets that are retired: once, with their cluster and partition, by the schedule and the command alike."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.automation.nightly import candidate_job, new_chart_versions_sensor, nightly_schedule
from kai_lab_pipeline.automation.partitions import PARTITIONS_NAME, look, retire, waiting
from kai_lab_pipeline.rehearsal.registry import lab_registry, mirrors, serve
from kai_lab_pipeline.settings import Settings, load_settings
from kai_lab_pipeline.workbench import lab as lab_module
from kai_lab_pipeline.workbench.candidates import candidate_settings
from kai_lab_pipeline.workbench.nights import Nights
from kai_lab_pipeline.workbench.state import LabState, now
from kai_lab_pipeline_tests.lab_project import CHECKOUT, make_project
from kai_lab_pipeline_tests.test_after_candidate import Clusters
from kai_lab_pipeline_tests.test_nights import record


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    shutil.copy(CHECKOUT / "lab.toml", tmp_path)
    with serve(lab_registry()) as url:
        monkeypatch.setenv("KAI_LAB_MIRRORS", json.dumps(mirrors(url)))
        yield load_settings(tmp_path)


@pytest.fixture
def nights(settings: Settings) -> Nights:
    """A store in which everything was judged so long ago that it is retired."""
    nights = Nights(settings)
    look(settings, nights)
    judge(settings, nights)
    return nights


def judge(settings: Settings, nights: Nights) -> None:
    at = now() - timedelta(days=settings.nightly.keep_days + 1)
    for one in waiting(settings, nights):
        nights.add_record(replace(record(nights.load(one.version_set.key)), at=at))


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    made = Clusters()
    monkeypatch.setattr(lab_module, "make_backend", lambda _: made)
    return made


def partitions_after_a_look(settings: Settings, instance: dg.DagsterInstance) -> set[str]:
    """The sensor's tick; its partitions, added as the daemon adds them."""
    tick = new_chart_versions_sensor(settings)(dg.build_sensor_context(instance=instance))
    assert isinstance(tick, dg.SensorResult)
    for request in tick.dynamic_partitions_requests or ():
        instance.add_dynamic_partitions(PARTITIONS_NAME, list(request.partition_keys))
    return set(instance.get_dynamic_partitions(PARTITIONS_NAME))


def test_what_was_retired_does_not_come_back_with_the_next_look(settings: Settings, nights: Nights) -> None:
    schedule = nightly_schedule(settings, candidate_job(Group("candidate", settings, ("candidate",))))
    [baseline] = [key for key, stored in nights.sets().items() if not stored.version_set.moved]
    with dg.DagsterInstance.local_temp() as instance:
        instance.add_dynamic_partitions(PARTITIONS_NAME, list(nights.sets()))
        for _ in range(2):
            context = dg.build_schedule_context(instance=instance, scheduled_execution_time=now())
            assert isinstance(schedule(context), dg.SkipReason)
            assert list(nights.sets()) == [baseline]
            assert partitions_after_a_look(settings, instance) == {baseline}


def test_a_version_set_is_retired_with_the_cluster_that_was_kept(
    settings: Settings, nights: Nights, clusters: Clusters
) -> None:
    [key, *others] = [key for key, stored in nights.sets().items() if stored.version_set.moved]
    LabState.of(candidate_settings(settings, nights.load(key))).open()
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(PARTITIONS_NAME, [key])
        clusters.silent = True
        [said] = retire(instance, settings, nights, others)
        assert said.startswith(f"{key} is not retired yet: kind cannot be asked for its clusters")
        assert key in nights.sets()
        assert retire(instance, settings, nights, others, until=0) == [], "a tick has no time for it"
        clusters.silent = False
        [said] = retire(instance, settings, nights, others)
        assert said == f"{key} is retired: it has had no new verdict for {settings.nightly.keep_days} days"
        assert instance.get_dynamic_partitions(PARTITIONS_NAME) == []
    assert (clusters.there, clusters.removed) == (False, 1)
    assert key not in nights.sets()
    assert set(others) < set(nights.sets())


def test_the_command_retires_too(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    nights = Nights(project.settings)
    look(project.settings, nights)
    judge(project.settings, nights)
    gone = [key for key, stored in nights.sets().items() if stored.version_set.moved]
    said = project.run("nightly")
    assert said.code == 0, said.text
    out = " ".join(said.out.split())
    assert [key for key in gone if f"{key} is retired: it has had no new verdict" not in out] == []
    assert not set(gone) & set(nights.sets())
