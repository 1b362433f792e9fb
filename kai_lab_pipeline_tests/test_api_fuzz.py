"""Random and half-broken requests to the rehearsal's API server: a Kubernetes answer each time, and it serves on."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kai_lab_pipeline.rehearsal import process
from kai_lab_pipeline_tests.api_suite.support import Api

pytestmark = pytest.mark.timeout(180)
REQUESTS = 120
"""Per seed: bounded, so that a run takes seconds."""
NAMESPACE = "fuzz"
HOME = f"/api/v1/namespaces/{NAMESPACE}"
PATHS: tuple[str, ...] = (
    *("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", f"{HOME}/bindings", f"{HOME}/finalize"),
    *("/apis/authentication.k8s.io/v1/tokenreviews", "/apis/authentication.k8s.io/v1/selfsubjectreviews"),
    *(
        "/",
        "/api",
        "/apis",
        "/api/v1",
        "/apis/apps/v1",
        "/version",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/metrics",
    ),
    *(f"{HOME}/configmaps", f"{HOME}/configmaps/a", f"{HOME}/pods", f"{HOME}/pods/p", f"{HOME}/pods/p/log"),
    *(f"{HOME}/pods/p/status", f"{HOME}/pods/p/binding", f"{HOME}/pods/p/eviction", f"{HOME}/pods/p/exec"),
    *(
        f"{HOME}/configmaps/%00",
        f"{HOME}/configmaps/{'n' * 300}",
        f"{HOME}/nothing/x",
        f"{HOME}/events",
        "/api/v1/nodes",
    ),
    *(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/d"),
    *(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/d/scale", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"),
    *(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/apis/node.k8s.io/v1/runtimeclasses",
        "//",
        "/api//v1",
    ),
    *("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", "/api/v2/pods", "/apis/x/y/z/w/v/u/t"),
)
METHODS = ("GET", "POST", "PUT", "PATCH", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW")
TYPES = (
    *(
        "application/json",
        "application/merge-patch+json",
        "application/json-patch+json",
        "text/plain",
        "",
        "a/b; q=\\x",
    ),
    *("application/strategic-merge-patch+json", "application/apply-patch+yaml", "application/vnd.kubernetes.protobuf"),
    *("application/yaml", "application/json; charset=utf-16", "multipart/form-data"),
)
JUNK: tuple[Any, ...] = (
    *(None, True, -1, 1.5, 10**30, "", "x", "a" * 4000, "ä\u202e\x00", [], [None], [[]], {}, {"": {}}, {"a": None}),
    *([{"name": None}], [{"op": "add"}], {"metadata": None}, "2026-02-30T99:99:99Z"),
)
QUERY = {
    "limit": ("0", "-1", "x", "9" * 30),
    "continue": ("x", "e30", "%%%"),
    "labelSelector": ("a=b", "a in (", "!", "=", "a notin (b),,", "x" * 3000),
    "fieldSelector": ("metadata.name=a", "a.b.c=d", "=", "status.phase!=x"),
    "resourceVersion": ("0", "1", "-1", "x", "9" * 25),
    "resourceVersionMatch": ("Exact", "NotOlderThan", "x"),
    "dryRun": ("All", "x", ""),
    "fieldManager": ("m", "m" * 300, "ä"),
    "force": ("true", "x"),
    "fieldValidation": ("Strict", "Warn", "x"),
    "gracePeriodSeconds": ("0", "-1", "x", "9" * 30),
    "propagationPolicy": ("Foreground", "Orphan", "x"),
    "tailLines": ("1", "-1", "x"),
    "sinceSeconds": ("1", "x"),
    "sinceTime": ("x", "2026-11-30T00:00:00Z"),
    "limitBytes": ("0", "x"),
    "previous": ("true", "x"),
    "container": ("c", "x"),
    "pretty": ("true", "x"),
}
OBJECTS: tuple[dict[str, Any], ...] = (
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"a": "b"}}, "data": {"k": "v"}},
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "finalizers": ["x/y"], "ownerReferences": []},
        "spec": {
            "nodeName": "none",
            "containers": [{"name": "c", "image": "i", "env": [{"name": "E", "value": "v"}], "ports": []}],
        },
    },
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}}]},
            },
        },
    },
    {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.fuzz.io"},
        "spec": {
            "group": "fuzz.io",
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ],
        },
    },
    {
        "metadata": {"labels": {"x": "y"}, "$patch": "replace"},
        "spec": {"containers": [{"name": "c", "$patch": "delete"}]},
    },
)


def half_broken(value: Any, dice: random.Random) -> Any:
    """A copy in which now and then a part is something else."""
    if dice.random() < 0.06:
        return dice.choice(JUNK)
    if isinstance(value, dict):
        return {key: half_broken(inner, dice) for key, inner in value.items() if dice.random() > 0.05}
    if isinstance(value, list):
        return [half_broken(inner, dice) for inner in value]
    return value


def body(dice: random.Random) -> bytes:
    kind = dice.randrange(8)
    if kind == 0:
        return dice.randbytes(dice.randrange(200))
    if kind == 1:
        return json.dumps(dice.choice(JUNK)).encode()
    if kind == 2:
        paths = ("/data/k", "/metadata/labels/a", "", "x", "/spec/containers/9", "/a~2b", "/metadata/name", "/-")
        ops = ("add", "remove", "replace", "move", "copy", "test", "x")
        steps = [
            {"op": dice.choice(ops), "path": dice.choice(paths), "from": dice.choice(paths), "value": dice.choice(JUNK)}
            for _ in range(dice.randint(1, 3))
        ]
        return json.dumps(half_broken(steps, dice)).encode()
    text = json.dumps(half_broken(dice.choice(OBJECTS), dice)).encode()
    return (
        text[: dice.randrange(len(text))] if kind == 3 else b"[" * 3000 if kind == 4 and dice.random() < 0.2 else text
    )


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server of its own: what is deleted here must not be missed elsewhere."""
    folder = tmp_path_factory.mktemp("fuzzed")
    client = Api(process.ensure(folder, name="fuzzed", options={"components": False}).kubeconfig)
    try:
        client.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        yield client
    finally:
        client.close()
        process.stop(folder, forget=True)


