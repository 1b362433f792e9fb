"""Recordings of real clusters, damaged one fact at a time: the proof that no check is decorative.

A damage names exactly the checks that must no longer be held; a change that turns nothing stands among the harmless
ones with its reason. ``python -m kai_lab_pipeline_tests.damages`` prints the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from kai_lab_pipeline.clients.bundle import read_bundle
from kai_lab_pipeline.lab.evidence import Evidence
from kai_lab_pipeline.lab.judge import expectations_for, judge
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.lab.verdict import Judgement, Verdict
from kai_lab_pipeline_tests.damages import boundary_side, isolation_side, kai_side, lab_side, no_harm, pods_side
from kai_lab_pipeline_tests.damages.draft import CROSSED, LAB, RECORDINGS, Damage, Draft
from kai_lab_pipeline_tests.lab_project import project

DAMAGES: tuple[Damage, ...] = (
    lab_side.DAMAGES + kai_side.DAMAGES + isolation_side.DAMAGES + pods_side.DAMAGES + boundary_side.DAMAGES
)
HARMLESS: tuple[Damage, ...] = no_harm.HARMLESS
REHEARSED: Mapping[str, str | None] = {LAB: None, CROSSED: "NVIDIA container runtime in cdi mode"}
"""Recordings that the rehearsal has to equal, and how NVML gets into pods there."""


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
    return turned_in(damage, recorded(recording), held_before(recording))


def turned_in(damage: Damage, evidence: Evidence, before: frozenset[str]) -> frozenset[str]:
    """The checks that a damage turns from held (`before`). Raises KeyError where the evidence has no such fact."""
    draft = Draft(evidence)
    damage.edit(draft)
    return before - held(draft.finish())


ON_REHEARSAL: Mapping[str, frozenset[str]] = {
    # Its bundles leave the version of Kubernetes to the node's own word.
    "no node at all": frozenset({"cluster.node_ready", "cluster.kubernetes_version_supported"}),
    # Its cluster is made for the lab, so exactly the lab's node must be there.
    "a second ready node": frozenset({"cluster.node_ready"}),
}
"""What a damage turns in a bundle of the rehearsal where that is more than in a recording."""


BY_THE_MOMENT = frozenset({"no Bound event"})
"""Harmless changes to something that is there or not by the moment of the capture: the false Bound event comes late."""


def rehearsed(folder: Path, crossing: str | None) -> Evidence:
    """The evidence of a healthy run on the rehearsal, in a lab of its own that is taken away again."""
    with project(folder, **({"KAI_LAB_CROSSING": crossing} if crossing else {})) as lab:
        lab.materialise()
        return read_bundle(lab.newest_bundle())


def rehearsed_cases(recording: str) -> Iterator[tuple[Damage, frozenset[str]]]:
    """Every damage and harmless change of a recording, with what it must turn in the rehearsal's bundle."""
    for damage in DAMAGES + HARMLESS:
        if recording in damage.recordings and damage.name not in BY_THE_MOMENT:
            yield damage, ON_REHEARSAL.get(damage.name, damage.turns)
