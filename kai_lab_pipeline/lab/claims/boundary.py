"""Claim 8: the reservation boundary, with three outcomes: expected, crossed, different.

Three facts are read (state, binding, NVML), each telling one of two stories: the boundary stands, or it is crossed.
Facts that agree are judged by the story they tell, and `boundary_outcome` says whether it is the one this backend
must give; facts that do not agree are judged by what this backend must give.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from kai_lab_pipeline.lab.claims.reading import GPU_GROUP_LABEL, Settled, check, objects, pod_state, waiting_reason
from kai_lab_pipeline.lab.claims.sharing import gpu_group, limit_finding, shared_pod
from kai_lab_pipeline.lab.evidence import (
    Evidence,
    K8sObject,
    Observation,
    annotations_of,
    event_time,
    events_about,
    is_deleted,
    labels_of,
    mapping,
    metadata_of,
    name_of,
    parse_time,
    spec_of,
    status_of,
)
from kai_lab_pipeline.lab.scheduler_log import strip_ansi
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.lab.verdict import Boundary, Finding, Verdict, broken, held, not_evaluated

RESERVATION_NAMESPACE = "kai-resource-reservation"
RESERVED_ANNOTATION = "run.ai/reserve_for_gpu_index"
ATTEMPTS_S = 90
"""Seconds of a real cluster: two attempts of 40 s (binder flag --resource-reservation-allocation-timeout) and a gap."""
CLOCK_STEP_S = 1
"""creationTimestamp has whole seconds, so an age in seconds is known no better than this."""
NVML_MISSING = "unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND"
RESERVATION_TIMEOUT = "failed waiting for GPU reservation pod to allocate"

_BINDING_ERROR = re.compile(
    r"Failed to bind pod (?P<pod>\S+) to node \S+: "
    r"failed to reserve GPUs for pod <(?P=pod)> in gpu group <[0-9a-f-]{36}>: "
    rf"{RESERVATION_TIMEOUT}: {RESERVATION_NAMESPACE}/gpu-reservation-[0-9a-f]{{16}}\Z"
)
_FOUND_DEVICE = re.compile(r'Found GPU device\s+\{.*?"deviceId": ?"([^"]+)"')
_GPU_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]+\Z")
_HARMLESS = frozenset({"PodGrouperWarning"})
"""Warnings seen on healthy pods: KAI's pod grouper is at times faster than its cache."""


class Story(Enum):
    """What one fact says of the boundary."""

    STANDS = "the boundary stands"
    CROSSED = "the boundary is crossed"
    OTHER = "something else"
    UNKNOWN = "not known"


@dataclass(frozen=True)
class Fact:
    """One observed fact, the story it tells, and a sentence."""

    story: Story
    observed: str
    message: str


@dataclass(frozen=True)
class Outcome:
    """The three facts and what they come to."""

    state: Fact
    binding: Fact
    nvml: Fact
    boundary: Boundary
    message: str


@check
def shared_pod_state(evidence: Evidence, expect: Expectations) -> Finding:
    outcome = read_outcome(evidence, expect)
    return _judge(outcome.state, outcome, expect, "Pending with no spec.nodeName", "Running and bound to a node")


@check
def binding_result(evidence: Evidence, expect: Expectations) -> Finding:
    outcome = read_outcome(evidence, expect)
    return _judge(
        outcome.binding,
        outcome,
        expect,
        f"BindingError of the binder: {RESERVATION_TIMEOUT}: {RESERVATION_NAMESPACE}/gpu-reservation-<16 hex>",
        f"reservation pod with {RESERVED_ANNOTATION}=<GPU UUID>, shared pod with label {GPU_GROUP_LABEL}",
    )


@check
def reservation_nvml(evidence: Evidence, expect: Expectations) -> Finding:
    outcome = read_outcome(evidence, expect)
    return _judge(
        outcome.nvml,
        outcome,
        expect,
        f"a reservation pod's log ends '{NVML_MISSING}'",
        "the reservation pod's log says 'Found GPU device'",
    )


@check
def boundary_outcome(evidence: Evidence, expect: Expectations) -> Finding:
    outcome = read_outcome(evidence, expect)
    want = Boundary.CROSSED if expect.crossing else Boundary.EXPECTED
    if outcome.boundary is Boundary.NOT_EVALUATED:
        return not_evaluated(str(want), outcome.message, observed="not known")
    if outcome.boundary is want:
        return held(str(want), str(outcome.boundary), outcome.message)
    message = outcome.message
    if outcome.boundary is Boundary.CROSSED:
        message = f"The boundary moved: {message} Nobody set up a crossing here."
    elif outcome.boundary is Boundary.EXPECTED:
        message = f"The boundary stands although a crossing was set up ({expect.crossing}): {message}"
    return broken(str(want), str(outcome.boundary), message)


