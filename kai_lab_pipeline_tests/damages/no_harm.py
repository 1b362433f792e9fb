"""Changes that must turn nothing, each with the reason why: what a claim does not rest on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kai_lab_pipeline.lab.evidence import ContainerLog
from kai_lab_pipeline_tests.damages.boundary_side import HERE, NODE, RESERVATION, SHARED
from kai_lab_pipeline_tests.damages.draft import (
    CROSSED,
    DROP,
    LAB,
    STANDING,
    Damage,
    Draft,
    Edit,
    change,
    clone,
    events,
    harmless,
    header,
    helm,
    log_text,
    logs,
    new_event,
    remove,
    uncaptured,
    version,
)
from kai_lab_pipeline_tests.damages.pods_side import NO_MEMORY, SCHEDULER


def _reverse(asset: str, *path: str | int) -> Edit:
    def edit(draft: Draft) -> None:
        found = draft.one(asset, "pods", SHARED)
        for step in path:
            found = found[step]
        found.reverse()

    return edit


def _reverse_list(asset: str, resource: str) -> Edit:
    return lambda draft: draft.items(asset, resource).reverse()


def _older_lines(text: str) -> str:
    head, mark, tail = text.rpartition("Resource division result for queue <default-queue>")
    return head.replace("<1.51>", "<7>") + mark + tail


def _to_previous(log: ContainerLog) -> ContainerLog:
    return replace(log, text="", previous=log.text or log.previous)  # a pod that just began has said nothing yet


def _old_condition(draft: Draft) -> None:
    status: dict[str, Any] = draft.one(HERE, "pods", SHARED)["status"]
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_MEMORY}
    status.setdefault("conditions", []).append(condition)


HARMLESS: tuple[Damage, ...] = (
    harmless(
        "BindRequest portion 0.50",
        change("shared_gpu_pod", "bindrequests", SHARED, ("spec", "receivedGPU", "portion"), "0.50"),
        "the scheduler's log decides; a BindRequest is only shown",
    ),
    harmless("no BindRequest", remove("shared_gpu_pod", "bindrequests", SHARED), "the log decides"),
    harmless(
        "queue status",
        change("queues", "queues", "default-queue", ("status",), {"allocated": {"gpu": "9"}}),
        "Queue.status holds other numbers than the scheduler's",
    ),
    harmless(
        "old PodScheduled=False condition",
        _old_condition,
        "the condition stays after the pod was scheduled",
        on=STANDING,
    ),
    harmless(
        "a false Bound event",
        new_event(HERE, SHARED, type="Normal", reason="Bound", message="Pod bound successfully to node n"),
        "KAI v0.17.0 emits Bound on failed attempts too",
        on=STANDING,
    ),
    harmless("no Bound event", events(HERE, SHARED, "Bound", DROP), "the event proves nothing", on=(LAB, CROSSED)),
    harmless(
        "no Scheduled event at the boundary", events(HERE, SHARED, "Scheduled", DROP), "made with the BindRequest"
    ),
    harmless(
        "20481 MiB asked",
        change("shared_gpu_pod", "pods", SHARED, ("metadata", "annotations", "gpu-memory"), "20481"),
        "rounds up to the same 0.51",
    ),
    harmless(
        "label 40999",
        change("shared_gpu_pod", "nodes", NODE, ("metadata", "labels", "nvidia.com/gpu.memory"), "40999"),
        "KAI floors the label to 40900 as before, and the limit is not written yet",
        on=STANDING,
    ),
    harmless("version without v", version("kai_scheduler", "0.17.0"), "the same release", on=(LAB, CROSSED)),
    harmless(
        "kai-config says sharing off",
        change("kai_release", "configs", "kai-config", ("spec", "admission", "gpuSharing"), False),
        "the containers' arguments decide, the Config only corroborates",
        on=STANDING,
    ),
    harmless("older division lines", log_text("shared_gpu_pod", SCHEDULER, _older_lines), "only the newest counts"),
    harmless(
        "half a line at the end of the log",
        log_text(
            "shared_gpu_pod", SCHEDULER, lambda t: f"{t}Resource division result for queue <default-queue>: GPU: re"
        ),
        "a line still being written is not read",
    ),
    harmless(
        "an older scheduler's log too",
        lambda draft: draft.seen(
            "shared_gpu_pod",
            logs=(
                *draft.observation("shared_gpu_pod").logs,
                ContainerLog(
                    "kai-scheduler",
                    f"{SCHEDULER}old",
                    "kai-scheduler-default",
                    "2026-11-29T00:00:00Z\tResource division result for queue <default-queue>: GPU: requested: <9>, "
                    "allocated: <9>, fairShare: <9> CPU (cores): ",
                ),
            ),
        ),
        "the newest line over all logs counts",
    ),
    harmless(
        "another failure of an older pod",
        new_event(HERE, SHARED, uid="0000", reason="BindingError", message="another", source={"component": "binder"}),
        "only events with the pod's uid count",
    ),
    harmless("events in another order", _reverse_list(HERE, "events"), "no claim rests on the last event"),
    harmless("pods in another order", _reverse_list("shared_gpu_pod", "pods"), "a sum has no order"),
    harmless(
        "pod grouper's warning",
        new_event(HERE, SHARED, reason="PodGrouperWarning", message=f'Pod "{SHARED}" not found'),
        "a race inside KAI, seen on healthy pods",
    ),
    harmless(
        "late label, healed",
        new_event(
            "shared_gpu_pod",
            SHARED,
            reason="Unschedulable",
            message=NO_MEMORY,
            firstTimestamp="2026-11-30T01:00:00Z",
            lastTimestamp="2026-11-30T01:00:09Z",
        ),
        "KAI v0.17.0 reads a late label by itself and then scheduled the pod",
    ),
    harmless(
        "late label, long past",
        new_event(
            HERE,
            SHARED,
            reason="Unschedulable",
            message=NO_MEMORY,
            firstTimestamp="2026-11-30T01:00:00Z",
            lastTimestamp="2026-11-30T01:00:09Z",
        ),
        "healed before the boundary was reached",
        on=STANDING,
    ),
    harmless("no capture time", header(captured_at=None), "the time is needed only while no BindingError is there"),
    harmless(
        "only the log of the attempt before", logs(HERE, RESERVATION, _to_previous), "any attempt counts", on=STANDING
    ),
    harmless(
        "newline after NVML's error",
        log_text(HERE, RESERVATION, lambda t: f"{t}\n"),
        "the text ends there all the same",
        on=STANDING,
    ),
    harmless(
        "webhook's log goes on",
        log_text("isolator_release", "kai-resource-isolator-webhook-", lambda t: f"{t}mutate uid=1 injected\n"),
        "the whole log is read",
    ),
    harmless(
        "annotation keys in another order",
        log_text(
            "isolator_release",
            "kai-resource-isolator-webhook-",
            lambda t: t.replace("gpu-fraction|gpu-memory", "gpu-memory|gpu-fraction"),
        ),
        "a set has no order",
    ),
    harmless("mounts in another order", _reverse("shared_gpu_pod", "spec", "containers", 0, "volumeMounts"), "a set"),
    harmless("volumes in another order", _reverse("shared_gpu_pod", "spec", "volumes"), "a set"),
    harmless("environment in another order", _reverse("shared_gpu_pod", "spec", "containers", 0, "env"), "a set"),
    harmless(
        "a second ready node",
        clone("cluster", "nodes", NODE, {("metadata", "name"): "worker"}),
        "a recorded cluster may have more nodes; only one we make is known node by node",
    ),
    harmless("the cluster's pods not captured", uncaptured("cluster", "pods"), "no check reads them", on=(LAB,)),
    harmless(
        "children of the chart's parent",
        change("queues", "queues", "default-parent-queue", ("status",), {"childQueues": ["default-queue"]}),
        "the Children column lags behind the lab's re-parenting",
    ),
    harmless(
        "another queue below default",
        clone("queues", "queues", "default-queue", {("metadata", "name"): "team"}),
        "the lab's queue stays a leaf",
    ),
    harmless(
        "default-queue without queue label on the pod",
        change("shared_gpu_pod", "pods", "kai-whole-gpu", ("metadata", "labels"), {}),
        "KAI puts a pod without label into default-queue",
    ),
    harmless(
        "a finished shared pod",
        clone(
            "shared_gpu_pod",
            "pods",
            SHARED,
            {("metadata", "name"): "done", ("status", "phase"): "Succeeded"},
        ),
        "a finished pod holds no GPU",
    ),
    harmless(
        "a shared pod of another scheduler",
        clone(
            "shared_gpu_pod",
            "pods",
            SHARED,
            {("metadata", "name"): "other", ("spec", "schedulerName"): "default-scheduler"},
        ),
        "KAI accounts its own pods only",
    ),
    harmless(
        "another release failed",
        helm("kai_release", "nvml-mock", {"status": "failed"}),
        "judged where the mock is observed",
    ),
    harmless(
        "a certificate job's pod is done",
        clone(
            "isolator_release",
            "pods",
            "kai-resource-isolator-webhook-*",
            {("metadata", "name"): "kai-resource-isolator-webhook-certgen-x", ("status", "phase"): "Succeeded"},
        ),
        "a finished job is no part of the isolator that must run",
    ),
    harmless(
        "plugin restarted",
        change(
            "device_plugin",
            "pods",
            "nvidia-device-plugin-mock-*",
            ("status", "containerStatuses", 0, "restartCount"),
            3,
        ),
        "it is Ready now",
    ),
    harmless(
        "no old-style PodScheduled of the canary",
        lambda draft: draft.one("kai_release", "pods", "kai-lab-canary")["status"].update(conditions=[]),
        "spec.nodeName says that it is bound",
        on=(LAB,),
    ),
)
