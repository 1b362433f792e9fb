"""Recordings of real clusters, damaged one fact at a time: the proof that no check is decorative.

A damage names exactly the checks that must no longer be held; a change that turns nothing stands among the harmless
ones with its reason. ``python -m kai_lab_pipeline_tests.damages`` prints the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from kai_lab_pipeline.clients.bundle import read_bundle
from kai_lab_pipeline.lab.evidence import Evidence
from kai_lab_pipeline.lab.judge import expectations_for, judge
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.lab.verdict import Judgement, Verdict
from kai_lab_pipeline_tests.damages import boundary_side, isolation_side, kai_side, lab_side, no_harm, pods_side
from kai_lab_pipeline_tests.damages.draft import RECORDINGS, Damage, Draft

DAMAGES: tuple[Damage, ...] = (
    lab_side.DAMAGES + kai_side.DAMAGES + isolation_side.DAMAGES + pods_side.DAMAGES + boundary_side.DAMAGES
)
HARMLESS: tuple[Damage, ...] = no_harm.HARMLESS


def cases(damages: tuple[Damage, ...]) -> Iterator[tuple[Damage, str]]:
    """Every damage with every recording it is done to."""
    for damage in damages:
        for recording in damage.recordings:
            yield damage, recording


@cache
def recorded(recording: str) -> Evidence:
    """The evidence of a recording, read once."""
    return read_bundle(RECORDINGS / recording / "bundle")


@cache
def held_before(recording: str) -> frozenset[str]:
    """The checks that the undamaged recording holds."""
    return held(recorded(recording))


def judged(evidence: Evidence) -> Judgement:
    """The judgement of a bundle by what it says of itself and the lab's own expectations."""
    return judge(evidence, expectations_for(evidence, Expectations()))


def held(evidence: Evidence) -> frozenset[str]:
    """The checks that evidence holds, as ``asset.check``."""
    return frozenset(check.name for check in judged(evidence).checks if check.verdict is Verdict.HELD)


def turned(damage: Damage, recording: str) -> frozenset[str]:
    """The checks that a damage turns from held."""
    draft = Draft(recorded(recording))
    damage.edit(draft)
    return held_before(recording) - held(draft.finish())
