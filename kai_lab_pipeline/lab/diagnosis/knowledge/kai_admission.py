"""What KAI's webhooks deny, and when they are not there. KAI v0.16 and v0.17."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.model import EXACT, NAMED, Fault, said, seen

KAI = "https://github.com/kai-scheduler/KAI-Scheduler"
_POD = {"namespace": "default"}

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="kai.queue-webhook-down",
        component="KAI queue-controller",
        title='failed calling webhook "queue-validation.kai.scheduler": connect: connection refused',
        cause="The Queue webhook is served by queue-controller, which has no readiness probe: for some seconds "
        "after helm's end it is registered and does not listen yet. 'kubectl wait deploy --all' does not cover it.",
        remedy=(
            "kubectl apply --dry-run=server -f manifests/queues.yaml",
            "Repeat that for up to two minutes, until it succeeds",
            "kubectl logs -n kai-scheduler deploy/queue-controller --tail=50",
            "kubectl get endpoints -n kai-scheduler queue-controller",
        ),
        signs=(
            said(
                "queue-validation.kai.scheduler",
                r'failed calling webhook "queue-validation\.kai\.scheduler".{0,300}(?:connection refused|no '
                r"endpoints|deadline exceeded|EOF|i/o timeout)",
                EXACT + 1,
            ),
            said("queue-validation.kai.scheduler", r'failed calling webhook "queue-validation\.kai\.scheduler"', NAMED),
        ),
        transient=True,
        versions="KAI v0.16 and v0.17",
        links=(f"{KAI}/pull/1980", f"{KAI}/issues/104"),
        explains=("kai.queue-webhook-check",),
    ),
    Fault(
        id="kai.queue-webhook-check",
        component="KAI queue-controller",
        title="a server-side dry-run of a Queue is not answered by KAI's webhook",
        cause="KAI's Queue webhook does not do its work: {why}",
        remedy=(
            "kubectl get validatingwebhookconfigurations kai-queue-validation-v2 -o yaml",
            "kubectl logs -n kai-scheduler deploy/queue-controller --tail=50",
        ),
        signs=(seen("check", pattern=r"(?P<why>.{1,250})", check="kai_release.queue_webhook_serving", at=NAMED - 10),),
        transient=True,
        explains_all=(
            "kubernetes.internal-error",
            "kubernetes.rejected",
            "net.*",
        ),
    ),
    Fault(
        id="kai.queue-denied",
        component="KAI queue-controller",
        title='admission webhook "queue-validation.kai.scheduler" denied the request',
        cause="KAI denied the Queue: {why}",
        remedy=(
            "Give every Queue spec.resources with cpu, gpu and memory (quota, limit, overQuotaWeight)",
            "kubectl explain queue.spec.resources",
        ),
        signs=(
            said(
                "queue-validation.kai.scheduler",
                r'"queue-validation\.kai\.scheduler" denied the request: (?P<why>.{1,250})',
                EXACT,
            ),
            said("resources must be specified", r"(?P<why>resources must be specified)", NAMED),
        ),
        explains_all=("kai.queue-webhook-check",),
    ),
    Fault(
        id="kai.admission-down",
        component="KAI admission",
        title='failed calling webhook "admission.kai-scheduler.svc"',
        cause="KAI's admission is registered with failurePolicy Fail and does not answer, so every new pod with "
        "schedulerName kai-scheduler is refused: while it starts, for about 20 s around a helm upgrade, and after "
        "an uninstall that left the webhook behind.",
        remedy=(
            "kubectl rollout status -n kai-scheduler deploy/admission --timeout=120s",
            "kubectl logs -n kai-scheduler deploy/admission --tail=50",
            "If KAI is gone, remove what it left:",
            "kubectl delete mutatingwebhookconfiguration mutating-kai-admission",
            "kubectl delete validatingwebhookconfiguration validating-kai-admission",
        ),
        signs=(
            said(
                "admission.kai-scheduler.svc",
                r'failed calling webhook "admission\.kai-scheduler\.svc".{0,300}(?:connection refused|no '
                r"endpoints|deadline exceeded|EOF|i/o timeout)",
                EXACT + 1,
            ),
            said("admission.kai-scheduler.svc", r'failed calling webhook "admission\.kai-scheduler\.svc"', NAMED),
        ),
        transient=True,
        versions="KAI v0.16 and v0.17",
        links=(f"{KAI}/issues/751", f"{KAI}/issues/1618", f"{KAI}/pull/1980"),
        explains_all=(
            "lab.shared-pod-absent",
            "lab.whole-pod",
            "kai.scheduler-silent",
        ),
    ),
    Fault(
        id="kai.runtime-class-missing",
        component="RuntimeClass",
        title='pod rejected: RuntimeClass "nvidia" not found',
        cause="KAI's admission writes runtimeClassName nvidia on shared pods, and there is no RuntimeClass "
        "{runtime_class} on the cluster.",
        remedy=(
            "kubectl apply -f manifests/runtime-class.yaml",
            "kubectl get runtimeclass",
            "or install KAI with --set admission.gpuFractionRuntimeClassName=",
        ),
        signs=(
            said("pod rejected: runtimeclass", r'RuntimeClass "(?P<runtime_class>[^"]{1,253})" not found', EXACT),
            seen("check", "nvidia", check="nvidia_runtime_class.runtime_class_handler", at=NAMED),
        ),
        defaults={"runtime_class": "nvidia with the right handler"},
        explains_all=(
            "lab.shared-pod-absent",
            "lab.whole-pod",
        ),
    ),
    Fault(
        id="kai.gpu-memory-annotation",
        component="pod annotation",
        title="gpu-memory annotation value must be a positive integer greater than 0",
        cause="The annotation gpu-memory takes a plain number of MiB without unit, sign or blanks: 20480, not "
        "20Gi, 0.5Gi, 0 or -5.",
        remedy=('Write gpu-memory: "20480" in metadata.annotations',),
        signs=(said("gpu-memory annotation value must be a positive integer", at=EXACT + 1),),
        links=(f"{KAI}/issues/257",),
    ),
    Fault(
        id="kai.gpu-fraction-annotation",
        component="pod annotation",
        title="gpu-fraction annotation value must be a positive number smaller than 1.0",
        cause="The annotation gpu-fraction takes a decimal above 0 and below 1, written with a point: 0.5. A whole "
        "card is asked for with nvidia.com/gpu.",
        remedy=('Write gpu-fraction: "0.5" in metadata.annotations, or nvidia.com/gpu: 1 in resources.limits',),
        signs=(
            said("gpu-fraction annotation value must be a positive number", at=EXACT + 1),
            said("gpu-fraction annotation value must be a float", at=EXACT + 1),
        ),
    ),
    Fault(
        id="kai.gpu-request-twice",
        component="pod annotation",
        title="cannot request both GPU and GPU memory / cannot have both GPU fraction request and whole GPU",
        cause="The pod asks for its GPU in two ways at once. One of gpu-memory, gpu-fraction and nvidia.com/gpu is "
        "allowed.",
        remedy=("Leave one of them, and remove nvidia.com/gpu from resources of a shared pod",),
        signs=(
            said("cannot request both gpu and gpu memory", at=EXACT + 1),
            said("cannot have both gpu fraction request and whole gpu", at=EXACT + 1),
        ),
    ),
    Fault(
        id="kai.gpu-device-count",
        component="pod annotation",
        title="cannot request multiple fractional devices without specifying fraction portion or gpu-memory",
        cause="The pod's device count is not usable: it needs a gpu-fraction or gpu-memory beside it, and a "
        "positive whole number.",
        remedy=("Set gpu-fraction or gpu-memory as well, or remove gpu-fraction-num-devices",),
        signs=(
            said("cannot request multiple fractional devices", at=EXACT + 1),
            said("fraction count annotation value must be a positive integer", at=EXACT + 1),
        ),
    ),
    Fault(
        id="kai.mps",
        component="pod annotation",
        title="MPS is only supported with GPU fraction request",
        cause="The pod asks for MPS without a gpu-fraction.",
        remedy=("Set gpu-fraction, or remove the MPS annotation",),
        signs=(said("mps is only supported with gpu fraction request", at=EXACT + 1),),
    ),
    Fault(
        id="kai.fraction-container",
        component="pod annotation",
        title="container with name ... not found for fraction request",
        cause="The annotation gpu-fraction-container-name names {container}, and the pod has no such container.",
        remedy=("Correct gpu-fraction-container-name, or remove it: the first container is the default",),
        signs=(
            said("not found for fraction request", r"container with name (?P<container>\S{1,63}) not found", EXACT + 1),
        ),
    ),
    Fault(
        id="kai.gpu-not-integer",
        component="pod manifest",
        title="spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: must be an integer",
        cause="nvidia.com/gpu counts whole cards and needs limits equal to requests. A part of a card is asked for "
        "with the annotation gpu-memory or gpu-fraction.",
        remedy=('Write nvidia.com/gpu: "1" under resources.limits, or use gpu-memory: "20480"',),
        signs=(
            said(
                "[nvidia.com/gpu]", r"\[nvidia\.com/gpu\]: (?:Invalid value: .{1,60}must be an integer|.{0,100})", EXACT
            ),
            said("limit must be set for non overcommitable resources", at=EXACT),
        ),
    ),
    Fault(
        id="kai.queue-type",
        component="KAI queues",
        title='The Queue "..." is invalid: spec.resources...: Invalid value',
        cause="Queue {queue} has a value of the wrong type at {field}: quotas and limits are numbers (cpu in "
        "millicores, memory in MB, gpu in cards, -1 is unlimited).",
        remedy=("kubectl explain queue.spec.resources", "kubectl apply -f manifests/queues.yaml"),
        signs=(
            said("the queue ", r'The Queue "(?P<queue>[^"]{1,253})" is invalid: (?P<field>[\w.]{1,200})', EXACT),
            said(
                "queue.scheduling.run.ai",
                r'Queue\.scheduling\.run\.ai "(?P<queue>[^"]{1,253})" is invalid: (?P<field>[\w.]{1,200})',
                EXACT,
            ),
        ),
    ),
    Fault(
        id="kai.pods-refused",
        component="KAI admission",
        title="the shared pod carries no runtimeClassName and no sharing annotations of KAI",
        cause="KAI's admission did not touch the shared pod: it was not there, not registered, or the pod has "
        "another schedulerName. {why}",
        remedy=(
            "kubectl get mutatingwebhookconfigurations mutating-kai-admission",
            "kubectl get deploy -n kai-scheduler admission",
            "kai-lab run --select shared_gpu_pod+",
        ),
        signs=(
            seen(
                "check", pattern=r"(?P<why>.{1,250})", check=("shared_gpu_pod.runtime_class_injected",), at=NAMED - 10
            ),
        ),
    ),
    Fault(
        id="lab.memory-limit",
        component="KAI binder",
        title="CUDA_DEVICE_MEMORY_LIMIT is missing or not trunc(label x portion)",
        cause="The memory limit of the shared pod is not what KAI's rule gives: {why}",
        remedy=(
            "kubectl get configmaps -o yaml | grep CUDA_DEVICE_MEMORY_LIMIT",
            "kubectl get nodes -L nvidia.com/gpu.memory",
        ),
        signs=(
            seen(
                "check",
                pattern=r"(?P<why>.{1,250})",
                check=("shared_gpu_pod.memory_limit_wired", "shared_gpu_pod.memory_limit_value"),
                at=NAMED - 10,
            ),
        ),
    ),
)
