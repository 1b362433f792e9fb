"""The lab from its first to its last step on the rehearsal, where the boundary stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import pytest

from kai_lab_pipeline.rehearsal import helm
from kai_lab_pipeline.rehearsal.client import ApiError, Object
from kai_lab_pipeline_tests.rehearsal_lab import COMPONENTS, NODE, Lab, condition, labels, running, shared_pod

pytestmark = pytest.mark.xdist_group("components-lab")

SHARED = "gpu-sharing-with-isolation"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running(tmp_path_factory.mktemp("lab")) as made:
        made.scheduling()
        made.isolation()
        made.apply("whole-gpu-pod.yaml")
        made.wait_phase("kai-whole-gpu", "Running")
        made.apply("shared-gpu-pod.yaml")
        made.wait_event("BindingError", SHARED)
        yield made


def test_the_mock_wrote_the_label_as_kubectl(lab: Lab) -> None:
    node = lab.get("nodes", NODE)
    assert node is not None
    writers = {
        entry["manager"]
        for entry in node["metadata"]["managedFields"]
        if "f:nvidia.com/gpu.present" in entry["fieldsV1"].get("f:metadata", {}).get("f:labels", {})
    }
    assert writers == {"kubectl-label"}


def test_all_seven_components_run_with_the_effect_of_the_values(lab: Lab) -> None:
    found = {obj["metadata"]["name"]: obj for obj in lab.all("deployments", "kai-scheduler")}
    assert set(found) == set(COMPONENTS)
    args = {name: obj["spec"]["template"]["spec"]["containers"][0].get("args", []) for name, obj in found.items()}
    assert {"--gpu-sharing-enabled=true", "--hami-core-enabled=true"} <= set(args["admission"])
    assert '"hamicore":{"enabled":true,"priority":50}' in args["binder"][args["binder"].index("--plugins") + 1]
    assert all(condition(obj, "Available")["status"] == "True" for obj in found.values())


def test_releases_are_listed_as_helm_does(lab: Lab) -> None:
    rows = helm.list_releases(lab.url, lab.token)
    assert [(row["name"], row["chart"], row["status"]) for row in rows] == [
        ("kai-resource-isolator", "kai-resource-isolator-1.1.0-chart", "deployed"),
        ("kai-scheduler", "kai-scheduler-v0.17.0", "deployed"),
        ("nvml-mock", "nvml-mock-0.3.0", "deployed"),
    ]
    assert set(rows[0]) == {"name", "namespace", "revision", "updated", "status", "chart", "app_version"}


def test_queues_are_validated_and_know_their_children(lab: Lab) -> None:
    queue = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "probe"}, "spec": {}}
    denied = 'admission webhook "queue-validation.kai.scheduler" denied the request: resources must be specified'
    with pytest.raises(ApiError, match=re.escape(denied)):
        lab.create(queue, dry_run=True)
    lab.wait_for(
        "queues", "default", lambda obj: obj.get("status", {}).get("childQueues") == ["default-queue"], "children"
    )


def test_the_whole_gpu_pod_has_a_card_and_no_sharing(lab: Lab) -> None:
    pod = lab.wait_phase("kai-whole-gpu", "Running")
    assert pod["spec"]["nodeName"] == NODE
    assert pod["status"]["containerStatuses"][0]["allocatedResources"] == {"nvidia.com/gpu": "1"}
    assert "runai-gpu-group" not in labels(pod)
    assert pod["metadata"]["annotations"]["received-resource-type"] == "Regular"


def test_the_shared_pod_is_wired_but_not_bound(lab: Lab) -> None:
    pod = lab.get("pods", SHARED, "default")
    assert pod is not None
    assert pod["status"]["phase"] == "Pending"
    assert "nodeName" not in pod["spec"]
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    mounts = {mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    assert {"/usr/local/vgpu", "/etc/ld.so.preload", "/usr/local/vgpu/containers", "/tmp/vgpulock"} <= mounts
    maps = {obj["metadata"]["name"] for obj in lab.all("configmaps", "default")}
    assert not any("shared-gpu" in name for name in maps)


def test_the_queue_accounts_one_and_a_half_cards_by_kais_rule(lab: Lab) -> None:
    expected = (
        "deserved: <Unlimited>, requested: <1.51>, maxAllowed: <Unlimited>, allocated: <1.51>, "
        "historicalUsage: <0>, fairShare: <1.51>"
    )
    assert expected in lab.accounting()
    assert "\x1b[34mINFO\x1b[0m" in lab.scheduler_lines()[-1]


def test_the_binder_says_which_reservation_failed(lab: Lab) -> None:
    event = lab.wait_event("BindingError", SHARED)
    assert re.fullmatch(
        rf"Failed to bind pod default/{SHARED} to node {NODE}: failed to reserve GPUs for pod <default/{SHARED}> in "
        r"gpu group <[0-9a-f-]{36}>: failed waiting for GPU reservation pod to allocate: "
        r"kai-resource-reservation/gpu-reservation-[0-9a-f]{16}",
        event["message"],
    )
    assert event["source"] == {"component": "binder"}


def test_a_second_attempt_gives_the_false_bound_event(lab: Lab) -> None:
    lab.wait_event("Bound", SHARED, "Pod bound successfully to node")
    pod = lab.get("pods", SHARED, "default")
    assert pod is not None
    assert "nodeName" not in pod["spec"]


def test_the_reservation_pod_cannot_load_nvml(lab: Lab) -> None:
    def text_of_any(pods: list[dict[str, object]]) -> str:
        for pod in pods:
            name = str(pod["metadata"]["name"])  # type: ignore[index]
            if not name.startswith("gpu-reservation-"):
                continue
            for previous in ("false", "true"):
                try:
                    text = lab.log("kai-resource-reservation", name, "resource-reservation", previous=previous)
                except ApiError:
                    continue
                if "NVML" in text:
                    return text
        return ""

    text = lab.wait("pods", text_of_any, "log of a reservation")
    assert text.endswith("Error while running the app: unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND")
    assert "Looking for GPU device id for pod" in text


def test_the_isolator_announced_its_keys_and_logged_what_it_did(lab: Lab) -> None:
    pods = lab.all("pods", "kai-resource-isolator", labelSelector="app.kubernetes.io/component=kai-webhook")
    text = lab.log("kai-resource-isolator", pods[0]["metadata"]["name"], "webhook")
    assert "annotationKeys=gpu-fraction|gpu-memory" in text.splitlines()[0]
    assert re.search(rf"ns=default pod={SHARED} injected: patchBytes=\d+", text)
    assert 'pod=kai-whole-gpu skipped: missing annotations "gpu-fraction" or "gpu-memory"' in text


def test_a_log_that_is_not_there_is_said_so(lab: Lab) -> None:
    with pytest.raises(ApiError, match='previous terminated container "app" in pod "kai-whole-gpu" not found'):
        lab.log("default", "kai-whole-gpu", "app", previous="true")


def test_a_refused_pod_is_refused_by_admission(lab: Lab) -> None:
    with pytest.raises(ApiError) as caught:
        lab.create(shared_pod("bad", {"gpu-memory": "abc"}))
    assert caught.value.code == 403
    assert str(caught.value) == (
        'admission webhook "admission.kai-scheduler.svc" denied the request: '
        "gpu-memory annotation value must be a positive integer greater than 0"
    )


def test_the_whole_card_by_memory_is_unschedulable(lab: Lab) -> None:
    lab.shared_pod("whole-by-memory", "40960")
    event = lab.wait_event("Unschedulable", "whole-by-memory")
    assert event["message"].startswith("no nodes with enough resources were found: 1 node(s) didn't have enough")
    lab.wait_event("Unschedulable", "pg-whole-by-memory", "PodSchedulingErrors: Resources were not found for pod")
    lab.delete("pods", "whole-by-memory", "default")
    lab.wait("pods", lambda pods: not any(p["metadata"]["name"] == "whole-by-memory" for p in pods), "pod gone")


@pytest.mark.parametrize(
    ("queue", "text"),
    [("nope", "QueueDoesNotExist: Queue 'nope' does not exist."), ("default", "Unable to schedule pod")],
)
def test_a_wrong_queue_label_is_said_on_the_pod(lab: Lab, queue: str, text: str) -> None:
    pod = shared_pod(f"q-{queue}", {})
    pod["metadata"]["labels"] = {"kai.scheduler/queue": queue}
    lab.create(pod)
    assert lab.wait_event("Unschedulable", f"q-{queue}")["message"] == text
    lab.delete("pods", f"q-{queue}", "default")


def test_the_canary_runs_in_the_default_queue(lab: Lab) -> None:
    lab.apply("canary-pod.yaml")
    pod = lab.wait_phase("kai-lab-canary", "Running")
    assert condition(pod, "PodBound")["status"] == "True"
    lab.delete("pods", "kai-lab-canary", "default")
    lab.wait("pods", lambda pods: not any(p["metadata"]["name"] == "kai-lab-canary" for p in pods), "canary gone")


def test_a_killed_scheduler_comes_back_and_goes_on(lab: Lab) -> None:
    old = lab.all("pods", "kai-scheduler", labelSelector="app=kai-scheduler-default")[0]["metadata"]
    lab.delete("pods", old["name"], "kai-scheduler")

    def replaced(pods: list[dict[str, object]]) -> bool:
        names = [p["metadata"]["name"] for p in pods if labels(p).get("app") == "kai-scheduler-default"]  # type: ignore[index]
        ready = [p for p in pods if labels(p).get("app") == "kai-scheduler-default" and condition(p, "Ready")]
        return old["name"] not in names and any(condition(p, "Ready")["status"] == "True" for p in ready)

    lab.wait("pods", replaced, "another scheduler")
    lab.create(shared_pod("after-restart", {}))
    lab.wait_phase("after-restart", "Running")
    lab.delete("pods", "after-restart", "default")


def test_without_its_operator_the_binder_stays_scaled_down(lab: Lab) -> None:
    for name in ("kai-operator", "binder"):  # in this order: an operator that still runs scales the binder up again
        lab.patch("deployments", name, {"spec": {"replicas": 0}}, "kai-scheduler")
        lab.wait("pods", partial(_none_of, name), f"{name} gone")
    lab.create(shared_pod("unbound", {}))
    lab.wait_event("Scheduled", "unbound")
    pod = lab.get("pods", "unbound", "default")
    assert pod is not None
    assert "nodeName" not in pod["spec"]
    lab.patch("deployments", "kai-operator", {"spec": {"replicas": 1}}, "kai-scheduler")
    lab.patch("deployments", "binder", {"spec": {"replicas": 1}}, "kai-scheduler")
    lab.wait_phase("unbound", "Running")
    lab.delete("pods", "unbound", "default")


def _none_of(app: str, pods: list[Object]) -> bool:
    return app not in [labels(pod).get("app") for pod in pods]


def test_uninstalling_says_what_is_kept(lab: Lab) -> None:
    lab.delete("pods", SHARED, "default")
    lab.delete("pods", "kai-whole-gpu", "default")
    lab.wait("pods", lambda pods: not any(p["spec"].get("schedulerName") == "kai-scheduler" for p in pods), "pods gone")
    helm.uninstall(lab.url, lab.token, release="kai-resource-isolator", namespace="kai-resource-isolator")
    kept = helm.uninstall(lab.url, lab.token, release="kai-scheduler", namespace="kai-scheduler")
    assert kept == [
        "[Namespace] kai-resource-reservation",
        "[Queue] default-parent-queue",
        "[Queue] default-queue",
        "[SchedulingShard] default",
    ]
    lab.wait("deployments", lambda found: not found, "no deployment left")
    assert [row["name"] for row in helm.list_releases(lab.url, lab.token)] == ["nvml-mock"]
    with pytest.raises(helm.HelmError, match="Release not loaded: kai-scheduler: release: not found"):
        helm.uninstall(lab.url, lab.token, release="kai-scheduler", namespace="kai-scheduler")
