"""How the steps of a run are executed: one after the other in the run's process, or a process for each.

Between two processes nobody would hold the lab, and another run could slip in. So the run's own process, be it
`kai-lab run` or one that Dagster's UI started, holds it from before the first step to its own end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.in_process import InProcessExecutor
from dagster._core.system_config.objects import ResolvedRunConfig

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.step import LabResource, lab_of_run
from kai_lab_pipeline.automation.order import in_order
from kai_lab_pipeline.automation.quick_history import quick_history
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.mendable import MENDABLE

PARTITION_TAG = "dagster/partition"
IN_PROCESSES = dg.multiprocess_executor.configured(
    {"start_method": {"forkserver": {"preload_modules": ["kai_lab_pipeline.definitions"]}}}
)
"""A process for each step, from one that has all modules already."""


def lab_executor(settings: Settings, groups: Sequence[Group]) -> dg.ExecutorDefinition:
    """The executor of the project's jobs."""
    # A process per step costs more than a whole step of the rehearsal; real steps take minutes and overlap.
    return holding(dg.in_process_executor if settings.lab.backend == "rehearsal" else IN_PROCESSES, groups)


def holding(inner: dg.ExecutorDefinition, groups: Sequence[Group]) -> dg.ExecutorDefinition:
    """`inner`, by a process that holds the labs of `groups` that the run has steps of."""

    def create(context: dg.InitExecutorContext) -> dg.Executor:
        make = inner.executor_creation_fn
        assert make is not None
        return _Holding(make(context), groups)

    schema: Any = inner.config_schema
    return dg.ExecutorDefinition(
        name=inner.name,
        config_schema=schema,
        requirements=inner.get_requirements,
        executor_creation_fn=create,
    )


class _Holding(dg.Executor):
    def __init__(self, inner: dg.Executor, groups: Sequence[Group]) -> None:
        self._inner = inner
        self._groups = groups

    @property
    def retries(self) -> RetryMode:
        return self._inner.retries

    def execute(
        self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan
    ) -> Iterator[dg.DagsterEvent]:
        executor = self._inner
        try:
            for group in self._groups:
                if any(step.pool == group.pool for step in execution_plan.get_steps_to_execute_in_topo_order()):
                    _hold(plan_context, group)
        except MENDABLE:
            # The first step meets the same and tells it. It is done in this process, so that a lab that has become
            # free meanwhile is held by the whole run as well.
            executor = InProcessExecutor(self.retries)
        with quick_history():
            yield from executor.execute(plan_context, in_order(execution_plan, self._groups))


def _hold(context: PlanOrchestrationContext, group: Group) -> None:
    """Hold a group's lab until this process ends or somebody releases it. Raises LabError, SettingsError, OSError."""
    run = context.dagster_run
    config: Any = ResolvedRunConfig.build(context.job.get_definition(), run.run_config).resources["lab"].config
    partition = None if group.partitions is None else run.tags[PARTITION_TAG]
    lab = lab_of_run(LabResource(**config), group, run.run_id, partition, context.log.info)
    lab.hold(f"run {run.run_id[:8]} of {run.job_name}")
