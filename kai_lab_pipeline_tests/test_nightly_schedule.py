"""The scheduled night without clusters: when the next one is, what could not be looked up, and who is at work."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    ScheduleInstigatorData,
)

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.matrix import next_night, on_since
from kai_lab_pipeline.automation.nightly import at_work, candidate_job, new_chart_versions_sensor, nightly_schedule
from kai_lab_pipeline.automation.unfinished import PROCESS_TAG
from kai_lab_pipeline.definitions import build_definitions
from kai_lab_pipeline.lab.morning import morning_summary
from kai_lab_pipeline.lab.version_matrix import build_matrix
from kai_lab_pipeline.lab.version_sets import version_set
from kai_lab_pipeline.rehearsal.state import process_start
from kai_lab_pipeline.settings import Settings, SettingsError, load_settings
from kai_lab_pipeline.workbench.nights import Nights, StoredSet
from kai_lab_pipeline.workbench.state import WriteLock, now
from kai_lab_pipeline_tests.lab_project import CHECKOUT

DOWN = '{"ghcr.io": "http://127.0.0.1:9", "docker.io": "http://127.0.0.1:9"}'


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    shutil.copy(CHECKOUT / "lab.toml", tmp_path)
    return load_settings(tmp_path, environ={})


def tick(settings: Settings, instance: dg.DagsterInstance) -> tuple[list[str], str]:
    """One tick of the schedule: the partitions asked for, and what it said instead."""
    schedule = nightly_schedule(settings, candidate_job(Group("candidate", settings, ("candidate",))))
    found = schedule(dg.build_schedule_context(instance=instance, scheduled_execution_time=now()))
    if isinstance(found, dg.SkipReason):
        return [], found.skip_message or ""
    assert isinstance(found, list)
    return [str(one.partition_key) for one in found], ""


def turn(instance: dg.DagsterInstance, status: InstigatorStatus, *, since: datetime | None = None) -> None:
    """The schedule turned on or off, as the UI does it."""
    origin = GrpcServerCodeLocationOrigin(host="localhost", port=1, location_name="kai_lab_pipeline")
    named = RemoteInstigatorOrigin(RemoteRepositoryOrigin(origin, "__repository__"), "nightly")
    data = ScheduleInstigatorData("0 2 * * *", (since or now()).timestamp())
    state = InstigatorState(named, InstigatorType.SCHEDULE, status, data)
    if instance.get_instigator_state(state.instigator_origin_id, state.selector_id) is None:
        instance.add_instigator_state(state)
    else:
        instance.update_instigator_state(state)


def with_cron(settings: Settings, cron: str) -> Settings:
    return settings.model_copy(update={"nightly": settings.nightly.model_copy(update={"cron": cron})})


def test_the_next_night_is_what_the_cron_says_and_none_while_the_schedule_is_off(settings: Settings) -> None:
    with dg.DagsterInstance.local_temp() as instance:
        assert next_night(instance, settings) is None, "it was never turned on"
        assert on_since(instance) is None
        began = now()
        turn(instance, InstigatorStatus.RUNNING)
        since = on_since(instance)
        assert since is not None
        assert timedelta(0) <= since - began <= timedelta(minutes=1)
        weekly = next_night(instance, with_cron(settings, "30 4 * * 1"))
        assert weekly is not None
        assert (weekly.weekday(), weekly.hour, weekly.minute) == (0, 4, 30)
        assert timedelta(0) <= weekly - now() <= timedelta(days=7)
        minute = next_night(instance, with_cron(settings, "* * * * *"))
        assert minute is not None
        assert minute - now() <= timedelta(minutes=1)
        turn(instance, InstigatorStatus.STOPPED)
        assert next_night(instance, settings) is None
        assert on_since(instance) is None


def test_the_summary_says_when_the_schedule_is_off(settings: Settings) -> None:
    matrix = build_matrix([], settings.version_set())
    assert "the schedule is off" in morning_summary(matrix, now=now(), last=None, next_at=None).text()
    at = datetime(2026, 1, 5, 4, 30, tzinfo=timezone.utc)
    assert "next at 2026-01-05 04:30 UTC" in morning_summary(matrix, now=now(), last=None, next_at=at).text()


def test_a_scheduled_night_keeps_what_it_could_not_look_up(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAI_LAB_MIRRORS", DOWN)
    with dg.DagsterInstance.local_temp() as instance:
        keys, _ = tick(settings, instance)
    nights = Nights(settings)
    last = nights.last_nightly()
    assert last is not None
    assert {line.partition(":")[0] for line in last.could_not_look} == set(settings.charts.by_component())
    assert all("could not look" in line for line in last.could_not_look)
    assert keys == list(last.keys), "what is known all the same is run"
    matrix = build_matrix([], settings.version_set())
    assert last.could_not_look[0] in morning_summary(matrix, now=now(), last=last, next_at=None).text()


def test_a_scheduled_night_says_what_its_cap_keeps_for_the_next(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAI_LAB_MIRRORS", DOWN)
    toml = settings.root / "lab.toml"
    toml.write_text(toml.read_text(encoding="utf-8").replace("cap = 12", "cap = 1"), encoding="utf-8")
    for version in ("v0.18.2", "v0.18.3"):
        found = version_set(settings.version_set(), {"kai_scheduler": version})
        Nights(settings).save(StoredSet(found, {}, {}))
    said: list[str] = []
    schedule = nightly_schedule(settings, candidate_job(Group("candidate", settings, ("candidate",))))
    with (
        dg.DagsterInstance.local_temp() as instance,
        dg.build_schedule_context(instance=instance, scheduled_execution_time=now()) as context,
    ):
        monkeypatch.setattr(context.log, "info", said.append)
        requests = schedule(context)
    assert isinstance(requests, list)
    assert len(requests) == 1
    assert said == ["2 version sets wait for the next night: one takes on 1 (nightly.cap in lab.toml)."]


def test_a_scheduled_night_finds_what_the_sensor_did_not_see(settings: Settings) -> None:
    with dg.DagsterInstance.local_temp() as instance:
        keys, _ = tick(settings, instance)
    assert any("0-18-2" in key for key in keys)
    last = Nights(settings).last_nightly()
    assert last is not None
    assert last.could_not_look == ()


def test_a_scheduled_night_does_not_build_what_the_command_is_building(settings: Settings) -> None:
    folder = Nights(settings).folder
    folder.mkdir(parents=True)
    lock = WriteLock(folder)
    lock.acquire("a command", "a nightly")
    try:
        with dg.DagsterInstance.local_temp() as instance:
            keys, said = tick(settings, instance)
    finally:
        lock.release()
    assert keys == []
    assert "a nightly since" in said


def test_a_broken_lab_toml_is_told_in_the_ticks(settings: Settings) -> None:
    toml = settings.root / "lab.toml"
    toml.write_text(toml.read_text(encoding="utf-8").replace("cap = 12", 'cap = "many"'), encoding="utf-8")
    with dg.DagsterInstance.local_temp() as instance:
        keys, said = tick(settings, instance)
        found = new_chart_versions_sensor(settings)(dg.build_sensor_context(instance=instance))
    assert keys == []
    assert "nightly.cap" in said
    assert isinstance(found, dg.SkipReason)
    assert "nightly.cap" in (found.skip_message or "")


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED])
def test_a_run_whose_process_was_killed_is_not_at_work(settings: Settings, status: dg.DagsterRunStatus) -> None:
    with (
        dg.DagsterInstance.local_temp() as instance,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process,
    ):
        keys, _ = tick(settings, instance)
        tags = {"dagster/partition": keys[0], PROCESS_TAG: f"{process.pid} {process_start(process.pid)}"}
        run = dg.DagsterRun(job_name="candidate_lab", status=status, tags=tags)
        instance.add_run(run)
        assert keys[0] not in tick(settings, instance)[0], "its process lives"
        assert at_work(instance) == {keys[0]}
        process.kill()
        process.wait(60)
        assert keys[0] in tick(settings, instance)[0]
        closed = instance.get_run_by_id(run.run_id)
        assert closed is not None
        assert closed.status is dg.DagsterRunStatus.FAILURE


@pytest.mark.parametrize("cron", ["at night", "0 25 * * *", "0 2 31 2 *", ""])
def test_a_cron_that_never_comes_is_told_before_anything_loads(settings: Settings, cron: str) -> None:
    with pytest.raises(SettingsError) as told:
        build_definitions(with_cron(settings, cron))
    assert str(told.value).startswith(f"{settings.root / 'lab.toml'}: nightly.cron is {cron!r}")
    assert "minute, hour, day of the month" in str(told.value)
