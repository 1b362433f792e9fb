"""The version matrix: attribution of what broke, flakes and lost nights told apart, and the morning summary."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone

import pytest

from kai_lab_pipeline.lab.attribution import Cell, Kind
from kai_lab_pipeline.lab.due import Reason, due
from kai_lab_pipeline.lab.morning import Nightly, morning_summary
from kai_lab_pipeline.lab.own_builds import called
from kai_lab_pipeline.lab.spec import CLAIMS
from kai_lab_pipeline.lab.verdict import (
    Boundary,
    CheckResult,
    ClaimResult,
    Excuse,
    Judgement,
    Verdict,
    broken,
    held,
    not_evaluated,
    worst,
)
from kai_lab_pipeline.lab.verdict_record import ClaimVerdict, VerdictRecord, record_of
from kai_lab_pipeline.lab.version_matrix import Matrix, Row, build_matrix
from kai_lab_pipeline.lab.version_sets import Lane, version_set

PINNED = {
    "nvml_mock": "0.3.0",
    "kai_scheduler": "v0.17.0",
    "kai_resource_isolator": "1.1.0-chart",
    "device_plugin": "v0.18.2",
}
FIRST_NIGHT = datetime(2026, 11, 27, 2, 0, tzinfo=timezone.utc)
KAI_18 = {"kai_scheduler": "v0.18.3"}
KAI_17_2 = {"kai_scheduler": "v0.17.2"}
MOCK_4 = {"nvml_mock": "0.4.0"}


def record(
    changes: Mapping[str, str],
    broken_claims: Iterable[int] = (),
    *,
    night: int = 0,
    lane: Lane = Lane.FRESH,
    **fields: object,
) -> VerdictRecord:
    found = version_set(PINNED, changes, lane)
    claims = {
        claim.id: ClaimVerdict(Verdict.BROKEN, checks=("a.b",), message="It is broken")
        if claim.id in set(broken_claims)
        else ClaimVerdict(Verdict.HELD)
        for claim in CLAIMS
    }
    base = VerdictRecord(
        key=found.key,
        versions=found.versions,
        lane=lane,
        backend="rehearsal",
        at=FIRST_NIGHT + timedelta(days=night),
        run_id=f"run-{found.key}-{night}",
        claims=claims,
        boundary=Boundary.EXPECTED,
        evidence=f"evidence/{found.key}/{night}",
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def lost(changes: Mapping[str, str], *, night: int = 0, why: str = "the registry limits the rate") -> VerdictRecord:
    return record(changes, night=night, claims={}, boundary=Boundary.NOT_EVALUATED, infrastructure=why)


def row_of(matrix: Matrix, changes: Mapping[str, str], lane: Lane = Lane.FRESH) -> Row:
    key = version_set(PINNED, changes, lane).key
    return next(row for row in matrix.rows if row.version_set.key == key)


def exit_code(matrix: Matrix, *changes: Mapping[str, str]) -> int:
    """Of a night that made all records and took on these version sets; all of the matrix where none is named."""
    keys = [version_set(PINNED, one).key for one in changes] or [row.version_set.key for row in matrix.rows]
    last = Nightly(FIRST_NIGHT, tuple(keys), records_before=0)
    return morning_summary(matrix, now=FIRST_NIGHT, last=last, next_at=None).exit_code()


def cell(matrix: Matrix, changes: Mapping[str, str], claim: int, lane: Lane = Lane.FRESH) -> Cell:
    return next(one for one in row_of(matrix, changes, lane).cells if one.claim == claim)


def test_a_regression_is_the_step_of_the_component_that_moved() -> None:
    matrix = build_matrix([record({}), record(KAI_17_2), record(KAI_18, [6, 7])], PINNED)
    found = cell(matrix, KAI_18, 7)
    assert found.kind is Kind.REGRESSION
    assert found.blamed == ("kai_scheduler",)
    assert str(found.last_good) == "kai_scheduler v0.17.2"
    assert str(found.first_bad) == "kai_scheduler v0.18.3"
    assert "last good v0.17.2, first bad v0.18.3" in found.sentence
    assert cell(matrix, KAI_18, 1).kind is Kind.HELD
    assert row_of(matrix, KAI_17_2).state is Kind.HELD
    assert [one.id for one in matrix.regressions()] == [
        "rehearsal/fresh/kai_scheduler@0.18.3/claim-6",
        "rehearsal/fresh/kai_scheduler@0.18.3/claim-7",
    ]
    assert exit_code(matrix) == 1
    assert exit_code(matrix, KAI_17_2) == 0


def test_versions_after_the_first_bad_one_name_the_first() -> None:
    later = {"kai_scheduler": "v0.19.0"}
    fixed = {"kai_scheduler": "v0.19.1"}
    again = {"kai_scheduler": "v0.19.10"}
    history = [record({}), record(later, [7]), record(KAI_18, [7]), record(again, [7]), record(fixed)]
    matrix = build_matrix(history, PINNED)
    assert str(cell(matrix, later, 7).first_bad) == "kai_scheduler v0.18.3"
    assert str(cell(matrix, later, 7).last_good) == "kai_scheduler v0.17.0"
    assert str(cell(matrix, again, 7).last_good) == "kai_scheduler v0.19.1"
    assert str(cell(matrix, again, 7).first_bad) == "kai_scheduler v0.19.10"
    assert len(matrix.regressions()) == 2


def test_the_newest_of_all_together_blames_the_guilty_one_and_is_told_once() -> None:
    history = [record({}), record(KAI_18, [7]), record(MOCK_4), record(KAI_18 | MOCK_4, [7])]
    matrix = build_matrix(history, PINNED)
    assert cell(matrix, KAI_18 | MOCK_4, 7).blamed == ("kai_scheduler",)
    assert [one.row.version_set.moved for one in matrix.regressions()] == [("kai_scheduler",)]


def test_two_guilty_components_are_both_named() -> None:
    history = [record({}), record(KAI_18, [7]), record(MOCK_4, [7]), record(KAI_18 | MOCK_4, [7])]
    found = cell(build_matrix(history, PINNED), KAI_18 | MOCK_4, 7)
    assert set(found.blamed) == {"kai_scheduler", "nvml_mock"}
    assert "kai_scheduler v0.18.3" in found.sentence
    assert "nvml_mock 0.4.0" in found.sentence


def test_a_combination_that_breaks_although_each_alone_holds() -> None:
    history = [record({}), record(KAI_18), record(MOCK_4), record(KAI_18 | MOCK_4, [7])]
    found = cell(build_matrix(history, PINNED), KAI_18 | MOCK_4, 7)
    assert found.kind is Kind.REGRESSION
    assert found.sentence.startswith("Only the combination of")


def test_a_combination_whose_parts_were_not_judged_accuses_nobody_alone() -> None:
    found = cell(build_matrix([record({}), record(KAI_18 | MOCK_4, [7])], PINNED), KAI_18 | MOCK_4, 7)
    assert found.sentence.startswith("One of ")


def test_an_upgrade_that_breaks_what_a_fresh_install_holds() -> None:
    history = [record({}), record(KAI_18), record(KAI_18, [2], lane=Lane.UPGRADE)]
    matrix = build_matrix(history, PINNED)
    found = cell(matrix, KAI_18, 2, Lane.UPGRADE)
    assert found.kind is Kind.REGRESSION
    assert "upgrading a living lab to kai_scheduler v0.18.3" in found.sentence
    assert cell(matrix, KAI_18, 2).kind is Kind.HELD
    assert [one.id for one in matrix.regressions()] == ["rehearsal/upgrade/kai_scheduler@0.18.3/claim-2"]


def test_what_the_pinned_versions_break_too_is_no_regression() -> None:
    matrix = build_matrix([record({}, [7]), record(KAI_18, [7])], PINNED)
    assert cell(matrix, {}, 7).kind is Kind.FIRST_FAILURE
    found = cell(matrix, KAI_18, 7)
    assert found.kind is Kind.FIRST_FAILURE
    assert "the pinned versions break it too" in found.sentence
    assert matrix.regressions() == ()
    assert exit_code(matrix) == 1


OWN_BUILD = called("v0.17.0", image="ghcr.io/me/kai-scheduler:pr-123")


@pytest.mark.parametrize(
    "changes",
    [
        {"kai_resource_isolator": "1.0.0-chart"},
        {"kai_scheduler": "v0.16.8"},
        {"kai_scheduler": "0.0.0-d5bc503"},
        {"kai_scheduler": "pr-123"},
        {"kai_scheduler": OWN_BUILD},
        {"kai_scheduler": "v0.18.2-hotfix"},
    ],
)
def test_what_held_with_the_pinned_versions_is_a_regression_of_any_other_build(changes: dict[str, str]) -> None:
    [(component, version)] = changes.items()
    matrix = build_matrix([record({}), record(KAI_17_2), record(changes, [7])], PINNED)
    found = cell(matrix, changes, 7)
    assert (found.kind, found.blamed) == (Kind.REGRESSION, (component,))
    assert found.sentence == f"{component} {version} broke it: it held with the pinned {PINNED[component]}."
    assert str(found.last_good) == f"{component} {PINNED[component]}"
    assert len(matrix.regressions()) == 1
    broken_too = build_matrix([record({}, [7]), record(changes, [7])], PINNED)
    assert "the pinned versions break it too" in cell(broken_too, changes, 7).sentence
    assert broken_too.regressions() == ()


def test_an_older_version_below_the_pinned_one_still_names_the_good_one_before_it() -> None:
    older, old = {"kai_scheduler": "v0.16.0"}, {"kai_scheduler": "v0.16.8"}
    found = cell(build_matrix([record({}), record(older), record(old, [7])], PINNED), old, 7)
    assert found.sentence == "kai_scheduler v0.16.8 broke it: last good v0.16.0, first bad v0.16.8."


def test_what_stands_aside_of_the_releases_is_neither_their_first_bad_nor_their_last_good() -> None:
    """v0.20.1 was retracted, and is older than v0.17 whatever semver says: it continues nothing of v0.19."""
    retracted, later = {"kai_scheduler": "v0.20.1"}, {"kai_scheduler": "v0.21.0"}
    build = {"kai_scheduler": OWN_BUILD}
    history = [record({}), record(build, [7]), record(KAI_18), record(retracted, [6, 7]), record(later, [6, 7])]
    matrix = build_matrix(history, PINNED)
    for claim in (6, 7):
        assert str(cell(matrix, retracted, claim).first_bad) == "kai_scheduler v0.20.1"
        assert "it held with the pinned v0.17.0" in cell(matrix, retracted, claim).sentence
        assert cell(matrix, later, claim).sentence.endswith("last good v0.18.3, first bad v0.21.0.")
    assert len(matrix.regressions()) == 5
    releases = build_matrix([record({}), record(KAI_18, [7]), record(retracted, [7]), record(later, [7])], PINNED)
    assert [one.id.split("/")[2] for one in releases.regressions()] == ["kai_scheduler@0.18.3", "kai_scheduler@0.20.1"]


def test_an_own_repository_of_charts_without_a_suffix_keeps_its_order() -> None:
    pinned = {**PINNED, "kai_resource_isolator": "1.1.0"}
    changes = [{}, {"kai_resource_isolator": "1.2.0"}, {"kai_resource_isolator": "1.3.0"}]
    sets = [version_set(pinned, change) for change in changes]
    history = [
        record({}, [7] if place == 2 else [], key=found.key, versions=found.versions)
        for place, found in enumerate(sets)
    ]
    bad = next(row for row in build_matrix(history, pinned).rows if row.version_set.key == sets[2].key)
    assert bad.cells[6].sentence.endswith("last good 1.2.0, first bad 1.3.0.")


def test_without_a_verdict_of_the_pinned_versions_nothing_is_blamed() -> None:
    matrix = build_matrix([record(KAI_18, [7])], PINNED)
    assert "no verdict yet" in cell(matrix, KAI_18, 7).sentence
    assert cell(matrix, KAI_18, 7).kind is Kind.FIRST_FAILURE


def test_another_backend_proves_nothing() -> None:
    matrix = build_matrix([record({}, backend="kind"), record(KAI_18, [7])], PINNED)
    assert cell(matrix, KAI_18, 7).kind is Kind.FIRST_FAILURE


def test_broken_then_held_with_the_same_content_is_a_flake() -> None:
    matrix = build_matrix([record({}), record(KAI_18, [7], night=1), record(KAI_18, night=2)], PINNED)
    found = cell(matrix, KAI_18, 7)
    assert (found.kind, found.verdict, found.needs_rerun) == (Kind.FLAKE, Verdict.HELD, False)
    assert exit_code(matrix) == 0


def test_a_flake_is_told_in_the_summary_of_its_night() -> None:
    night_1 = [record({}), record(KAI_18, [6, 7], night=1), record(KAI_18, night=1), record(MOCK_4, night=1)]
    matrix = build_matrix(night_1, PINNED)
    last = replace(night(KAI_18, MOCK_4), records_before=1)
    summary = morning_summary(matrix, now=NOW, last=last, next_at=None)
    key = version_set(PINNED, KAI_18).key
    line = f"{key}, claims 6, 7: flake. Held when it was run again; broken 2026-11-28 02:00 with the same versions."
    assert summary.flakes == (line,)
    assert line in summary.text().splitlines()
    assert summary.to_json()["flakes"] == [line]
    assert (summary.broken, summary.exit_code()) == ((), 0)
    next_night = replace(night(MOCK_4), records_before=3)
    assert morning_summary(matrix, now=NOW, last=next_night, next_at=None).flakes == (), "it is of the night before"
    shaky = build_matrix([record({}), record(KAI_18), record(KAI_18, [7], night=1)], PINNED)
    told = morning_summary(shaky, now=NOW, last=replace(night(KAI_18), records_before=2), next_at=None)
    assert told.flakes == (
        f"{key}, claim 7: flake. Broken once, held 2026-11-27 02:00 with the same versions: run it again to tell.",
    )
    assert told.text().count("run it again to tell") == 1
    assert (told.not_evaluated, told.exit_code()) == ((key,), 3), "broken once, and not run again yet"


def test_the_news_of_another_backend_are_none_of_this_night() -> None:
    there = record(KAI_18, backend="kind", unexpected_passes=("a.c",))
    here = record(KAI_18, unexpected_passes=("a.d",))
    last = replace(night(KAI_18), backend="rehearsal", records_before=0)
    text = morning_summary(build_matrix([there, here], PINNED), now=NOW, last=last, next_at=None).text()
    assert "a.d is excused and held all the same" in text
    assert "a.c" not in text


def test_held_then_broken_once_asks_for_a_rerun_and_twice_is_a_regression() -> None:
    history = [record({}), record(KAI_18), record(KAI_18, [7], night=1)]
    once = cell(build_matrix(history, PINNED), KAI_18, 7)
    assert (once.kind, once.needs_rerun) == (Kind.FLAKE, True)
    twice = cell(build_matrix([*history, record(KAI_18, [7], night=2)], PINNED), KAI_18, 7)
    assert twice.kind is Kind.REGRESSION
    assert "something that no version pins has moved" in twice.sentence
    assert twice.since == FIRST_NIGHT + timedelta(days=1)


def test_a_repushed_chart_that_breaks_is_a_regression_of_that_component() -> None:
    history = [
        record({}),
        record(KAI_18, digests={"kai_scheduler": "sha256:a", "nvml_mock": "sha256:n"}),
        record(KAI_18, [7], night=1, digests={"kai_scheduler": "sha256:b", "nvml_mock": "sha256:n"}),
    ]
    matrix = build_matrix(history, PINNED)
    found = cell(matrix, KAI_18, 7)
    assert (found.kind, found.blamed) == (Kind.REGRESSION, ("kai_scheduler",))
    assert "pushed again" in found.sentence
    assert any("pushed again with other content" in line for line in matrix.news())


def test_a_repushed_chart_that_heals_is_no_flake() -> None:
    history = [
        record({}),
        record(KAI_18, [7], digests={"kai_scheduler": "sha256:a"}),
        record(KAI_18, night=1, digests={"kai_scheduler": "sha256:b"}),
    ]
    assert cell(build_matrix(history, PINNED), KAI_18, 7).kind is Kind.HELD


def test_a_night_lost_to_infrastructure_is_no_regression() -> None:
    matrix = build_matrix([record({}), record(KAI_18), lost(KAI_18, night=1)], PINNED)
    found = cell(matrix, KAI_18, 7)
    assert (found.kind, found.verdict) == (Kind.NOT_EVALUATED, Verdict.NOT_EVALUATED)
    assert "the registry limits the rate. Last verdict: held 2026-11-27 02:00." in found.sentence
    assert found.since == FIRST_NIGHT + timedelta(days=1)
    assert exit_code(matrix) == 3
    assert matrix.regressions() == ()


def test_a_lost_night_between_changes_nothing() -> None:
    history = [record({}), record(KAI_18), lost(KAI_18, night=1), record(KAI_18, night=2)]
    found = cell(build_matrix(history, PINNED), KAI_18, 7)
    assert (found.kind, found.since) == (Kind.HELD, FIRST_NIGHT)


KNOWN = Excuse("renamed value", "2026-12-01")


@pytest.mark.parametrize(
    ("today", "kind", "code"),
    [("2026-12-01", Kind.EXCUSED, 0), ("2026-12-02", Kind.REGRESSION, 1)],
)
def test_an_excuse_that_has_ended_counts_no_more(today: str, kind: Kind, code: int) -> None:
    claims = {claim.id: ClaimVerdict(Verdict.HELD) for claim in CLAIMS}
    claims[7] = ClaimVerdict(Verdict.BROKEN, KNOWN, checks=("a.b",), message="known")
    history = [record({}), *(record(KAI_18, night=number, claims=claims) for number in range(2))]
    matrix = build_matrix(history, PINNED, today=date.fromisoformat(today))
    found = cell(matrix, KAI_18, 7)
    assert (found.kind, exit_code(matrix)) == (kind, code)
    assert "until 2026-12-01 (renamed value)" in found.sentence
    assert len(matrix.regressions()) == code
    once = build_matrix(history[:2], PINNED, today=date.fromisoformat(today))
    found_due = due([version_set(PINNED, KAI_18)], once, backend="rehearsal")
    assert [one.reason for one in found_due] == [Reason.RERUN] * code, "once more, since it counts as broken now"


def test_excused_and_passing_unexpectedly() -> None:
    excused = {7: ClaimVerdict(Verdict.BROKEN, KNOWN, checks=("a.b",), message="known")}
    claims = {claim.id: ClaimVerdict(Verdict.HELD) for claim in CLAIMS} | excused
    matrix = build_matrix([record({}), record(KAI_18, claims=claims, unexpected_passes=("a.c",))], PINNED)
    assert cell(matrix, KAI_18, 7).kind is Kind.EXCUSED
    assert exit_code(matrix) == 0
    assert any("a.c is excused and held all the same" in line for line in matrix.news())


def test_a_crossed_boundary_that_nobody_set_up_is_news() -> None:
    matrix = build_matrix([record({}), record(KAI_18, [8], boundary=Boundary.CROSSED)], PINNED)
    assert cell(matrix, KAI_18, 8).kind is Kind.BOUNDARY_MOVED
    assert exit_code(matrix) == 0
    assert any("boundary moved" in line for line in matrix.news())
    different = build_matrix([record({}), record(KAI_18, [8], boundary=Boundary.DIFFERENT)], PINNED)
    assert cell(different, KAI_18, 8).kind is Kind.REGRESSION


def test_a_clock_that_jumps_back_does_not_turn_the_order_round() -> None:
    history = [record({}), record(KAI_18, [7], night=5), record(KAI_18, [7], night=-5)]
    found = cell(build_matrix(history, PINNED), KAI_18, 7)
    assert found.run_id.endswith("--5")
    assert found.since == FIRST_NIGHT + timedelta(days=5)


def test_250_version_sets_stay_quick() -> None:
    history = [record({})] + [record({"kai_scheduler": f"v0.18.{patch}"}, [7]) for patch in range(250)]
    began = time.process_time()
    matrix = build_matrix(history, PINNED)
    assert time.process_time() - began < 8
    assert len(matrix.regressions()) == 1


def test_a_record_of_before_that_names_no_end_of_its_excuse_is_readable_and_excuses_nothing() -> None:
    data = record(KAI_18, [7]).to_json()
    data["claims"]["7"]["excused"] = True
    data["claims"]["1"]["excused"] = False
    old = VerdictRecord.from_json(data)
    assert (old.claims[7].excused, old.claims[1].excused) == (None, None)
    assert cell(build_matrix([record({}), old], PINNED), KAI_18, 7).kind is Kind.REGRESSION
    data["claims"]["7"]["excused"] = {"reason": "x", "until": "soon"}
    with pytest.raises(ValueError, match="soon"):
        VerdictRecord.from_json(data)


def test_several_excuses_of_one_claim_count_until_the_first_of_them_ends() -> None:
    def check(name: str, excuse: Excuse | None) -> CheckResult:
        return CheckResult("kai_release", name, broken("a", "b", f"{name} is gone."), excuse)

    early, late = Excuse("first", "2026-12-01"), Excuse("second", "2027-12-01")
    both = (check("values_have_effect", late), check("hamicore_enabled", early))
    empty = Judgement("rehearsal", PINNED, Boundary.EXPECTED, ())
    made = record_of(empty, version_set(PINNED, KAI_18), at=FIRST_NIGHT, run_id="r", values=both)
    assert made.values is not None
    assert made.values.excused == Excuse("second; first", "2026-12-01")
    one_without = (*both, check("other", None))
    made = record_of(empty, version_set(PINNED, KAI_18), at=FIRST_NIGHT, run_id="r", values=one_without)
    assert made.values is not None
    assert (made.values.excused, made.values.message) == (None, "other is gone.")


def test_records_survive_json() -> None:
    one = record(KAI_18, [7], digests={"kai_scheduler": "sha256:a"}, crossing="toolkit", infrastructure="x")
    assert VerdictRecord.from_json(one.to_json()) == one
    with pytest.raises(ValueError, match="'at' is no RFC 3339 time"):
        VerdictRecord.from_json(one.to_json() | {"at": "yesterday"})


def judgement(excused: bool) -> Judgement:
    excuse = Excuse("renamed value", "2027-01-01") if excused else None
    claims = []
    for claim in CLAIMS:
        findings = {claim.checks[0]: held("x", "x", "fine")}
        if claim.id == 7:
            findings[claim.checks[1]] = broken("a", "b", "The runtime class is missing.")
        if claim.id == 8:
            findings[claim.checks[1]] = not_evaluated("a", "blocked by something")
        checks = tuple(
            CheckResult(
                name.partition(".")[0],
                name.partition(".")[2],
                finding,
                excuse if finding.verdict is Verdict.BROKEN else None,
            )
            for name, finding in findings.items()
        )
        claims.append(ClaimResult(claim.id, claim.statement, worst(c.verdict for c in checks), checks))
    return Judgement("rehearsal", PINNED, Boundary.NOT_EVALUATED, tuple(claims))


@pytest.mark.parametrize("excused", [False, True])
def test_a_record_of_a_judgement(excused: bool) -> None:
    held_anyway = CLAIMS[0].checks[0]
    found = record_of(
        judgement(excused),
        version_set(PINNED, KAI_18),
        at=FIRST_NIGHT,
        run_id="r1",
        excuses={held_anyway: Excuse("x", "2027-01-01")},
    )
    excuse = Excuse("renamed value", "2027-01-01") if excused else None
    assert found.claims[7] == ClaimVerdict(
        Verdict.BROKEN, excuse, (CLAIMS[6].checks[1],), "The runtime class is missing."
    )
    assert VerdictRecord.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert found.claims[8].verdict is Verdict.NOT_EVALUATED
    assert found.claims[1] == ClaimVerdict(Verdict.HELD)
    assert found.unexpected_passes == (held_anyway,)
    assert found.versions["kai_scheduler"] == "v0.18.3"


NOW = FIRST_NIGHT + timedelta(days=1, hours=6)


def night(*changes: Mapping[str, str], started: datetime = FIRST_NIGHT + timedelta(days=1)) -> Nightly:
    return Nightly(started, tuple(version_set(PINNED, one).key for one in changes))


def test_the_morning_says_what_the_night_left() -> None:
    history = [record({}), record(KAI_17_2, night=1), record(KAI_18, [7], night=1), lost(MOCK_4, night=1)]
    matrix = build_matrix(history, PINNED)
    summary = morning_summary(
        matrix,
        now=NOW,
        last=night(KAI_17_2, KAI_18, MOCK_4, KAI_18 | MOCK_4),
        next_at=FIRST_NIGHT + timedelta(days=2),
    )
    lines = summary.text().splitlines()
    assert lines[0] == (
        "Last nightly ran at 2026-11-28 02:00 UTC: 2 new, 1 broken, 2 not evaluated, next at 2026-11-29 02:00 UTC."
    )
    assert any("claim 7: regression. kai_scheduler v0.18.3 broke it" in line for line in lines)
    assert any("the registry limits the rate" in line for line in lines)
    assert summary.alarm == ""
    assert summary.to_json()["not_evaluated"] == [
        version_set(PINNED, MOCK_4).key,
        version_set(PINNED, KAI_18 | MOCK_4).key,
    ]


def test_a_night_with_nothing_new() -> None:
    matrix = build_matrix([record({}), record(KAI_18, [7])], PINNED)
    summary = morning_summary(matrix, now=NOW, last=night(), next_at=None)
    assert "0 new, 0 broken, 0 not evaluated, no next one is scheduled" in summary.text()


@pytest.mark.parametrize(("hours", "alarm"), [(25.9, ""), (26.1, "26 h old"), (-1, "check the clock")])
def test_the_alarm_after_26_hours(hours: float, alarm: str) -> None:
    last = Nightly(NOW - timedelta(hours=hours))
    summary = morning_summary(build_matrix([], PINNED), now=NOW, last=last, next_at=None)
    assert alarm in summary.alarm
    assert bool(summary.alarm) is bool(alarm)
    assert summary.text().startswith("ALARM") is bool(alarm)


@pytest.mark.parametrize(
    ("on_for", "alarm"),
    [
        (None, "no nightly has run yet, although the schedule is on: is the daemon running?"),
        (25.9, ""),
        (
            26.1,
            "no nightly has run yet, although the schedule is on since 2026-11-27 05:54 UTC: is the daemon running?",
        ),
    ],
)
def test_the_alarm_where_the_schedule_is_on_and_no_nightly_ever_ran(on_for: float | None, alarm: str) -> None:
    since = None if on_for is None else NOW - timedelta(hours=on_for)
    matrix, next_at = build_matrix([], PINNED), NOW + timedelta(hours=2)
    summary = morning_summary(matrix, now=NOW, last=None, next_at=next_at, on_since=since)
    assert summary.alarm == alarm
    off = morning_summary(matrix, now=NOW, last=None, next_at=None, on_since=since)
    assert (off.alarm, off.validity) == ("", "")


def test_before_the_first_night() -> None:
    summary = morning_summary(build_matrix([], PINNED), now=NOW, last=None, next_at=None)
    assert (
        summary.text()
        == "No nightly has run yet: 0 new, 0 broken, 0 not evaluated, no next one is scheduled: the schedule is off."
    )


@pytest.mark.parametrize(
    ("waiting", "line"), [(7, "7 version sets wait for the next night"), (1, "1 version set waits for the next night")]
)
def test_what_the_cap_of_a_night_kept_out_is_told(waiting: int, line: str) -> None:
    last = Nightly(FIRST_NIGHT, ("a", "b"), waiting=waiting)
    summary = morning_summary(build_matrix([], PINNED), now=FIRST_NIGHT, last=last, next_at=None)
    assert f"{line}: one takes on 2 (nightly.cap in lab.toml)." in summary.text().splitlines()
    assert summary.to_json()["last_nightly"]["waiting"] == waiting
    none = morning_summary(build_matrix([], PINNED), now=FIRST_NIGHT, last=replace(last, waiting=0), next_at=None)
    assert "for the next night" not in none.text()


def test_a_nightly_survives_json() -> None:
    last = Nightly(FIRST_NIGHT, ("a", "b"), ("kai_scheduler: could not look",), "kind", 7, 2)
    assert Nightly.from_json(last.to_json()) == last
    older = {"started_at": FIRST_NIGHT.isoformat(), "keys": ["a", "b"]}
    assert Nightly.from_json(older) == Nightly(FIRST_NIGHT, ("a", "b"))
    with pytest.raises(ValueError, match="started_at"):
        Nightly.from_json({"started_at": 7})


def test_half_a_verdict_of_a_lost_night_does_not_count() -> None:
    half = record(KAI_18, [7], night=1, infrastructure="the node went away")
    matrix = build_matrix([record({}), record(KAI_18), half, record(KAI_18, night=2)], PINNED)
    assert cell(matrix, KAI_18, 7).kind is Kind.HELD
    assert cell(matrix, KAI_18, 7).since == FIRST_NIGHT


def test_a_crossing_that_was_set_up_and_is_broken_is_a_failure() -> None:
    crossed = record(KAI_18, [8], boundary=Boundary.CROSSED, crossing="toolkit")
    assert cell(build_matrix([record({}), crossed], PINNED), KAI_18, 8).kind is Kind.REGRESSION


def test_lanes_are_told_apart_when_looking_for_the_guilty() -> None:
    history = [
        record({}),
        record(KAI_18, [7]),
        record(KAI_18, lane=Lane.UPGRADE),
        record(MOCK_4),
        record(MOCK_4, lane=Lane.UPGRADE),
        record(KAI_18 | MOCK_4, [7]),
        record(KAI_18 | MOCK_4, [7], lane=Lane.UPGRADE),
    ]
    found = cell(build_matrix(history, PINNED), KAI_18 | MOCK_4, 7, Lane.UPGRADE)
    assert found.sentence.startswith("Only the combination of")


def test_an_older_version_on_the_other_lane_is_not_the_last_good_one() -> None:
    history = [record({}), record(KAI_17_2, lane=Lane.UPGRADE), record(KAI_18, [7])]
    assert str(cell(build_matrix(history, PINNED), KAI_18, 7).last_good) == "kai_scheduler v0.17.0"


def test_a_set_that_the_night_took_on_and_did_not_reach_is_not_evaluated() -> None:
    matrix = build_matrix([record({}), record(KAI_18, [7], night=0)], PINNED)
    summary = morning_summary(matrix, now=NOW, last=night(KAI_18), next_at=None)
    assert (summary.broken, summary.not_evaluated) == ((), (version_set(PINNED, KAI_18).key,))


@pytest.mark.parametrize("backend", ["rehearsal", "kind"])
def test_what_the_night_itself_did_not_judge_on_its_backend_is_not_evaluated(backend: str) -> None:
    """Verdicts of an earlier night, or of the night's time on another backend, are none of this night."""
    earlier = [record({}), record(KAI_18, [7])]
    elsewhere = [record(KAI_18, [7], night=1, backend="rehearsal" if backend == "kind" else "kind")]
    matrix = build_matrix([*earlier, *elsewhere], PINNED)
    key = version_set(PINNED, KAI_18).key
    last = Nightly(FIRST_NIGHT, (key,), backend=backend, records_before=2)
    summary = morning_summary(matrix, now=NOW, last=last, next_at=None)
    assert (summary.broken, summary.not_evaluated, summary.exit_code()) == ((), (key,), 3)
    assert f"{key}: no verdict, it was not reached or ended before its report; it is tried again." in summary.text()
    mine = replace(last, backend="rehearsal" if backend == "kind" else "kind")
    assert morning_summary(matrix, now=NOW, last=mine, next_at=None).exit_code() == 1


