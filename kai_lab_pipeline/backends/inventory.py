"""What the lab puts on a cluster besides its releases: the objects of the manifests, namespaces, node labels.

Needed where the cluster is not the lab's own: only what was not there before is removed, and a node label only where
managedFields says that the lab wrote it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import yaml

from kai_lab_pipeline.backends.base import Leftover, Log
from kai_lab_pipeline.backends.owner import Mark
from kai_lab_pipeline.backends.releases import SHARED_NAMESPACES
from kai_lab_pipeline.clients.kubernetes import FIELD_MANAGER, KINDS, ApiError, Cluster
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.settings import Settings

MADE_BY_KAI = "kai-resource-reservation"
"""Namespace that KAI makes for its reservation pods."""
NAMESPACE_DEADLINE_S = 60.0


class Inventory:
    """Objects of the lab's names."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def objects(self) -> list[tuple[str, str | None, str]]:
        """Resource, namespace and name of everything in the manifests, in the order in which it is made."""
        folder = self._settings.project_file("manifests")
        files = {*folder.glob("*.yaml"), self._settings.project_file(self._settings.manifests.device_plugin.file)}
        found = []
        for file in sorted(files):
            try:
                documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
            except (OSError, yaml.YAMLError) as error:
                raise LabError("A manifest cannot be read", where=str(file), seen=str(error).splitlines()[0]) from error
            for document in filter(None, documents):
                meta = document["metadata"]
                resource = Cluster.resource_of(document)
                found.append((resource, meta.get("namespace"), str(meta["name"])))
        return found

    def namespaces(self) -> tuple[str, ...]:
        """Namespaces that the lab's charts bring."""
        named = {chart.namespace for chart in self._settings.charts.by_component().values()}
        return tuple(sorted((named | {MADE_BY_KAI}) - SHARED_NAMESPACES))

    def present(self, cluster: Cluster) -> frozenset[str]:
        """Which of them are on a cluster now."""
        there = {key(*item) for item in self.objects() if cluster.find(item[0], item[2], namespace=item[1]) is not None}
        spaces = {key("namespaces", None, name) for name in self.namespaces() if cluster.find("namespaces", name)}
        return frozenset(there | spaces)

    def remove_pods(self, cluster: Cluster, mark: Mark, log: Log) -> None:
        """Delete the lab's pods at once: sleep as process 1 ignores the polite signal for 30 s."""
        for resource, namespace, name in self._made(mark):
            if resource == "pods" and cluster.delete(resource, name, namespace=namespace, grace_s=0):
                log(f"removed pod {namespace}/{name}")

    def remove_objects(self, cluster: Cluster, mark: Mark, log: Log) -> None:
        """Delete what the manifests made, and the node labels that the lab wrote."""
        for resource, namespace, name in reversed(self._made(mark)):
            if cluster.delete(resource, name, namespace=namespace):
                log(f"removed {resource}/{name}")
        for node in cluster.objects("nodes"):
            labels = labels_written_by_lab(node)
            if labels:
                name = node["metadata"]["name"]
                cluster.patch("nodes", name, {"metadata": {"labels": dict.fromkeys(labels)}})
                log(f"removed labels {', '.join(labels)} from node {name}")

    def remove_namespaces(self, cluster: Cluster, mark: Mark, log: Log, pause: Callable[[float], None]) -> None:
        """Delete the namespaces that were not there before, and wait until they are gone."""
        waiting = [name for name in self.namespaces() if key("namespaces", None, name) not in mark.found]
        waiting = [name for name in waiting if cluster.delete("namespaces", name)]
        deadline = time.monotonic() + NAMESPACE_DEADLINE_S
        for name in waiting:
            while cluster.find("namespaces", name) is not None:
                if time.monotonic() >= deadline:
                    return  # listed as a leftover
                pause(0.5)
            log(f"removed namespace {name}")

    def leftovers(self, cluster: Cluster, mark: Mark) -> list[Leftover]:
        """What is still there, and KAI's cluster-wide objects, which helm keeps by design."""
        kubectl = f"kubectl --context {cluster.context}"
        left = []
        made = [*self._made(mark)]
        made += [
            ("namespaces", None, name) for name in self.namespaces() if key("namespaces", None, name) not in mark.found
        ]
        for resource, namespace, name in made:
            if cluster.find(resource, name, namespace=namespace) is not None:
                scope = f" -n {namespace}" if namespace else ""
                left.append(Leftover(f"{resource}/{name}", f"{kubectl} delete {resource} {name}{scope}"))
        try:
            definitions = [str(crd["metadata"]["name"]) for crd in cluster.objects("customresourcedefinitions")]
        except ApiError:
            definitions = []
        kai_groups = {api.split("/")[0] for api, _ in KINDS.values() if api.startswith(("scheduling.run.ai", "kai."))}
        kept = [name for name in definitions if name.split(".", 1)[-1] in kai_groups]
        return left + [Leftover(f"CRD {name}, with its objects", f"{kubectl} delete crd {name}") for name in kept]

    def _made(self, mark: Mark) -> list[tuple[str, str | None, str]]:
        return [item for item in self.objects() if key(*item) not in mark.found]


def key(resource: str, namespace: str | None, name: str) -> str:
    return f"{resource}/{namespace or ''}/{name}"


def labels_written_by_lab(node: dict[str, Any]) -> list[str]:
    """Labels of a node whose field manager is the lab."""
    labels: set[str] = set()
    for entry in node["metadata"].get("managedFields") or ():
        if entry.get("manager") == FIELD_MANAGER:
            fields = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels") or {}
            labels |= {field.removeprefix("f:") for field in fields if field != "."}
    return sorted(labels & set(node["metadata"].get("labels") or {}))
