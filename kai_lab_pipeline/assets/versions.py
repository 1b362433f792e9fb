"""Data versions: what an asset gives to those built on it, and how it is recorded that an asset is no longer there.

Dagster marks an asset unsynced when a direct upstream has another data version than the one it was built with. So an
asset's data version holds its own content, how its checks came out, and the data versions of what it stands on: a
change then travels, asset by asset, to everything that has to be judged anew, and the same content made again stops it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import CODE_VERSION_TAG, DATA_VERSION_TAG
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.lab.spec import ASSETS, CHECKS, UPSTREAM

GONE = "gone"
"""Data version of an asset that was taken away."""
LAB, BACKEND = "lab", "backend"
"""Metadata of each materialisation and evaluation: the name and the backend of the lab it belongs to."""
LAB_TAG = "kai_lab/lab"
"""Run tag by which the run queue keeps two runs off one lab."""
_PAGE = 20
"""Entries of the history read at once."""
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


def last_made_here(instance: dg.DagsterInstance, group: Group, asset: str) -> dg.EventLogEntry | None:
    """The last materialisation of an asset, or its being taken away, in the group's lab and backend.

    Labs of one project share the history: what another one made in between is passed over. None when there is none.
    """
    cursor = None
    while True:
        found = instance.fetch_materializations(dg.AssetRecordsFilter(group.key(asset)), limit=_PAGE, cursor=cursor)
        for record in found.records:
            made = record.asset_materialization
            if made is not None and _of(group, made.metadata):
                return record.event_log_entry
        if not found.has_more:
            return None
        cursor = found.cursor


def passes_here(instance: dg.DagsterInstance, group: Group, asset: str, check: str) -> bool:
    """Whether a check passed when it was last to be executed in the group's lab and backend."""
    key = dg.AssetCheckKey(group.key(asset), check)
    cursor = None
    while True:
        records = instance.event_log_storage.get_asset_check_execution_history(key, limit=_PAGE, cursor=cursor)
        for record in records:
            if _is_here(instance, group, record):
                return record.status is AssetCheckExecutionRecordStatus.SUCCEEDED
        if len(records) < _PAGE:
            return False
        cursor = records[-1].id


def _is_here(instance: dg.DagsterInstance, group: Group, record: AssetCheckExecutionRecord) -> bool:
    if record.status is not AssetCheckExecutionRecordStatus.PLANNED:
        return record.evaluation is not None and _of(group, record.evaluation.metadata)
    run = instance.get_run_by_id(record.run_id)  # it was never evaluated: only its run tells where
    return run is None or run.tags.get(LAB_TAG, group.settings.lab.name) == group.settings.lab.name


def materialised(instance: dg.DagsterInstance, group: Group, asset: str) -> dg.AssetMaterialization | None:
    """The last materialisation of an asset of the pinned lab; None when there was none or it was taken away since."""
    return materialised_in(instance.get_latest_materialization_event(group.key(asset)))


def materialised_in(event: dg.EventLogEntry | None) -> dg.AssetMaterialization | None:
    """The materialisation of an event; None where it records that the asset was taken away."""
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
    where = {LAB: group.settings.lab.name, BACKEND: group.settings.lab.backend}
    there = [name for name in assets if name != "boundary_report" and _is_of(instance, group, name)]
    for asset in there:
        # Another code version as well: an asset without upstream would count as in sync otherwise.
        tags = {DATA_VERSION_TAG: GONE, CODE_VERSION_TAG: GONE}
        instance.report_runless_asset_event(
            dg.AssetMaterialization(group.key(asset), description=said, tags=tags, metadata=where)
        )
        for check in CHECKS.get(asset, ()):
            instance.report_runless_asset_event(
                dg.AssetCheckEvaluation(
                    asset_key=group.key(asset),
                    check_name=check.name,
                    passed=False,
                    severity=dg.AssetCheckSeverity.WARN,
                    description=said,
                    metadata={"verdict": "not_evaluated", **where},
                )
            )
    return there


def _is_of(instance: dg.DagsterInstance, group: Group, asset: str) -> bool:
    found = materialised(instance, group, asset)
    return found is not None and made_in(found) in (None, group.settings.lab.name)


def made_in(found: dg.AssetMaterialization) -> str | None:
    """The lab in which an asset was materialised; None for what belongs to no lab, such as a chart."""
    return _value(found.metadata, LAB)


def _of(group: Group, metadata: Mapping[str, dg.MetadataValue[Any]]) -> bool:
    """Whether an event is of the group's lab and backend; one that tells neither is of whoever asks."""
    lab = group.settings.lab
    return _value(metadata, LAB) in (None, lab.name) and _value(metadata, BACKEND) in (None, lab.backend)


def _value(metadata: Mapping[str, dg.MetadataValue[Any]], name: str) -> str | None:
    found = metadata.get(name)
    return None if found is None else str(found.value)
