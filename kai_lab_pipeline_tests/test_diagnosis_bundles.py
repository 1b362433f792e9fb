"""Diagnosis of whole bundles: silent on healthy ones, and of a damaged one it names what was damaged."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from kai_lab_pipeline.lab.diagnosis import Diagnosis, Nature, diagnose_evidence, diagnose_objects
from kai_lab_pipeline.lab.evidence import Evidence
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline_tests.damages import DAMAGES, HARMLESS, judged, recorded
from kai_lab_pipeline_tests.damages.draft import (
    CROSSED,
    KIND,
    LAB,
    OLDER,
    Damage,
    Draft,
    Edit,
    change,
    status_condition,
)

BOUNDARY = "boundary.nvml-library-missing"
NODE = "kai-hami-test-control-plane"
BY_NAME = {damage.name: damage for damage in DAMAGES}


def ids(diagnosis: Diagnosis) -> list[str]:
    return [cause.id for cause in diagnosis.causes]


def damaged(edit: Edit, recording: str = LAB) -> Evidence:
    draft = Draft(recorded(recording))
    edit(draft)
    return draft.finish()


@pytest.mark.parametrize("recording", [LAB, KIND, OLDER])
def test_of_a_lab_in_order_only_the_expected_boundary_is_named(recording: str) -> None:
    found = diagnose_evidence(recorded(recording))
    assert found.causes == ()
    assert [cause.id for cause in found.expected] == [BOUNDARY]
    assert all(cause.nature is Nature.HARMLESS for cause in found.harmless)
    assert found.best is not None
    assert found.best.evidence[0].endswith("unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND")


def test_of_a_crossed_lab_nothing_is_named() -> None:
    found = diagnose_evidence(recorded(CROSSED))
    assert found.all == ()
    assert found.well


def test_a_lab_with_errors_or_with_what_could_not_be_read_is_not_said_to_be_well() -> None:
    assert not diagnose_evidence(recorded(CROSSED), errors=["the step could not be done"]).well
    assert not diagnose_evidence(replace(recorded(CROSSED), notes=("events: half a file",))).well
    assert not diagnose_evidence(Evidence()).well


def test_the_withdrawn_version_is_named_and_nothing_that_follows_from_it() -> None:
    assert ids(diagnose_evidence(recorded("kai-v0.20.1"))) == ["kai.cluster-policy-missing"]


def test_the_boundary_is_a_fault_where_it_should_be_crossed() -> None:
    found = diagnose_evidence(replace(recorded(LAB), crossing="toolkit in the node"))
    assert ids(found)[0] == "boundary.crossing-broken"
    assert "toolkit in the node" in found.causes[0].cause
    assert not found.expected


@pytest.mark.parametrize("damage", HARMLESS, ids=lambda damage: damage.name)
def test_a_harmless_change_has_no_cause(damage: Damage) -> None:
    for recording in damage.recordings[:2]:
        assert ids(diagnose_evidence(damaged(damage.edit, recording))) == [], recording


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_a_broken_check_always_has_a_cause_with_a_remedy(damage: Damage) -> None:
    evidence = damaged(damage.edit, damage.recordings[len(damage.name) % len(damage.recordings)])
    if any(check.verdict is Verdict.BROKEN for check in judged(evidence).checks):
        found = diagnose_evidence(evidence)
        assert found.causes
        assert all(cause.remedy and cause.evidence for cause in found.causes)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        ("node not ready", "lab.nodes"),
        ("old API server", "lab.kubernetes-version"),
        ("0 of 0 pods", "gpu.mock-pods"),
        ("isolator failed", "helm.release-failed"),
        ("no shared pod", "lab.shared-pod-absent"),
        ("webhook log empty", "isolator.not-announced"),
        ("whole pod asks memory", "lab.whole-pod-shared"),
        ("bound while Pending", "boundary.different"),
        ("memory not synced", "kai.gpu-memory-not-synced"),
    ],
)
def test_a_damage_is_named_and_nothing_else(damage: str, fault: str) -> None:
    found = diagnose_evidence(damaged(BY_NAME[damage].edit, BY_NAME[damage].recordings[0]))
    assert ids(found) == [fault]


def node_label(value: object) -> Edit:
    return change("labelled_node", "nodes", NODE, ("metadata", "labels", "nvidia.com/gpu.memory"), value)


def test_a_label_with_a_unit_is_named_with_the_command_that_corrects_it() -> None:
    found = diagnose_evidence(damaged(node_label("40960Mi")))
    assert ids(found) == ["lab.gpu-memory-label"]
    assert f"kubectl label --overwrite node {NODE} nvidia.com/gpu.memory=40960" in found.causes[0].remedy
    assert "it has a unit" in found.causes[0].cause


def test_eighty_gpus_are_slices() -> None:
    path = ("status", "allocatable", "nvidia.com/gpu")
    found = diagnose_evidence(damaged(change("device_plugin", "nodes", NODE, path, "80")))
    assert ids(found) == ["gpu.sliced"]


def test_only_the_newest_state_counts() -> None:
    edit = status_condition("cluster", "nodes", NODE, "MemoryPressure", "True")
    assert ids(diagnose_evidence(damaged(edit))) == []
    edit = status_condition("reservation_boundary", "nodes", NODE, "MemoryPressure", "True")
    assert ids(diagnose_evidence(damaged(edit))) == ["host.memory-pressure"]


def test_a_reservation_pod_that_has_not_ended_yet_is_no_sign_of_a_crossed_boundary() -> None:
    """A look may meet the pod between its start and its end: the log that names the boundary counts all the same."""

    def edit(draft: Draft) -> None:
        for pod in draft.items("reservation_boundary", "pods"):
            if pod["metadata"]["namespace"] == "kai-resource-reservation":
                pod["status"]["phase"] = "Running"
                pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
                pod["metadata"].pop("deletionTimestamp", None)
        change("device_plugin", "nodes", NODE, ("status", "allocatable", "nvidia.com/gpu"), "80")(draft)

    evidence = damaged(edit)
    ready = [
        pod["metadata"]["name"]
        for pod in evidence.of("reservation_boundary").objects("pods") or ()
        if pod["status"]["phase"] == "Running" and pod["metadata"]["namespace"] == "kai-resource-reservation"
    ]
    assert ready
    found = diagnose_evidence(evidence)
    assert ids(found) == ["gpu.sliced"]
    assert [cause.id for cause in found.expected] == [BOUNDARY]


def test_a_bundle_with_nothing_in_it_says_what_it_looked_at() -> None:
    found = diagnose_evidence(Evidence(notes=("bundle.json: broken",)))
    assert not found.known
    assert "evidence of no asset" in found.looked_at
    assert "bundle.json: broken" in found.looked_at


ODD: tuple[Any, ...] = (
    None,
    "",
    "x",
    0,
    -1,
    1.5,
    True,
    [],
    {},
    [None],
    {"a": None},
    "\ud800",
    10**40,
    ["x", {"y": []}],
)


def spoiled(value: Any, chance: random.Random) -> Any:
    """`value` with some of its parts replaced by odd ones."""
    if chance.random() < 0.03:
        return chance.choice(ODD)
    if isinstance(value, dict):
        return {key: spoiled(part, chance) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [spoiled(part, chance) for part in value]
    return value


@pytest.mark.parametrize("seed", range(20))
def test_half_broken_objects_and_bundles_never_raise(seed: int) -> None:
    chance = random.Random(seed)
    whole = recorded(chance.choice((LAB, KIND, CROSSED, "kai-v0.20.1")))
    observations = {}
    for asset, seen in whole.observations.items():
        resources = {
            name: tuple(obj for obj in (spoiled(one, chance) for one in objects) if isinstance(obj, dict))
            for name, objects in seen.resources.items()
        }
        observations[asset] = replace(seen, resources=resources)
        for objects in resources.values():
            diagnose_objects(objects)
    found = diagnose_evidence(replace(whole, observations=observations))
    assert all(cause.evidence and cause.remedy for cause in found.all)
