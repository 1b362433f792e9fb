"""What a whole evidence bundle says is not well: checks, objects in their newest state, their events and logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kai_lab_pipeline.lab.claims.boundary import RESERVATION_NAMESPACE
from kai_lab_pipeline.lab.diagnosis.belonging import RELEASES, is_of_the_lab, missed
from kai_lab_pipeline.lab.diagnosis.model import Fact
from kai_lab_pipeline.lab.diagnosis.objects import facts_of
from kai_lab_pipeline.lab.diagnosis.text import cleaned, shown
from kai_lab_pipeline.lab.evidence import (
    ContainerLog,
    Evidence,
    K8sObject,
    condition_true,
    event_time,
    is_deleted,
    labels_of,
    mapping,
    metadata_of,
    name_of,
    status_of,
)
from kai_lab_pipeline.lab.judge import expectations_for, judge
from kai_lab_pipeline.lab.spec import ASSETS, Expectations
from kai_lab_pipeline.lab.verdict import Judgement, Verdict

_QUIET = frozenset({"events", "configmaps", "bindrequests"})
_PLACED = frozenset({"Scheduled", "BindingError", "Bound"})
"""Events that say that a scheduler found a place: an older complaint that there is none is over."""
_NVML = "reservation_boundary.reservation_nvml"
_LIBRARY_MISSING = "unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND"
Texts = list[tuple[str, Mapping[str, str]]]


def bundle_facts(evidence: Evidence, expectations: Expectations) -> tuple[list[Fact], Texts]:
    """Facts of everything that is not well, and the logs that may say why, each with the names it is about."""
    expect = expectations_for(evidence, expectations)
    newest = _newest(evidence)
    judgement = judge(evidence, expect)
    facts = [*_check_facts(evidence, judgement), *_dryrun_facts(evidence), *_helm_facts(evidence)]
    unwell: dict[str, K8sObject] = {}
    for resource, objects in newest.items():
        if resource in _QUIET:
            continue
        for obj in objects:
            if not is_of_the_lab(obj, expect) or (resource == "pods" and _is_well(obj)):
                continue
            found = list(facts_of(obj))
            if found or resource == "pods":
                unwell[str(metadata_of(obj).get("uid") or name_of(obj))] = obj
            facts += found
    facts += _event_facts(newest.get("events", ()), unwell)
    texts = _logs(evidence, unwell, stands=not evidence.crossing and _NVML in _held(judgement))
    if evidence.crossing:
        facts += _crossing_facts(evidence.crossing, facts, texts)
    settled = _without_settled(facts, newest.get("events", ()), unwell)
    node = {"node": evidence.node} if evidence.node else {}
    told = [replace(fact, names={**node, **fact.names}) for fact in settled]
    return [_as_reservation(fact) for fact in told if not _reservation_retries(fact)], texts


def _newest(evidence: Evidence) -> dict[str, tuple[K8sObject, ...]]:
    """The last list of each resource: assets are observed in the lab's order, or tell their time themselves."""
    seen = [(name, evidence.observations[name]) for name in ASSETS if name in evidence.observations]
    if all(observation.observed_at is not None for _, observation in seen):
        seen.sort(key=lambda item: item[1].observed_at.timestamp() if item[1].observed_at else 0.0)
    newest: dict[str, tuple[K8sObject, ...]] = {}
    for _, observation in seen:
        newest.update(observation.resources)
    return newest


def _held(judgement: Judgement) -> frozenset[str]:
    return frozenset(result.name for result in judgement.checks if result.verdict is Verdict.HELD)


def _check_facts(evidence: Evidence, judgement: Judgement) -> Iterator[Fact]:
    node = {"node": evidence.node} if evidence.node else {}
    versions = ", ".join(f"{component} {version}" for component, version in evidence.versions.items())
    for claim in judgement.claims:
        for result in claim.checks:
            if result.finding.verdict is Verdict.BROKEN:
                finding, name = result.finding, f"{result.asset}.{result.check}"
                message = f"{finding.message} (observed {finding.observed}; {versions})"
                line = f"{name}: {finding.message} Observed {finding.observed}."
                attributes = {"check": name, "missed": " ".join(missed(finding.observed))}
                yield Fact("check", cleaned(message).replace("\n", " "), shown(line), attributes, node)


def _dryrun_facts(evidence: Evidence) -> Iterator[Fact]:
    answers: dict[str, K8sObject] = {}
    for name in ASSETS:
        answers.update(evidence.of(name).dryrun)
    for answer in answers.values():
        if answer.get("kind") == "Status":
            yield from facts_of(answer)


def _helm_facts(evidence: Evidence) -> Iterator[Fact]:
    rows: tuple[Mapping[str, object], ...] = ()
    for name in ASSETS:
        rows = evidence.of(name).helm or rows
    for row in rows:
        if row.get("name") in RELEASES and all(isinstance(row.get(key), str) for key in ("status", "chart")):
            yield from facts_of(row)


