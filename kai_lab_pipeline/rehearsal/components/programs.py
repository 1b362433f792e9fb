"""What the processes inside the lab's containers do: log, work, wait, fail.

A program is picked by the container's image and command; one that is not known simply runs.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from kai_lab_pipeline.rehearsal import profiles
from kai_lab_pipeline.rehearsal.client import APPLY_PATCH, RESOURCES, ApiError, Object
from kai_lab_pipeline.rehearsal.components.node import GPU, Node, gpu_uuid
from kai_lab_pipeline.rehearsal.components.podlogs import ContainerLog
from kai_lab_pipeline.rehearsal.components.runtime import Sim

RESERVED_INDEX = "run.ai/reserve_for_gpu_index"
CONFIG_VARIABLE = "KAI_CONFIG"
_REGISTRATION_S = 3.0
_LABEL_S = 1.0
_JOB_S = 3.0


def random_hex(digits: int) -> str:
    return secrets.token_hex(digits // 2)


@dataclass
class Context:
    """One attempt of one container."""

    sim: Sim
    node: Node
    pod: Object
    container: Object
    log: ContainerLog
    devices: list[int]
    nvml: bool
    resumed: bool
    """The process was running when the rehearsal was restarted: it has logged its start already."""

    def say(self, *lines: str) -> None:
        if not self.resumed:
            self.log.write(*lines)

    @property
    def namespace(self) -> str:
        return str(self.pod["metadata"]["namespace"])

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    def env(self, name: str) -> str | None:
        for entry in self.container.get("env") or []:
            if entry["name"] == name:
                value: str | None = entry.get("value")
                return value
        return None


Program = Callable[[Context], Awaitable[int]]


async def _forever() -> int:
    await asyncio.Event().wait()
    return 0


def zap(level: str, text: str, logger: str = "", details: Object | None = None) -> str:
    """A line as the zap logger of KAI's services writes it."""
    parts = [stamp(), level, *([logger] if logger else []), text]
    if details is not None:
        parts.append(json.dumps(details))
    return "\t".join(parts)


def stamp() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def klog(level: str, place: str, text: str) -> str:
    """A line as klog writes it."""
    at = datetime.now(timezone.utc).strftime("%m%d %H:%M:%S.%f")
    return f"{level}{at}       1 {place}] {text}"


def golog(text: str) -> str:
    """A line as Go's standard logger writes it."""
    return f"{datetime.now(timezone.utc):%Y/%m/%d %H:%M:%S} {text}"


async def run(context: Context) -> int:
    """Runs the container's process; returns its exit code, or never."""
    if _crashes(context.sim, context.pod, context.container):
        context.say("panic: the rehearsal was told to crash this container")
        await context.sim.sleep(1)
        return 1
    return await _program_of(context.container)(context)


def _crashes(sim: Sim, pod: Object, container: Object) -> bool:
    names = (container["name"], (pod["metadata"].get("labels") or {}).get("app"))
    return sim.faults.on("crash_loop") and sim.faults.text("crash_loop", "binder") in names


def _program_of(container: Object) -> Program:
    command = [*(container.get("command") or []), *(container.get("args") or [])]
    if command[:1] == ["sleep"]:
        return _sleep
    image = profiles.repository(str(container["image"]))
    for ending, program in _PROGRAMS.items():
        if image.endswith(ending):
            return program
    return _unknown


async def _unknown(context: Context) -> int:
    return await _forever()


async def _sleep(context: Context) -> int:
    """Sleeps the seconds it was told, unscaled: a workload of an hour must not end while someone looks at it."""
    try:
        seconds = float(context.container["command"][1])
    except (IndexError, ValueError):
        return await _forever()
    await asyncio.sleep(seconds)
    return 0


async def _nvml_mock(context: Context) -> int:
    sim, node = context.sim, context.node
    count = int(context.env("GPU_COUNT") or sim.options.gpu_count)
    count = int(sim.faults.number("gpu_count", count)) if sim.faults.on("gpu_count") else count
    context.say(f"[setup] installing mock driver 550.163.01 with {count} GPUs below /host/var/lib/nvml-mock/driver")
    if not sim.faults.on("library_missing"):
        node.mock_files = {"count": count}
    labels: dict[str, str | None] = {"nvidia.com/gpu.present": "true"}
    if context.env("MOCK_NODE_LABEL") == "off" or sim.faults.on("mock_label_missing"):
        labels = {}
    if context.env("MOCK_PCI_LABEL") == "on":
        labels["feature.node.kubernetes.io/pci-10de.present"] = "true"
    if labels and not context.resumed:
        late = sim.faults.on("late_gpu_label")
        await sim.sleep(sim.faults.number("late_gpu_label", 20) if late else _LABEL_S)
        await node.label(labels, "kubectl-label")
        context.say(f"node/{node.name} labeled")
    context.say("[setup] mock GPU environment is ready")
    return await _forever()


