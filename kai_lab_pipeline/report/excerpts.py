"""The few lines of evidence that decide a check, taken from the plain bundle: no verdict is made here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kai_lab_pipeline.lab.evidence import (
    Evidence,
    K8sObject,
    Observation,
    annotations_of,
    condition,
    events_about,
    labels_of,
    mapping,
    metadata_of,
    name_of,
    sequence,
    spec_of,
    status_of,
)
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.report.text import one_line

MAX_LINES = 10
MAX_WIDTH = 480
"""Characters of one excerpt line; the binder's BindingError, the longest line that matters, has about 400."""
_LOG_LINE_READ = 4096
"""Characters read of one log line at most."""

Lines = Iterable[str]
_Excerpt = Callable[[Observation, Expectations, Evidence], Lines]

_RESERVATION_NAMESPACE = "kai-resource-reservation"
_DIVISION = "Resource division result for queue <{queue}>"
_GPU_UUID = "run.ai/reserve_for_gpu_index"


def excerpt(name: str, evidence: Evidence, expectations: Expectations | None = None) -> tuple[str, ...]:
    """Lines of evidence for the check ``asset.check``: at most 10, clean, each of at most 480 characters.

    Empty when the check is unknown or what it needs was not captured.
    """
    asset, _, check = name.partition(".")
    make = _EXCERPTS.get(name) or _EXCERPTS.get(check)
    if make is None:
        return ()
    lines: list[str] = []
    for line in make(evidence.of(asset), expectations or Expectations(), evidence):
        if len(lines) == MAX_LINES:
            lines[-1] = "…"
            break
        lines.append(one_line(line, MAX_WIDTH))
    return tuple(lines)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _path(obj: K8sObject) -> str:
    namespace = metadata_of(obj).get("namespace")
    return f"{namespace}/{name_of(obj)}" if namespace else name_of(obj)


def _named(seen: Observation, resource: str, *parts: str) -> Iterator[K8sObject]:
    for obj in seen.objects(resource) or ():
        if any(part in _path(obj) for part in parts):
            yield obj


# nodes and helm


def _nodes_ready(seen: Observation, _lab: Expectations, _all: Evidence) -> Lines:
    for node in seen.objects("nodes") or ():
        ready = condition(node, "Ready") or {}
        yield f"node {name_of(node)} Ready={ready.get('status')} {ready.get('reason', '')}"


def _kubernetes_version(seen: Observation, _lab: Expectations, evidence: Evidence) -> Lines:
    if "kubernetes" in evidence.versions:
        yield f"bundle.json versions.kubernetes={evidence.versions['kubernetes']}"
    for node in seen.objects("nodes") or ():
        yield f"node {name_of(node)} kubeletVersion={mapping(status_of(node).get('nodeInfo')).get('kubeletVersion')}"


def _release(name: str) -> _Excerpt:
    def lines(seen: Observation, _lab: Expectations, _all: Evidence) -> Lines:
        if seen.helm is None:
            return
        rows = [row for row in map(mapping, seen.helm) if row.get("name") == name]
        if not rows:
            yield f"helm list has no release {name}"
        for row in rows:
            yield f"helm {row.get('namespace')}/{name} status={row.get('status')} chart={row.get('chart')}"

    return lines


def _node_label(label: str) -> _Excerpt:
    def lines(seen: Observation, _lab: Expectations, _all: Evidence) -> Lines:
        for node in seen.objects("nodes") or ():
            shown = _json(labels_of(node)[label]) if label in labels_of(node) else "(no such label)"
            yield f"node {name_of(node)} label {label}={shown}"

    return lines


def _mock_daemonset(seen: Observation, _lab: Expectations, _all: Evidence) -> Lines:
    for daemonset in _named(seen, "daemonsets", "nvml-mock"):
        status = status_of(daemonset)
        yield (
            f"daemonset {_path(daemonset)} desired={status.get('desiredNumberScheduled')} "
            f"ready={status.get('numberReady', 0)}"
        )


def _allocatable(seen: Observation, _lab: Expectations, _all: Evidence) -> Lines:
    for node in seen.objects("nodes") or ():
        counts = mapping(status_of(node).get("allocatable"))
        gpus = {key: value for key, value in counts.items() if str(key).startswith("nvidia.com/")}
        yield f"node {name_of(node)} allocatable {_json(gpus)}"


# pods


