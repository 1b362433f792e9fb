"""KAI queues, and what KAI says of pods that no queue or node can take. v0.16.8 and v0.17.0 as measured."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, NAMED, SYMPTOM, Fault, said, seen

KAI = "https://github.com/kai-scheduler/KAI-Scheduler"
_POD = {"namespace": "default", "pod": "POD", "node": "kai-hami-test-control-plane"}

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="kai.gpu-memory-does-not-fit",
        component="KAI Scheduler",
        title="node(s) didn't have enough resources: GPU memory",
        cause="No card has the GPU memory that the pod asks for. Either the node has no nvidia.com/gpu.memory that "
        "KAI can read (it then assumes 100 MiB), or the request is larger than the label floored to a multiple of "
        "100 MiB: on a card labelled 40960 a pod gets 40900 at most.",
        remedy=(
            "kubectl get nodes -L nvidia.com/gpu.memory",
            "kubectl label --overwrite node {node} nvidia.com/gpu.memory=40960",
            "kubectl get pod -n {namespace} {pod} -o jsonpath='{.metadata.annotations.gpu-memory}'",
            "No restart is needed: KAI reads the label anew every second",
        ),
        signs=(
            said("each gpu on the node has a gpu memory capacity", at=EXACT),
            seen("check", check="shared_gpu_pod.label_read_by_kai", at=NAMED),
            said("enough resources: gpu memory", at=EXACT),
        ),
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
        explains_all=("kai.gpu-memory-does-not-fit",),
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
            seen(
                "check", "that kai could read", r"(?P<why>.{1,250})", check="shared_gpu_pod.label_read_by_kai", at=EXACT
            ),
            seen("check", pattern=r"(?P<why>.{1,250})", check="labelled_node.gpu_memory_label", at=EXACT),
            seen("label", pattern=r"(?P<why>.{1,250})", state="memory", at=EXACT),
            said(
                "nvidia.com/gpu.memory",
                r'"?nvidia\.com/gpu\.memory"?[=:] ?"(?P<why>\d{1,15}(?:[KMGT]i?B?| \w{1,4}))"',
                NAMED,
            ),
        ),
        links=(f"{KAI}/issues/706", f"{KAI}/issues/257"),
        explains_all=(
            "lab.memory-limit",
            "kai.fraction",
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
            seen("relation", state=("no_queue", "orphan"), at=EXACT),
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
            "kubectl label --overwrite pod -n {namespace} {pod} kai.scheduler/queue=default-queue",
            "or delete the pod and apply it with that label",
        ),
        signs=(
            seen("relation", state="not_leaf", at=EXACT),
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
)
