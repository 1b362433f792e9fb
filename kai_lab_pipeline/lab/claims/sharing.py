"""The shared pod and KAI's accounting of it, as several claims read them.

Rule (KAI Scheduler v0.17.0, confirmed by measurement): a queue holds the GPUs of its live pods; a shared pod counts
ceil(100 x request / label floored to 100 MiB) / 100 per device, a whole-GPU pod its ``nvidia.com/gpu``. A pod
without queue label is put into ``default-queue``; finished and deleted pods no longer count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kai_lab_pipeline.lab.claims.reading import (
    CONFIGMAP_ANNOTATION,
    GPU_GROUP_LABEL,
    GPU_RESOURCE,
    KAI_SCHEDULER,
    LIMIT_VARIABLE,
    MEMORY_LABEL,
    PRESENT_LABEL,
    QUEUE_LABEL,
    Settled,
    by_key,
    containers_of,
    objects,
    pod_named,
    whole_number,
)
from kai_lab_pipeline.lab.evidence import (
    Evidence,
    K8sObject,
    Observation,
    annotations_of,
    is_deleted,
    labels_of,
    mapping,
    metadata_of,
    name_of,
    sequence,
    spec_of,
    status_of,
)
from kai_lab_pipeline.lab.gpu import (
    FRACTION_ANNOTATION,
    MEMORY_ANNOTATION,
    floored_memory_mib,
    format_quantity,
    memory_limit_mib,
    portion_per_device,
    requested_fraction,
)
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.lab.verdict import Finding, broken, held, not_evaluated, not_reachable

FALLBACK_QUEUE = "default-queue"
"""KAI's pod grouper puts a pod without queue label here."""
CONTAINER_ANNOTATION = "gpu-fraction-container-name"


def shared_pod(seen: Observation, expect: Expectations, expected: str) -> K8sObject:
    """The lab's shared pod; settles as broken when it is absent or asks no shared GPU at all."""
    pod = pod_named(seen, expect.shared_pod, expect.pod_namespace, expected)
    if not {MEMORY_ANNOTATION, FRACTION_ANNOTATION} & annotations_of(pod).keys():
        message = f"{expect.shared_pod} is not a shared pod: it has no annotation {MEMORY_ANNOTATION} or "
        raise Settled(broken(expected, "not a shared pod", f"{message}{FRACTION_ANNOTATION}.", transient=False))
    return pod


def gpu_group(pod: K8sObject) -> str | None:
    """The GPU group that KAI's binder labelled the pod with after its reservation succeeded, or None."""
    for key, value in labels_of(pod).items():
        if key == GPU_GROUP_LABEL and value:
            return str(value)
        if key.startswith(f"{GPU_GROUP_LABEL}/"):
            return key.partition("/")[2]
    return None


def gpu_container(pod: K8sObject) -> tuple[K8sObject, str] | None:
    """The container that gets the GPU, and its suffix in the names of the pod's ConfigMaps (``0``, ``i0``, ...).

    It is named by an annotation (init containers are searched first), else it is the first container.
    """
    named = annotations_of(pod).get(CONTAINER_ANNOTATION)
    inits = tuple(mapping(entry) for entry in sequence(spec_of(pod).get("initContainers")))
    for prefix, containers in (("i", inits), ("", containers_of(pod))):
        for index, container in enumerate(containers):
            if container.get("name") == named or (named is None and not prefix):
                return container, f"{prefix}{index}"
    return None


def memory_label(evidence: Evidence, seen: Observation, pod: K8sObject, expected: str) -> str | None:
    """The memory label by which KAI accounts the pod: of its node, else the node selected for it, else the lab's."""
    nodes = {name_of(node): node for node in objects(seen, "nodes", expected)}
    request = seen.find("bindrequests", name_of(pod), str(metadata_of(pod).get("namespace")))
    selected = spec_of(request).get("selectedNode") if request is not None else None
    for name in (spec_of(pod).get("nodeName"), selected, evidence.node):
        if name and str(name) in nodes:
            return _label(nodes[str(name)])
    gpu_nodes = [node for node in nodes.values() if labels_of(node).get(PRESENT_LABEL) == "true"]
    labels = [_label(node) for node in gpu_nodes or nodes.values()]
    return min(labels, key=floored_memory_mib, default=None)


def _label(node: K8sObject) -> str | None:
    value = labels_of(node).get(MEMORY_LABEL)
    return None if value is None else str(value)


