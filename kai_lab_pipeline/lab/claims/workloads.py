"""Claims 5, 6 and 7: KAI schedules a whole GPU, reads the memory per card, and the isolator injects HAMi-core."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from kai_lab_pipeline.lab.claims.isolation import RUNTIME_CLASS, VOLUMES, host_paths
from kai_lab_pipeline.lab.claims.reading import (
    CONFIGMAP_ANNOTATION,
    GPU_GROUP_LABEL,
    KAI_SCHEDULER,
    LIMIT_VARIABLE,
    MEMORY_LABEL,
    QUEUE_LABEL,
    by_key,
    check,
    containers_of,
    objects,
    pod_named,
    pod_state,
)
from kai_lab_pipeline.lab.claims.sharing import (
    FALLBACK_QUEUE,
    gpu_container,
    limit_finding,
    limit_source,
    memory_label,
    queue_share,
    shared_configmap,
    shared_pod,
    whole_gpus,
)
from kai_lab_pipeline.lab.evidence import (
    Evidence,
    K8sObject,
    Observation,
    annotations_of,
    event_time,
    events_about,
    is_deleted,
    labels_of,
    mapping,
    metadata_of,
    name_of,
    parse_time,
    sequence,
    spec_of,
    status_of,
)
from kai_lab_pipeline.lab.gpu import (
    FRACTION_ANNOTATION,
    MEMORY_ANNOTATION,
    floored_memory_mib,
    format_quantity,
    label_memory_mib,
    portion_per_device,
)
from kai_lab_pipeline.lab.scheduler_log import newest_division
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.lab.verdict import Finding, Verdict, broken, held, not_evaluated

MOUNTS = {
    "/usr/local/vgpu": ("kai-resource-isolator-vgpu", None),
    "/etc/ld.so.preload": ("kai-resource-isolator-vgpu", "ld.so.preload"),
    "/usr/local/vgpu/containers": ("kai-resource-isolator-containers", None),
    "/tmp/vgpulock": ("kai-resource-isolator-vgpulock", None),
}
"""Where HAMi-core must be mounted: path -> volume and subPath (isolator 1.1.0)."""
VGPU_VARIABLE = ("CONTAINER_VGPU_MOUNT", "/usr/local/vgpu")
NO_MEMORY = re.compile(r"didn't have enough resources: GPU memory|gpu memory count on the node was not synced")
"""KAI v0.17.0 for a pod whose memory request fits no card, also because no memory is known yet."""
ACCOUNTED = ("requested", "allocated", "fairShare")
TOLERANCE = 0.0005
"""GPUs; the log prints three decimals."""


@check
def whole_gpu_running(evidence: Evidence, expect: Expectations) -> Finding:
    expected = f"pod {expect.whole_pod} (one whole GPU, by KAI) Running on a node"
    pod = pod_named(evidence.of("whole_gpu_pod"), expect.whole_pod, expect.pod_namespace, expected)
    spec, observed = spec_of(pod), pod_state(pod)
    wrong = [
        text
        for text, right in (
            (f"schedulerName {spec.get('schedulerName')}", spec.get("schedulerName") == KAI_SCHEDULER),
            (f"{whole_gpus(pod)} whole GPUs", whole_gpus(pod) == 1),
            (f"runtimeClassName {spec.get('runtimeClassName')}", spec.get("runtimeClassName") == RUNTIME_CLASS),
            (
                f"queue {labels_of(pod).get(QUEUE_LABEL)}",
                labels_of(pod).get(QUEUE_LABEL, FALLBACK_QUEUE) == expect.queue,
            ),
        )
        if not right
    ]
    if wrong:
        return broken(expected, ", ".join(wrong), f"It is not the lab's pod: {', '.join(wrong)}.", transient=False)
    if status_of(pod).get("phase") != "Running" or not spec.get("nodeName") or is_deleted(pod):
        return broken(expected, observed, f"The whole-GPU pod does not run: {observed}.")
    return held(expected, observed, "KAI scheduled the whole-GPU pod and it runs.")


@check
def no_sharing_injected(evidence: Evidence, expect: Expectations) -> Finding:
    expected = f"no label {GPU_GROUP_LABEL}, no vgpu mounts"
    absent = not_evaluated(expected, f"There is no pod {expect.whole_pod} to look at.", observed="absent")
    pod = pod_named(evidence.of("whole_gpu_pod"), expect.whole_pod, expect.pod_namespace, expected, absent=absent)
    traces = [f"label {key}" for key in labels_of(pod) if key.split("/")[0] == GPU_GROUP_LABEL]
    traces += [
        f"annotation {key}"
        for key in (MEMORY_ANNOTATION, FRACTION_ANNOTATION, CONFIGMAP_ANNOTATION)
        if key in annotations_of(pod)
    ]
    traces += [f"volume {name}" for name in by_key(spec_of(pod).get("volumes"), "name") if name in VOLUMES]
    for container in containers_of(pod):
        traces += [f"mount {path}" for path in by_key(container.get("volumeMounts"), "mountPath") if path in MOUNTS]
        variables = by_key(container.get("env"), "name")
        traces += [f"env {name}" for name in (VGPU_VARIABLE[0], LIMIT_VARIABLE) if name in variables]
    if traces:
        return broken(
            expected, ", ".join(traces), f"A whole GPU was treated as shared: {', '.join(traces)}.", transient=False
        )
    return held(expected, "none", "The whole-GPU pod was left as it is.")


@check
def label_read_by_kai(evidence: Evidence, expect: Expectations) -> Finding:
    expected = "no 'GPU memory' complaint of KAI about the pod after the label was there"
    seen = evidence.of("shared_gpu_pod")
    pod = shared_pod(seen, expect, expected)
    label = memory_label(evidence, seen, pod, expected)
    if label_memory_mib(label) is None:
        return broken(expected, f"label {label!r}", f"There is no {MEMORY_LABEL} that KAI could read on the node.")
    objects(seen, "events", expected)
    events = [(str(event.get("reason")), event) for event in events_about(seen, pod)]
    complaints = [e for reason, e in events if reason == "Unschedulable" and NO_MEMORY.search(str(e.get("message")))]
    scheduled = _newest(e for reason, e in events if reason == "Scheduled")
    if not complaints:
        if scheduled or spec_of(pod).get("nodeName"):
            return held(expected, "scheduled, no complaint", "The label was there before KAI looked at the pod.")
        other = next((str(e.get("message")) for reason, e in events if reason == "Unschedulable"), "no event yet")
        return not_evaluated(expected, "KAI has not placed the pod, so it is not known what it read.", observed=other)
    complained = _newest(complaints)
    if scheduled and complained and scheduled >= complained:
        since = _label_time(evidence, seen) or min(filter(None, map(_first_seen, complaints)), default=scheduled)
        seconds = max((scheduled - since).total_seconds(), 0)
        return held(
            expected,
            f"late, healed after {seconds:.0f} s",
            f"The label came after KAI had looked; KAI healed by itself within {seconds:.0f} s, no restart needed.",
        )
    said = str(complaints[-1].get("message"))
    portion = portion_per_device(annotations_of(pod), label)
    if portion is not None and portion > 1:
        return broken(
            expected,
            said,
            f"The request fits no card: KAI floors the label {label} to {floored_memory_mib(label)} MiB.",
            transient=False,
        )
    return broken(
        expected,
        said,
        "KAI still finds no GPU memory. It reads labels anew each cycle (1 s); only where it does not heal, "
        "restart deployment kai-scheduler-default.",
    )


def _newest(events: Iterable[K8sObject]) -> datetime | None:
    return max(filter(None, map(event_time, events)), default=None)


def _first_seen(event: K8sObject) -> datetime | None:
    return parse_time(event.get("firstTimestamp")) or event_time(event)


def _label_time(evidence: Evidence, seen: Observation) -> datetime | None:
    """When the memory label was last written, where managedFields were captured."""
    for node in seen.objects("nodes") or ():
        if evidence.node not in (None, name_of(node)):
            continue
        for entry in map(mapping, sequence(metadata_of(node).get("managedFields"))):
            fields = mapping(mapping(mapping(entry.get("fieldsV1")).get("f:metadata")).get("f:labels"))
            if f"f:{MEMORY_LABEL}" in fields:
                return parse_time(entry.get("time"))
    return None


@check
def fraction_accounted(evidence: Evidence, expect: Expectations) -> Finding:
    expected = f"{', '.join(ACCOUNTED)} of {expect.queue} = sum over its pods"
    seen = evidence.of("shared_gpu_pod")
    shared_pod(seen, expect, expected)
    pods = [log for log in seen.logs if log.namespace == expect.kai_namespace and log.pod.startswith("kai-scheduler-")]
    logs = [log.text for log in pods if log.text.strip()]
    if not logs:
        return not_evaluated(expected, "The log of KAI's scheduler was not captured, or is empty.")
    share = queue_share(evidence, seen, expect.queue, expected)
    total = format_quantity(share.gpus)
    expected = f"{', '.join(ACCOUNTED)} of {expect.queue}: {total} ({share})"
    division = newest_division(logs, expect.queue)
    if division is None:
        return broken(expected, "no line", f"The scheduler's log has no division line of queue {expect.queue}.")
    observed = f"{division}{_other_books(seen, expect)}"
    absent = [key for key in ACCOUNTED if key not in division.gpu]
    if absent:
        return broken(
            expected,
            observed,
            f"Drift of the log's format: the line has no {', '.join(absent)}; this says nothing about scheduling.",
            transient=False,
        )
    wrong = [key for key in ACCOUNTED if not _equal(division.number(key), share.gpus)]
    if wrong:
        return broken(
            expected,
            observed,
            f"KAI's {', '.join(wrong)} of {expect.queue} is not {total}, the sum of {share} by KAI's rule.",
        )
    return held(expected, observed, f"KAI accounts {total} GPUs to {expect.queue}: {share}.")


def _other_books(seen: Observation, expect: Expectations) -> str:
    """What BindRequest and Queue.status say beside the log; shown only, for they hold other numbers."""
    words = []
    request = seen.find("bindrequests", expect.shared_pod, expect.pod_namespace)
    portion = mapping(spec_of(request).get("receivedGPU")).get("portion") if request is not None else None
    if portion is not None:
        words.append(f"BindRequest portion {portion}")
    queue = seen.find("queues", expect.queue)
    allocated = mapping(status_of(queue).get("allocated")) if queue is not None else {}
    words += [f"Queue.status {key} {value}" for key, value in allocated.items() if "gpu" in key]
    return f" (beside it: {', '.join(words)})" if words else ""


def _equal(value: float | None, wanted: float) -> bool:
    return value is not None and abs(value - wanted) < TOLERANCE


@check
def hami_core_injected(evidence: Evidence, expect: Expectations) -> Finding:
    variable, value = VGPU_VARIABLE
    expected = f"env {variable}={value}; mounts {', '.join(MOUNTS)} from the isolator's hostPath volumes"
    pod = shared_pod(evidence.of("shared_gpu_pod"), expect, expected)
    found = gpu_container(pod)
    if found is None:
        return broken(expected, "no GPU container", "The container that is to get the GPU does not exist.")
    missing = _missing_core(pod, found[0])
    if missing:
        return broken(
            expected,
            f"missing or different: {', '.join(missing)}",
            "HAMi-core is not (fully) injected. The isolator's webhook fails open: a pod made while it was down "
            "must be made again.",
            transient=False,
        )
    return held(expected, "all there", "HAMi-core's variable, mounts and volumes stand on the shared pod.")


def _missing_core(pod: K8sObject, container: K8sObject) -> list[str]:
    variable, value = VGPU_VARIABLE
    given = mapping(by_key(container.get("env"), "name").get(variable)).get("value")
    missing = [] if given == value else [f"env {variable}"]
    mounts = by_key(container.get("volumeMounts"), "mountPath")
    for path, (volume, sub_path) in MOUNTS.items():
        mount = mounts.get(path, {})
        if mount.get("name") != volume or mount.get("subPath") != sub_path:
            missing.append(f"mount {path}")
        elif sub_path and mount.get("readOnly") is not True:
            # Writable, a container could switch the host's preload file off for everyone.
            missing.append(f"readOnly of mount {path}")
    paths = host_paths(pod)
    return missing + [f"volume {name}" for name, path in VOLUMES.items() if paths.get(name) != path]


@check
def runtime_class_injected(evidence: Evidence, expect: Expectations) -> Finding:
    expected = f"runtimeClassName {RUNTIME_CLASS}"
    pod = shared_pod(evidence.of("shared_gpu_pod"), expect, expected)
    name = spec_of(pod).get("runtimeClassName")
    if name != RUNTIME_CLASS:
        message = "KAI's admission did not set the runtime class (the isolator never does)."
        return broken(expected, f"runtimeClassName {name}", message, transient=False)
    return held(expected, f"runtimeClassName {name}", "KAI's admission set the runtime class.")


@check
def memory_limit_wired(evidence: Evidence, expect: Expectations) -> Finding:
    expected = f"env {LIMIT_VARIABLE} from the ConfigMap named by annotation {CONFIGMAP_ANNOTATION}"
    pod = shared_pod(evidence.of("shared_gpu_pod"), expect, expected)
    name, source = shared_configmap(pod), limit_source(pod)
    if name is None:
        message = f"KAI's admission did not touch the pod: it has no annotation {CONFIGMAP_ANNOTATION}."
        return broken(expected, "no annotation", message, transient=False)
    observed = f"from {source.get('name')}, key {source.get('key')}" if source else "not from a ConfigMap"
    if source.get("name") != name or source.get("key") != LIMIT_VARIABLE:
        return broken(expected, observed, f"{LIMIT_VARIABLE} is not taken from ConfigMap {name}.", transient=False)
    return held(expected, observed, f"The limit comes from ConfigMap {name}.")


@check
def memory_limit_value(evidence: Evidence, expect: Expectations) -> Finding:
    seen = evidence.of("shared_gpu_pod")
    pod = shared_pod(seen, expect, f"{LIMIT_VARIABLE} = trunc(label x portion) MiB")
    finding = limit_finding(evidence, seen, pod)
    if finding.verdict is Verdict.NOT_REACHABLE and expect.crossing:
        # Here the pod is meant to be bound, some seconds after it was made: nothing is out of reach.
        return not_evaluated(finding.expected, "KAI has not bound the pod (yet).", observed=finding.observed)
    return finding
