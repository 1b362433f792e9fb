"""Chart releases: what `helm install` is in the lab."""

from __future__ import annotations

from typing import Any

import dagster as dg

from kai_lab_pipeline.assets.step import Step
from kai_lab_pipeline.clients.local_chart import chart_content
from kai_lab_pipeline.lab.spec import VALUES_HAVE_EFFECT
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline.lab.version_sets import Lane
from kai_lab_pipeline.report.text import markdown_block
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.candidates import before_upgrade
from kai_lab_pipeline.workbench.chart_comparison import compare_chart
from kai_lab_pipeline.workbench.steps import install


def chart_as_built(settings: Settings, component: str) -> list[Any]:
    """What a release is made of: the chart's settings, and what is in the chart where it is on this machine."""
    chart = settings.charts.by_component()[component]
    return [chart.model_dump(), chart_content(settings.root, chart)]


def install_release(step: Step, component: str) -> dg.MaterializeResult[Any]:
    """Install or upgrade the release of a component, then wait for what its checks expect of it."""
    chart = step.settings.charts.by_component()[component]
    step.metadata["chart"] = chart.chart
    step.metadata["version"] = chart.version
    step.metadata["values"] = dg.MetadataValue.json(dict(chart.values))
    broken: list[str] = []
    if step.lab.candidate is not None and component in step.lab.candidate.version_set.moved:
        if _show_differences(step, component) is Verdict.BROKEN:
            broken.append(f"{step.asset}.{VALUES_HAVE_EFFECT}")
        if step.lab.candidate.version_set.lane is Lane.UPGRADE:
            before_upgrade(step.lab)
    step.tell(install(step.lab, component))
    incarnation = step.lab.backend.connect().incarnation()
    content = chart_content(step.settings.root, chart)
    return step.seen(version_of=[incarnation, chart.version, dict(chart.values), content], broken=broken)


def _show_differences(step: Step, component: str) -> Verdict:
    """Compare the candidate's chart with the pinned one before the cluster is touched, and show what was found.

    Returns what became of the values that the lab sets.
    """
    found = compare_chart(step.lab, component)
    text = found.text or f"not evaluated: {found.message}"
    step.metadata["chart difference"] = dg.MetadataValue.md(markdown_block(tuple(text.split("\n")), "diff"))
    if found.finding.verdict is not Verdict.HELD:
        step.context.log.warning(f"{VALUES_HAVE_EFFECT} is {found.verdict}: {found.message}")
    return found.finding.verdict
