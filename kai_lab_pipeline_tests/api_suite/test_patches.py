from __future__ import annotations

from typing import Any

import pytest

from kai_lab_pipeline_tests.api_suite.support import JSON, MERGE, STRATEGIC, Api, config_map, deployment, refusal


@pytest.fixture
def deployed(api: Api, namespace: str) -> str:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    containers = [
        {"name": "a", "image": "a:1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
        {"name": "b", "image": "b:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
    ]
    body = deployment("d")
    body["spec"]["template"]["spec"] = {"containers": containers, "volumes": [{"name": "v", "emptyDir": {}}]}
    api.post(path, body)
    return f"{path}/d"


def template(obj: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = obj["spec"]["template"]["spec"]
    return spec


def patched(api: Api, path: str, spec: dict[str, Any]) -> dict[str, Any]:
    return template(api.patch(path, {"spec": {"template": {"spec": spec}}}, STRATEGIC))


def test_merge_patch_adds_and_removes(api: Api, configmaps: str) -> None:
    api.post(configmaps, config_map("a", k="1", j="1"))
    assert api.patch(f"{configmaps}/a", {"data": {"k": None, "n": "2"}}, MERGE)["data"] == {"j": "1", "n": "2"}


def test_merge_patch_replaces_lists(api: Api, deployed: str) -> None:
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "only", "image": "z", "volumeMounts": []}]}}}}
    assert [c["name"] for c in template(api.patch(deployed, patch, MERGE))["containers"]] == ["only"]


def test_json_patch(api: Api, configmaps: str) -> None:
    api.post(configmaps, config_map("a", {"l": "1"}, k="1"))
    operations = [
        {"op": "test", "path": "/data/k", "value": "1"},
        {"op": "replace", "path": "/data/k", "value": "2"},
        {"op": "add", "path": "/metadata/labels/z", "value": "y"},
        {"op": "remove", "path": "/metadata/labels/l"},
    ]
    changed = api.patch(f"{configmaps}/a", operations, JSON)
    assert (changed["data"], changed["metadata"]["labels"]) == ({"k": "2"}, {"z": "y"})


def test_json_patch_that_does_not_fit(api: Api, configmaps: str) -> None:
    api.post(configmaps, config_map("a", k="1"))
    failed = api.raw_patch(f"{configmaps}/a", [{"op": "test", "path": "/data/k", "value": "9"}], JSON)
    assert refusal(failed)[:2] == (422, "Invalid")
    assert refusal(api.raw_patch(f"{configmaps}/a", {"data": {}}, JSON))[:2] == (400, "BadRequest")


def test_strategic_patch_merges_containers_by_name(api: Api, deployed: str) -> None:
    spec = patched(api, deployed, {"containers": [{"name": "b", "image": "b:2"}, {"name": "c", "image": "c:1"}]})
    images = {c["name"]: c["image"] for c in spec["containers"]}
    assert images == {"a": "a:1", "b": "b:2", "c": "c:1"}
    assert spec["containers"][-1]["volumeMounts" if "volumeMounts" in spec["containers"][-1] else "name"]


def test_strategic_patch_merges_nested_lists(api: Api, deployed: str) -> None:
    env = [{"name": "Y", "value": "3"}, {"name": "Z", "value": "4"}]
    mounts = [{"name": "v", "mountPath": "/other"}]
    spec = patched(api, deployed, {"containers": [{"name": "a", "env": env}, {"name": "b", "volumeMounts": mounts}]})
    by_name = {c["name"]: c for c in spec["containers"]}
    assert {e["name"]: e["value"] for e in by_name["a"]["env"]} == {"X": "1", "Y": "3", "Z": "4"}
    assert {m["mountPath"] for m in by_name["b"]["volumeMounts"]} == {"/v", "/other"}


def test_strategic_patch_deletes_items(api: Api, deployed: str) -> None:
    spec = patched(api, deployed, {"containers": [{"name": "b", "$patch": "delete"}]})
    assert [c["name"] for c in spec["containers"]] == ["a"]


def test_strategic_patch_replaces_lists_when_told(api: Api, deployed: str) -> None:
    env = [{"$patch": "replace"}, {"name": "N", "value": "1"}]
    spec = patched(api, deployed, {"containers": [{"name": "a", "env": env}]})
    by_name = {c["name"]: c for c in spec["containers"]}
    assert by_name["a"]["env"] == [{"name": "N", "value": "1"}]


