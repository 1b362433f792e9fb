"""Scenarios of the cluster, the registries, nvml-mock and the device plugin."""

from __future__ import annotations

from kai_lab_pipeline.lab.scenarios.model import Scenario

_EIGHT = "device_plugin.eight_whole_gpus"
_PRESENT = "nvml_mock_release.gpu_present_label"

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "node-not-ready",
        "The node never becomes Ready",
        "A node whose network plugin does not come up, as on a kind node image without its CNI or a machine out of "
        "inotify watches (kubelet, containerd).",
        "`kubectl get nodes` stays at NotReady; `kubectl describe node` says `cni plugin not initialized`.",
        "Readiness of the node is the first gate: nothing can run on a node that is not Ready, so nothing is tried.",
        "node.not-ready",
        red=("cluster.node_ready",),
        faults={"node_not_ready": True},
    ),
    Scenario(
        "registry-login-missing",
        "A registry wants a login",
        "A private registry or mirror without credentials on this machine (helm, docker, containerd).",
        "`helm install` ends with `basic credential not found`.",
        "The chart never came, so nothing is known of it: the step fails, and its checks are not evaluated instead "
        "of broken.",
        "registry.unauthorized",
        stops="nvml_mock_release",
        faults={"registry_unauthorized": True},
    ),
    Scenario(
        "registry-rate-limit",
        "A registry answers 429 Too Many Requests",
        "Docker Hub's limit for pulls without a login, met soonest on shared networks and CI.",
        "`helm install` ends with `toomanyrequests: You have reached your unauthenticated pull rate limit`.",
        "As with any registry trouble the step fails and its checks are not evaluated: a retry later may be all it "
        "needs.",
        "registry.rate-limit",
        stops="nvml_mock_release",
        faults={"registry_rate_limited": True},
    ),
    Scenario(
        "mock-image-not-on-the-node",
        "The nvml-mock image has another name than the one loaded",
        "`kind load docker-image` loads one name and the chart asks for another; no registry has a local build "
        "(kubelet, nvml-mock 0.3.0).",
        "`helm install --wait` returns well all the same; the pod stands in ImagePullBackOff.",
        "The DaemonSet has no ready pod, and only its pod would write the node's label.",
        "pod.image-not-found",
        red=("nvml_mock_release.daemonset_ready", _PRESENT),
        settings={("charts", "nvml_mock", "values", "image.repository"): "localhost:5001/nvml-mock"},
    ),
    Scenario(
        "mock-crash-loop",
        "nvml-mock crash-loops after helm said that all is well",
        "Seen with an image that lacked nv-fabricmanager: `helm install --wait` on this DaemonSet proves nothing "
        "(nvml-mock 0.3.0).",
        "`kubectl get pods` shows CrashLoopBackOff while `helm list` says deployed.",
        "The pod never becomes ready and never comes to labelling the node.",
        "pod.crash-loop",
        red=("nvml_mock_release.daemonset_ready", _PRESENT),
        faults={"crash_loop": "nvml-mock"},
    ),
    Scenario(
        "gpu-present-label-missing",
        "The mock runs and the node has no nvidia.com/gpu.present",
        "A mock without the right to patch nodes, or one that leaves labels to another component (nvml-mock).",
        "`kubectl get nodes -L nvidia.com/gpu.present` prints an empty column; the device plugin's DaemonSet wants 0 "
        "pods.",
        "The label is a gate: the device plugin selects nodes by it, and 0 of 0 pods would look like success.",
        "gpu.present-label",
        red=(_PRESENT,),
        faults={"mock_label_missing": True},
    ),
    Scenario(
        "gpu-present-label-late",
        "The node is labelled long after helm returned",
        "The label is written by the pod's set-up script, and the chart has no readiness probe: after `--wait` it may "
        "not be there yet (nvml-mock 0.3.0). Here it takes an hour.",
        "The column of `kubectl get nodes -L nvidia.com/gpu.present` is empty, and fills in later.",
        "The lab waits for its deadline and says what was missing then; made again later, the same step succeeds.",
        "gpu.present-label",
        red=(_PRESENT,),
        faults={"late_gpu_label": 3600},
    ),
    Scenario(
        "mock-without-labels",
        "nvml-mock 0.4 leaves the label to others",
        "An upgrade of nvml-mock to 0.4.0, which no longer labels the node itself.",
        "All pods of the mock run, and `kubectl get nodes -L nvidia.com/gpu.present` stays empty.",
        "What 0.3.0 wrote nobody writes now; everything that selects nodes by the label waits.",
        "gpu.present-label",
        red=(_PRESENT,),
        settings={("charts", "nvml_mock", "version"): "0.4.0"},
    ),
    Scenario(
        "nvml-library-missing-on-the-node",
        "The device plugin finds no NVML on the node",
        "The mock's library was not put where the plugin looks (nvml-mock, device plugin v0.18.2).",
        "The plugin's pod crash-loops; its log says `nvml init failed: ERROR_LIBRARY_NOT_FOUND`.",
        "A plugin that cannot load NVML ends before it registers, so no card is advertised.",
        "gpu.plugin-nvml-missing",
        red=("device_plugin.plugin_pod_ready", _EIGHT),
        faults={"library_missing": True},
    ),
    Scenario(
        "plugin-not-registered",
        "The device plugin is Ready and no GPU is advertised",
        "Readiness comes before registration: a plugin that cannot reach the kubelet's socket stays Ready "
        "(device plugin v0.18.2).",
        "`kubectl get node -o jsonpath='{.status.allocatable}'` has no nvidia.com/gpu, or 0.",
        "The pod's own check passes, and the node's allocatable says that it is worth nothing.",
        "gpu.count",
        red=(_EIGHT,),
        faults={"plugin_not_registering": True},
    ),
    Scenario(
        "time-slicing",
        "80 GPUs in place of 8",
        "Time slicing in the device plugin's configuration, or HAMi's own plugin beside it: slices look like cards.",
        "allocatable nvidia.com/gpu is 80.",
        "KAI would hand out slices as whole cards, so the count is a gate.",
        "gpu.sliced",
        red=(_EIGHT,),
        faults={"time_slicing": 10},
    ),
    Scenario(
        "four-gpus",
        "The mock shows four cards in place of eight",
        "Another profile's count, or a value gpu.count left over from a test (nvml-mock).",
        "allocatable nvidia.com/gpu is 4.",
        "The count is compared with the profile of lab.toml: a lab with other cards proves other things.",
        "gpu.count",
        red=(_EIGHT,),
        faults={"gpu_count": 4},
    ),
)
