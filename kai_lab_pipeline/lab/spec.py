"""What the lab consists of: assets, the checks that stand on them, gates, and the eight claims they make up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ASSETS: tuple[str, ...] = (
    "cluster",
    "nvml_mock_image",
    "nvml_mock_release",
    "device_plugin",
    "labelled_node",
    "kai_release",
    "queues",
    "nvidia_runtime_class",
    "isolator_release",
    "whole_gpu_pod",
    "shared_gpu_pod",
    "reservation_boundary",
    "boundary_report",
)
"""The assets of a lab in the order of the lab's steps."""


RELEASED: Mapping[str, str] = {
    "nvml_mock": "nvml_mock_release",
    "kai_scheduler": "kai_release",
    "kai_resource_isolator": "isolator_release",
}
"""Components that are chart releases, and the asset of each."""
VALUES_HAVE_EFFECT = "values_have_effect"
"""Name of the check on each of a candidate's chart releases. It is part of no claim: it judges charts, no cluster."""
_MOCK = ("nvml_mock_release.daemonset_ready", "nvml_mock_release.gpu_present_label")
_GPUS = (*_MOCK, "device_plugin.eight_whole_gpus")
_KAI_VALUES = (f"kai_release.{VALUES_HAVE_EFFECT}",)
CANNOT_HOLD_WITHOUT: Mapping[str, tuple[str, ...]] = {
    "device_plugin.plugin_pod_ready": _MOCK,
    "device_plugin.eight_whole_gpus": _MOCK,
    "labelled_node.gpu_memory_label": _GPUS,
    "labelled_node.gpu_product_label": _GPUS,
    "labelled_node.gpu_count_label": _GPUS,
    "isolator_release.isolator_pods_running": ("nvml_mock_release.gpu_present_label",),  # the monitor's node selector
    "kai_release.sharing_enabled": _KAI_VALUES,
    "kai_release.hamicore_enabled": _KAI_VALUES,
    "whole_gpu_pod.whole_gpu_running": _GPUS,
    "shared_gpu_pod.label_read_by_kai": _GPUS,
    "shared_gpu_pod.fraction_accounted": _GPUS,
}
"""Checks that are not expected to hold where one of these is broken, and so are not worth their whole deadline.

None of the boundary's is among them: how it fails is to be seen in its own time.
"""


@dataclass(frozen=True)
class CheckSpec:
    """One named expectation on an asset."""

    asset: str
    name: str
    description: str
    gate: bool = False
    """A broken gate stops what lies behind it: further checks would only repeat the same fault."""


def _checks(asset: str, *rows: tuple[str, str] | tuple[str, str, bool]) -> tuple[CheckSpec, ...]:
    return tuple(CheckSpec(asset, row[0], row[1], len(row) == 3 and bool(row[2])) for row in rows)


CHECKS: Mapping[str, tuple[CheckSpec, ...]] = {
    "cluster": _checks(
        "cluster",
        ("node_ready", "Every node is Ready; on kind exactly the configured ones.", True),
        ("kubernetes_version_supported", "The API server is Kubernetes 1.31 or newer."),
    ),
    "nvml_mock_release": _checks(
        "nvml_mock_release",
        ("release_deployed", "Helm says deployed, with the chart version of the version set."),
        ("daemonset_ready", "The mock's DaemonSet wants at least one pod and all of them are ready.", True),
        ("gpu_present_label", "The node carries nvidia.com/gpu.present=true, and who wrote it is recorded.", True),
    ),
    "device_plugin": _checks(
        "device_plugin",
        ("plugin_pod_ready", "The device plugin's pod in kube-system is Ready."),
        ("eight_whole_gpus", "The node advertises the profile's count of whole GPUs, not slices.", True),
    ),
    "labelled_node": _checks(
        "labelled_node",
        ("gpu_memory_label", "nvidia.com/gpu.memory is the card's memory as a plain integer in MiB.", True),
        ("gpu_product_label", "nvidia.com/gpu.product names the profile's card."),
        ("gpu_count_label", "nvidia.com/gpu.count is the profile's count."),
    ),
    "kai_release": _checks(
        "kai_release",
        ("release_deployed", "Helm says deployed, with the chart version of the version set."),
        ("seven_components_running", "All seven KAI deployments are Available, by name.", True),
        ("sharing_enabled", "KAI's admission runs with GPU sharing on: the effect, not the flag passed."),
        ("hamicore_enabled", "KAI's binder and admission run with the hamicore plugin on."),
        ("queue_webhook_serving", "A server-side dry-run of a Queue is answered by KAI's webhook.", True),
        ("scheduler_alive", "A CPU-only canary pod is bound by kai-scheduler within its deadline."),
    ),
    "queues": _checks(
        "queues",
        ("queues_exist", "The queues default, default-queue and default-parent-queue exist.", True),
        ("default_queue_is_leaf_of_default", "default-queue is a leaf under the existing queue default."),
        ("queues_unlimited", "cpu, memory and gpu of both lab queues: quota -1, limit -1, weight 1."),
    ),
    "nvidia_runtime_class": _checks(
        "nvidia_runtime_class",
        ("runtime_class_handler", "RuntimeClass nvidia exists with the handler this lab needs.", True),
    ),
    "isolator_release": _checks(
        "isolator_release",
        ("release_deployed", "Helm says deployed, with the chart version of the version set."),
        ("isolator_pods_running", "libsync, monitor and webhook run and are ready."),
        ("webhook_annotation_keys", "The webhook announced annotationKeys=gpu-fraction|gpu-memory."),
        ("webhook_mutates", "A dry-run of an annotated pod comes back with HAMi-core's volumes.", True),
    ),
    "whole_gpu_pod": _checks(
        "whole_gpu_pod",
        ("whole_gpu_running", "The whole-GPU pod is Running on a node."),
        ("no_sharing_injected", "The whole-GPU pod carries no sharing label and no vgpu mounts."),
    ),
    "shared_gpu_pod": _checks(
        "shared_gpu_pod",
        ("label_read_by_kai", "KAI accounts with the memory label: no GPU memory complaint after it was there."),
        ("fraction_accounted", "The queue's requested, allocated and fairShare equal the sum over its pods."),
        ("hami_core_injected", "HAMi-core's env, mounts and hostPath volumes stand on the shared pod."),
        ("runtime_class_injected", "KAI's admission set runtimeClassName nvidia."),
        ("memory_limit_wired", "CUDA_DEVICE_MEMORY_LIMIT comes from the pod's shared-GPU ConfigMap."),
        ("memory_limit_value", "The ConfigMap's limit is trunc(label x portion) MiB."),
    ),
    "reservation_boundary": _checks(
        "reservation_boundary",
        ("shared_pod_state", "Boundary stands: Pending and unbound; crossed: Running and bound."),
        ("binding_result", "Boundary stands: the binder's BindingError; crossed: a GPU is reserved."),
        ("reservation_nvml", "Boundary stands: the reservation pod cannot load NVML; crossed: it found a GPU."),
        ("boundary_outcome", "The outcome is the one this backend must give."),
    ),
}
"""Checks per asset, in the order in which they are shown. `nvml_mock_image` and `boundary_report` have none here."""


