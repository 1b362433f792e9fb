"""Damages to claim 8: the reservation boundary, standing and crossed."""

from __future__ import annotations

import copy
from typing import Any

from kai_lab_pipeline_tests.damages.draft import (
    CROSSED,
    DROP,
    LAB,
    STANDING,
    Damage,
    Draft,
    Edit,
    both,
    change,
    clone,
    damage,
    events,
    log_text,
    logs,
    never_observed,
    new_event,
    put,
    remove,
    uncaptured,
)

STATE, BINDING, NVML, OUTCOME = (
    f"reservation_boundary.{name}"
    for name in ("shared_pod_state", "binding_result", "reservation_nvml", "boundary_outcome")
)
EVERY = (STATE, BINDING, NVML, OUTCOME)
HERE, SHARED = "reservation_boundary", "gpu-sharing-with-isolation"
NODE = "kai-hami-test-control-plane"
RESERVATION = "gpu-reservation-"
RESERVED = ("metadata", "annotations", "run.ai/reserve_for_gpu_index")
GROUP = ("metadata", "labels", "runai-gpu-group")


def _pod(path: tuple[str | int, ...], value: Any) -> Edit:
    return change(HERE, "pods", SHARED, path, value)


def _message(old: str, new: str) -> Edit:
    def edit(event: Any) -> None:
        assert old in event["message"]
        event["message"] = event["message"].replace(old, new)

    return events(HERE, SHARED, "BindingError", edit)


def _error(**fields: Any) -> Edit:
    return events(HERE, SHARED, "BindingError", fields)


def _second_error(draft: Draft) -> None:
    uid = draft.one(HERE, "pods", SHARED)["metadata"]["uid"]
    items = draft.items(HERE, "events")
    first = next(e for e in items if e["reason"] == "BindingError" and e["involvedObject"]["uid"] == uid)
    second = copy.deepcopy(first)
    put(second, ("message",), "Failed to bind pod: failed to find annotation on reservation pod gpu-reservation-1")
    items.append(second)


def _line(text: str) -> Edit:
    return log_text(HERE, RESERVATION, lambda _: f"2026-11-30T01:12:06.596Z\tINFO\tLooking for GPU device\n{text}")


STANDS: tuple[Damage, ...] = tuple(
    damage(name, edit, *turns, on=STANDING)
    for name, edit, *turns in (
        ("said to run", _pod(("status", "phase"), "Running"), STATE, OUTCOME),
        ("bound while Pending", _pod(("spec", "nodeName"), NODE), STATE, OUTCOME),
        (
            "runs without a GPU",
            both(_pod(("status", "phase"), "Running"), _pod(("spec", "nodeName"), NODE)),
            STATE,
            OUTCOME,
        ),
        ("failed", _pod(("status", "phase"), "Failed"), STATE, OUTCOME),
        ("without phase", _pod(("status",), {}), STATE, OUTCOME),
        ("being deleted", _pod(("metadata", "deletionTimestamp"), "2026-11-30T01:00:00Z"), STATE, OUTCOME),
        ("no pod at the boundary", remove(HERE, "pods", SHARED), *EVERY),
        ("pod in another namespace", _pod(("metadata", "namespace"), "kai"), *EVERY),
        ("not a shared pod", _pod(("metadata", "annotations", "gpu-memory"), DROP), *EVERY),
        ("pods not captured at the boundary", uncaptured(HERE, "pods"), *EVERY),
        ("boundary never observed", never_observed(HERE), *EVERY),
        ("no BindingError", events(HERE, SHARED, "BindingError", DROP), BINDING, OUTCOME),
        (
            "BindingError of an older pod",
            events(HERE, SHARED, "BindingError", lambda e: e["involvedObject"].update(uid="0000")),
            BINDING,
            OUTCOME,
        ),
        ("a new pod of that name", _pod(("metadata", "uid"), "0000"), BINDING, OUTCOME),
        ("BindingError that is no warning", _error(type="Normal"), BINDING, OUTCOME),
        ("BindingError of the scheduler", _error(source={"component": "kai-scheduler"}), BINDING, OUTCOME),
        ("another reason", _error(reason="FailedBinding", message="volume binding failed"), BINDING, OUTCOME),
        ("binder could not find the node", _message("failed to reserve GPUs", "node not found"), BINDING, OUTCOME),
        ("reservation name of old versions", _message("/gpu-reservation-", "/gpu-reservation-n-"), BINDING, OUTCOME),
        ("another pod's reservation", _message(f"pod <default/{SHARED}>", "pod <default/x>"), BINDING, OUTCOME),
        ("another pod could not be bound", _message(SHARED, "other"), BINDING, OUTCOME),
        ("the cluster scales up", _message("failed waiting for GPU reservation pod", "scaling up"), BINDING, OUTCOME),
        ("events not captured at the boundary", uncaptured(HERE, "events"), BINDING, OUTCOME),
        ("a group without a GPU", _pod(GROUP, "b362ef5a"), BINDING, OUTCOME),
        ("reservation log truncated", log_text(HERE, RESERVATION, lambda t: t[:-9]), NVML, OUTCOME),
        ("reservation log just begun", log_text(HERE, RESERVATION, lambda t: t.partition("\n")[0]), NVML, OUTCOME),
        ("reservation log empty", log_text(HERE, RESERVATION, lambda _: ""), NVML, OUTCOME),
        ("reservation log not captured", logs(HERE, RESERVATION, lambda _: None), NVML, OUTCOME),
        (
            "NVML of another version",
            log_text(HERE, RESERVATION, lambda t: t.replace("ERROR_LIBRARY_NOT_FOUND", "ERROR_DRIVER_NOT_LOADED")),
            NVML,
            OUTCOME,
        ),
        ("eight devices", _line("Error while running the app: found 8 devices, 1 was expected"), NVML, OUTCOME),
        ("a panic", _line("panic: runtime error: invalid memory address"), NVML, OUTCOME),
        (
            "NVML failed and then something else",
            log_text(HERE, RESERVATION, lambda t: f"{t}\nError while running the app: unable to get device count"),
            NVML,
            OUTCOME,
        ),
        ("a GPU found", _line('\tINFO\tFound GPU device\t{"deviceId": "GPU-1"}'), NVML, OUTCOME),
        (
            "a volume that cannot be mounted too",
            new_event(HERE, SHARED, reason="FailedMount", message='configmap "x" not found'),
            OUTCOME,
        ),
        ("another binding error too", _second_error, OUTCOME),
        (
            "no GPU memory again",
            new_event(HERE, SHARED, reason="Unschedulable", message="didn't have enough resources: GPU memory"),
            OUTCOME,
        ),
        (
            "queue gone since",
            new_event(HERE, SHARED, reason="Unschedulable", message="Queue 'default-queue' does not exist."),
            OUTCOME,
        ),
    )
)


