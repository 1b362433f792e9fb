"""Several things may be ill at once: each of the lab's is named, and what is not the lab's changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from kai_lab_pipeline.lab.diagnosis import Diagnosis, diagnose_evidence, diagnose_objects
from kai_lab_pipeline.lab.diagnosis.belonging import is_of_the_lab, missed
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline_tests.damages import recorded
from kai_lab_pipeline_tests.damages.draft import KIND, Draft, Edit, both, version

NEWEST = "reservation_boundary"
FOREIGN = [
    ("team-x", "web-1"),
    ("default", "web-1"),
    ("default", "kai-whole-gpu-of-mine"),
    ("kube-system", "metrics-server-7d4-x2"),
]


def ill(namespace: str, name: str, reason: str) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "uid": f"uid-of-{name}"},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [
                {"name": name.split("-")[-2], "ready": False, "image": "i", "state": {"waiting": {"reason": reason}}}
            ],
        },
    }


def with_pod(pod: dict[str, Any]) -> Edit:
    """The pod as every asset saw it."""

    def edit(draft: Draft) -> None:
        for asset in draft.evidence.observations:
            if draft.observation(asset).objects("pods") is not None:
                draft.items(asset, "pods").append(pod)

    return edit


def in_place_of(name: str, reason: str) -> Edit:
    """The pod whose name begins so does not run, for that reason; of a workload of KAI its Deployment says so."""

    def edit(draft: Draft) -> None:
        for asset in draft.evidence.observations:
            if draft.observation(asset).objects("pods") is not None:
                for pod in draft.items(asset, "pods"):
                    if pod["metadata"]["name"].startswith(name):
                        pod["status"] = ill("", pod["metadata"]["name"], reason)["status"]
            if draft.observation(asset).objects("deployments") is not None:
                for deployment in draft.items(asset, "deployments"):
                    if deployment["metadata"]["name"] == name:
                        deployment["status"] = {"conditions": [{"type": "Available", "status": "False"}]}

    return edit


def without(workload: str) -> Edit:
    """Neither the Deployment nor its pods are there."""

    def edit(draft: Draft) -> None:
        for asset in draft.evidence.observations:
            for resource in ("deployments", "pods"):
                if draft.observation(asset).objects(resource) is not None:
                    kept = draft.items(asset, resource)
                    kept[:] = [obj for obj in kept if not obj["metadata"]["name"].startswith(workload)]

    return edit


def nothing(_: Draft) -> None:
    """The lab as it was recorded."""


def found(*edits: Edit) -> Diagnosis:
    draft = Draft(recorded(KIND))
    both(*edits)(draft)
    return diagnose_evidence(draft.finish())


def causes(*edits: Edit) -> list[str]:
    return sorted(cause.id for cause in found(*edits).causes)


@pytest.mark.parametrize("reason", ["CrashLoopBackOff", "ImagePullBackOff"])
@pytest.mark.parametrize(("namespace", "name"), FOREIGN)
@pytest.mark.parametrize(
    "lab", [nothing, without("kai-scheduler-default"), without("binder")], ids=["well", "scheduler", "binder"]
)
def test_a_foreign_ill_pod_changes_nothing(lab: Edit, namespace: str, name: str, reason: str) -> None:
    alone, beside = found(lab), found(lab, with_pod(ill(namespace, name, reason)))
    assert beside.to_json() == alone.to_json()
    assert [cause.id for cause in alone.causes] == ([] if lab is nothing else ["kai.components-missing"])


def test_a_foreign_release_that_failed_changes_nothing() -> None:
    def edit(draft: Draft) -> None:
        for asset, observation in list(draft.evidence.observations.items()):
            if observation.helm is not None:
                row = {"name": "web", "namespace": "team-x", "status": "failed", "chart": "web-1.0.0", "revision": "1"}
                draft.seen(asset, helm=(*observation.helm, row))

    assert causes(edit) == []


@pytest.mark.parametrize(
    ("edits", "named"),
    [
        pytest.param(
            (without("kai-scheduler-default"), in_place_of("kai-resource-isolator-monitor", "CrashLoopBackOff")),
            ["kai.components-missing", "pod.crash-loop"],
            id="no scheduler, and the monitor crashes",
        ),
        pytest.param(
            (without("kai-scheduler-default"), in_place_of("queue-controller", "CrashLoopBackOff")),
            ["kai.components-missing", "pod.crash-loop"],
            id="no scheduler, and the queue-controller crashes",
        ),
        pytest.param(
            (without("kai-resource-isolator-monitor"), in_place_of("binder", "ImagePullBackOff")),
            ["isolator.pods", "pod.image-pull"],
            id="no monitor, and the binder has no image",
        ),
        pytest.param(
            (in_place_of("queue-controller", "CrashLoopBackOff"), in_place_of("binder", "ImagePullBackOff")),
            ["pod.crash-loop", "pod.image-pull"],
            id="two of KAI's pods, each for its own reason",
        ),
    ],
)
def test_two_independent_faults_are_both_named(edits: tuple[Edit, ...], named: list[str]) -> None:
    assert causes(*edits) == named


@pytest.mark.parametrize(
    "workload", ["queue-controller", "kai-resource-isolator-monitor", "nvml-mock", "nvidia-device-plugin-mock"]
)
def test_what_is_missed_of_a_pod_that_crashes_is_no_cause_of_its_own(workload: str) -> None:
    assert causes(in_place_of(workload, "CrashLoopBackOff")) == ["pod.crash-loop"]


def test_the_components_are_missed_where_the_operator_that_makes_them_crashes() -> None:
    gone = without("kai-scheduler-default")
    assert causes(gone, in_place_of("kai-operator", "CrashLoopBackOff")) == ["pod.crash-loop"]


def test_no_value_of_a_newer_kai_is_blamed_where_its_admission_is_not_there() -> None:
    named = causes(without("admission"), version("kai_scheduler", "v0.19.0"))
    assert "kai.components-missing" in named
    assert "kai.sharing-mode" not in named


def test_a_deployment_is_explained_by_its_own_pods_only() -> None:
    deployment = {
        "kind": "Deployment",
        "metadata": {"namespace": "a", "name": "web"},
        "spec": {"replicas": 1},
        "status": {
            "conditions": [{"type": "Progressing", "status": "False", "message": "deadline exceeded progressing"}]
        },
    }
    own, other = ill("a", "web-7d4f-x2", "CrashLoopBackOff"), ill("b", "web-7d4f-x2", "CrashLoopBackOff")
    assert [cause.id for cause in diagnose_objects([deployment, own]).causes] == ["pod.crash-loop"]
    assert {cause.id for cause in diagnose_objects([deployment, other]).causes} == {
        "pod.crash-loop",
        "workload.not-ready",
    }


def test_what_a_check_counts_as_missed() -> None:
    assert missed("5 of 7 run; absent: binder, kai-scheduler-default") == ["binder", "kai-scheduler-default"]
    assert missed("libsync Ready; monitor absent; webhook Pending") == [
        "kai-resource-isolator-monitor",
        "kai-resource-isolator-webhook",
    ]
    assert missed("libsync Ready; monitor Ready; webhook Ready") == []


def test_what_is_the_labs() -> None:
    def of_the_lab(kind: str, namespace: str | None, name: str) -> bool:
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        return is_of_the_lab({"kind": kind, "metadata": metadata}, Expectations(whole_pod="mine"))

    for kind, namespace, name in (
        ("Node", None, "any"),
        ("Queue", None, "any"),
        ("Namespace", None, "kai-scheduler"),
        ("Pod", "kai-scheduler", "any"),
        ("Pod", "kai-resource-reservation", "gpu-reservation-1"),
        ("Pod", "kube-system", "nvidia-device-plugin-mock-x2"),
        ("Deployment", "kube-system", "coredns"),
        ("DaemonSet", "default", "nvml-mock"),
        ("Pod", "default", "mine"),
        ("PodGroup", "default", "pg-mine-0001"),
    ):
        assert of_the_lab(kind, namespace, name), (kind, name)
    for kind, namespace, name in (
        ("Namespace", None, "team-x"),
        ("Pod", "team-x", "mine"),
        ("Pod", "default", "kai-whole-gpu"),
        ("PodGroup", "default", "pg-other-0001"),
        ("Deployment", "kube-system", "metrics-server"),
    ):
        assert not of_the_lab(kind, namespace, name), (kind, name)
