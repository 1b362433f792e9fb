"""KAI-resource-isolator and HAMi-core: injection, library, webhook. Charts 1.0.0 and 1.1.0."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.knowledge.commands import HELM_LIST, ISOLATOR_UPGRADE, on_node
from kai_lab_pipeline.lab.diagnosis.model import EXACT, GENERIC, NAMED, Fault, Nature, said, seen

_WEBHOOK = (
    "kubectl get pods -n kai-resource-isolator",
    "kubectl rollout status -n kai-resource-isolator deploy/kai-resource-isolator-webhook --timeout=120s",
    "kubectl logs -n kai-resource-isolator deploy/kai-resource-isolator-webhook",
)

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="isolator.not-injected",
        component="KAI-resource-isolator",
        title="the shared pod has no vgpu mounts, and nobody said why",
        cause="The isolator's webhook did not change the pod. Its failurePolicy is Ignore: while it is down or "
        "starting, pods are created without HAMi-core and without an error.",
        remedy=(*_WEBHOOK, "Then delete the shared pod and apply it again: kai-lab run --select shared_gpu_pod+"),
        signs=(seen("check", "did not change the pod", check="isolator_release.webhook_mutates", at=NAMED),),
        versions="1.0.0 and 1.1.0",
        explains_all=(
            "isolator.pods",
            "lab.injection",
        ),
    ),
    Fault(
        id="isolator.fewer-mounts",
        component="KAI-resource-isolator",
        title="the webhook injects one volume and no environment: an isolator before 1.1.0",
        cause="Only part of HAMi-core's mounts and variables is injected: {why} Isolator 1.0.x injects one volume, "
        "two mounts and no environment; the chart's image tag is 'latest' by default, so pinning the chart does "
        "not pin the image.",
        remedy=(
            ISOLATOR_UPGRADE,
            "kubectl get pods -n kai-resource-isolator -o jsonpath='{.items[*].spec.containers[*].image}'",
        ),
        signs=(
            seen(
                "check",
                "kai-resource-isolator-containers",
                r"missing (?P<why>(?!.*kai-resource-isolator-vgpu,).{1,250})",
                check="isolator_release.webhook_mutates",
                at=EXACT,
            ),
        ),
        versions="before 1.1.0",
        explains=("isolator.not-injected",),
        explains_all=("lab.injection", "isolator.not-injected"),
    ),
    Fault(
        id="isolator.wrong-keys",
        component="KAI-resource-isolator",
        title="webhook starting ... annotationKeys= other than gpu-fraction|gpu-memory",
        cause="The isolator's webhook reacts to other annotations ({keys}) than KAI's gpu-fraction and gpu-memory, "
        "so shared pods pass it untouched.",
        remedy=(
            "kubectl logs -n kai-resource-isolator deploy/kai-resource-isolator-webhook | grep annotationKeys",
            "helm get values kai-resource-isolator -n kai-resource-isolator",
        ),
        signs=(
            said(
                "annotationkeys=",
                r"annotationKeys=(?P<keys>(?!(?:gpu-fraction\|gpu-memory|gpu-memory\|gpu-fraction)(?:[\s\"',;.]|$))\S{1,200})",
                EXACT,
            ),
        ),
        explains_all=("isolator.not-injected", "lab.injection", "isolator.fewer-mounts"),
    ),
    Fault(
        id="isolator.skipped",
        component="KAI-resource-isolator",
        title='skipped: missing annotations "gpu-fraction" or "gpu-memory"',
        cause="The webhook looked at a pod that asks for no part of a GPU and left it alone, as it should. A "
        "shared pod with this line has a misspelt annotation.",
        remedy=(
            "kubectl get pod POD -o jsonpath='{.metadata.annotations}'",
            "The annotation is gpu-memory, not nvidia.com/gpu.memory",
        ),
        signs=(said("skipped: missing annotations", at=NAMED - 10),),
        nature=Nature.HARMLESS,
        links=("https://github.com/kai-scheduler/KAI-Scheduler/issues/257",),
    ),
    Fault(
        id="isolator.preload-ignored",
        component="HAMi-core",
        title="ERROR: ld.so: object '.../libvgpu.so' from /etc/ld.so.preload cannot be preloaded: ignored",
        cause="The library that HAMi-core preloads is not at {library} in the container, is empty, or is for "
        "another C library, so nothing is isolated. Static programs and musl images (busybox, Alpine) ignore "
        "ld.so.preload without a word.",
        remedy=(
            "docker exec {node} ls -l /usr/local/vgpu",
            "kubectl rollout status -n kai-resource-isolator daemonset/kai-resource-isolator-libsync",
            "kubectl exec POD -- ls -l {library}",
        ),
        signs=(
            said("cannot be preloaded", r"object '(?P<library>[^']{1,200})'.{0,120}cannot be preloaded", EXACT),
            said("cannot be preloaded", at=NAMED),
        ),
        links=("https://github.com/Project-HAMi/HAMi/issues/1346",),
        defaults={"library": "/usr/local/vgpu/libvgpu.so"},
        elsewhere=(
            on_node("ls -l /usr/local/vgpu"),
            "kubectl rollout status -n kai-resource-isolator daemonset/kai-resource-isolator-libsync",
            "kubectl exec POD -- ls -l {library}",
        ),
    ),
    Fault(
        id="isolator.nvml-on-scrape",
        component="KAI-resource-isolator monitor",
        title="nvml Init err",
        cause="The isolator's monitor finds no NVML when it is asked for metrics. With the mock that is usual: it "
        "serves no host metrics, and its health does not depend on it.",
        remedy=("Nothing to do on the mock",),
        signs=(said("nvml init err", at=NAMED - 10),),
        nature=Nature.HARMLESS,
        versions="1.1.0",
    ),
    Fault(
        id="isolator.pods",
        component="KAI-resource-isolator",
        title="libsync, monitor or webhook of the isolator is not Ready",
        cause="Not all parts of the isolator run: {why}",
        remedy=(
            *_WEBHOOK,
            "kubectl get nodes -L nvidia.com/gpu.present",
            "The monitor runs on nodes with that label only",
        ),
        signs=(
            seen("check", pattern=r"(?P<why>.{1,250})", check="isolator_release.isolator_pods_running", at=NAMED - 15),
        ),
        explains_all=("workload.not-ready",),
    ),
    Fault(
        id="isolator.absent",
        component="KAI-resource-isolator",
        title='namespaces "kai-resource-isolator" not found',
        cause="The isolator is not installed; shared pods are then scheduled and not isolated.",
        remedy=("kai-lab run --select isolator_release+", *HELM_LIST),
        signs=(
            said(
                "kai-resource-isolator",
                r"(?:No resources found in kai-resource-isolator namespace|namespaces \"kai-resource-isolator\" "
                r"not found)",
                EXACT + 2,
            ),
        ),
    ),
    Fault(
        id="lab.injection",
        component="KAI-resource-isolator",
        title="HAMi-core's env, mounts or volumes are missing on the shared pod",
        cause="The shared pod does not carry all of HAMi-core: {why}",
        remedy=(*_WEBHOOK, "kai-lab run --select shared_gpu_pod+"),
        signs=(seen("check", pattern=r"(?P<why>.{1,250})", check="shared_gpu_pod.hami_core_injected", at=NAMED - 15),),
    ),
    Fault(
        id="lab.shared-pod",
        component="lab",
        title="the pod is not a shared pod",
        cause="The lab's shared pod asks for no part of a GPU: it has no annotation gpu-memory or gpu-fraction "
        "that KAI reads, so it would run without any sharing.",
        remedy=(
            'Write gpu-memory: "20480" in metadata.annotations (not nvidia.com/gpu.memory)',
            "kubectl apply -f manifests/shared-gpu-pod.yaml",
        ),
        signs=(
            seen("check", "is not a shared pod", at=EXACT),
            seen("label", state="annotation", at=EXACT),
        ),
        links=("https://github.com/kai-scheduler/KAI-Scheduler/issues/257",),
        explains_all=("lab.injection", "lab.memory-limit", "kai.pods-refused", "kai.fraction"),
    ),
    Fault(
        id="isolator.not-announced",
        component="KAI-resource-isolator",
        title="the isolator's webhook did not announce annotationKeys=gpu-fraction|gpu-memory",
        cause="The log of the isolator's webhook does not say which annotations it reads: {why}",
        remedy=("kubectl logs -n kai-resource-isolator deploy/kai-resource-isolator-webhook | grep annotationKeys",),
        signs=(
            seen("check", pattern=r"(?P<why>.{1,250})", check="isolator_release.webhook_annotation_keys", at=GENERIC),
        ),
    ),
    Fault(
        id="isolator.dry-run",
        component="KAI-resource-isolator",
        title="a dry-run of a shared pod shows no HAMi-core volumes",
        cause="Whether the isolator's webhook does its work could not be shown: {why}",
        remedy=_WEBHOOK,
        signs=(seen("check", pattern=r"(?P<why>.{1,250})", check="isolator_release.webhook_mutates", at=GENERIC),),
    ),
)
