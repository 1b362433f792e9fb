"""What the next nightly has to run: nothing is dropped, nothing is judged twice without a reason."""

from __future__ import annotations

from dataclasses import replace

from kai_lab_pipeline.lab.due import Reason, due
from kai_lab_pipeline.lab.verdict_record import VerdictRecord
from kai_lab_pipeline.lab.version_matrix import build_matrix
from kai_lab_pipeline.lab.version_sets import Lane, candidate_sets, version_set
from kai_lab_pipeline_tests.test_matrix import KAI_18, MOCK_4, PINNED, lost, record

CANDIDATES = candidate_sets(PINNED, {"kai_scheduler": ("v0.18.3",), "nvml_mock": ("0.4.0",)}, lanes=(Lane.FRESH,))
BOTH = KAI_18 | MOCK_4


def reasons(history: list[VerdictRecord], **options: object) -> dict[str, Reason]:
    found = due(CANDIDATES, build_matrix(history, PINNED), backend="rehearsal", **options)  # type: ignore[arg-type]
    return {one.version_set.key: one.reason for one in found}


def key(changes: dict[str, str]) -> str:
    return version_set(PINNED, changes).key


def test_at_first_everything_is_new() -> None:
    found = due(CANDIDATES, build_matrix([], PINNED), backend="rehearsal")
    assert [one.version_set for one in found] == CANDIDATES
    assert {one.reason for one in found} == {Reason.NEW}
    assert found[0].sentence == "new: kai_scheduler v0.18.3 (fresh install)"


def test_what_has_a_verdict_is_not_due() -> None:
    assert reasons([record({}), record(KAI_18), record(MOCK_4), record(BOTH)]) == {}


def test_a_lost_night_is_tried_again_after_what_is_new() -> None:
    found = due(CANDIDATES, build_matrix([record({}), lost(KAI_18)], PINNED), backend="rehearsal")
    assert [one.reason for one in found] == [Reason.NEW, Reason.NEW, Reason.LOST]
    assert "the registry limits the rate" in found[-1].sentence
    assert reasons([record({}), record(KAI_18), lost(KAI_18, night=1), record(MOCK_4), record(BOTH)]) == {}


def test_a_bad_verdict_is_confirmed_once_and_then_left_alone() -> None:
    history = [record({}), record(KAI_18, [7]), record(MOCK_4), record(BOTH)]
    assert reasons(history) == {key(KAI_18): Reason.RERUN}
    assert reasons([*history, record(KAI_18, [7], night=1)]) == {}
    assert reasons([*history, record(KAI_18, night=1)]) == {}


def test_a_second_attempt_that_was_lost_confirms_nothing_and_is_tried_again() -> None:
    history = [record({}), record(KAI_18, [7]), lost(KAI_18, night=1), record(MOCK_4), record(BOTH)]
    [found] = due(CANDIDATES, build_matrix(history, PINNED), backend="rehearsal")
    assert (found.version_set.key, found.reason) == (key(KAI_18), Reason.LOST)
    assert found.sentence == (
        "tried again (claims 7 broke once), the last attempt was lost: the registry limits the rate"
    )
    assert reasons([*history, record(KAI_18, [7], night=2)]) == {}, "two attempts say the same"
    assert reasons([*history, record(KAI_18, night=2)]) == {}, "it was chance"


def test_a_set_that_held_and_broke_once_is_run_again() -> None:
    history = [record({}), record(KAI_18), record(KAI_18, [7], night=1), record(MOCK_4), record(BOTH)]
    assert reasons(history) == {key(KAI_18): Reason.RERUN}


def test_what_one_version_breaks_alone_is_confirmed_there_and_not_in_the_combination() -> None:
    history = [record({}), record(KAI_18, [7]), record(MOCK_4), record(BOTH, [7])]
    assert reasons(history) == {key(KAI_18): Reason.RERUN}
    more = [record({}), record(KAI_18, [7]), record(MOCK_4), record(BOTH, [6, 7])]
    assert reasons(more) == {key(KAI_18): Reason.RERUN, key(BOTH): Reason.RERUN}, "claim 6 breaks only together"
    chance = [*history, record(KAI_18, night=1)]
    assert reasons(chance) == {key(BOTH): Reason.RERUN}, "alone it was chance: that explains nothing"
    other_lane = [record({}), record(KAI_18), record(MOCK_4), record(KAI_18, [7], lane=Lane.UPGRADE), record(BOTH, [7])]
    assert key(BOTH) in reasons(other_lane)


def test_what_breaks_in_both_lanes_is_no_chance() -> None:
    both_lanes = candidate_sets(PINNED, {"kai_scheduler": ("v0.18.3",)})

    def again(*history: VerdictRecord) -> set[Lane]:
        found = due(both_lanes, build_matrix([record({}), *history], PINNED), backend="rehearsal")
        return {one.version_set.lane for one in found if one.reason is Reason.RERUN}

    fresh, upgrade = record(KAI_18, [2, 7]), record(KAI_18, [2, 7], lane=Lane.UPGRADE)
    assert again(fresh, upgrade) == set()
    assert again(fresh, record(KAI_18, lane=Lane.UPGRADE)) == {Lane.FRESH}
    assert again(fresh, record(KAI_18, [2], lane=Lane.UPGRADE)) == {Lane.FRESH}, "claim 7 broke once only"


def test_a_chart_that_was_pushed_again_makes_its_sets_due() -> None:
    known = {"kai_scheduler": "sha256:a", "nvml_mock": "sha256:n"}
    history = [record({}), record(KAI_18, digests=known), record(MOCK_4), record(BOTH, digests=known)]
    keys = (key(KAI_18), key(BOTH))
    assert reasons(history, digests=dict.fromkeys(keys, known)) == {}
    again = dict.fromkeys(keys, known | {"kai_scheduler": "sha256:b"})
    assert reasons(history, digests=again) == dict.fromkeys(keys, Reason.REPUSHED)
    judged = [*history, record(KAI_18, night=1, digests=known | {"kai_scheduler": "sha256:b"})]
    assert reasons(judged, digests=again) == {key(BOTH): Reason.REPUSHED}


def test_what_was_judged_before_its_digest_was_known_is_due_once_that_changes() -> None:
    history = [record({}), record(KAI_18), record(MOCK_4), record(BOTH)]
    first, later = ({key(KAI_18): {"kai_scheduler": digest}} for digest in ("sha256:a", "sha256:b"))
    assert reasons(history, digests=first, first_digests=first) == {}
    assert reasons(history, digests=later, first_digests=first) == {key(KAI_18): Reason.REPUSHED}
    judged = [*history, record(KAI_18, night=1, digests=later[key(KAI_18)])]
    assert reasons(judged, digests=later, first_digests=first) == {}


def test_charts_that_could_not_be_asked_for_are_compared_in_another_night() -> None:
    history = [record({}), record(KAI_18), record(MOCK_4), record(BOTH)]
    said = {key(KAI_18): {history[1].run_id: "The charts were not compared: no connection"}}
    [found] = due(CANDIDATES, build_matrix(history, PINNED), backend="rehearsal", uncompared=said)
    assert (found.version_set.key, found.reason) == (key(KAI_18), Reason.LOST)
    assert found.sentence == "tried again: The charts were not compared: no connection"
    later = replace(record(KAI_18, night=1), run_id="another")
    assert reasons([*history, later], uncompared=said) == {}, "a later run compared them"


def test_verdicts_of_another_backend_do_not_count() -> None:
    history = [record({}), record(KAI_18, backend="kind"), record(MOCK_4), record(BOTH)]
    assert reasons(history) == {key(KAI_18): Reason.NEW}
