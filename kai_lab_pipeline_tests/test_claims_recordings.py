"""The recordings of real clusters give the verdicts they must, check by check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline.clients.bundle import read_bundle
from kai_lab_pipeline.lab.verdict import Judgement, Verdict
from kai_lab_pipeline_tests.damages import judged, recorded
from kai_lab_pipeline_tests.damages.draft import CROSSED, KIND, LAB, RECORDINGS

NAMES = (LAB, KIND, CROSSED, "kai-v0.16.8", "kai-v0.20.1")
ORIGINALS = Path(__file__).parents[2] / "shared" / "recordings"


def _allowed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _disagreements(judgement: Judgement, expected: dict[str, Any]) -> list[str]:
    verdicts = {check.name: check.verdict.value for check in judgement.checks}
    wrong = [
        f"{name}: {verdicts.get(name)} is none of {_allowed(allowed)}"
        for name, allowed in expected["checks"].items()
        if verdicts.get(name) not in _allowed(allowed)
    ]
    if judgement.boundary.value not in _allowed(expected["boundary"]):
        wrong.append(f"boundary: {judgement.boundary} is none of {expected['boundary']}")
    return wrong


@pytest.mark.parametrize("name", NAMES)
def test_recording_gives_its_expected_verdicts(name: str) -> None:
    expected = json.loads((RECORDINGS / name / "expected.json").read_text())
    judgement = judged(recorded(name))
    assert _disagreements(judgement, expected) == []
    assert {check.name for check in judgement.checks} == set(expected["checks"])


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_recording_agrees_too(name: str) -> None:
    folder = ORIGINALS / ("versions" if name.startswith("kai-") else "") / name
    if not (folder / "expected.json").is_file():
        pytest.skip("the full recordings are not beside this repository")
    evidence = read_bundle(folder / "bundle")
    assert _disagreements(judged(evidence), json.loads((folder / "expected.json").read_text())) == []
    assert evidence.notes == ()


@pytest.mark.parametrize("name", [LAB, KIND])
def test_the_lab_as_written_holds_its_eight_claims(name: str) -> None:
    judgement = judged(recorded(name))
    assert judgement.counts() == {"held": 8, "broken": 0, "not_reachable": 0, "not_evaluated": 0}
    assert judgement.exit_code() == 0
    assert [claim.id for claim in judgement.claims] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_crossed_lab_accounts_four_shared_pods_on_two_cards() -> None:
    judgement = judged(recorded(CROSSED))
    finding = next(c.finding for c in judgement.checks if c.check == "fraction_accounted")
    assert finding.expected.startswith("requested, allocated, fairShare of default-queue: 3 (")
    shares = ("gpu-sharing-with-isolation 0.51", "kai-whole-gpu 1", "share2 0.5", "share3 0.25", "share4 0.74")
    assert [share for share in shares if share not in finding.expected] == []


def test_every_finding_says_what_was_expected_and_seen() -> None:
    for name in NAMES:
        for check in judged(recorded(name)).checks:
            assert check.finding.expected, check.name
            assert check.finding.observed, check.name
            assert check.finding.message.strip(), check.name


def test_public_json_has_the_agreed_shape() -> None:
    shape = judged(recorded(LAB)).to_json()
    assert set(shape) == {"backend", "versions", "boundary", "claims", "counts"}
    assert set(shape["claims"][0]) == {"id", "statement", "verdict", "checks"}
    assert set(shape["claims"][0]["checks"][0]) == {"asset", "check", "verdict", "expected", "observed", "message"}
    json.dumps(shape)


def test_a_dead_kai_is_told_from_a_boundary() -> None:
    judgement = judged(recorded("kai-v0.20.1"))
    verdicts = {check.name: check.verdict for check in judgement.checks}
    assert verdicts["kai_release.release_deployed"] is Verdict.HELD
    assert verdicts["kai_release.seven_components_running"] is Verdict.BROKEN
    assert judgement.exit_code() == 1