async def _device_plugin(context: Context) -> int:
    sim, node = context.sim, context.node
    options = [str(arg) for arg in context.container.get("args") or []]
    context.say(*_plugin_start(options))
    library = node.mock_files
    if library is None and context.resumed:
        await sim.sleep(_REGISTRATION_S)
        library = node.mock_files
    if library is None:
        context.say(
            klog("E", "factory.go:113", "Failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND."),
            klog("E", "factory.go:114", "If this is a GPU node, did you set the docker default runtime to `nvidia`?"),
            klog(
                "E",
                "main.go:173",
                "error starting plugins: error getting plugins: failed to construct NVML resource managers: "
                "nvml init failed: ERROR_LIBRARY_NOT_FOUND",
            ),
        )
        return 1
    if sim.faults.on("plugin_not_registering"):
        return await _forever()
    context.say(
        klog("I", "server.go:197", f"Starting GRPC server for '{GPU}'"),
        klog("I", "server.go:141", f"Starting to serve '{GPU}' on /var/lib/kubelet/device-plugins/nvidia-gpu.sock"),
        klog("I", "server.go:148", f"Registered device plugin for '{GPU}' with Kubelet"),
    )
    count = int(library["count"])
    if sim.faults.on("time_slicing"):
        count *= int(sim.faults.number("time_slicing", 10))
    if not context.resumed:
        await sim.sleep(_REGISTRATION_S)
    if node.devices.capacity != count:
        await node.advertise(count)
    return await _forever()


def _plugin_start(options: list[str]) -> list[str]:
    flags = dict(option.removeprefix("--").split("=", 1) for option in options if "=" in option)
    root = flags.get("nvidia-driver-root", "/")
    config = {
        "version": "v1",
        "flags": {
            "migStrategy": "none",
            "failOnInitError": True,
            "nvidiaDriverRoot": root,
            "deviceDiscoveryStrategy": flags.get("device-discovery-strategy", "auto"),
            "plugin": {
                "passDeviceSpecs": flags.get("pass-device-specs") == "true",
                "deviceListStrategy": ["envvar"],
                "deviceIDStrategy": "uuid",
                "containerDriverRoot": flags.get("driver-root-ctr-path", "/driver-root"),
            },
        },
        "resources": {"gpus": [{"pattern": "*", "name": GPU}]},
        "sharing": {"timeSlicing": {}},
        "imex": {},
    }
    return [
        klog("I", "main.go:247", '"Starting NVIDIA Device Plugin" version="v0.18.2"'),
        klog("I", "main.go:329", "Loading configuration."),
        klog("I", "main.go:366", "\nRunning with config:\n" + json.dumps(config, indent=2)),
        klog("I", "main.go:369", "Retrieving plugins."),
    ]


async def _reservation(context: Context) -> int:
    """KAI's resource-reservation (v0.17.0, cmd/resourcereservation): finds its card and writes it on its own pod."""
    faults = context.sim.faults
    where = {"namespace": context.namespace, "name": context.name}
    context.say(zap("INFO", "Looking for GPU device id for pod", details=where))
    problem = None
    if faults.on("reservation_other_error"):
        problem = f"unable to initialize NVML: {faults.text('reservation_other_error', 'ERROR_UNKNOWN')}"
    elif not context.nvml:
        problem = "unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND"
    elif faults.on("reservation_many_devices") or len(context.devices) != 1:
        problem = f"found {context.node.devices.capacity} devices, 1 was expected"
    if problem is not None:
        context.log.write_part(f"Error while running the app: {problem}")
        return 1
    device = gpu_uuid(context.devices[0])
    context.say(zap("INFO", "Found 1 GPU devices"), zap("INFO", "Found GPU device", details={"deviceId": device}))
    await context.sim.sleep(0.2)
    await context.sim.api.acting_as("resource-reservation").patch(
        RESOURCES["pods"], context.namespace, context.name, {"metadata": {"annotations": {RESERVED_INDEX: device}}}
    )
    context.say(zap("INFO", "Pod was updated with GPU device UUID"))
    context.say(zap("INFO", "Starting metrics server", "controller-runtime.metrics"))
    return await _forever()


async def _hook(context: Context) -> int:
    """The jobs of KAI's chart; the last of them writes the Config that its chart rendered."""
    failing = context.sim.faults.on("helm_failed_hook")
    await context.sim.sleep(_JOB_S)
    config = context.env(CONFIG_VARIABLE)
    if config is None:
        return 0
    if failing:
        context.say("Error from server: the rehearsal was told that this hook fails")
        return 1
    manifest = json.loads(config)
    wrong = profiles.wrong_config_type(manifest)
    if wrong is not None:
        context.say(
            "Error from server: failed to create typed patch object (/kai-config; kai.scheduler/v1, Kind=Config): "
            + wrong
        )
        return 1
    try:
        answer = await context.sim.api.acting_as("kai-config-deployer").patch(
            RESOURCES["configs"], None, manifest["metadata"]["name"], manifest, content_type=APPLY_PATCH, force=True
        )
    except ApiError as error:
        context.say(f"Error from server: {error}")
        return 1
    context.sim.informers.learn(answer)
    context.say("config.kai.scheduler/kai-config serverside-applied")
    return 0


