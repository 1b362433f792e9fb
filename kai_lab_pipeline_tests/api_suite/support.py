"""A thin HTTP client over a kubeconfig, and objects the tests make."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml
from kubernetes import client, config
from kubernetes.dynamic import DynamicClient

T = TypeVar("T")
Obj = dict[str, Any]

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

DEADLINE_S = 20.0


class Api:
    """Raw requests to the server of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        headers = {"User-Agent": "api-suite/1"}
        if user.get("token"):
            headers["Authorization"] = f"Bearer {user['token']}"
        self.http = httpx.Client(
            base_url=cluster["server"], headers=headers, verify=_context(cluster, user), timeout=30, trust_env=False
        )

    def close(self) -> None:
        self.http.close()

    def get(self, path: str, **query: Any) -> Obj:
        return self._ok(self.http.get(path, params=query))

    def post(self, path: str, body: Obj, **query: Any) -> Obj:
        return self._ok(self.http.post(path, json=body, params=query))

    def put(self, path: str, body: Obj, **query: Any) -> Obj:
        return self._ok(self.http.put(path, json=body, params=query))

    def patch(self, path: str, patch: Any, kind: str = MERGE, **query: Any) -> Obj:
        return self._ok(self.raw_patch(path, patch, kind, **query))

    def apply(self, path: str, obj: Obj, manager: str, *, force: bool = False, **query: Any) -> Obj:
        params = {"fieldManager": manager, "force": str(force).lower(), **query}
        return self._ok(self.raw_patch(path, obj, APPLY, **params))

    def delete(self, path: str, body: Obj | None = None, **query: Any) -> Obj:
        return self._ok(self.http.request("DELETE", path, json=body, params=query))

    def raw_patch(self, path: str, patch: Any, kind: str, **query: Any) -> httpx.Response:
        return self.http.patch(path, content=json.dumps(patch), headers={"Content-Type": kind}, params=query)

    def exists(self, path: str) -> bool:
        return self.http.get(path).status_code == 200

    def gone(self, path: str) -> None:
        until(lambda: not self.exists(path), f"{path} to be gone")

    @contextmanager
    def watch(self, path: str, **query: Any) -> Iterator[Iterator[Obj]]:
        """The events of a watch, as they come; the server ends it after `timeoutSeconds` (default 10)."""
        params = {"watch": "true", "timeoutSeconds": "10", **query}
        with self.http.stream("GET", path, params=params) as response:
            assert response.status_code == 200, response.read()
            yield (json.loads(line) for line in response.iter_lines())

    @staticmethod
    def _ok(response: httpx.Response) -> Obj:
        assert response.status_code < 300, f"{response.status_code} {response.text}"
        body: Obj = response.json()
        return body


@contextmanager
def official(kubeconfig: Path) -> Iterator[Any]:
    """The official client; untyped on purpose, since it is given plain dictionaries here."""
    configuration = client.Configuration()
    load: Any = config.load_kube_config
    load(str(kubeconfig), client_configuration=configuration)
    with client.ApiClient(configuration) as api_client:
        yield api_client


def dynamic(api_client: Any, cache: Path) -> Any:
    """The official dynamic client, with a discovery cache of its own."""
    make: Any = DynamicClient
    return make(api_client, cache_file=str(cache / "discovery.json"))


def refusal(response: httpx.Response) -> tuple[int, str, str]:
    """Code, reason and message of a Status."""
    body = response.json()
    assert body["kind"] == "Status", body
    assert body["status"] == "Failure", body
    assert body["code"] == response.status_code
    return body["code"], body.get("reason", ""), body["message"]


def until(condition: Callable[[], T], what: str, seconds: float = DEADLINE_S) -> T:
    """The first true value of `condition`; it is asked again at once, each time over the network."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
    raise AssertionError(f"waited {seconds} s in vain for {what}")


def take(events: Iterator[Obj], count: int) -> list[tuple[str, str]]:
    """Type and object name of the next events."""
    found = []
    for event in events:
        found.append((event["type"], event["object"]["metadata"].get("name", "")))
        if len(found) == count:
            break
    return found


def pod(name: str, labels: Mapping[str, str] | None = None, **spec: Any) -> Obj:
    metadata: Obj = {"name": name, **({"labels": dict(labels)} if labels else {})}
    body = {"containers": [{"name": "c", "image": "busybox"}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def config_map(name: str, labels: Mapping[str, str] | None = None, **data: str) -> Obj:
    metadata: Obj = {"name": name, **({"labels": dict(labels)} if labels else {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **({"data": data} if data else {})}


def deployment(name: str, **spec: Any) -> Obj:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "x:1"}]}}
    body = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": body}


def _context(cluster: Obj, user: Obj) -> ssl.SSLContext | bool:
    if not cluster["server"].startswith("https"):
        return True
    authority = cluster.get("certificate-authority-data")
    context = ssl.create_default_context(
        cadata=base64.b64decode(authority).decode() if authority else Path(cluster["certificate-authority"]).read_text()
    )
    if user.get("client-certificate-data"):
        with tempfile.NamedTemporaryFile() as pair:
            for part in ("client-certificate-data", "client-key-data"):
                pair.write(base64.b64decode(user[part]))
            pair.flush()
            context.load_cert_chain(pair.name)
    elif user.get("client-certificate"):
        context.load_cert_chain(user["client-certificate"], user["client-key"])
    return context