def boundary_of(evidence: Evidence, expect: Expectations) -> Boundary:
    """How the reservation boundary came out."""
    return read_outcome(evidence, expect).boundary


def _judge(fact: Fact, outcome: Outcome, expect: Expectations, stands: str, crossed: str) -> Finding:
    story = Story.CROSSED if expect.crossing else Story.STANDS
    if outcome.boundary is Boundary.EXPECTED:
        story = Story.STANDS
    elif outcome.boundary is Boundary.CROSSED:
        story = Story.CROSSED
    expected = f"{'crossed' if story is Story.CROSSED else 'stands'}: {crossed if story is Story.CROSSED else stands}"
    if fact.story is Story.UNKNOWN:
        return not_evaluated(expected, fact.message, observed=fact.observed)
    if fact.story is story:
        return held(expected, fact.observed, fact.message)
    return broken(expected, fact.observed, fact.message)


def read_outcome(evidence: Evidence, expect: Expectations) -> Outcome:
    """Read the facts of the boundary and tell what they come to."""
    seen = evidence.of("reservation_boundary")
    try:
        pod = shared_pod(seen, expect, "the shared pod")
    except Settled as early:
        story = Story.UNKNOWN if early.finding.verdict is Verdict.NOT_EVALUATED else Story.OTHER
        fact = Fact(story, early.finding.observed, early.finding.message)
        boundary = Boundary.NOT_EVALUATED if story is Story.UNKNOWN else Boundary.DIFFERENT
        return Outcome(fact, fact, fact, boundary, fact.message)
    reservations = _reservations(seen)
    state, binding, nvml = _state(pod), _binding(evidence, seen, pod, reservations), _nvml(seen, pod, reservations)
    boundary, message = _come_to(evidence, seen, pod, (state, binding, nvml))
    return Outcome(state, binding, nvml, boundary, message)


def _come_to(evidence: Evidence, seen: Observation, pod: K8sObject, facts: tuple[Fact, ...]) -> tuple[Boundary, str]:
    for fact in facts:
        if fact.story is Story.OTHER:
            return Boundary.DIFFERENT, fact.message
    stories = {fact.story for fact in facts}
    if Story.UNKNOWN in stories:
        return Boundary.NOT_EVALUATED, next(fact.message for fact in facts if fact.story is Story.UNKNOWN)
    if stories == {Story.STANDS}:
        other = _other_failure(seen, pod)
        if other is not None:
            return Boundary.DIFFERENT, f"Besides the expected failure: {other}"
        return Boundary.EXPECTED, "The shared pod cannot run: its reservation pod finds no NVML, so KAI cannot bind it."
    if stories == {Story.CROSSED}:
        try:
            limit = limit_finding(evidence, seen, pod)
        except Settled as early:
            limit = early.finding
        if limit.verdict is Verdict.NOT_EVALUATED:
            return Boundary.NOT_EVALUATED, limit.message
        if limit.verdict is not Verdict.HELD:
            return Boundary.DIFFERENT, f"The pod runs, but its memory limit is not right: {limit.message}"
        return Boundary.CROSSED, f"The shared pod is bound and runs on a reserved GPU. {limit.message}"
    return Boundary.DIFFERENT, "The facts contradict each other: " + "; ".join(
        f"{fact.observed}: {fact.story.value}" for fact in facts
    )


def _state(pod: K8sObject) -> Fact:
    phase, node, observed = status_of(pod).get("phase"), spec_of(pod).get("nodeName"), pod_state(pod)
    if is_deleted(pod):
        return Fact(Story.OTHER, observed, "The shared pod is being deleted.")
    if phase == "Pending" and not node:
        return Fact(Story.STANDS, observed, "The shared pod is Pending and bound to no node.")
    if phase == "Running" and node:
        return Fact(Story.CROSSED, observed, f"The shared pod runs on {node}.")
    return Fact(Story.OTHER, observed, f"The shared pod neither waits unbound nor runs: {observed}.")


def _reservations(seen: Observation) -> tuple[K8sObject, ...]:
    pods = seen.objects("pods") or ()
    return tuple(pod for pod in pods if metadata_of(pod).get("namespace") == RESERVATION_NAMESPACE)


def _of_group(reservations: Iterable[K8sObject], group: str) -> list[K8sObject]:
    return [pod for pod in reservations if labels_of(pod).get(GPU_GROUP_LABEL) == group]


