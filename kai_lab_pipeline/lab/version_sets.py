"""Version sets: which combinations of component versions get a lab of their own, and what they are called."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kai_lab_pipeline.lab.versions import SHORT_NAMES, component_suffix, helm_version, normalized, version_key

KEY_LENGTH = 40
"""Longest key: it becomes a cluster name, and ``<key>-control-plane`` must stay a host name (63 characters)."""
_HASH_LENGTH = 5


class Lane(str, Enum):
    """How a version set came to the cluster: the two give two findings."""

    FRESH = "fresh"
    UPGRADE = "upgrade"
    """The pinned set first, then an upgrade of the living lab."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class VersionSet:
    """One lab to build: a version per component, and how it gets there."""

    key: str
    """Partition key and cluster name: [a-z0-9-], at most 40 characters, begins with a letter."""
    versions: Mapping[str, str]
    lane: Lane = Lane.FRESH
    moved: tuple[str, ...] = field(default=())
    """Components that differ from the pinned set."""

    @property
    def description(self) -> str:
        what = ", ".join(f"{component} {self.versions[component]}" for component in self.moved) or "the pinned versions"
        return f"{what} ({'upgrade of a living lab' if self.lane is Lane.UPGRADE else 'fresh install'})"

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "versions": dict(self.versions),
            "lane": self.lane.value,
            "moved": list(self.moved),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> VersionSet:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError on something else."""
        versions, moved = texts(data["versions"]), tuple(data.get("moved", ()))
        if not versions.keys() >= set(moved):
            raise ValueError(f"no version is given for {', '.join(map(str, moved))}")
        return cls(str(data["key"]), versions, Lane(data["lane"]), moved)


def texts(data: Any) -> dict[str, str]:
    """Names with a text each, as read from JSON. Raises TypeError for something else."""
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise TypeError(f"no names with texts: {data!r}"[:200])
    return data


def moved_components(pinned: Mapping[str, str], versions: Mapping[str, str]) -> tuple[str, ...]:
    """Components whose version differs; ``v0.17.0`` and ``0.17.0`` do not."""
    return tuple(
        component
        for component, version in versions.items()
        if normalized(version) != normalized(pinned.get(component, ""))
    )


def version_set(pinned: Mapping[str, str], changes: Mapping[str, str], lane: Lane = Lane.FRESH) -> VersionSet:
    """The pinned set with some components changed; its key is the same whenever and wherever it is made.

    `changes` may hold anything that a chart version can be, also commit builds. Raises ValueError on a component that
    the pinned set does not have, or on an empty version.
    """
    unknown = sorted(set(changes) - set(pinned))
    if unknown:
        raise ValueError(f"no component is named {', '.join(unknown)}; known: {', '.join(pinned)}")
    empty = sorted(component for component, version in changes.items() if not version.strip())
    if empty:
        raise ValueError(f"no version is given for {', '.join(empty)}")
    versions = {
        component: helm_version(changes.get(component, version).strip()) for component, version in pinned.items()
    }
    moved = moved_components(pinned, versions)
    return VersionSet(_key(versions, moved, lane), versions, lane, moved)


def _key(versions: Mapping[str, str], moved: Sequence[str], lane: Lane) -> str:
    # The words are for people, the hash keeps keys apart: other pinned parts, `+` against `-`, cut words.
    words = "-".join(
        f"{SHORT_NAMES.get(component, component)}-{normalized(versions[component])}" for component in moved
    )
    body = re.sub(r"[^a-z0-9]+", "-", (words or "pinned").lower()).strip("-")
    whole = "\n".join([lane.value, *(f"{name}={normalized(versions[name])}" for name in sorted(versions))])
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_HASH_LENGTH]
    tail = ("-up" if lane is Lane.UPGRADE else "") + f"-{digest}"
    return body[: KEY_LENGTH - len(tail)].rstrip("-") + tail


def candidate_sets(
    pinned: Mapping[str, str],
    newer: Mapping[str, Sequence[str]],
    *,
    lanes: Iterable[Lane] = (Lane.FRESH, Lane.UPGRADE),
    together: bool = True,
) -> list[VersionSet]:
    """Version sets worth a lab: one component moves at a time, then the newest of all `together`, in each lane.

    `newer` are the newer tags by component, oldest first, as `classify` gives them. A set comes once, however many
    spellings of its versions there are.
    """
    changes: list[dict[str, str]] = [{component: tag} for component, tags in newer.items() for tag in tags]
    newest = {component: tags[-1] for component, tags in newer.items() if tags}
    if together and len(newest) > 1:
        changes.append(newest)
    sets = [version_set(pinned, change, lane) for change in changes for lane in lanes]
    return list({found.key: found for found in sets if found.moved}.values())


def sort_key(found: VersionSet) -> tuple[int, tuple[Any, ...], str]:
    """Order in which sets are shown: fewer moved components first, older versions first."""
    keys = tuple(
        (component, version_key(found.versions[component], component_suffix(component)) or ())
        for component in found.moved
    )
    return (len(found.moved), keys, found.lane.value)
