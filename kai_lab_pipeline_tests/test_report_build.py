from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from kai_lab_pipeline.lab.spec import ASSETS, CHECKS
from kai_lab_pipeline.lab.verdict import Boundary, Excuse, Judgement, Verdict
from kai_lab_pipeline.report import AssetRun, Cause, ClusterAccess, ReportContext, build_report
from kai_lab_pipeline.report.build import age
from kai_lab_pipeline.report.model import Answer, Report, Tone
from kai_lab_pipeline_tests.report_samples import LIMIT, NOW, context, evidence, judgement, report, shared_pod

OUTCOME = "reservation_boundary.boundary_outcome"
FRACTION = "shared_gpu_pod.fraction_accounted"
EXCUSE = Excuse("known in this version", "2027-01-31")


def answers(made: Report) -> dict[str, Answer]:
    return {degree.name: degree.answer for degree in made.degrees}


# where it comes from


def test_a_rehearsal_is_called_simulated() -> None:
    origin = report(backend="rehearsal").origin
    assert origin.simulated
    assert origin.label == "SIMULATED (backend: rehearsal)"
    assert "never passes for a real one" in origin.sentence


@pytest.mark.parametrize("backend", ["kind", "context", "recorded"])
def test_real_backends_are_named_and_not_simulated(backend: str) -> None:
    origin = report(backend=backend).origin
    assert not origin.simulated
    assert origin.label == f"backend: {backend}"


def test_simulated_evidence_judged_as_real_is_still_simulated_and_the_difference_is_said() -> None:
    made = build_report(judgement(backend="kind"), evidence("rehearsal"), context())
    assert made.origin.simulated
    assert "Judged as backend kind, but the evidence says rehearsal." in made.notes


def test_an_unknown_backend_passes_for_nothing() -> None:
    assert report(backend="mine").origin.label == "UNKNOWN ORIGIN (backend: mine)"


# headline and verdicts


@pytest.mark.parametrize(
    ("verdicts", "excuses", "headline", "tone", "code"),
    [
        ({}, {}, "All 8 claims held", Tone.GOOD, 0),
        ({FRACTION: Verdict.BROKEN}, {}, "1 of 8 claims broken", Tone.BAD, 1),
        (
            {FRACTION: Verdict.BROKEN},
            {FRACTION: EXCUSE},
            "7 of 8 claims held; what is broken is excused",
            Tone.EXCUSED,
            0,
        ),
        (
            {FRACTION: Verdict.NOT_EVALUATED},
            {},
            "Not fully judged: 7 of 8 claims held, 1 check not evaluated",
            Tone.UNKNOWN,
            3,
        ),
        (
            {FRACTION: Verdict.BROKEN, LIMIT: Verdict.BROKEN},
            {FRACTION: EXCUSE},
            "1 of 8 claims broken",
            Tone.BAD,
            1,
        ),
    ],
)
def test_headline(
    verdicts: dict[str, Verdict], excuses: dict[str, Excuse], headline: str, tone: Tone, code: int
) -> None:
    made = report(verdicts, excuses=excuses)
    assert (made.headline, made.tone, made.exit_code) == (headline, tone, code)


def test_a_claim_beyond_the_boundary_is_not_counted_as_held() -> None:
    beyond = {f"reservation_boundary.{check.name}": Verdict.NOT_REACHABLE for check in CHECKS["reservation_boundary"]}
    made = report(beyond)
    assert made.headline == "7 of 8 claims held; the rest is not reachable on this backend"


def test_a_partial_run_counts_its_own_claims_only() -> None:
    made = report(only=(FRACTION,))
    assert made.headline == "The claim held"
    assert [claim.id for claim in made.claims] == [6]


def test_nothing_judged_is_not_good() -> None:
    made = build_report(Judgement("kind", {}, Boundary.NOT_EVALUATED, ()), evidence(), context())
    assert (made.headline, made.tone) == ("No claim was judged", Tone.UNKNOWN)


