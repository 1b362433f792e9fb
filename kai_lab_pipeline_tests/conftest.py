"""Fixtures and markers that several test files share."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kai_lab_pipeline.rehearsal import process
from kai_lab_pipeline.rehearsal.registry import RehearsalRegistry, lab_registry, mirrors, serve
from kai_lab_pipeline.settings import Settings, load_settings

pytest.register_assert_rewrite("kai_lab_pipeline_tests.scenario_held", "kai_lab_pipeline_tests.scenario_runs")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started by a script in the background: the processes that tests start and end would ignore their end as well.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "kubectl: runs the kubectl command")
    config.addinivalue_line("markers", "ui: drives the Dagster UI in a headless Chromium")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests may take longest begin first: at the end, short ones fill all processes."""
    longest: dict[Path, float] = {}
    for item in items:
        marker = item.get_closest_marker("timeout")
        longest[item.path] = max(longest.get(item.path, 0.0), float(marker.args[0]) if marker else 0.0)
    items.sort(key=lambda item: -longest[item.path])


@pytest.fixture(scope="session")
def rehearsal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[process.ServerHandle]:
    """The rehearsal's API server, without the simulated components, once per test process."""
    state = tmp_path_factory.mktemp("rehearsal")
    handle = process.ensure(state, name="tests", options={"components": False})
    yield handle
    process.stop(state, forget=True)


@pytest.fixture
def registry() -> RehearsalRegistry:
    """The rehearsal's charts, for a test to change."""
    return lab_registry()


@pytest.fixture
def registry_settings(
    tmp_path: Path, registry: RehearsalRegistry, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> Iterator[Settings]:
    """The settings of a project whose charts are looked up in `registry`, also by what it starts."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    shutil.copy(pytestconfig.rootpath / "lab.toml", tmp_path)
    shutil.copytree(pytestconfig.rootpath / "manifests", tmp_path / "manifests")
    with serve(registry) as url:
        monkeypatch.setenv("KAI_LAB_MIRRORS", json.dumps(mirrors(url)))
        yield load_settings(tmp_path)
