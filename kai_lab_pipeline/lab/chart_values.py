"""Whether the values that the lab sets still mean something in a candidate's chart: a check before any cluster.

Helm accepts a key that a chart does not read and says nothing (KAI's chart has no schema for its values), so a renamed
key would only show much later, as something else that is broken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kai_lab_pipeline.lab.chart_diff import ChartDiff, ValueFate, ValueProblem
from kai_lab_pipeline.lab.spec import VALUES_HAVE_EFFECT, CheckSpec
from kai_lab_pipeline.lab.verdict import Finding, broken, held, not_evaluated

_OBSERVED: Mapping[ValueFate, str] = {
    ValueFate.DEPRECATED: "has no default and is read by the templates",
    ValueFate.OPEN: "is below a part that the chart leaves free",
}
"""What was seen of a key that is no plain default and not without effect either."""


def values_check(asset: str) -> CheckSpec:
    """The check of a candidate's release."""
    return CheckSpec(asset, VALUES_HAVE_EFFECT, "Every value that the lab sets exists in the candidate's chart.")


def judge_values(diff: ChartDiff, ours: Mapping[str, Any]) -> Finding:
    """Broken with each dead key, the chart's version and the nearest key that exists there."""
    chart = f"{diff.chart} {diff.new}"
    expected = f"{chart} reads {', '.join(ours)}" if ours else f"nothing is set for {chart}"
    if diff.dead_values:
        keys = ", ".join(problem.key for problem in diff.dead_values)
        said = " ".join(_sentence(problem, chart) for problem in diff.dead_values)
        return broken(expected, f"no effect in {chart}: {keys}", said, transient=False)
    said = " ".join(problem.sentence for problem in diff.values)
    unread = [problem.key for problem in diff.values if problem.fate is ValueFate.UNREAD]
    if unread:
        observed = f"no default and no template to read: {', '.join(unread)}"
        return not_evaluated(expected, said, observed=observed, transient=False)
    doubtful = "; ".join(f"{problem.key} {_OBSERVED[problem.fate]}" for problem in diff.values)
    return held(expected, doubtful or "every key is there", said or f"{chart} has every key of ours.")


def unmoved(chart: str, version: str) -> Finding:
    """The verdict for a component that does not move in the version set."""
    return held(f"{chart} {version} is the pinned chart", "it is", f"{chart} {version} is pinned: nothing to compare.")


def not_compared(chart: str, version: str, why: str) -> Finding:
    return not_evaluated(f"{chart} {version} reads our values", f"The charts were not compared: {why}", transient=False)


def _sentence(problem: ValueProblem, chart: str) -> str:
    nearest = f" The nearest key there is {problem.nearest}." if problem.nearest else ""
    if problem.fate is ValueFate.OTHER_TYPE:
        return f"{problem.key} is of another kind in {chart}."
    if problem.fate is ValueFate.NEVER_THERE:
        known = f"{problem.key} is known neither in {chart} nor in the pinned version"
        return f"{known}: helm accepts it and it has no effect.{nearest}"
    return f"{problem.key} no longer exists in {chart}: helm accepts it and it has no effect.{nearest}"
