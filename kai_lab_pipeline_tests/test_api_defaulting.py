"""Defaults against recordings of a real server: what it has filled in already must be left as it is."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline.rehearsal.api.defaulting import admit_pod, apply_defaults, qos_class
from kai_lab_pipeline.rehearsal.api.fields import read_builtin
from kai_lab_pipeline.rehearsal.api.resources import BUILTIN
from kai_lab_pipeline.rehearsal.api.validation import check_object

RECORDINGS = Path(__file__).parent / "data" / "recordings"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
RESOURCES = {(r.group_version, r.kind): r for r in BUILTIN}
FILES = (
    "pods", "deployments", "daemonsets", "configmaps", "events", "nodes", "runtimeclasses",
    "mutatingwebhookconfigurations", "validatingwebhookconfigurations",
)  # fmt: skip

Obj = dict[str, Any]


def recorded(name: str) -> Iterator[Obj]:
    for path in sorted(RECORDINGS.glob(f"*/bundle/*/{name}.json")):
        yield from json.loads(path.read_text())["items"]


@pytest.mark.parametrize("name", FILES)
def test_recorded_objects_are_complete_and_valid(name: str) -> None:
    seen = 0
    for obj in recorded(name):
        resource = RESOURCES[obj["apiVersion"], obj["kind"]]
        defaulted = copy.deepcopy(obj)
        apply_defaults(resource.storage, defaulted)
        assert defaulted == obj
        assert read_builtin(resource.group, resource.version, resource.kind, copy.deepcopy(obj)) == ([], None)
        assert check_object(resource, obj, None) == []
        seen += 1
    assert seen


def test_admission_adds_nothing_to_recorded_pods() -> None:
    classes = {name: {"value": value} for name, value in (("train", 50), ("build", 100), ("inference", 125))}
    for pod in recorded("pods"):
        admitted = copy.deepcopy(pod)
        if pod["metadata"].get("ownerReferences", [{}])[0].get("kind") == "Node":
            continue  # static pods are mirrored by the kubelet and get no token
        assert admit_pod(admitted, classes) is None
        assert admitted == pod
        assert qos_class(pod["spec"]) == pod["status"]["qosClass"]


def test_applied_pods_become_what_the_real_server_made_of_them() -> None:
    """From what the lab applied to what was stored, but for what webhooks and the scheduler add."""
    added = {"nodeName", "runtimeClassName", "volumes", "containers"}
    compared = 0
    for pod in recorded("pods"):
        text = (pod["metadata"].get("annotations") or {}).get(LAST_APPLIED)
        if not text:
            continue
        ours: Obj = json.loads(text)
        apply_defaults("pods", ours)
        assert admit_pod(ours, {}) is None
        assert {k: v for k, v in ours["spec"].items() if k not in added} == {
            k: v for k, v in pod["spec"].items() if k not in added
        }
        volume, theirs = ours["spec"]["volumes"][0], pod["spec"]["volumes"][0]
        assert volume["projected"] == theirs["projected"]
        for container, real in zip(ours["spec"]["containers"], pod["spec"]["containers"], strict=True):
            assert {k: v for k, v in container.items() if k not in ("env", "volumeMounts")} == {
                k: v for k, v in real.items() if k not in ("env", "envFrom", "volumeMounts")
            }
        compared += 1
    assert compared