@dataclass(frozen=True)
class QueueShare:
    """What a queue's pods add up to by KAI's rule."""

    gpus: float
    parts: tuple[str, ...]
    """One ``pod amount`` per pod that holds GPUs."""

    def __str__(self) -> str:
        return " + ".join(self.parts) or "no pod with GPUs"


def queue_share(evidence: Evidence, seen: Observation, queue: str, expected: str) -> QueueShare:
    """The GPUs of all live pods of `queue`, in whole GPUs and fractions."""
    total, parts = 0.0, []
    for pod in objects(seen, "pods", expected):
        if not _counts(pod, queue):
            continue
        amount = requested_fraction(annotations_of(pod), memory_label(evidence, seen, pod, expected))
        gpus = amount if amount is not None else float(whole_gpus(pod))
        if gpus:
            total += gpus
            parts.append(f"{name_of(pod)} {format_quantity(gpus)}")
    return QueueShare(total, tuple(parts))


def _counts(pod: K8sObject, queue: str) -> bool:
    return (
        spec_of(pod).get("schedulerName") == KAI_SCHEDULER
        and labels_of(pod).get(QUEUE_LABEL, FALLBACK_QUEUE) == queue
        and status_of(pod).get("phase") not in ("Succeeded", "Failed")
        and not is_deleted(pod)
    )


def whole_gpus(pod: K8sObject) -> int:
    """Whole GPUs that the pod's containers ask for together."""
    asked = (mapping(mapping(c.get("resources")).get("limits")).get(GPU_RESOURCE) for c in containers_of(pod))
    return sum(whole_number(value) or 0 for value in asked)


def limit_source(pod: K8sObject) -> Mapping[str, Any]:
    """The configMapKeyRef from which the GPU container takes CUDA_DEVICE_MEMORY_LIMIT; empty when it does not."""
    found = gpu_container(pod)
    entry = by_key(found[0].get("env"), "name").get(LIMIT_VARIABLE) if found else None
    return mapping(mapping(mapping(entry).get("valueFrom")).get("configMapKeyRef"))


def shared_configmap(pod: K8sObject) -> str | None:
    """Name of the pod's shared-GPU ConfigMap, from KAI's annotation and the GPU container's place; None without."""
    prefix, found = annotations_of(pod).get(CONFIGMAP_ANNOTATION), gpu_container(pod)
    return f"{prefix}-{found[1]}" if prefix and found else None


def limit_finding(evidence: Evidence, seen: Observation, pod: K8sObject) -> Finding:
    """Whether the memory limit in the pod's ConfigMap is trunc(label x portion) MiB.

    The ConfigMap exists only once KAI bound the pod, so before that the limit is not reachable.
    """
    expected = f"{LIMIT_VARIABLE} = trunc(label x portion) MiB"
    label = memory_label(evidence, seen, pod, expected)
    portion = portion_per_device(annotations_of(pod), label)
    limit = None if portion is None else memory_limit_mib(label, portion)
    name = limit_source(pod).get("name") or shared_configmap(pod)
    namespace = str(metadata_of(pod).get("namespace"))
    configmap = seen.find("configmaps", str(name), namespace) if name else None
    if configmap is None:
        if not spec_of(pod).get("nodeName"):
            return not_reachable(expected, "not bound", "KAI writes the ConfigMap when it binds the pod, not before.")
        if seen.objects("configmaps") is None:
            return not_evaluated(expected, "The list of configmaps was not captured.")
        return broken(expected, "no ConfigMap", f"The pod is bound, but its ConfigMap {name or ''} is not there.")
    if portion is None or limit is None:
        return broken(
            expected,
            f"label {label}, portion {portion}",
            "Without a readable label and request no limit is right.",
        )
    data = mapping(configmap.get("data"))
    value, given = data.get(LIMIT_VARIABLE), data.get("GPU_PORTION")
    expected = f"{LIMIT_VARIABLE}={limit}m for portion {portion:.2f} of {label} MiB"
    observed = f"{LIMIT_VARIABLE}={value}, GPU_PORTION={given}"
    if value != f"{limit}m":
        return broken(expected, observed, f"The limit is {value}, not {limit}m.", transient=False)
    if given is not None and not _same_portion(given, portion):
        message = f"The limit is right, but the ConfigMap says portion {given}, not {portion:.2f}."
        return broken(expected, observed, message, transient=False)
    return held(expected, observed, f"The container is limited to {limit} MiB.")


def _same_portion(given: object, portion: float) -> bool:
    text = str(given)
    return re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) is not None and abs(float(text) - portion) < 0.005
