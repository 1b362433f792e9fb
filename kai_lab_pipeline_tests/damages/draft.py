"""A mutable copy of a recording, on which one fact is changed before it is judged again."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kai_lab_pipeline.lab.evidence import ContainerLog, Evidence, Observation

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
LAB = "real-kai-v0.17.0"
KIND = "real-kind"
CROSSED = "real-kai-v0.17.0-crossed"
OLDER = "kai-v0.16.8"
ALL = (LAB, KIND, CROSSED, OLDER)
STANDING = (LAB, KIND, OLDER)
COMPLETE = (LAB, KIND)
"""Recordings with dry-runs and canary."""

Edit = Callable[["Draft"], None]
Steps = tuple["str | int", ...]
DROP: Any = object()
"""As a value: take the key away."""


class Draft:
    """Evidence whose objects may be changed in place; only what is touched is copied."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._lists: dict[tuple[str, str], list[Any] | None] = {}

    def header(self, **changes: Any) -> None:
        self.evidence = replace(self.evidence, **changes)

    def seen(self, asset: str, **changes: Any) -> None:
        observations = dict(self.evidence.observations)
        observations[asset] = replace(observations[asset], **changes)
        self.header(observations=observations)

    def drop_asset(self, asset: str) -> None:
        self.header(observations={k: v for k, v in self.evidence.observations.items() if k != asset})

    def items(self, asset: str, resource: str) -> list[Any]:
        """The mutable list of a resource; KeyError when it was not captured."""
        key = (asset, resource)
        if key not in self._lists:
            # Several times as fast as copy.deepcopy for what was read from JSON, and hundreds of damages are done.
            self._lists[key] = list(pickle.loads(pickle.dumps(self.evidence.of(asset).resources[resource])))
        found = self._lists[key]
        if found is None:
            raise KeyError(key)
        return found

    def drop_list(self, asset: str, resource: str) -> None:
        self.items(asset, resource)
        self._lists[asset, resource] = None

    def one(self, asset: str, resource: str, name: str) -> Any:
        """The object of that name (``x*``: the first whose name begins with x); KeyError when there is none."""
        for item in self.items(asset, resource):
            found = item["metadata"]["name"]
            if found == name or (name.endswith("*") and found.startswith(name[:-1])):
                return item
        raise KeyError(f"{asset}/{resource}/{name}")

    def finish(self) -> Evidence:
        observations = dict(self.evidence.observations)
        for (asset, resource), items in self._lists.items():
            resources = dict(observations[asset].resources)
            if items is None:
                del resources[resource]
            else:
                resources[resource] = tuple(items)
            observations[asset] = replace(observations[asset], resources=resources)
        return replace(self.evidence, observations=observations)

    def observation(self, asset: str) -> Observation:
        return self.evidence.observations[asset]


@dataclass(frozen=True)
class Damage:
    """One fact changed, and exactly the checks that must no longer be held."""

    name: str
    edit: Edit
    turns: frozenset[str]
    recordings: tuple[str, ...] = field(default=ALL)
    why_harmless: str = ""
    """Why nothing turns; only where `turns` is empty."""


def damage(name: str, edit: Edit, *turns: str, on: tuple[str, ...] = ALL) -> Damage:
    return Damage(name, edit, frozenset(turns), on)


def harmless(name: str, edit: Edit, why: str, *, on: tuple[str, ...] = ALL) -> Damage:
    return Damage(name, edit, frozenset(), on, why)


def put(root: Any, path: Steps, value: Any) -> None:
    """Set (or DROP) what `path` leads to; every step but the last must be there."""
    for step in path[:-1]:
        root = root[step]
    if value is DROP:
        del root[path[-1]]
    else:
        root[path[-1]] = value


def change(asset: str, resource: str, name: str, path: Steps, value: Any) -> Edit:
    """Set or DROP one field of one object."""
    return lambda draft: put(draft.one(asset, resource, name), path, value)


def remove(asset: str, resource: str, name: str) -> Edit:
    """Take one object away."""
    return lambda draft: draft.items(asset, resource).remove(draft.one(asset, resource, name))


def add(asset: str, resource: str, obj: Mapping[str, Any]) -> Edit:
    """Add one object."""
    return lambda draft: draft.items(asset, resource).append(copy.deepcopy(dict(obj)))


def clone(asset: str, resource: str, name: str, changes: Mapping[Steps, Any]) -> Edit:
    """Add a copy of one object with some fields set."""

    def edit(draft: Draft) -> None:
        twin = copy.deepcopy(draft.one(asset, resource, name))
        for path, value in changes.items():
            put(twin, path, value)
        draft.items(asset, resource).append(twin)

    return edit


def uncaptured(asset: str, resource: str) -> Edit:
    return lambda draft: draft.drop_list(asset, resource)


def empty(asset: str, resource: str) -> Edit:
    return lambda draft: draft.items(asset, resource).clear()


def never_observed(asset: str) -> Edit:
    return lambda draft: draft.drop_asset(asset)


