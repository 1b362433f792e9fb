"""A run that is terminated in the UI lets go of the lab at once, and the next one goes on from what is there."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kai_lab_pipeline.workbench.state import WriteLock
from kai_lab_pipeline_tests.lab_project import TEST_S, make_project
from kai_lab_pipeline_tests.soak.kills import history, whole_run
from kai_lab_pipeline_tests.test_ui import REPOSITORY, Ui, _pause, dev

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(600)]
FREE_S = 60.0
"""Longest time from the cancelled run to the free lab, seconds: far less than the step would have waited."""
NEVER_READY = "[rehearsal.faults]\nplugin_not_registering = true\n\n[rehearsal]\n"
LAUNCH = """mutation($p: ExecutionParams!) { launchRun(executionParams: $p) {
    __typename ... on LaunchRunSuccess { run { runId } } } }"""
TERMINATE = "mutation($id: String!) { terminateRun(runId: $id) { __typename } }"
STEPS = "query($id: ID!) { runOrError(runId: $id) { ... on Run { stepStats { stepKey status } } } }"


def test_terminate_lets_go_of_the_lab(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = make_project(tmp_path_factory.mktemp("terminated"), KAI_LAB_PATIENCE_S="300")
    made.edit("lab.toml", "[rehearsal]\n", NEVER_READY)  # the device plugin's step waits, for as long as it may
    try:
        with dev(made) as ui:
            run_id = _launch(ui)
            _wait_for_step(ui, run_id, "device_plugin")
            assert WriteLock(made.lab_dir).holder() is not None
            assert ui.ask(TERMINATE, id=run_id)["terminateRun"]["__typename"] == "TerminateRunSuccess"
            assert ui.wait_ended(run_id) == "CANCELED"
            _wait_free(WriteLock(made.lab_dir))
        made.edit("lab.toml", NEVER_READY, "[rehearsal]\n")
        made.variables["KAI_LAB_PATIENCE_S"] = "30"
        assert whole_run(made)["counts"]["held"] == 8
        assert history(made)[run_id] == "CANCELED"
    finally:
        made.end()


def _launch(ui: Ui) -> str:
    params: dict[str, Any] = {
        "selector": {**REPOSITORY, "jobName": "build_lab"},
        "mode": "default",
        "runConfigData": {},
    }
    found = ui.ask(LAUNCH, p=params)["launchRun"]
    assert found["__typename"] == "LaunchRunSuccess", found
    return str(found["run"]["runId"])


def _wait_free(lock: WriteLock) -> None:
    """The run's process ends a moment after its run was recorded as canceled."""
    until = time.monotonic() + FREE_S
    while (holder := lock.holder()) is not None:
        assert time.monotonic() < until, f"still held: {holder}"
        _pause()


def _wait_for_step(ui: Ui, run_id: str, step: str) -> None:
    until = time.monotonic() + TEST_S
    seen: list[Any] = []
    while time.monotonic() < until:
        seen = ui.ask(STEPS, id=run_id)["runOrError"]["stepStats"]
        if {"stepKey": step, "status": "IN_PROGRESS"} in [{**one} for one in seen]:
            return
        _pause()
    raise AssertionError(f"{step} did not begin: {seen}")
