"""Whether each asset is what the project now describes, in words: the same answer that the UI gives as "Unsynced"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import dagster as dg
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleCause, StaleCauseCategory
from dagster._core.loader import LoadingContextForTest
from dagster._core.storage.event_log.base import AssetRecord

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.versions import last_made_here, made_in, materialised, materialised_in
from kai_lab_pipeline.clients.manifests import CANARY
from kai_lab_pipeline.clients.mirrors import OCI
from kai_lab_pipeline.lab.evidence import parse_time
from kai_lab_pipeline.lab.spec import UPSTREAM
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.apply import MANIFESTS
from kai_lab_pipeline.workbench.lab import ancestors
from kai_lab_pipeline.workbench.state import LabState


class Sync(str, Enum):
    """How an asset stands to the project's files and to what it is built on."""

    IN_SYNC = "in sync"
    UNSYNCED = "unsynced"
    BEHIND = "behind"
    """In sync with its direct upstream, and something further up is not: it may have to be made again."""
    GONE = "gone"
    NEVER_MADE = "never made"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class SyncState:
    """One asset's state and why."""

    sync: Sync
    reason: str = ""


def sync_states(instance: dg.DagsterInstance, definitions: dg.Definitions, group: Group) -> dict[str, SyncState]:
    """The state of every asset of the pinned lab, charts and manifests included, in the order of the lab's steps."""
    graph = definitions.resolve_asset_graph()
    pinned = [name for needs in UPSTREAM.values() for name in needs if "/" in name]
    # A resolver remembers what it read: a new one each time, so that a long-lived caller sees what is.
    loaded = LoadingContextForTest(instance)
    resolver = CachingStaleStatusResolver(instance, graph, loaded)
    names = list(dict.fromkeys((*pinned, *UPSTREAM)))
    AssetRecord.blocking_get_many(loaded, [group.key(name) for name in names])  # one question in place of many
    states = {name: _state(instance, resolver, group, name) for name in names}
    unsynced = {name for name, state in states.items() if state.sync is not Sync.IN_SYNC}
    for name, state in states.items():
        above = [upper for upper in _above(name) if upper in unsynced]
        if state.sync is Sync.IN_SYNC and above:
            states[name] = SyncState(Sync.BEHIND, f"{', '.join(above)} not in sync")
    return states


def _above(name: str) -> list[str]:
    lab = ancestors(name) if name in UPSTREAM else []
    pinned = {upper for one in (*lab, name) for upper in UPSTREAM.get(one, ()) if "/" in upper}
    return [*sorted(pinned), *lab]


def _state(instance: dg.DagsterInstance, resolver: CachingStaleStatusResolver, group: Group, name: str) -> SyncState:
    key = group.key(name)
    event = instance.get_latest_materialization_event(key)
    if event is None or event.asset_materialization is None:
        return SyncState(Sync.NEVER_MADE)
    elsewhere = made_in(event.asset_materialization)
    if elsewhere not in (None, group.settings.lab.name):
        reason = f"last made in lab {elsewhere}: labs of one project share the history"
        here = last_made_here(instance, group, name)
        if here is None:
            return SyncState(Sync.NEVER_MADE, reason)
        gone = _gone_at(group.settings, name, here)
        return SyncState(Sync.GONE, f"{gone}; {reason}") if gone else SyncState(Sync.UNSYNCED, reason)
    if materialised(instance, group, name) is None:
        return SyncState(Sync.GONE, event.asset_materialization.description or "")
    causes = resolver.get_stale_causes(key)
    if not causes:
        return SyncState(Sync.IN_SYNC)
    reasons = dict.fromkeys(_reason(name, cause, group.settings) for cause in causes)
    return SyncState(Sync.UNSYNCED, "; ".join(reasons))


def _gone_at(settings: Settings, name: str, here: dg.EventLogEntry) -> str:
    """Since when what was made in this lab is no longer there; empty where it is.

    While another lab's is the newest in the history, only this lab's own folder tells: an event would be taken for that
    one's end.
    """
    found = here.asset_materialization
    if materialised_in(here) is None and found is not None:
        return found.description or "no longer there"
    when = parse_time(LabState.of(settings).gone().get(name))
    if name == "boundary_report" or when is None or here.timestamp > when.timestamp():
        return ""
    return f"torn down at {when.isoformat(timespec='seconds')}: no longer there"


def _reason(name: str, cause: StaleCause, settings: Settings) -> str:
    if cause.category is StaleCauseCategory.CODE:
        return f"{built_from(settings).get(name, 'what its step does')} has changed"
    upstream = cause.dependency
    if upstream is None:
        return str(cause.reason)
    if cause.category is StaleCauseCategory.DATA:
        return f"{upstream.asset_key.to_user_string()} is another one than it was built with"
    return f"its needs have changed: {cause.reason}"


def built_from(settings: Settings) -> Mapping[str, str]:
    """Where a person changes what each asset is made of."""
    charts = {
        name: f"charts.{name} in lab.toml" + ("" if chart.chart.startswith(OCI) else f", or what is in {chart.chart},")
        for name, chart in settings.charts.by_component().items()
    }
    device_plugin = settings.manifests.device_plugin.file
    return {
        **{f"charts/{name}": where for name, where in charts.items()},
        **MANIFESTS,
        "manifests/device_plugin": device_plugin,
        "device_plugin": device_plugin,
        "cluster": "lab.backend, boundary.crossing or what is rehearsed (rehearsal in lab.toml)"
        if settings.lab.backend == "rehearsal"
        else "lab.backend or kind in lab.toml",
        "nvml_mock_image": "image.nvml_mock in lab.toml",
        "nvml_mock_release": charts["nvml_mock"],
        "kai_release": f"{charts['kai_scheduler']} or {CANARY}",
        "isolator_release": charts["kai_resource_isolator"],
        "labelled_node": "profile in lab.toml",
        "reservation_boundary": "boundary in lab.toml",
    }
