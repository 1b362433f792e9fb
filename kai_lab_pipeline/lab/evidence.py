"""The evidence bundle as typed, tolerant values.

A bundle is a folder of plain ``kubectl -o json`` lists, logs and helm output; `clients.bundle` reads and writes the
folder, this module gives the parsed content names. Nothing here raises on missing or half-broken content: what could
not be read is ``None`` (not captured) and the claims that need it are ``not_evaluated``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

K8sObject = Mapping[str, Any]
"""One Kubernetes object as decoded JSON."""


@dataclass(frozen=True)
class ContainerLog:
    """The log of one container: the running attempt and, where kept, the one before it."""

    namespace: str
    pod: str
    container: str
    text: str
    previous: str | None = None


@dataclass(frozen=True)
class Observation:
    """What was seen when one asset was observed. A resource that is not in `resources` was not captured."""

    resources: Mapping[str, tuple[K8sObject, ...]] = field(default_factory=dict)
    helm: tuple[Mapping[str, Any], ...] | None = None
    """Rows of ``helm list -A -a -o json``; None when not captured."""
    dryrun: Mapping[str, K8sObject] = field(default_factory=dict)
    """What the API server answered to server-side dry-runs, by name (``queue``, ``shared_pod``): object or Status."""
    logs: tuple[ContainerLog, ...] = ()
    run_id: str | None = None
    """The run that made this observation, where known."""
    observed_at: datetime | None = None
    cluster: str | None = None
    """Which cluster it was: uid of its kube-system namespace, where known."""

    def objects(self, resource: str) -> tuple[K8sObject, ...] | None:
        """Objects of a plural resource name, or None when that list was not captured."""
        return self.resources.get(resource)

    def find(self, resource: str, name: str, namespace: str | None = None) -> K8sObject | None:
        """The object of that name, or None when it is absent or its list was not captured."""
        for obj in self.resources.get(resource) or ():
            meta = metadata_of(obj)
            if meta.get("name") == name and (namespace is None or meta.get("namespace") == namespace):
                return obj
        return None

    @cached_property
    def events_by_uid(self) -> Mapping[str, tuple[K8sObject, ...]]:
        """The events by the uid of their involved object, in the order of the list; those without one are left out."""
        found: dict[str, list[K8sObject]] = {}
        for event in self.resources.get("events") or ():
            uid = mapping(mapping(event).get("involvedObject")).get("uid")
            if isinstance(uid, str):
                found.setdefault(uid, []).append(event)
        return {uid: tuple(events) for uid, events in found.items()}


@dataclass(frozen=True)
class Evidence:
    """A whole bundle: one observation per asset, and what bundle.json says about where it comes from."""

    backend: str = "unknown"
    versions: Mapping[str, str] = field(default_factory=dict)
    node: str | None = None
    captured_at: datetime | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Assets that make no sense on this cluster, with the reason: the mock where real GPUs are."""
    crossing: str | None = None
    """How NVML gets into pods on this cluster; None where it does not."""
    time_scale: float = 1.0
    """Seconds here per second of a real cluster (the rehearsal runs faster): 40 s real = 40 x time_scale here."""
    profile: Mapping[str, Any] = field(default_factory=dict)
    """The card this lab shows, where bundle.json says so: gpu_count, gpu_memory_mib, gpu_product."""
    observations: Mapping[str, Observation] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What could not be read, as sentences."""

    def of(self, asset: str) -> Observation:
        """The observation of an asset; an empty one (nothing captured) when the bundle has none."""
        return self.observations.get(asset, _NOTHING)


_NOTHING = Observation()


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` when it is a mapping, else an empty one: evidence may be half-broken."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> tuple[Any, ...]:
    """`value` as a tuple when it is a list or tuple, else an empty one."""
    return tuple(value) if isinstance(value, list | tuple) else ()


def metadata_of(obj: K8sObject) -> Mapping[str, Any]:
    return mapping(mapping(obj).get("metadata"))


def spec_of(obj: K8sObject) -> Mapping[str, Any]:
    return mapping(mapping(obj).get("spec"))


def status_of(obj: K8sObject) -> Mapping[str, Any]:
    return mapping(mapping(obj).get("status"))


def labels_of(obj: K8sObject) -> Mapping[str, Any]:
    return mapping(metadata_of(obj).get("labels"))


def annotations_of(obj: K8sObject) -> Mapping[str, Any]:
    return mapping(metadata_of(obj).get("annotations"))


def name_of(obj: K8sObject) -> str:
    return str(metadata_of(obj).get("name", ""))


def is_deleted(obj: K8sObject) -> bool:
    """Whether deletion was asked for: the object lingers only until its finalizers or grace period are done."""
    return metadata_of(obj).get("deletionTimestamp") is not None


def condition(obj: K8sObject, kind: str) -> Mapping[str, Any] | None:
    """The status condition of that type, or None."""
    for entry in sequence(status_of(obj).get("conditions")):
        if mapping(entry).get("type") == kind:
            return mapping(entry)
    return None


def condition_true(obj: K8sObject, kind: str) -> bool:
    found = condition(obj, kind)
    return found is not None and found.get("status") == "True"


_RFC3339 = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ](?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]+))?(?P<offset>[Zz]|[+-][0-9]{2}:[0-9]{2})?\Z"
)


def parse_time(value: Any) -> datetime | None:
    """An RFC 3339 time, or None; without offset it is taken for UTC. Fractions of any length are accepted."""
    if not isinstance(value, str):
        return None
    match = _RFC3339.match(value.strip())
    if match is None:
        return None
    # Before Python 3.11 fromisoformat knows no Z and only fractions of three or six digits.
    fraction = (match["fraction"] or "")[:6].ljust(6, "0")
    offset = "+00:00" if match["offset"] in ("Z", "z", None) else match["offset"]
    try:
        return datetime.fromisoformat(f"{match['date']}T{match['time']}.{fraction}{offset}")
    except ValueError:
        return None


def events_about(seen: Observation, obj: K8sObject) -> tuple[K8sObject, ...]:
    """Events whose involved object has the uid of `obj`: a pod of the same name may have lived before."""
    uid = metadata_of(obj).get("uid")
    return seen.events_by_uid.get(uid, ()) if isinstance(uid, str) and uid else ()


def event_time(event: K8sObject) -> datetime | None:
    """When the event was last seen: ``lastTimestamp``, the series, or ``eventTime``, whichever the reporter wrote."""
    series = mapping(event.get("series")).get("lastObservedTime")
    return parse_time(series) or parse_time(event.get("lastTimestamp")) or parse_time(event.get("eventTime"))
