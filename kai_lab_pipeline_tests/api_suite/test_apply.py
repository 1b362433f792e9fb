from __future__ import annotations

from typing import Any

from kai_lab_pipeline_tests.api_suite.support import APPLY, Api, deployment, pod, refusal


def config(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def owners(obj: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(e["manager"], e["operation"]): e["fieldsV1"] for e in obj["metadata"]["managedFields"]}


def test_apply_creates_and_takes_back(api: Api, configmaps: str) -> None:
    path = f"{configmaps}/a"
    made = api.apply(path, config("a", a="1", b="1"), "m")
    assert made["data"] == {"a": "1", "b": "1"}
    assert owners(made)["m", "Apply"] == {"f:data": {"f:a": {}, "f:b": {}}}
    assert api.apply(path, config("a", a="2"), "m")["data"] == {"a": "2"}


def test_created_is_201_and_changed_is_200(api: Api, configmaps: str) -> None:
    path = f"{configmaps}/a"
    codes = [api.raw_patch(path, config("a", a=v), APPLY, fieldManager="m").status_code for v in ("1", "2")]
    assert codes == [201, 200]


def test_conflicts_name_the_manager_and_the_field(api: Api, configmaps: str) -> None:
    path = f"{configmaps}/a"
    api.apply(path, config("a", k="1"), "alpha")
    answer = api.raw_patch(path, config("a", k="2"), APPLY, fieldManager="beta")
    assert refusal(answer) == (409, "Conflict", 'Apply failed with 1 conflict: conflict with "alpha": .data.k')
    assert answer.json()["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "alpha"', "field": ".data.k"}
    ]


def test_force_takes_the_field(api: Api, configmaps: str) -> None:
    path = f"{configmaps}/a"
    api.apply(path, config("a", k="1", j="1"), "alpha")
    forced = api.apply(path, config("a", k="2"), "beta", force=True)
    assert forced["data"] == {"k": "2", "j": "1"}
    assert owners(forced)["alpha", "Apply"] == {"f:data": {"f:j": {}}}
    assert owners(forced)["beta", "Apply"] == {"f:data": {"f:k": {}}}


def test_the_same_value_is_shared_not_fought_over(api: Api, configmaps: str) -> None:
    path = f"{configmaps}/a"
    api.apply(path, config("a", k="1"), "alpha")
    both = api.apply(path, config("a", k="1"), "beta")
    assert {manager for manager, _ in owners(both)} == {"alpha", "beta"}
    # alpha lets go, beta still wants it
    assert api.apply(path, config("a"), "alpha")["data"] == {"k": "1"}
    assert not api.apply(path, config("a"), "beta").get("data")


def test_updates_of_others_conflict_with_apply(api: Api, configmaps: str) -> None:
    path = f"{configmaps}/a"
    api.apply(path, config("a", k="1"), "m")
    api.patch(path, {"data": {"k": "2"}}, fieldManager="by-hand")
    code, _, message = refusal(api.raw_patch(path, config("a", k="1"), APPLY, fieldManager="m"))
    assert code == 409
    assert 'conflict with "by-hand" using v1' in message


def test_applying_the_same_again_is_no_new_version(api: Api, configmaps: str) -> None:
    path = f"{configmaps}/a"
    first = api.apply(path, config("a", k="1"), "m")
    assert api.apply(path, config("a", k="1"), "m") == first


def test_lists_with_keys_merge_item_by_item(api: Api, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/d"
    body = deployment("d")
    body["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "A", "value": "1"}]
    api.apply(path, body, "m")
    spec = {"containers": [{"name": "side", "image": "s:1"}]}
    other = {**deployment("d"), "spec": {"template": {"spec": spec}}}
    merged = api.apply(path, other, "sidecar")
    assert [c["name"] for c in merged["spec"]["template"]["spec"]["containers"]] == ["c", "side"]
    body["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "B", "value": "2"}]
    again = api.apply(path, body, "m")
    containers = again["spec"]["template"]["spec"]["containers"]
    assert containers[0]["env"] == [{"name": "B", "value": "2"}]
    other["spec"]["template"]["spec"]["containers"] = []
    gone = api.apply(path, other, "sidecar")
    assert [c["name"] for c in gone["spec"]["template"]["spec"]["containers"]] == ["c"]


def test_ports_are_keyed_with_their_default_protocol(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/services/s"
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 443}]}}
    api.apply(path, body, "m")
    body["spec"] = {"ports": [{"port": 443, "name": "https"}]}
    ports = api.apply(path, body, "m")["spec"]["ports"]
    assert [(p["port"], p["name"], p["protocol"]) for p in ports] == [(443, "https", "TCP")]


def test_status_has_its_own_managers(api: Api, namespace: str) -> None:
    # A pod that nobody schedules: of a workload a real controller writes the status too, and may be there first.
    path = f"/api/v1/namespaces/{namespace}/pods/p"
    api.apply(path, pod("p", schedulerName="nobody"), "m")
    status = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "status": {"message": "ours"}}
    applied = api.apply(f"{path}/status", status, "m")
    assert applied["status"]["message"] == "ours"
    assert applied["spec"]["containers"]
    assert {e.get("subresource") for e in applied["metadata"]["managedFields"]} == {None, "status"}
    # applying the spec again leaves the status alone
    assert api.apply(path, pod("p", schedulerName="nobody"), "m")["status"]["message"] == "ours"


def test_apply_in_dry_run(api: Api, configmaps: str) -> None:
    path = f"{configmaps}/a"
    assert api.apply(path, config("a", k="1"), "m", dryRun="All")["data"] == {"k": "1"}
    assert not api.exists(path)


def test_apply_needs_a_manager(api: Api, configmaps: str) -> None:
    code, _, message = refusal(api.raw_patch(f"{configmaps}/a", config("a"), APPLY))
    assert code in (400, 422)
    assert "fieldManager" in message


def test_missing_namespace(api: Api, unique: str) -> None:
    answer = api.raw_patch(f"/api/v1/namespaces/{unique}/configmaps/a", config("a"), APPLY, fieldManager="m")
    assert refusal(answer) == (404, "NotFound", f'namespaces "{unique}" not found')
