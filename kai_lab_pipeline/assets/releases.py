"""Chart releases: what `helm install` is in the lab."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dagster as dg

from kai_lab_pipeline.assets.step import Step
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.lab.version_sets import Lane
from kai_lab_pipeline.workbench.candidates import before_upgrade, chart_differences, dead_values, with_registry
from kai_lab_pipeline.workbench.nights import Nights
from kai_lab_pipeline.workbench.steps import install


def install_release(step: Step, component: str) -> dg.MaterializeResult[Any]:
    """Install or upgrade the release of a component, then wait for what its checks expect of it."""
    chart = step.settings.charts.by_component()[component]
    step.metadata["chart"] = chart.chart
    step.metadata["version"] = chart.version
    step.metadata["values"] = dg.MetadataValue.json(dict(chart.values))
    if step.lab.candidate is not None and component in step.lab.candidate.version_set.moved:
        _show_differences(step, component)
        if step.lab.candidate.version_set.lane is Lane.UPGRADE:
            before_upgrade(step.lab)
    step.tell(install(step.lab, component))
    incarnation = step.lab.backend.connect().incarnation()
    return step.seen(version_of=[incarnation, chart.version, dict(chart.values)])


def _show_differences(step: Step, component: str) -> None:
    """Compare the candidate's chart with the pinned one before the cluster is touched, and keep what was found."""
    stored = step.lab.candidate
    if stored is None:
        return
    project = step.lab.project_settings
    try:
        with with_registry(project) as settings:
            found = chart_differences(settings, stored.version_set, stored.charts)
    except LabError as error:
        step.metadata["chart difference"] = f"not evaluated: {error.what}"
        return
    if component in found:
        text = found[component].text()
        step.metadata["chart difference"] = dg.MetadataValue.md(f"```diff\n{text.replace('```', '')}\n```")
    dead = tuple(f"{one['component']}: {one['sentence']}" for one in dead_values(found))
    Nights(project).save(replace(stored, diff="\n\n".join(diff.text() for diff in found.values()), dead_values=dead))
