from __future__ import annotations

from pathlib import Path

import pytest

from kai_lab_pipeline_tests.api_suite.support import Api, dynamic, official, refusal


@pytest.mark.parametrize("path", ["/version", "/version/"])
def test_version_with_and_without_slash(api: Api, path: str) -> None:
    assert api.get(path)["gitVersion"].startswith("v1.34")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/livez"])
def test_health(api: Api, path: str) -> None:
    assert api.http.get(path).text == "ok"


def test_plain_discovery_lists_what_the_lab_uses(api: Api) -> None:
    assert api.get("/api")["versions"] == ["v1"]
    groups = {group["name"] for group in api.get("/apis")["groups"]}
    assert groups >= {"apps", "batch", "node.k8s.io", "apiextensions.k8s.io", "rbac.authorization.k8s.io"}
    core = {entry["name"]: entry for entry in api.get("/api/v1")["resources"]}
    assert core["pods"]["shortNames"] == ["po"]
    assert core["nodes"]["namespaced"] is False
    assert {"pods/status", "pods/log", "pods/binding", "pods/eviction"} <= core.keys()
    apps = {entry["name"]: entry for entry in api.get("/apis/apps/v1")["resources"]}
    assert apps["deployments/scale"]["kind"] == "Scale"


def test_aggregated_discovery_says_the_same(api: Api) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    answer = api.http.get("/apis", headers={"Accept": accept})
    assert "as=APIGroupDiscoveryList" in answer.headers["content-type"].replace(" ", "")
    groups = {group["metadata"]["name"]: group for group in answer.json()["items"]}
    version = groups["apps"]["versions"][0]
    aggregated = {entry["resource"] for entry in version["resources"]}
    plain = {entry["name"] for entry in api.get("/apis/apps/v1")["resources"] if "/" not in entry["name"]}
    assert aggregated == plain


def test_openapi_v3_names_the_field_validation_parameter(api: Api) -> None:
    """kubectl leaves validation to the server only when it finds this parameter."""
    paths = api.get("/openapi/v3")["paths"]
    document = api.get(paths["apis/apps/v1"]["serverRelativeURL"])
    operation = document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]
    assert operation["x-kubernetes-group-version-kind"]["kind"] == "Deployment"
    assert "fieldValidation" in {parameter.get("name") for parameter in operation["parameters"]}


@pytest.mark.parametrize("path", ["/apis/apps/v9", "/apis/apps/v1/nopes", "/api/v2", "/api/v1/namespaces/x/nopes/y"])
def test_what_a_known_group_lacks_is_not_found(api: Api, path: str) -> None:
    answer = refusal(api.http.get(path))
    assert answer == (404, "NotFound", "the server could not find the requested resource")


@pytest.mark.parametrize("path", ["/apis/nope.io", "/apis/nope.io/v1", "/apis/nope.io/v1/nopes", "/nope"])
def test_unknown_paths_are_plain_404(api: Api, path: str) -> None:
    answer = api.http.get(path)
    assert answer.status_code == 404
    assert answer.text.startswith("404 page not found")


def test_self_access_review_allows(api: Api) -> None:
    review = {"spec": {"resourceAttributes": {"verb": "create", "resource": "pods"}}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", **review}
    assert api.post(path, body)["status"]["allowed"] is True


def test_dynamic_client_finds_kinds(kubeconfig: Path, tmp_path: Path) -> None:
    with official(kubeconfig) as api_client:
        found = dynamic(api_client, tmp_path).resources.get(api_version="apps/v1", kind="DaemonSet")
        assert found.name == "daemonsets"