def test_a_registry_that_could_not_be_asked_is_exit_code_3_and_a_broken_claim_stays_1() -> None:
    matrix = build_matrix([record({}), record(KAI_18, [7])], PINNED)
    for changes, code in ((KAI_18, 1), ({}, 3)):
        last = replace(night(changes), could_not_look=("kai_scheduler: no connection",), records_before=0)
        assert morning_summary(matrix, now=NOW, last=last, next_at=None).exit_code() == code


def test_a_clock_that_is_put_back_during_the_night_loses_no_verdict() -> None:
    matrix = build_matrix([record({}), record(KAI_18, [7], night=0), record(MOCK_4, night=0)], PINNED)
    last = replace(night(KAI_18, MOCK_4), records_before=1)
    assert all(row.latest.at < last.started_at for row in matrix.rows)
    summary = morning_summary(matrix, now=NOW, last=last, next_at=None)
    broken, held_one = (version_set(PINNED, one).key for one in (KAI_18, MOCK_4))
    assert set(summary.new) == {broken, held_one}
    assert (summary.broken, summary.not_evaluated, summary.exit_code()) == ((broken,), (), 1)
    assert morning_summary(matrix, now=NOW, last=night(KAI_18, MOCK_4), next_at=None).broken == (), "as older entries"


def dead(message: str = "global.gpuSharing no longer exists in kai-scheduler v0.18.3") -> ClaimVerdict:
    return ClaimVerdict(Verdict.BROKEN, checks=("kai_release.values_have_effect",), message=message)


