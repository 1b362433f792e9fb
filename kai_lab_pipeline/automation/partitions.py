"""Partitions of the group `candidate`: one per version set."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import dagster as dg

from kai_lab_pipeline.clients.discovery import Lookup, look_up, look_up_git
from kai_lab_pipeline.lab.due import Due, Reason, due
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.lab.morning import Nightly
from kai_lab_pipeline.lab.version_matrix import build_matrix
from kai_lab_pipeline.lab.version_sets import candidate_sets, sort_key, version_set
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.candidates import clean_up_candidate
from kai_lab_pipeline.workbench.chart_comparison import with_registry
from kai_lab_pipeline.workbench.nights import Nights, StoredSet
from kai_lab_pipeline.workbench.set_digests import look_at, seen_in, with_content
from kai_lab_pipeline.workbench.state import now

PARTITIONS_NAME = "version_sets"
VERSION_SETS = dg.DynamicPartitionsDefinition(name=PARTITIONS_NAME)
CANDIDATE_GATES = frozenset({"cluster.node_ready"})
"""One broken label must not hide what else a new version does."""


def look(settings: Settings, nights: Nights) -> dict[str, Lookup]:
    """Ask the registries for new versions, and store the version sets worth a lab. Raises WrongUse, OSError.

    One that was retired because its verdict is old is not stored again.
    What the checkouts tell is there under names such as ``nvml_mock (git)``: to be told, no version sets of its own.
    """
    with with_registry(settings) as asked:
        found = look_up(asked)
        old = _old(settings, nights)
        new = {key: one for one in reversed(sets_found(settings, found)) if (key := one.version_set.key) not in old}
        sets = {**_stored(settings, nights), **new}
        digests = look_at(asked, found, sets.values())
    found = with_content(settings, nights, found, digests)
    for key, one in sets.items():
        seen = seen_in(settings, one, digests)
        if key in new:
            nights.keep(replace(one, digests=seen))
        else:
            nights.see(key, seen)
    return found | {f"{component} (git)": lookup for component, lookup in look_up_git(settings).items()}


def not_looked(found: Mapping[str, Lookup]) -> tuple[str, ...]:
    """A sentence for each component whose registry or checkout could not be asked."""
    return tuple(f"{component}: {lookup.sentence}" for component, lookup in found.items() if lookup.error is not None)


def sets_found(settings: Settings, found: dict[str, Lookup]) -> list[StoredSet]:
    """Version sets worth a lab after a lookup: no newest of all together while the newest of one is not known."""
    charts = settings.charts.by_component()
    newer = {component: lookup.newer for component, lookup in found.items() if component in charts}
    together = all(lookup.error is None for component, lookup in found.items() if component in charts)
    sets = candidate_sets(settings.version_set(), newer, together=together)
    return [StoredSet(version_set, {}, {}) for version_set in sets]


def retired(settings: Settings, nights: Nights) -> dict[str, str]:
    """Why a stored version set is to be retired, by key; the pinned set never is."""
    pinned = settings.version_set()
    baseline = version_set(pinned, {}).key
    reasons = dict.fromkeys(_old(settings, nights), f"it has had no new verdict for {settings.nightly.keep_days} days")
    found = {}
    for key, stored in nights.sets().items():
        moved = any(stored.version_set.versions.get(name) != version for name, version in pinned.items())
        reason = reasons.get(key, "") if moved else "its versions are the pinned ones by now"
        if reason and key != baseline:
            found[key] = reason
    return found


def _old(settings: Settings, nights: Nights) -> set[str]:
    """Keys whose newest verdict is older than lab.toml keeps."""
    newest = {record.key: record.at for record in nights.records()}
    oldest = now() - timedelta(days=settings.nightly.keep_days)
    return {key for key, at in newest.items() if at < oldest}


def retire(
    instance: dg.DagsterInstance, settings: Settings, nights: Nights, busy: Container[str], *, until: float = math.inf
) -> list[str]:
    """Forget the version sets to be retired, with their clusters and partitions; says which, and which could not be.

    Those in `busy` stay, and so does one whose cluster cannot be removed now: nobody else would know of it. None is
    begun when `time.monotonic()` is past `until`.
    """
    said = []
    for key, reason in retired(settings, nights).items():
        if key in busy or time.monotonic() > until:
            continue
        try:
            clean_up_candidate(settings, nights.load(key), broken=False)
        except LabError as error:
            said.append(f"{key} is not retired yet: {error.text()}")
            continue
        nights.forget(key)
        instance.delete_dynamic_partition(PARTITIONS_NAME, key)
        said.append(f"{key} is retired: {reason}")
    return said


def begin_night(settings: Settings, nights: Nights, busy: Container[str], could_not_look: Sequence[str]) -> Nightly:
    """Note in the store that a night begins now: what it runs, of all that is due, at most as many as lab.toml allows.

    `busy` are the version sets that another run is at work on; `could_not_look` the sentences of `not_looked`.
    """
    keys = [one.version_set.key for one in waiting(settings, nights) if one.version_set.key not in busy]
    night = Nightly(
        now(),
        tuple(keys[: settings.nightly.cap]),
        tuple(could_not_look),
        backend=settings.lab.backend,
        records_before=len(nights.records()),
        waiting=len(keys[settings.nightly.cap :]),
    )
    nights.add_nightly(night)
    return night


def to_confirm(settings: Settings, nights: Nights, keys: Container[str]) -> list[Due]:
    """Those of a night's version sets (`keys`) that broke in one attempt: run once more in the same night."""
    return [one for one in waiting(settings, nights) if one.reason is Reason.RERUN and one.version_set.key in keys]


def _stored(settings: Settings, nights: Nights) -> dict[str, StoredSet]:
    """The stored version sets, with the pinned one: the baseline of all the others."""
    stored = nights.sets()
    baseline = version_set(settings.version_set(), {})
    return stored if baseline.key in stored else {baseline.key: nights.keep(StoredSet(baseline, {}, {})), **stored}


def waiting(settings: Settings, nights: Nights) -> list[Due]:
    """What is due on this backend, what was never tried first; the pinned set is the baseline."""
    stored = _stored(settings, nights)
    sets = sorted((one.version_set for one in stored.values()), key=sort_key)
    matrix = build_matrix(nights.records(), settings.version_set(), today=now().date())
    digests = {key: one.digests for key, one in stored.items()}
    first = {key: one.first_digests for key, one in stored.items()}
    uncompared = {key: one.uncompared for key, one in stored.items()}
    return list(
        due(sets, matrix, backend=settings.lab.backend, digests=digests, first_digests=first, uncompared=uncompared)
    )
