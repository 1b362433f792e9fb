"""Taking a lab away, in an order that works, and looking whether it is gone.

Custom resources go before their operator. A cluster that the lab made itself is removed as a whole, which is the sure
way; on a cluster that was there before, each thing is removed, and only what the lab made: it carries the lab's field
manager, and it was not there when the lab came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kai_lab_pipeline.backends.base import Leftover
from kai_lab_pipeline.backends.inventory import GPU_LABELS
from kai_lab_pipeline.backends.releases import kubectl_of
from kai_lab_pipeline.clients.kubernetes import FIELD_MANAGER, ApiError, Cluster, label_writers
from kai_lab_pipeline.clients.manifests import CANARY, QUEUES, RUNTIME_CLASS, SHARED_POD, WHOLE_POD, load_manifest
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.lab.spec import ASSETS
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.ownership import is_foreign
from kai_lab_pipeline.workbench.patience import wait_gone

BEFORE_RELEASES: Mapping[str, str] = {
    CANARY: "",
    SHARED_POD: "shared_gpu_pod",
    WHOLE_POD: "whole_gpu_pod",
    QUEUES: "queues",
    RUNTIME_CLASS: "nvidia_runtime_class",
}
"""Manifests that are taken away before the releases, and the asset of each: the canary is none."""
GONE_S = 90.0
"""Longest wait for one thing to be gone, real seconds."""
POD_GRACE_S = 1
"""A sleeping busybox as process 1 ignores the polite signal, and would take its whole 30 s (as measured)."""


@dataclass
class Torn:
    """What a tear-down did, and what it could not remove."""

    done: list[str] = field(default_factory=list)
    leftovers: list[Leftover] = field(default_factory=list)
    kept: list[Leftover] = field(default_factory=list)
    """What stays by design, such as CRDs, with the command that removes it."""
    gone: set[str] = field(default_factory=set)
    """Assets that are verified to be no longer there."""


def tear_down(lab: Lab, torn: Torn | None = None) -> Torn:
    """Remove the lab's cluster, or what the lab made on it. Raises LabError when the backend cannot be asked.

    Safe to run twice, after a half-built lab, and when the cluster is gone already. `torn` is filled on the way: what
    was done is known also where the rest could not be.
    """
    torn = torn if torn is not None else Torn()
    try:
        there = lab.backend.cluster_exists()
    except LabError as error:
        refused = isinstance(error, ApiError) and error.code != 0
        gone = f" If it is gone for good, all that is left of the lab is its folder: rm -r {lab.state.folder}"
        raise LabError(
            "The lab's cluster cannot be asked, and not answering is not being gone: nothing was removed",
            where=f"lab {lab.state.name} (backend {lab.backend.name})",
            seen=error.text(),
            next_step=(error.next_step or "Mend that and run it again.")
            if refused
            else f"Make it answer and run it again.{gone}",
        ) from error
    if not there:
        if lab.backend.makes_cluster:
            lab.backend.remove_cluster(lab.log)  # what the lab's folder still says of it, keys included
        torn.done.append("the cluster is gone already")
        torn.gone.update(ASSETS)
        return torn
    if not lab.backend.makes_cluster:
        _remove_pieces(lab, torn)
    facts = lab.backend.remove_cluster(lab.log)
    torn.done.append(facts.summary)
    torn.leftovers.extend(facts.leftovers)
    torn.kept.extend(facts.kept)
    if lab.backend.makes_cluster and lab.backend.cluster_exists():
        torn.leftovers.append(Leftover(f"the cluster of lab {lab.state.name}", "kai-lab down"))
    if not torn.leftovers:
        torn.gone.update(ASSETS)
    return torn


def _remove_pieces(lab: Lab, torn: Torn) -> None:
    cluster = lab.backend.connect()
    for manifest, asset in BEFORE_RELEASES.items():
        _remove_all(lab, cluster, manifest, asset, torn)
    _uninstall(lab, "kai_resource_isolator", "isolator_release", torn)
    _uninstall(lab, "kai_scheduler", "kai_release", torn)
    _remove_all(lab, cluster, lab.settings.manifests.device_plugin.file, "device_plugin", torn)
    _uninstall(lab, "nvml_mock", "nvml_mock_release", torn)
    _unlabel(lab, cluster, torn)


def _remove_all(lab: Lab, cluster: Cluster, manifest: str, asset: str, torn: Torn) -> None:
    """Remove a manifest's objects; its asset is gone when none of them is left over."""
    before = len(torn.leftovers)
    for obj in reversed(load_manifest(lab.settings, manifest)):  # a child queue goes before its parent
        _remove(lab, cluster, obj, torn)
    if asset and len(torn.leftovers) == before:
        torn.gone.add(asset)


def _remove(lab: Lab, cluster: Cluster, obj: Mapping[str, Any], torn: Torn) -> None:
    resource, meta = cluster.resource_of(obj), obj["metadata"]
    name, namespace = meta["name"], meta.get("namespace")
    living = cluster.find(resource, name, namespace=namespace)
    if living is None:
        return
    if is_foreign(lab.backend, resource, living):
        torn.done.append(f"{resource}/{name} was not made by this lab and stays")
        return
    cluster.delete(resource, name, namespace=namespace, grace_s=POD_GRACE_S if resource == "pods" else None)
    try:
        deadline_s = max(GONE_S * lab.backend.time_scale, 5.0)
        wait_gone(cluster, resource, name, namespace=namespace, deadline_s=deadline_s)
    except LabError as error:
        scope = f" -n {namespace}" if namespace else ""
        torn.leftovers.append(
            Leftover(f"{resource}/{name} ({error.seen})", f"{kubectl_of(cluster)} delete {resource} {name}{scope}")
        )
        return
    torn.done.append(f"{resource}/{name} removed")


def _uninstall(lab: Lab, component: str, asset: str, torn: Torn) -> None:
    chart = lab.settings.charts.by_component()[component]
    facts = lab.backend.uninstall(component, chart, lab.log)
    torn.done.append(facts.summary)
    if not facts.skipped and not facts.leftovers:
        torn.gone.add(asset)  # verified by `uninstall`, which raises where it is still listed


def _unlabel(lab: Lab, cluster: Cluster, torn: Torn) -> None:
    """Take the lab's labels off the nodes; one that others hold as well, or wrote since, is theirs."""
    for node in cluster.objects("nodes"):
        name = node["metadata"]["name"]
        ours = [label for label in GPU_LABELS if label_writers(node, label) == {FIELD_MANAGER}]
        ours = [label for label in ours if not lab.backend.was_there("labels", name, label)]
        if ours:
            cluster.patch("nodes", name, {"metadata": {"labels": dict.fromkeys(ours)}})
            torn.done.append(f"labels {', '.join(ours)} removed from node {name}")
    torn.gone.add("labelled_node")
