"""What the claims say in words, what can still turn, gates, excuses, and roll-up."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest

from kai_lab_pipeline.lab.claims import CHECK_FUNCTIONS
from kai_lab_pipeline.lab.claims.reading import flag_value
from kai_lab_pipeline.lab.evidence import Evidence, Observation, parse_time
from kai_lab_pipeline.lab.judge import PINNED_GATES, boundary_of, expectations_for, judge, judge_asset, upstream_of
from kai_lab_pipeline.lab.spec import CHECKS, CLAIMS, UPSTREAM, Expectations
from kai_lab_pipeline.lab.verdict import Boundary, Excuse, Finding, Verdict, worst
from kai_lab_pipeline_tests.damages import judged, recorded
from kai_lab_pipeline_tests.damages.boundary_side import HERE, NODE, SHARED
from kai_lab_pipeline_tests.damages.draft import (
    CROSSED,
    DROP,
    KIND,
    LAB,
    Draft,
    Edit,
    both,
    change,
    events,
    header,
    log_text,
    logs,
    new_event,
    remove,
    status_condition,
)
from kai_lab_pipeline_tests.damages.pods_side import NO_MEMORY

GPU = "nvidia.com/gpu"


def damaged(recording: str, *edits: Edit) -> Evidence:
    draft = Draft(recorded(recording))
    for edit in edits:
        edit(draft)
    return draft.finish()


def finding(evidence: Evidence, name: str) -> Finding:
    return CHECK_FUNCTIONS[name](evidence, expectations_for(evidence, Expectations()))


def label(asset: str, key: str, value: Any) -> Edit:
    return change(asset, "nodes", NODE, ("metadata", "labels", f"{GPU}.{key}"), value)


# --- the tables -----------------------------------------------------------------------------------------------------


def test_every_check_has_a_function_and_every_function_a_check() -> None:
    names = {f"{asset}.{check.name}" for asset, checks in CHECKS.items() for check in checks}
    assert set(CHECK_FUNCTIONS) == names
    assert len(names) == 36


def test_every_check_belongs_to_exactly_one_claim() -> None:
    in_claims = [name for claim in CLAIMS for name in claim.checks]
    assert sorted(in_claims) == sorted(CHECK_FUNCTIONS)


def test_gates_are_those_of_the_lab() -> None:
    assert {gate.partition(".")[2] for gate in PINNED_GATES} == {
        "node_ready",
        "daemonset_ready",
        "gpu_present_label",
        "eight_whole_gpus",
        "gpu_memory_label",
        "seven_components_running",
        "queue_webhook_serving",
        "queues_exist",
        "runtime_class_handler",
        "webhook_mutates",
    }


def test_upstream_is_transitive() -> None:
    assert {"cluster", "kai_release", "queues", "isolator_release"} <= upstream_of("shared_gpu_pod")
    assert upstream_of("cluster") == frozenset()
    assert all(asset not in upstream_of(asset) for asset in UPSTREAM)


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("40960Mi", "has a unit"),
        ("40Gi", "has a unit"),
        ("0", "is 0"),
        ("", "is empty"),
        ("42949672960", "bytes, not MiB"),
        ("40", "GiB, not MiB"),
        ("30000", "not the profile's 40960 MiB"),
        ("40960.0", "not a plain integer"),
        (DROP, "is missing"),
    ],
)
def test_mistakes_in_the_memory_label_are_named(value: Any, says: str) -> None:
    found = finding(damaged(LAB, label("labelled_node", "memory", value)), "labelled_node.gpu_memory_label")
    assert found.verdict is Verdict.BROKEN
    assert says in found.message


@pytest.mark.parametrize(
    ("value", "says"),
    [("80", "slices"), ("4", "another profile"), ("0", "not registered"), (DROP, "no GPU"), ("8k", "no count")],
)
def test_other_counts_are_explained(value: Any, says: str) -> None:
    edit = change("device_plugin", "nodes", NODE, ("status", "allocatable", GPU), value)
    found = finding(damaged(LAB, edit), "device_plugin.eight_whole_gpus")
    assert found.verdict is Verdict.BROKEN
    assert says in found.message
    waiting_helps = value in (DROP, "0")
    assert found.transient is waiting_helps, "the kubelet publishes the resource seconds after the plugin is Ready"


def test_who_marked_the_node_is_recorded() -> None:
    fields = [
        {"manager": "kubelet", "fieldsV1": {"f:status": {}}},
        {"manager": "kubectl-label", "fieldsV1": {"f:metadata": {"f:labels": {f"f:{GPU}.present": {}}}}},
    ]
    edit = change("nvml_mock_release", "nodes", NODE, ("metadata", "managedFields"), fields)
    assert "kubectl-label" in finding(damaged(LAB, edit), "nvml_mock_release.gpu_present_label").observed
    assert "not recorded" in finding(recorded(LAB), "nvml_mock_release.gpu_present_label").observed


def test_missing_components_are_named() -> None:
    found = finding(recorded("kai-v0.20.1"), "kai_release.seven_components_running")
    assert found.observed.startswith("1 of 7 run; absent: admission, binder, pod-grouper")
    assert "not available: kai-scheduler-default" in found.observed


def test_a_log_of_another_version_is_drift_and_not_a_scheduling_failure() -> None:
    edit = log_text("shared_gpu_pod", "kai-scheduler-default", lambda text: text.replace("allocated:", "usage:"))
    found = finding(damaged(LAB, edit), "shared_gpu_pod.fraction_accounted")
    assert found.verdict is Verdict.BROKEN
    assert found.message.startswith("Drift")
    assert not found.transient


@pytest.mark.parametrize("mutation", ["missing", "no_bundle"])
def test_a_queue_webhook_that_refuses_is_quoted(mutation: str) -> None:
    answer = {"kind": "Status", "message": f"connection refused ({mutation})"}
    draft = Draft(recorded(LAB))
    draft.seen("kai_release", dryrun={"queue": answer})
    found = finding(draft.finish(), "kai_release.queue_webhook_serving")
    assert f"connection refused ({mutation})" in found.message
    assert found.transient


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (("--a=true",), "true"),
        (("--a", "false"), "false"),
        (("--a", "--b"), "true"),
        (("--a",), "true"),
        (("--a=true", "--a=false"), "false"),
        (("--ab=true",), None),
        ((), None),
    ],
)
def test_flags_in_all_their_forms(arguments: tuple[str, ...], value: str | None) -> None:
    assert flag_value(arguments, "--a") == value


# --- the label read by KAI ------------------------------------------------------------------------------------------


def test_a_late_label_tells_how_long_healing_took() -> None:
    late = new_event(
        "shared_gpu_pod",
        SHARED,
        reason="Unschedulable",
        message=NO_MEMORY,
        firstTimestamp="2026-11-30T01:10:21Z",
        lastTimestamp="2026-11-30T01:10:30Z",
    )
    found = finding(damaged(LAB, late), "shared_gpu_pod.label_read_by_kai")
    assert found.verdict is Verdict.HELD
    assert found.observed == "late, healed after 10 s"
    by_label = [
        {
            "manager": "kubectl-label",
            "time": "2026-11-30T01:10:29Z",
            "fieldsV1": {"f:metadata": {"f:labels": {f"f:{GPU}.memory": {}}}},
        }
    ]
    fields = change("shared_gpu_pod", "nodes", NODE, ("metadata", "managedFields"), by_label)
    assert finding(damaged(LAB, late, fields), "shared_gpu_pod.label_read_by_kai").observed == "late, healed after 2 s"


def test_a_request_that_fits_no_card_is_not_blamed_on_the_label() -> None:
    evidence = damaged(
        LAB,
        change("shared_gpu_pod", "pods", SHARED, ("metadata", "annotations", "gpu-memory"), "40960"),
        new_event("shared_gpu_pod", SHARED, reason="Unschedulable", message=NO_MEMORY),
    )
    found = finding(evidence, "shared_gpu_pod.label_read_by_kai")
    assert found.verdict is Verdict.BROKEN
    assert "40900" in found.message
    assert not found.transient


def test_another_complaint_says_nothing_about_the_label() -> None:
    evidence = damaged(
        LAB,
        events("shared_gpu_pod", SHARED, "Scheduled", DROP),
        new_event("shared_gpu_pod", SHARED, reason="Unschedulable", message="Queue 'x' does not exist."),
    )
    found = finding(evidence, "shared_gpu_pod.label_read_by_kai")
    assert found.verdict is Verdict.NOT_EVALUATED
    assert "Queue 'x' does not exist." in found.observed


# --- the boundary ---------------------------------------------------------------------------------------------------


def _at_age(seconds: float, scale: float = 1.0) -> Evidence:
    """The lab without a BindingError, seen `seconds` after the shared pod was made."""
    evidence = damaged(LAB, events(HERE, SHARED, "BindingError", DROP))
    pod = evidence.of(HERE).find("pods", SHARED)
    assert pod is not None
    created = parse_time(pod["metadata"]["creationTimestamp"])
    assert created is not None
    return replace(evidence, captured_at=created + timedelta(seconds=seconds), time_scale=scale)


@pytest.mark.parametrize(
    ("age", "scale", "verdict"),
    [
        (39, 1.0, Verdict.NOT_EVALUATED),
        (90.5, 1.0, Verdict.NOT_EVALUATED),
        (91, 1.0, Verdict.BROKEN),
        (1.8, 0.01, Verdict.NOT_EVALUATED),
        (1.95, 0.01, Verdict.BROKEN),
        (100, 10.0, Verdict.NOT_EVALUATED),
    ],
)
def test_two_attempts_are_waited_for_and_no_more(age: float, scale: float, verdict: Verdict) -> None:
    evidence = _at_age(age, scale)
    assert finding(evidence, f"{HERE}.binding_result").verdict is verdict
    late = verdict is Verdict.BROKEN
    assert boundary_of(evidence, Expectations()) is (Boundary.DIFFERENT if late else Boundary.NOT_EVALUATED)


def test_the_time_of_the_observation_counts_before_that_of_the_bundle() -> None:
    evidence = _at_age(3600)
    seen = replace(evidence.of(HERE), observed_at=datetime(2026, 11, 30, 1, 10, 50, tzinfo=timezone.utc))
    early = replace(evidence, observations={**evidence.observations, HERE: seen})
    assert finding(early, f"{HERE}.binding_result").verdict is Verdict.NOT_EVALUATED


def test_without_any_time_nothing_is_said_to_be_late() -> None:
    evidence = damaged(LAB, events(HERE, SHARED, "BindingError", DROP), lambda d: d.items(HERE, "events").clear())
    evidence = replace(evidence, captured_at=None)
    assert finding(evidence, f"{HERE}.binding_result").verdict is Verdict.NOT_EVALUATED


def test_another_failure_is_quoted() -> None:
    evidence = damaged(LAB, new_event(HERE, SHARED, reason="FailedMount", message='configmap "x" not found'))
    found = finding(evidence, f"{HERE}.boundary_outcome")
    assert found.observed == "different"
    assert 'FailedMount: configmap "x" not found' in found.message


def test_a_crossing_that_nobody_set_up_is_said_to_be_a_moved_boundary() -> None:
    evidence = damaged(CROSSED, header(crossing=None))
    assert boundary_of(evidence, expectations_for(evidence, Expectations())) is Boundary.CROSSED
    found = finding(evidence, f"{HERE}.boundary_outcome")
    assert found.verdict is Verdict.BROKEN
    assert "moved" in found.message


def test_a_standing_boundary_where_it_must_be_crossed() -> None:
    evidence = damaged(LAB, header(crossing="by hand"))
    found = finding(evidence, f"{HERE}.boundary_outcome")
    assert (found.expected, found.observed) == ("crossed", "expected")
    assert "by hand" in found.message


def test_a_reservation_pod_whose_image_cannot_be_pulled_is_another_failure() -> None:
    waiting = {"waiting": {"reason": "ErrImagePull"}}
    evidence = damaged(
        LAB,
        logs(HERE, "gpu-reservation-", lambda _: None),
        change(HERE, "pods", "gpu-reservation-*", ("status", "containerStatuses", 0, "state"), waiting),
    )
    found = finding(evidence, f"{HERE}.reservation_nvml")
    assert found.verdict is Verdict.BROKEN
    assert "ErrImagePull" in found.message
    assert boundary_of(evidence, Expectations()) is Boundary.DIFFERENT


def test_a_pod_that_first_failed_and_then_crossed_is_crossed() -> None:
    error = new_event(HERE, SHARED, reason="BindingError", message="Failed to bind pod", source={"component": "binder"})
    evidence = damaged(CROSSED, error)
    assert finding(evidence, f"{HERE}.boundary_outcome").verdict is Verdict.HELD


def test_a_limit_that_is_wrong_is_no_crossing() -> None:
    edit = change(HERE, "configmaps", f"{SHARED}-*", ("data", "CUDA_DEVICE_MEMORY_LIMIT"), "20480m")
    evidence = damaged(CROSSED, edit)
    assert boundary_of(evidence, expectations_for(evidence, Expectations())) is Boundary.DIFFERENT
    assert "20889m" in finding(evidence, f"{HERE}.boundary_outcome").message


# --- judge ----------------------------------------------------------------------------------------------------------


def test_only_selected_checks_and_their_claims_are_listed() -> None:
    evidence = recorded(LAB)
    only = {"queues.queues_exist", "shared_gpu_pod.fraction_accounted"}
    judgement = judge(evidence, expectations_for(evidence, Expectations()), only=only)
    assert {check.name for check in judgement.checks} == only
    assert [claim.id for claim in judgement.claims] == [3, 6]
    assert sum(judgement.counts().values()) == 2


def test_judge_asset_keeps_the_order_of_the_lab() -> None:
    evidence = recorded(LAB)
    results = judge_asset(evidence, Expectations(versions=evidence.versions), "queues")
    assert [result.check for result in results] == [check.name for check in CHECKS["queues"]]
    assert {result.verdict for result in results} == {Verdict.HELD}
    assert judge_asset(evidence, Expectations(), "nvml_mock_image") == ()


def _stopped_after_cluster(**edits: Any) -> Evidence:
    evidence = damaged(LAB, status_condition("cluster", "nodes", NODE, "Ready", "False"))
    return replace(evidence, observations={"cluster": evidence.of("cluster")}, **edits)


def test_what_was_never_observed_behind_a_broken_gate_is_blocked_by_it() -> None:
    judgement = judged(_stopped_after_cluster())
    blocked = {check.name: check.finding for check in judgement.checks if check.asset != "cluster"}
    assert {found.verdict for found in blocked.values()} == {Verdict.NOT_EVALUATED}
    assert {found.message for found in blocked.values()} == {"blocked by cluster.node_ready"}
    assert judgement.exit_code() == 1


def test_what_was_observed_is_judged_in_spite_of_a_broken_gate() -> None:
    judgement = judged(damaged(LAB, status_condition("cluster", "nodes", NODE, "Ready", "False")))
    assert [check.name for check in judgement.checks if check.verdict is Verdict.BROKEN] == ["cluster.node_ready"]


def test_a_candidate_has_one_gate_only() -> None:
    evidence = damaged(LAB, label("labelled_node", "memory", "0"))
    evidence = replace(evidence, observations={k: evidence.of(k) for k in ("cluster", "labelled_node")})
    expect = expectations_for(evidence, Expectations())

    def message(gates: tuple[str, ...]) -> str:
        judgement = judge(evidence, expect, gates=gates)
        return next(check.finding.message for check in judgement.checks if check.name == "queues.queues_exist")

    assert message(PINNED_GATES) == "blocked by labelled_node.gpu_memory_label"
    assert "not captured" in message(("cluster.node_ready",))


def test_a_gate_blocks_only_what_lies_behind_it() -> None:
    evidence = damaged(LAB, remove("nvidia_runtime_class", "runtimeclasses", "nvidia"))
    kept = {"nvidia_runtime_class": evidence.of("nvidia_runtime_class")}
    found = {check.name: check.finding.message for check in judged(replace(evidence, observations=kept)).checks}
    assert found["whole_gpu_pod.whole_gpu_running"] == "blocked by nvidia_runtime_class.runtime_class_handler"
    assert "blocked" not in found["kai_release.sharing_enabled"]


def test_an_excuse_keeps_the_check_broken_and_the_run_green() -> None:
    evidence = damaged(LAB, label("labelled_node", "product", "other"))
    expect = expectations_for(evidence, Expectations())
    excuses = {"labelled_node.gpu_product_label": Excuse("new card", "2026-12-31")}
    judgement = judge(evidence, expect, excuses=excuses, today=date(2026, 12, 31))
    result = next(check for check in judgement.checks if check.check == "gpu_product_label")
    assert result.verdict is Verdict.BROKEN
    assert result.to_json()["excused"] == {"reason": "new card", "until": "2026-12-31"}
    assert judgement.exit_code() == 0
    assert judge(evidence, expect, excuses=excuses, today=date(2027, 1, 1)).exit_code() == 1


def test_an_excuse_that_is_not_needed_is_told() -> None:
    evidence = recorded(LAB)
    excuses = {"queues.queues_exist": Excuse("renamed", "2026-12-31")}
    judgement = judge(evidence, expectations_for(evidence, Expectations()), excuses=excuses)
    assert len(judgement.notes) == 1
    assert "queues.queues_exist holds although it is excused" in judgement.notes[0]


@pytest.mark.parametrize(
    ("verdicts", "result"),
    [
        ([], "not_evaluated"),
        (["held", "not_reachable"], "held"),
        (["not_reachable"], "not_reachable"),
        (["held", "not_evaluated", "not_reachable"], "not_evaluated"),
        (["not_evaluated", "broken", "held"], "broken"),
    ],
)
def test_roll_up(verdicts: list[str], result: str) -> None:
    assert worst(map(Verdict, verdicts)).value == result


def test_exactly_our_node_where_we_make_the_cluster() -> None:
    evidence = recorded(KIND)
    assert expectations_for(evidence, Expectations()).node_names is None
    for backend in ("kind", "rehearsal"):
        assert expectations_for(replace(evidence, backend=backend), Expectations()).node_names == (NODE,)
    several = Expectations(node_names=(NODE, "worker"))
    assert expectations_for(replace(evidence, backend="kind"), several).node_names == (NODE, "worker")


def test_a_bundle_is_judged_by_its_own_versions_and_card() -> None:
    evidence = replace(recorded(KIND), profile={"gpu_count": 4, "gpu_memory_mib": 1, "gpu_product": "x"})
    expect = expectations_for(evidence, Expectations(versions={"kai_scheduler": "v1", "own": "v2"}))
    assert (expect.gpu_count, expect.gpu_memory_mib, expect.gpu_product) == (4, 1, "x")
    assert (expect.versions["kai_scheduler"], expect.versions["own"]) == ("v0.17.0", "v2")


def test_nothing_captured_holds_nothing() -> None:
    judgement = judged(Evidence(observations={asset: Observation() for asset in CHECKS}))
    assert {check.verdict for check in judgement.checks} == {Verdict.NOT_EVALUATED}
    assert judgement.boundary is Boundary.NOT_EVALUATED


def test_shared_pod_of_fraction_and_several_devices_is_accounted() -> None:
    evidence = damaged(
        LAB,
        both(
            change("shared_gpu_pod", "pods", SHARED, ("metadata", "annotations", "gpu-memory"), DROP),
            change("shared_gpu_pod", "pods", SHARED, ("metadata", "annotations", "gpu-fraction"), "0.25"),
            change("shared_gpu_pod", "pods", SHARED, ("metadata", "annotations", "gpu-fraction-num-devices"), "2"),
            log_text("shared_gpu_pod", "kai-scheduler-default", lambda text: text.replace("<1.51>", "<1.5>")),
        ),
    )
    assert finding(evidence, "shared_gpu_pod.fraction_accounted").verdict is Verdict.HELD
