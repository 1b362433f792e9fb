"""What the lab puts on a cluster besides its releases: the objects of the manifests, namespaces, node labels.

Needed where the cluster is not the lab's own. What was there when the lab came is written into the cluster's mark, and
is never changed or removed; so is what the lab makes, since lab.toml may name other things by the time it goes. The
objects themselves are taken away step by step (`workbench.teardown`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kai_lab_pipeline.backends.base import Leftover, Log
from kai_lab_pipeline.backends.kai_made import CERTIFICATES, RESERVATIONS, standing_kais
from kai_lab_pipeline.backends.owner import Mark, key, mark_brought
from kai_lab_pipeline.backends.releases import SHARED_NAMESPACES, WEBHOOKS, kubectl_of
from kai_lab_pipeline.clients.kubernetes import KINDS, Cluster, NotFound, is_ours, label_writers
from kai_lab_pipeline.clients.manifests import CANARY, QUEUES, RUNTIME_CLASS, SHARED_POD, WHOLE_POD, load_manifest
from kai_lab_pipeline.settings import Chart, Settings

GPU_LABELS = ("nvidia.com/gpu.memory", "nvidia.com/gpu.product", "nvidia.com/gpu.count")
"""Node labels that the lab writes; in the mark as resource ``labels`` in the "namespace" of their node."""
MOCK_LABELS = ("nvidia.com/gpu.present",)
"""Node labels that nvml-mock's pod writes and leaves behind (0.3.0, measured)."""
MOCK_WRITER = "kubectl-label"
"""Field manager of them: its setup.sh runs ``kubectl label``."""
GONE_DEADLINE_S = 60.0
_MADE_BY_ITSELF = frozenset(
    {"events", "endpoints", "endpointslices", "leases", "controllerrevisions", "bindings", "localsubjectaccessreviews"}
)
"""Resources that clusters write of themselves, and that go with what they are about."""
_IN_EVERY_NAMESPACE = frozenset({("configmaps", "kube-root-ca.crt"), ("serviceaccounts", "default")})
_CERTIFICATES = frozenset(("secrets", name) for name in CERTIFICATES)
_KAI_GROUPS = frozenset(api.split("/")[0] for api, _ in KINDS.values() if api.startswith(("scheduling.run.ai", "kai.")))

Item = tuple[str, str | None, str]
"""Resource, namespace and name of an object."""


