"""What on a cluster is the lab's: where it came to somebody else's cluster, the rest is never changed or removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kai_lab_pipeline.backends.base import Backend
from kai_lab_pipeline.backends.releases import kubectl_of
from kai_lab_pipeline.clients.kubernetes import is_ours
from kai_lab_pipeline.lab.errors import LabError

COME_WITH_KAI = ("queues",)
"""KAI's own chart makes queues of the lab's names: where they came with the lab's KAI, they are the lab's to set."""


def is_foreign(backend: Backend, resource: str, living: Mapping[str, Any]) -> bool:
    """Whether a living object is somebody else's: on a cluster that the lab did not make, and not made by the lab.

    Raises LabError where the cluster's mark cannot be read.
    """
    if backend.makes_cluster:
        return False
    meta = living["metadata"]
    ours = resource in COME_WITH_KAI or is_ours(living)
    return not ours or backend.was_there(resource, meta.get("namespace"), meta["name"])


def refuse_foreign(backend: Backend, resource: str, living: Mapping[str, Any], why: str = "") -> None:
    """Raises LabError when the object is somebody else's; `why` tells what the lab wanted to change."""
    if not is_foreign(backend, resource, living):
        return
    meta = living["metadata"]
    name, namespace = meta["name"], meta.get("namespace")
    writers = sorted({str(entry.get("manager")) for entry in meta.get("managedFields") or ()} - {"None"})
    scope = f" -n {namespace}" if namespace else ""
    raise LabError(
        f"{resource}/{name} is on the cluster already, and the lab did not make it",
        where=f"namespace {namespace}" if namespace else "cluster-wide",
        seen="; ".join(filter(None, (why, f"written by {', '.join(writers)}" if writers else ""))),
        next_step=f"It stays as it is. If it may go, {kubectl_of(backend.connect())} delete {resource} {name}{scope}, "
        "and materialise again.",
    )
