"""The damages to the recordings, done to what the rehearsal gives: each turns the same checks there."""

from __future__ import annotations

from pathlib import Path

import pytest

from kai_lab_pipeline_tests.damages import (
    ON_REHEARSAL,
    REHEARSED,
    held,
    held_before,
    rehearsed,
    rehearsed_cases,
    turned_in,
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("recording", REHEARSED)
def test_every_damage_turns_the_same_checks_in_the_rehearsals_bundle(recording: str, tmp_path: Path) -> None:
    evidence = rehearsed(tmp_path / "lab", REHEARSED[recording])
    before = held(evidence)
    assert before >= held_before(recording), "a healthy rehearsal holds what the real run holds"
    expected = {damage.name: turns for damage, turns in rehearsed_cases(recording)}
    assert len(expected) >= 300
    found = {damage.name: turned_in(damage, evidence, before) for damage, _ in rehearsed_cases(recording)}
    assert {name: turns for name, turns in found.items() if turns != expected[name]} == {}


def test_what_is_excepted_is_a_damage_of_that_name() -> None:
    assert set(ON_REHEARSAL) <= {damage.name for recording in REHEARSED for damage, _ in rehearsed_cases(recording)}
