"""Chart releases: what `helm install` is in the lab."""

from __future__ import annotations

from typing import Any

import dagster as dg

from kai_lab_pipeline.assets.step import Step


def install_release(step: Step, component: str) -> dg.MaterializeResult[Any]:
    """Install or upgrade the release of a component, then wait for what its checks expect of it."""
    chart = step.settings.charts.by_component()[component]
    step.metadata["chart"] = chart.chart
    step.metadata["version"] = chart.version
    step.metadata["values"] = dg.MetadataValue.json(dict(chart.values))
    step.tell(step.lab.backend.install(component, chart, step.log))
    incarnation = step.lab.backend.connect().incarnation()
    return step.seen(version_of=[incarnation, chart.version, dict(chart.values)])
