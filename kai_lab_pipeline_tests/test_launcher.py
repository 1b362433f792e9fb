"""A run gets one process, whoever takes it from the queue and how often."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import dagster as dg
import pytest
import yaml
from dagster._core.launcher import LaunchRunContext

from kai_lab_pipeline.automation.launcher import OneProcessPerRun
from kai_lab_pipeline_tests.lab_project import CHECKOUT

LAUNCHED = "dagster.DefaultRunLauncher.launch_run"


def test_a_run_is_launched_once_and_again_only_when_that_failed(tmp_path: Path) -> None:
    configured = yaml.safe_load((CHECKOUT / "dagster.yaml").read_text(encoding="utf-8"))["run_launcher"]
    with (
        dg.DagsterInstance.local_temp(str(tmp_path), overrides={"run_launcher": configured}) as one,
        dg.DagsterInstance.from_config(str(tmp_path)) as other,
    ):
        job = dg.job(name="build_lab")(lambda: None)
        run = one.create_run_for_job(job)
        context = mock.create_autospec(LaunchRunContext, instance=True, dagster_run=run)
        launcher = one.run_launcher
        assert isinstance(launcher, OneProcessPerRun)
        with mock.patch(LAUNCHED, side_effect=ConnectionError("no code location")), pytest.raises(ConnectionError):
            launcher.launch_run(context)
        with mock.patch(LAUNCHED) as launched:
            launcher.launch_run(context)
            beside = OneProcessPerRun()
            beside.register_instance(other)
            beside.launch_run(context)
            launcher.launch_run(context)
            assert launched.call_count == 1
            # The UI executes a run again with all tags of the first one.
            (first,) = one.get_runs()
            again = one.create_run_for_job(
                job, parent_run_id=first.run_id, root_run_id=first.run_id, tags=dict(first.tags)
            )
            launcher.launch_run(mock.create_autospec(LaunchRunContext, instance=True, dagster_run=again))
            assert launched.call_count == 2
