"""Damages to claim 4: the runtime class and the isolator."""

from __future__ import annotations

from typing import Any

from kai_lab_pipeline_tests.damages.draft import (
    COMPLETE,
    CROSSED,
    DROP,
    STANDING,
    Damage,
    Edit,
    change,
    damage,
    dryrun,
    header,
    helm,
    log_text,
    logs,
    never_observed,
    no_helm,
    remove,
    status_condition,
    uncaptured,
    version,
)

HANDLER = "nvidia_runtime_class.runtime_class_handler"
RELEASE, PODS, KEYS, MUTATES = (
    f"isolator_release.{name}"
    for name in ("release_deployed", "isolator_pods_running", "webhook_annotation_keys", "webhook_mutates")
)
OUTCOME = "reservation_boundary.boundary_outcome"
ISOLATOR = "kai-resource-isolator"
WEBHOOK = f"{ISOLATOR}-webhook-"
VOLUMES = (f"{ISOLATOR}-vgpu", f"{ISOLATOR}-containers", f"{ISOLATOR}-vgpulock")


def _class(path: tuple[str | int, ...], value: Any) -> Edit:
    return change("nvidia_runtime_class", "runtimeclasses", "nvidia", path, value)


def _dry_volume(name: str, **fields: Any) -> Edit:
    """Change a volume of the dry-run pod; without fields, drop it."""

    def edit(pod: Any) -> None:
        volumes = pod["spec"]["volumes"]
        volume = next(v for v in volumes if v["name"] == name)
        if fields:
            volume.update(fields)
        else:
            volumes.remove(volume)

    return dryrun("isolator_release", "shared_pod", edit)


DAMAGES: tuple[Damage, ...] = (
    damage("handler nvidia where nothing crosses", _class(("handler",), "nvidia"), HANDLER, on=STANDING),
    damage("handler runc where it must cross", _class(("handler",), "runc"), HANDLER, on=(CROSSED,)),
    damage("handler in capitals", _class(("handler",), "RUNC"), HANDLER),
    damage("no handler", _class(("handler",), DROP), HANDLER),
    damage("no runtime class", remove("nvidia_runtime_class", "runtimeclasses", "nvidia"), HANDLER),
    damage("runtime class of another name", _class(("metadata", "name"), "nvidia-cdi"), HANDLER),
    damage("runtime classes not captured", uncaptured("nvidia_runtime_class", "runtimeclasses"), HANDLER),
    damage("runtime class never observed", never_observed("nvidia_runtime_class"), HANDLER),
    damage("a crossing is said to be set up", header(crossing="by hand"), HANDLER, OUTCOME, on=STANDING),
    damage("nobody set up the crossing", header(crossing=None), HANDLER, OUTCOME, on=(CROSSED,)),
    damage("isolator failed", helm("isolator_release", ISOLATOR, {"status": "failed"}), RELEASE),
    damage("isolator chart 1.0", helm("isolator_release", ISOLATOR, {"chart": f"{ISOLATOR}-1.0.0-chart"}), RELEASE),
    damage(
        "isolator chart without suffix", helm("isolator_release", ISOLATOR, {"chart": f"{ISOLATOR}-1.1.0"}), RELEASE
    ),
    damage("no isolator", helm("isolator_release", ISOLATOR, DROP), RELEASE),
    damage("isolator release not captured", no_helm("isolator_release"), RELEASE),
    damage("another isolator version wanted", version("kai_resource_isolator", "1.2.0-chart"), RELEASE),
    *(
        damage(f"no {part} pod", remove("isolator_release", "pods", f"{ISOLATOR}-{part}-*"), PODS)
        for part in ("libsync", "monitor", "webhook")
    ),
    *(
        damage(
            f"{part} 0/1", status_condition("isolator_release", "pods", f"{ISOLATOR}-{part}-*", "Ready", "False"), PODS
        )
        for part in ("libsync", "monitor", "webhook")
    ),
    damage(
        "webhook pod being deleted",
        change("isolator_release", "pods", f"{WEBHOOK}*", ("metadata", "deletionTimestamp"), "2026-11-30T01:00:00Z"),
        PODS,
    ),
    damage(
        "monitor in another namespace",
        change("isolator_release", "pods", f"{ISOLATOR}-monitor-*", ("metadata", "namespace"), "default"),
        PODS,
    ),
    damage("isolator's pods not captured", uncaptured("isolator_release", "pods"), PODS),
    damage("webhook log empty", log_text("isolator_release", WEBHOOK, lambda _: ""), KEYS),
    damage("webhook log not captured", logs("isolator_release", WEBHOOK, lambda _: None), KEYS),
    damage(
        "only the last line of the webhook's log",
        log_text("isolator_release", WEBHOOK, lambda t: "mutate uid=1 ns=default pod=x injected: patchBytes=1473\n"),
        KEYS,
    ),
    damage(
        "webhook knows gpu-fraction only",
        log_text("isolator_release", WEBHOOK, lambda t: t.replace("gpu-fraction|gpu-memory", "gpu-fraction")),
        KEYS,
    ),
    damage(
        "webhook knows another annotation",
        log_text("isolator_release", WEBHOOK, lambda t: t.replace("gpu-memory", "gpu-mem")),
        KEYS,
    ),
    damage(
        "no dry-run of a shared pod", dryrun("isolator_release", "shared_pod", lambda _: DROP), MUTATES, on=COMPLETE
    ),
    damage(
        "dry-run of a shared pod refused",
        dryrun("isolator_release", "shared_pod", lambda _: {"kind": "Status", "message": "admission webhook denied"}),
        MUTATES,
        on=COMPLETE,
    ),
    damage(
        "dry-run pod without annotation",
        dryrun("isolator_release", "shared_pod", lambda p: p["metadata"]["annotations"].pop("gpu-memory") and None),
        MUTATES,
        on=COMPLETE,
    ),
    *(damage(f"dry-run without volume {name}", _dry_volume(name), MUTATES, on=COMPLETE) for name in VOLUMES),
    damage("dry-run volume from elsewhere", _dry_volume(VOLUMES[2], hostPath={"path": "/tmp"}), MUTATES, on=COMPLETE),
    damage("dry-run volume empty", _dry_volume(VOLUMES[0], hostPath=None, emptyDir={}), MUTATES, on=COMPLETE),
    damage(
        "dry-run without volumes",
        dryrun("isolator_release", "shared_pod", lambda p: p["spec"].pop("volumes") and None),
        MUTATES,
        on=COMPLETE,
    ),
    damage("isolator never observed", never_observed("isolator_release"), RELEASE, PODS, KEYS, MUTATES, on=COMPLETE),
)