def test_excused_broken_and_not_evaluated_are_told_apart() -> None:
    checks = {
        FRACTION: Verdict.BROKEN,
        "queues.queues_exist": Verdict.BROKEN,
        "isolator_release.webhook_mutates": Verdict.NOT_EVALUATED,
    }
    made = report(checks, excuses={FRACTION: EXCUSE})
    rows = {row.name: row for row in made.checks}
    assert rows[FRACTION].label == "broken, excused"
    assert rows[FRACTION].excused == EXCUSE
    assert rows["queues.queues_exist"].label == "broken"
    assert rows["isolator_release.webhook_mutates"].label == "not evaluated"
    assert made.excused_checks == 1
    assert {claim.id: claim.label for claim in made.claims if claim.label != "held"} == {
        3: "broken",
        4: "not evaluated",
        6: "broken, excused",
    }


def test_a_claim_with_an_excused_and_a_plain_broken_check_is_broken() -> None:
    made = report(
        {FRACTION: Verdict.BROKEN, "labelled_node.gpu_memory_label": Verdict.BROKEN}, excuses={FRACTION: EXCUSE}
    )
    assert next(claim.label for claim in made.claims if claim.id == 6) == "broken"


def test_an_excuse_that_is_not_needed_any_more_is_told() -> None:
    made = report(excuses={FRACTION: EXCUSE})
    assert any(note.startswith(f"{FRACTION} held although") for note in made.notes)
    assert made.excused_checks == 0


def test_a_claims_tally_tells_what_is_not_held() -> None:
    tallies = {claim.id: claim.tally for claim in report().claims}
    assert tallies[5] == "2 of 2 checks held"
    assert tallies[7] == "3 of 4 checks held, 1 not reachable"


# the four degrees


def test_degrees_where_the_boundary_stands() -> None:
    assert answers(report()) == {
        "scheduled": Answer.YES,
        "wired": Answer.YES,
        "limited": Answer.NOT_REACHABLE,
        "running": Answer.NOT_REACHABLE,
    }


def test_degrees_where_the_boundary_is_crossed() -> None:
    made = report({LIMIT: Verdict.HELD}, boundary=Boundary.CROSSED)
    assert set(answers(made).values()) == {Answer.YES}


def test_one_missing_part_of_the_wiring_is_a_no_and_names_the_part() -> None:
    made = report({"shared_gpu_pod.runtime_class_injected": Verdict.BROKEN})
    wired = made.degrees[1]
    assert wired.answer is Answer.NO
    assert wired.message == "about shared_gpu_pod.runtime_class_injected"
    assert answers(made)["scheduled"] is Answer.YES


def test_a_pod_that_had_to_run_and_did_not_is_a_no() -> None:
    made = build_report(judgement(), evidence(crossing="toolkit in cdi mode"), context())
    assert answers(made)["running"] is Answer.NO


def test_another_failure_is_a_no() -> None:
    assert answers(report(boundary=Boundary.DIFFERENT))["running"] is Answer.NO


def test_a_running_pod_with_a_wrong_limit_runs() -> None:
    seen = evidence(pod=shared_pod(phase="Running", node="n1"))
    made = build_report(judgement({LIMIT: Verdict.BROKEN}, boundary=Boundary.DIFFERENT), seen, context())
    assert answers(made)["running"] is Answer.YES
    assert answers(made)["limited"] is Answer.NO


def test_degrees_without_their_checks_are_not_evaluated() -> None:
    made = report(only=("cluster.node_ready",), boundary=Boundary.NOT_EVALUATED)
    assert set(answers(made).values()) == {Answer.NOT_EVALUATED}


def test_every_degree_names_checks_that_exist() -> None:
    known = {f"{asset}.{check.name}" for asset, checks in CHECKS.items() for check in checks}
    for degree in report().degrees:
        assert degree.sources
        assert set(degree.sources) <= known


# the boundary


def test_the_boundary_sentence_tells_each_outcome_apart() -> None:
    crossing = "toolkit in cdi mode"
    expected = report().boundary_sentence
    though_set_up = build_report(judgement(), evidence(crossing=crossing), context()).boundary_sentence
    crossed = build_report(judgement(boundary=Boundary.CROSSED), evidence(crossing=crossing), context())
    moved = report(boundary=Boundary.CROSSED).boundary_sentence
    different = report(boundary=Boundary.DIFFERENT).boundary_sentence
    unknown = report(boundary=Boundary.NOT_EVALUATED).boundary_sentence
    assert expected.startswith("The boundary stands, as it must here")
    assert crossing in though_set_up
    assert crossing in crossed.boundary_sentence
    assert "boundary moved" in moved
    assert f"about {OUTCOME}" in different
    assert "not judged" in unknown


