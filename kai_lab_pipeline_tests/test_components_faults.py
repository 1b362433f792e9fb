"""Faults to rehearse: each shows where a person would see it, in the words of the component that has it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline.rehearsal import helm
from kai_lab_pipeline.rehearsal.client import ApiError, Object
from kai_lab_pipeline_tests.rehearsal_lab import (
    COMPONENTS,
    NODE,
    Lab,
    available,
    condition,
    gpus,
    labels,
    running,
    shared_pod,
)

SHARED = "gpu-sharing-with-isolation"


def waiting_reason(pod: dict[str, Any]) -> str:
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        reason = (status["state"].get("waiting") or {}).get("reason")
        if reason:
            return str(reason)
    return ""


def pod_of(lab: Lab, prefix: str, reason: str) -> dict[str, Any]:
    def check(pods: list[dict[str, Any]]) -> dict[str, Any] | None:
        return next((p for p in pods if p["metadata"]["name"].startswith(prefix) and waiting_reason(p) == reason), None)

    found: dict[str, Any] = lab.wait("pods", check, f"{prefix} in {reason}")
    return found


def test_a_node_whose_network_never_comes_up(tmp_path: Path) -> None:
    with running(tmp_path, faults={"node_not_ready": True}) as lab:
        node = lab.wait_for("nodes", NODE, lambda n: condition(n, "Ready"), "node")
        assert condition(node, "Ready")["reason"] == "KubeletNotReady"
        assert "cni plugin not initialized" in condition(node, "Ready")["message"]
        lab.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "p", "namespace": "default"},
                "spec": {"containers": [{"name": "c", "image": "busybox:1.37"}]},
            }
        )
        event = lab.wait_event("FailedScheduling", "p")
        assert "0/1 nodes are available: 1 node(s) had untolerated taint" in event["message"]


def test_a_mock_whose_image_was_not_loaded(tmp_path: Path) -> None:
    with running(tmp_path) as lab:
        lab.cluster()
        values = {"gpu.profile": "a100", "image.repository": "nvml-mock", "image.tag": "local"}
        row = lab.install("nvml-mock", "oci://host/nvml-mock", "0.3.0", values, namespace="default")
        assert row["status"] == "deployed"
        pod = pod_of(lab, "nvml-mock", "ImagePullBackOff")
        with pytest.raises(
            ApiError, match=r"is waiting to start: (trying and failing to pull image|image can.t be pulled)"
        ):
            lab.log("default", pod["metadata"]["name"], "nvml-mock")
        assert (
            "docker.io/library/nvml-mock:local: not found"
            in lab.wait_event("Failed", "nvml-mock", "not found")["message"]
        )
        assert helm.provide_image(lab.url, lab.token, NODE, "nvml-mock:local")
        lab.wait_for(
            "nodes", NODE, lambda node: labels(node).get("nvidia.com/gpu.present") == "true", "label after all"
        )


def test_a_library_that_is_not_on_the_node(tmp_path: Path) -> None:
    with running(tmp_path, faults={"library_missing": True}) as lab:
        lab.mock()
        lab.wait_for("nodes", NODE, lambda node: labels(node).get("nvidia.com/gpu.present") == "true", "label")
        lab.apply("device-plugin.yaml")
        pod = pod_of(lab, "nvidia-device-plugin-mock", "CrashLoopBackOff")
        text = lab.log("kube-system", pod["metadata"]["name"], "nvidia-device-plugin")
        assert "nvml init failed: ERROR_LIBRARY_NOT_FOUND" in text
        node = lab.get("nodes", NODE)
        assert node is not None
        assert gpus(node) is None


def test_time_slicing_advertises_slices(tmp_path: Path) -> None:
    with running(tmp_path, faults={"time_slicing": 10}) as lab:
        lab.labelled_gpus(count=80)


def test_a_missing_label_leaves_the_daemon_set_without_pods(tmp_path: Path) -> None:
    with running(tmp_path, faults={"mock_label_missing": True}) as lab:
        lab.mock()
        lab.apply("device-plugin.yaml")
        found = lab.wait_for("daemonsets", "nvidia-device-plugin-mock", lambda ds: "status" in ds, "daemon set seen")
        assert found["status"]["desiredNumberScheduled"] == 0
        assert not lab.all("pods", "kube-system")


def test_an_admission_that_is_never_ready_refuses_every_kai_pod(tmp_path: Path) -> None:
    with running(tmp_path, faults={"admission_never_ready": True}) as lab:
        lab.labelled_gpus()
        lab.kai()
        lab.wait(
            "deployments",
            lambda found: set(COMPONENTS) - {"admission"} <= available(found),
            "all but admission available",
        )
        with pytest.raises(ApiError) as caught:
            lab.create(shared_pod("p", {}))
        assert caught.value.code == 500
        assert re.search(
            r'failed calling webhook "admission.kai-scheduler.svc": failed to call webhook: Post '
            r'"https://admission.kai-scheduler.svc:443/mutate--v1-pod\?timeout=10s": dial tcp .*: connect: '
            "connection refused",
            str(caught.value),
        )


def test_a_queue_webhook_that_denies(tmp_path: Path) -> None:
    with running(tmp_path, faults={"queue_webhook_denies": "no queues today"}) as lab:
        lab.labelled_gpus()
        lab.kai()
        lab.kai_ready()
        with pytest.raises(ApiError, match=r'"queue-validation\.kai\.scheduler" denied the request: no queues today'):
            lab.apply("queues.yaml")


def test_a_late_memory_label_heals_in_the_next_cycle(tmp_path: Path) -> None:
    with running(tmp_path) as lab:
        lab.scheduling()
        lab.label(memory=None)
        lab.isolation()
        lab.apply("shared-gpu-pod.yaml")
        event = lab.wait_event("Unschedulable", SHARED)
        assert event["message"] == (
            "no nodes with enough resources were found: 1 node(s) didn't have enough resources: GPU memory. \n"
            "1 node(s) didn't have enough resources: GPUs."
        )
        assert "requested: <0>" in lab.scheduler_lines()[-1]
        lab.label(memory="40960")
        lab.wait_event("Scheduled", SHARED)
        pod = lab.get("pods", SHARED, "default")
        assert pod is not None
        assert condition(pod, "PodScheduled")["reason"] == "Unschedulable"


def test_an_isolator_that_is_down_lets_pods_through_uninjected(tmp_path: Path) -> None:
    with running(tmp_path, faults={"isolator_webhook_down": True}) as lab:
        lab.scheduling()
        meta = {"name": "nvidia"}
        lab.create({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": meta, "handler": "runc"})
        lab.install(
            "kai-resource-isolator", "oci://host/kai-resource-isolator", "1.1.0-chart", {"monitor.enabled": True}
        )
        pod = lab.create(shared_pod("p", {"gpu-memory": "20480"}))
        mounts = {mount["mountPath"] for mount in pod["spec"]["containers"][0].get("volumeMounts") or []}
        assert "/usr/local/vgpu" not in mounts
        assert pod["spec"]["runtimeClassName"] == "nvidia"


def test_another_nvml_error_is_another_failure(tmp_path: Path) -> None:
    with running(tmp_path, faults={"reservation_other_error": "ERROR_UNKNOWN", "limit_wrong": True}) as lab:
        lab.scheduling()
        lab.isolation()
        lab.apply("shared-gpu-pod.yaml")
        end = "unable to initialize NVML: ERROR_UNKNOWN"

        def told(pods: object) -> bool:
            logs = [log for log in lab.logs() if log.container == "resource-reservation"]
            return any(text.endswith(end) for log in logs for text in (log.text, log.previous or ""))

        assert lab.wait("pods", told, "the other error in a reservation's log")


def test_without_the_runtime_class_shared_pods_are_refused(tmp_path: Path) -> None:
    with running(tmp_path, faults={"binder_down": True}) as lab:
        lab.labelled_gpus()
        lab.kai()
        lab.wait("deployments", lambda found: set(COMPONENTS) <= available(found), "available with no binder wanted")
        lab.wait_serving("admission")
        with pytest.raises(ApiError) as caught:
            lab.create(shared_pod("p", {"gpu-memory": "1"}))
        assert caught.value.code == 403
        assert str(caught.value) == 'pods "p" is forbidden: pod rejected: RuntimeClass "nvidia" not found'


def test_a_component_that_crashes(tmp_path: Path) -> None:
    with running(tmp_path, faults={"crash_loop": "component=queue-controller"}) as lab:
        lab.labelled_gpus()
        before = lab.version("pods")
        lab.kai()
        pod_of(lab, "queue-controller", "CrashLoopBackOff")
        # What is seen of it must not depend on the moment: it ends before it is ready, and its webhook never serves.
        states = [
            _container(pod, "queue-controller") for pod in lab.since("pods", before, lambda pod: _starts(pod) > 2)
        ]
        assert any("running" in state.get("state", {}) for state in states)
        assert [state for state in states if state.get("ready")] == []


def _container(pod: Object, name: str) -> Object:
    """The status of the container of that name; empty in other pods, and as long as there is none."""
    found = (pod.get("status") or {}).get("containerStatuses") or []
    return next((status for status in found if status["name"] == name), {})


def _starts(pod: Object) -> int:
    return int(_container(pod, "queue-controller").get("restartCount", 0))


def test_more_gpus_than_there_are(tmp_path: Path) -> None:
    with running(tmp_path) as lab:
        lab.labelled_gpus()
        pod = shared_pod("nine", {}, **{"nvidia.com/gpu": "9"})
        pod["spec"] |= {"schedulerName": "default-scheduler"}
        lab.create(pod)
        event = lab.wait_event("FailedScheduling", "nine")
        assert event["message"].startswith("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
        forced = shared_pod("forced", {}, **{"nvidia.com/gpu": "9"})
        forced["spec"] |= {"schedulerName": "default-scheduler", "nodeName": NODE}
        lab.create(forced)
        failed = lab.wait_phase("forced", "Failed")
        assert failed["status"]["reason"] == "UnexpectedAdmissionError"
        assert "Requested: 9, Available: 8, which is unexpected" in failed["status"]["message"]
