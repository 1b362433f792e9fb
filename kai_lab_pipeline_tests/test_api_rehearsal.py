"""What only the rehearsal's server has: its authentication, its way to webhooks and kubelets, its own limits."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from kai_lab_pipeline.rehearsal import process
from kai_lab_pipeline.rehearsal.store import WINDOW, Store, TooOld
from kai_lab_pipeline_tests.api_suite.support import Api, config_map, pod, refusal, until
from kai_lab_pipeline_tests.api_suite.webhook_server import WebhookServer, certificate, deny

FORWARD = "rehearsal.kai-lab/forward-to"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def api(rehearsal_server: process.ServerHandle) -> Iterator[Api]:
    client = Api(rehearsal_server.kubeconfig)
    yield client
    client.close()


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}])
@pytest.mark.parametrize("path", ["/api", "/version", "/openapi/v3", CONFIGMAPS])
def test_a_token_is_needed(rehearsal_server: process.ServerHandle, path: str, headers: dict[str, str]) -> None:
    answer = httpx.get(rehearsal_server.url + path, headers=headers)
    assert refusal(answer) == (401, "Unauthorized", "Unauthorized")
    assert httpx.get(rehearsal_server.url + "/readyz").text == "ok"


def test_it_listens_on_the_loopback_only(rehearsal_server: process.ServerHandle) -> None:
    tables = Path("/proc/net/tcp")
    if not tables.exists():
        pytest.skip("no /proc on this system")
    port = f"{rehearsal_server.port:04X}"
    listening = [line.split()[1] for line in tables.read_text().splitlines()[1:] if line.split()[3] == "0A"]
    assert [address for address in listening if address.endswith(f":{port}")] == [f"0100007F:{port}"]


def test_plain_and_tls_are_one_server(rehearsal_server: process.ServerHandle, api: Api) -> None:
    headers = {"Authorization": f"Bearer {rehearsal_server.token}"}
    plain = httpx.get(f"{rehearsal_server.url}/api/v1/namespaces/default", headers=headers).json()
    assert plain == api.get("/api/v1/namespaces/default")


def protobuf(kind: str, raw: bytes) -> bytes:
    """A message in the envelope Kubernetes puts around it."""
    names = b"\x0a\x02v1\x12" + bytes([len(kind)]) + kind.encode()
    return b"k8s\0\x0a" + bytes([len(names)]) + names + b"\x12" + bytes([len(raw)]) + raw


@pytest.mark.parametrize(
    ("body", "code"),
    [(protobuf("Pod", b""), 415), (b"k8s\0", 400), (b"nonsense", 400), (protobuf("ConfigMap", b"\x0a\x09\x0a"), 400)],
)
def test_protobuf_that_cannot_be_read(api: Api, body: bytes, code: int) -> None:
    headers = {"Content-Type": "application/vnd.kubernetes.protobuf"}
    assert refusal(api.http.post(CONFIGMAPS, content=body, headers=headers))[0] == code


def test_versions_of_the_future(api: Api) -> None:
    answer = api.http.get(CONFIGMAPS, params={"resourceVersion": "99999999999"})
    code, reason, message = refusal(answer)
    assert (code, reason) == (504, "Timeout")
    assert message.startswith("Timeout: Too large resource version: 99999999999, current: ")


def test_a_new_cluster_is_furnished(api: Api) -> None:
    names = {item["metadata"]["name"] for item in api.get("/api/v1/namespaces")["items"]}
    assert {"default", "kube-system", "kube-public", "kube-node-lease"} <= names
    assert api.exists("/api/v1/namespaces/default/serviceaccounts/default")
    assert api.exists("/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical")


def test_the_token_volume_looks_like_the_real_one(api: Api) -> None:
    made = api.post("/api/v1/namespaces/default/pods", pod("token"), dryRun="All")
    mount = made["spec"]["containers"][0]["volumeMounts"][0]
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    assert mount["name"].startswith("kube-api-access-")
    volume = made["spec"]["volumes"][0]
    assert volume["name"] == mount["name"]
    assert [next(iter(source)) for source in volume["projected"]["sources"]] == [
        "serviceAccountToken",
        "configMap",
        "downwardAPI",
    ]


@pytest.fixture
def webhook(api: Api, request: pytest.FixtureRequest) -> Iterator[str]:
    """A validating webhook on the config maps of its own namespace, behind a Service; the namespace's name."""
    name = "hook-" + "".join(c for c in request.node.name if c.isalnum()).lower()[-40:]
    api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    service = {"metadata": {"name": "svc"}, "spec": {"clusterIP": "10.96.7.7", "ports": [{"port": 443}]}}
    api.post(f"/api/v1/namespaces/{name}/services", service)
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}
    hook = {
        "name": "queue-validation.kai.scheduler",
        "clientConfig": {"service": {"name": "svc", "namespace": name, "path": "/validate"}},
        "rules": [rule],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
    }
    api.post(path, {"metadata": {"name": name}, "webhooks": [hook]})
    yield name
    api.delete(f"{path}/{name}")
    api.delete(f"/api/v1/namespaces/{name}")


