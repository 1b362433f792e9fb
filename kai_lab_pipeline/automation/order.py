"""The lab's order in a run whose selection skips a link.

Dagster orders direct neighbours alone: of KAI and the shared pod, selected without the queues and the pod between them,
it would begin with both at once. Here what is selected waits for all of its upstream that is selected as well, and is
not executed where a gate there is red, as with a link between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster._core.execution.plan.plan import ExecutionPlan

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.lab.spec import UPSTREAM
from kai_lab_pipeline.workbench.lab import ancestors


class OrderedPlan(ExecutionPlan):
    """An execution plan in which the steps of `groups` wait for all of their upstream."""

    groups: Sequence[Group] = ()

    def get_executable_step_deps(self) -> Mapping[str, set[str]]:
        deps = super().get_executable_step_deps()
        further = {step: needs for group in self.groups for step, needs in _needs(group).items()}
        return {step: needs | (further.get(step, set()) & deps.keys()) for step, needs in deps.items()}


def in_order(plan: ExecutionPlan, groups: Sequence[Group]) -> ExecutionPlan:
    """`plan` with what the lab's order asks for besides."""
    ordered = OrderedPlan(*plan)
    ordered.groups = groups
    return ordered


def _needs(group: Group) -> dict[str, set[str]]:
    """The steps that each asset's step waits for: its upstream's, and their checks where a gate is among them."""
    gated = {gate.partition(".")[0] for gate in group.gates}
    return {
        _step(group, asset): {
            step
            for upper in ancestors(asset)
            for step in (_step(group, upper), *([group.checks_of(upper)] if upper in gated else []))
        }
        for asset in UPSTREAM
    }


def _step(group: Group, asset: str) -> str:
    return group.key(asset).to_python_identifier()
