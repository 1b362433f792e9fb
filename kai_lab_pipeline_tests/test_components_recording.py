"""How near the rehearsal comes to the recording of the real components, counted field by field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline.rehearsal.client import RESOURCES
from kai_lab_pipeline_tests import masked
from kai_lab_pipeline_tests.rehearsal_lab import Lab, running

RECORDING = Path(__file__).parent / "data" / "recordings" / "real-kai-v0.17.0" / "bundle"
RECORDED_FROM = "2026-11-30T01:09:17"
"""The recorded run began here; older events are of runs before it."""
EARLY = ("configs", "schedulingshards")
COMPARED = (
    "nodes",
    "pods",
    "deployments",
    "daemonsets",
    "configmaps",
    "runtimeclasses",
    "queues",
    "podgroups",
    "bindrequests",
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    *EARLY,
)
MOST_THAT_MAY_DIFFER = 0.06
"""Share of compared fields: explained differences are differences all the same."""

Lists = dict[str, list[Mapping[str, Any]]]


def recorded() -> Lists:
    lists: Lists = {}
    for resource in (*COMPARED, "events"):
        asset = "kai_release" if resource in EARLY else "reservation_boundary"
        lists[resource] = json.loads((RECORDING / asset / f"{resource}.json").read_text())["items"]
    return lists


def captured(lab: Lab) -> Lists:
    lists: Lists = {}
    for resource in (*COMPARED, "events"):
        kind = RESOURCES[resource]
        lists[resource] = [{"apiVersion": kind.api_version, "kind": kind.kind, **obj} for obj in lab.all(resource)]
    return lists


def test_the_rehearsal_comes_near_the_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(tmp_path) as lab:
        lab.scheduling()
        lab.isolation()
        lab.apply("whole-gpu-pod.yaml")
        lab.wait_phase("kai-whole-gpu", "Running")
        lab.apply("shared-gpu-pod.yaml")
        lab.wait_event("Bound", "gpu-sharing-with-isolation")
        lab.wait_for(
            "queues",
            "default-queue",
            lambda q: "run.ai/gpu.memory" in q.get("status", {}).get("requested", {}),
            "queue",
        )
        lab.wait_for(
            "configs",
            "kai-config",
            lambda c: any(e["type"] == "Ready" for e in c.get("status", {}).get("conditions", [])),
            "config ready",
        )
        lab.wait("schedulingshards", lambda found: len(found[0].get("status", {}).get("conditions", [])) == 5, "shard")
        ours = captured(lab)
    real = recorded()
    results = [masked.compare(resource, real, ours) for resource in COMPARED]
    results.append(masked.compare_events(real, ours, RECORDED_FROM))
    compared = sum(result.compared for result in results)
    differing = [line for result in results for line in result.all]
    patterns = masked.explained()
    unexplained = [line for result in results for line in result.unexplained(patterns)]
    with capsys.disabled():
        print(f"\n{compared} fields compared, {len(differing)} differ, {len(unexplained)} of them unexplained")
    assert not unexplained, "\n".join(unexplained)
    assert compared > 3000
    assert len(differing) < MOST_THAT_MAY_DIFFER * compared


def test_an_unknown_difference_is_told() -> None:
    real: Lists = {"queues": [{"metadata": {"name": "q"}, "spec": {"weight": 1}}]}
    ours: Lists = {"queues": [{"metadata": {"name": "q"}, "spec": {"weight": 2, "more": True}}]}
    result = masked.compare("queues", real, ours)
    assert result.all == ["~ queues /q .spec.weight: 1 -> 2", "+ queues /q .spec.more = true"]
    assert result.unexplained(["~ queues * .spec.weight: *"]) == ["+ queues /q .spec.more = true"]


@pytest.mark.parametrize(
    ("text", "masked_text"),
    [
        ("nvml-mock-82bqg", "nvml-mock-RANDOM"),
        ("share-zzrlzjm-shared-gpu-0", "share-RANDOM-shared-gpu-0"),
        ("gpu-reservation-44500f4f077b2774_ns", "gpu-reservation-HEX_ns"),
        ("at 2026-11-30T01:10:04Z from 10.244.0.144", "at TIME from IP"),
        ("kai-whole-gpu on default-queue", "kai-whole-gpu on default-queue"),
    ],
)
def test_what_differs_from_run_to_run_is_masked(text: str, masked_text: str) -> None:
    assert masked.masked_text(text) == masked_text