class Inventory:
    """Objects of the lab's names."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def objects(self) -> list[Item]:
        """Resource, namespace and name of everything the lab applies. Raises ManifestError."""
        files = (QUEUES, RUNTIME_CLASS, self._settings.manifests.device_plugin.file, CANARY, WHOLE_POD, SHARED_POD)
        return [
            (Cluster.resource_of(obj), obj["metadata"].get("namespace"), obj["metadata"]["name"])
            for file in files
            for obj in load_manifest(self._settings, file)
        ]

    @staticmethod
    def note_namespaces(cluster: Cluster, component: str, chart: Chart) -> None:
        """Note those namespaces as the lab's that are not there before a chart is installed, and come with it."""
        for name in {chart.namespace, *([RESERVATIONS] if component == "kai_scheduler" else [])} - SHARED_NAMESPACES:
            if cluster.find("namespaces", name) is None:
                mark_brought(cluster, key("namespaces", None, name), ours=True)

    def present(self, cluster: Cluster) -> frozenset[str]:
        """What of the lab's names is on a cluster now: objects, GPU labels of nodes; and all webhooks."""
        there = {key(*item) for item in self.objects() if cluster.find(item[0], item[2], namespace=item[1]) is not None}
        there |= {key(hooks, None, obj["metadata"]["name"]) for hooks in WEBHOOKS for obj in cluster.objects(hooks)}
        for node in cluster.objects("nodes"):
            meta = node["metadata"]
            labels = set(meta.get("labels") or ()) & {*GPU_LABELS, *MOCK_LABELS}
            there |= {key("labels", meta["name"], label) for label in labels}
        return frozenset(there)

    @staticmethod
    def remove_mock_labels(cluster: Cluster, mark: Mark) -> None:
        """Take away what the lab's mock wrote on nodes; what GPU feature discovery or an operator wrote there stays."""
        for node in cluster.objects("nodes"):
            name = node["metadata"]["name"]
            mocks = [label for label in MOCK_LABELS if label_writers(node, label) == {MOCK_WRITER}]
            gone = [label for label in mocks if key("labels", name, label) not in mark.found]
            if gone:
                cluster.patch("nodes", name, {"metadata": {"labels": dict.fromkeys(gone)}})

    def remove_moved(self, cluster: Cluster, mark: Mark, pause: Callable[[float], None]) -> None:
        """Remove what the lab made under names that the manifests no longer have, and wait until it is gone."""
        moved = sorted(
            {*self._brought(mark)} - {*self.objects()}, key=lambda item: (item[0] != "pods", item[0], item[2])
        )
        there = [item for item in moved if _is_labs(cluster, item, mark)]
        for resource, namespace, name in there:
            cluster.delete(resource, name, namespace=namespace, grace_s=1 if resource == "pods" else None)
        _wait_gone(cluster, there, pause)

    def remove_namespaces(self, cluster: Cluster, mark: Mark, log: Log, pause: Callable[[float], None]) -> None:
        """Delete the namespaces that came with the lab and hold nothing of others, and wait until they are gone."""
        waiting: list[Item] = [
            ("namespaces", None, name)
            for name in self._namespaces(cluster, mark)
            if not self._others_in(cluster, name) and cluster.delete("namespaces", name)
        ]
        for item in _wait_gone(cluster, waiting, pause):
            mark_brought(cluster, key(*item), ours=False)
            log(f"removed namespace {item[2]}")

    def leftovers(self, cluster: Cluster, mark: Mark) -> list[Leftover]:
        """What of the lab is still there, with the command that removes it."""
        kubectl = kubectl_of(cluster)
        left = []
        for item in dict.fromkeys([*self.objects(), *self._brought(mark)]):
            if _is_labs(cluster, item, mark):
                resource, namespace, name = item
                scope = f" -n {namespace}" if namespace else ""
                left.append(Leftover(f"{resource}/{name}", f"{kubectl} delete {resource} {name}{scope}"))
        for name in self._namespaces(cluster, mark):
            others = self._others_in(cluster, name)
            what = f"namespaces/{name}" + (f", in which others have {', '.join(others[:5])}" if others else "")
            left.append(Leftover(what, f"{kubectl} delete namespaces {name}"))
        return left

    def kept_definitions(self, cluster: Cluster) -> list[Leftover]:
        """KAI's CRDs: helm keeps them by design, as do their objects."""
        kubectl = kubectl_of(cluster)
        return [
            Leftover(f"CRD {name}, with its objects", f"{kubectl} delete crd {name}")
            for name in _kai_definitions(cluster)
        ]

    @staticmethod
    def _brought(mark: Mark) -> list[Item]:
        """Objects that the lab made, by the names that they were made with."""
        parts = [entry.split("/", 2) for entry in sorted(mark.brought)]
        return [(resource, namespace or None, name) for resource, namespace, name in parts if resource != "namespaces"]

    @staticmethod
    def _namespaces(cluster: Cluster, mark: Mark) -> list[str]:
        """Namespaces that came with the lab and are there; that of the reservations may be another KAI's by now."""
        came = [entry.split("/", 2)[2] for entry in sorted(mark.brought) if entry.startswith("namespaces/")]
        if RESERVATIONS in came and standing_kais(cluster, besides=mark.kai_namespaces):
            came.remove(RESERVATIONS)
        return [name for name in came if cluster.find("namespaces", name) is not None]

    def _others_in(self, cluster: Cluster, namespace: str) -> list[str]:
        """What in a namespace does not come from the lab's releases, from KAI or from the cluster itself.

        Every kind that the API server has is looked at: a namespace takes all of them with it.
        """
        releases = {chart.release for chart in self._settings.charts.by_component().values()}
        found = [
            (resource, obj)
            for resource, objects in cluster.everything_in(namespace, leave_out=_MADE_BY_ITSELF)
            for obj in objects
            if (resource, obj["metadata"]["name"]) not in _IN_EVERY_NAMESPACE | _CERTIFICATES
        ]
        living = {obj["metadata"]["uid"]: obj for _, obj in found}
        return [
            f"{resource}/{obj['metadata']['name']}" for resource, obj in found if not _belongs(obj, releases, living)
        ]


def _is_labs(cluster: Cluster, item: Item, mark: Mark) -> bool:
    """Whether an object is there, the lab's, and was not there when the lab came."""
    resource, namespace, name = item
    living = cluster.find(resource, name, namespace=namespace)
    return living is not None and is_ours(living) and key(*item) not in mark.found


def _wait_gone(cluster: Cluster, items: Sequence[Item], pause: Callable[[float], None]) -> list[Item]:
    """Those that are gone before the deadline is over; the others are leftovers."""
    deadline = time.monotonic() + GONE_DEADLINE_S
    gone: list[Item] = []
    for item in items:
        resource, namespace, name = item
        while cluster.find(resource, name, namespace=namespace) is not None:
            if time.monotonic() >= deadline:
                return gone
            pause(0.5)
        gone.append(item)
    return gone


def _belongs(obj: Mapping[str, Any], releases: set[str], living: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether an object goes with the lab: by itself, or because what owns it does."""
    meta = obj["metadata"]
    if meta.get("deletionTimestamp") or is_ours(obj):
        return True
    if (meta.get("annotations") or {}).get("meta.helm.sh/release-name") in releases:
        return True
    if (meta.get("labels") or {}).get("app") == RESERVATIONS or meta["name"] == RESERVATIONS:
        return True
    if str(obj.get("apiVersion", "")).split("/")[0] in _KAI_GROUPS:
        return True
    owners = meta.get("ownerReferences") or ()
    return bool(owners) and all(_owner_belongs(owner, releases, living) for owner in owners)


def _owner_belongs(owner: Mapping[str, Any], releases: set[str], living: Mapping[str, Mapping[str, Any]]) -> bool:
    if str(owner.get("apiVersion", "")).split("/")[0] in _KAI_GROUPS:
        return True
    known = living.get(str(owner.get("uid")))
    return known is None or _belongs(known, releases, living)  # an owner that is gone takes it along


def _kai_definitions(cluster: Cluster) -> list[str]:
    try:
        names = [str(crd["metadata"]["name"]) for crd in cluster.objects("customresourcedefinitions")]
    except NotFound:
        return []
    return [name for name in names if name.split(".", 1)[-1] in _KAI_GROUPS]
