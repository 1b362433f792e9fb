"""Assets that are manifests: what `kubectl apply` is in the lab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from kai_lab_pipeline.assets.step import Step
from kai_lab_pipeline.workbench.apply import manifest_of
from kai_lab_pipeline.workbench.observe import load_manifest


def apply_manifest(step: Step, *, change: Mapping[str, Any] | None = None) -> dg.MaterializeResult[Any]:
    """Apply the asset's manifest and wait for its checks.

    `change` is merged into the first object, where a setting decides a field of it.
    """
    name = manifest_of(step.settings, step.asset)
    objects = load_manifest(step.settings, name)
    objects[0] = {**objects[0], **(change or {})}
    applier = step.lab.applier(step.asset)
    step.metadata["manifest"] = dg.MetadataValue.path(name)
    step.tell(applier.apply(objects))
    return step.seen(version_of=[applier.cluster.incarnation(), objects])