async def _certgen(context: Context) -> int:
    await context.sim.sleep(_JOB_S)
    return 0


async def _isolator(context: Context) -> int:
    mount = context.env("CONTAINER_VGPU_MOUNT") or "/usr/local/vgpu"
    part = context.container["name"]
    if part == "libsync":
        context.say("HAMi lib sync installed under /host-root/usr/local/vgpu")
    elif part == "monitor":
        text = "Neither --kubeconfig nor --master was specified.  Using the inClusterConfig.  This might not work."
        context.say(
            klog("W", "client_config.go:682", text),
            klog("I", "main.go:87", "Pod informer started successfully"),
            klog("I", "main.go:103", "kai-vgpu-monitor listening on :9394"),
        )
    else:
        keys = isolator_keys(context.sim)
        context.say(golog(f"webhook starting listen=:8443 containerVgpuMount={mount} annotationKeys={'|'.join(keys)}"))
    return await _forever()


def isolator_keys(sim: Sim) -> tuple[str, ...]:
    """Annotations that the isolator's webhook looks for."""
    if sim.faults.on("isolator_wrong_keys"):
        return tuple(sim.faults.text("isolator_wrong_keys", "hami.io/gpu-memory").split("|"))
    return ("gpu-fraction", "gpu-memory")


async def _kai_service(context: Context) -> int:
    name = str(context.container["name"])
    args = [str(arg) for arg in context.container.get("args") or []]
    if name == "operator" and profiles.kai_of_image(str(context.container["image"])).dead_on_arrival:
        return await _dead_operator(context)
    if name == "admission":
        plugins = ["gpusharing"]
        plugins += ["hamicore"] if "--hami-core-enabled=true" in args else []
        for plugin in (*plugins, "runtimeenforcement"):
            context.say(zap("INFO", "registering plugin", details={"plugin": plugin}))
        for kind, path in (("mutating", "/mutate--v1-pod"), ("validating", "/validate--v1-pod")):
            text = f"Registering a {kind} webhook"
            context.say(zap("INFO", text, "controller-runtime.builder", {"GVK": "/v1, Kind=Pod", "path": path}))
    elif name == "queue-controller":
        details = {"GVK": "scheduling.run.ai/v2, Kind=Queue", "path": "/validate-scheduling-run-ai-v2-queue"}
        context.say(zap("INFO", "Registering a validating webhook", "controller-runtime.builder", details))
    context.say(zap("INFO", "starting manager", "setup"))
    context.say(zap("INFO", "Starting metrics server", "controller-runtime.metrics"))
    return await _forever()


async def _dead_operator(context: Context) -> int:
    """KAI v0.20.1 waits for a ClusterPolicy CRD that only the GPU operator brings, and gives up after two minutes."""
    details = {
        "kind": "ClusterPolicy.nvidia.com",
        "error": 'no matches for kind "ClusterPolicy" in version "nvidia.com/v1"',
    }
    text = "if kind is a CRD, it should be installed before calling Start"
    # An attempt logs once at the pace of the rehearsal, then in real time: it goes on as long as the lab stands.
    for attempt in range(12):
        context.log.write(zap("ERROR", text, "controller-runtime.source.Kind", details))
        await asyncio.sleep(max(context.sim.seconds(10), 5.0 if attempt else 0.0))
    context.log.write(zap("ERROR", "problem running manager", "setup", {"error": "timed out waiting for cache sync"}))
    return 1


_PROGRAMS: dict[str, Program] = {
    "/nvml-mock": _nvml_mock,
    "/k8s-device-plugin": _device_plugin,
    "/resourcereservation": _reservation,
    "/crd-upgrader": _hook,
    "/kube-webhook-certgen": _certgen,
    "/kai-resource-isolator": _isolator,
    "/operator": _kai_service,
    "/admission": _kai_service,
    "/binder": _kai_service,
    "/podgrouper": _kai_service,
    "/podgroupcontroller": _kai_service,
    "/queuecontroller": _kai_service,
    "/scheduler": _kai_service,
}


def becomes_ready(sim: Sim, pod: Object, container: Object) -> bool:
    """Whether the container will be ready: its readiness probe succeeds, and it lives to see that.

    What crashes before it serves is at no moment ready, so that what is seen of it does not depend on the moment.
    """
    if _crashes(sim, pod, container):
        return False
    if container["name"] == "admission" and sim.faults.on("admission_never_ready"):
        return False
    return not (container["name"] == "webhook" and sim.faults.on("isolator_webhook_down"))


def ignores_term(container: Object) -> bool:
    """A shell's sleep as process 1 has no handler for TERM: the kernel drops the signal."""
    return bool((container.get("command") or [""])[0] == "sleep")


async def stopped(sim: Sim, node: Node, pod: Object, container: Object) -> None:
    """What is left behind when a container is stopped."""
    program = _program_of(container)
    if program is _device_plugin and node.devices.capacity:
        await node.advertise(0)
    elif program is _nvml_mock:
        node.mock_files = None
