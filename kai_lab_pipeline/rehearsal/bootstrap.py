"""What a new cluster has before anybody asks for anything."""

from __future__ import annotations

from kai_lab_pipeline.rehearsal.api.errors import Obj
from kai_lab_pipeline.rehearsal.api.service import Service

_PRIORITIES: dict[str, tuple[int, str]] = {
    "system-cluster-critical": (
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    "system-node-critical": (
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
}


def furnish(service: Service) -> None:
    """Make the system namespaces, priority classes and the API's own Service where they are missing."""
    store = service.store
    for name in ("default", "kube-node-lease", "kube-public", "kube-system"):
        if store.get("namespaces", ("", name)) is None:
            body: Obj = {
                "kind": "Namespace",
                "metadata": {"labels": {"kubernetes.io/metadata.name": name}},
                "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"},
            }
            service.put_system("namespaces", "", name, body)
            service.furnish_namespace(name)
    for name, (value, description) in _PRIORITIES.items():
        if store.get("priorityclasses.scheduling.k8s.io", ("", name)) is None:
            service.put_system(
                "priorityclasses.scheduling.k8s.io",
                "",
                name,
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"generation": 1},
                    "value": value,
                    "description": description,
                    "preemptionPolicy": "PreemptLowerPriority",
                },
            )
    if store.get("services", ("default", "kubernetes")) is None:
        port = {"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}
        spec: Obj = {
            "type": "ClusterIP",
            "clusterIP": "10.96.0.1",
            "clusterIPs": ["10.96.0.1"],
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [port],
            "sessionAffinity": "None",
        }
        labels = {"component": "apiserver", "provider": "kubernetes"}
        body = {"kind": "Service", "metadata": {"labels": labels}, "spec": spec, "status": {"loadBalancer": {}}}
        service.put_system("services", "default", "kubernetes", body)
