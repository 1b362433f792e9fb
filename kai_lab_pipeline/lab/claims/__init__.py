"""Every check of the lab as a pure function: evidence and expectations in, a finding out.

To find where a claim is judged: the table below names the function, the module is named after what it looks at.
"""

from __future__ import annotations

from collections.abc import Mapping

from kai_lab_pipeline.lab.claims import boundary, cluster, gpus, isolation, scheduler, workloads
from kai_lab_pipeline.lab.claims.reading import Check

CHECK_FUNCTIONS: Mapping[str, Check] = {
    # claim 1: the mock advertises whole GPUs
    "cluster.node_ready": cluster.node_ready,
    "cluster.kubernetes_version_supported": cluster.kubernetes_version_supported,
    "nvml_mock_release.release_deployed": gpus.mock_release_deployed,
    "nvml_mock_release.daemonset_ready": gpus.daemonset_ready,
    "nvml_mock_release.gpu_present_label": gpus.gpu_present_label,
    "device_plugin.plugin_pod_ready": gpus.plugin_pod_ready,
    "device_plugin.eight_whole_gpus": gpus.eight_whole_gpus,
    # claim 2: KAI is installed and runs
    "kai_release.release_deployed": scheduler.kai_release_deployed,
    "kai_release.seven_components_running": scheduler.seven_components_running,
    "kai_release.sharing_enabled": scheduler.sharing_enabled,
    "kai_release.hamicore_enabled": scheduler.hamicore_enabled,
    "kai_release.queue_webhook_serving": scheduler.queue_webhook_serving,
    "kai_release.scheduler_alive": scheduler.scheduler_alive,
    # claim 3: the queues are effective for scheduling
    "queues.queues_exist": scheduler.queues_exist,
    "queues.default_queue_is_leaf_of_default": scheduler.default_queue_is_leaf_of_default,
    "queues.queues_unlimited": scheduler.queues_unlimited,
    # claim 4: the isolator's webhook is active
    "nvidia_runtime_class.runtime_class_handler": isolation.runtime_class_handler,
    "isolator_release.release_deployed": isolation.isolator_release_deployed,
    "isolator_release.isolator_pods_running": isolation.isolator_pods_running,
    "isolator_release.webhook_annotation_keys": isolation.webhook_annotation_keys,
    "isolator_release.webhook_mutates": isolation.webhook_mutates,
    # claim 5: KAI's basic scheduling works
    "whole_gpu_pod.whole_gpu_running": workloads.whole_gpu_running,
    "whole_gpu_pod.no_sharing_injected": workloads.no_sharing_injected,
    # claim 6: KAI reads the memory per card
    "labelled_node.gpu_memory_label": gpus.gpu_memory_label,
    "labelled_node.gpu_product_label": gpus.gpu_product_label,
    "labelled_node.gpu_count_label": gpus.gpu_count_label,
    "shared_gpu_pod.label_read_by_kai": workloads.label_read_by_kai,
    "shared_gpu_pod.fraction_accounted": workloads.fraction_accounted,
    # claim 7: the isolator injects HAMi-core
    "shared_gpu_pod.hami_core_injected": workloads.hami_core_injected,
    "shared_gpu_pod.runtime_class_injected": workloads.runtime_class_injected,
    "shared_gpu_pod.memory_limit_wired": workloads.memory_limit_wired,
    "shared_gpu_pod.memory_limit_value": workloads.memory_limit_value,
    # claim 8: the boundary: the shared pod cannot run, and exactly why
    "reservation_boundary.shared_pod_state": boundary.shared_pod_state,
    "reservation_boundary.binding_result": boundary.binding_result,
    "reservation_boundary.reservation_nvml": boundary.reservation_nvml,
    "reservation_boundary.boundary_outcome": boundary.boundary_outcome,
}
"""``asset.check`` -> the function that judges it."""
