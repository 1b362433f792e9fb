"""KAI Scheduler: queues, scheduling, operator and versions. v0.16.8, v0.17.0 and v0.20.1 as measured; newer as read."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, NAMED, SYMPTOM, Fault, Nature, said, seen

KAI = "https://github.com/kai-scheduler/KAI-Scheduler"
_POD = {"namespace": "default", "pod": "POD", "node": "kai-hami-test-control-plane"}

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="kai.gpu-memory-does-not-fit",
        component="KAI Scheduler",
        title="node(s) didn't have enough resources: GPU memory",
        cause="No card has the GPU memory that the pod asks for. Either the node has no nvidia.com/gpu.memory that "
        "KAI can read (it then assumes 100 MiB), or "
        "the request is larger than the label floored to a multiple of 100 MiB: on a card labelled 40960 a pod gets "
        "40900 at most.",
        remedy=(
            "kubectl get nodes -L nvidia.com/gpu.memory",
            "kubectl label --overwrite node {node} nvidia.com/gpu.memory=40960",
            "kubectl get pod -n {namespace} {pod} -o jsonpath='{.metadata.annotations.gpu-memory}'",
            "No restart is needed: KAI reads the label anew every second",
        ),
        signs=(said("enough resources: gpu memory", at=EXACT),),
        versions="KAI v0.16 and v0.17",
        links=(f"{KAI}/issues/706", f"{KAI}/issues/256", f"{KAI}/issues/257"),
        explains=("kai.gpus-do-not-fit", "kai.unschedulable", "pod.unschedulable"),
        defaults=_POD,
    ),
    Fault(
        id="kai.gpu-memory-not-synced",
        component="KAI Scheduler",
        title="not a gpu node or the gpu memory count on the node was not synced yet",
        cause="KAI finds no readable nvidia.com/gpu.memory on node {node}: the label is missing, has a unit "
        "(40960Mi), or is no number.",
        remedy=(
            "kubectl get nodes -L nvidia.com/gpu.memory",
            "kubectl label --overwrite node {node} nvidia.com/gpu.memory=40960",
        ),
        signs=(
            said("gpu memory count on the node was not synced", r"node: (?P<node>[\w.-]{1,253})", EXACT),
            said("gpu memory count on the node was not synced", at=NAMED),
            said("could not find gpu memory label", at=NAMED),
        ),
        versions="KAI to v0.17",
        links=(f"{KAI}/issues/706", f"{KAI}/issues/256"),
        explains=("kai.unschedulable", "pod.unschedulable"),
        defaults=_POD,
    ),
    Fault(
        id="lab.gpu-memory-label",
        component="node label",
        title="nvidia.com/gpu.memory is missing, has a unit, or is in bytes",
        cause="The node's label nvidia.com/gpu.memory is not the card's memory as a plain number of MiB: {why}",
        remedy=(
            "kubectl get nodes -L nvidia.com/gpu.memory",
            "kubectl label --overwrite node {node} nvidia.com/gpu.memory=40960",
        ),
        signs=(
            seen("check", pattern=r"(?P<why>.{1,250})", check="labelled_node.gpu_memory_label", at=EXACT),
            said(
                "nvidia.com/gpu.memory",
                r'"?nvidia\.com/gpu\.memory"?[=:] ?"(?P<why>\d{1,15}(?:[KMGT]i?B?| \w{1,4}))"',
                NAMED,
            ),
        ),
        links=(f"{KAI}/issues/706", f"{KAI}/issues/257"),
        explains_all=(
            "kai.gpu-memory-does-not-fit",
            "kai.gpu-memory-not-synced",
            "kai.gpus-do-not-fit",
            "lab.gpu-label",
        ),
        defaults=_POD,
    ),
    Fault(
        id="lab.gpu-label",
        component="node label",
        title="nvidia.com/gpu.product / nvidia.com/gpu.count differ from the card profile",
        cause="A GPU label of the node is not what the lab's card profile says: {why}",
        remedy=(
            "kubectl get nodes -L nvidia.com/gpu.product,nvidia.com/gpu.count",
            "kai-lab run --select labelled_node",
        ),
        signs=(
            seen(
                "check",
                pattern=r"(?P<why>.{1,250})",
                check=("labelled_node.gpu_product_label", "labelled_node.gpu_count_label"),
            ),
        ),
    ),
    Fault(
        id="kai.gpus-do-not-fit",
        component="KAI Scheduler",
        title="node(s) didn't have enough resources: GPUs",
        cause="No node has enough free GPUs for pod {pod} by KAI's account. A reservation pod takes a whole GPU, "
        "and a fraction needs one card with room.",
        remedy=(
            "kubectl get pods -A -o wide",
            "kubectl describe node {node} | grep -A8 Allocated",
            "kubectl logs -n kai-scheduler deploy/kai-scheduler-default --since=1m | grep 'Resource division'",
        ),
        signs=(said("enough resources: gpus", at=NAMED),),
        explains=("kai.unschedulable", "pod.unschedulable"),
        defaults=_POD,
    ),
    Fault(
        id="kai.larger-than-any-node",
        component="KAI Scheduler",
        title="Max GPU resources available in a single node in the default node-pool is topped at ...",
        cause="The pod asks for more than any one node has: {why}",
        remedy=(
            "kubectl get nodes -o custom-columns=NAME:.metadata.name,GPUS:.status.allocatable.nvidia\\.com/gpu",
            "Ask for fewer GPUs, or look why the node advertises so few (device plugin, nvml-mock)",
        ),
        signs=(
            said("resources available in a single node", r"(?P<why>requires .{1,100}?\. Max .{1,150})", EXACT),
            said(
                "no node in the default node-pool has", r"(?P<why>No node in the default node-pool has .{1,100})", EXACT
            ),
            said("maxnodepoolresources", at=NAMED),
        ),
        versions="KAI v0.16 and v0.17",
        explains=("kai.unschedulable", "pod.unschedulable"),
        defaults={"why": "see the evidence"},
    ),
    Fault(
        id="kai.queue-missing",
        component="KAI queues",
        title="QueueDoesNotExist: Queue '...' does not exist",
        cause="The pod's label kai.scheduler/queue names {queue}, and KAI has no such queue, or drops it because "
        "its parent is missing.",
        remedy=(
            "kubectl get queues",
            "kubectl get pod -n {namespace} {pod} -L kai.scheduler/queue",
            "kubectl apply -f manifests/queues.yaml",
        ),
        signs=(
            said("queuedoesnotexist", r"Queue '(?P<queue>[^']{1,253})' does not exist", EXACT),
            said("queuedoesnotexist", at=NAMED),
            said("does not exist", r"Queue '(?P<queue>[^']{1,253})' does not exist", NAMED),
        ),
        versions="KAI v0.12 and newer",
        links=(f"{KAI}/issues/621", f"{KAI}/issues/612", f"{KAI}/pull/820"),
        explains=("kai.unschedulable", "kai.queue-not-leaf", "pod.unschedulable"),
        defaults={**_POD, "queue": "a queue"},
    ),
    Fault(
        id="kai.queue-not-leaf",
        component="KAI queues",
        title="Unable to schedule pod / Unable to schedule podgroup",
        cause="KAI passes the pod over without a reason of its own. Mostly the queue it names has children: pods "
        "belong in a leaf queue such as default-queue.",
        remedy=(
            "kubectl get queues",
            "kubectl get pod -n {namespace} {pod} -L kai.scheduler/queue",
            "kubectl label --overwrite pod -n {namespace} {pod} kai.scheduler/queue=default-queue, or delete and "
            "apply it anew",
        ),
        signs=(
            said(
                "unable to schedule pod",
                r"Unable to schedule pod(?:group)?(?:$|[\s.\"',}])(?!.*Resources were not found)",
                NAMED - 5,
            ),
        ),
        versions="KAI to v0.17",
        links=(f"{KAI}/issues/621", f"{KAI}/issues/612"),
        explains=("kai.unschedulable", "pod.unschedulable"),
        defaults=_POD,
    ),
    Fault(
        id="lab.queues",
        component="KAI queues",
        title="queues default, default-queue, default-parent-queue are not as the lab wants them",
        cause="The queues differ from the lab's: {why}",
        remedy=("kubectl get queues -o yaml", "kubectl apply -f manifests/queues.yaml", "kai-lab run --select queues"),
        signs=(
            seen(
                "check",
                pattern=r"(?P<why>.{1,250})",
                check=("queues.queues_exist", "queues.default_queue_is_leaf_of_default", "queues.queues_unlimited"),
            ),
        ),
        links=(f"{KAI}/issues/621",),
        explains_all=("kai.queue-missing", "kai.queue-not-leaf"),
    ),
    Fault(
        id="kai.unschedulable",
        component="KAI Scheduler",
        title="Unschedulable: no nodes with enough resources were found",
        cause="KAI finds no place for pod {pod}: {why}",
        remedy=(
            "kubectl describe pod -n {namespace} {pod}",
            "kubectl get podgroups -n {namespace} -o yaml",
            "kubectl logs -n kai-scheduler deploy/kai-scheduler-default --since=1m",
        ),
        signs=(
            said("no nodes with enough resources were found", r"resources were found: (?P<why>.{1,250})", CLASS),
            said("no nodes with enough resources were found", at=CLASS),
            said("scheduling conditions were not met for pod", at=CLASS),
            seen("event", pattern=r"(?P<why>.{1,250})", reason="Unschedulable", at=SYMPTOM + 5),
            seen("condition", pattern=r"(?P<why>.{1,250})", type="UnschedulableOnNodePool", at=SYMPTOM + 5),
        ),
        transient=True,
        explains=("pod.unschedulable",),
        defaults={**_POD, "why": "see the evidence"},
    ),
    Fault(
        id="kai.not-ready",
        component="KAI Scheduler",
        title="NotReady: job is not ready for scheduling",
        cause="The PodGroup has not all its pods yet (minMember), so KAI waits.",
        remedy=("kubectl get podgroups -n {namespace} -o yaml", "kubectl get pods -n {namespace}"),
        signs=(seen("event", reason="NotReady", object_kind="PodGroup", at=CLASS),),
        transient=True,
        defaults=_POD,
    ),
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
        "seconds; when it stays, the operator stands "
        "still (see its log).",
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
        "kai-operator runs: that is v0.20.x, an old "
        "withdrawn version whose number looks newest.",
        remedy=(
            "helm list -n kai-scheduler",
            "helm upgrade --install kai-scheduler CHART -n kai-scheduler --version v0.17.0 with all --set again",
        ),
        signs=(
            said("clusterpolicy", r'no matches for kind \\?"ClusterPolicy\\?"', EXACT),
            said("clusterpolicy.nvidia.com", at=EXACT),
        ),
        versions="KAI v0.20.x (November 2025, withdrawn)",
        explains=("kubernetes.kind-unknown", "kai.crd-cache"),
        explains_all=(
            "kai.components-missing",
            "kai.service-account-race",
            "lab.chart-version",
            "kai.scheduler-absent",
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
            "kai.scheduler-silent",
            "kai.queue-webhook-check",
            "kai.pods-refused",
            "kai.sharing-off",
            "kai.hamicore-off",
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
        explains_all=("lab.whole-pod",),
    ),
    Fault(
        id="kai.sharing-off",
        component="KAI Scheduler",
        title="attempting to create a pod with gpu sharing request, while GPU sharing is disabled",
        cause="KAI runs with GPU sharing off. The chart value global.gpuSharing was not set, is misspelt (helm "
        "takes unknown keys without a word), or was dropped "
        "by an upgrade with --reset-values.",
        remedy=(
            "helm get values kai-scheduler -n kai-scheduler",
            "helm upgrade kai-scheduler CHART -n kai-scheduler --version v0.17.0 --set global.gpuSharing=true --set "
            "binder.plugins.hamicore.enabled=true",
            "From v0.18 on: --set global.gpuSharingMode=HamiCore",
        ),
        signs=(
            said("while gpu sharing is disabled", at=EXACT),
            seen("check", check="kai_release.sharing_enabled", at=EXACT),
        ),
        versions="KAI v0.16 and v0.17; default on from v0.18",
        links=(
            f"{KAI}/issues/1912",
            f"{KAI}/pull/2052",
            f"{KAI}/issues/1124",
            "https://github.com/Project-HAMi/website/pull/612",
        ),
        explains_all=("webhook.denied", "lab.shared-pod"),
    ),
    Fault(
        id="kai.hamicore-off",
        component="KAI Scheduler",
        title="no CUDA_DEVICE_MEMORY_LIMIT: binder runs without its hamicore plugin",
        cause="KAI runs without the hamicore plugin, so nobody writes CUDA_DEVICE_MEMORY_LIMIT: the value "
        "binder.plugins.hamicore.enabled is not set, is misspelt, or this "
        "KAI (before v0.16, and v0.20.x) does not know it. helm takes unknown keys without a word.",
        remedy=(
            "kubectl get deploy -n kai-scheduler binder -o yaml | grep -A1 plugins",
            "helm upgrade kai-scheduler CHART -n kai-scheduler --version v0.17.0 --set global.gpuSharing=true --set "
            "binder.plugins.hamicore.enabled=true",
        ),
        signs=(
            seen("check", check="kai_release.hamicore_enabled", at=EXACT),
            said("scheduler.gpusharing.hamicoreenabled", at=NAMED),
        ),
        versions="KAI v0.16 and newer have the plugin, off by default",
        links=(f"{KAI}/issues/1912", "https://github.com/Project-HAMi/website/pull/612"),
        explains_all=("lab.memory-limit", "lab.injection"),
    ),
    Fault(
        id="kai.crd-cache",
        component="KAI Scheduler",
        title="if kind is a CRD, it should be installed before calling Start",
        cause="A KAI component waits for a CRD that is not installed: helm never upgrades CRDs, and an older set is "
        "still there.",
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
        remedy=("helm list -A -a", "kai-lab versions", "kai-lab run"),
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
)
