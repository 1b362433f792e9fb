"""How the claims read evidence: what is not there settles the finding, so no check can pass on nothing."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from kai_lab_pipeline.lab.evidence import (
    Evidence,
    K8sObject,
    Observation,
    is_deleted,
    labels_of,
    mapping,
    metadata_of,
    name_of,
    sequence,
    spec_of,
    status_of,
)
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.lab.verdict import Finding, broken, held, not_evaluated

Check = Callable[[Evidence, Expectations], Finding]

GPU_RESOURCE = "nvidia.com/gpu"
PRESENT_LABEL = "nvidia.com/gpu.present"
MEMORY_LABEL = "nvidia.com/gpu.memory"
KAI_SCHEDULER = "kai-scheduler"
QUEUE_LABEL = "kai.scheduler/queue"
GPU_GROUP_LABEL = "runai-gpu-group"
CONFIGMAP_ANNOTATION = "runai/shared-gpu-configmap"
LIMIT_VARIABLE = "CUDA_DEVICE_MEMORY_LIMIT"


class Settled(Exception):
    """A reader found that the check cannot go on; carries the finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def check(function: Check) -> Check:
    """Let readers settle the finding of `function` early."""

    @functools.wraps(function)
    def settled(evidence: Evidence, expect: Expectations) -> Finding:
        try:
            return function(evidence, expect)
        except Settled as early:
            return early.finding

    return settled


def objects(seen: Observation, resource: str, expected: str) -> tuple[K8sObject, ...]:
    """The captured list of a resource; settles as not evaluated when there is none."""
    found = seen.objects(resource)
    if found is None:
        raise Settled(not_evaluated(expected, f"The list of {resource} was not captured."))
    return found


def dry_run(seen: Observation, name: str, expected: str) -> K8sObject:
    """The API server's answer to a server-side dry-run; settles as not evaluated when there is none."""
    answer = seen.dryrun.get(name)
    if answer is None:
        raise Settled(not_evaluated(expected, f"No server-side dry-run of {name} was captured."))
    return answer


def lab_nodes(evidence: Evidence, seen: Observation, expected: str) -> tuple[K8sObject, ...]:
    """The nodes whose GPUs the lab is about: the bundle's node, else those marked as GPU nodes, else all."""
    nodes = objects(seen, "nodes", expected)
    if evidence.node is not None:
        named = tuple(node for node in nodes if name_of(node) == evidence.node)
        if not named:
            there = ", ".join(name_of(node) for node in nodes) or "no node"
            raise Settled(broken(expected, there, f"Node {evidence.node} is not in the cluster; there is {there}."))
        return named
    if not nodes:
        raise Settled(broken(expected, "no node", "The cluster has no node."))
    marked = tuple(node for node in nodes if labels_of(node).get(PRESENT_LABEL) == "true")
    return marked or nodes


def pod_named(
    seen: Observation, name: str, namespace: str, expected: str, *, absent: Finding | None = None
) -> K8sObject:
    """The pod of that name; settles as not evaluated without a list, as `absent` (or broken) without it."""
    for pod in objects(seen, "pods", expected):
        if name_of(pod) == name and metadata_of(pod).get("namespace") == namespace:
            return pod
    raise Settled(absent or broken(expected, "absent", f"There is no pod {namespace}/{name}."))


def pod_ready(pod: K8sObject) -> bool:
    """Whether a pod is there to stay and its Ready condition is True."""
    conditions = (mapping(entry) for entry in sequence(status_of(pod).get("conditions")))
    ready = any(entry.get("type") == "Ready" and entry.get("status") == "True" for entry in conditions)
    return ready and not is_deleted(pod)


def pod_state(pod: K8sObject) -> str:
    """Phase, node and what a container waits for, in a few words."""
    status = status_of(pod)
    words = [str(status.get("phase", "unknown"))]
    node = spec_of(pod).get("nodeName")
    words.append(f"on {node}" if node else "no node")
    reason = waiting_reason(pod)
    if reason:
        words.append(reason)
    if is_deleted(pod):
        words.append("being deleted")
    return ", ".join(words)


def waiting_reason(pod: K8sObject) -> str | None:
    """Why a container of the pod waits (``ErrImagePull``, ``CrashLoopBackOff``, ...), or None."""
    for entry in sequence(status_of(pod).get("containerStatuses")):
        reason = mapping(mapping(mapping(entry).get("state")).get("waiting")).get("reason")
        if reason:
            return str(reason)
    return None


def by_key(entries: Any, key: str) -> Mapping[str, Mapping[str, Any]]:
    """The entries of a list by what they have under `key`; of several with the same, the last."""
    found = (mapping(entry) for entry in sequence(entries))
    return {str(entry.get(key)): entry for entry in found}


def containers_of(pod: K8sObject) -> tuple[K8sObject, ...]:
    return tuple(mapping(entry) for entry in sequence(spec_of(pod).get("containers")))


def arguments_of(deployment: K8sObject) -> tuple[str, ...]:
    """Command and arguments of every container of a Deployment's pods, in order."""
    template = spec_of(mapping(spec_of(deployment).get("template")))
    return tuple(
        str(word)
        for container in sequence(template.get("containers"))
        for part in ("command", "args")
        for word in sequence(mapping(container).get(part))
    )


def flag_value(arguments: tuple[str, ...], flag: str) -> str | None:
    """The value that counts (the last) of ``--flag=value``, ``--flag value`` or bare ``--flag``; None when absent."""
    value: str | None = None
    for index, word in enumerate(arguments):
        if word.startswith(f"{flag}="):
            value = word.partition("=")[2]
        elif word == flag:
            following = arguments[index + 1] if index + 1 < len(arguments) else "--"
            value = "true" if following.startswith("--") else following
    return value


def is_true(value: object) -> bool:
    """Go's strconv.ParseBool, by which KAI reads its flags."""
    return value is True or (isinstance(value, str) and value in ("1", "t", "T", "true", "TRUE", "True"))


def whole_number(value: Any) -> int | None:
    """An int, or a text of decimal digits, as an int; else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value) else None


def release_deployed(seen: Observation, release: str, version: str | None) -> Finding:
    """Whether helm says that the release is deployed with the chart version of the version set.

    Chart and release carry the same name in this lab, so a renamed release is still found by its chart.
    """
    expected = f"{release} deployed, chart {release}-{version or '?'}"
    if seen.helm is None:
        return not_evaluated(expected, f"The output of helm list was not captured, so release {release} is unknown.")
    rows = [row for row in seen.helm if row.get("name") == release] or [
        row for row in seen.helm if str(row.get("chart", "")).startswith(f"{release}-")
    ]
    if not rows:
        return broken(expected, "no such release", f"Helm lists no release {release}.")
    row = rows[0]
    status, chart = str(row.get("status", "")), str(row.get("chart", ""))
    observed = f"{status or 'no status'}, chart {chart or '?'}"
    if status != "deployed":
        pending = status.startswith("pending")
        return broken(expected, observed, f"Helm says release {release} is {status or 'unknown'}.", transient=pending)
    if version is None:
        return not_evaluated(
            expected,
            f"No version of {release} is named to compare with.",
            observed=observed,
            transient=False,
        )
    if not _same_version(chart.removeprefix(f"{release}-"), version):
        return broken(
            expected, observed, f"Release {release} runs chart {chart}, not version {version}.", transient=False
        )
    return held(expected, observed, f"Release {release} is deployed with chart {chart}.")


def _same_version(one: str, other: str) -> bool:
    """v0.17.0 and 0.17.0 name the same release: tags of these charts come in both forms."""
    return one.removeprefix("v") == other.removeprefix("v")
