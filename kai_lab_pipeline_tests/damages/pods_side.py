"""Damages to claims 5, 6 and 7: the two pods, KAI's accounting, HAMi-core."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kai_lab_pipeline_tests.damages.draft import (
    CROSSED,
    DROP,
    STANDING,
    Damage,
    Draft,
    Edit,
    change,
    clone,
    damage,
    events,
    in_list,
    log_text,
    logs,
    never_observed,
    new_event,
    put,
    remove,
    uncaptured,
)

RUNNING, UNTOUCHED = "whole_gpu_pod.whole_gpu_running", "whole_gpu_pod.no_sharing_injected"
LABEL, FRACTION, CORE, RUNTIME, WIRED, VALUE = (
    f"shared_gpu_pod.{name}"
    for name in (
        "label_read_by_kai",
        "fraction_accounted",
        "hami_core_injected",
        "runtime_class_injected",
        "memory_limit_wired",
        "memory_limit_value",
    )
)
BEFORE_BINDING = (LABEL, FRACTION, CORE, RUNTIME, WIRED)
"""Checks of the shared pod that are held while the boundary stands; the limit's value is not reachable there."""
WHOLE, SHARED, NODE = "kai-whole-gpu", "gpu-sharing-with-isolation", "kai-hami-test-control-plane"
SCHEDULER = "kai-scheduler-default-"
ISOLATOR = "kai-resource-isolator"
MEMORY_LABEL = ("metadata", "labels", "nvidia.com/gpu.memory")
NO_MEMORY = (
    "no nodes with enough resources were found: 1 node(s) didn't have enough resources: GPU memory. \n"
    "1 node(s) didn't have enough resources: GPUs."
)


def _whole(path: tuple[str | int, ...], value: Any) -> Edit:
    return change("whole_gpu_pod", "pods", WHOLE, path, value)


def _whole_list(path: tuple[str | int, ...], entry: Any) -> Edit:
    """Append to a list of the whole-GPU pod, which is made when absent."""

    def edit(draft: Draft) -> None:
        root = draft.one("whole_gpu_pod", "pods", WHOLE)
        for step in path[:-1]:
            root = root[step]
        root.setdefault(path[-1], []).append(entry)

    return edit


WHOLE_SIDE: tuple[Damage, ...] = (
    damage("whole pod pending", _whole(("status", "phase"), "Pending"), RUNNING),
    damage("whole pod failed", _whole(("status", "phase"), "Failed"), RUNNING),
    damage("whole pod finished", _whole(("status", "phase"), "Succeeded"), RUNNING),
    damage("whole pod on no node", _whole(("spec", "nodeName"), DROP), RUNNING),
    damage("whole pod being deleted", _whole(("metadata", "deletionTimestamp"), "2026-11-30T01:00:00Z"), RUNNING),
    damage("whole pod by another scheduler", _whole(("spec", "schedulerName"), "default-scheduler"), RUNNING),
    damage("two GPUs", _whole(("spec", "containers", 0, "resources", "limits", "nvidia.com/gpu"), "2"), RUNNING),
    damage("no GPU asked", _whole(("spec", "containers", 0, "resources"), {}), RUNNING),
    damage("whole pod without runtime class", _whole(("spec", "runtimeClassName"), DROP), RUNNING),
    damage("whole pod in another queue", _whole(("metadata", "labels", "kai.scheduler/queue"), "default"), RUNNING),
    damage("no whole pod", remove("whole_gpu_pod", "pods", WHOLE), RUNNING, UNTOUCHED),
    damage("whole pod in another namespace", _whole(("metadata", "namespace"), "kai"), RUNNING, UNTOUCHED),
    damage("whole pod's list not captured", uncaptured("whole_gpu_pod", "pods"), RUNNING, UNTOUCHED),
    damage("whole pod never observed", never_observed("whole_gpu_pod"), RUNNING, UNTOUCHED),
    damage("whole pod in a GPU group", _whole(("metadata", "labels", "runai-gpu-group"), "b362ef5a"), UNTOUCHED),
    damage(
        "whole pod in one of several GPU groups",
        _whole(("metadata", "labels", "runai-gpu-group/b362ef5a"), "b362ef5a"),
        UNTOUCHED,
    ),
    damage("whole pod asks memory", _whole(("metadata", "annotations", "gpu-memory"), "20480"), UNTOUCHED),
    damage(
        "whole pod with shared ConfigMap",
        _whole(("metadata", "annotations", "runai/shared-gpu-configmap"), "kai-whole-gpu-abc-shared-gpu"),
        UNTOUCHED,
    ),
    damage(
        "vgpu mount on the whole pod",
        _whole_list(("spec", "containers", 0, "volumeMounts"), {"mountPath": "/usr/local/vgpu", "name": "x"}),
        UNTOUCHED,
    ),
    damage(
        "preload on the whole pod",
        _whole_list(("spec", "containers", 0, "volumeMounts"), {"mountPath": "/etc/ld.so.preload", "name": "x"}),
        UNTOUCHED,
    ),
    damage("vgpu volume on the whole pod", _whole_list(("spec", "volumes"), {"name": f"{ISOLATOR}-vgpu"}), UNTOUCHED),
    damage(
        "vgpu variable on the whole pod",
        _whole_list(("spec", "containers", 0, "env"), {"name": "CONTAINER_VGPU_MOUNT", "value": "/usr/local/vgpu"}),
        UNTOUCHED,
    ),
)


