"""The Dagster UI as a person uses it: the group page, one click on "Materialize all", one check alone, the report.

LAB_PICTURES names a folder for the pictures of the documentation; without it they are made and dropped.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from kai_lab_pipeline.commands.dev import GROUP_PAGE
from kai_lab_pipeline.lab.spec import ASSETS, CHECKS, CLAIMS
from kai_lab_pipeline_tests.chromium import Page, chromium, find_chromium
from kai_lab_pipeline_tests.lab_project import TEST_S, LabProject, free_port, listens, make_project

pytestmark = [
    pytest.mark.ui,
    pytest.mark.xdist_group("ui"),
    pytest.mark.timeout(TEST_S),
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine"),
]

REPOSITORY = {"repositoryLocationName": "kai_lab_pipeline", "repositoryName": "__repository__"}
PICTURES = os.environ.get("LAB_PICTURES")


@dataclass
class Ui:
    """A running `kai-lab dev`."""

    project: LabProject
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, query: str, **variables: Any) -> Any:
        answer = httpx.post(f"{self.url}/graphql", json={"query": query, "variables": variables}, timeout=60).json()
        assert "errors" not in answer, answer
        return answer["data"]

    def location(self) -> str:
        """Load status of the code location, or why there is none yet."""
        query = """{ workspaceOrError { ... on Workspace {
            locationEntries { name loadStatus locationOrLoadError { __typename } } } } }"""
        try:
            entries = self.ask(query)["workspaceOrError"]["locationEntries"]
        except (httpx.HTTPError, ValueError) as error:
            return type(error).__name__
        return ", ".join(
            f"{e['name']} {e['loadStatus']} {(e['locationOrLoadError'] or {}).get('__typename')}" for e in entries
        )

    def runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("{ runsOrError { ... on Runs { results { runId status } } } }")[
            "runsOrError"
        ]["results"]
        return found

    def wait_ended(self, run_id: str) -> str:
        """Wait until a run has ended, by the server's own stream of runs; its status."""
        until = time.monotonic() + TEST_S
        while time.monotonic() < until:
            status = next((run["status"] for run in self.runs() if run["runId"] == run_id), "")
            if status in ("SUCCESS", "FAILURE", "CANCELED"):
                return str(status)
            _pause()
        raise AssertionError(f"run {run_id} did not end: {self.runs()}")


def _pause() -> None:
    """Between two questions to a server that announces nothing."""
    time.sleep(0.2)


