"""Claims 1 and 6: the mock shows whole GPUs, the device plugin advertises them, the node's labels describe them."""

from __future__ import annotations

from collections.abc import Mapping

from kai_lab_pipeline.lab.claims.reading import (
    GPU_RESOURCE,
    MEMORY_LABEL,
    PRESENT_LABEL,
    check,
    lab_nodes,
    objects,
    pod_ready,
    pod_state,
    release_deployed,
    whole_number,
)
from kai_lab_pipeline.lab.evidence import (
    Evidence,
    K8sObject,
    labels_of,
    mapping,
    metadata_of,
    name_of,
    sequence,
    status_of,
)
from kai_lab_pipeline.lab.gpu import BYTES_FROM
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.lab.verdict import Finding, broken, held

MOCK_RELEASE = "nvml-mock"
PLUGIN_LABEL = ("name", "nvidia-device-plugin-mock")
SLICES_PER_GPU = 10
"""Replicas per card of NVIDIA's time slicing as commonly set, and of HAMi's own device plugin."""


@check
def mock_release_deployed(evidence: Evidence, expect: Expectations) -> Finding:
    return release_deployed(evidence.of("nvml_mock_release"), MOCK_RELEASE, expect.versions.get("nvml_mock"))


@check
def daemonset_ready(evidence: Evidence, expect: Expectations) -> Finding:
    expected = "at least one pod wanted, and all of them ready"
    sets = [d for d in objects(evidence.of("nvml_mock_release"), "daemonsets", expected) if _is_mock(d)]
    if not sets:
        return broken(expected, "absent", "There is no DaemonSet of nvml-mock.")
    for daemonset in sets:
        status = status_of(daemonset)
        desired, ready = status.get("desiredNumberScheduled"), status.get("numberReady")
        observed = f"{ready or 0} of {desired or 0} ready"
        if not desired:
            return broken(expected, observed, "The DaemonSet wants no pod at all: no node matches its selector.")
        if ready != desired:
            return broken(expected, observed, f"The mock runs on {ready or 0} of {desired} nodes.")
    return held(expected, observed, f"DaemonSet {name_of(sets[0])}: {observed}.")


def _is_mock(daemonset: K8sObject) -> bool:
    return name_of(daemonset) == MOCK_RELEASE or labels_of(daemonset).get("app.kubernetes.io/name") == MOCK_RELEASE


@check
def gpu_present_label(evidence: Evidence, expect: Expectations) -> Finding:
    expected = f"{PRESENT_LABEL}=true"
    for node in lab_nodes(evidence, evidence.of("nvml_mock_release"), expected):
        value = labels_of(node).get(PRESENT_LABEL)
        if value != "true":
            observed = "absent" if value is None else f"{value!r}"
            return broken(
                expected,
                observed,
                f"Node {name_of(node)} is not marked as a GPU node: its setup is not through yet, or nvml-mock newer "
                "than 0.3 no longer labels nodes.",
            )
        writer = label_writer(node, PRESENT_LABEL)
    by = f"written by {writer}" if writer else "writer not recorded"
    return held(expected, f"true, {by}", f"The node is marked as a GPU node, {by}.")


def label_writer(node: K8sObject, label: str) -> str | None:
    """The field manager that owns a label, where managedFields were captured."""
    for entry in sequence(metadata_of(node).get("managedFields")):
        fields = mapping(mapping(mapping(mapping(entry).get("fieldsV1")).get("f:metadata")).get("f:labels"))
        if f"f:{label}" in fields:
            return str(mapping(entry).get("manager", "unknown"))
    return None


@check
def plugin_pod_ready(evidence: Evidence, expect: Expectations) -> Finding:
    key, value = PLUGIN_LABEL
    expected = f"pods {key}={value} in kube-system Ready"
    pods = [
        pod
        for pod in objects(evidence.of("device_plugin"), "pods", expected)
        if labels_of(pod).get(key) == value and metadata_of(pod).get("namespace") == "kube-system"
    ]
    if not pods:
        return broken(expected, "no such pod", f"There is no pod {key}={value} in kube-system (yet).")
    observed = "; ".join(f"{name_of(pod)}: {pod_state(pod)}" for pod in pods)
    if not all(pod_ready(pod) for pod in pods):
        return broken(expected, observed, "The device plugin's pod is not Ready.")
    return held(expected, observed, "The device plugin's pod is Ready.")