def _shared(path: tuple[str | int, ...], value: Any) -> Edit:
    return change("shared_gpu_pod", "pods", SHARED, path, value)


def _annotation(key: str, value: Any) -> Edit:
    return _shared(("metadata", "annotations", key), value)


def _label_value(value: Any) -> Edit:
    return change("shared_gpu_pod", "nodes", NODE, MEMORY_LABEL, value)


def _newest_line(rewrite: Callable[[str], str]) -> Edit:
    """Rewrite the newest division line of default-queue."""

    def edit(text: str) -> str:
        start = text.rindex("Resource division result for queue <default-queue>")
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        new = rewrite(text[start:end])
        assert new != text[start:end]
        return text[:start] + new + text[end:]

    return log_text("shared_gpu_pod", SCHEDULER, edit)


def _gpu_key(key: str, value: str) -> Edit:
    return _newest_line(lambda line: re.sub(rf"{key}: <[^>]*>", f"{key}: <{value}>", line, count=1))


def _newer_line(text: str) -> str:
    lines = [line for line in text.splitlines() if "queue <default-queue>" in line]
    return text.rstrip("\n") + "\n" + re.sub(r"<(1\.51|3)>", "<1>", lines[-1]) + "\n"


READ_SIDE: tuple[Damage, ...] = (
    damage("no sharing annotation", _annotation("gpu-memory", DROP), *BEFORE_BINDING, on=STANDING),
    damage("no sharing annotation", _annotation("gpu-memory", DROP), *BEFORE_BINDING, VALUE, on=(CROSSED,)),
    damage("no shared pod", remove("shared_gpu_pod", "pods", SHARED), *BEFORE_BINDING, on=STANDING),
    damage("no shared pod", remove("shared_gpu_pod", "pods", SHARED), *BEFORE_BINDING, VALUE, on=(CROSSED,)),
    damage("shared pod's list not captured", uncaptured("shared_gpu_pod", "pods"), *BEFORE_BINDING, on=STANDING),
    damage("shared pod never observed", never_observed("shared_gpu_pod"), *BEFORE_BINDING, on=STANDING),
    damage("shared pod in another namespace", _shared(("metadata", "namespace"), "kai"), *BEFORE_BINDING, on=STANDING),
    damage("a pod of that name lived before", _shared(("metadata", "uid"), "0000"), LABEL, on=STANDING),
    damage("never scheduled", events("shared_gpu_pod", SHARED, "Scheduled", DROP), LABEL, on=STANDING),
    damage(
        "an older pod was scheduled",
        events("shared_gpu_pod", SHARED, "Scheduled", lambda e: e["involvedObject"].update(uid="0000")),
        LABEL,
        on=STANDING,
    ),
    damage(
        "still no GPU memory", new_event("shared_gpu_pod", SHARED, reason="Unschedulable", message=NO_MEMORY), LABEL
    ),
    damage(
        "memory not synced",
        new_event(
            "shared_gpu_pod",
            SHARED,
            reason="Unschedulable",
            message="node is not a gpu node or the gpu memory count on the node was not synced yet, task: <x>",
        ),
        LABEL,
    ),
    damage("events not captured with the shared pod", uncaptured("shared_gpu_pod", "events"), LABEL),
    damage("node without memory label", _label_value(DROP), LABEL, FRACTION, on=STANDING),
    damage("node without memory label", _label_value(DROP), LABEL, FRACTION, VALUE, on=(CROSSED,)),
    damage("node's label with unit", _label_value("40960Mi"), LABEL, FRACTION, on=STANDING),
    damage("node relabelled 30000", _label_value("30000"), FRACTION, on=STANDING),
    damage("node relabelled 81920", _label_value("81920"), FRACTION, VALUE, on=(CROSSED,)),
    damage("node relabelled a little higher", _label_value("41000"), FRACTION, on=STANDING),
    damage("node relabelled by one MiB", _label_value("40962"), VALUE, on=(CROSSED,)),
    damage(
        "nodes not captured with the shared pod", uncaptured("shared_gpu_pod", "nodes"), LABEL, FRACTION, on=STANDING
    ),
    damage("request of 20450 MiB", _annotation("gpu-memory", "20450"), FRACTION, on=STANDING),
    damage("request of the whole card", _annotation("gpu-memory", "40960"), FRACTION, on=STANDING),
    damage("request in Gi", _annotation("gpu-memory", "20Gi"), FRACTION, on=STANDING),
    damage("two devices", _annotation("gpu-fraction-num-devices", "2"), FRACTION, on=STANDING),
    damage(
        "another pod with half a GPU", clone("shared_gpu_pod", "pods", SHARED, {("metadata", "name"): "b"}), FRACTION
    ),
    damage("whole pod left the queue", remove("shared_gpu_pod", "pods", WHOLE), FRACTION),
    damage(
        "whole pod in another queue while sharing",
        change("shared_gpu_pod", "pods", WHOLE, ("metadata", "labels", "kai.scheduler/queue"), "team"),
        FRACTION,
    ),
    damage(
        "whole pod by another scheduler while sharing",
        change("shared_gpu_pod", "pods", WHOLE, ("spec", "schedulerName"), "default-scheduler"),
        FRACTION,
    ),
    damage(
        "whole pod finished while sharing",
        change("shared_gpu_pod", "pods", WHOLE, ("status", "phase"), "Failed"),
        FRACTION,
    ),
    damage(
        "whole pod being deleted while sharing",
        change("shared_gpu_pod", "pods", WHOLE, ("metadata", "deletionTimestamp"), "2026-11-30T01:00:00Z"),
        FRACTION,
    ),
    *(damage(f"{key} 1.50", _gpu_key(key, "1.50"), FRACTION) for key in ("requested", "allocated", "fairShare")),
    damage("allocated 1.509", _gpu_key("allocated", "1.509"), FRACTION),
    damage("fair share Unlimited", _gpu_key("fairShare", "Unlimited"), FRACTION),
    damage("requested no number", _gpu_key("requested", "NaN"), FRACTION),
    damage("no key allocated", _newest_line(lambda t: t.replace("allocated: <", "usage: <", 1)), FRACTION),
    damage("no key fairShare", _newest_line(lambda t: t.replace("fairShare: <", "share: <", 1)), FRACTION),
    damage("a newer line says 1", log_text("shared_gpu_pod", SCHEDULER, _newer_line), FRACTION),
    damage(
        "lines of other queues only",
        log_text("shared_gpu_pod", SCHEDULER, lambda t: t.replace("queue <default-queue>", "queue <default-queue2>")),
        FRACTION,
    ),
    damage("scheduler's log empty", log_text("shared_gpu_pod", SCHEDULER, lambda _: ""), FRACTION),
    damage("scheduler's log not captured", logs("shared_gpu_pod", SCHEDULER, lambda _: None), FRACTION),
)


