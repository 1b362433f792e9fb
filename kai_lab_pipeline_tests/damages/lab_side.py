"""Damages to claims 1 and 6: cluster, mock, device plugin, labels of the node."""

from __future__ import annotations

from kai_lab_pipeline_tests.damages.draft import (
    DROP,
    LAB,
    Damage,
    Edit,
    add,
    both,
    change,
    clone,
    damage,
    empty,
    header,
    helm,
    never_observed,
    no_helm,
    remove,
    status_condition,
    uncaptured,
    version,
)

NODE = "kai-hami-test-control-plane"
GPU = "nvidia.com/gpu"
READY, KUBERNETES = "cluster.node_ready", "cluster.kubernetes_version_supported"
MOCK, DAEMONSET, PRESENT = (
    f"nvml_mock_release.{name}" for name in ("release_deployed", "daemonset_ready", "gpu_present_label")
)
PLUGIN, EIGHT = "device_plugin.plugin_pod_ready", "device_plugin.eight_whole_gpus"
MEMORY, PRODUCT, COUNT = (
    f"labelled_node.{name}" for name in ("gpu_memory_label", "gpu_product_label", "gpu_count_label")
)
KUBELET = ("status", "nodeInfo", "kubeletVersion")
PLUGIN_POD = "nvidia-device-plugin-mock-*"


def _label(asset: str, label: str, value: object) -> Edit:
    return change(asset, "nodes", NODE, ("metadata", "labels", label), value)


CLUSTER: tuple[Damage, ...] = (
    damage("node not ready", status_condition("cluster", "nodes", NODE, "Ready", "False"), READY),
    damage("node unknown", status_condition("cluster", "nodes", NODE, "Ready", "Unknown"), READY),
    damage("node never reported Ready", status_condition("cluster", "nodes", NODE, "Ready", DROP), READY),
    damage("no node at all", empty("cluster", "nodes"), READY),
    damage("another node's name", change("cluster", "nodes", NODE, ("metadata", "name"), "other"), READY),
    damage(
        "a second node that is not ready",
        add("cluster", "nodes", {"metadata": {"name": "worker"}, "status": {"conditions": []}}),
        READY,
    ),
    damage(
        "a ready node nobody configured, on kind",
        both(header(backend="kind"), clone("cluster", "nodes", NODE, {("metadata", "name"): "worker"})),
        READY,
    ),
    damage("nodes not captured", uncaptured("cluster", "nodes"), READY, KUBERNETES),
    damage("cluster never observed", never_observed("cluster"), READY, KUBERNETES),
    damage("old kubelet", change("cluster", "nodes", NODE, KUBELET, "v1.30.9"), KUBERNETES),
    damage("1.3 is older than 1.31", change("cluster", "nodes", NODE, KUBELET, "v1.3.10"), KUBERNETES),
    damage("1.310 is no typing error of 1.31", version("kubernetes", "v0.31.0"), KUBERNETES),
    damage("unreadable kubelet version", change("cluster", "nodes", NODE, KUBELET, "latest"), KUBERNETES),
    damage("old API server", version("kubernetes", "v1.30.14"), KUBERNETES),
)

MOCK_SIDE: tuple[Damage, ...] = (
    damage("mock release failed", helm("nvml_mock_release", "nvml-mock", {"status": "failed"}), MOCK),
    damage("mock release pending", helm("nvml_mock_release", "nvml-mock", {"status": "pending-install"}), MOCK),
    damage("newer mock chart", helm("nvml_mock_release", "nvml-mock", {"chart": "nvml-mock-0.4.0-rc1"}), MOCK),
    damage("mock release candidate", helm("nvml_mock_release", "nvml-mock", {"chart": "nvml-mock-0.3.0-rc1"}), MOCK),
    damage("another chart under the name", helm("nvml_mock_release", "nvml-mock", {"chart": "web-0.3.0"}), MOCK),
    damage("no mock release", helm("nvml_mock_release", "nvml-mock", DROP), MOCK),
    damage("mock release not captured", no_helm("nvml_mock_release"), MOCK),
    damage("another mock version wanted", version("nvml_mock", "0.2.1"), MOCK),
    damage(
        "0 of 0 pods",
        both(
            change("nvml_mock_release", "daemonsets", "nvml-mock", ("status", "desiredNumberScheduled"), 0),
            change("nvml_mock_release", "daemonsets", "nvml-mock", ("status", "numberReady"), 0),
        ),
        DAEMONSET,
    ),
    damage(
        "mock pod not ready",
        change("nvml_mock_release", "daemonsets", "nvml-mock", ("status", "numberReady"), 0),
        DAEMONSET,
    ),
    damage(
        "no ready count",
        change("nvml_mock_release", "daemonsets", "nvml-mock", ("status", "numberReady"), DROP),
        DAEMONSET,
    ),
    damage(
        "one pod too few",
        change("nvml_mock_release", "daemonsets", "nvml-mock", ("status", "desiredNumberScheduled"), 2),
        DAEMONSET,
    ),
    damage("no daemonset", remove("nvml_mock_release", "daemonsets", "nvml-mock"), DAEMONSET),
    damage("daemonsets not captured", uncaptured("nvml_mock_release", "daemonsets"), DAEMONSET),
    damage("not marked as GPU node", _label("nvml_mock_release", f"{GPU}.present", DROP), PRESENT),
    damage("marked false", _label("nvml_mock_release", f"{GPU}.present", "false"), PRESENT),
    damage("marked True", _label("nvml_mock_release", f"{GPU}.present", "True"), PRESENT),
    damage("marked with nothing", _label("nvml_mock_release", f"{GPU}.present", ""), PRESENT),
    damage(
        "marked on another node",
        change("nvml_mock_release", "nodes", NODE, ("metadata", "name"), "other"),
        PRESENT,
    ),
    damage("nodes not captured with the mock", uncaptured("nvml_mock_release", "nodes"), PRESENT),
    damage("mock never observed", never_observed("nvml_mock_release"), MOCK, DAEMONSET, PRESENT),
)

