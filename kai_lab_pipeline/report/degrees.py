"""The four degrees of the shared pod: scheduled, wired, limited, running. Each can hold while the next does not."""

from __future__ import annotations

from collections.abc import Mapping

from kai_lab_pipeline.lab.evidence import Evidence, spec_of, status_of
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.lab.verdict import Boundary, CheckResult, Judgement, Verdict, worst
from kai_lab_pipeline.report.model import Answer, Degree, Tone
from kai_lab_pipeline.report.text import one_line

_MESSAGE_LIMIT = 400
_ANSWERS: Mapping[Verdict, Answer] = {
    Verdict.HELD: Answer.YES,
    Verdict.BROKEN: Answer.NO,
    Verdict.NOT_REACHABLE: Answer.NOT_REACHABLE,
    Verdict.NOT_EVALUATED: Answer.NOT_EVALUATED,
}
_TONES: Mapping[Answer, Tone] = {
    Answer.YES: Tone.GOOD,
    Answer.NO: Tone.BAD,
    Answer.NOT_REACHABLE: Tone.BEYOND,
    Answer.NOT_EVALUATED: Tone.UNKNOWN,
}
_BY_CHECKS = (
    ("scheduled", "KAI gave the pod its part of a card in the queue's account", ("shared_gpu_pod.fraction_accounted",)),
    (
        "wired",
        "HAMi-core's library, mounts and the reference to its limit stand in the pod's spec",
        (
            "shared_gpu_pod.hami_core_injected",
            "shared_gpu_pod.runtime_class_injected",
            "shared_gpu_pod.memory_limit_wired",
        ),
    ),
    (
        "limited",
        "The ConfigMap holds the memory limit for this pod; that CUDA keeps to it is not shown in this lab",
        ("shared_gpu_pod.memory_limit_value",),
    ),
)
_RUNNING_CHECK = "reservation_boundary.shared_pod_state"
_OUTCOME_CHECK = "reservation_boundary.boundary_outcome"


def degrees(judgement: Judgement, evidence: Evidence, lab: Expectations) -> tuple[Degree, ...]:
    """The four degrees in order, each with the checks it comes from."""
    results = {check.name: check for check in judgement.checks}
    return (
        *(_by_checks(name, meaning, sources, results) for name, meaning, sources in _BY_CHECKS),
        _running(judgement, evidence, lab, results),
    )


def _by_checks(name: str, meaning: str, sources: tuple[str, ...], results: Mapping[str, CheckResult]) -> Degree:
    found = [results[source] for source in sources if source in results]
    if len(found) < len(sources):
        return _degree(name, meaning, Answer.NOT_EVALUATED, sources, "Not judged in this run.")
    verdict = worst(check.verdict for check in found)
    deciding = next(check for check in found if check.verdict is verdict)
    return _degree(name, meaning, _ANSWERS[verdict], sources, deciding.finding.message)


def _running(judgement: Judgement, evidence: Evidence, lab: Expectations, results: Mapping[str, CheckResult]) -> Degree:
    """Whether the pod ran; `shared_pod_state` alone cannot say so, it is held for a pod that must stay Pending too."""
    meaning = "The shared pod is bound to a node and its container runs"
    sources = (_RUNNING_CHECK, _OUTCOME_CHECK)
    state = results.get(_RUNNING_CHECK)
    if state is None or judgement.boundary is Boundary.NOT_EVALUATED:
        message = state.finding.message if state else "Not judged in this run."
        return _degree("running", meaning, Answer.NOT_EVALUATED, sources, message)
    answer = Answer.NO
    if judgement.boundary is Boundary.CROSSED or _pod_runs(evidence, lab):
        answer = Answer.YES
    elif judgement.boundary is Boundary.EXPECTED and not evidence.crossing:
        answer = Answer.NOT_REACHABLE
    return _degree("running", meaning, answer, sources, state.finding.message)


def _pod_runs(evidence: Evidence, lab: Expectations) -> bool:
    pod = evidence.of("reservation_boundary").find("pods", lab.shared_pod, lab.pod_namespace)
    return pod is not None and status_of(pod).get("phase") == "Running" and bool(spec_of(pod).get("nodeName"))


def _degree(name: str, meaning: str, answer: Answer, sources: tuple[str, ...], message: str) -> Degree:
    return Degree(name, meaning, answer, _TONES[answer], sources, one_line(message, _MESSAGE_LIMIT))