def _container(path: tuple[str, ...], key: str, value: str, entry: Any) -> Edit:
    return in_list("shared_gpu_pod", "pods", SHARED, ("spec", "containers", 0, *path), key, value, entry)


def _mount(path: str, entry: Any) -> Edit:
    return _container(("volumeMounts",), "mountPath", path, entry)


def _volume(name: str, entry: Any) -> Edit:
    return in_list("shared_gpu_pod", "pods", SHARED, ("spec", "volumes"), "name", name, entry)


def _limit_variable(entry: Any) -> Edit:
    return _container(("env",), "name", "CUDA_DEVICE_MEMORY_LIMIT", entry)


def _sidecar(draft: Draft) -> None:
    draft.one("shared_gpu_pod", "pods", SHARED)["spec"]["containers"].insert(0, {"name": "sidecar"})


def _limit_ref(key: str, value: str) -> Edit:
    def edit(draft: Draft) -> None:
        env = draft.one("shared_gpu_pod", "pods", SHARED)["spec"]["containers"][0]["env"]
        entry = next(e for e in env if e["name"] == "CUDA_DEVICE_MEMORY_LIMIT")
        put(entry, ("valueFrom", "configMapKeyRef", key), value)

    return edit


MOUNTS = ("/usr/local/vgpu", "/etc/ld.so.preload", "/usr/local/vgpu/containers", "/tmp/vgpulock")
VOLUMES = (f"{ISOLATOR}-vgpu", f"{ISOLATOR}-containers", f"{ISOLATOR}-vgpulock")

