"""Compares what the rehearsal gives with a recording of the real components, field by field, names and times masked.

A field is a path of keys in one object of one list of the evidence; items of lists that have a name or type are
matched by it. Differences that are known and explained stand in data/rehearsal_differences.txt.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXPLAINED = Path(__file__).parent / "data" / "rehearsal_differences.txt"

_IGNORED = frozenset(
    ("uid", "resourceVersion", "creationTimestamp", "managedFields", "caBundle", "containerID", "imageID", "generation")
)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(Z| \+0000 UTC)")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ADDRESS = re.compile(r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b")
_HEX = re.compile(r"(?<![0-9a-f])[0-9a-f]{16,64}(?![0-9a-f])")
_TAKEN = re.compile(r"\b[\d.]+m?s\b")
_LETTERS = "[bcdfghjklmnpqrstvwxz2456789]"
_RANDOM = re.compile(rf"(?<=[a-zA-Z0-9]-)(?:{_LETTERS}{{5}}(?![a-zA-Z0-9-])|{_LETTERS}{{7}}(?=-shared-gpu))")

_KEYS = ("name", "type", "mountPath", "ip", "key", "containerPort", "manager", "configMapRef")


def masked_text(text: str) -> str:
    """A text without what differs from run to run."""
    for pattern, mark in ((_TIME, "TIME"), (_UUID, "UUID"), (_ADDRESS, "IP"), (_HEX, "HEX"), (_TAKEN, "TOOK")):
        text = pattern.sub(mark, text)
    return _RANDOM.sub("RANDOM", text)


def template_masks(objects: list[Mapping[str, Any]]) -> dict[str, str]:
    """Hashes of pod templates, from the labels that carry them: they cannot be told from words by their look."""
    found: dict[str, str] = {}
    for obj in objects:
        labels = (obj.get("metadata") or {}).get("labels") or {}
        for key in ("pod-template-hash", "controller-revision-hash"):
            if key in labels:
                found[labels[key]] = "HASH"
    return found


def fields(value: Any, hashes: Mapping[str, str], path: str = "") -> Iterator[tuple[str, str]]:
    """Every leaf of an object as (path, masked text)."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in _IGNORED:
                continue
            yield from fields(inner, hashes, f"{path}.{_mask(str(key), hashes)}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from fields(inner, hashes, f"{path}[{_item_key(inner, index, hashes)}]")
    else:
        text = value if isinstance(value, str) else json.dumps(value)
        yield path, _mask(text, hashes)


def _mask(text: str, hashes: Mapping[str, str]) -> str:
    for known, mark in hashes.items():
        text = text.replace(known, mark)
    return masked_text(text)


def _item_key(item: Any, index: int, hashes: Mapping[str, str]) -> str:
    if isinstance(item, Mapping):
        for key in _KEYS:
            if isinstance(item.get(key), str | int):
                return f"{key}={_mask(str(item[key]), hashes)}"
        if item.get("names"):
            return f"names={item['names'][-1]}"
    return str(index)


@dataclass
class Comparison:
    """How many fields were compared and which differ."""

    compared: int = 0
    differing: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[str]:
        return [*self.differing, *self.missing, *self.added]

    def unexplained(self, patterns: list[str]) -> list[str]:
        return [line for line in self.all if not any(fnmatch.fnmatchcase(line, pattern) for pattern in patterns)]


Lists = Mapping[str, list[Mapping[str, Any]]]
"""Objects by plural resource name."""


def all_hashes(lists: Lists) -> dict[str, str]:
    everything = [obj for objects in lists.values() for obj in objects]
    return template_masks(everything) | owner_hashes(everything)


def compare(resource: str, real: Lists, ours: Lists) -> Comparison:
    """Compares the objects of one resource type, matched by namespace and masked name."""
    result = Comparison()
    sides = [_by_name(lists[resource], all_hashes(lists)) for lists in (real, ours)]
    for name in sorted(set(sides[0]) | set(sides[1])):
        left, right = sides[0].get(name), sides[1].get(name)
        if left is None:
            result.added.append(f"+ {resource} {name}")
            continue
        if right is None:
            result.missing.append(f"- {resource} {name}")
            continue
        for path in sorted(set(left) | set(right)):
            result.compared += 1
            if path not in right:
                result.missing.append(f"- {resource} {name} {path} = {left[path]}")
            elif path not in left:
                result.added.append(f"+ {resource} {name} {path} = {right[path]}")
            elif left[path] != right[path]:
                result.differing.append(f"~ {resource} {name} {path}: {left[path]} -> {right[path]}")
    return result


def owner_hashes(objects: list[Mapping[str, Any]]) -> dict[str, str]:
    """Hashes of pod templates as the names of owning replica sets end in them, also of those that are gone."""
    found: dict[str, str] = {}
    for obj in objects:
        about = obj.get("involvedObject") or {}
        if about.get("kind") == "ReplicaSet":
            found[about["name"].rpartition("-")[2]] = "HASH"
        for owner in (obj.get("metadata") or {}).get("ownerReferences") or []:
            if owner.get("kind") == "ReplicaSet":
                found[owner["name"].rpartition("-")[2]] = "HASH"
    return found


def _by_name(objects: list[Mapping[str, Any]], hashes: Mapping[str, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for obj in objects:
        meta = obj["metadata"]
        name = f"{meta.get('namespace', '')}/{_mask(meta['name'], hashes)}"
        found[name] = dict(fields(obj, hashes))
    return found


def event_kinds(events: list[Mapping[str, Any]], hashes: Mapping[str, str]) -> set[str]:
    """What happened, without how often and in which order: one line per kind of event."""
    kinds: set[str] = set()
    for event in events:
        about = event["involvedObject"]
        source = (event.get("source") or {}).get("component") or event.get("reportingComponent")
        name, message = (_mask(text, hashes) for text in (about["name"], event.get("message") or ""))
        kinds.add(f"{event['type']} {event['reason']} {source} {about['kind']} {name}: {message}")
    return kinds


def compare_events(real: Lists, ours: Lists, since: str) -> Comparison:
    """Compares which kinds of events there were; the recording's older ones (`since`: RFC 3339) do not count."""
    times = ("eventTime", "firstTimestamp")
    recent = [event for event in real["events"] if max(str(event.get(time) or "") for time in times) >= since]
    left, right = event_kinds(recent, all_hashes(real)), event_kinds(ours["events"], all_hashes(ours))
    return Comparison(
        compared=len(left | right),
        missing=[f"- events {kind}" for kind in sorted(left - right)],
        added=[f"+ events {kind}" for kind in sorted(right - left)],
    )


def explained() -> list[str]:
    """The patterns of known differences; lines that start with # say why."""
    lines = EXPLAINED.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]
