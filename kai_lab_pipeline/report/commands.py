"""How a person sees with kubectl what a check saw. Commands for reading, not run by us; they change nothing lasting."""

from __future__ import annotations

import shlex

from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.report.context import ClusterAccess

_EVENT_COLUMNS = "LAST:.lastTimestamp,TYPE:.type,REASON:.reason,MESSAGE:.message"


def commands(
    name: str,
    access: ClusterAccess,
    node: str | None = None,
    expectations: Expectations | None = None,
    helm_listing: str | None = None,
) -> tuple[str, ...]:
    """Command lines that show by hand what the check ``asset.check`` judges; empty for an unknown check.

    `node` is the node's name (the first node where it is not known). `helm_listing` is the evidence file that stands
    in for ``helm list`` where no helm release exists (the rehearsal installs charts without helm).
    """
    asset, _, check = name.partition(".")
    lab = expectations or Expectations()
    if check == "release_deployed":
        if helm_listing is not None:
            return (f"cat {shlex.quote(helm_listing.format(asset=asset))}  # from the report's folder",)
        return (f"{access.helm()} list --all-namespaces --all",)
    kubectl = access.kubectl()
    words = {
        "kubectl": kubectl,
        "node": f"node {shlex.quote(node)}" if node else f'"$({kubectl} get nodes -o name | head -1)"',
        "ns": shlex.quote(lab.pod_namespace),
        "kai": shlex.quote(lab.kai_namespace),
        "isolator": shlex.quote(lab.isolator_namespace),
        "whole": shlex.quote(lab.whole_pod),
        "shared": shlex.quote(lab.shared_pod),
        "queue": shlex.quote(lab.queue),
        "parent": shlex.quote(lab.parent_queue),
        "canary": shlex.quote(lab.canary_pod),
        "columns": _EVENT_COLUMNS,
    }
    templates = _TEMPLATES.get(check, ())
    return tuple(template.replace("kubectl ", "{kubectl} ").format(**words) for template in templates)


_SHARED_POD = "kubectl get pod -n {ns} {shared} -o "
_RESERVATION = "kubectl get pods -n kai-resource-reservation -l app=kai-resource-reservation"

_TEMPLATES: dict[str, tuple[str, ...]] = {
    "node_ready": ("kubectl get nodes",),
    "kubernetes_version_supported": ("kubectl version",),
    "daemonset_ready": ("kubectl get daemonsets -A -l app.kubernetes.io/name=nvml-mock",),
    "gpu_present_label": ("kubectl get nodes -L nvidia.com/gpu.present",),
    "plugin_pod_ready": ("kubectl get pods -n kube-system -l name=nvidia-device-plugin-mock",),
    "eight_whole_gpus": ("kubectl get {node} -o jsonpath='{{.status.allocatable.nvidia\\.com/gpu}}{{\"\\n\"}}'",),
    "gpu_memory_label": ("kubectl get nodes -L nvidia.com/gpu.memory",),
    "gpu_product_label": ("kubectl get nodes -L nvidia.com/gpu.product",),
    "gpu_count_label": ("kubectl get nodes -L nvidia.com/gpu.count",),
    "seven_components_running": ("kubectl get deployments -n {kai}",),
    "sharing_enabled": (
        "kubectl get deployment -n {kai} admission -o jsonpath='{{.spec.template.spec.containers[0].args}}'",
    ),
    "hamicore_enabled": (
        "kubectl get deployment -n {kai} admission -o jsonpath='{{.spec.template.spec.containers[0].args}}'",
        "kubectl get deployment -n {kai} binder -o jsonpath='{{.spec.template.spec.containers[0].args}}'",
    ),
    "queue_webhook_serving": ("kubectl apply --dry-run=server -f manifests/queues.yaml",),
    "scheduler_alive": (
        "kubectl apply -f manifests/canary-pod.yaml",
        "kubectl wait -n {ns} --for=condition=PodScheduled pod/{canary} --timeout=60s",
        "kubectl delete -n {ns} pod/{canary}",
    ),
    "queues_exist": ("kubectl get queues.scheduling.run.ai",),
    "default_queue_is_leaf_of_default": (
        "kubectl get queues.scheduling.run.ai {queue} -o jsonpath='{{.spec.parentQueue}}{{\"\\n\"}}'",
    ),
    "queues_unlimited": ("kubectl get queues.scheduling.run.ai {parent} {queue} -o yaml",),
    "runtime_class_handler": ("kubectl get runtimeclass nvidia",),
    "isolator_pods_running": ("kubectl get pods -n {isolator}",),
    "webhook_annotation_keys": (
        "kubectl get pods -n {isolator} -o name | grep webhook | "
        "xargs kubectl logs -n {isolator} | grep annotationKeys=",
    ),
    "webhook_mutates": (
        "sed 's/name: {shared}/name: kai-lab-probe/' manifests/shared-gpu-pod.yaml | "
        "kubectl create --dry-run=server -o yaml -f - | grep -i vgpu",
    ),
    "whole_gpu_running": ("kubectl get pod -n {ns} {whole} -o wide",),
    "no_sharing_injected": (
        "kubectl get pod -n {ns} {whole} --show-labels",
        "kubectl get pod -n {ns} {whole} -o jsonpath='{{.spec.containers[*].volumeMounts[*].mountPath}}{{\"\\n\"}}'",
    ),
    "label_read_by_kai": (
        "kubectl get nodes -L nvidia.com/gpu.memory",
        "kubectl get events -n {ns} --field-selector involvedObject.name={shared} -o custom-columns={columns}",
    ),
    "fraction_accounted": (
        "kubectl logs -n {kai} deployment/kai-scheduler-default --tail=200 | "
        "grep 'division result for queue <{queue}>' | tail -1",
    ),
    "hami_core_injected": (_SHARED_POD + "yaml | grep -i -E 'vgpu|ld.so.preload'",),
    "runtime_class_injected": (_SHARED_POD + "jsonpath='{{.spec.runtimeClassName}}{{\"\\n\"}}'",),
    "memory_limit_wired": (_SHARED_POD + "yaml | grep -A 5 'name: CUDA_DEVICE_MEMORY_LIMIT'",),
    "memory_limit_value": ("kubectl get configmaps -n {ns} -o yaml | grep -E 'CUDA_DEVICE_MEMORY_LIMIT|GPU_PORTION'",),
    "shared_pod_state": (_SHARED_POD + "wide",),
    "binding_result": (
        "kubectl get events -n {ns} --field-selector involvedObject.name={shared},reason=BindingError "
        "-o custom-columns={columns}",
        _RESERVATION + " -o jsonpath='{{.items[*].metadata.annotations}}'",
    ),
    "reservation_nvml": (
        _RESERVATION,
        "kubectl logs -n kai-resource-reservation -l app=kai-resource-reservation --tail=20",
    ),
    "boundary_outcome": (
        _SHARED_POD + "wide",
        "kubectl get events -n {ns} --field-selector involvedObject.name={shared} -o custom-columns={columns}",
        "kubectl logs -n kai-resource-reservation -l app=kai-resource-reservation --tail=20",
    ),
}
