"""The damages done to what each scenario shows: what one must turn there, given what the planted fault broke already.

A damage does to a scenario's bundle what it does to the recording that the scenario would equal without its fault:

- a check that it leaves alone in the recording stays what it is;
- a check that is as in the recording becomes what it becomes there;
- of a check that the fault has turned already, a broken one whose facts are taken away is not evaluated any more, and
  every other stays as it is.

Where fault and damage meet in one fact, `MET` says what comes of both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from pathlib import Path

from kai_lab_pipeline.lab.evidence import Evidence
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline_tests.damages import BY_THE_MOMENT, DAMAGES, HARMLESS, judged, recorded
from kai_lab_pipeline_tests.damages.boundary_side import NODE, SHARED
from kai_lab_pipeline_tests.damages.draft import CROSSED, LAB, Damage, Draft
from kai_lab_pipeline_tests.damages.met import MET

Verdicts = Mapping[str, Verdict]
IN_SCENARIOS = "damages-in-scenarios"
"""Folder of pytest's cache in which the tests of the scenarios keep what the damages did."""
Case = tuple[Damage, Verdicts, Verdicts]
"""A damage, and the verdicts of a recording before and after it."""
CROSSING = frozenset({"crossed-unasked", "memory-limit-wrong"})
"""Scenarios in whose cluster NVML gets into pods: they equal the recording of a crossed boundary."""
LIMIT = "shared_gpu_pod.memory_limit_value"
_NOT_BOUND_YET = (Verdict.NOT_REACHABLE, Verdict.NOT_EVALUATED)
OLD = timedelta(minutes=10)
"""As old the shared pod is made, so that nothing depends on how long a run took."""


@dataclass(frozen=True)
class Done:
    """What all damages did to the bundle of one scenario."""

    scenario: str
    applied: int
    """Damages whose fact the bundle has."""
    total: Mapping[str, int]
    """By check, how many damages concern it."""
    caught: Mapping[str, int]
    wrong: tuple[str, ...]
    """Damages after which a check was not what it had to be, in words."""

    def write(self, folder: Path) -> None:
        (folder / f"{self.scenario}.json").write_text(json.dumps(self.__dict__), encoding="utf-8")

    @staticmethod
    def read(file: Path) -> Done:
        return Done(**json.loads(file.read_text(encoding="utf-8")))


def verdicts(evidence: Evidence) -> Verdicts:
    return {check.name: check.verdict for check in judged(evidence).checks}


def after(damage: Damage, evidence: Evidence) -> Verdicts | None:
    """The verdicts once the damage is done; None where the bundle has no such fact to damage."""
    draft = Draft(evidence)
    try:
        damage.edit(draft)
        changed = draft.finish()
    except (LookupError, StopIteration, ValueError, AssertionError):
        return None
    return verdicts(changed)


def do_all(scenario: str, evidence: Evidence) -> Done:
    """Do every damage to the bundle of a scenario, each to the bundle as it was."""
    evidence = _of_any_age(_once_bound(evidence) if scenario in CROSSING else evidence)
    before = verdicts(evidence)
    total, caught, wrong, applied = dict.fromkeys(before, 0), dict.fromkeys(before, 0), [], 0
    for damage, sound, harmed in _cases(scenario, evidence.crossing):
        found = after(damage, evidence)
        if found is None:
            continue
        applied += 1
        wanted = {**must_be(before, sound, harmed), **MET.get((scenario, damage.name), {})}
        if scenario in CROSSING and before[LIMIT] in _NOT_BOUND_YET:
            del wanted[LIMIT]  # nothing is known of it that a damage could take away
        for check, verdict in wanted.items():
            concerned = verdict != before[check]
            total[check] += concerned
            caught[check] += concerned and found[check] == verdict
            if found[check] != verdict:
                wrong.append(f"{scenario}: {damage.name}: {check} is {found[check]}, and had to be {verdict}")
    return Done(scenario, applied, total, caught, tuple(wrong))


def must_be(before: Verdicts, sound: Verdicts, harmed: Verdicts) -> dict[str, Verdict]:
    """The verdicts after a damage, from those before it and from what it does to the recording (`sound`, `harmed`)."""
    wanted = dict(before)
    for check, verdict in harmed.items():
        if verdict == sound[check]:
            continue
        taken_away = before[check] is Verdict.BROKEN and verdict is Verdict.NOT_EVALUATED
        if before[check] == sound[check] or taken_away:
            wanted[check] = verdict
    return wanted


def _cases(scenario: str, crossing: str | None) -> tuple[Case, ...]:
    """The damages of the recording that a scenario equals; what that one did not capture is damaged as in the other."""
    if scenario not in CROSSING:
        return _recording(LAB, crossing)
    crossed = _recording(CROSSED, crossing)
    _, sound, _ = crossed[0]
    unseen = {check for check, verdict in sound.items() if verdict is Verdict.NOT_EVALUATED}
    return crossed + tuple(case for case in _recording(LAB, None) if _turned(case) and _turned(case) <= unseen)


def _turned(case: Case) -> set[str]:
    _, sound, harmed = case
    return {check for check, verdict in harmed.items() if verdict != sound[check]}


@cache
def _recording(name: str, crossing: str | None) -> tuple[Case, ...]:
    """Each damage of a recording with the verdicts before and after it, the recording said to be the rehearsal's."""
    real = recorded(name)
    # The rehearsal's bundles leave the version of Kubernetes to the node's own word.
    versions = {key: value for key, value in real.versions.items() if key != "kubernetes"}
    draft = Draft(replace(real, backend="rehearsal", versions=versions, node=NODE, crossing=crossing))
    # The lab's RuntimeClass leads where the settings say that NVML gets into pods, whether it does or not.
    draft.one("nvidia_runtime_class", "runtimeclasses", "nvidia")["handler"] = "nvidia" if crossing else "runc"
    return tuple(_harmed(name, draft.finish()))


def _harmed(name: str, evidence: Evidence) -> Iterator[Case]:
    sound = verdicts(evidence)
    for damage in DAMAGES + HARMLESS:
        if name in damage.recordings and damage.name not in BY_THE_MOMENT:
            harmed = after(damage, evidence)
            assert harmed is not None, f"{damage.name}: {name} has no such fact"
            yield damage, sound, harmed


def _once_bound(evidence: Evidence) -> Evidence:
    """The bundle with a shared pod that was looked at as late as the boundary was, and bound if its ConfigMap is there.

    KAI binds it within that very moment: one list may show it bound, and the next one not.
    """
    early, late = evidence.of("shared_gpu_pod"), evidence.of("reservation_boundary")
    bound = replace(early, resources={**early.resources, **late.resources}, observed_at=late.observed_at)
    draft = Draft(replace(evidence, observations={**evidence.observations, "shared_gpu_pod": bound}))
    if any(item["metadata"]["name"].startswith(f"{SHARED}-") for item in draft.items("shared_gpu_pod", "configmaps")):
        draft.one("shared_gpu_pod", "pods", SHARED)["spec"]["nodeName"] = NODE
    return draft.finish()


def _of_any_age(evidence: Evidence) -> Evidence:
    """The bundle with a shared pod that is old: how many attempts there were depends on the moment otherwise."""
    seen = evidence.of("reservation_boundary")
    if not seen.objects("pods") or seen.observed_at is None:
        return evidence
    draft = Draft(evidence)
    for pod in draft.items("reservation_boundary", "pods"):
        if pod["metadata"]["name"] == SHARED:
            pod["metadata"]["creationTimestamp"] = (seen.observed_at - OLD).strftime("%Y-%m-%dT%H:%M:%SZ")
    return draft.finish()