def header(**changes: Any) -> Edit:
    return lambda draft: draft.header(**changes)


def version(component: str, value: str) -> Edit:
    return lambda draft: draft.header(versions={**draft.evidence.versions, component: value})


def status_condition(asset: str, resource: str, name: str, kind: str, status: Any) -> Edit:
    """Set the status of a condition, or DROP the condition."""

    def edit(draft: Draft) -> None:
        conditions = draft.one(asset, resource, name)["status"]["conditions"]
        entry = next(c for c in conditions if c["type"] == kind)
        if status is DROP:
            conditions.remove(entry)
        else:
            entry["status"] = status

    return edit


def in_list(asset: str, resource: str, name: str, path: Steps, key: str, value: str, edit_entry: Any) -> Edit:
    """Change (a dict of fields) or DROP the entry of a list whose `key` is `value`."""

    def edit(draft: Draft) -> None:
        entries = draft.one(asset, resource, name)
        for step in path:
            entries = entries[step]
        entry = next(e for e in entries if e.get(key) == value)
        if edit_entry is DROP:
            entries.remove(entry)
        else:
            for field_, new in edit_entry.items():
                put(entry, (field_,), new)

    return edit


def helm(asset: str, release: str, changes: Any) -> Edit:
    """Change fields of a release's row, or DROP the row."""

    def edit(draft: Draft) -> None:
        rows = [dict(row) for row in draft.observation(asset).helm or ()]
        row = next(row for row in rows if row["name"] == release)
        if changes is DROP:
            rows.remove(row)
        else:
            row.update(changes)
        draft.seen(asset, helm=tuple(rows))

    return edit


def no_helm(asset: str) -> Edit:
    return lambda draft: draft.seen(asset, helm=None)


def dryrun(asset: str, name: str, edit_answer: Callable[[Any], Any]) -> Edit:
    """Change the answer to a dry-run; an edit that returns DROP takes it away."""

    def edit(draft: Draft) -> None:
        answers: dict[str, Any] = dict(copy.deepcopy(dict(draft.observation(asset).dryrun)))
        new = edit_answer(answers[name])
        if new is DROP:
            del answers[name]
        elif new is not None:
            answers[name] = new
        draft.seen(asset, dryrun=answers)

    return edit


def logs(asset: str, pod: str, rewrite: Callable[[ContainerLog], ContainerLog | None]) -> Edit:
    """Rewrite the logs of pods whose name begins with `pod`; None takes a log away. KeyError when there is none."""

    def edit(draft: Draft) -> None:
        kept: list[ContainerLog] = []
        hit = False
        for log in draft.observation(asset).logs:
            if not log.pod.startswith(pod):
                kept.append(log)
                continue
            hit = True
            new = rewrite(log)
            if new is not None:
                kept.append(new)
        if not hit:
            raise KeyError(f"{asset}: no log of {pod}")
        draft.seen(asset, logs=tuple(kept))

    return edit


def log_text(asset: str, pod: str, rewrite: Callable[[str], str]) -> Edit:
    """Rewrite what a container says now, and what the attempt before it said where that was kept as well."""

    def both_attempts(log: ContainerLog) -> ContainerLog:
        return replace(log, text=rewrite(log.text), previous=log.previous and rewrite(log.previous))

    return logs(asset, pod, both_attempts)


def events(asset: str, pod: str, reason: str, edit_event: Any) -> Edit:
    """Change (dict of fields or callable) or DROP the events of a reason about a pod; KeyError when there is none."""

    def edit(draft: Draft) -> None:
        uid = draft.one(asset, "pods", pod)["metadata"]["uid"]
        items = draft.items(asset, "events")
        hits = [e for e in items if e["reason"] == reason and e["involvedObject"].get("uid") == uid]
        if not hits:
            raise KeyError(f"{asset}: no event {reason} of {pod}")
        for event in hits:
            if edit_event is DROP:
                items.remove(event)
            elif callable(edit_event):
                edit_event(event)
            else:
                event.update(copy.deepcopy(edit_event))

    return edit


def new_event(asset: str, pod: str, *, uid: str | None = None, **fields: Any) -> Edit:
    """Add an event about a pod; `uid` replaces the pod's own."""

    def edit(draft: Draft) -> None:
        meta = draft.one(asset, "pods", pod)["metadata"]
        event = {
            "metadata": {"name": f"{meta['name']}.added", "namespace": meta["namespace"]},
            "involvedObject": {"kind": "Pod", "name": meta["name"], "uid": uid or meta["uid"]},
            "type": "Warning",
            "source": {"component": "kai-scheduler"},
            "firstTimestamp": meta["creationTimestamp"],
            "lastTimestamp": "2099-01-01T00:00:00Z",
            **fields,
        }
        draft.items(asset, "events").append(event)

    return edit


def both(*edits: Edit) -> Edit:
    """One fact that shows in more than one place."""

    def edit(draft: Draft) -> None:
        for single in edits:
            single(draft)

    return edit
