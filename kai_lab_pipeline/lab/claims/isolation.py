"""Claim 4: RuntimeClass nvidia is there, and the isolator's webhook runs and really changes pods."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kai_lab_pipeline.lab.claims.reading import (
    check,
    dry_run,
    objects,
    pod_ready,
    pod_state,
    release_deployed,
)
from kai_lab_pipeline.lab.evidence import (
    Evidence,
    K8sObject,
    annotations_of,
    labels_of,
    mapping,
    metadata_of,
    name_of,
    sequence,
    spec_of,
    status_of,
)
from kai_lab_pipeline.lab.gpu import FRACTION_ANNOTATION, MEMORY_ANNOTATION
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.lab.verdict import Finding, broken, held, not_evaluated

ISOLATOR = "kai-resource-isolator"
"""Release, chart and namespace of the isolator."""
RUNTIME_CLASS = "nvidia"
PARTS: Mapping[str, str] = {"libsync": "kai-libsync", "monitor": "kai-vgpu-monitor", "webhook": "kai-webhook"}
"""The isolator's parts and their value of the label app.kubernetes.io/component (chart 1.1.0)."""
VOLUMES: Mapping[str, str] = {
    "kai-resource-isolator-vgpu": "/usr/local/vgpu",
    "kai-resource-isolator-containers": "/usr/local/vgpu/containers",
    "kai-resource-isolator-vgpulock": "/tmp/vgpulock",
}
"""The hostPath volumes that the webhook adds (isolator 1.1.0; 1.0 knew only the first)."""
ANNOTATION_KEYS = frozenset({FRACTION_ANNOTATION, MEMORY_ANNOTATION})


@check
def runtime_class_handler(evidence: Evidence, expect: Expectations) -> Finding:
    want = expect.runtime_handler
    expected = f"RuntimeClass {RUNTIME_CLASS} with handler {want}"
    for runtime_class in objects(evidence.of("nvidia_runtime_class"), "runtimeclasses", expected):
        if name_of(runtime_class) == RUNTIME_CLASS:
            handler = runtime_class.get("handler")
            observed = f"handler {handler}"
            if handler == want:
                return held(expected, observed, f"RuntimeClass {RUNTIME_CLASS} maps to {want}.")
            why = "the boundary is meant to be crossed" if expect.crossing else "no NVIDIA runtime is set up here"
            return broken(
                expected, observed, f"The handler is {handler}, but {why}, which needs {want}.", transient=False
            )
    return broken(
        expected,
        "absent",
        f'Pods that KAI gives this runtime class are refused without it: RuntimeClass "{RUNTIME_CLASS}" not found.',
    )


@check
def isolator_release_deployed(evidence: Evidence, expect: Expectations) -> Finding:
    return release_deployed(evidence.of("isolator_release"), ISOLATOR, expect.versions.get("kai_resource_isolator"))


@check
def isolator_pods_running(evidence: Evidence, expect: Expectations) -> Finding:
    expected = f"{', '.join(PARTS)} Ready"
    pods = objects(evidence.of("isolator_release"), "pods", expected)
    states, wrong = [], []
    for part in PARTS:
        found = [pod for pod in pods if _is_part(pod, part, expect)]
        if not found:
            states.append(f"{part} absent")
            wrong.append(f"{part} is not there")
        for pod in found:
            states.append(f"{part} {'Ready' if pod_ready(pod) else pod_state(pod)}")
            if not pod_ready(pod):
                wrong.append(f"{name_of(pod)} is not Ready")
    observed = "; ".join(states)
    if wrong:
        return broken(expected, observed, f"Of the isolator {', '.join(wrong)}; monitor and webhook take 5 to 10 s.")
    return held(expected, observed, "libsync, monitor and webhook run.")


def _is_part(pod: K8sObject, part: str, expect: Expectations) -> bool:
    if metadata_of(pod).get("namespace") != expect.isolator_namespace or status_of(pod).get("phase") == "Succeeded":
        return False
    component = labels_of(pod).get("app.kubernetes.io/component")
    if component is not None:
        return component in (PARTS[part], part)
    return name_of(pod).startswith(f"{ISOLATOR}-{part}-")


@check
def webhook_annotation_keys(evidence: Evidence, expect: Expectations) -> Finding:
    expected = "annotationKeys=gpu-fraction|gpu-memory in the webhook's log"
    logs = [
        log
        for log in evidence.of("isolator_release").logs
        if log.namespace == expect.isolator_namespace and log.pod.startswith(f"{ISOLATOR}-webhook-")
    ]
    if not logs:
        return not_evaluated(expected, "The log of the isolator's webhook was not captured.")
    # The start line is the first of a process; mutations push it up, so the whole log is read.
    announced = [keys for log in logs for keys in re.findall(r"annotationKeys=(\S*)", log.text)]
    if not announced:
        return broken(expected, "not announced", "The webhook's log has no start line with annotationKeys.")
    if any(frozenset(keys.split("|")) != ANNOTATION_KEYS for keys in announced):
        return broken(
            expected, f"annotationKeys={announced[-1]}", f"The webhook reacts to {announced[-1]}.", transient=False
        )
    return held(expected, f"annotationKeys={announced[-1]}", "The webhook announced both annotations.")


@check
def webhook_mutates(evidence: Evidence, expect: Expectations) -> Finding:
    expected = f"a dry-run of an annotated pod has volumes {', '.join(VOLUMES)}"
    pod = dry_run(evidence.of("isolator_release"), "shared_pod", expected)
    if pod.get("kind") != "Pod":
        said = str(pod.get("message") or pod.get("kind") or "nothing readable")
        return broken(expected, said, f"The API server refused a dry-run of a shared pod: {said}")
    if not ANNOTATION_KEYS & annotations_of(pod).keys():
        return broken(
            expected,
            "no sharing annotation",
            "The dry-run pod asks no shared GPU: it proves nothing.",
            transient=False,
        )
    missing = missing_volumes(pod)
    if missing:
        return broken(
            expected,
            f"missing {', '.join(missing)}",
            "The webhook did not change the pod. Its failurePolicy is Ignore: while it is down, pods slip through "
            "without injection and without an error.",
        )
    return held(expected, ", ".join(VOLUMES), "The webhook adds HAMi-core's volumes.")


def missing_volumes(pod: K8sObject) -> list[str]:
    """Which of the isolator's volumes the pod lacks, or has with another hostPath."""
    paths = host_paths(pod)
    return [name for name, path in VOLUMES.items() if paths.get(name) != path]


def host_paths(pod: K8sObject) -> Mapping[str, Any]:
    """hostPath of each hostPath volume of the pod, by volume name."""
    volumes = (mapping(volume) for volume in sequence(spec_of(pod).get("volumes")))
    return {str(v.get("name")): mapping(v["hostPath"]).get("path") for v in volumes if v.get("hostPath") is not None}
