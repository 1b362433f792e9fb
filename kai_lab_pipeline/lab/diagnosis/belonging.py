"""What of a cluster is the lab's: anything else on it may be ill for reasons of its own."""

from __future__ import annotations

import re

from kai_lab_pipeline.lab.claims.boundary import RESERVATION_NAMESPACE
from kai_lab_pipeline.lab.claims.gpus import MOCK_RELEASE, PLUGIN_LABEL
from kai_lab_pipeline.lab.claims.isolation import ISOLATOR, PARTS
from kai_lab_pipeline.lab.claims.reading import KAI_SCHEDULER
from kai_lab_pipeline.lab.claims.scheduler import COMPONENTS
from kai_lab_pipeline.lab.evidence import K8sObject, metadata_of, name_of
from kai_lab_pipeline.lab.spec import Expectations

RELEASES = frozenset({MOCK_RELEASE, KAI_SCHEDULER, ISOLATOR})
_SYSTEM_NAMESPACE = "kube-system"
_SYSTEM = (
    PLUGIN_LABEL[1],
    "coredns",
    "etcd",
    "kindnet",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
)
"""What of kube-system the lab stands on; a cluster of somebody's own has more there."""
_POD_GROUP = "pg-"
"""What KAI's pod-grouper begins the name of a pod's PodGroup with (v0.16 to v0.18)."""
_WORKLOADS = {**{name: name for name in COMPONENTS}, **{part: f"{ISOLATOR}-{part}" for part in PARTS}}
_WORD = re.compile(r"[a-z][a-z-]*")


def is_of_the_lab(obj: K8sObject, expect: Expectations) -> bool:
    """Whether an object belongs to the lab, or the lab stands on it. What is of the whole cluster always counts."""
    name, namespace = name_of(obj), metadata_of(obj).get("namespace")
    own = (expect.kai_namespace, expect.isolator_namespace, RESERVATION_NAMESPACE)
    if obj.get("kind") == "Namespace":
        return name in (*own, expect.pod_namespace, _SYSTEM_NAMESPACE)
    if not namespace or namespace in own:
        return True
    if namespace == _SYSTEM_NAMESPACE:
        return _begins(name, _SYSTEM)
    pods = (expect.whole_pod, expect.shared_pod, expect.canary_pod)
    groups = tuple(f"{_POD_GROUP}{pod}" for pod in pods)
    return namespace == expect.pod_namespace and (name in pods or _begins(name, (MOCK_RELEASE, *groups)))


def _begins(name: str, workloads: tuple[str, ...]) -> bool:
    return any(name == workload or name.startswith(f"{workload}-") for workload in workloads)


def missed(observed: str) -> list[str]:
    """The workloads of KAI and the isolator that a check's `observed` counts as absent or not ready."""
    wrong = [part for part in observed.split("; ") if not part.endswith(" Ready")]
    return [_WORKLOADS[word] for part in wrong for word in _WORD.findall(part) if word in _WORKLOADS]