def ask(api: Api, dice: random.Random) -> tuple[str, httpx.Response]:
    query = {key: dice.choice(values) for key, values in QUERY.items() if dice.random() < 0.08}
    headers = {"Content-Type": dice.choice(TYPES)}
    if dice.random() < 0.2:
        headers["Accept"] = dice.choice(("application/json;as=Table;v=v1;g=meta.k8s.io", "text/html", "*/*", ";;,", ""))
    method, path, content = dice.choice(METHODS), dice.choice(PATHS), body(dice)
    said = f"{method} {path} {query} {headers} {content[:300]!r}"
    return said, api.http.request(method, path, params=query, headers=headers, content=content)


@pytest.mark.parametrize("seed", range(12))
def test_any_request_gets_a_kubernetes_answer_and_the_server_serves_on(seed: int, api: Api) -> None:
    dice = random.Random(seed)
    wrong = []
    for _ in range(REQUESTS):
        said, answer = ask(api, dice)
        text = answer.text
        if answer.status_code == 500 or "Traceback" in text:
            wrong.append(f"{answer.status_code} {text[:300]} <- {said}")
        elif (
            answer.status_code >= 400 and answer.headers.get("content-type", "").startswith("application/json") and text
        ):
            status = answer.json()
            assert (status["kind"], status["status"], status["code"]) == ("Status", "Failure", answer.status_code), said
            assert status["message"], said
    assert not wrong, "\n".join(wrong)
    name = f"after-{seed}"
    made = api.post(f"{HOME}/configmaps", {"metadata": {"name": name}, "data": {"k": "v"}})
    assert api.get(f"{HOME}/configmaps/{name}")["data"] == made["data"] == {"k": "v"}
