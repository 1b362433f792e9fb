"""Assets that are manifests: what `kubectl apply` is in the lab."""

from __future__ import annotations

from typing import Any

import dagster as dg

from kai_lab_pipeline.assets.step import Step
from kai_lab_pipeline.workbench.apply import manifest_of
from kai_lab_pipeline.workbench.steps import apply, objects_of


def apply_manifest(step: Step) -> dg.MaterializeResult[Any]:
    """Apply the asset's manifest and wait for its checks."""
    step.metadata["manifest"] = dg.MetadataValue.path(manifest_of(step.settings, step.asset))
    step.tell(apply(step.lab, step.asset))
    incarnation = step.lab.backend.connect().incarnation()
    return step.seen(version_of=[incarnation, objects_of(step.lab, step.asset)])
