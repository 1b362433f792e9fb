"""No check is decorative: every damage to a recording turns exactly the checks it must, and harmless changes none."""

from __future__ import annotations

from collections import Counter

import pytest

from kai_lab_pipeline.lab.claims import CHECK_FUNCTIONS
from kai_lab_pipeline_tests.damages import DAMAGES, HARMLESS, cases, held_before, turned
from kai_lab_pipeline_tests.damages.draft import Damage

ALL_RECORDINGS = {recording for _, recording in cases(DAMAGES)}


def _id(value: object) -> str:
    return value.name if isinstance(value, Damage) else str(value)


@pytest.mark.parametrize("damage", DAMAGES, ids=_id)
def test_a_damage_turns_exactly_its_checks(damage: Damage) -> None:
    for recording in damage.recordings:
        assert damage.turns <= held_before(recording), f"{recording}: a check that was not held cannot turn"
        assert turned(damage, recording) == damage.turns, recording


@pytest.mark.parametrize("damage", HARMLESS, ids=_id)
def test_a_harmless_change_turns_nothing(damage: Damage) -> None:
    assert damage.why_harmless
    assert {recording: turned(damage, recording) for recording in damage.recordings} == {
        recording: frozenset() for recording in damage.recordings
    }


def test_every_damage_names_what_it_turns() -> None:
    assert [damage.name for damage in DAMAGES if not damage.turns] == []


def test_every_check_is_turned_by_several_damages() -> None:
    count = Counter(check for damage in DAMAGES for check in damage.turns)
    assert {check: count[check] for check in CHECK_FUNCTIONS if count[check] < 3} == {}


def test_there_are_enough_damages_over_several_recordings() -> None:
    assert len(DAMAGES) >= 300
    assert len(ALL_RECORDINGS) >= 4


def test_no_damage_is_listed_twice_for_a_recording() -> None:
    twice = [key for key, n in Counter((d.name, r, d.turns) for d, r in cases(DAMAGES)).items() if n > 1]
    assert twice == []
