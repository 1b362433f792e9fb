"""Runs that a kill cut off: Dagster would show them as going on for ever."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kai_lab_pipeline.rehearsal.state import process_start

if TYPE_CHECKING:
    from dagster import DagsterInstance, DagsterRun

PROCESS_TAG = "kai_lab/process"
"""Run tag of a run that `kai-lab` executes itself: the pid and when that process started."""


def process_tag() -> str:
    """This process, so that another one with the same number is not taken for it later."""
    return f"{os.getpid()} {process_start(os.getpid())}"


def close_unfinished(instance: DagsterInstance) -> list[DagsterRun]:
    """Record runs whose process is gone as failed; returns them. Runs of a UI are its daemon's matter."""
    import dagster as dg

    going = [
        dg.DagsterRunStatus.NOT_STARTED,  # killed between the entry in the history and the first step
        dg.DagsterRunStatus.STARTING,
        dg.DagsterRunStatus.STARTED,
        dg.DagsterRunStatus.CANCELING,
    ]
    closed = []
    for record in instance.get_run_records(dg.RunsFilter(statuses=going)):
        run = record.dagster_run
        pid, _, started = run.tags.get(PROCESS_TAG, "").partition(" ")
        # What the UI executes again has the tags of the first run, and a process that its daemon looks after.
        if not pid or run.parent_run_id is not None or process_start(int(pid)) == started:
            continue
        instance.report_run_failed(run, f"Interrupted: process {pid} of this run was killed. The next run goes on.")
        closed.append(run)
    return closed
