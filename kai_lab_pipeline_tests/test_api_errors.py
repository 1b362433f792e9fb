"""What an API server's errors mean: what passes by itself, what never does, and what is no API server at all."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3

from kai_lab_pipeline.clients.api_errors import refused_with, unanswered
from kai_lab_pipeline.clients.kubeconfig import write_kubeconfig
from kai_lab_pipeline.clients.kubernetes import ApiError, Cluster, NotFound, Unreachable
from kai_lab_pipeline.rehearsal.components.certificates import self_signed
from kai_lab_pipeline.workbench.patience import retry_transient
from kai_lab_pipeline_tests.stubs.api import ApiStub

QUEUE = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "default"}, "spec": {}}


def quiet(line: str) -> None:
    pass


def cluster_at(folder: Path, url: str, *, user: Mapping[str, Any] | None = None, proxy: str = "") -> Cluster:
    file = folder / "kubeconfig"
    write_kubeconfig(
        file,
        {
            "clusters": [{"name": "a", "cluster": {"server": url} | ({"proxy-url": proxy} if proxy else {})}],
            "users": [{"name": "u", "user": {"token": "not-a-secret"} | dict(user or {})}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "u"}}],
        },
    )
    return Cluster(file, "a")


class Gateway(BaseHTTPRequestHandler):
    """Answers everything as a gateway does that has no route."""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        body = b"default backend - 404"
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_no_proxy_of_the_environment_is_asked_for_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As kubectl, helm and kind do it: behind a company's proxy a cluster on loopback is as healthy as before."""
    api = ApiStub()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    try:
        assert cluster_at(tmp_path, api.url).version() == "v1.34.0"
        with pytest.raises(Unreachable) as caught:
            cluster_at(tmp_path, "http://cluster.invalid").version()
        assert caught.value.reason == "ProxyError", "anywhere else the environment's proxy is used"
        with pytest.raises(Unreachable) as caught:
            cluster_at(tmp_path, api.url, proxy="http://127.0.0.1:9").version()
        assert caught.value.reason == "ProxyError", "and one that the kubeconfig names, for every server"
    finally:
        api.close()


def test_the_server_is_told_whom_the_kubeconfigs_user_acts_as(tmp_path: Path) -> None:
    """As kubectl and helm do: otherwise the lab would act with the rights of the user behind."""
    seen: list[tuple[str, str]] = []

    class Listener(Gateway):
        def do_GET(self) -> None:
            seen.extend(self.headers.items())
            super().do_GET()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    acts = {"as": "lab", "as-uid": "7", "as-groups": ["a", "b"], "as-user-extra": {"example.com/Why": ["test"]}}
    try:
        with pytest.raises(ApiError):
            cluster_at(tmp_path, f"http://127.0.0.1:{server.server_address[1]}", user=acts).version()
    finally:
        server.shutdown()
        server.server_close()
    assert "Bearer not-a-secret" in dict(seen).values()
    assert [pair for pair in seen if pair[0].startswith("Impersonate-")] == [
        ("Impersonate-User", "lab"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-example.com%2FWhy", "test"),
    ]


@pytest.fixture
def gateway() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_gateway_that_knows_no_route_is_not_an_absent_object(gateway: ThreadingHTTPServer, tmp_path: Path) -> None:
    cluster = cluster_at(tmp_path, f"http://127.0.0.1:{gateway.server_address[1]}")
    for resource in ("configmaps", "queues"):
        with pytest.raises(Unreachable, match="No Kubernetes API server answered") as caught:
            cluster.find(resource, "kai-lab-owner", namespace="kube-system")
        assert "HTTP 404: default backend - 404" in caught.value.text()
        assert (caught.value.code, caught.value.finding, caught.value.transient) == (0, False, False)


@pytest.mark.parametrize(
    ("body", "code", "built_in", "kind"),
    [
        (b'{"kind": "Status", "code": 404, "message": "gone"}', 404, True, NotFound),
        (b"404 page not found\n", 404, False, NotFound),
        (b"404 page not found\n", 404, True, Unreachable),
        (b"<html>Access denied by policy</html>", 403, True, Unreachable),
        (b"Too many requests, please try again later.", 429, True, ApiError),
    ],
)
def test_only_a_status_says_that_something_is_absent_or_refused(
    body: bytes, code: int, built_in: bool, kind: type[ApiError]
) -> None:
    error = refused_with(body, code, "get it", "here", built_in=built_in)
    assert type(error) is kind
    assert error.transient is (code == 429)


@pytest.fixture
def unknown_authority(tmp_path: Path) -> Iterator[str]:
    """The address of an HTTPS server whose certificate nobody has signed."""
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    for file, content in zip((certificate, key), self_signed("localhost"), strict=True):
        file.write_bytes(content)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"https://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_certificate_that_is_not_trusted_fails_at_once(unknown_authority: str, tmp_path: Path) -> None:
    cluster = cluster_at(tmp_path, unknown_authority)
    said: list[str] = []
    with pytest.raises(Unreachable, match=r"TLS with the API server failed \(self.signed certificate\)") as caught:
        retry_transient(cluster.version, what="read the version", deadline_s=60, log=said.append)
    assert said == []
    assert "Get the cluster's kubeconfig anew" in caught.value.next_step


@pytest.mark.parametrize(
    ("cause", "transient"),
    [
        (ssl.SSLCertVerificationError(1, "certificate verify failed: certificate has expired"), False),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), False),
        (ssl.SSLError(1, "[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] sslv3 alert certificate expired"), False),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), True),
        (ConnectionResetError(104, "Connection reset by peer"), True),
    ],
)
def test_only_a_handshake_that_was_cut_off_passes_by_itself(cause: Exception, transient: bool) -> None:
    assert unanswered(urllib3.exceptions.SSLError(cause), "list nodes", "here").transient is transient
    assert unanswered(urllib3.exceptions.ProtocolError("aborted", cause), "list nodes", "here").transient is transient


class LateKind(ApiStub):
    """Serves queues only after some requests for them, as when their CRD was made a moment ago."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def handle(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path.endswith(("/queues", "/queues/default")):
            self.left -= 1
            if self.left < 0:
                self.unknown.discard("queues")
        return super().handle(method, path, body)


@pytest.fixture
def late() -> Iterator[LateKind]:
    stub = LateKind(after=2)
    yield stub
    stub.close()


def promise(stub: ApiStub, *, served: bool = True) -> None:
    versions = [{"name": "v2", "served": served}]
    stub.put("customresourcedefinitions", "", "queues.scheduling.run.ai", spec={"versions": versions})


def test_a_kind_whose_crd_is_there_is_waited_for_and_the_attempts_are_counted(late: LateKind, tmp_path: Path) -> None:
    promise(late)
    cluster = cluster_at(tmp_path, late.url)
    made, attempts = retry_transient(lambda: cluster.apply(QUEUE), what="apply it", deadline_s=60, log=quiet)
    assert (made["metadata"]["name"], attempts) == ("default", 3)


def test_a_kind_that_nothing_promises_fails_at_once(late: LateKind, tmp_path: Path) -> None:
    cluster = cluster_at(tmp_path, late.url)
    said: list[str] = []
    for _ in range(2):
        with pytest.raises(NotFound) as caught:
            retry_transient(lambda: cluster.create(QUEUE), what="make it", deadline_s=60, log=said.append)
        assert not caught.value.transient
        promise(late, served=False)
    assert said == []
    runtime_class = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    late.unknown.add("runtimeclasses")
    with pytest.raises(NotFound) as unknown:
        cluster.create(runtime_class)
    assert not unknown.value.transient