def test_an_outcome_this_backend_must_not_give_is_not_coloured_as_good() -> None:
    assert report().boundary_tone is Tone.GOOD
    wrong = report({OUTCOME: Verdict.BROKEN}, boundary=Boundary.CROSSED)
    assert wrong.boundary_tone is Tone.BAD


# steps, runs, ages


def test_steps_come_in_the_labs_order_with_run_age_and_duration() -> None:
    made = build_report(judgement(), evidence(), context(durations={"cluster": 14.2, "queues": 0.7}))
    steps = {step.asset: step for step in made.steps}
    assert list(steps) == [asset for asset in ASSETS if asset in ("cluster", "queues", "reservation_boundary")]
    boundary = steps["reservation_boundary"]
    assert (boundary.run_id, boundary.age) == ("run-0001", "5 min")
    assert boundary.run_url == "http://127.0.0.1:3000/runs/run-0001"
    assert steps["cluster"].duration_s == 14.2
    assert steps["cluster"].age == "nothing captured"


def test_a_run_given_by_the_caller_wins_over_the_one_in_the_evidence() -> None:
    runs = {"reservation_boundary": AssetRun("run-0002", NOW - timedelta(days=2))}
    made = build_report(judgement(), evidence(), context(runs=runs))
    assert (made.steps[0].run_id, made.steps[0].age) == ("run-0002", "2 d")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59, "59 s"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3605, "1 h"),
        (97200, "1 d 3 h"),
        (-5, "in the future"),
    ],
)
def test_age(seconds: int, text: str) -> None:
    assert age(NOW - timedelta(seconds=seconds), NOW) == text


def test_age_without_a_time_is_unknown() -> None:
    assert age(None, NOW) == "unknown"


# notes, causes, links, access


def test_notes_come_from_context_judgement_and_evidence_once_each() -> None:
    given = replace(judgement(), notes=("queues/pods.json cannot be read",))
    seen = replace(evidence(), notes=("queues/pods.json cannot be read", "no helm.json"))
    made = build_report(given, seen, context(notes=("ended red at step queues: \x1b[31mrefused\x1b[0m",)))
    assert made.notes == ("ended red at step queues: refused", "queues/pods.json cannot be read", "no helm.json")


def test_causes_are_cleaned() -> None:
    cause = Cause("image\x00 missing", ("docker pull x",), ("\x1b[31mErrImagePull\x1b[0m",), transient=True)
    made = build_report(judgement(), evidence(), context(causes=(cause,)))
    assert made.causes[0].cause == "image missing"
    assert made.causes[0].evidence == ("ErrImagePull",)


def test_the_group_page_of_the_ui_is_linked() -> None:
    assert report().group_url == "http://127.0.0.1:3000/locations/kai_lab_pipeline/asset-groups/lab/lineage"


def test_a_run_id_cannot_leave_its_address() -> None:
    assert context().run_url("../x?y#z") == "http://127.0.0.1:3000/runs/..%2Fx%3Fy%23z"


def test_commands_use_the_labs_own_kubeconfig_unless_told_otherwise() -> None:
    own = build_report(judgement(), evidence(), context()).checks
    assert all("--kubeconfig .lab/kai-hami-test/kubeconfig" in "".join(row.commands) for row in own)
    other = build_report(judgement(), evidence(), context(access=ClusterAccess(context="my gpus"))).checks
    lines = [line for row in other for line in row.commands]
    assert not any("--kubeconfig" in line for line in lines)
    assert all("kubectl --context 'my gpus' " in line or "helm --kube-context 'my gpus' " in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"generated_at": datetime(2026, 1, 1)}, "time zone"),
        ({"runs": {"queues": AssetRun("r", datetime(2026, 1, 1))}}, "queues"),
        ({"durations": {"queues": math.inf}}, "queues"),
        ({"durations": {"queues": -1.0}}, "queues"),
        ({"dagster_url": "javascript:alert(1)"}, "http://"),
    ],
)
def test_a_context_that_cannot_be_shown_is_refused(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        context(**changes)


def test_context_defaults_need_no_more_than_time_and_lab() -> None:
    plain = ReportContext(generated_at=datetime(2026, 1, 1, tzinfo=timezone.utc), lab="l")
    assert plain.cluster_access.kubectl() == "kubectl --kubeconfig .lab/l/kubeconfig"