def said(api: Api, namespace: str) -> str:
    answer = api.http.post(f"/api/v1/namespaces/{namespace}/configmaps", json=config_map("a"))
    code, reason, message = refusal(answer)
    assert (code, reason) == (500, "InternalError")
    start = (
        'Internal error occurred: failed calling webhook "queue-validation.kai.scheduler": failed to call webhook: '
        f'Post "https://svc.{namespace}.svc:443/validate?timeout=10s": '
    )
    assert message.startswith(start)
    return message.removeprefix(start)


def forward(api: Api, namespace: str, target: str | None) -> None:
    api.patch(f"/api/v1/namespaces/{namespace}/services/svc", {"metadata": {"annotations": {FORWARD: target}}})


def test_webhook_services_grow_up(api: Api, webhook: str, tmp_path: Path) -> None:
    """Nobody behind the Service, then a closed door, then answers: what the lab's queue webhook goes through."""
    assert said(api, webhook) == 'no endpoints available for service "svc"'
    forward(api, webhook, "refused")
    assert said(api, webhook) == "dial tcp 10.96.7.7:443: connect: connection refused"
    server = WebhookServer(None)
    server.handlers["validate"] = deny("resources must be specified", code=403, reason="Forbidden")
    with server.running():
        forward(api, webhook, f"http://127.0.0.1:{server.port}")
        answer = refusal(api.http.post(f"/api/v1/namespaces/{webhook}/configmaps", json=config_map("a")))
        expected = 'admission webhook "queue-validation.kai.scheduler" denied the request: resources must be specified'
        assert answer == (403, "Forbidden", expected)
        server.handlers["validate"] = lambda review: {"allowed": True}
        assert api.post(f"/api/v1/namespaces/{webhook}/configmaps", config_map("a"))["metadata"]["uid"]
    assert said(api, webhook) == f"dial tcp 127.0.0.1:{server.port}: connect: connection refused"
    api.delete(f"/api/v1/namespaces/{webhook}/services/svc")
    assert said(api, webhook) == 'service "svc" not found'
    # so that the namespace can go
    api.delete(f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{webhook}")
    api.post("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", {"metadata": {"name": webhook}})


class _Kubelet(BaseHTTPRequestHandler):
    release = threading.Event()

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path.endswith("/waiting"):
            body = b'container "waiting" in pod "p" is waiting to start: ContainerCreating'
            self.send_response(400)
        else:
            body = f"{path} {query}\n".encode()
            self.send_response(200)
        if "follow" not in query:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if "follow" in query:
            self.wfile.flush()
            self.release.wait(10)
            self.wfile.write(b"the end\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Tests look at answers, not at access logs."""


@pytest.fixture
def logged_pod(api: Api, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Path of a pod on a node whose kubelet answers on the loopback with a certificate of its own."""
    pem, _ = certificate(tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Kubelet)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    name = "log-" + "".join(c for c in request.node.name if c.isalnum()).lower()[-40:]
    api.post("/api/v1/nodes", {"metadata": {"name": name}})
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": server.server_address[1]}},
    }
    api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    containers = [{"name": "c", "image": "x"}, {"name": "waiting", "image": "x"}]
    api.post("/api/v1/namespaces/default/pods", pod(name, containers=containers, nodeName=name))
    yield f"/api/v1/namespaces/default/pods/{name}"
    server.shutdown()
    thread.join()
    server.server_close()
    api.delete(f"/api/v1/namespaces/default/pods/{name}", gracePeriodSeconds=0)
    api.delete(f"/api/v1/nodes/{name}")


def test_logs_come_from_the_kubelet(api: Api, logged_pod: str) -> None:
    name = logged_pod.rpartition("/")[2]
    answer = api.http.get(f"{logged_pod}/log", params={"container": "c", "tailLines": 5, "previous": "true"})
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text == f"/containerLogs/default/{name}/c previous=true&tailLines=5\n"


def test_what_the_kubelet_refuses_is_passed_on(api: Api, logged_pod: str) -> None:
    answer = refusal(api.http.get(f"{logged_pod}/log", params={"container": "waiting"}))
    expected = 'container "waiting" in pod "p" is waiting to start: ContainerCreating'
    assert answer == (400, "BadRequest", expected)


def test_logs_are_followed(api: Api, logged_pod: str) -> None:
    _Kubelet.release.clear()
    with api.http.stream("GET", f"{logged_pod}/log", params={"container": "c", "follow": "true"}) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("/containerLogs/")
        _Kubelet.release.set()
        assert next(lines) == "the end"


def test_a_silent_kubelet_is_said(api: Api, logged_pod: str) -> None:
    name = logged_pod.rpartition("/")[2]
    status = {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}
    api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    answer = api.http.get(f"{logged_pod}/log", params={"container": "c"})
    assert answer.status_code == 500
    assert answer.json()["message"].endswith("dial tcp 127.0.0.1:1: connect: connection refused")


def test_pages_of_a_forgotten_list_are_expired(api: Api) -> None:
    for index in range(2):
        api.http.post(CONFIGMAPS, json=config_map(f"page{index}"))
    token = api.get(CONFIGMAPS, limit=1)["metadata"]["continue"]
    for _ in range(40):
        api.get(CONFIGMAPS, limit=1)
    answer = api.http.get(CONFIGMAPS, params={"limit": 1, "continue": token})
    code, reason, message = refusal(answer)
    assert (code, reason) == (410, "Expired")
    assert message.startswith("The provided continue parameter is too old to display a consistent list result.")


def test_concurrent_writers_get_distinct_versions(rehearsal_server: process.ServerHandle) -> None:
    headers = {"Authorization": f"Bearer {rehearsal_server.token}"}

    async def write() -> list[int]:
        async with httpx.AsyncClient(base_url=rehearsal_server.url, headers=headers, timeout=30) as client:
            answers = await asyncio.gather(
                *(client.post(CONFIGMAPS, json={"metadata": {"generateName": "many-"}}) for _ in range(100))
            )
        return [int(answer.json()["metadata"]["resourceVersion"]) for answer in answers]

    assert len(set(asyncio.run(write()))) == 100


def test_concurrent_patches_all_count(rehearsal_server: process.ServerHandle, api: Api) -> None:
    headers = {"Authorization": f"Bearer {rehearsal_server.token}", "Content-Type": "application/merge-patch+json"}
    api.http.post(CONFIGMAPS, json=config_map("counted"))

    async def write() -> None:
        async with httpx.AsyncClient(base_url=rehearsal_server.url, headers=headers, timeout=30) as client:
            await asyncio.gather(
                *(client.patch(f"{CONFIGMAPS}/counted", content=f'{{"data":{{"k{i}":"x"}}}}') for i in range(50))
            )

    asyncio.run(write())
    assert len(api.get(f"{CONFIGMAPS}/counted")["data"]) == 50


def test_the_history_is_a_window(tmp_path: Path) -> None:
    async def fill() -> None:
        store = Store(tmp_path / "store.db")
        for index in range(WINDOW + 10):
            store.put("configmaps", ("default", "a"), {"metadata": {"uid": "u", "n": index}})
        with pytest.raises(TooOld):
            store.watch("configmaps", 2)
        watcher = store.watch("configmaps", store.rv - 3)
        assert [change.rv for change in await watcher.next(0)] == [store.rv - 2, store.rv - 1, store.rv]
        store.close()

    asyncio.run(fill())


def test_a_reopened_store_has_everything(tmp_path: Path) -> None:
    first = Store(tmp_path / "store.db")
    first.put("configmaps", ("default", "a"), {"metadata": {"uid": "a"}})
    first.put("configmaps", ("default", "b"), {"metadata": {"uid": "b", "ownerReferences": [{"uid": "a"}]}})
    first.remove("configmaps", ("default", "a"))
    version = first.rv
    first.close()
    second = Store(tmp_path / "store.db")
    assert second.rv == version
    assert [key for key, _ in second.objects("configmaps")] == [("default", "b")]
    assert second.dependents("a") == [("configmaps", ("default", "b"))]
    assert not second.has_uid("a")
    second.close()


def test_an_idle_watch_costs_nothing_and_wakes_at_once(api: Api) -> None:
    version = api.get(CONFIGMAPS)["metadata"]["resourceVersion"]
    with api.watch(CONFIGMAPS, resourceVersion=version, fieldSelector="metadata.name=wake") as events:
        api.post(CONFIGMAPS, config_map("wake"))
        assert next(events)["object"]["metadata"]["name"] == "wake"
    until(lambda: api.exists(f"{CONFIGMAPS}/wake"), "the object")
