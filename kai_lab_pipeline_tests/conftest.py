"""Fixtures and markers that several test files share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kai_lab_pipeline.rehearsal import process

pytest.register_assert_rewrite("kai_lab_pipeline_tests.scenario_held", "kai_lab_pipeline_tests.scenario_runs")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kubectl: runs the kubectl command")
    config.addinivalue_line("markers", "ui: drives the Dagster UI in a headless Chromium")


@pytest.fixture(scope="session")
def rehearsal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[process.ServerHandle]:
    """The rehearsal's API server, without the simulated components, once per test process."""
    state = tmp_path_factory.mktemp("rehearsal")
    handle = process.ensure(state, name="tests", options={"components": False})
    yield handle
    process.stop(state, forget=True)
