"""A run with a process per step: one that touches no lab, so that only the run's process holds it, and one that does.

Each says which it is in one FIFO, and waits for the other.

`main` executes it, with the FIFOs of the folder that WAITING_JOB_FOLDER names.
"""

import os
from pathlib import Path

import dagster as dg

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.step import LabResource, lab_of, told
from kai_lab_pipeline.automation.executor import IN_PROCESSES, holding
from kai_lab_pipeline.settings import load_settings

FOLDER = "WAITING_JOB_FOLDER"
ALIVE, GO_ON = "alive", "go-on"
"""FIFOs: a waiting step writes its name in one and keeps it open, and waits for the other."""


def job() -> dg.JobDefinition:
    """The job, for Dagster to build again in each of its processes."""
    group = Group("lab", load_settings())

    @dg.op(pool=group.pool)
    def enters(context: dg.OpExecutionContext, lab: LabResource) -> None:
        with told():
            lab_of(context, lab, group).hold("a step")

    @dg.op(pool=group.pool, ins={"after": dg.In(dg.Nothing)})
    def beside(context: dg.OpExecutionContext, lab: LabResource) -> None:
        _wait("beside")

    @dg.op(pool=group.pool, ins={"after": dg.In(dg.Nothing)})
    def within(context: dg.OpExecutionContext, lab: LabResource) -> None:
        lab_of(context, lab, group).hold("a step")
        _wait("within")

    @dg.job(
        executor_def=holding(IN_PROCESSES, [group]),
        resource_defs={"lab": LabResource(project=str(group.settings.root))},
    )
    def waiting() -> None:
        within(beside(enters()))

    return waiting


def _wait(name: str) -> None:
    folder = Path(os.environ[FOLDER])
    os.write(os.open(folder / ALIVE, os.O_WRONLY), name.encode())  # left open until this process ends
    (folder / GO_ON).read_text()


def main() -> int:
    """Execute the job and print why a step of it failed; returns the exit code."""
    with (
        dg.DagsterInstance.get() as instance,
        dg.execute_job(dg.reconstructable(job), instance=instance, raise_on_error=False) as result,
    ):
        for event in result.all_events:
            if event.is_step_failure and event.step_failure_data.user_failure_data is not None:
                print(event.step_failure_data.user_failure_data.description)
        return 0 if result.success else 1
