"""Whose cluster it is: a ConfigMap in kube-system that says which lab made or adopted it, and what that lab put there.

A lab touches a cluster of the same name, a release or an object only when the mark is its own. The lab's id is a random
word in its state folder, so a folder that was moved keeps its clusters and another checkout does not take them over.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kai_lab_pipeline.clients.kubernetes import Cluster, Conflict
from kai_lab_pipeline.lab.errors import LabError

NAMESPACE, NAME = "kube-system", "kai-lab-owner"
PART_OF: Mapping[str, str] = {"app.kubernetes.io/part-of": "kai-lab"}
"""Label of the mark. On the namespace of a KAI release, set by a person, it hands that release over to the lab."""

_RELEASE = "release."
_BROUGHT = "brought."
_REMAINS = "remains."


@dataclass(frozen=True)
class Mark:
    """What the ConfigMap says."""

    lab: str
    lab_id: str
    since: str
    made: bool
    """The lab made the cluster itself."""
    releases: Mapping[str, str] = field(default_factory=dict)
    """Helm releases the lab installed, as ``namespace/name``, and the component (``kai_scheduler``) that each is of."""
    found: frozenset[str] = frozenset()
    """Objects of the lab's names that were there before the lab came, as ``resource/namespace/name``."""
    brought: frozenset[str] = frozenset()
    """Objects and namespaces that came with the lab, under the names they were made with."""
    remains: Mapping[str, str] = field(default_factory=dict)
    """What the lab's KAI made and outlived it: the uid of each object, and the namespace that KAI was in."""

    @property
    def kai_namespaces(self) -> frozenset[str]:
        """Where the lab's KAI is, or was and something of it still is."""
        kais = {name.split("/", 1)[0] for name, component in self.releases.items() if component == "kai_scheduler"}
        return frozenset(kais | set(self.remains.values()))


def key(resource: str, namespace: str | None, name: str) -> str:
    """How the mark names an object."""
    return f"{resource}/{namespace or ''}/{name}"


def lab_id(folder: Path) -> str:
    """The id of the lab that keeps its state in `folder`, made at first use."""
    file = folder / "id"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(file, "x", encoding="utf-8") as new:
            new.write(uuid.uuid4().hex)
    except FileExistsError:
        pass
    except OSError as error:
        raise LabError(
            "The lab's state folder cannot be written",
            where=str(folder),
            seen=error.strerror or str(error),
            next_step="Free disk space or name another folder in lab.state_dir.",
        ) from error
    return file.read_text(encoding="utf-8").strip()


def new_mark(
    lab: str,
    folder: Path,
    *,
    made: bool,
    found: frozenset[str] = frozenset(),
    releases: Mapping[str, str] | None = None,
) -> Mark:
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Mark(lab, lab_id(folder), now, made, releases or {}, found)


def read_mark(cluster: Cluster) -> Mark | None:
    """The cluster's mark, or None when it has none; raises ApiError when the cluster does not answer."""
    found = cluster.find("configmaps", NAME, namespace=NAMESPACE)
    if found is None:
        return None
    data = found.get("data") or {}
    return Mark(
        lab=str(data.get("lab", "")),
        lab_id=str(data.get("id", "")),
        since=str(data.get("since", "")),
        made=data.get("made") == "true",
        releases={
            name.removeprefix(_RELEASE).replace(".", "/", 1): str(component)
            for name, component in data.items()
            if name.startswith(_RELEASE)
        },
        found=_names(data.get("found")),
        brought=frozenset(
            name.removeprefix(_BROUGHT).replace(".", "/", 2) for name in data if name.startswith(_BROUGHT)
        ),
        remains={
            name.removeprefix(_REMAINS): str(namespace) for name, namespace in data.items() if name.startswith(_REMAINS)
        },
    )


def write_mark(cluster: Cluster, mark: Mark) -> Mark:
    """Mark a cluster that has no mark; returns the mark it has then, which is another lab's if that came first.

    Raises ApiError.
    """
    try:
        cluster.create(_config_map(mark))
    except Conflict:
        there = read_mark(cluster)
        if there is None:
            raise  # taken away in this very moment: whoever asked may try again
        return there
    return mark


def _config_map(mark: Mark) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": dict(PART_OF)},
        "data": {
            "lab": mark.lab,
            "id": mark.lab_id,
            "since": mark.since,
            "made": "true" if mark.made else "false",
            "found": json.dumps(sorted(mark.found)),
            **{_RELEASE + name.replace("/", ".", 1): component for name, component in mark.releases.items()},
        },
    }


def mark_release(cluster: Cluster, namespace: str, name: str, component: str | None) -> None:
    """Add a release of a component to the mark, or take it out (None).

    Steps that run at the same time do not undo each other's words.
    """
    _note(cluster, f"{_RELEASE}{namespace}.{name}", component)


def mark_brought(cluster: Cluster, entry: str, *, ours: bool) -> None:
    """Note that an object (``resource/namespace/name``) is the lab's, before it is made, or that it is gone.

    lab.toml and the manifests may name others by the time of the tear-down.
    """
    _note(cluster, _BROUGHT + entry.replace("/", "."), "made" if ours else None)


def mark_remains(cluster: Cluster, uid: str, namespace: str) -> None:
    """Note that an object is of the lab's KAI of a namespace, which is gone: another KAI's would look the same."""
    _note(cluster, f"{_REMAINS}{uid}", namespace)


def _note(cluster: Cluster, name: str, word: str | None) -> None:
    cluster.patch("configmaps", NAME, {"data": {name: word}}, namespace=NAMESPACE)


def remove_mark(cluster: Cluster) -> None:
    cluster.delete("configmaps", NAME, namespace=NAMESPACE)


def _names(text: object) -> frozenset[str]:
    try:
        parsed = json.loads(str(text or "[]"))
    except ValueError:
        return frozenset()
    return frozenset(map(str, parsed)) if isinstance(parsed, list) else frozenset()