def _pod_line(pod: K8sObject) -> str:
    ready = condition(pod, "Ready") or {}
    spec = spec_of(pod)
    return (
        f"pod {_path(pod)} phase={status_of(pod).get('phase')} Ready={ready.get('status', 'unset')} "
        f"nodeName={spec.get('nodeName') or '(unbound)'} runtimeClassName={spec.get('runtimeClassName') or '(none)'}"
    )


def _pods(*parts: str) -> _Excerpt:
    def lines(seen: Observation, _lab: Expectations, _all: Evidence) -> Lines:
        return map(_pod_line, _named(seen, "pods", *parts))

    return lines


def _whole_pod(seen: Observation, lab: Expectations) -> K8sObject | None:
    return seen.find("pods", lab.whole_pod, lab.pod_namespace)


def _shared_pod(seen: Observation, lab: Expectations) -> K8sObject | None:
    return seen.find("pods", lab.shared_pod, lab.pod_namespace)


def _canary(seen: Observation, lab: Expectations, _all: Evidence) -> Lines:
    pod = seen.find("pods", lab.canary_pod)
    if pod is not None:
        yield _pod_line(pod)
        yield from (_event_line(event) for event in events_about(seen, pod))


def _whole_running(seen: Observation, lab: Expectations, _all: Evidence) -> Lines:
    pod = _whole_pod(seen, lab)
    if pod is not None:
        yield _pod_line(pod)


def _whole_plain(seen: Observation, lab: Expectations, _all: Evidence) -> Lines:
    pod = _whole_pod(seen, lab)
    if pod is not None:
        yield f"pod {_path(pod)} labels {_json(labels_of(pod))}"
        yield f"pod {_path(pod)} mounts {_json([mount.get('mountPath') for mount in _mounts(pod)])}"


def _containers(pod: K8sObject) -> Iterator[K8sObject]:
    for container in sequence(spec_of(pod).get("containers")):
        yield mapping(container)


def _mounts(pod: K8sObject) -> Iterator[K8sObject]:
    for container in _containers(pod):
        yield from map(mapping, sequence(container.get("volumeMounts")))


def _env(pod: K8sObject, name: str) -> Iterator[str]:
    for container in _containers(pod):
        for variable in map(mapping, sequence(container.get("env"))):
            if variable.get("name") == name:
                yield f"pod {_path(pod)} container {container.get('name')} env {_json(variable)}"


def _vgpu_lines(pod: K8sObject) -> Lines:
    yield from _env(pod, "CONTAINER_VGPU_MOUNT")
    for mount in _mounts(pod):
        if "vgpu" in _json(mount):
            part = f" subPath={mount['subPath']}" if mount.get("subPath") else ""
            yield f"mount {mount.get('mountPath')} volume={mount.get('name')}{part}"
    for volume in map(mapping, sequence(spec_of(pod).get("volumes"))):
        if "hostPath" in volume:
            yield f"volume {volume.get('name')} hostPath={mapping(volume['hostPath']).get('path')}"


def _hami_core(seen: Observation, lab: Expectations, _all: Evidence) -> Lines:
    pod = _shared_pod(seen, lab)
    return _vgpu_lines(pod) if pod is not None else ()


def _shared_state(seen: Observation, lab: Expectations, _all: Evidence) -> Lines:
    pod = _shared_pod(seen, lab)
    if pod is not None:
        yield _pod_line(pod)


def _limit_env(seen: Observation, lab: Expectations, _all: Evidence) -> Lines:
    pod = _shared_pod(seen, lab)
    if pod is not None:
        yield f"annotation runai/shared-gpu-configmap={annotations_of(pod).get('runai/shared-gpu-configmap')}"
        yield from _env(pod, "CUDA_DEVICE_MEMORY_LIMIT")


def _limit_value(seen: Observation, lab: Expectations, _all: Evidence) -> Lines:
    pod = _shared_pod(seen, lab)
    prefix = str(annotations_of(pod).get("runai/shared-gpu-configmap") or "") if pod is not None else ""
    for config in seen.objects("configmaps") or ():
        if prefix and name_of(config).startswith(prefix) and mapping(config.get("data")):
            yield f"configmap {_path(config)} data {_json(config.get('data'))}"


# KAI


def _deployments(seen: Observation, lab: Expectations, _all: Evidence) -> Lines:
    for deployment in seen.objects("deployments") or ():
        if metadata_of(deployment).get("namespace") == lab.kai_namespace:
            available = condition(deployment, "Available") or {}
            yield f"deployment {_path(deployment)} Available={available.get('status', 'unset')}"


