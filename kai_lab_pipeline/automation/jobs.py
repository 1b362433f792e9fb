"""The jobs of the pinned lab."""

from __future__ import annotations

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition as AssetJob

from kai_lab_pipeline.assets.versions import LAB_TAG


def lab_jobs(lab_name: str) -> list[AssetJob | dg.JobDefinition]:
    """`build_lab` materialises everything; `drift` executes the checks alone against the live cluster."""
    everything = dg.AssetSelection.groups("lab")
    return [
        dg.define_asset_job(
            "build_lab",
            selection=everything,
            description="Build the pinned lab, judge it and write the report.",
            tags={LAB_TAG: lab_name},
        ),
        dg.define_asset_job(
            "drift",
            selection=dg.AssetSelection.checks_for_assets(*[dg.AssetKey(asset) for asset in _checked()]),
            description="Execute all checks against the live cluster; build nothing.",
            tags={LAB_TAG: lab_name},
        ),
    ]


def _checked() -> list[str]:
    from kai_lab_pipeline.lab.spec import CHECKS

    return list(CHECKS)