@dataclass(frozen=True)
class ClaimSpec:
    """One of the lab's claims and the checks (``asset.check``) that make it up."""

    id: int
    statement: str
    checks: tuple[str, ...]


def _all_of(*assets: str) -> tuple[str, ...]:
    return tuple(f"{asset}.{check.name}" for asset in assets for check in CHECKS[asset])


_READS_MEMORY = ("shared_gpu_pod.label_read_by_kai", "shared_gpu_pod.fraction_accounted")

CLAIMS: tuple[ClaimSpec, ...] = (
    ClaimSpec(1, "the mock advertises whole GPUs", _all_of("cluster", "nvml_mock_release", "device_plugin")),
    ClaimSpec(2, "KAI is installed and runs", _all_of("kai_release")),
    ClaimSpec(3, "the queues are effective for scheduling", _all_of("queues")),
    ClaimSpec(4, "the isolator's webhook is active", _all_of("nvidia_runtime_class", "isolator_release")),
    ClaimSpec(5, "KAI's basic scheduling works", _all_of("whole_gpu_pod")),
    ClaimSpec(6, "KAI reads the memory per card", _all_of("labelled_node") + _READS_MEMORY),
    ClaimSpec(
        7,
        "the isolator injects HAMi-core",
        tuple(name for name in _all_of("shared_gpu_pod") if name not in _READS_MEMORY),
    ),
    ClaimSpec(8, "the boundary: the shared pod cannot run, and exactly why", _all_of("reservation_boundary")),
)


@dataclass(frozen=True)
class Expectations:
    """What this lab is expected to give: the profile, names and versions the claims are judged against."""

    gpu_count: int = 8
    gpu_memory_mib: int = 40960
    gpu_product: str = "NVIDIA-A100-SXM4-40GB"
    node_names: tuple[str, ...] | None = None
    """Exactly these nodes (kind and rehearsal); None accepts any set of nodes."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Version set: keys kai_scheduler, nvml_mock, kai_resource_isolator, device_plugin."""
    crossing: str | None = None
    """How NVML gets into pods, where it was set up; then the boundary must be crossed."""
    whole_pod: str = "kai-whole-gpu"
    shared_pod: str = "gpu-sharing-with-isolation"
    pod_namespace: str = "default"
    kai_namespace: str = "kai-scheduler"
    isolator_namespace: str = "kai-resource-isolator"
    queue: str = "default-queue"
    parent_queue: str = "default"
    canary_pod: str = "kai-lab-canary"

    @property
    def runtime_handler(self) -> str:
        """Handler of RuntimeClass nvidia: runc maps it away (the lab), nvidia is needed to cross the boundary."""
        return "nvidia" if self.crossing else "runc"


UPSTREAM: Mapping[str, tuple[str, ...]] = {
    "cluster": (),
    "nvml_mock_image": ("cluster",),
    "nvml_mock_release": ("nvml_mock_image", "charts/nvml_mock"),
    "device_plugin": ("nvml_mock_release", "manifests/device_plugin"),
    "labelled_node": ("device_plugin",),
    "kai_release": ("labelled_node", "charts/kai_scheduler"),
    "queues": ("kai_release",),
    "nvidia_runtime_class": ("cluster",),
    "isolator_release": ("nvml_mock_release", "charts/kai_resource_isolator"),
    "whole_gpu_pod": ("queues", "nvidia_runtime_class", "device_plugin"),
    "shared_gpu_pod": ("whole_gpu_pod", "isolator_release", "labelled_node"),
    "reservation_boundary": ("shared_gpu_pod",),
    "boundary_report": ("reservation_boundary",),
}
"""What each asset needs of the others: the lab's real needs and no more."""
