"""A night on the rehearsal, from an empty home: found, built, judged, attributed, cleaned up; then nothing new."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.automation.nightly import candidate_job, new_chart_versions_sensor, nightly_schedule
from kai_lab_pipeline.definitions import build_definitions
from kai_lab_pipeline.workbench.nights import Nights
from kai_lab_pipeline.workbench.state import now
from kai_lab_pipeline_tests.lab_project import LabProject, Said, make_project

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProject]:
    made = make_project(tmp_path_factory.mktemp("nights"))
    yield made
    said = made.run("down", "--all")
    assert said.code == 0, said.text
    judged = {record.key for record in Nights(made.settings).records()}
    left = {path.name for path in made.settings.state_root.iterdir()}
    assert left == {"_nightly", *judged}, "only the nights' history and the reports it links to outlive their labs"
    assert not list(made.settings.state_root.glob("*/lab.json"))


def test_a_night_finds_the_planted_regression_and_leaves_no_cluster(project: LabProject) -> None:
    settings = project.folder / "lab.toml"
    text = settings.read_text(encoding="utf-8").replace("cap = 12", "cap = 4")
    settings.write_text(text, encoding="utf-8")
    said = _night(project)
    assert said.code == 1, said.text
    matrix = said.json
    broken = {
        (row["versions"]["kai_scheduler"], cell["claim"])
        for row in matrix["rows"]
        for cell in row["claims"]
        if cell["kind"] == "regression"
    }
    assert broken == {("v0.19.0", 2), ("v0.19.0", 7)}, said.text
    blamed = {tuple(cell["blamed"]) for row in matrix["rows"] for cell in row["claims"] if cell["kind"] == "regression"}
    assert blamed == {("kai_scheduler",)}
    values = {row["versions"]["kai_scheduler"]: row["values"] for row in matrix["rows"]}
    assert [version for version, found in values.items() if found["verdict"] != "held"] == ["v0.19.0"]
    assert values["v0.19.0"]["checks"] == ["kai_release.values_have_effect"]
    assert "The nearest key there is global.gpuSharingMode" in values["v0.19.0"]["message"]
    [dead] = matrix["dead_values"]
    assert (dead["blamed"], dead["first_bad"]["version"]) == (["kai_scheduler"], "v0.19.0")
    page = (project.settings.state_root / "_nightly" / "matrix" / "matrix.html").read_text(encoding="utf-8")
    assert "Config kai-config binder.plugins.hamicore.enabled: true -&gt; false" in page, "the charts are rendered"
    labs = [path.parent for path in project.settings.state_root.glob("*/reports")]
    assert len(labs) == 4
    assert not list(project.settings.state_root.glob("*/lab.json")), "a candidate that may be on another backend next"
    assert all(not (lab / "rehearsal" / "server.json").exists() for lab in labs), "a candidate's cluster is left"


def _night(project: LabProject) -> Said:
    """`kai-lab nightly --json` as a person runs it; a night takes longer than other commands."""
    done = subprocess.run(
        [sys.executable, "-m", "kai_lab_pipeline.cli", "nightly", "--json"],
        cwd=project.folder,
        env=project.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def test_a_registry_that_is_down_is_told_and_nothing_is_lost(project: LabProject) -> None:
    mirrors = json.dumps({"ghcr.io": "http://127.0.0.1:9", "docker.io": "http://127.0.0.1:9"})
    before = set(Nights(project.settings).sets())
    said = project.run("versions", KAI_LAB_MIRRORS=mirrors)
    assert said.code == 3, said.text
    assert "could not look" in said.out
    assert set(Nights(project.settings).sets()) == before


def test_the_sensor_adds_partitions_and_says_what_it_left_out(project: LabProject, tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance=instance, definitions=build_definitions(project.settings))
        sensor = new_chart_versions_sensor(project.settings)
        result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        assert result.dynamic_partitions_requests is not None
        added = [key for request in result.dynamic_partitions_requests for key in request.partition_keys]
        assert added
        assert set(added) <= set(Nights(project.settings).sets())
        assert result.skip_reason is not None
        said = result.skip_reason.skip_message or ""
        assert "v0.20.1 (retracted" in said
        assert "not understood: v0.18.2-hotfix" in said
        assert not result.run_requests


def test_the_schedule_runs_what_has_no_verdict_yet(project: LabProject) -> None:
    candidate = Group("candidate", project.settings, ("candidate",))
    schedule = nightly_schedule(project.settings, candidate_job(candidate))
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    with (
        dg.DagsterInstance.local_temp() as instance,
        dg.build_schedule_context(instance=instance, scheduled_execution_time=now()) as context,
    ):
        requests = schedule(context)
        assert isinstance(requests, list)
        keys = {request.partition_key for request in requests}
        nights = Nights(project.settings)
        judged = {record.key for record in nights.records()}
        assert keys
        assert not keys & judged
        assert keys <= set(instance.get_dynamic_partitions("version_sets"))


def test_ctrl_c_ends_the_night_and_not_just_one_of_its_labs(tmp_path: Path) -> None:
    made = make_project(tmp_path / "project")
    state = made.settings.state_root
    night = subprocess.Popen(
        [sys.executable, "-m", "kai_lab_pipeline.cli", "nightly"],
        cwd=made.folder,
        env=made.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until = time.monotonic() + 120
        while not list(state.glob("*/steps/*/cluster.json")):  # the first lab is being built
            assert night.poll() is None
            assert time.monotonic() < until, "no cluster was made"
            time.sleep(0.05)
        night.send_signal(signal.SIGINT)
        said, _ = night.communicate(timeout=120)
    finally:
        night.kill()
        night.wait()
    assert night.returncode == 130, said
    assert "Interrupted; the next run goes on from here." in said
    assert "[1/" in said
    assert "[2/" not in said
    assert Nights(made.settings).records() == []
    assert not list(state.glob("*/rehearsal/server.json")), "the interrupted candidate's cluster is left"
    assert made.run("down", "--all").code == 0