def _arguments(*words: str) -> _Excerpt:
    def lines(seen: Observation, lab: Expectations, _all: Evidence) -> Lines:
        named = (f"{lab.kai_namespace}/{component}" for component in ("admission", "binder"))
        for deployment in _named(seen, "deployments", *named):
            for container in _containers(mapping(spec_of(deployment).get("template"))):
                for argument in map(str, sequence(container.get("args"))):
                    if any(word in argument for word in words):
                        yield f"{name_of(deployment)} argument {_around(argument, words)}"

    return lines


def _around(text: str, words: tuple[str, ...]) -> str:
    """The part of a long argument that stands around the first of the words."""
    at = min(position for position in map(text.find, words) if position >= 0)
    start, end = max(0, at - 40), at + 120
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def _dryrun(name: str) -> Callable[[Observation], Lines]:
    def lines(seen: Observation) -> Lines:
        if name not in seen.dryrun:
            return
        answer = mapping(seen.dryrun[name])
        if answer.get("kind") == "Status":
            yield f"dry-run answered Status {answer.get('code', '')} {answer.get('reason')}: {answer.get('message')}"
        else:
            yield f"dry-run answered {answer.get('kind')} {name_of(answer)}"

    return lines


def _queue_webhook(seen: Observation, _lab: Expectations, _all: Evidence) -> Lines:
    yield from _dryrun("queue")(seen)
    for config in _named(seen, "validatingwebhookconfigurations", "queue"):
        for webhook in map(mapping, sequence(config.get("webhooks"))):
            bundle = mapping(webhook.get("clientConfig")).get("caBundle") or ""
            yield f"webhook {webhook.get('name')} caBundle of {len(str(bundle))} characters"


def _queues(seen: Observation, _lab: Expectations, _all: Evidence) -> Lines:
    for queue in seen.objects("queues") or ():
        children = sequence(status_of(queue).get("childQueues"))
        yield f"queue {name_of(queue)} parentQueue={spec_of(queue).get('parentQueue')} childQueues={_json(children)}"


def _queue_resources(seen: Observation, lab: Expectations, _all: Evidence) -> Lines:
    for name in (lab.parent_queue, lab.queue):
        queue = seen.find("queues", name)
        if queue is not None:
            yield f"queue {name} resources {_json(spec_of(queue).get('resources'))}"


def _runtime_class(seen: Observation, _lab: Expectations, _all: Evidence) -> Lines:
    for runtime_class in seen.objects("runtimeclasses") or ():
        yield f"runtimeclass {name_of(runtime_class)} handler={runtime_class.get('handler')}"


def _injecting_dryrun(seen: Observation, _lab: Expectations, _all: Evidence) -> Lines:
    yield from _dryrun("shared_pod")(seen)
    answer = seen.dryrun.get("shared_pod")
    if answer is not None:
        yield from _vgpu_lines(answer)


# logs and events


def _last_log_line(seen: Observation, namespace: str, needle: str) -> str | None:
    """The newest line with `needle` in the namespace's logs; lines start with their time, so the greatest is newest."""
    found = [
        _line_at(text, at)
        for log in seen.logs
        if log.namespace == namespace
        for text in (log.text, log.previous or "")
        if (at := text.rfind(needle)) >= 0
    ]
    return max(found, default=None)


def _line_at(text: str, at: int) -> str:
    start = max(text.rfind("\n", 0, at) + 1, at - _LOG_LINE_READ)
    end = text.find("\n", at, at + _LOG_LINE_READ)
    return text[start : end if end >= 0 else at + _LOG_LINE_READ]


def _isolator_pods(seen: Observation, lab: Expectations, _all: Evidence) -> Lines:
    return map(_pod_line, _named(seen, "pods", f"{lab.isolator_namespace}/"))


def _annotation_keys(seen: Observation, lab: Expectations, _all: Evidence) -> Lines:
    line = _last_log_line(seen, lab.isolator_namespace, "annotationKeys=")
    if line is not None:
        yield line


def _accounting(seen: Observation, lab: Expectations, _all: Evidence) -> Lines:
    needle = _DIVISION.format(queue=lab.queue)
    line = _last_log_line(seen, lab.kai_namespace, needle)
    if line is not None:
        when, _, rest = line.partition(" ")
        gpu_part = rest[rest.find(needle) :].partition(" CPU (cores)")[0]
        yield f"{when} {gpu_part}"


