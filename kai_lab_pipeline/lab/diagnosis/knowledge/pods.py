"""States that pods, containers, nodes and workloads get stuck in. Kubernetes 1.31 to 1.36, containerd 1.6 and 2.x."""

from __future__ import annotations

from collections.abc import Mapping

from kai_lab_pipeline.lab.claims.gpus import MOCK_RELEASE, PLUGIN_LABEL
from kai_lab_pipeline.lab.claims.isolation import ISOLATOR
from kai_lab_pipeline.lab.claims.scheduler import COMPONENTS
from kai_lab_pipeline.lab.diagnosis.knowledge.commands import on_node
from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, GENERIC, NAMED, SYMPTOM, Fault, Nature, said, seen

_LOOK = ("kubectl describe pod -n {namespace} {pod}", "kubectl logs -n {namespace} {pod} --all-containers --previous")
_DEFAULTS = {"namespace": "default"}

_WEBHOOK = (f"{ISOLATOR}-webhook",)
_QUEUE_CONTROLLER = ("queue-controller",)
_PLUGIN = (PLUGIN_LABEL[1],)
NOT_RUNNING: Mapping[str, tuple[str, ...]] = {
    "gpu.mock-pods": (MOCK_RELEASE,),
    "gpu.plugin-pod": _PLUGIN,
    "isolator.not-announced": _WEBHOOK,
    "isolator.not-injected": _WEBHOOK,
    "isolator.pods": (),
    "kai.components-missing": ("kai-operator",),  # which makes the others
    "kai.queue-webhook-check": _QUEUE_CONTROLLER,
    "kai.queue-webhook-down": _QUEUE_CONTROLLER,
    "kai.scheduler-silent": COMPONENTS,
    "lab.whole-pod": ("kai-whole-gpu", *COMPONENTS, MOCK_RELEASE, *_PLUGIN),
    "workload.not-ready": (),
}
"""What is missed where a container of the lab does not run, whatever keeps it from it, and of which workload."""

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="pod.oom",
        component="kubelet",
        title="OOMKilled",
        cause="Container {container} used more memory than its limit, and the kernel ended it (exit code 137).",
        remedy=("kubectl describe pod -n {namespace} {pod}", "Raise resources.limits.memory of that container"),
        signs=(
            seen("container", reason="OOMKilled"),
            said("oomkilled", at=NAMED),
            said("exec: container oom", at=NAMED),
        ),
        explains=("pod.crash-loop", "pod.error-exit", "pod.unready"),
        defaults=_DEFAULTS,
    ),
    Fault(
        id="pod.probe-liveness",
        component="kubelet",
        title="Liveness probe failed",
        cause="The kubelet restarts the container because its liveness probe fails.",
        remedy=_LOOK,
        signs=(
            seen("event", "liveness probe failed", reason="Unhealthy", at=CLASS),
            said("liveness probe failed", at=CLASS),
        ),
        explains=("pod.crash-loop", "pod.error-exit", "net.*"),
        defaults=_DEFAULTS,
    ),
    Fault(
        id="pod.probe-readiness",
        component="kubelet",
        title="Readiness probe failed",
        cause="The container runs and says that it is not ready yet.",
        remedy=(
            "kubectl logs -n {namespace} {pod} --all-containers --tail=50",
            "kubectl describe pod -n {namespace} {pod}",
        ),
        signs=(
            seen("event", "readiness probe failed", reason="Unhealthy", at=CLASS),
            said("readiness probe failed", at=CLASS),
            said("startup probe failed", at=CLASS),
        ),
        transient=True,
        explains=("net.*",),
        defaults=_DEFAULTS,
    ),
    Fault(
        id="pod.crash-loop",
        component="kubelet",
        title="CrashLoopBackOff",
        cause="Container {container} ends soon after each start; why is in its own log.",
        remedy=(
            "kubectl logs -n {namespace} {pod} -c {container} --previous",
            "kubectl describe pod -n {namespace} {pod}",
        ),
        signs=(
            seen("container", reason="CrashLoopBackOff", at=SYMPTOM),
            seen(
                "event",
                "restarting failed container",
                r"container (?P<container>[\w-]{1,63}) in pod",
                SYMPTOM,
                reason="BackOff",
            ),
            said("crashloopbackoff", at=SYMPTOM),
            said(
                "back-off restarting failed container",
                r"container (?P<container>[\w-]{1,63}) in pod (?P<pod>[\w.-]{1,253})_(?P<namespace>[\w-]{1,63})\(",
                SYMPTOM,
            ),
            said("back-off restarting failed container", at=SYMPTOM),
            said(
                "restarting failed container=",
                r"container=(?P<container>[\w-]{1,63}) pod=(?P<pod>[\w.-]{1,253})_(?P<namespace>[\w-]{1,63})\(",
                SYMPTOM,
            ),
        ),
        explains=("pod.error-exit", "pod.unready"),
        explains_missing=NOT_RUNNING,
        defaults={**_DEFAULTS, "container": ""},
    ),
    Fault(
        id="pod.error-exit",
        component="kubelet",
        title="container terminated with Error",
        cause="Container {container} ended with an error; why is in its own log.",
        remedy=_LOOK,
        signs=(
            seen("container", state="terminated", reason="Error", at=SYMPTOM - 5),
            seen("pod", phase="Failed", at=SYMPTOM - 5),
        ),
        explains=("pod.unready",),
        defaults={**_DEFAULTS, "container": ""},
    ),
    Fault(
        id="pod.evicted",
        component="kubelet",
        title="Evicted",
        cause="The kubelet evicted the pod: {why}",
        remedy=("kubectl describe pod -n {namespace} {pod}", "df -h", "kubectl describe nodes | grep -A8 Conditions"),
        signs=(
            seen("pod", pattern=r"(?P<why>.{1,200})", reason="Evicted"),
            seen("event", pattern=r"(?P<why>.{1,200})", reason="Evicted"),
            said("evicted", r"\bEvicted\b\s.{0,60}?(?P<why>(?:Pod|The node|Container) .{1,200})?", CLASS),
            said("ephemeral local storage usage exceeds", r"(?P<why>.{0,100}exceeds.{0,100})", NAMED),
        ),
        defaults={**_DEFAULTS, "why": "the node was short of a resource"},
        explains=("pod.error-exit",),
    ),
    Fault(
        id="pod.devices-unavailable",
        component="kubelet",
        title="UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable",
        cause="The kubelet could not give the pod its devices: more {resource} were asked for than are free, or "
        "the device plugin restarted. A pod with nodeName set (a reservation pod) passes every scheduler and only "
        "fails here.",
        remedy=(
            "kubectl describe node | grep -A6 Allocated",
            "kubectl get pods -A -o wide",
            "kubectl delete pod -n {namespace} {pod}",
        ),
        signs=(
            said(
                "requested number of devices unavailable",
                r"devices unavailable for (?P<resource>[\w./-]{1,100})",
                EXACT,
            ),
            said("no healthy devices present", r"unhealthy devices (?P<resource>[\w./-]{1,100})", EXACT),
            seen("pod", reason="UnexpectedAdmissionError"),
            seen("event", reason="UnexpectedAdmissionError"),
            said("unexpectedadmissionerror", at=NAMED),
        ),
        defaults={**_DEFAULTS, "resource": "devices"},
        explains=("pod.error-exit",),
    ),
    Fault(
        id="pod.out-of-resource",
        component="kubelet",
        title="OutOfcpu / OutOfmemory / OutOfnvidia.com/gpu: Node didn't have enough resource",
        cause="The kubelet refused the pod: the node has not enough {resource}. The pod was put on the node "
        "without asking a scheduler.",
        remedy=("kubectl describe node | grep -A8 Allocated", "Ask for less, or remove nodeName from the pod"),
        signs=(
            said("didn't have enough resource:", r"enough resource: (?P<resource>[\w./-]{1,100})", EXACT),
            seen("pod", reason=("OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfnvidia.com/gpu")),
        ),
        explains=("pod.error-exit",),
    ),
    Fault(
        id="pod.config-missing",
        component="kubelet",
        title='CreateContainerConfigError: configmap "..." not found',
        cause="The container refers to {object_kind} {object} that is not there, or to a key that it does not have.",
        remedy=("kubectl get configmaps,secrets -n {namespace}", "kubectl describe pod -n {namespace} {pod}"),
        signs=(
            seen(
                "container",
                pattern=r'(?P<object_kind>configmap|secret) "(?P<object>[^"]{1,253})" not found',
                reason="CreateContainerConfigError",
            ),
            seen("container", reason="CreateContainerConfigError", at=CLASS),
            said("not found", r'error: (?P<object_kind>configmap|secret) "(?P<object>[^"]{1,253})" not found', NAMED),
            said("createcontainerconfigerror", at=CLASS),
            said("couldn't find key", r"find key (?P<object>\S{1,253}) in (?P<object_kind>ConfigMap|Secret)", NAMED),
        ),
        defaults={**_DEFAULTS, "object_kind": "a ConfigMap or Secret", "object": ""},
    ),
    Fault(
        id="pod.mount-waiting",
        component="kubelet",
        title="MountVolume.SetUp failed: failed to sync secret cache: timed out waiting for the condition",
        cause="The kubelet had not yet read the Secret or ConfigMap when the pod started; it tries again within a "
        "second.",
        remedy=("Nothing to do",),
        signs=(
            seen("event", "failed to sync", reason="FailedMount", at=NAMED + 5),
            said("mountvolume.setup failed", r"failed to sync (?:secret|configmap) cache", NAMED + 5),
        ),
        nature=Nature.HARMLESS,
        transient=True,
        explains=("kubectl.wait-timeout",),
    ),
    Fault(
        id="pod.mount",
        component="kubelet",
        title="FailedMount: MountVolume.SetUp failed for volume",
        cause="Volume {volume} cannot be mounted: {why}",
        remedy=("kubectl describe pod -n {namespace} {pod}", "kubectl get configmaps,secrets -n {namespace}"),
        signs=(
            seen("event", pattern=r'volume "(?P<volume>[^"]{1,253})" : (?P<why>.{1,200})', reason="FailedMount"),
            said("mountvolume.setup failed", r'volume "(?P<volume>[^"]{1,253})" : (?P<why>.{1,200})', NAMED),
            said("unable to attach or mount volumes", at=CLASS),
        ),
        defaults={**_DEFAULTS, "volume": "of the pod", "why": "see the evidence"},
    ),
    Fault(
        id="pod.gpus-insufficient",
        component="kube-scheduler",
        title="0/1 nodes are available: 1 Insufficient nvidia.com/gpu",
        cause="The default scheduler finds no node with that many free whole GPUs. Pods of this lab belong to "
        "kai-scheduler (spec.schedulerName).",
        remedy=(
            "kubectl get nodes -o custom-columns=NAME:.metadata.name,GPUS:.status.allocatable.nvidia\\.com/gpu",
            "kubectl describe node | grep -A8 Allocated",
            "kubectl get pod -n {namespace} {pod} -o jsonpath='{.spec.schedulerName}'",
        ),
        signs=(said("insufficient nvidia.com/gpu", at=EXACT),),
        explains=("pod.unschedulable",),
        defaults=_DEFAULTS,
    ),
    Fault(
        id="pod.node-starting",
        component="kube-scheduler",
        title="node(s) had untolerated taint {node.kubernetes.io/not-ready}",
        cause="The node is not Ready yet; the pod goes on as soon as it is.",
        remedy=("kubectl get nodes -w", "kubectl describe nodes | grep -A8 Conditions"),
        signs=(
            said("node.kubernetes.io/not-ready", r"(?:taint \{?|^Taints:\s{1,40})node\.kubernetes\.io", NAMED),
            said("node.kubernetes.io/unreachable", r"(?:taint \{?|^Taints:\s{1,40})node\.kubernetes\.io", NAMED),
        ),
        nature=Nature.HARMLESS,
        transient=True,
        explains=("pod.unschedulable",),
    ),
    Fault(
        id="pod.unschedulable",
        component="kube-scheduler",
        title="FailedScheduling: 0/1 nodes are available",
        cause="The default scheduler finds no node for the pod: {why}",
        remedy=("kubectl describe pod -n {namespace} {pod}", "kubectl describe nodes"),
        signs=(
            said("nodes are available:", r"\d+/\d+ nodes are available: (?P<why>.{1,200})", CLASS),
            seen("event", reason="FailedScheduling", at=CLASS - 5),
            seen("condition", type="PodScheduled", reason="Unschedulable", at=SYMPTOM),
        ),
        defaults={**_DEFAULTS, "why": "see the evidence"},
    ),
    Fault(
        id="pod.failed-create",
        component="kubernetes",
        title="FailedCreate: Error creating: pods ... is forbidden",
        cause="A controller may not make its pods: {why}",
        remedy=("kubectl get events -A --field-selector reason=FailedCreate",),
        signs=(
            seen("event", pattern=r"error creating: (?P<why>.{1,250})", reason="FailedCreate", at=CLASS),
            said("error creating: pods", r"(?P<why>pods .{1,250})", CLASS),
        ),
        defaults={"why": "see the evidence"},
    ),
    Fault(
        id="node.not-ready",
        component="kubernetes",
        title="Node is not ready / NetworkReady=false reason:NetworkPluginNotReady",
        cause="The node {node} is not Ready: {why}",
        remedy=(
            "kubectl describe node {node}",
            "kubectl get pods -n kube-system -o wide",
            "docker exec {node} journalctl -u kubelet --no-pager -n 50",
        ),
        signs=(
            seen("condition", pattern=r"(?P<why>.{1,250})", type="Ready", object_kind="Node", at=NAMED),
            said("networkpluginnotready", at=NAMED),
            said("container runtime network not ready", at=NAMED),
            said("kubelet stopped posting node status", at=NAMED),
            said("node is not ready", at=CLASS),
        ),
        transient=True,
        defaults={"node": "kai-hami-test-control-plane", "why": "see its conditions"},
        explains_all=("pod.node-starting", "pod.unschedulable", "pod.sandbox"),
        elsewhere=(
            "kubectl describe node {node}",
            "kubectl get pods -n kube-system -o wide",
            on_node("journalctl -u kubelet --no-pager -n 50"),
        ),
    ),
    Fault(
        id="workload.none-wanted",
        component="kubernetes",
        title="DaemonSet: desired number of nodes scheduled: 0",
        cause="The {workload} {name} wants no pod at all: no node carries the label it selects, or the taint of a "
        "control-plane is not tolerated.",
        remedy=(
            "kubectl get {workload} -n {namespace} {name} -o jsonpath='{.spec.template.spec.nodeSelector}'",
            "kubectl get nodes --show-labels",
            "kubectl label node {node} nvidia.com/gpu.present=true",
        ),
        signs=(
            seen("workload", state="none_wanted", object_kind="DaemonSet"),
            said("desired number of nodes scheduled: 0", at=NAMED),
        ),
        links=(
            "https://github.com/NVIDIA/k8s-test-infra/issues/505",
            "https://github.com/NVIDIA/k8s-test-infra/pull/534",
        ),
        defaults={**_DEFAULTS, "workload": "daemonset", "node": "kai-hami-test-control-plane"},
        explains_all=(
            "gpu.mock-pods",
            "gpu.plugin-pod",
            "isolator.pods",
        ),
    ),
    Fault(
        id="workload.scaled-down",
        component="kubernetes",
        title="a Deployment of KAI or the isolator has 0 replicas",
        cause="The {workload} {name} was scaled down to no pod at all, so nobody does its work.",
        remedy=(
            "kubectl scale -n {namespace} {workload} {name} --replicas=1",
            "kubectl get {workload} -n {namespace} {name} -o yaml --show-managed-fields",
        ),
        signs=(
            seen(
                "workload",
                state="none_wanted",
                object_kind=("Deployment", "StatefulSet"),
                namespace=("kai-scheduler", "kai-resource-isolator"),
            ),
        ),
        defaults=_DEFAULTS,
        explains_missing={
            name: NOT_RUNNING[name]
            for name in ("kai.components-missing", "isolator.pods", "isolator.not-injected", "kai.scheduler-silent")
        },
    ),
    Fault(
        id="workload.not-ready",
        component="kubernetes",
        title="Deployment does not have minimum availability",
        cause="The {workload} {name} has not all its pods ready.",
        remedy=("kubectl get pods -n {namespace} -o wide", "kubectl describe {workload} -n {namespace} {name}"),
        signs=(
            seen("workload", state="not_ready", at=GENERIC),
            said("minimumreplicasunavailable", at=GENERIC),
            said("deadline exceeded progressing", at=SYMPTOM),
            said("progressdeadlineexceeded", at=SYMPTOM),
            said("does not have minimum availability", at=GENERIC),
        ),
        transient=True,
        defaults={**_DEFAULTS, "workload": "deployment"},
    ),
    Fault(
        id="workload.job-failed",
        component="kubernetes",
        title="Job has reached the specified backoff limit (BackoffLimitExceeded)",
        cause="The Job {name} failed as often as it may; why is in the log of its pod.",
        remedy=("kubectl logs -n {namespace} job/{name}", "kubectl describe job -n {namespace} {name}"),
        signs=(
            seen("workload", state="failed", object_kind="Job", at=SYMPTOM + 10),
            said("backofflimitexceeded", at=CLASS),
            said("reached the specified backoff limit", at=CLASS),
        ),
        defaults=_DEFAULTS,
    ),
    Fault(
        id="pod.unready",
        component="kubelet",
        title="containers with unready status",
        cause="Pod {pod} is not ready; its containers tell why.",
        remedy=_LOOK,
        signs=(
            seen("condition", type=("Ready", "ContainersReady"), object_kind="Pod", at=GENERIC),
            said("containers with unready status", at=GENERIC),
        ),
        transient=True,
        defaults=_DEFAULTS,
    ),
)
