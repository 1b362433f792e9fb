"""The lab's own judge on evidence of the rehearsal: it must find what it finds on a real cluster."""

from __future__ import annotations

from pathlib import Path

from kai_lab_pipeline.lab.judge import expectations_for, judge
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.lab.verdict import Judgement, Verdict
from kai_lab_pipeline_tests.rehearsal_lab import Lab, running

RESOURCES = (
    "nodes",
    "pods",
    "events",
    "deployments",
    "daemonsets",
    "configmaps",
    "runtimeclasses",
    "queues",
    "podgroups",
    "bindrequests",
    "configs",
    "schedulingshards",
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
)
SHARED = "gpu-sharing-with-isolation"
CROSSING = "the node's default runtime injects NVML"


def up_to_the_shared_pod(lab: Lab, handler: str = "runc") -> None:
    lab.scheduling()
    lab.isolation(handler=handler)
    lab.apply("canary-pod.yaml")
    lab.wait_phase("kai-lab-canary", "Running")
    lab.apply("whole-gpu-pod.yaml")
    lab.wait_phase("kai-whole-gpu", "Running")
    lab.apply("shared-gpu-pod.yaml")


def judged(lab: Lab, crossing: str | None = None) -> Judgement:
    """Judges what is to be seen, and looks again while something may still turn, as the lab itself does."""
    for attempt in range(50):
        evidence = lab.evidence(RESOURCES, crossing=crossing)
        judgement = judge(evidence, expectations_for(evidence, Expectations()))
        turning = [check.verdict for check in judgement.checks if check.finding.transient]
        if Verdict.NOT_EVALUATED not in turning and (Verdict.BROKEN not in turning or attempt > 5):
            break
    return judgement


def not_held(judgement: Judgement) -> list[str]:
    wrong = [check for check in judgement.checks if check.verdict is not Verdict.HELD]
    return [f"{check.name} {check.verdict}: {check.finding.message} ({check.finding.observed})" for check in wrong]


def test_the_boundary_stands_and_everything_before_it_holds(tmp_path: Path) -> None:
    with running(tmp_path) as lab:
        up_to_the_shared_pod(lab)
        lab.wait_event("BindingError", SHARED)
        judgement = judged(lab)
    beyond = [check.name for check in judgement.checks if check.verdict is Verdict.NOT_REACHABLE]
    assert beyond == ["shared_gpu_pod.memory_limit_value"]
    assert [line for line in not_held(judgement) if "not_reachable" not in line] == []
    assert str(judgement.boundary) == "expected"
    assert judgement.counts() == {"held": 8, "broken": 0, "not_reachable": 0, "not_evaluated": 0}


def test_crossed_everything_holds(tmp_path: Path) -> None:
    with running(tmp_path, crossing=CROSSING) as lab:
        up_to_the_shared_pod(lab, handler="nvidia")
        lab.wait_phase(SHARED, "Running")
        judgement = judged(lab, CROSSING)
    assert not_held(judgement) == []
    assert str(judgement.boundary) == "crossed"


def test_another_nvml_error_is_told_apart(tmp_path: Path) -> None:
    faults = {"reservation_other_error": "ERROR_UNKNOWN", "fraction_wrong": 0.01}
    with running(tmp_path, faults=faults) as lab:
        up_to_the_shared_pod(lab)
        lab.wait_event("BindingError", SHARED)
        judgement = judged(lab)
    broken = {check.name for check in judgement.checks if check.verdict is Verdict.BROKEN}
    assert broken == {
        "shared_gpu_pod.fraction_accounted",
        "reservation_boundary.reservation_nvml",
        "reservation_boundary.boundary_outcome",
    }
    assert str(judgement.boundary) == "different"