def _reservation(draft: Draft) -> Any:
    """The reservation pod of the shared pod's GPU group."""
    group = draft.one(HERE, "pods", SHARED)["metadata"]["labels"]["runai-gpu-group"]
    return next(
        pod
        for pod in draft.items(HERE, "pods")
        if pod["metadata"]["namespace"] == "kai-resource-reservation"
        and pod["metadata"]["labels"]["runai-gpu-group"] == group
    )


def _reserved(path: tuple[str | int, ...], value: Any) -> Edit:
    return lambda draft: put(_reservation(draft), path, value)


def _limits(key: str, value: Any) -> Edit:
    return change(HERE, "configmaps", f"{SHARED}-*", ("data", key), value)


CROSSES: tuple[Damage, ...] = tuple(
    damage(name, edit, *turns, on=(CROSSED,))
    for name, edit, *turns in (
        ("not running yet", _pod(("status", "phase"), "Pending"), STATE, OUTCOME),
        ("runs on no node", _pod(("spec", "nodeName"), DROP), STATE, OUTCOME),
        ("finished", _pod(("status", "phase"), "Succeeded"), STATE, OUTCOME),
        ("failed", _pod(("status", "phase"), "Failed"), STATE, OUTCOME),
        ("being deleted", _pod(("metadata", "deletionTimestamp"), "2026-11-30T01:00:00Z"), STATE, OUTCOME),
        ("no pod at the boundary", remove(HERE, "pods", SHARED), *EVERY),
        ("not a shared pod", _pod(("metadata", "annotations", "gpu-memory"), DROP), *EVERY),
        ("pods not captured at the boundary", uncaptured(HERE, "pods"), *EVERY),
        ("boundary never observed", never_observed(HERE), *EVERY),
        ("no group label", _pod(GROUP, DROP), BINDING, OUTCOME),
        ("group of nobody", _pod(GROUP, "00000000-0000-0000-0000-000000000000"), BINDING, OUTCOME),
        ("reservation without a GPU", _reserved(RESERVED, DROP), BINDING, OUTCOME),
        ("reservation of nothing", _reserved(RESERVED, ""), BINDING, OUTCOME),
        ("reservation of an index", _reserved(RESERVED, "3"), BINDING, OUTCOME),
        ("reservation of another group", _reserved(GROUP, "x"), BINDING, OUTCOME),
        ("reservation elsewhere", _reserved(("metadata", "namespace"), "default"), BINDING, OUTCOME),
        (
            "another GPU found than reserved",
            log_text(HERE, RESERVATION, lambda t: t.replace('"GPU-12345678', '"GPU-00000000')),
            NVML,
            OUTCOME,
        ),
        (
            "no GPU found",
            _line("Error while running the app: unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND"),
            NVML,
            OUTCOME,
        ),
        (
            "GPUs counted, none taken",
            log_text(HERE, RESERVATION, lambda t: "".join(t.splitlines(keepends=True)[:2])),
            NVML,
            OUTCOME,
        ),
        ("reservation log empty", log_text(HERE, RESERVATION, lambda _: ""), NVML, OUTCOME),
        ("reservation log not captured", logs(HERE, RESERVATION, lambda _: None), NVML, OUTCOME),
        ("limit of the request", _limits("CUDA_DEVICE_MEMORY_LIMIT", "20480m"), OUTCOME),
        ("limit absent", _limits("CUDA_DEVICE_MEMORY_LIMIT", DROP), OUTCOME),
        ("portion 0.50", _limits("GPU_PORTION", "0.50"), OUTCOME),
        ("no ConfigMap", remove(HERE, "configmaps", f"{SHARED}-*"), OUTCOME),
        ("ConfigMaps not captured", uncaptured(HERE, "configmaps"), OUTCOME),
        ("nodes not captured", uncaptured(HERE, "nodes"), OUTCOME),
        (
            "node relabelled",
            change(HERE, "nodes", NODE, ("metadata", "labels", "nvidia.com/gpu.memory"), "81920"),
            OUTCOME,
        ),
    )
)

NOT_TRIED: tuple[Damage, ...] = (
    damage(
        "only the false Bound event is left",
        both(
            events(HERE, SHARED, "BindingError", DROP),
            clone(HERE, "pods", SHARED, {("metadata", "name"): "other", ("metadata", "uid"): "0001"}),
        ),
        BINDING,
        OUTCOME,
        on=(LAB,),
    ),
)

DAMAGES = STANDS + CROSSES + NOT_TRIED
