"""Faults to rehearse, as data: each named fault is looked up at one well-defined point of one component."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FAULTS: Mapping[str, str] = {
    "node_not_ready": "the node never becomes Ready: its network plugin does not come up",
    "library_missing": "nvml-mock does not put its library on the node: the device plugin finds no NVML",
    "mock_label_missing": "nvml-mock runs but never labels the node nvidia.com/gpu.present",
    "image_missing": "parameter: part of an image name that is in no registry and not on the node (default nvml-mock)",
    "registry_unauthorized": "registries refuse charts, and images that are not on the node: authentication required",
    "registry_rate_limited": "registries refuse charts, and images that are not on the node: too many requests",
    "crash_loop": "parameter: name of a container that exits with 1 soon after it started (or component=NAME)",
    "plugin_not_registering": "the device plugin is Ready but never registers with the kubelet",
    "time_slicing": "parameter: replicas per card the device plugin advertises (default 10: 80 from 8)",
    "gpu_count": "parameter: how many cards the mock shows, whatever the profile says",
    "late_gpu_label": "parameter: seconds of a real cluster until nvml-mock labels the node",
    "admission_never_ready": "KAI's admission starts but its readiness probe never succeeds",
    "queue_webhook_down": "queue-controller's webhook refuses connections for ever",
    "queue_webhook_denies": "parameter: the text with which every Queue is denied",
    "scheduler_silent": "kai-scheduler runs but no longer schedules or logs",
    "scheduler_missing": "the operator does not make the scheduler's Deployment",
    "binder_down": "the binder's Deployment has no replicas",
    "isolator_webhook_down": "the isolator's webhook never becomes ready: pods slip through uninjected",
    "isolator_wrong_keys": "parameter: annotation keys the isolator announces and reads (default hami.io/gpu-memory)",
    "isolator_fewer_mounts": "the isolator injects what its 1.0.0 did: one volume, two mounts, no environment",
    "reservation_image_pull": "the reservation pod's image cannot be pulled",
    "reservation_other_error": "parameter: the NVML error of the reservation pod (default ERROR_UNKNOWN)",
    "reservation_many_devices": "the reservation pod sees all cards instead of one",
    "limit_wrong": "parameter: the CUDA_DEVICE_MEMORY_LIMIT written instead of the right one (default 20480m)",
    "fraction_wrong": "parameter: what the scheduler adds to the fraction it accounts (default 0.01)",
    "hamicore_off": "binder and admission run without the hamicore plugin whatever the values say",
    "sharing_off": "admission runs with GPU sharing off whatever the values say",
    "helm_pending": "parameter: release (default any) that another helm left in pending-install",
    "helm_failed_hook": "parameter: release (default kai-scheduler) whose last hook never finishes",
    "chart_not_found": "parameter: release (default any) whose chart version the registry does not have",
    "crossed": "the node has the NVIDIA runtime as its default: NVML gets into every pod",
}
"""Every fault there is, with what it does and what its parameter means."""


@dataclass(frozen=True)
class Faults:
    """The faults that are switched on, by name."""

    values: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def parse(values: Mapping[str, Any] | None) -> Faults:
        """Raises ValueError naming an unknown fault and those there are. A value of False or None switches off."""
        chosen = {name: value for name, value in (values or {}).items() if value not in (None, False)}
        unknown = sorted(set(chosen) - set(FAULTS))
        if unknown:
            raise ValueError(f"unknown fault {', '.join(unknown)}; known: {', '.join(sorted(FAULTS))}")
        return Faults(chosen)

    def on(self, name: str) -> bool:
        if name not in FAULTS:
            raise KeyError(name)
        return name in self.values

    def text(self, name: str, default: str) -> str:
        """The fault's parameter as text; `default` when it was only switched on."""
        value = self.values.get(name)
        if isinstance(value, Mapping):
            value = next(iter(value.values()), None)
        return default if value in (None, True, "") else str(value).removeprefix("component=")

    def number(self, name: str, default: float) -> float:
        """The fault's parameter as a number. Raises ValueError naming the fault when it is none."""
        text = self.text(name, str(default))
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"fault {name}: {text!r} is not a number") from None