@contextlib.contextmanager
def dev(project: LabProject, *, plain: bool = False) -> Iterator[Ui]:
    """`kai-lab dev` (or Dagster's own command) on a free port, with its code location loaded."""
    port = free_port()
    log = project.folder / f"dev-{port}.log"
    kai_lab = ["kai_lab_pipeline.cli", "dev", "--port", str(port)]
    dagster = ["dagster", "dev", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port)]
    with (
        open(log, "w", encoding="utf-8") as file,
        subprocess.Popen(
            [sys.executable, "-m", *(dagster if plain else kai_lab)],
            cwd=project.folder,
            env=project.environment() | {"DAGSTER_HOME": str(project.folder / ".dagster_home")},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as server,
    ):
        try:
            ui = Ui(project, port)
            until = time.monotonic() + TEST_S / 2
            while (status := ui.location()) != "kai_lab_pipeline LOADED RepositoryLocation":
                assert server.poll() is None, log.read_text(encoding="utf-8")
                assert time.monotonic() < until, f"{status}\n{log.read_text(encoding='utf-8')[-3000:]}"
                _pause()
            yield ui
        finally:
            server.terminate()
            try:
                server.wait(60)
                _wait_no_process_left(server.pid)
            except (subprocess.TimeoutExpired, AssertionError):
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()
                raise
    assert not listens(port)


def _wait_no_process_left(group: int) -> None:
    """All that the server started has ended with it."""
    until = time.monotonic() + 30
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.killpg(group, 0)
            assert time.monotonic() < until, "dagster dev left processes behind"
            _pause()


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    made = make_project(tmp_path_factory.mktemp("ui"))
    try:
        with dev(made) as running:
            yield running
    finally:
        made.end()


@pytest.fixture(scope="module")
def page(ui: Ui, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("profile"), width=2800, height=1000) as opened:
        yield opened


@pytest.fixture(scope="module")
def built(ui: Ui, page: Page) -> str:
    """The run that one click on "Materialize all" started, ended; its id."""
    page.open(ui.url + GROUP_PAGE)
    page.wait(BUTTON, 'the button "Materialize all"')
    page.wait(
        f"(() => {{ const found = {BUTTON}; if (found.disabled) return false; found.click(); return true; }})()",
        "a click",
    )
    until = time.monotonic() + 120
    while not (runs := ui.runs()):
        assert time.monotonic() < until, f"no run was started; the page says: {page.text()[:1500]}"
        _pause()
    assert ui.wait_ended(runs[0]["runId"]) == "SUCCESS"
    return str(runs[0]["runId"])


HIDE_NAVIGATION = (
    """[...document.querySelectorAll('button')].find((b) => /Hide navigation/.test(b.innerText))?.click()"""
)
BUTTON = """[...document.querySelectorAll('button')].find((b) => /^Materialize all$/.test(b.innerText.trim()))"""


def picture(page: Page, name: str, folder: Path) -> Path:
    file = folder / name
    page.screenshot(file)
    assert 20_000 < file.stat().st_size < 300_000
    if PICTURES:
        shutil.copyfile(file, Path(PICTURES) / name)
    return file


def test_one_click_on_materialize_all_makes_every_asset_green(ui: Ui, page: Page, built: str, tmp_path: Path) -> None:
    query = """query($keys: [AssetKeyInput!]) { assetNodes(assetKeys: $keys) {
        assetKey { path } assetMaterializations(limit: 1) { runId }
        assetChecksOrError { ... on AssetChecks { checks {
          name executionForLatestMaterialization { status runId } } } } } }"""
    nodes = {n["assetKey"]["path"][0]: n for n in ui.ask(query, keys=[{"path": [a]} for a in ASSETS])["assetNodes"]}
    assert set(nodes) == set(ASSETS)
    for asset, node in nodes.items():
        assert [m["runId"] for m in node["assetMaterializations"]] == [built], asset
        checks = {c["name"]: c["executionForLatestMaterialization"] for c in node["assetChecksOrError"]["checks"]}
        assert set(checks) >= {check.name for check in CHECKS.get(asset, ())}
        assert {name: c and c["status"] for name, c in checks.items()} == dict.fromkeys(checks, "SUCCEEDED"), asset
    page.evaluate(HIDE_NAVIGATION)  # so that the graph is wide enough to show checks on its assets
    page.open(ui.url + GROUP_PAGE)
    shown = "document.body.innerText"
    page.wait(f"{shown}.includes('boundary_report') && {shown}.includes('shared_gpu_pod')", "the graph")
    page.wait(f"({shown}.match(/Materialized/g) || []).length >= {len(ASSETS)}", "every asset shown as materialized")
    text = page.text()
    assert "Failed" not in text
    counts = [(int(passed), int(of)) for passed, of in re.findall(r"(\d+) / (\d+) Passed", text)]
    # Besides the checks that evidence is judged by: the machine's on cluster, and the one of boundary_report.
    wanted = [len(checks) + (asset == "cluster") for asset, checks in CHECKS.items()] + [1]
    assert sorted(counts) == sorted((count, count) for count in wanted), "every check is shown green on its asset"
    picture(page, "lab-graph.png", tmp_path)


def test_one_check_is_executed_alone(ui: Ui, built: str) -> None:
    parameters = {
        "selector": {
            **REPOSITORY,
            "jobName": "__ASSET_JOB",
            "assetSelection": [],
            "assetCheckSelection": [{"assetKey": {"path": ["labelled_node"]}, "name": "gpu_memory_label"}],
        },
        "mode": "default",
        "runConfigData": {},
    }
    mutation = """mutation($p: ExecutionParams!) { launchRun(executionParams: $p) {
        __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
    launched = ui.ask(mutation, p=parameters)["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    run_id = launched["run"]["runId"]
    assert ui.wait_ended(run_id) == "SUCCESS"
    query = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
        assetMaterializations(limit: 1) { runId }
        assetChecksOrError { ... on AssetChecks { checks {
          name executionForLatestMaterialization { status runId } } } } } } }"""
    node = ui.ask(query, key={"path": ["labelled_node"]})["assetNodeOrError"]
    assert [m["runId"] for m in node["assetMaterializations"]] == [built], "nothing was built"
    runs = {c["name"]: c["executionForLatestMaterialization"]["runId"] for c in node["assetChecksOrError"]["checks"]}
    assert [name for name, run in runs.items() if run == run_id] == ["gpu_memory_label"]


def test_the_report_is_reached_from_the_metadata_of_boundary_report(
    ui: Ui, page: Page, built: str, tmp_path: Path
) -> None:
    query = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
        assetMaterializations(limit: 1) { metadataEntries {
          label ... on MarkdownMetadataEntry { mdStr } ... on PathMetadataEntry { path } } } } } }"""
    node = ui.ask(query, key={"path": ["boundary_report"]})["assetNodeOrError"]
    entries = {e["label"]: e for e in node["assetMaterializations"][0]["metadataEntries"]}
    assert "rehearsal" in entries["report"]["mdStr"].splitlines()[0].lower()
    html = Path(entries["html"]["path"])
    assert html.is_relative_to(ui.project.lab_dir)
    page.open(f"{ui.url}/assets/boundary_report?view=overview")
    page.wait(
        "[...document.querySelectorAll('button, a')].some((e) => /Show Markdown/i.test(e.innerText))",
        "the report in the metadata",
    )
    page.evaluate("[...document.querySelectorAll('button, a')].find((e) => /Show Markdown/i.test(e.innerText)).click()")
    page.wait(f"document.body.innerText.includes({CLAIMS[4].statement!r})", "the report as Markdown in the UI")
    page.resize(1100, 1000)
    page.open(html.as_uri())
    page.wait(f"document.body.innerText.includes({CLAIMS[7].statement[:20]!r})", "the report as a page")
    picture(page, "report.png", tmp_path)
