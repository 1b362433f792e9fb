from __future__ import annotations

from typing import Any

import pytest

from kai_lab_pipeline_tests.api_suite.support import MERGE, STRATEGIC, Api, pod, refusal


def test_defaults_of_a_pod(api: Api, pods: str) -> None:
    made = api.post(pods, pod("p"))
    spec = made["spec"]
    expected = {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
        "securityContext": {},
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "enableServiceLinks": True,
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    assert {key: spec.get(key) for key in expected} == expected
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert made["metadata"]["generation"] == 1
    assert [(t["key"], t["effect"], t["tolerationSeconds"]) for t in spec["tolerations"]] == [
        ("node.kubernetes.io/not-ready", "NoExecute", 300),
        ("node.kubernetes.io/unreachable", "NoExecute", 300),
    ]
    container = spec["containers"][0]
    assert container["terminationMessagePath"] == "/dev/termination-log"
    assert container["terminationMessagePolicy"] == "File"
    assert container["resources"] == {}


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1.37", "IfNotPresent"),
        ("localhost:5000/busybox", "Always"),
        ("busybox@sha256:" + "0" * 64, "IfNotPresent"),
    ],
)
def test_pull_policy_follows_the_tag(api: Api, pods: str, image: str, policy: str) -> None:
    made = api.post(pods, pod("p", containers=[{"name": "c", "image": image}]), dryRun="All")
    assert made["spec"]["containers"][0]["imagePullPolicy"] == policy


def test_limits_are_requests_where_none_are_named(api: Api, pods: str) -> None:
    resources = {"limits": {"nvidia.com/gpu": 1, "cpu": "1"}}
    made = api.post(pods, pod("p", containers=[{"name": "c", "image": "x", "resources": resources}]))
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "1", "cpu": "1"}
    assert made["status"]["qosClass"] == "Burstable"


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        (
            {"limits": {"nvidia.com/gpu": "0.5"}},
            'spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer',
        ),
        (
            {"requests": {"nvidia.com/gpu": "1"}},
            "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
        ),
    ],
)
def test_gpus_are_whole_and_limited(api: Api, pods: str, resources: dict[str, Any], said: str) -> None:
    body = pod("p", containers=[{"name": "c", "image": "x", "resources": resources}])
    code, reason, message = refusal(api.http.post(pods, json=body))
    assert (code, reason) == (422, "Invalid")
    assert said in message


def test_pods_need_containers(api: Api, pods: str) -> None:
    code, _, message = refusal(api.http.post(pods, json=pod("p", containers=[])))
    assert code == 422
    assert message == 'Pod "p" is invalid: spec.containers: Required value'


def test_mounts_need_their_volume(api: Api, pods: str) -> None:
    mounts = [{"name": "nope", "mountPath": "/x"}]
    body = pod("p", containers=[{"name": "c", "image": "x", "volumeMounts": mounts}])
    assert 'spec.containers[0].volumeMounts[0].name: Not found: "nope"' in refusal(api.http.post(pods, json=body))[2]


def test_a_pods_spec_is_fixed(api: Api, pods: str) -> None:
    api.post(pods, pod("p"))
    answer = api.raw_patch(f"{pods}/p", {"spec": {"schedulerName": "kai-scheduler"}}, MERGE)
    code, reason, message = refusal(answer)
    assert (code, reason) == (422, "Invalid")
    assert message.startswith(
        'Pod "p" is invalid: spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,'
    )
    assert answer.json()["details"]["causes"][0]["reason"] == "FieldValueForbidden"


def test_image_and_annotations_may_change(api: Api, pods: str) -> None:
    api.post(pods, pod("p"))
    spec = {"containers": [{"name": "c", "image": "busybox:2"}]}
    changed = api.patch(f"{pods}/p", {"spec": spec, "metadata": {"annotations": {"gpu-memory": "1"}}}, STRATEGIC)
    assert changed["spec"]["containers"][0]["image"] == "busybox:2"
    assert changed["metadata"]["annotations"] == {"gpu-memory": "1"}


def test_runtime_class_must_exist(api: Api, pods: str, unique: str) -> None:
    answer = api.http.post(pods, json=pod("p", runtimeClassName=unique))
    assert refusal(answer) == (
        403,
        "Forbidden",
        f'pods "p" is forbidden: pod rejected: RuntimeClass "{unique}" not found',
    )
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    api.post(classes, {"metadata": {"name": unique}, "handler": "runc"})
    assert api.post(pods, pod("p", runtimeClassName=unique))["spec"]["runtimeClassName"] == unique
    api.delete(f"{classes}/{unique}")


def test_priority_class_must_exist(api: Api, pods: str, unique: str) -> None:
    message = refusal(api.http.post(pods, json=pod("p", priorityClassName=unique)))[2]
    assert message == f'pods "p" is forbidden: no PriorityClass with name {unique} was found'
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    api.post(classes, {"metadata": {"name": unique}, "value": 50})
    assert api.post(pods, pod("p", priorityClassName=unique))["spec"]["priority"] == 50
    api.delete(f"{classes}/{unique}")


def test_binding(api: Api, pods: str) -> None:
    api.post(pods, pod("p", schedulerName="kai-scheduler"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p"},
        "target": {"kind": "Node", "name": "n1"},
    }
    assert api.post(f"{pods}/p/binding", binding)["status"] == "Success"
    bound = api.get(f"{pods}/p")
    assert bound["spec"]["nodeName"] == "n1"
    assert {c["type"]: c["status"] for c in bound["status"]["conditions"]} == {"PodScheduled": "True"}
    code, reason, message = refusal(api.http.post(f"{pods}/p/binding", json=binding))
    assert (code, reason) == (409, "Conflict")
    assert 'pod p is already assigned to node "n1"' in message


def test_log_of_an_unscheduled_pod_is_empty(api: Api, pods: str) -> None:
    api.post(pods, pod("p", schedulerName="nobody"))
    answer = api.http.get(f"{pods}/p/log")
    assert (answer.status_code, answer.text) == (204, "")


def test_log_needs_a_container_where_there_are_several(api: Api, pods: str) -> None:
    containers = [{"name": "a", "image": "x"}, {"name": "b", "image": "x"}]
    api.post(pods, pod("p", schedulerName="nobody", containers=containers))
    code, reason, message = refusal(api.http.get(f"{pods}/p/log"))
    assert (code, reason) == (400, "BadRequest")
    assert message == "a container name must be specified for pod p, choose one of: [a b]"
    answer = refusal(api.http.get(f"{pods}/p/log", params={"container": "z"}))
    assert answer[2] == "container z is not valid for pod p"


def test_log_of_an_absent_pod(api: Api, pods: str) -> None:
    assert refusal(api.http.get(f"{pods}/nope/log")) == (404, "NotFound", 'pods "nope" not found')


def test_eviction(api: Api, pods: str) -> None:
    api.post(pods, pod("p", schedulerName="nobody"))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    assert api.post(f"{pods}/p/eviction", eviction)["status"] == "Success"
    api.gone(f"{pods}/p")
