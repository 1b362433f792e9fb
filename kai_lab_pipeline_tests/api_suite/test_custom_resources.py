from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline_tests.api_suite.support import MERGE, STRATEGIC, Api, dynamic, official, refusal, until

OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def definition(group: str, **version: Any) -> dict[str, Any]:
    """A Queue-like kind: a typed part, a defaulted field, a keyed list, printer columns."""
    parts = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
        },
    }
    spec = {
        "type": "object",
        "properties": {
            "quota": {"type": "number"},
            "weight": {"type": "integer", "default": 7, "minimum": 0},
            "mode": {"type": "string", "enum": ["a", "b"]},
            "parts": parts,
            "values": {"type": "array", "items": {"type": "string"}},
            "free": OPEN,
        },
    }
    schema = {"type": "object", "properties": {"spec": spec, "status": OPEN}}
    served = {
        "name": "v2",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": "Weight", "type": "integer", "jsonPath": ".spec.weight"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "schema": {"openAPIV3Schema": schema},
        **version,
    }
    names = {"plural": "queues", "singular": "queue", "kind": "Queue", "listKind": "QueueList", "shortNames": ["qq"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"queues.{group}"},
        "spec": {"group": group, "scope": "Cluster", "names": names, "versions": [served]},
    }


CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def group(api: Api, unique: str) -> Iterator[str]:
    group = f"{unique}.run.ai"
    api.post(CRDS, definition(group))
    until(lambda: api.http.get(f"/apis/{group}/v2/queues").status_code == 200, "the new kind to be served")
    yield group
    api.http.delete(f"{CRDS}/queues.{group}")


@pytest.fixture
def queues(group: str) -> str:
    return f"/apis/{group}/v2/queues"


def queue(queues: str, name: str, **spec: Any) -> dict[str, Any]:
    _, _, group, version, _ = queues.split("/")
    return {"apiVersion": f"{group}/{version}", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def test_a_new_kind_is_established_and_discovered(api: Api, group: str) -> None:
    conditions = {c["type"]: c["status"] for c in api.get(f"{CRDS}/queues.{group}")["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    entry = api.get(f"/apis/{group}/v2")["resources"][0]
    assert (entry["name"], entry["kind"], entry["shortNames"]) == ("queues", "Queue", ["qq"])
    assert group in {g["name"] for g in api.get("/apis")["groups"]}


def test_defaults_are_filled_in(api: Api, queues: str) -> None:
    assert api.post(queues, queue(queues, "q"))["spec"] == {"weight": 7}
    assert api.get(queues)["kind"] == "QueueList"


def test_wrong_types_are_invalid(api: Api, queues: str) -> None:
    code, reason, message = refusal(api.http.post(queues, json=queue(queues, "q", quota="many")))
    group = queues.split("/")[2]
    assert (code, reason) == (422, "Invalid")
    assert message == (
        f'Queue.{group} "q" is invalid: spec.quota: Invalid value: "string": '
        'spec.quota in body must be of type number: "string"'
    )


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"weight": -1}, "spec.weight"),
        ({"mode": "c"}, "spec.mode"),
        ({"parts": [{"size": 1}]}, "spec.parts[0].name"),
        ({"values": [1]}, "spec.values[0]"),
    ],
)
def test_schema_violations_name_the_field(api: Api, queues: str, spec: dict[str, Any], field: str) -> None:
    answer = api.http.post(queues, json=queue(queues, "q", **spec))
    assert answer.status_code == 422
    assert answer.json()["details"]["causes"][0]["field"] == field


def test_unknown_fields_are_pruned_or_refused(api: Api, queues: str) -> None:
    body = queue(queues, "q", nope=1, free={"any": {"thing": 1}})
    made = api.post(queues, body, fieldValidation="Ignore")
    assert made["spec"] == {"weight": 7, "free": {"any": {"thing": 1}}}
    answer = api.http.post(queues, json=queue(queues, "r", nope=1), params={"fieldValidation": "Strict"})
    assert refusal(answer)[0] == 400
    assert 'unknown field "spec.nope"' in answer.json()["message"]
    warned = api.http.post(queues, json=queue(queues, "s", nope=1), params={"fieldValidation": "Warn"})
    assert 'unknown field "spec.nope"' in warned.headers["warning"].replace("\\", "")