def test_strategic_patch_replaces_maps_when_told(api: Api, configmaps: str) -> None:
    api.post(configmaps, config_map("a", k="1"))
    changed = api.patch(f"{configmaps}/a", {"data": {"$patch": "replace", "n": "2"}}, STRATEGIC)
    assert changed["data"] == {"n": "2"}


def test_strategic_patch_replaces_tolerations_whole(api: Api, deployed: str) -> None:
    """Tolerations have no merge key, unlike most lists of a pod."""
    patched(api, deployed, {"tolerations": [{"key": "a", "operator": "Exists"}]})
    spec = patched(api, deployed, {"tolerations": [{"key": "b", "operator": "Exists"}]})
    assert [t["key"] for t in spec["tolerations"]] == ["b"]


def test_strategic_patch_of_finalizers(api: Api, configmaps: str) -> None:
    body = config_map("a")
    body["metadata"]["finalizers"] = ["x.io/a"]
    api.post(configmaps, body)
    more = api.patch(f"{configmaps}/a", {"metadata": {"finalizers": ["x.io/b"]}}, STRATEGIC)
    assert sorted(more["metadata"]["finalizers"]) == ["x.io/a", "x.io/b"]
    fewer = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.io/a", "x.io/b"]}}
    assert not api.patch(f"{configmaps}/a", fewer, STRATEGIC)["metadata"].get("finalizers")


def test_conditions_merge_by_type(api: Api, unique: str) -> None:
    path = f"/api/v1/nodes/{unique}"
    api.post("/api/v1/nodes", {"metadata": {"name": unique}})
    for kind, status in (("Ready", "False"), ("MemoryPressure", "False"), ("Ready", "True")):
        api.patch(f"{path}/status", {"status": {"conditions": [{"type": kind, "status": status}]}}, STRATEGIC)
    conditions = {c["type"]: c["status"] for c in api.get(path)["status"]["conditions"]}
    api.delete(path)
    assert conditions == {"Ready": "True", "MemoryPressure": "False"}


def test_patch_with_a_stale_version_conflicts(api: Api, configmaps: str) -> None:
    made = api.post(configmaps, config_map("a", k="1"))
    api.patch(f"{configmaps}/a", {"data": {"k": "2"}})
    patch = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"k": "3"}}
    assert refusal(api.raw_patch(f"{configmaps}/a", patch, MERGE))[:2] == (409, "Conflict")


def test_identity_cannot_be_patched(api: Api, configmaps: str) -> None:
    made = api.post(configmaps, config_map("a"))
    patch = {"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z", "labels": {"x": "y"}}}
    changed = api.patch(f"{configmaps}/a", patch)
    assert changed["metadata"]["creationTimestamp"] == made["metadata"]["creationTimestamp"]


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        (
            "uid",
            "00000000-0000-0000-0000-000000000000",
            (
                422,
                "Invalid",
                'ConfigMap "a" is invalid: metadata.uid: Invalid value: "00000000-0000-0000-0000-000000000000": '
                "field is immutable",
            ),
        ),
        ("name", "b", (400, "BadRequest", "the name of the object (b) does not match the name on the URL (a)")),
        (
            "namespace",
            "elsewhere",
            (
                400,
                "BadRequest",
                "the namespace of the provided object does not match the namespace sent on the request",
            ),
        ),
    ],
)
def test_objects_cannot_be_patched_into_others(
    api: Api, configmaps: str, field: str, value: str, expected: tuple[int, str, str]
) -> None:
    api.post(configmaps, config_map("a", k="1"))
    assert refusal(api.raw_patch(f"{configmaps}/a", {"metadata": {field: value}}, MERGE)) == expected
    assert api.get(f"{configmaps}/a")["data"] == {"k": "1"}


def test_unknown_patch_types(api: Api, configmaps: str) -> None:
    api.post(configmaps, config_map("a"))
    answer = refusal(api.raw_patch(f"{configmaps}/a", {}, "application/json"))
    assert answer == (415, "UnsupportedMediaType", "415: Unsupported Media Type")
