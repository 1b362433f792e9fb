"""The night through the real daemon: the sensor finds version sets, the schedule runs one, the matrix follows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kai_lab_pipeline.workbench.nights import Nights
from kai_lab_pipeline_tests.chromium import chromium, find_chromium
from kai_lab_pipeline_tests.lab_project import make_project
from kai_lab_pipeline_tests.test_ui import REPOSITORY, Ui, dev, picture

NIGHT_S = 400

pytestmark = [
    pytest.mark.ui,
    pytest.mark.timeout(NIGHT_S + 100),
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine"),
]

START_SENSOR = """mutation($s: SensorSelector!) { startSensor(sensorSelector: $s) {
    __typename ... on PythonError { message } } }"""
START_SCHEDULE = """mutation($s: ScheduleSelector!) { startSchedule(scheduleSelector: $s) {
    __typename ... on PythonError { message } } }"""
TICKS = """query($s: InstigationSelector!) { instigationStateOrError(instigationSelector: $s) {
    ... on InstigationState { ticks(limit: 5) { status skipReason runIds error { message } } } } }"""
PARTITIONS = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) {
    ... on AssetNode { partitionKeys } } }"""
RUNS = """{ runsOrError { ... on Runs { results { runId status jobName tags { key value } } } } }"""


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    project = make_project(tmp_path_factory.mktemp("night"))
    settings = project.folder / "lab.toml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(
        text.replace('cron = "0 2 * * *"', 'cron = "* * * * *"').replace("cap = 12", "cap = 1"), encoding="utf-8"
    )
    with dev(project) as running:
        yield running
        _rest(running)
    said = project.run("down", "--all")
    assert said.code == 0, said.text


STOP_SCHEDULE = """mutation($id: String!) { stopRunningSchedule(id: $id) {
    __typename ... on PythonError { message } } }"""
SCHEDULE_ID = """query($s: InstigationSelector!) { instigationStateOrError(instigationSelector: $s) {
    ... on InstigationState { id } } }"""


def _rest(ui: Ui) -> None:
    """Turn the schedule off and let what it began end: a night that is cut off is another test's matter."""
    found = ui.ask(SCHEDULE_ID, s={**REPOSITORY, "name": "nightly"})["instigationStateOrError"]["id"]
    ui.ask(STOP_SCHEDULE, id=found)
    ended = {"SUCCESS", "FAILURE", "CANCELED"}
    until(
        lambda: all(run["status"] in ended for run in ui.ask(RUNS)["runsOrError"]["results"]),
        lambda: f"runs go on: {ui.ask(RUNS)}",
    )


def until(found: Callable[[], Any], what: Callable[[], str], deadline_s: float = NIGHT_S) -> Any:
    """Ask the server, which announces nothing cheaply, until it has what is wanted."""
    end = time.monotonic() + deadline_s
    while True:
        answer = found()
        if answer:
            return answer
        assert time.monotonic() < end, what()
        time.sleep(0.5)


def ticks(ui: Ui, name: str) -> list[dict[str, Any]]:
    state = ui.ask(TICKS, s={**REPOSITORY, "name": name})["instigationStateOrError"]
    return list(state.get("ticks") or [])


def runs_of(ui: Ui, job: str) -> list[dict[str, Any]]:
    return [run for run in ui.ask(RUNS)["runsOrError"]["results"] if run["jobName"] == job]


def partitions(ui: Ui) -> list[str]:
    node = ui.ask(PARTITIONS, key={"path": ["candidate", "boundary_report"]})["assetNodeOrError"]
    return list(node["partitionKeys"])


LAUNCHPAD = "/locations/kai_lab_pipeline/jobs/add_version_set/playground"
LAUNCH = """[...document.querySelectorAll('button')].find((b) => /^Launch run$/i.test(b.innerText.trim()))"""
CLICK = f"(() => {{ const it = {LAUNCH}; if (!it || it.disabled) return false; it.click(); return true; }})()"
WANTED = """ops:
  version_set:
    config:
      versions:
        kai_scheduler: 0.0.0-d5bc503
"""


def test_a_version_set_is_added_from_the_launchpad(ui: Ui, tmp_path: Path) -> None:
    with chromium(tmp_path / "profile", width=1500, height=800) as page:
        page.open(ui.url + LAUNCHPAD)
        page.wait("document.body.innerText.includes('v0.17.0')", "the pinned versions in the launchpad, to be edited")
        picture(page, "add-version-set.png", tmp_path)
        page.open(f"{ui.url}{LAUNCHPAD}/setup?config={quote(WANTED)}")
        page.wait("document.body.innerText.includes('0.0.0-d5bc503')", "the version set in the launchpad")
        page.wait(CLICK, "a click on the launch button")
        done = until(lambda: runs_of(ui, "add_version_set"), lambda: f"no run: {page.text()[:800]}")
        assert ui.wait_ended(done[0]["runId"]) == "SUCCESS"
    [key] = partitions(ui)
    assert key.startswith("kai-0-0-0-d5bc503")
    assert Nights(ui.project.settings).load(key).version_set.versions["kai_scheduler"] == "0.0.0-d5bc503"


def test_a_night_in_the_ui(ui: Ui, tmp_path: Path) -> None:
    assert ui.ask(START_SENSOR, s={**REPOSITORY, "sensorName": "new_chart_versions"})["startSensor"]["__typename"] == (
        "Sensor"
    )
    until(
        lambda: any(key.startswith("kai-0-18-2") for key in partitions(ui)),
        lambda: f"no partition was added; ticks: {ticks(ui, 'new_chart_versions')}",
    )
    keys = partitions(ui)
    tick = until(lambda: ticks(ui, "new_chart_versions"), lambda: "no tick")[0]
    assert "v0.20.1 (retracted" in tick["skipReason"]
    assert not tick["runIds"], "the sensor only adds partitions"

    started = ui.ask(START_SCHEDULE, s={**REPOSITORY, "scheduleName": "nightly"})["startSchedule"]
    assert started["__typename"] == "ScheduleStateResult", started
    nights = Nights(ui.project.settings)
    until(nights.records, lambda: f"no verdict; ticks {ticks(ui, 'nightly')}; runs {runs_of(ui, 'candidate_lab')}")
    record = nights.records()[0]
    assert record.backend == "rehearsal"
    assert set(record.claims) == set(range(1, 9))
    assert all(found.verdict == "held" for found in record.claims.values()), "the pinned versions are the baseline"
    page_file = nights.folder / "matrix" / "matrix.html"
    until(  # it is written once for the night's beginning, and again for what it judged
        lambda: page_file.exists() and record.key in page_file.read_text(encoding="utf-8"),
        lambda: f"the matrix was not written; runs: {runs_of(ui, 'write_matrix')}",
    )
    with chromium(tmp_path / "profile", width=1500, height=900) as page:
        page.open(f"{ui.url}/assets/candidate/boundary_report?view=partitions")
        page.wait(f"document.body.innerText.includes({keys[0]!r})", "the partitions")
        picture(page, "partitions.png", tmp_path)


def test_a_matrix_of_a_whole_night_is_a_page(tmp_path: Path) -> None:
    """The page of several nights with regressions, as `kai-lab nightly` leaves it, opens without a network."""
    from kai_lab_pipeline_tests.matrix_sample import write_sample

    file = write_sample(tmp_path)
    with chromium(tmp_path / "profile", width=1300, height=1000) as page:
        page.open(file.as_uri())
        page.wait("document.body.innerText.includes('v0.19.0')", "the matrix")
        picture(page, "matrix.png", tmp_path)
