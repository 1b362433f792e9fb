"""The lab's artifacts as Dagster assets, one module per family."""

from __future__ import annotations

import dagster as dg

from kai_lab_pipeline.assets.cluster import cluster_assets
from kai_lab_pipeline.assets.gpus import gpu_assets
from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.isolation import isolation_assets
from kai_lab_pipeline.assets.report import report_assets
from kai_lab_pipeline.assets.scheduler import scheduler_assets
from kai_lab_pipeline.assets.workloads import workload_assets

FAMILIES = (cluster_assets, gpu_assets, scheduler_assets, isolation_assets, workload_assets, report_assets)


def lab_assets(group: Group) -> list[dg.AssetsDefinition]:
    """All assets of one group, in the order of the lab's steps."""
    return [asset for family in FAMILIES for asset in family(group)]
