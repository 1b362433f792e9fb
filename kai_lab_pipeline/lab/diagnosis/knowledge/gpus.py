"""nvml-mock, the NVIDIA device plugin and the GPUs a node advertises. Chart 0.2.1 to 0.4.0-rc1, plugin v0.18.2."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.knowledge.commands import on_node
from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, NAMED, SYMPTOM, Fault, said, seen

PLUGIN = "https://github.com/NVIDIA/k8s-device-plugin/issues"
MOCK = "https://github.com/NVIDIA/k8s-test-infra"
_SYMPTOMS = ("pod.crash-loop", "pod.error-exit", "pod.unready", "workload.not-ready")
_PLUGIN_LOG = "kubectl logs -n kube-system -l name=nvidia-device-plugin-mock --tail=50"

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="gpu.plugin-nvml-missing",
        component="NVIDIA device plugin",
        title="nvml init failed: ERROR_LIBRARY_NOT_FOUND (device plugin)",
        cause="The device plugin finds no NVML library under its driver root, so it advertises no GPU: the mock "
        "has not put it on the node, or the plugin was started without the driver root and discovery flags of the "
        "lab's manifest.",
        remedy=(
            "docker exec {node} ls -l /var/lib/nvml-mock/driver/usr/lib64",
            "kubectl get pods -A -l app.kubernetes.io/name=nvml-mock",
            "kubectl apply -f manifests/device-plugin.yaml",
            _PLUGIN_LOG,
        ),
        signs=(
            said("nvml init failed", at=EXACT),
            said("failed to initialize nvml: error_library_not_found", at=EXACT),
            said("failed to initialize nvml: could not load nvml library", at=EXACT),
        ),
        links=(f"{PLUGIN}/856", f"{PLUGIN}/1371"),
        explains=_SYMPTOMS,
        explains_all=("gpu.plugin-pod", "gpu.count", "workload.not-ready"),
        elsewhere=(
            on_node("ls -l /var/lib/nvml-mock/driver/usr/lib64"),
            "kubectl get pods -A -l app.kubernetes.io/name=nvml-mock",
            "kubectl apply -f manifests/device-plugin.yaml",
            "kubectl logs -n kube-system -l name=nvidia-device-plugin-mock --tail=50",
        ),
    ),
    Fault(
        id="gpu.mock-symbols",
        component="nvml-mock",
        title="couldn't find libnvidia-ml.so / undefined symbol",
        cause="The library is there and cannot be loaded: the mock lacks a symbol that this program wants, and the "
        "loader calls that 'not found'. Mock and program are of different times.",
        remedy=(
            "docker exec {node} ls -l /var/lib/nvml-mock/driver/usr/lib64",
            "Take image, chart and device plugin of one pinned set: v0.3.0, 0.3.0, v0.18.2",
        ),
        signs=(
            said("couldn't find libnvidia-ml.so", at=EXACT),
            said("undefined symbol: nvml", at=EXACT),
            said("could not find nvml library", at=NAMED),
        ),
        links=(
            f"{MOCK}/pull/413",
            "https://github.com/Project-HAMi/volcano-vgpu-device-plugin/pull/149",
            f"{PLUGIN}/1371",
        ),
        explains=_SYMPTOMS,
        elsewhere=(
            on_node("ls -l /var/lib/nvml-mock/driver/usr/lib64"),
            "Take image, chart and device plugin of one pinned set: v0.3.0, 0.3.0, v0.18.2",
        ),
    ),
    Fault(
        id="gpu.plugin-strategy",
        component="NVIDIA device plugin",
        title="Incompatible strategy detected auto / invalid device discovery strategy / No devices found. Waiting "
        "indefinitely.",
        cause="The device plugin found no way to discover GPUs and advertises none; with fail-on-init-error=false "
        "its pod is Ready all the same.",
        remedy=(
            "kubectl apply -f manifests/device-plugin.yaml",
            "That manifest sets the strategy nvml and the mock's driver root",
            _PLUGIN_LOG,
        ),
        signs=(
            said("incompatible strategy detected", at=EXACT),
            said("invalid device discovery strategy", at=EXACT),
            said("no devices found. waiting indefinitely", at=EXACT),
        ),
        links=(f"{PLUGIN}/856",),
        explains=_SYMPTOMS,
        explains_all=("gpu.count",),
    ),
    Fault(
        id="gpu.sliced",
        component="NVIDIA device plugin",
        title="allocatable nvidia.com/gpu: 80 instead of 8",
        cause="The node advertises slices in place of cards: time slicing is on, or HAMi's own device plugin runs. "
        "KAI would take every slice for a whole GPU.",
        remedy=(
            "kubectl get daemonsets -A | grep -i -e hami -e device-plugin",
            "kubectl get configmaps -A | grep -i device-plugin",
            "Leave one plugin without sharing: kubectl apply -f manifests/device-plugin.yaml",
        ),
        signs=(
            seen("check", "slices, not cards", check="device_plugin.eight_whole_gpus", at=EXACT),
            said("nvidia.com/gpu.shared", at=NAMED),
            said("devicesplitcount", at=CLASS),
        ),
        explains_all=("gpu.count",),
    ),
    Fault(
        id="gpu.count",
        component="nvml-mock",
        title="allocatable nvidia.com/gpu is missing, 0, or another count",
        cause="The node does not advertise the profile's number of GPUs: {why}",
        remedy=(
            "kubectl get nodes -o custom-columns=NAME:.metadata.name,GPUS:.status.allocatable.nvidia\\.com/gpu",
            _PLUGIN_LOG,
            "helm get values nvml-mock -n default",
            "The lab pins gpu.profile=a100; the mock shows another card by default from 0.4 on",
        ),
        signs=(seen("check", pattern=r"(?P<why>.{1,250})", check="device_plugin.eight_whole_gpus", at=NAMED - 10),),
        links=(f"{MOCK}/issues/505", f"{MOCK}/pull/724"),
        explains_all=("lab.gpu-label", "lab.whole-pod", "pod.gpus-insufficient"),
    ),
    Fault(
        id="gpu.plugin-pod",
        component="NVIDIA device plugin",
        title="the device plugin's pod is not there or not Ready",
        cause="The device plugin does not run: {why} Its DaemonSet selects nodes with nvidia.com/gpu.present=true.",
        remedy=(
            "kubectl get pods -n kube-system -l name=nvidia-device-plugin-mock -o wide",
            "kubectl get nodes -L nvidia.com/gpu.present",
            _PLUGIN_LOG,
        ),
        signs=(seen("check", pattern=r"(?P<why>.{1,250})", check="device_plugin.plugin_pod_ready", at=NAMED - 15),),
        explains_all=("gpu.count", "workload.not-ready"),
    ),
    Fault(
        id="gpu.present-label",
        component="nvml-mock",
        title="nvidia.com/gpu.present is not true on the node",
        cause="The node is not marked as a GPU node, so the device plugin and the isolator's monitor run nowhere. "
        "The mock's set-up writes the label some seconds after its pod started (helm --wait does not cover it), "
        "and the mock from 0.4 on no longer writes it.",
        remedy=(
            "kubectl get nodes -L nvidia.com/gpu.present",
            "kubectl logs -l app.kubernetes.io/name=nvml-mock --tail=50",
            "kubectl label node {node} nvidia.com/gpu.present=true",
        ),
        signs=(seen("check", check="nvml_mock_release.gpu_present_label", at=NAMED - 5),),
        versions="nvml-mock 0.3.0 (late), 0.4.0-rc1 (not at all)",
        links=(f"{MOCK}/issues/505", f"{MOCK}/pull/534"),
        defaults={"node": "kai-hami-test-control-plane"},
        explains_all=("workload.none-wanted", "gpu.plugin-pod", "gpu.count", "kubectl.nothing-matched"),
    ),
    Fault(
        id="gpu.mock-pods",
        component="nvml-mock",
        title="nvml-mock's DaemonSet is not ready",
        cause="The mock does not run on the node: {why} helm 3 says deployed all the same, for one unready pod of "
        "one is within its limit.",
        remedy=(
            "kubectl get pods -l app.kubernetes.io/name=nvml-mock -o wide",
            "kubectl describe pods -l app.kubernetes.io/name=nvml-mock",
            "docker exec {node} crictl images | grep nvml-mock",
        ),
        signs=(seen("check", pattern=r"(?P<why>.{1,250})", check="nvml_mock_release.daemonset_ready", at=SYMPTOM),),
        links=(f"{MOCK}/issues/505",),
        explains_all=("workload.not-ready", "gpu.present-label"),
        elsewhere=(
            "kubectl describe pods -l app.kubernetes.io/name=nvml-mock",
            on_node("crictl images"),
            "Push the mock's image to a registry that the nodes can pull from (image.nvml_mock.name)",
        ),
    ),
    Fault(
        id="gpu.mock-setup",
        component="nvml-mock",
        title="FATAL in setup.sh of nvml-mock",
        cause="The mock's set-up script gave up: {why} Its image lacks something that the chart of this version calls.",
        remedy=(
            "kubectl logs -l app.kubernetes.io/name=nvml-mock --tail=50",
            "Build the image from the chart's own tag: v0.3.0 for chart 0.3.0",
        ),
        signs=(
            said("setup.sh", r"setup\.sh.{0,40}(?P<why>FATAL.{0,200})", EXACT),
            said("fatal: step", r"(?P<why>FATAL: step.{0,200})", NAMED),
        ),
        links=(f"{MOCK}/pull/724",),
        explains=_SYMPTOMS,
        defaults={"why": ""},
    ),
    Fault(
        id="gpu.mock-script-missing",
        component="nvml-mock",
        title='exec: "/scripts/entrypoint.sh": stat /scripts/entrypoint.sh: no such file or directory',
        cause="Chart and image of nvml-mock are of different versions: the image built from main has no {program} "
        "any more, and the chart 0.3.0 calls it.",
        remedy=(
            'Build the image from the chart\'s tag: git_ref = "v0.3.0" under [image.nvml_mock] in lab.toml',
            "kai-lab run --select nvml_mock_image+",
        ),
        signs=(said("/scripts/", r'exec: "(?P<program>/scripts/[\w./-]{1,100})": ', EXACT),),
        versions="chart 0.3.0 with an image of main after 0.3.0",
        links=(f"{MOCK}/pull/724",),
        explains=(*_SYMPTOMS, "pod.start-error"),
        defaults={"program": "/scripts/entrypoint.sh"},
    ),
    Fault(
        id="gpu.nvml-other",
        component="NVIDIA driver",
        title="Failed to initialize NVML: Unknown Error / driver/library version mismatch",
        cause="An NVIDIA library is there and does not work: {nvml_error} Driver and library are of different "
        "versions, or the container lost its devices.",
        remedy=("nvidia-smi", "Restart the pod; after a driver update restart the machine"),
        signs=(
            said(
                "failed to initialize nvml:",
                r"failed to initialize nvml: (?P<nvml_error>(?!error_library_not_found|could not load).{1,100})",
                NAMED,
            ),
            said("driver/library version mismatch", r"(?P<nvml_error>driver/library version mismatch)", NAMED),
        ),
        explains=_SYMPTOMS,
    ),
    Fault(
        id="gpu.plugin-registration",
        component="NVIDIA device plugin",
        title="could not register device plugin / kubelet.sock",
        cause="The device plugin runs and cannot register with the kubelet, so the node advertises no GPU.",
        remedy=("kubectl delete pod -n kube-system -l name=nvidia-device-plugin-mock", _PLUGIN_LOG),
        signs=(
            said("could not register device plugin", at=EXACT),
            said("kubelet.sock", r"dial unix .{0,120}kubelet\.sock", NAMED),
        ),
        explains_all=("gpu.count",),
    ),
)
