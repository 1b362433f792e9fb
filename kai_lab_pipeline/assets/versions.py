"""Data versions: what an asset gives to those built on it, and how it is recorded that an asset is no longer there.

Dagster marks an asset unsynced when a direct upstream has another data version than the one it was built with. So an
asset's data version holds its own content, how its checks came out, and the data versions of what it stands on: a
change then travels, asset by asset, to everything that has to be judged anew, and the same content made again stops it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

import dagster as dg
from dagster._core.definitions.data_version import CODE_VERSION_TAG, DATA_VERSION_TAG

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.lab.spec import ASSETS, CHECKS, UPSTREAM

GONE = "gone"
"""Data version of an asset that was taken away."""
LAB = "lab"
"""Metadata of each materialisation: the name of the lab it was made in."""
ORDER_ONLY = frozenset({("labelled_node", "device_plugin"), ("kai_release", "labelled_node")})
"""Asset and upstream where only the order matters: KAI v0.17.0 reads a changed label by itself (as measured), so KAI
is not another one when the label is; the shared pod, which is accounted by the label, has an edge of its own."""


def carried_versions(context: dg.AssetExecutionContext, group: Group, asset: str) -> dict[str, str | None]:
    """Data versions of what an asset stands on, as last materialised; None for what never was."""
    return {
        upstream: _version(context, group, upstream)
        for upstream in UPSTREAM[asset]
        if (asset, upstream) not in ORDER_ONLY
    }


def _version(context: dg.AssetExecutionContext, group: Group, asset: str) -> str | None:
    partitioned = group.partitions is not None and "/" not in asset
    wanted = dg.AssetRecordsFilter(
        asset_key=group.key(asset), asset_partitions=[context.partition_key] if partitioned else None
    )
    for record in context.instance.fetch_materializations(wanted, limit=1).records:
        tags = record.asset_materialization.tags if record.asset_materialization else None
        return (tags or {}).get(DATA_VERSION_TAG)
    return None


def materialised(instance: dg.DagsterInstance, group: Group, asset: str) -> dg.AssetMaterialization | None:
    """The last materialisation of an asset of the pinned lab; None when there was none or it was taken away since."""
    event = instance.get_latest_materialization_event(group.key(asset))
    found = event.asset_materialization if event is not None else None
    return None if found is None or (found.tags or {}).get(DATA_VERSION_TAG) == GONE else found


def mark_gone(instance: dg.DagsterInstance, group: Group, why: str, assets: Iterable[str] = ASSETS) -> list[str]:
    """Record that assets are no longer there, so that neither they nor their checks stay green; returns their names.

    Only what was last made in this very lab is marked: labs of one project share the history.

    History is kept: this is one more event. The report is left alone, for its files are still there; what it was made
    from is not, and that turns it unsynced.
    """
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    said = f"{why} at {when}: no longer there"
    there = [name for name in assets if name != "boundary_report" and _is_of(instance, group, name)]
    for asset in there:
        # Another code version as well: an asset without upstream would count as in sync otherwise.
        tags = {DATA_VERSION_TAG: GONE, CODE_VERSION_TAG: GONE}
        instance.report_runless_asset_event(dg.AssetMaterialization(group.key(asset), description=said, tags=tags))
        for check in CHECKS.get(asset, ()):
            instance.report_runless_asset_event(
                dg.AssetCheckEvaluation(
                    asset_key=group.key(asset),
                    check_name=check.name,
                    passed=False,
                    severity=dg.AssetCheckSeverity.WARN,
                    description=said,
                    metadata={"verdict": "not_evaluated"},
                )
            )
    return there


def _is_of(instance: dg.DagsterInstance, group: Group, asset: str) -> bool:
    found = materialised(instance, group, asset)
    return found is not None and made_in(found) in (None, group.settings.lab.name)


def made_in(found: dg.AssetMaterialization) -> str | None:
    """The lab in which an asset was materialised; None for what belongs to no lab, such as a chart."""
    lab = found.metadata.get(LAB)
    return None if lab is None else str(lab.value)