def _event_line(event: K8sObject) -> str:
    reporter = event.get("reportingComponent") or mapping(event.get("source")).get("component") or "?"
    when = event.get("lastTimestamp") or event.get("eventTime") or metadata_of(event).get("creationTimestamp")
    count = event.get("count") or mapping(event.get("series")).get("count") or 1
    return f"{when} {event.get('type')} {event.get('reason')} from {reporter} (x{count}): {event.get('message')}"


def _label_read(seen: Observation, lab: Expectations, evidence: Evidence) -> Lines:
    yield from _node_label("nvidia.com/gpu.memory")(seen, lab, evidence)
    pod = _shared_pod(seen, lab)
    if pod is not None:
        for event in events_about(seen, pod):
            if event.get("reason") == "Scheduled" or "GPU memory" in str(event.get("message")):
                yield _event_line(event)


def _binding(seen: Observation, lab: Expectations, _all: Evidence) -> Lines:
    pod = _shared_pod(seen, lab)
    if pod is not None:
        for event in events_about(seen, pod):
            if event.get("reason") == "BindingError":
                yield _event_line(event)
        group = labels_of(pod).get("runai-gpu-group")
        if group is not None:
            yield f"pod {_path(pod)} label runai-gpu-group={group}"
    for reservation in _named(seen, "pods", f"{_RESERVATION_NAMESPACE}/"):
        if _GPU_UUID in annotations_of(reservation):
            yield f"pod {_path(reservation)} annotation {_GPU_UUID}={annotations_of(reservation)[_GPU_UUID]}"


def _reservation_log(seen: Observation, _lab: Expectations, _all: Evidence) -> Lines:
    for needle in ("unable to initialize NVML", "Found GPU device"):
        line = _last_log_line(seen, _RESERVATION_NAMESPACE, needle)
        if line is not None:
            yield line
            return
    for log in seen.logs:
        if log.namespace == _RESERVATION_NAMESPACE:
            yield f"{log.pod}: {log.text[-MAX_WIDTH:]}"


def _outcome(seen: Observation, lab: Expectations, evidence: Evidence) -> Lines:
    yield f"bundle.json crossing={evidence.crossing or '(not set up)'}"
    for part in (_shared_state, _binding, _reservation_log):
        yield from part(seen, lab, evidence)


_EXCERPTS: dict[str, _Excerpt] = {
    "node_ready": _nodes_ready,
    "kubernetes_version_supported": _kubernetes_version,
    "nvml_mock_release.release_deployed": _release("nvml-mock"),
    "kai_release.release_deployed": _release("kai-scheduler"),
    "isolator_release.release_deployed": _release("kai-resource-isolator"),
    "daemonset_ready": _mock_daemonset,
    "gpu_present_label": _node_label("nvidia.com/gpu.present"),
    "plugin_pod_ready": _pods("kube-system/nvidia-device-plugin"),
    "eight_whole_gpus": _allocatable,
    "gpu_memory_label": _node_label("nvidia.com/gpu.memory"),
    "gpu_product_label": _node_label("nvidia.com/gpu.product"),
    "gpu_count_label": _node_label("nvidia.com/gpu.count"),
    "seven_components_running": _deployments,
    "sharing_enabled": _arguments("gpu-sharing-enabled"),
    "hamicore_enabled": _arguments("hami-core-enabled", '"hamicore"'),
    "queue_webhook_serving": _queue_webhook,
    "scheduler_alive": _canary,
    "queues_exist": _queues,
    "default_queue_is_leaf_of_default": _queues,
    "queues_unlimited": _queue_resources,
    "runtime_class_handler": _runtime_class,
    "isolator_pods_running": _isolator_pods,
    "webhook_annotation_keys": _annotation_keys,
    "webhook_mutates": _injecting_dryrun,
    "whole_gpu_running": _whole_running,
    "no_sharing_injected": _whole_plain,
    "label_read_by_kai": _label_read,
    "fraction_accounted": _accounting,
    "hami_core_injected": _hami_core,
    "runtime_class_injected": _shared_state,
    "memory_limit_wired": _limit_env,
    "memory_limit_value": _limit_value,
    "shared_pod_state": _shared_state,
    "binding_result": _binding,
    "reservation_nvml": _reservation_log,
    "boundary_outcome": _outcome,
}