def _is_well(pod: K8sObject) -> bool:
    phase = status_of(pod).get("phase")
    return phase == "Succeeded" or (phase == "Running" and condition_true(pod, "Ready") and not is_deleted(pod))


def _event_facts(events: tuple[K8sObject, ...], unwell: Mapping[str, K8sObject]) -> Iterator[Fact]:
    """Events of objects that are not well now. A ReplicaSet speaks for the Deployment whose name it carries on."""
    deployments = {name_of(obj) for obj in unwell.values() if obj.get("kind") == "Deployment"}
    for event in events:
        about = mapping(event.get("involvedObject"))
        owner = str(about.get("name") or "").rpartition("-")[0]
        if str(about.get("uid")) in unwell or (about.get("kind") == "ReplicaSet" and owner in deployments):
            yield from facts_of(event)


def _without_settled(
    facts: list[Fact], events: tuple[K8sObject, ...], unwell: Mapping[str, K8sObject]
) -> Iterator[Fact]:
    """Facts without complaints about scheduling of pods that were given a place since (KAI leaves the condition)."""
    latest: dict[str, str] = {}
    for event in sorted(events, key=lambda one: when.timestamp() if (when := event_time(one)) else 0.0):
        about = mapping(event.get("involvedObject"))
        if str(about.get("uid")) in unwell and event.get("reason") in (*_PLACED, "Unschedulable", "FailedScheduling"):
            latest[f"{about.get('namespace', '')}/{about.get('name')}"] = str(event.get("reason"))
    for fact in facts:
        complaint = fact.attributes.get("reason") in ("Unschedulable", "FailedScheduling")
        if not (complaint and latest.get(fact.subject) in _PLACED):
            yield fact


def _logs(evidence: Evidence, unwell: Mapping[str, K8sObject], *, stands: bool) -> Texts:
    """Logs of pods that are not well, and of reservation pods, whose names change with each attempt.

    Once the boundary is crossed the logs of earlier attempts are over. Where it `stands`, a reservation pod that is
    Ready is one that has not ended yet.
    """
    pods = [obj for obj in unwell.values() if obj.get("kind") == "Pod"]
    names = {(str(metadata_of(pod).get("namespace")), name_of(pod)) for pod in pods}
    kept: dict[tuple[str, str, str], ContainerLog] = {}
    for asset in ASSETS:
        for log in evidence.of(asset).logs:
            if (log.namespace, log.pod) in names or log.namespace == RESERVATION_NAMESPACE or "-webhook-" in log.pod:
                kept[log.namespace, log.pod, log.container] = log
    crossed = not stands and any(
        labels_of(pod).get("app") == RESERVATION_NAMESPACE and _is_well(pod)
        for observation in evidence.observations.values()
        for pod in observation.objects("pods") or ()
    )
    texts: Texts = []
    for log in kept.values():
        if crossed and log.namespace == RESERVATION_NAMESPACE and (log.namespace, log.pod) not in names:
            continue
        about = {"namespace": log.namespace, "pod": log.pod, "container": log.container}
        before, text = log.previous or "", log.text
        if "-webhook-" in log.pod:
            before, text = before if (log.namespace, log.pod) in names else "", _announcement(text)
        texts.append((cleaned(f"{before}\n{text}"), about))
    return texts


def _announcement(text: str) -> str:
    """Of a webhook that is well only what it announced at its start."""
    return "\n".join(line for line in text.splitlines() if "annotationKeys=" in line)


def _crossing_facts(crossing: str, facts: list[Fact], texts: Texts) -> list[Fact]:
    """Where NVML is said to get into pods, a library that is missing is a fault and no expected boundary."""
    said = [(fact.message, fact.names) for fact in facts if fact.kind == "check"]
    said += [(text, about) for text, about in texts if about.get("namespace") == RESERVATION_NAMESPACE]
    found = []
    for text, about in said:
        if _LIBRARY_MISSING in text:
            line = f"crossing is {crossing!r}, and {about.get('pod', 'a reservation pod')} says {_LIBRARY_MISSING}"
            found.append(Fact("boundary", line, line, {"state": "crossing_broken"}, {**about, "crossing": crossing}))
    return found


def _as_reservation(fact: Fact) -> Fact:
    """The same fact, told apart where it is about a reservation pod: what stops one is a fault of its own."""
    reserved = fact.kind == "container" and fact.names.get("namespace") == RESERVATION_NAMESPACE
    return replace(fact, kind="reservation") if reserved else fact


def _reservation_retries(fact: Fact) -> bool:
    """Whether it only says that a reservation pod is tried again: its state and log say why, and stand beside it."""
    return (
        fact.kind == "event"
        and fact.attributes.get("reason") == "BackOff"
        and fact.names.get("namespace") == RESERVATION_NAMESPACE
    )
