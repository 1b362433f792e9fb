"""The rule by which a damage to a scenario's bundle is judged: strict, and about damages and scenarios that exist."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kai_lab_pipeline.lab.evidence import Evidence
from kai_lab_pipeline.lab.scenarios import SCENARIOS
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline_tests.damages import DAMAGES, HARMLESS, in_scenarios, recorded
from kai_lab_pipeline_tests.damages.boundary_side import NODE
from kai_lab_pipeline_tests.damages.draft import LAB
from kai_lab_pipeline_tests.damages.in_scenarios import CROSSING, Done, do_all, must_be
from kai_lab_pipeline_tests.damages.met import MET

HELD, BROKEN, UNKNOWN = Verdict.HELD, Verdict.BROKEN, Verdict.NOT_EVALUATED


@pytest.mark.parametrize(
    ("before", "sound", "harmed", "after"),
    [
        (HELD, HELD, BROKEN, BROKEN),
        (HELD, HELD, UNKNOWN, UNKNOWN),
        (HELD, HELD, HELD, HELD),
        (BROKEN, HELD, HELD, BROKEN),
        (BROKEN, HELD, BROKEN, BROKEN),
        (BROKEN, HELD, UNKNOWN, UNKNOWN),
        (UNKNOWN, HELD, BROKEN, UNKNOWN),
        (Verdict.NOT_REACHABLE, Verdict.NOT_REACHABLE, BROKEN, BROKEN),
    ],
)
def test_what_a_check_must_be_after_a_damage(before: Verdict, sound: Verdict, harmed: Verdict, after: Verdict) -> None:
    assert must_be({"c": before}, {"c": sound}, {"c": harmed}) == {"c": after}


def test_what_meets_is_a_scenario_and_a_damage() -> None:
    assert {scenario for scenario, _ in MET} | CROSSING <= set(SCENARIOS)
    assert {damage for _, damage in MET} <= {damage.name for damage in DAMAGES + HARMLESS}


def test_a_check_that_cannot_fail_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    evidence = replace(recorded(LAB), backend="rehearsal", node=NODE)
    real = in_scenarios.verdicts
    assert real(evidence)["queues.queues_exist"] is HELD
    in_scenarios._recording(LAB, None)  # the recording is judged by the real checks

    def decorative(seen: Evidence) -> dict[str, Verdict]:
        return {**real(seen), "queues.queues_exist": HELD}

    monkeypatch.setattr(in_scenarios, "verdicts", decorative)
    done = do_all("four-gpus", evidence)
    said = [line for line in done.wrong if "queues.queues_exist is held, and had to be" in line]
    assert len(said) >= 3
    assert done.caught["queues.queues_exist"] == 0 < done.total["queues.queues_exist"]
    done.write(tmp_path)
    assert Done.read(tmp_path / "four-gpus.json").total == done.total
