"""What the lab puts on a cluster besides its releases: the objects of the manifests, namespaces, node labels.

Needed where the cluster is not the lab's own. What was there when the lab came is written into the cluster's mark, and
is never changed or removed; the objects themselves are taken away step by step (`workbench.teardown`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from kai_lab_pipeline.backends.base import Leftover, Log
from kai_lab_pipeline.backends.owner import Mark
from kai_lab_pipeline.backends.releases import SHARED_NAMESPACES
from kai_lab_pipeline.clients.kubernetes import KINDS, Cluster, NotFound, is_ours
from kai_lab_pipeline.clients.manifests import CANARY, QUEUES, RUNTIME_CLASS, SHARED_POD, WHOLE_POD, load_manifest
from kai_lab_pipeline.settings import Settings

MADE_BY_KAI = "kai-resource-reservation"
"""Namespace that KAI makes for its reservation pods."""
GPU_LABELS = ("nvidia.com/gpu.memory", "nvidia.com/gpu.product", "nvidia.com/gpu.count")
"""Node labels that the lab writes; in the mark as resource ``labels`` in the "namespace" of their node."""
NAMESPACE_DEADLINE_S = 60.0
WORKLOADS = ("pods", "deployments", "daemonsets")


class Inventory:
    """Objects of the lab's names."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def objects(self) -> list[tuple[str, str | None, str]]:
        """Resource, namespace and name of everything the lab applies. Raises ManifestError."""
        files = (QUEUES, RUNTIME_CLASS, self._settings.manifests.device_plugin.file, CANARY, WHOLE_POD, SHARED_POD)
        return [
            (Cluster.resource_of(obj), obj["metadata"].get("namespace"), obj["metadata"]["name"])
            for file in files
            for obj in load_manifest(self._settings, file)
        ]

    def namespaces(self) -> tuple[str, ...]:
        """Namespaces that the lab's charts bring."""
        named = {chart.namespace for chart in self._settings.charts.by_component().values()}
        return tuple(sorted((named | {MADE_BY_KAI}) - SHARED_NAMESPACES))

    def present(self, cluster: Cluster) -> frozenset[str]:
        """What of the lab's names is on a cluster now: objects, namespaces, KAI's CRDs, and GPU labels of nodes."""
        there = {key(*item) for item in self.objects() if cluster.find(item[0], item[2], namespace=item[1]) is not None}
        there |= {key("namespaces", None, name) for name in self.namespaces() if cluster.find("namespaces", name)}
        there |= {key("customresourcedefinitions", None, name) for name in _kai_definitions(cluster)}
        for node in cluster.objects("nodes"):
            meta = node["metadata"]
            there |= {key("labels", meta["name"], label) for label in GPU_LABELS if label in (meta.get("labels") or {})}
        return frozenset(there)

    def remove_namespaces(self, cluster: Cluster, mark: Mark, log: Log, pause: Callable[[float], None]) -> None:
        """Delete the namespaces that came with the lab and hold nothing of others, and wait until they are gone."""
        waiting = [name for name in self._came_with_the_lab(mark) if not self._others_in(cluster, name)]
        waiting = [name for name in waiting if cluster.delete("namespaces", name)]
        deadline = time.monotonic() + NAMESPACE_DEADLINE_S
        for name in waiting:
            while cluster.find("namespaces", name) is not None:
                if time.monotonic() >= deadline:
                    return  # listed as a leftover
                pause(0.5)
            log(f"removed namespace {name}")

    def leftovers(self, cluster: Cluster, mark: Mark) -> list[Leftover]:
        """What of the lab is still there, with the command that removes it."""
        kubectl = kubectl_of(cluster)
        left = []
        for resource, namespace, name in self.objects():
            living = cluster.find(resource, name, namespace=namespace)
            if living is not None and is_ours(living) and key(resource, namespace, name) not in mark.found:
                scope = f" -n {namespace}" if namespace else ""
                left.append(Leftover(f"{resource}/{name}", f"{kubectl} delete {resource} {name}{scope}"))
        for name in self._came_with_the_lab(mark):
            if cluster.find("namespaces", name) is not None:
                others = self._others_in(cluster, name)
                what = f"namespaces/{name}" + (f", in which others have {', '.join(others[:5])}" if others else "")
                left.append(Leftover(what, f"{kubectl} delete namespaces {name}"))
        return left

    def kept_definitions(self, cluster: Cluster, mark: Mark) -> list[Leftover]:
        """KAI's CRDs that came with the lab: helm keeps them by design, as do their objects."""
        kubectl = kubectl_of(cluster)
        return [
            Leftover(f"CRD {name}, with its objects", f"{kubectl} delete crd {name}")
            for name in _kai_definitions(cluster)
            if key("customresourcedefinitions", None, name) not in mark.found
        ]

    def _came_with_the_lab(self, mark: Mark) -> list[str]:
        return [name for name in self.namespaces() if key("namespaces", None, name) not in mark.found]

    def _others_in(self, cluster: Cluster, namespace: str) -> list[str]:
        """Workloads in a namespace that are nobody's children, not on their way out, and not of the lab's releases."""
        releases = {chart.release for chart in self._settings.charts.by_component().values()}
        return [
            f"{resource}/{obj['metadata']['name']}"
            for resource in WORKLOADS
            for obj in cluster.objects(resource, namespace=namespace)
            if not _belongs(obj, releases)
        ]


def _belongs(obj: Mapping[str, Any], releases: set[str]) -> bool:
    meta = obj["metadata"]
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    return bool(
        meta.get("ownerReferences")
        or meta.get("deletionTimestamp")
        or is_ours(obj)
        or annotations.get("meta.helm.sh/release-name") in releases
        or meta.get("namespace") == MADE_BY_KAI
        or labels.get("app") == MADE_BY_KAI
    )


def _kai_definitions(cluster: Cluster) -> list[str]:
    groups = {api.split("/")[0] for api, _ in KINDS.values() if api.startswith(("scheduling.run.ai", "kai."))}
    try:
        names = [str(crd["metadata"]["name"]) for crd in cluster.objects("customresourcedefinitions")]
    except NotFound:
        return []
    return [name for name in names if name.split(".", 1)[-1] in groups]


def kubectl_of(cluster: Cluster) -> str:
    """kubectl on this cluster and no other, as a person types it."""
    return f"kubectl --kubeconfig {cluster.kubeconfig} --context {cluster.context}"


def key(resource: str, namespace: str | None, name: str) -> str:
    return f"{resource}/{namespace or ''}/{name}"
