"""The lab's boundary: KAI's reservation pod and NVML. KAI v0.16 and v0.17."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.knowledge.commands import KAI_CROSSING, on_node
from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, GENERIC, NAMED, SYMPTOM, Fault, Nature, said, seen

KAI = "https://github.com/kai-scheduler/KAI-Scheduler/issues"
_SYMPTOMS = ("pod.crash-loop", "pod.error-exit", "pod.unready")
_LOGS = (
    "kubectl get pods -n kai-resource-reservation -w",
    "kubectl logs -n kai-resource-reservation {pod} --previous",
)
_POD = {"pod": "POD"}

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="boundary.nvml-library-missing",
        component="KAI resource reservation",
        title="unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND",
        cause="The reservation pod finds no NVIDIA library. This is the lab's expected boundary: nvml-mock puts "
        "its library on the node, and nothing carries it into KAI's reservation pod, so no shared pod can be "
        "bound. On a cluster with real GPUs, or one that was prepared to cross the boundary, it is a fault: the "
        "NVIDIA runtime does not reach the reservation pods.",
        remedy=(
            "Nothing, where no toolkit is installed: everything before this point is proven",
            "To cross it: a containerd runtime nvidia (NVIDIA container toolkit, mode cdi), a RuntimeClass nvidia "
            "with handler nvidia, and then the next command",
            KAI_CROSSING,
            "kubectl logs -n kai-resource-reservation {pod}",
        ),
        signs=(said("unable to initialize nvml: error_library_not_found", at=EXACT),),
        nature=Nature.EXPECTED,
        versions="KAI v0.16 and newer without NVIDIA container toolkit",
        links=(f"{KAI}/261", f"{KAI}/349", f"{KAI}/1449"),
        explains=_SYMPTOMS,
        explains_all=("boundary.reservation-timeout",),
        defaults=_POD,
    ),
    Fault(
        id="boundary.crossing-broken",
        component="KAI resource reservation",
        title="ERROR_LIBRARY_NOT_FOUND on a cluster that is prepared to cross the boundary",
        cause="The bundle says that NVML gets into pods here ({crossing}), and the reservation pod still finds no "
        "library: its pods do not use the RuntimeClass nvidia, or its handler is not the NVIDIA runtime.",
        remedy=(
            "kubectl get config kai-config -o jsonpath='{.spec.binder.resourceReservation.runtimeClassName}'",
            KAI_CROSSING,
            "kubectl get runtimeclass nvidia -o jsonpath='{.handler}'",
        ),
        signs=(seen("boundary", state="crossing_broken", at=EXACT + 1),),
        links=(f"{KAI}/261", f"{KAI}/1449"),
        explains=_SYMPTOMS,
        explains_all=("boundary.reservation-timeout", "boundary.nvml-library-missing"),
        defaults={"crossing": "as declared"},
    ),
    Fault(
        id="boundary.nvml-other-error",
        component="KAI resource reservation",
        title="unable to initialize NVML: ERROR_UNKNOWN (or another than ERROR_LIBRARY_NOT_FOUND)",
        cause="The reservation pod has an NVIDIA library, and NVML fails with {nvml_error}. This is not the lab's "
        "boundary: driver and library do not fit, devices are missing in the container, or the mock's "
        "configuration is broken.",
        remedy=(*_LOGS, "docker exec {node} ls -l /var/lib/nvml-mock/driver/usr/lib64"),
        signs=(
            said(
                "unable to initialize nvml:",
                r"unable to initialize NVML: (?!ERROR_LIBRARY_NOT_FOUND)(?P<nvml_error>\S{1,60})",
                EXACT,
            ),
        ),
        versions="KAI v0.16 and newer",
        links=(f"{KAI}/261",),
        explains=_SYMPTOMS,
        explains_all=("boundary.reservation-timeout",),
        defaults=_POD,
        elsewhere=(
            "kubectl get pods -n kai-resource-reservation -w",
            "kubectl logs -n kai-resource-reservation {pod} --previous",
            on_node("ls -l /var/lib/nvml-mock/driver/usr/lib64"),
        ),
    ),
    Fault(
        id="boundary.device-count",
        component="KAI resource reservation",
        title="found 8 devices, 1 was expected",
        cause="NVML works in the reservation pod and shows {found} cards, where the pod was given one: the device "
        "plugin passes no device nodes (--pass-device-specs), so the mock counts all of them.",
        remedy=(
            "kubectl get daemonset -n kube-system nvidia-device-plugin-mock -o yaml | grep pass-device-specs",
            "Apply the lab's own manifests/device-plugin.yaml",
        ),
        signs=(said("devices, 1 was expected", r"found (?P<found>\d{1,4}) devices, 1 was expected", EXACT),),
        versions="KAI v0.16 and newer, device plugin manifest before 2026-07-29",
        explains=_SYMPTOMS,
        explains_all=("boundary.reservation-timeout",),
    ),
    Fault(
        id="boundary.device-unreadable",
        component="KAI resource reservation",
        title="unable to get device count / handle / UUID",
        cause="NVML starts in the reservation pod and cannot read the device: {what}",
        remedy=_LOGS,
        signs=(
            said("error while running the app", r"(?P<what>unable to get device \w{1,20}.{0,150})", NAMED),
            said("unable to get device", r"(?P<what>unable to get device (?:count|handle|uuid).{0,150})", NAMED),
        ),
        explains=_SYMPTOMS,
        explains_all=("boundary.reservation-timeout",),
        defaults=_POD,
    ),
    Fault(
        id="boundary.reservation-timeout",
        component="KAI binder",
        title="failed waiting for GPU reservation pod to allocate: kai-resource-reservation/gpu-reservation-...",
        cause="KAI's binder started {reservation}, and in 40 s it did not write down which GPU it got. Only the "
        "reservation pod's own log tells why: ERROR_LIBRARY_NOT_FOUND there is the lab's expected boundary, "
        "anything else (an image that cannot be pulled, no free GPU) is a fault.",
        remedy=(
            "kubectl get pods -n kai-resource-reservation -o wide",
            "kubectl logs -n kai-resource-reservation {reservation} --previous",
            "kubectl describe pod -n kai-resource-reservation {reservation}",
        ),
        signs=(
            said("restarting failed container=resource-reservation", at=CLASS),
            said("restarting failed container resource-reservation", at=CLASS),
            seen("reservation", reason=("CrashLoopBackOff", "Error"), at=CLASS),
            said(
                "failed waiting for gpu reservation pod to allocate",
                r"to allocate: kai-resource-reservation/(?P<reservation>gpu-reservation-[\w.-]{1,100})",
                NAMED,
            ),
            said("failed waiting for gpu reservation pod to allocate", at=CLASS),
        ),
        versions="KAI v0.16 and v0.17",
        links=(f"{KAI}/261", f"{KAI}/349"),
        defaults={"reservation": "a reservation pod"},
        explains=("kai.binding-failed",),
    ),
    Fault(
        id="boundary.annotation-missing",
        component="KAI binder",
        title="failed to find annotation on reservation pod",
        cause="The reservation pod {pod} runs and carries no annotation run.ai/reserve_for_gpu_index: it could not "
        "write it, for want of rights, or was replaced meanwhile.",
        remedy=(
            "kubectl auth can-i patch pods -n kai-resource-reservation --as "
            "system:serviceaccount:kai-resource-reservation:kai-resource-reservation",
            "kubectl logs -n kai-resource-reservation {pod}",
        ),
        signs=(said("failed to find annotation on reservation pod", r"reservation pod (?P<pod>\S{1,253})?", EXACT),),
        explains=("kai.binding-failed",),
        defaults=_POD,
    ),
    Fault(
        id="boundary.scaling-up",
        component="KAI binder",
        title="cluster is scaling up, could not create reservation pod",
        cause="KAI waits for a cluster autoscaler to bring a node before it reserves a GPU.",
        remedy=("kubectl get pods -n kai-scale-adjust", "Install KAI without global.clusterAutoscaling in this lab"),
        signs=(said("cluster is scaling up, could not create reservation pod", at=EXACT),),
        transient=True,
        explains=("kai.binding-failed",),
    ),
    Fault(
        id="boundary.reservation-image",
        component="KAI resource reservation",
        title="gpu-reservation-...: ImagePullBackOff",
        cause="The reservation pod's image {image} cannot be pulled. Its first pull counts against the binder's 40 "
        "s, so pull it beforehand. This is not the lab's boundary.",
        remedy=(
            "kubectl describe pod -n kai-resource-reservation {pod}",
            "docker exec {node} crictl pull {image}",
        ),
        signs=(
            seen(
                "reservation",
                reason=("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"),
                at=EXACT,
            ),
            said("imagepullbackoff", r"\b(?P<pod>gpu-reservation-[0-9a-f]{16})\s+\d+/\d+\s+ImagePullBackOff", EXACT),
            said("errimagepull", r"\b(?P<pod>gpu-reservation-[0-9a-f]{16})\s+\d+/\d+\s+ErrImagePull", EXACT),
        ),
        explains=("pod.image-pull", "pod.image-not-found", "pod.unready"),
        explains_all=("boundary.reservation-timeout",),
        defaults={**_POD, "image": "of the release"},
        elsewhere=(
            "kubectl describe pod -n kai-resource-reservation {pod}",
            on_node("crictl pull {image}"),
        ),
    ),
    Fault(
        id="kai.binding-failed",
        component="KAI binder",
        title="BindingError / FailedBinding: Failed to bind pod",
        cause="KAI's scheduler chose a node for pod {pod}, and the binder could not bind it there: {why}",
        remedy=(
            "kubectl get bindrequests -A -o yaml",
            "kubectl logs -n kai-scheduler deploy/binder --since=5m",
        ),
        signs=(
            seen("event", pattern=r": (?P<why>.{1,250})", reason=("BindingError", "FailedBinding"), at=CLASS - 5),
            said(
                "failed to bind pod",
                r"bind pod (?P<namespace>[\w-]{1,63})/(?P<pod>[\w.-]{1,253}) to node \S{1,253}: (?P<why>.{1,250})",
                CLASS - 5,
            ),
            said("failedbinding", at=SYMPTOM),
        ),
        transient=True,
        defaults={**_POD, "why": "see the evidence"},
    ),
    Fault(
        id="kai.false-bound",
        component="KAI binder",
        title="Normal Bound: Pod bound successfully to node, while the pod is Pending",
        cause="KAI v0.17.0 also writes Bound after a second failed attempt. Only spec.nodeName and the phase tell "
        "whether a pod is bound.",
        remedy=(
            "kubectl get pod {pod} -n {namespace} -o jsonpath='{.spec.nodeName}'",
            "kubectl get events -A --field-selector reason=BindingError",
        ),
        signs=(said("pod bound successfully to node", at=SYMPTOM - 5),),
        versions="KAI v0.17.0, gone in v0.18",
        nature=Nature.HARMLESS,
        defaults={**_POD, "namespace": "default"},
    ),
    Fault(
        id="boundary.different",
        component="lab",
        title="the boundary is neither the expected one nor crossed",
        cause="What happens to the shared pod is not what this lab must show: {why}",
        remedy=(
            "kubectl describe pod gpu-sharing-with-isolation",
            "kubectl get events -A --sort-by=.lastTimestamp",
            "kubectl logs -n kai-scheduler deploy/binder --since=5m",
        ),
        signs=(
            seen(
                "check",
                pattern=r"(?P<why>.{1,250})",
                check=(
                    "reservation_boundary.shared_pod_state",
                    "reservation_boundary.binding_result",
                    "reservation_boundary.reservation_nvml",
                    "reservation_boundary.boundary_outcome",
                ),
                at=GENERIC,
            ),
        ),
    ),
)
