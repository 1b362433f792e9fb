"""The report of a red run: of the pinned lab's own runs only, and a tick that tells instead of failing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import dagster as dg
import pytest

from kai_lab_pipeline.automation import sensors
from kai_lab_pipeline.automation.sensors import of_pinned_lab, report_of_a_red_run
from kai_lab_pipeline.settings import Settings, load_settings
from kai_lab_pipeline_tests.lab_project import CHECKOUT

PINNED, CANDIDATE = dg.AssetKey(["kai_release"]), dg.AssetKey(["candidate", "kai_release"])


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    shutil.copy(CHECKOUT / "lab.toml", tmp_path)
    monkeypatch.setenv("KAI_LAB_PROJECT", str(tmp_path))
    return load_settings(tmp_path, environ={})


@pytest.mark.parametrize(
    ("job", "selection", "tags", "ours"),
    [
        ("build_lab", None, {}, True),
        ("build_lab", None, {"kai_lab/lab": "kai-hami-test"}, True),
        ("build_lab", None, {"kai_lab/lab": "another"}, False),
        ("__ASSET_JOB", {PINNED}, {}, True),
        ("__ASSET_JOB", {CANDIDATE}, {"dagster/partition": "kai-0-18-2"}, False),
        ("__ASSET_JOB", {dg.AssetKey(["version_matrix"])}, {}, False),
        ("candidate_lab", None, {"dagster/partition": "kai-0-18-2", "kai_lab/lab": "kai-0-18-2"}, False),
        ("write_matrix", None, {}, False),
        ("tear_down", None, {"kai_lab/lab": "kai-hami-test"}, False),
        ("drift", None, {"kai_lab/lab": "kai-hami-test"}, False),
    ],
)
def test_which_runs_are_of_the_pinned_lab(
    settings: Settings, job: str, selection: set[dg.AssetKey] | None, tags: Mapping[str, str], ours: bool
) -> None:
    run = dg.DagsterRun(job_name=job, asset_selection=frozenset(selection) if selection else None, tags=tags)
    assert of_pinned_lab(run, settings) is ours


def tick(job: str, instance: dg.DagsterInstance) -> str | None:
    """One tick for a really failed run of a job with this name; what it said instead of writing a report."""

    @dg.op
    def stumble() -> None:
        raise dg.Failure("the step could not be done", allow_retries=False)

    @dg.job(name=job)
    def failing() -> None:
        stumble()

    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    result = failing.execute_in_process(instance=instance, raise_on_error=False, run_config=quiet)
    context = dg.build_run_status_sensor_context(
        sensor_name="report_of_a_red_run",
        dagster_event=result.get_run_failure_event(),
        dagster_instance=instance,
        dagster_run=result.dagster_run,
    ).for_run_failure()
    found = report_of_a_red_run(context)
    return found.skip_message if isinstance(found, dg.SkipReason) else None


def test_a_red_run_of_the_lab_gets_its_report_and_a_candidates_does_not(settings: Settings) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert tick("build_lab", instance) is None
        reports = [path.name for path in (settings.lab_dir / "reports").iterdir()]
        assert len(reports) == 1
        assert "built nothing of the pinned lab" in (tick("candidate_lab", instance) or "")
        assert [path.name for path in (settings.lab_dir / "reports").iterdir()] == reports


def test_a_broken_lab_toml_is_told_in_the_tick(settings: Settings) -> None:
    toml = settings.root / "lab.toml"
    toml.write_text(toml.read_text(encoding="utf-8").replace("gpu_count = 8", "gpu_count = 0"), encoding="utf-8")
    with dg.DagsterInstance.ephemeral() as instance:
        assert "profile.gpu_count" in (tick("build_lab", instance) or "")


def test_a_full_disk_is_told_in_the_tick(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "report.html")

    monkeypatch.setattr(sensors, "report_lab", full)
    with dg.DagsterInstance.ephemeral() as instance:
        said = tick("build_lab", instance) or ""
    assert "report.html" in said
    assert "No space left on device" in said