PLUGIN_SIDE: tuple[Damage, ...] = (
    damage("plugin not ready", status_condition("device_plugin", "pods", PLUGIN_POD, "Ready", "False"), PLUGIN),
    damage("plugin without Ready", status_condition("device_plugin", "pods", PLUGIN_POD, "Ready", DROP), PLUGIN),
    damage("plugin gone", remove("device_plugin", "pods", PLUGIN_POD), PLUGIN),
    damage(
        "plugin under another label",
        change("device_plugin", "pods", PLUGIN_POD, ("metadata", "labels", "name"), "nvidia-device-plugin"),
        PLUGIN,
    ),
    damage(
        "plugin in another namespace",
        change("device_plugin", "pods", PLUGIN_POD, ("metadata", "namespace"), "default"),
        PLUGIN,
    ),
    damage(
        "plugin being deleted",
        change("device_plugin", "pods", PLUGIN_POD, ("metadata", "deletionTimestamp"), "2026-11-30T01:00:00Z"),
        PLUGIN,
    ),
    damage("pods not captured with the plugin", uncaptured("device_plugin", "pods"), PLUGIN),
    *(
        damage(
            f"allocatable {value!r}",
            change("device_plugin", "nodes", NODE, ("status", "allocatable", GPU), value),
            EIGHT,
        )
        for value in ("80", "4", "0", "7", "8000m", "", "-8")
    ),
    damage(
        "capacity without allocatable",
        change("device_plugin", "nodes", NODE, ("status", "allocatable", GPU), DROP),
        EIGHT,
    ),
    damage("GPUs on another node", change("device_plugin", "nodes", NODE, ("metadata", "name"), "other"), EIGHT),
    damage("nodes not captured with the plugin", uncaptured("device_plugin", "nodes"), EIGHT),
    damage("plugin never observed", never_observed("device_plugin"), PLUGIN, EIGHT),
)

LABELS: tuple[Damage, ...] = (
    *(
        damage(f"memory label {value!r}", _label("labelled_node", f"{GPU}.memory", value), MEMORY)
        for value in (
            "40959",
            "40961",
            "40960Mi",
            "40Gi",
            "0",
            "",
            "42949672960",
            "40",
            "41943040",
            "40960.0",
            "unknown",
        )
    ),
    damage("no memory label", _label("labelled_node", f"{GPU}.memory", DROP), MEMORY),
    damage("another card", _label("labelled_node", f"{GPU}.product", "NVIDIA-A100-SXM4-80GB"), PRODUCT),
    damage("card in small letters", _label("labelled_node", f"{GPU}.product", "nvidia-a100-sxm4-40gb"), PRODUCT),
    damage("no product label", _label("labelled_node", f"{GPU}.product", DROP), PRODUCT),
    damage("count 80", _label("labelled_node", f"{GPU}.count", "80"), COUNT),
    damage("count 7", _label("labelled_node", f"{GPU}.count", "7"), COUNT),
    damage("no count label", _label("labelled_node", f"{GPU}.count", DROP), COUNT),
    damage("labels not captured", uncaptured("labelled_node", "nodes"), MEMORY, PRODUCT, COUNT),
    damage(
        "labels on another node",
        change("labelled_node", "nodes", NODE, ("metadata", "name"), "other"),
        MEMORY,
        PRODUCT,
        COUNT,
    ),
    damage("another profile is meant", header(profile={"gpu_memory_mib": 81920}), MEMORY, on=(LAB,)),
    damage("a profile of four cards is meant", header(profile={"gpu_count": 4}), COUNT, EIGHT, on=(LAB,)),
)

DAMAGES = CLUSTER + MOCK_SIDE + PLUGIN_SIDE + LABELS
