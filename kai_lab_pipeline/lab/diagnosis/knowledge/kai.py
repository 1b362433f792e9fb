"""KAI Scheduler: queues, scheduling, operator and versions. v0.16.8, v0.17.0 and v0.20.1 as measured; newer as read."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.knowledge.commands import HELM_LIST, KAI_UPGRADE
from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, GENERIC, NAMED, SYMPTOM, Fault, Nature, said, seen

KAI = "https://github.com/kai-scheduler/KAI-Scheduler"
_VERSION_HERE = {"kai_version": "v0.17.0"}
_KAI_AGAIN = KAI_UPGRADE.replace(_VERSION_HERE["kai_version"], "{kai_version}")
"""The same version again with its values: a remedy for a value must not change the version as well."""
_TWO_VALUES = r"kai_scheduler (?P<kai_version>v0\.1[67]\.\d[\w+.-]{0,60})"
_ONE_MODE = r"kai_scheduler (?P<kai_version>v?(?:0\.(?:1[89]|2[1-9]|[3-9]\d)|[1-9]\d{0,3})\.\d[\w+.-]{0,60})"
"""v0.18 and newer; not v0.20.x, which is older than v0.17 in spite of its number."""

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="kai.pod-grouper-race",
        component="KAI pod-grouper",
        title='PodGrouperWarning: Pod "..." not found',
        cause="KAI's pod-grouper was faster than its own cache. It tries again and succeeds; many healthy pods "
        "carry this warning.",
        remedy=("Nothing to do while the pod has an annotation pod-group-name",),
        signs=(
            seen("event", reason="PodGrouperWarning", at=CLASS),
            said("podgrouperwarning", at=CLASS),
        ),
        versions="KAI v0.16 and v0.17",
        nature=Nature.HARMLESS,
        transient=True,
        links=(f"{KAI}/issues/621",),
    ),
    Fault(
        id="kai.service-account-race",
        component="KAI operator",
        title='error looking up service account kai-scheduler/scheduler: serviceaccount "scheduler" not found',
        cause="The operator made the scheduler's Deployment a moment before its ServiceAccount. It heals within "
        "seconds; when it stays, the operator stands still (see its log).",
        remedy=(
            "kubectl get serviceaccounts -n kai-scheduler",
            "kubectl logs -n kai-scheduler deploy/kai-operator --tail=50",
        ),
        signs=(said("error looking up service account kai-scheduler/", at=CLASS + 5),),
        transient=True,
        explains=("pod.failed-create",),
    ),
    Fault(
        id="kai.cluster-policy-missing",
        component="KAI operator",
        title='no matches for kind "ClusterPolicy" in version "nvidia.com/v1"',
        cause="KAI's operator waits for the GPU operator's CRD ClusterPolicy and never starts without it, so only "
        "kai-operator runs: that is v0.20.x, an old withdrawn version whose number looks newest.",
        remedy=(
            "helm list -n kai-scheduler",
            KAI_UPGRADE,
        ),
        signs=(
            said("clusterpolicy", r'no matches for kind \\?"ClusterPolicy\\?"', EXACT),
            said("clusterpolicy.nvidia.com", at=EXACT),
            seen("check", "kai_scheduler v0.20.", check="kai_release.seven_components_running", at=EXACT),
        ),
        versions="KAI v0.20.x (November 2025, withdrawn)",
        explains=("kubernetes.kind-unknown", "kai.crd-cache"),
        explains_all=(
            "kai.components-missing",
            "kai.service-account-race",
            "kai.scheduler-absent",
            "kai.scheduler-silent",
            "kai.queue-webhook-check",
            "kai.pods-refused",
            "kai.sharing-off",
            "kai.hamicore-off",
            "lab.*",
            "workload.not-ready",
        ),
    ),
    Fault(
        id="kai.components-missing",
        component="KAI operator",
        title="only kai-operator runs: 1 of 7 deployments",
        cause="KAI's components are not all there: {why} A helm install that ends well, and 'kubectl wait deploy "
        "--all', prove only kai-operator.",
        remedy=(
            "kubectl get deployments -n kai-scheduler",
            "kubectl get configs.kai.scheduler kai-config -o yaml",
            "kubectl logs -n kai-scheduler deploy/kai-operator --tail=50",
            "kubectl logs -n kai-scheduler job/kai-config-deployer",
        ),
        signs=(seen("check", pattern=r"(?P<why>.{1,250})", check="kai_release.seven_components_running"),),
        links=(f"{KAI}/issues/1042", f"{KAI}/issues/104"),
        explains_all=(
            "workload.not-ready",
            "kai.service-account-race",
            "kai.scheduler-silent",
            "kai.queue-webhook-check",
            "kai.pods-refused",
            "kai.sharing-off",
            "kai.hamicore-off",
            "kai.sharing-mode",
            "lab.whole-pod",
        ),
    ),
    Fault(
        id="kai.scheduler-absent",
        component="KAI Scheduler",
        title='deployments.apps "kai-scheduler-default" not found / error: timed out waiting for the condition (logs)',
        cause="There is no KAI scheduler on this cluster (yet): the operator makes it after the chart's last hook.",
        remedy=(
            "kubectl get deployments -n kai-scheduler",
            "kubectl logs -n kai-scheduler deploy/kai-operator --tail=50",
        ),
        signs=(said("kai-scheduler-default", r'"kai-scheduler-default"\S* not found', EXACT),),
        transient=True,
    ),
    Fault(
        id="kai.scheduler-silent",
        component="KAI Scheduler",
        title="KAI did not bind the CPU-only canary pod",
        cause="KAI's scheduler runs and does not schedule: a pod that asks for no GPU was not bound. {why}",
        remedy=(
            "kubectl logs -n kai-scheduler deploy/kai-scheduler-default --since=1m",
            "kubectl rollout restart -n kai-scheduler deploy/kai-scheduler-default deploy/binder",
        ),
        signs=(seen("check", pattern=r"(?P<why>.{1,250})", check="kai_release.scheduler_alive", at=NAMED - 5),),
        explains_all=("lab.whole-pod", "kai.fraction"),
    ),
    Fault(
        id="kai.sharing-off",
        component="KAI Scheduler",
        title="attempting to create a pod with gpu sharing request, while GPU sharing is disabled",
        cause="KAI runs with GPU sharing off. The chart value global.gpuSharing was not set, is misspelt (helm "
        "takes unknown keys without a word), or was dropped by an upgrade with --reset-values.",
        remedy=(
            "helm get values kai-scheduler -n kai-scheduler",
            _KAI_AGAIN,
            "From v0.18 on, in place of both values: --set global.gpuSharingMode=HamiCore",
        ),
        signs=(
            said("while gpu sharing is disabled", at=EXACT),
            seen("check", check="kai_release.sharing_enabled", at=EXACT),
            seen("check", pattern=_TWO_VALUES, check="kai_release.sharing_enabled", at=EXACT),
        ),
        versions="KAI v0.16 and v0.17; default on from v0.18",
        links=(
            f"{KAI}/issues/1912",
            f"{KAI}/pull/2052",
            f"{KAI}/issues/1124",
            "https://github.com/Project-HAMi/website/pull/612",
        ),
        explains_all=("lab.shared-pod-absent", "webhook.denied", "lab.shared-pod"),
        defaults=_VERSION_HERE,
    ),
    Fault(
        id="kai.sharing-mode",
        component="KAI Scheduler",
        title="no CUDA_DEVICE_MEMORY_LIMIT with a newer KAI: global.gpuSharingMode is not HamiCore",
        cause="KAI {kai_version} shares GPUs as its chart value global.gpuSharingMode says, and that is not HamiCore. "
        "From v0.18 on it takes the place of global.gpuSharing and binder.plugins.hamicore.enabled, which helm takes "
        "without a word from a chart that no longer knows them. Without a mode GPUs are shared and nobody writes "
        "CUDA_DEVICE_MEMORY_LIMIT; with Disabled shared pods are refused.",
        remedy=(
            "helm get values kai-scheduler -n kai-scheduler",
            f"{_KAI_AGAIN.partition(' --set')[0]} --set global.gpuSharingMode=HamiCore",
            "In lab.toml: charts.kai_scheduler.values with global.gpuSharingMode in place of the two older values",
        ),
        signs=(
            seen(
                "check",
                pattern=_ONE_MODE,
                check=("kai_release.hamicore_enabled", "kai_release.sharing_enabled"),
                at=EXACT + 1,
            ),
        ),
        versions="KAI v0.18 and newer (not v0.20.x)",
        links=(f"{KAI}/issues/1912", f"{KAI}/pull/2052"),
        explains_all=(
            "kai.sharing-off",
            "lab.injection",
            "lab.memory-limit",
            "lab.shared-pod",
            "lab.shared-pod-absent",
            "webhook.denied",
        ),
    ),
    Fault(
        id="kai.hamicore-off",
        component="KAI Scheduler",
        title="no CUDA_DEVICE_MEMORY_LIMIT: binder runs without its hamicore plugin",
        cause="KAI runs without the hamicore plugin, so nobody writes CUDA_DEVICE_MEMORY_LIMIT: the value "
        "binder.plugins.hamicore.enabled is not set, is misspelt, or this KAI (before v0.16, and v0.20.x) does not "
        "know it. helm takes unknown keys without a word.",
        remedy=(
            "kubectl get deploy -n kai-scheduler binder -o yaml | grep -A1 plugins",
            _KAI_AGAIN,
            "From v0.18 on, in place of both values: --set global.gpuSharingMode=HamiCore",
        ),
        signs=(
            seen("check", check="kai_release.hamicore_enabled", at=EXACT),
            seen("check", pattern=_TWO_VALUES, check="kai_release.hamicore_enabled", at=EXACT),
            said("scheduler.gpusharing.hamicoreenabled", at=NAMED),
        ),
        versions="KAI v0.16 and newer have the plugin, off by default",
        links=(f"{KAI}/issues/1912", "https://github.com/Project-HAMi/website/pull/612"),
        explains_all=("lab.memory-limit", "lab.injection"),
        defaults=_VERSION_HERE,
    ),
    Fault(
        id="kai.crd-cache",
        component="KAI Scheduler",
        title="if kind is a CRD, it should be installed before calling Start",
        cause="A KAI component waits for a CRD that is not installed: helm never upgrades CRDs, and an older set "
        "is still there.",
        remedy=(
            "kubectl get crds | grep -e kai.scheduler -e run.ai",
            "helm show crds CHART --version VERSION | kubectl apply --server-side -f -",
        ),
        signs=(said("it should be installed before calling start", at=CLASS),),
        links=(f"{KAI}/issues/1124",),
    ),
    Fault(
        id="kai.log-drift",
        component="KAI Scheduler",
        title="Resource division result without allocated: usage in place of it",
        cause="The scheduler's division line has other keys than v0.16 and v0.17 write. This is drift of the log's "
        "format and says nothing about scheduling.",
        remedy=("helm list -n kai-scheduler", "v0.20.x is older than v0.17 in spite of its number: do not take it"),
        signs=(
            said(
                "resource division result for queue",
                r"GPU: deserved: <[^>]*>, requested: <[^>]*>, maxAllowed: <[^>]*>, usage:",
                EXACT,
            ),
            seen("check", "drift of the log's format", check="shared_gpu_pod.fraction_accounted", at=EXACT),
        ),
        versions="KAI v0.20.x",
    ),
    Fault(
        id="kai.fraction",
        component="KAI Scheduler",
        title="requested, allocated and fairShare of the queue are not the sum over its pods",
        cause="KAI accounts another GPU fraction than the label and the annotation give: {why}",
        remedy=(
            "kubectl logs -n kai-scheduler deploy/kai-scheduler-default --since=1m | grep 'Resource division'",
            "kubectl get nodes -L nvidia.com/gpu.memory",
        ),
        signs=(seen("check", pattern=r"(?P<why>.{1,250})", check="shared_gpu_pod.fraction_accounted", at=CLASS),),
        explains_all=(),
    ),
    Fault(
        id="lab.chart-version",
        component="helm",
        title="helm says another status or chart version than the lab's",
        cause="A release is not as the lab pins it: {why}",
        remedy=(*HELM_LIST, "kai-lab versions", "kai-lab run"),
        signs=(
            seen(
                "check",
                pattern=r"(?P<why>.{1,250})",
                check=(
                    "nvml_mock_release.release_deployed",
                    "kai_release.release_deployed",
                    "isolator_release.release_deployed",
                ),
                at=SYMPTOM + 5,
            ),
        ),
    ),
    Fault(
        id="lab.whole-pod",
        component="lab",
        title="the whole-GPU pod does not run",
        cause="KAI's basic scheduling is not shown: {why}",
        remedy=("kubectl describe pod kai-whole-gpu", "kai-lab run --select whole_gpu_pod"),
        signs=(
            seen("check", pattern=r"(?P<why>.{1,250})", check=("whole_gpu_pod.whole_gpu_running",), at=SYMPTOM - 5),
        ),
    ),
    Fault(
        id="lab.nodes",
        component="lab",
        title="the cluster's nodes are not the lab's, or not Ready",
        cause="The nodes are not as the lab needs them: {why}",
        remedy=("kubectl get nodes -o wide", "kubectl describe nodes", "kai-lab run --select cluster"),
        signs=(seen("check", pattern=r"(?P<why>.{1,250})", check="cluster.node_ready", at=GENERIC),),
    ),
    Fault(
        id="lab.kubernetes-version",
        component="lab",
        title="Kubernetes is older than 1.31",
        cause="This Kubernetes was not tested with the lab's charts: {why}",
        remedy=("kubectl version", "Name a newer node image: kind.node_image in lab.toml (KAI_LAB_NODE_IMAGE)"),
        signs=(seen("check", pattern=r"(?P<why>.{1,250})", check="cluster.kubernetes_version_supported", at=CLASS),),
        elsewhere=(
            "kubectl version",
            "Take a cluster with another Kubernetes",
        ),
    ),
    Fault(
        id="lab.shared-pod-absent",
        component="lab",
        title="the lab's shared pod is not there",
        cause="The lab's shared pod does not exist on the cluster: it was refused, deleted, or applied elsewhere.",
        remedy=("kubectl get pods -A", "kubectl apply -f manifests/shared-gpu-pod.yaml"),
        signs=(seen("check", "there is no pod", r"There is no pod \S{1,63}gpu-sharing-with-isolation", NAMED + 1),),
        explains_all=(
            "kai.gpu-memory-does-not-fit",
            "kai.pods-refused",
            "lab.memory-limit",
            "lab.injection",
            "kai.fraction",
        ),
    ),
    Fault(
        id="lab.whole-pod-shared",
        component="lab",
        title="the whole-GPU pod carries a sharing label or vgpu mounts",
        cause="A pod that asks for a whole card was treated as a shared one: {why}",
        remedy=(
            "kubectl get pod kai-whole-gpu -o yaml",
            "kubectl delete pod kai-whole-gpu",
            "kai-lab run --select whole_gpu_pod",
        ),
        signs=(seen("check", pattern=r"(?P<why>.{1,250})", check="whole_gpu_pod.no_sharing_injected", at=CLASS),),
    ),
)