ALIVE = ClaimVerdict(Verdict.HELD)


def test_a_value_without_effect_breaks_the_version_set_and_no_claim() -> None:
    history = [record({}, values=ALIVE), record(KAI_17_2, values=ALIVE), record(KAI_18, values=dead())]
    matrix = build_matrix(history, PINNED)
    row = row_of(matrix, KAI_18)
    assert {one.kind for one in row.cells} == {Kind.HELD}
    assert row.values is not None
    assert row.values.kind is Kind.REGRESSION
    assert row.values.blamed == ("kai_scheduler",)
    assert str(row.values.last_good) == "kai_scheduler v0.17.2"
    assert row.state is Kind.REGRESSION
    assert [one.id for one in matrix.regressions()] == ["rehearsal/fresh/kai_scheduler@0.18.3/values"]
    assert exit_code(matrix) == 1
    assert due([row.version_set], matrix, backend="rehearsal") == (), "charts are no matter of chance"
    last = Nightly(FIRST_NIGHT, tuple(one.version_set.key for one in matrix.rows))
    said = morning_summary(matrix, now=FIRST_NIGHT, last=last, next_at=None)
    assert said.broken == (row.version_set.key,)
    assert f"{row.version_set.key}, values_have_effect: regression." in said.text()
    assert "global.gpuSharing no longer exists" in said.text()