CORE_SIDE: tuple[Damage, ...] = (
    damage("no vgpu variable", _container(("env",), "name", "CONTAINER_VGPU_MOUNT", DROP), CORE),
    damage("other vgpu path", _container(("env",), "name", "CONTAINER_VGPU_MOUNT", {"value": "/usr/lib/vgpu"}), CORE),
    *(damage(f"no mount {path}", _mount(path, DROP), CORE) for path in MOUNTS),
    *(damage(f"mount {path} elsewhere", _mount(path, {"mountPath": f"{path}2"}), CORE) for path in MOUNTS),
    *(damage(f"mount {path} of another volume", _mount(path, {"name": "kube-api"}), CORE) for path in MOUNTS),
    damage("preload without subPath", _mount("/etc/ld.so.preload", {"subPath": None}), CORE),
    damage("preload of another file", _mount("/etc/ld.so.preload", {"subPath": "ld.so.conf"}), CORE),
    damage("preload writable", _mount("/etc/ld.so.preload", {"readOnly": False}), CORE),
    damage("preload not said to be read-only", _mount("/etc/ld.so.preload", {"readOnly": DROP}), CORE),
    *(damage(f"no volume {name}", _volume(name, DROP), CORE) for name in VOLUMES),
    damage("vgpu from elsewhere on the host", _volume(VOLUMES[0], {"hostPath": {"path": "/usr/local"}}), CORE),
    damage("locks in memory", _volume(VOLUMES[2], {"hostPath": None, "emptyDir": {}}), CORE),
    damage(
        "a container that does not exist", _annotation("gpu-fraction-container-name", "gpu"), CORE, WIRED, on=STANDING
    ),
    damage("a sidecar before the GPU's container", _sidecar, CORE, WIRED, on=STANDING),
    damage("no runtime class", _shared(("spec", "runtimeClassName"), DROP), RUNTIME),
    damage("runtime class nvidia-cdi", _shared(("spec", "runtimeClassName"), "nvidia-cdi"), RUNTIME),
    damage("no limit variable", _limit_variable(DROP), WIRED),
    damage("limit written into the pod", _limit_variable({"valueFrom": DROP, "value": "20889m"}), WIRED),
    damage("limit of another pod", _limit_ref("name", "share2-j2fhpsp-shared-gpu-0"), WIRED, on=STANDING),
    damage("limit from another key", _limit_ref("key", "GPU_PORTION"), WIRED),
    damage("no ConfigMap annotation", _annotation("runai/shared-gpu-configmap", DROP), WIRED),
    damage("another ConfigMap annotation", _annotation("runai/shared-gpu-configmap", "x-shared-gpu"), WIRED),
)


def _limits(key: str, value: Any) -> Edit:
    return change("shared_gpu_pod", "configmaps", f"{SHARED}-*", ("data", key), value)


VALUE_SIDE: tuple[Damage, ...] = tuple(
    damage(name, edit, VALUE, on=(CROSSED,))
    for name, edit in (
        ("limit of the request", _limits("CUDA_DEVICE_MEMORY_LIMIT", "20480m")),
        ("limit rounded up", _limits("CUDA_DEVICE_MEMORY_LIMIT", "20890m")),
        ("limit without unit", _limits("CUDA_DEVICE_MEMORY_LIMIT", "20889")),
        ("limit absent", _limits("CUDA_DEVICE_MEMORY_LIMIT", DROP)),
        ("portion 0.50", _limits("GPU_PORTION", "0.50")),
        ("portion no number", _limits("GPU_PORTION", "half")),
        ("no ConfigMap of the bound pod", remove("shared_gpu_pod", "configmaps", f"{SHARED}-*")),
        (
            "ConfigMap in another namespace",
            change("shared_gpu_pod", "configmaps", f"{SHARED}-*", ("metadata", "namespace"), "kai"),
        ),
        ("ConfigMaps not captured", uncaptured("shared_gpu_pod", "configmaps")),
    )
)

DAMAGES = WHOLE_SIDE + READ_SIDE + CORE_SIDE + VALUE_SIDE
