"""Scenarios of the isolator, the lab's pods, and the reservation boundary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kai_lab_pipeline.lab.scenarios.model import Scenario

_PODS = "isolator_release.isolator_pods_running"
_MUTATES = "isolator_release.webhook_mutates"
_KEYS = "isolator_release.webhook_annotation_keys"
_NVML = "reservation_boundary.reservation_nvml"
_OUTCOME = "reservation_boundary.boundary_outcome"
_BINDING = "reservation_boundary.binding_result"
_STATE = "reservation_boundary.shared_pod_state"
_CROSSING: Mapping[tuple[str, ...], Any] = {
    ("boundary", "crossing"): "NVIDIA container runtime in cdi mode, RuntimeClass handler nvidia"
}

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "isolator-webhook-not-ready",
        "Pods slip through the isolator's webhook",
        "The webhook's failure policy is Ignore: while it is not ready, pods are accepted and not injected "
        "(kai-resource-isolator).",
        "The shared pod runs into no error at all, and has no vgpu mounts.",
        "A dry-run pod comes back unchanged; the pod that would slip through is not made.",
        "isolator.not-injected",
        red=(_PODS, _MUTATES),
        faults={"isolator_webhook_down": True},
    ),
    Scenario(
        "isolator-webhook-crash-loop",
        "The isolator's webhook crash-loops",
        "A webhook without its certificate or rights (kai-resource-isolator).",
        "CrashLoopBackOff in kai-resource-isolator; pods are accepted all the same.",
        "It never announces its keys, never serves, and injects nothing.",
        "pod.crash-loop",
        red=(_PODS, _KEYS, _MUTATES),
        faults={"crash_loop": "webhook"},
    ),
    Scenario(
        "isolator-monitor-crash-loop",
        "The isolator's monitor crash-loops and everything else works",
        "The monitor needs NVML on the host and is off by default (kai-resource-isolator, monitor.enabled).",
        "CrashLoopBackOff of one pod; injection works.",
        "Only the isolator's own pods are concerned: nothing is built on the monitor.",
        "pod.crash-loop",
        red=(_PODS,),
        faults={"crash_loop": "monitor"},
    ),
    Scenario(
        "isolator-monitor-not-enabled",
        "The value monitor.enabled was forgotten",
        "The chart's default leaves the monitor out (kai-resource-isolator 1.1.0-chart).",
        "`kubectl get pods -n kai-resource-isolator` has no monitor.",
        "The lab looks for all three by name; nothing else depends on it.",
        "isolator.pods",
        red=(_PODS,),
        settings={("charts", "kai_resource_isolator", "values"): {"monitor.enabled": False}},
    ),
    Scenario(
        "isolator-other-annotations",
        "The isolator reads other annotations than KAI",
        "A webhook that is set up for HAMi's own annotations (kai-resource-isolator, annotation keys).",
        "Its log announces `annotationKeys=hami.io/gpu-memory`; pods with gpu-memory are skipped.",
        "The announcement is wrong, and what it means shows at once: an annotated pod comes back unchanged.",
        "isolator.wrong-keys",
        red=(_KEYS, _MUTATES),
        faults={"isolator_wrong_keys": "hami.io/gpu-memory"},
    ),
    Scenario(
        "isolator-too-old",
        "An older isolator injects less",
        "kai-resource-isolator 1.0.0-chart mounts the library and nothing else: no lock, no containers folder, no "
        "environment.",
        "The shared pod has two of four mounts and no CONTAINER_VGPU_MOUNT.",
        "What the webhook must add is compared as a set, in the dry-run and on the pod.",
        "isolator.fewer-mounts",
        red=(_MUTATES,),
        settings={("charts", "kai_resource_isolator", "version"): "1.0.0-chart"},
    ),
    Scenario(
        "lab-pod-image-missing",
        "The lab's pods cannot pull busybox",
        "An air-gapped cluster, or a node on which the image was not loaded; `image: busybox` without a tag is pulled "
        "each time even where it was (kubelet).",
        "kai-whole-gpu stands in ImagePullBackOff, on a node and with a GPU.",
        "KAI did its work, the kubelet could not: the pod is bound and does not run.",
        "pod.image-not-found",
        red=("whole_gpu_pod.whole_gpu_running",),
        faults={"image_missing": "busybox"},
    ),
    Scenario(
        "reservation-image-missing",
        "The reservation pod's image cannot be pulled",
        "KAI's reservation image comes from KAI's registry and is forgotten in air-gapped clusters (KAI binder).",
        "BindingError as on the lab's boundary, but the reservation pod stands in ImagePullBackOff.",
        "The shared pod fails in the known way and for another reason: no word of NVML, so not the expected boundary.",
        "boundary.reservation-image",
        red=(_NVML, _OUTCOME),
        faults={"reservation_image_pull": True},
    ),
    Scenario(
        "reservation-other-nvml-error",
        "The reservation pod fails with another NVML error",
        "A driver that is not loaded, or one that does not fit the library: NVML is found and does not work.",
        "The reservation pod's log ends in `unable to initialize NVML: ERROR_DRIVER_NOT_LOADED`.",
        "Only ERROR_LIBRARY_NOT_FOUND is the lab's boundary; everything else is a failure of its own.",
        "boundary.nvml-other-error",
        red=(_NVML, _OUTCOME),
        faults={"reservation_other_error": "ERROR_DRIVER_NOT_LOADED"},
    ),
    Scenario(
        "reservation-sees-all-cards",
        "The reservation pod sees all cards in place of its own",
        "A runtime that hands every device to every pod; the reservation must see exactly one (KAI resource "
        "reservation).",
        "The reservation pod's log counts eight GPU devices and ends; the shared pod stays Pending.",
        "Where NVML gets into pods the boundary must be crossed; here it stops at the number of cards.",
        "boundary.device-count",
        red=(_STATE, _BINDING, _NVML, _OUTCOME),
        faults={"reservation_many_devices": True},
        settings=_CROSSING,
    ),
    Scenario(
        "crossing-does-not-work",
        "NVML should get into pods and does not",
        "A container runtime that was set up and whose RuntimeClass the reservation pods do not use: KAI gives them "
        "none unless binder.runtimeClassName is set.",
        "The reservation pod's log ends in `unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND`, as without a runtime.",
        "Every sign is that of the standing boundary; only the outcome is not the one that this lab must give.",
        "boundary.crossing-broken",
        red=(_OUTCOME,),
        faults={"reservation_other_error": "ERROR_LIBRARY_NOT_FOUND"},
        settings=_CROSSING,
    ),
    Scenario(
        "memory-limit-wrong",
        "The memory limit is another than label x portion",
        "The annotation written as the limit, in place of the share that KAI accounts (KAI binder, hamicore).",
        "The pod's ConfigMap says 20480m where 20889m is right.",
        "The pod runs, so the ConfigMap is there to be read; its value is computed from label and portion. A "
        "crossing with a wrong limit is none.",
        "lab.memory-limit",
        red=("shared_gpu_pod.memory_limit_value", _OUTCOME),
        faults={"limit_wrong": "20480m"},
        settings=_CROSSING,
    ),
    Scenario(
        "crossed-unasked",
        "The boundary is crossed, and nobody said so",
        "A node whose default runtime is NVIDIA's: NVML gets into every pod, and the lab's last step does not fail.",
        "The shared pod runs.",
        "Good news to look at: the lab pins a boundary that is no longer there.",
        "boundary.different",
        red=(_OUTCOME,),
        faults={"crossed": True},
    ),
)