@check
def eight_whole_gpus(evidence: Evidence, expect: Expectations) -> Finding:
    want = expect.gpu_count
    expected = f"allocatable {GPU_RESOURCE}: {want}"
    for node in lab_nodes(evidence, evidence.of("device_plugin"), expected):
        value = mapping(status_of(node).get("allocatable")).get(GPU_RESOURCE)
        if whole_number(value) != want:
            observed = "absent" if value is None else str(value)
            why = f"Node {name_of(node)} {_why_count(value, want)}"
            # Only a plugin that is not registered (yet) heals by itself; another number is another configuration.
            return broken(expected, observed, why, transient=value is None or whole_number(value) == 0)
    return held(expected, str(want), f"The node advertises {want} whole GPUs.")


def _why_count(value: object, want: int) -> str:
    number = whole_number(value)
    if value is None:
        return "advertises no GPU: the device plugin has not registered (yet), or found no NVML."
    if number is None:
        return f"advertises {value!r}, which is no count."
    if number == 0:
        return "advertises 0 GPUs: the plugin is not registered (again), or its devices are unhealthy."
    if number == want * SLICES_PER_GPU:
        return f"advertises {number}: slices, not cards; time slicing or HAMi's own device plugin is active."
    return (
        f"advertises {number} GPUs: another profile than the one with {want}. profile.gpu_count in lab.toml only says "
        "what is expected: the mock shows what the values gpu.profile and gpu.count of its chart say."
    )


@check
def gpu_memory_label(evidence: Evidence, expect: Expectations) -> Finding:
    want = expect.gpu_memory_mib
    expected = f"{MEMORY_LABEL}={want} (MiB)"
    for node in lab_nodes(evidence, evidence.of("labelled_node"), expected):
        value = labels_of(node).get(MEMORY_LABEL)
        if value != str(want):
            observed = "absent" if value is None else f"{value!r}"
            why = f"{MEMORY_LABEL} of node {name_of(node)} {_why_memory(value, want)}"
            return broken(expected, observed, why, transient=value is None)
    return held(expected, str(want), f"The node says {want} MiB per card.")


def _why_memory(value: object, want: int) -> str:
    """Name the mistake in a memory label; KAI reads a plain integer in MiB and nothing else."""
    if value is None:
        return "is missing: KAI would assume 100 MiB per card."
    text = str(value)
    number = whole_number(text)
    if text.strip() == "":
        return "is empty: KAI would assume 100 MiB per card."
    if number is None:
        digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        if digits != text and whole_number(digits) is not None:
            return f"is {text!r}: it has a unit; KAI wants a plain integer in MiB and takes this for no label at all."
        return f"is {text!r}: not a plain integer in MiB, so KAI takes it for no label at all."
    if number == 0:
        return "is 0: no request fits a card of no memory."
    if number >= BYTES_FROM:
        return f"is {text}: that is bytes, not MiB (KAI divides such values by 2^20, other readers do not)."
    if number == want // 1024:
        return f"is {text}: that is GiB, not MiB."
    if number == want * 1024:
        return f"is {text}: that is KiB, not MiB."
    return f"is {text} MiB, not the profile's {want} MiB."


@check
def gpu_product_label(evidence: Evidence, expect: Expectations) -> Finding:
    return _plain_label(evidence, "nvidia.com/gpu.product", expect.gpu_product)


@check
def gpu_count_label(evidence: Evidence, expect: Expectations) -> Finding:
    return _plain_label(evidence, "nvidia.com/gpu.count", str(expect.gpu_count))


def _plain_label(evidence: Evidence, label: str, want: str) -> Finding:
    expected = f"{label}={want}"
    for node in lab_nodes(evidence, evidence.of("labelled_node"), expected):
        labels: Mapping[str, object] = labels_of(node)
        value = labels.get(label)
        if value != want:
            observed = "absent" if value is None else str(value)
            why = f"Node {name_of(node)} says {label} {observed}, the profile {want}."
            return broken(expected, observed, why, transient=value is None)
    return held(expected, want, f"The node says {label}={want}.")