def test_the_newest_of_all_together_blames_the_chart_whose_values_died() -> None:
    both = KAI_18 | MOCK_4
    history = [record({}, values=ALIVE), record(KAI_18, values=dead()), record(MOCK_4, values=ALIVE)]
    matrix = build_matrix([*history, record(both, values=dead())], PINNED)
    found = row_of(matrix, both).values
    assert found is not None
    assert found.blamed == ("kai_scheduler",)
    assert len(matrix.regressions()) == 1


def test_charts_that_could_not_be_compared_leave_the_verdict_of_the_claims() -> None:
    unknown = ClaimVerdict(Verdict.NOT_EVALUATED, checks=("kai_release.values_have_effect",), message="no connection")
    matrix = build_matrix([record({}), record(KAI_18, values=unknown)], PINNED)
    row = row_of(matrix, KAI_18)
    assert row.values is not None
    assert (row.values.kind, row.state) == (Kind.NOT_EVALUATED, Kind.HELD)
    assert row_of(matrix, {}).values is None, "nobody looked in those days"
    assert exit_code(matrix) == 0


def test_a_dead_value_that_is_excused_is_told_and_makes_nothing_red() -> None:
    excused = replace(dead(), excused=KNOWN)
    matrix = build_matrix([record({}, values=ALIVE), record(KAI_18, values=excused)], PINNED)
    assert row_of(matrix, KAI_18).state is Kind.EXCUSED
    assert exit_code(matrix) == 0


def test_values_are_rolled_up_and_survive_the_store() -> None:
    found = broken("it reads it", "it does not", "x no longer exists", transient=False)
    checks = (
        CheckResult("nvml_mock_release", "values_have_effect", held("a", "b", "c")),
        CheckResult("kai_release", "values_have_effect", found),
    )
    judgement = Judgement("rehearsal", PINNED, Boundary.EXPECTED, ())
    made = record_of(judgement, version_set(PINNED, KAI_18), at=FIRST_NIGHT, run_id="r", values=checks)
    assert made.values == ClaimVerdict(Verdict.BROKEN, None, ("kai_release.values_have_effect",), "x no longer exists")
    assert VerdictRecord.from_json(made.to_json()) == made
    older = {key: value for key, value in made.to_json().items() if key != "values"}
    assert VerdictRecord.from_json(older).values is None