def test_status_is_isolated(api: Api, queues: str) -> None:
    made = api.post(queues, {**queue(queues, "q"), "status": {"childQueues": ["x"]}})
    assert "status" not in made
    through = api.patch(f"{queues}/q/status", {"status": {"childQueues": ["x"]}, "spec": {"weight": 9}}, MERGE)
    assert through["status"] == {"childQueues": ["x"]}
    assert through["spec"]["weight"] == 7
    assert through["metadata"]["generation"] == 1


def test_strategic_patch_is_for_built_in_kinds(api: Api, queues: str) -> None:
    api.post(queues, queue(queues, "q"))
    assert refusal(api.raw_patch(f"{queues}/q", {"spec": {"weight": 1}}, STRATEGIC))[0] == 415


def test_apply_follows_the_schema_of_lists(api: Api, queues: str) -> None:
    api.apply(f"{queues}/q", queue(queues, "q", parts=[{"name": "a", "size": 1}], values=["x"]), "m")
    both = api.apply(f"{queues}/q", queue(queues, "q", parts=[{"name": "b", "size": 2}]), "n")
    assert both["spec"]["parts"] == [{"name": "a", "size": 1}, {"name": "b", "size": 2}]
    answer = api.raw_patch(
        f"{queues}/q", queue(queues, "q", values=["y"]), "application/apply-patch+yaml", fieldManager="n"
    )
    assert refusal(answer)[0] == 409  # a list without a type is one value


def test_printer_columns(api: Api, queues: str) -> None:
    api.post(queues, queue(queues, "q", weight=3))
    table = api.http.get(queues, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}).json()
    assert [c["name"] for c in table["columnDefinitions"]] == ["Name", "Weight", "Age"]
    assert table["rows"][0]["cells"][:2] == ["q", 3]


def test_dynamic_client_applies(kubeconfig: Path, group: str, tmp_path: Path) -> None:
    with official(kubeconfig) as api_client:
        resource = dynamic(api_client, tmp_path).resources.get(api_version=f"{group}/v2", kind="Queue")
        body = {"apiVersion": f"{group}/v2", "kind": "Queue", "metadata": {"name": "q"}, "spec": {"weight": 2}}
        made = resource.server_side_apply(body=body, name="q", field_manager="suite")
        assert made.spec.weight == 2
        assert [item.metadata.name for item in resource.get().items] == ["q"]


def test_versions_share_their_objects(api: Api, unique: str) -> None:
    group = f"{unique}.run.ai"
    crd = definition(group)
    older = {"name": "v1", "served": True, "storage": False, "schema": {"openAPIV3Schema": OPEN}}
    crd["spec"]["versions"].append(older)
    api.post(CRDS, crd)
    path = f"/apis/{group}/v1/queues"
    until(lambda: api.http.get(path).status_code == 200, "the new kind to be served")
    api.post(f"/apis/{group}/v2/queues", {"apiVersion": f"{group}/v2", "kind": "Queue", "metadata": {"name": "q"}})
    assert api.get(f"{path}/q")["apiVersion"] == f"{group}/v1"
    assert api.get(path)["items"][0]["apiVersion"] == f"{group}/v1"
    assert api.get(f"/apis/{group}")["preferredVersion"]["version"] == "v2"
    api.delete(f"{CRDS}/queues.{group}")


def test_removing_a_kind_removes_its_objects(api: Api, group: str, queues: str) -> None:
    api.post(queues, queue(queues, "q"))
    api.delete(f"{CRDS}/queues.{group}")
    until(lambda: api.http.get(queues).status_code == 404, "the kind to be gone")


def test_the_definitions_name_must_fit(api: Api, unique: str) -> None:
    crd = definition(f"{unique}.run.ai")
    crd["metadata"]["name"] = "other.run.ai"
    assert refusal(api.http.post(CRDS, json=crd))[:2] == (422, "Invalid")