def _binding(evidence: Evidence, seen: Observation, pod: K8sObject, reservations: Iterable[K8sObject]) -> Fact:
    group = gpu_group(pod)
    if group is not None:
        for reservation in _of_group(reservations, group):
            device = str(annotations_of(reservation).get(RESERVED_ANNOTATION, ""))
            if _GPU_UUID.match(device):
                observed = f"{name_of(reservation)} reserves {device}"
                return Fact(Story.CROSSED, observed, f"KAI reserved {device} for the shared pod's group {group}.")
        observed = f"group {group} without a reserved GPU"
        return Fact(Story.OTHER, observed, "The shared pod has a GPU group, but no reservation pod holds a GPU for it.")
    try:
        objects(seen, "events", "events")
    except Settled as early:
        return Fact(Story.UNKNOWN, early.finding.observed, early.finding.message)
    errors = [str(event.get("message")) for event in events_about(seen, pod) if _is_binding_error(event)]
    owner = f"{metadata_of(pod).get('namespace')}/{name_of(pod)}"
    for error in errors:
        match = _BINDING_ERROR.match(error)
        if match is not None and match["pod"] == owner:
            return Fact(Story.STANDS, error, "KAI's binder could not reserve a GPU for the shared pod.")
    if errors:
        return Fact(Story.OTHER, errors[-1], f"The binder failed for another reason: {errors[-1]}")
    age = _age_seconds(evidence, seen, pod)
    if age is None or age - CLOCK_STEP_S < ATTEMPTS_S * evidence.time_scale:
        known = "" if age is None else f" {age:.0f} s after the pod was made"
        return Fact(Story.UNKNOWN, "no BindingError yet", f"There is no BindingError{known}; the first takes 40 s.")
    return Fact(
        Story.OTHER, "no BindingError", f"No BindingError {age:.0f} s after the pod was made: KAI did not try to bind."
    )


def _is_binding_error(event: K8sObject) -> bool:
    reporter = mapping(event.get("source")).get("component") or event.get("reportingComponent")
    return event.get("reason") == "BindingError" and event.get("type") == "Warning" and reporter == "binder"


def _age_seconds(evidence: Evidence, seen: Observation, pod: K8sObject) -> float | None:
    """Age of the pod when it was observed, in seconds of the cluster that was observed."""
    created = parse_time(metadata_of(pod).get("creationTimestamp"))
    newest: datetime | None = max(filter(None, map(event_time, seen.objects("events") or ())), default=None)
    now = seen.observed_at or evidence.captured_at or newest
    return None if created is None or now is None else (now - created).total_seconds()


def _nvml(seen: Observation, pod: K8sObject, reservations: Iterable[K8sObject]) -> Fact:
    reservations = tuple(reservations)
    logs = [log for log in seen.logs if log.namespace == RESERVATION_NAMESPACE]
    group = gpu_group(pod)
    if group is not None:
        devices = {name_of(r): annotations_of(r).get(RESERVED_ANNOTATION) for r in _of_group(reservations, group)}
        for log in logs:
            found = _FOUND_DEVICE.search(strip_ansi(log.text))
            if found is None or log.pod not in devices:
                continue
            if _GPU_UUID.match(str(devices[log.pod])) and found[1] != devices[log.pod]:
                message = f"{log.pod} found {found[1]}, but reserves {devices[log.pod]}."
                return Fact(Story.OTHER, f"found {found[1]}", message)
            return Fact(Story.CROSSED, f"Found GPU device {found[1]}", "The reservation pod found its GPU by NVML.")
    texts = [strip_ansi(text).rstrip() for log in logs for text in (log.text, log.previous) if text and text.strip()]
    if any(text.endswith(NVML_MISSING) for text in texts):
        return Fact(Story.STANDS, NVML_MISSING, "The reservation pod cannot load NVML: no library in its container.")
    for text in texts:
        last = text.splitlines()[-1]
        if _FOUND_DEVICE.search(text):
            return Fact(Story.CROSSED, "Found GPU device", "A reservation pod found a GPU through NVML.")
        if "Looking for GPU device id" not in last:
            return Fact(Story.OTHER, last, f"The reservation pod says something else: {last}")
    for reservation in reservations:
        reason = waiting_reason(reservation)
        if not texts and reason not in (None, "ContainerCreating", "PodInitializing", "CrashLoopBackOff"):
            return Fact(Story.OTHER, str(reason), f"The reservation pod cannot even start: {reason}.")
    return Fact(Story.UNKNOWN, "no log", "No reservation pod's log tells yet how NVML came out.")


def _other_failure(seen: Observation, pod: K8sObject) -> str | None:
    """A warning about the shared pod that is not part of the boundary, quoted; None when there is none."""
    events = list(events_about(seen, pod))
    scheduled = max(filter(None, (event_time(e) for e in events if e.get("reason") == "Scheduled")), default=None)
    for event in events:
        reason, message, at = str(event.get("reason")), str(event.get("message")), event_time(event)
        if event.get("type") != "Warning" or reason in _HARMLESS or RESERVATION_TIMEOUT in message:
            continue
        if reason == "Unschedulable" and scheduled is not None and at is not None and at <= scheduled:
            continue  # KAI complained before it could place the pod, and then placed it.
        return f"{reason}: {message}"
    return None
