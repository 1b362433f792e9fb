"""The changes of the story, in order: each one meets the lab as the one before it left it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass

from kai_lab_pipeline_tests.living_lab import LivingLab

SCHEDULER = "kai-scheduler-default"


@dataclass(frozen=True)
class Change:
    """One thing that somebody does, and whether looking again is all that is needed after it."""

    title: str
    do: Callable[[LivingLab], None]
    look_only: bool = False
    """Nothing has to be made again: the checks are executed alone (the job `drift`)."""


def edit(file: str, old: str, new: str) -> Callable[[LivingLab], None]:
    return lambda lab: lab.edit(file, old, new)


def delete_runtime_class(lab: LivingLab) -> None:
    with lab.cluster() as cluster:
        cluster.delete("runtimeclasses", "nvidia")


def remove_label(lab: LivingLab) -> None:
    with lab.cluster() as cluster:
        cluster.label(memory=None)


def kill_scheduler(lab: LivingLab) -> None:
    with lab.cluster() as cluster:
        (old,) = (pod["metadata"]["name"] for pod in cluster.all("pods", "kai-scheduler", labelSelector=_APP))
        cluster.delete("pods", old, "kai-scheduler")
        cluster.wait("deployments", lambda found: any(_back(obj) for obj in found), "the scheduler is back")


_APP = f"app={SCHEDULER}"


def _back(deployment: dict[str, object]) -> bool:
    meta, status = deployment["metadata"], deployment.get("status")
    return isinstance(meta, dict) and meta["name"] == SCHEDULER and isinstance(status, dict) and _one_ready(status)


def _one_ready(status: dict[str, object]) -> bool:
    return status.get("readyReplicas") == 1 == status.get("replicas")


def delete_evidence(lab: LivingLab) -> None:
    shutil.rmtree(lab.lab_dir / "evidence")


def rebuild_cluster(lab: LivingLab) -> None:
    """Somebody deletes the cluster; `cluster` is materialised alone, as the first thing that is noticed missing."""
    lab.forget_cluster()
    lab.remake("cluster")


QUEUES, SHARED_POD = "manifests/queues.yaml", "manifests/shared-gpu-pod.yaml"
CHILD = "parentQueue: default\n  resources:\n    cpu: {quota: -1, limit: -1, overQuotaWeight: 1}"
HAMICORE = '"binder.plugins.hamicore.enabled" = '
ISOLATOR = 'version = "1.0.0-chart"', 'version = "1.1.0-chart"'

CHANGES: tuple[Change, ...] = (
    Change(
        "the node label's value: `profile.gpu_memory_mib` 40960 -> 30000 in lab.toml",
        edit("lab.toml", "gpu_memory_mib = 40960", "gpu_memory_mib = 30000"),
    ),
    Change(
        "the shared pod's memory: `gpu-memory` 20480 -> 10240",
        edit(SHARED_POD, 'gpu-memory: "20480"', 'gpu-memory: "10240"'),
    ),
    Change(
        "the queue's spec: overQuotaWeight of `default-queue` 1 -> 2",
        edit(QUEUES, CHILD, CHILD.replace("overQuotaWeight: 1", "overQuotaWeight: 2")),
    ),
    Change(
        "the queue's spec put back",
        edit(QUEUES, CHILD.replace("overQuotaWeight: 1", "overQuotaWeight: 2"), CHILD),
    ),
    Change(
        "KAI's values: `binder.plugins.hamicore.enabled` false",
        edit("lab.toml", f"{HAMICORE}true", f"{HAMICORE}false"),
    ),
    Change("KAI's values put back", edit("lab.toml", f"{HAMICORE}false", f"{HAMICORE}true")),
    Change("the isolator's version: 1.1.0-chart -> 1.0.0-chart", edit("lab.toml", ISOLATOR[1], ISOLATOR[0])),
    Change("the isolator's version put back", edit("lab.toml", ISOLATOR[0], ISOLATOR[1])),
    Change("the RuntimeClass deleted by hand", delete_runtime_class),
    Change("the node's memory label removed by hand", remove_label),
    Change("KAI's scheduler killed (its Deployment makes a new pod)", kill_scheduler, look_only=True),
    Change("the evidence folder deleted", delete_evidence, look_only=True),
    Change("the cluster deleted by hand and `cluster` materialised", rebuild_cluster),
)
