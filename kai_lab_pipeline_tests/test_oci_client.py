"""The registry client against the rehearsal's registry, and against answers no registry should give."""

from __future__ import annotations

import base64
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kai_lab_pipeline.clients import oci_errors
from kai_lab_pipeline.clients.docker_config import login_for
from kai_lab_pipeline.clients.loopback import is_loopback
from kai_lab_pipeline.clients.oci import OciClient, tag_of
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.rehearsal.registry import FAULTS, Fault, RehearsalRegistry, lab_registry, mirrors, serve
from kai_lab_pipeline.rehearsal.registry_charts import CHARTS, ISOLATOR_REPOSITORY, KAI_REPOSITORY
from kai_lab_pipeline.settings import load_settings

KAI = f"oci://ghcr.io/{KAI_REPOSITORY}"
ISOLATOR = f"oci://docker.io/{ISOLATOR_REPOSITORY}"


@pytest.fixture(autouse=True)
def _no_docker_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("HELM_REGISTRY_CONFIG", str(tmp_path / "helm.json"))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def registry() -> RehearsalRegistry:
    return lab_registry()


@pytest.fixture
def url(registry: RehearsalRegistry) -> Iterator[str]:
    with serve(registry) as address:
        yield address


def client_for(url: str, **options: object) -> OciClient:
    settings: dict[str, object] = {"deadline_s": 60.0, "timeout_s": 20.0, "sleep": lambda seconds: None}
    return OciClient(mirrors=mirrors(url), **(settings | options))  # type: ignore[arg-type]


def test_tags_of_charts_and_images_are_listed_with_anonymous_tokens(registry: RehearsalRegistry, url: str) -> None:
    with client_for(url) as client:
        assert "v0.17.0" in client.tags(KAI)
        assert {"1.0.0-chart", "1.1.0-chart", "v1.1.0", "latest"} <= set(client.tags(ISOLATOR))
        assert client.tags(KAI) == sorted(registry.manifests[KAI_REPOSITORY])
    assert registry.requests.count("GET /token") == 2  # one per repository, kept for the next question


@pytest.mark.parametrize("page_size", [1, 3, 0, None])
def test_every_page_is_read_whatever_the_registry_makes_of_n(
    registry: RehearsalRegistry, url: str, page_size: int | None
) -> None:
    registry.page_size = page_size
    with client_for(url) as client:
        assert client.tags(KAI) == sorted(registry.manifests[KAI_REPOSITORY])
    asked = registry.requests.count(f"GET /v2/{KAI_REPOSITORY}/tags/list")
    tags = len(registry.manifests[KAI_REPOSITORY])
    pages = -(-tags // page_size) if page_size else 1
    assert asked == pages + 1  # the first question had no token


FAILURES = [
    ("unauthorized", oci_errors.RegistryUnauthorized, "other credentials"),
    ("forbidden", oci_errors.RegistryForbidden, "denied"),
    ("not_found", oci_errors.RegistryNotFound, "no such repository"),
    ("rate_limited", oci_errors.RegistryRateLimited, "rate"),
    ("server_error", oci_errors.RegistryServerError, "itself failed"),
    ("unavailable", oci_errors.RegistryServerError, "itself failed"),
    ("html", oci_errors.RegistryAnswerError, "a web page"),
    ("garbage", oci_errors.RegistryAnswerError, "not what the distribution API says"),
    ("redirect_loop", oci_errors.RegistryAnswerError, "in a circle"),
    ("endless_pages", oci_errors.RegistryAnswerError, "do not end"),
]


@pytest.mark.parametrize(("fault", "kind", "words"), FAILURES)
def test_failures_are_told_apart(
    registry: RehearsalRegistry, url: str, fault: str, kind: type[LabError], words: str
) -> None:
    registry.faults[KAI_REPOSITORY] = Fault(fault)
    with client_for(url) as client, pytest.raises(kind, match=words) as caught:
        client.tags(KAI)
    assert caught.value.next_step
    assert KAI_REPOSITORY in caught.value.where
    with client_for(url) as client:
        assert client.tags(ISOLATOR)


def test_every_fault_is_described() -> None:
    listed = {fault for fault, _, _ in FAILURES} | {"empty", "many_tags", "slow", "tampered"}
    assert listed == set(FAULTS)
    with pytest.raises(ValueError, match="known: unauthorized"):
        Fault("flood")


def test_an_empty_repository_has_no_tags(registry: RehearsalRegistry, url: str) -> None:
    registry.faults[KAI_REPOSITORY] = Fault("empty")
    with client_for(url) as client:
        assert client.tags(KAI) == []


def test_ten_thousand_tags_in_less_than_two_seconds(registry: RehearsalRegistry, url: str) -> None:
    registry.faults[KAI_REPOSITORY] = Fault("many_tags")
    began = time.process_time()
    with client_for(url) as client:
        assert len(client.tags(KAI)) == 10_000
    assert time.process_time() - began < 2


def test_a_rate_limit_is_waited_for_as_the_registry_asks(registry: RehearsalRegistry, url: str) -> None:
    registry.faults[KAI_REPOSITORY] = Fault("rate_limited", times=2)
    waited: list[float] = []
    with client_for(url, sleep=waited.append) as client:
        assert "v0.17.0" in client.tags(KAI)
    assert waited == [1.0, 1.0]


def test_no_wait_that_the_deadline_does_not_allow(registry: RehearsalRegistry, url: str) -> None:
    registry.faults[KAI_REPOSITORY] = Fault("rate_limited")
    waited: list[float] = []
    with client_for(url, sleep=waited.append, deadline_s=0.9) as client, pytest.raises(LabError) as caught:
        client.tags(KAI)
    assert isinstance(caught.value, oci_errors.RegistryRateLimited)
    assert waited == []
    assert caught.value.retry_after == 1.0
    assert caught.value.transient


def test_a_busy_registry_is_asked_again_and_a_broken_one_is_not(registry: RehearsalRegistry, url: str) -> None:
    waited: list[float] = []
    registry.faults[KAI_REPOSITORY] = Fault("unavailable", times=1)
    with client_for(url, sleep=waited.append) as client:
        assert client.tags(KAI)
    assert waited == [0.5]
    registry.faults[KAI_REPOSITORY] = Fault("server_error", times=1)
    with client_for(url, sleep=waited.append) as client, pytest.raises(oci_errors.RegistryServerError):
        client.tags(KAI)
    assert waited == [0.5]


def test_a_registry_that_does_not_answer_ends_at_the_deadline(registry: RehearsalRegistry, url: str) -> None:
    registry.faults[KAI_REPOSITORY] = Fault("slow")
    began = time.monotonic()
    with (
        client_for(url, timeout_s=0.2, deadline_s=0.5) as client,
        pytest.raises(oci_errors.RegistryTimeout, match="no answer in time"),
    ):
        client.tags(KAI)
    assert time.monotonic() - began < 15


def test_nothing_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with client_for(f"http://127.0.0.1:{port}") as client, pytest.raises(LabError) as caught:
        client.tags(KAI)
    assert type(caught.value) is oci_errors.RegistryUnreachable
    assert "refused" in caught.value.seen


def test_a_name_that_does_not_resolve() -> None:
    with client_for("http://registry.invalid") as client, pytest.raises(oci_errors.RegistryNameError) as caught:
        client.tags(KAI)
    assert "mirror" in caught.value.next_step


def test_plain_http_where_https_is_expected_is_said_and_not_fallen_back_to(
    registry: RehearsalRegistry, url: str
) -> None:
    with client_for(url.replace("http://", "https://")) as client, pytest.raises(oci_errors.RegistryPlainHttp):
        client.tags(KAI)
    assert registry.requests == []


def test_digest_changes_when_a_tag_is_pushed_again(registry: RehearsalRegistry, url: str) -> None:
    with client_for(url) as client:
        before = client.digest(KAI, "v0.17.0")
        assert before == client.digest(KAI, "v0.17.0")
        pushed = registry.push_chart(KAI_REPOSITORY, CHARTS[KAI_REPOSITORY][0], "v0.17.0")
        assert client.digest(KAI, "v0.17.0") == pushed != before


def test_chart_metadata_comes_without_the_archive(registry: RehearsalRegistry, url: str) -> None:
    with client_for(url) as client:
        assert client.chart_metadata(KAI, "v0.18.2")["appVersion"] == "v0.18.2"
        with pytest.raises(oci_errors.NotAChart, match="no helm chart"):
            client.chart_metadata(ISOLATOR, "v1.1.0")
        with pytest.raises(oci_errors.RegistryNotFound):
            client.chart_metadata(KAI, "v9.9.9")


def test_a_chart_is_fetched_whole_or_not_at_all(registry: RehearsalRegistry, url: str, tmp_path: Path) -> None:
    with client_for(url) as client:
        path = client.pull_chart(KAI, "v0.17.0", tmp_path / "charts")
        assert path.name == "kai-scheduler-v0.17.0.tgz"
        assert path.read_bytes() == CHARTS[KAI_REPOSITORY][1].archive()
        path.unlink()
        registry.faults[KAI_REPOSITORY] = Fault("tampered")
        with pytest.raises(oci_errors.DigestMismatch, match="not what its digest says"):
            client.pull_chart(KAI, "v0.17.0", tmp_path / "charts")
    assert list((tmp_path / "charts").iterdir()) == []


def test_a_private_registry_takes_the_docker_login(registry: RehearsalRegistry, url: str, tmp_path: Path) -> None:
    registry.login = ("ada", "s3cret")
    with client_for(url) as client, pytest.raises(oci_errors.RegistryUnauthorized) as caught:
        client.tags(KAI)
    assert "docker login" in caught.value.next_step
    write_config(tmp_path, {"auths": {url.removeprefix("http://"): {"auth": encode("ada:s3cret")}}})
    with client_for(url) as client:
        assert "v0.17.0" in client.tags(KAI)
    write_config(tmp_path, {"auths": {url: {"auth": encode("ada:wr0ng")}}})
    with client_for(url) as client, pytest.raises(oci_errors.RegistryUnauthorized) as caught:
        client.tags(KAI)
    assert "wr0ng" not in str(caught.value)


def test_helms_own_login_is_used_too(registry: RehearsalRegistry, url: str, tmp_path: Path) -> None:
    registry.login = ("ada", "s3cret")
    auths = {url.removeprefix("http://"): {"auth": encode("ada:s3cret")}}
    (tmp_path / "helm.json").write_text(json.dumps({"auths": auths}))
    with client_for(url) as client:
        assert "v0.17.0" in client.tags(KAI)


def test_a_login_in_the_mirror_is_used_and_never_shown(registry: RehearsalRegistry, url: str) -> None:
    registry.login = ("ada", "s3cret")
    with client_for(url.replace("//", "//ada:s3cret@")) as client:
        assert client.tags(KAI)
        assert "s3cret" not in f"{client.repository(KAI)} {client.repository(KAI)!r}"


def test_a_credential_helper_is_named_and_not_run(registry: RehearsalRegistry, url: str, tmp_path: Path) -> None:
    registry.login = ("ada", "s3cret")
    write_config(tmp_path, {"credsStore": "desktop"})
    with client_for(url) as client, pytest.raises(oci_errors.RegistryUnauthorized) as caught:
        client.tags(KAI)
    assert "docker-credential-desktop" in caught.value.next_step


@pytest.mark.parametrize("content", ["", "{", "[]", '{"auths": []}', '{"auths": {"ghcr.io": {"auth": "???"}}}'])
def test_a_broken_docker_config_is_no_crash(tmp_path: Path, content: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    login = login_for("ghcr.io", file)
    assert login.credentials is None
    assert bool(login.note) is (content != '{"auths": []}')


def test_docker_hub_goes_by_several_names(tmp_path: Path) -> None:
    file = write_config(tmp_path, {"auths": {"https://index.docker.io/v1/": {"auth": encode("ada:pass:word")}}})
    found = login_for("registry-1.docker.io", file).credentials
    assert found is not None
    assert (found.username, found.password) == ("ada", "pass:word")
    assert "pass:word" not in repr(found)
    assert login_for("ghcr.io", file).credentials is None


def test_no_proxy_for_loopback(registry: RehearsalRegistry, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with client_for(url) as client:
        assert "v0.17.0" in client.tags(KAI)
        assert client.tags(f"{url.removeprefix('http://')}/{KAI_REPOSITORY}") == client.tags(KAI)


def test_a_proxy_is_used_for_others(registry: RehearsalRegistry, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", url)
    with client_for("http://registry.example") as client:
        assert "v0.17.0" in client.tags(KAI)
    assert registry.requests[0] == f"GET /v2/{KAI_REPOSITORY}/tags/list"


def test_a_proxy_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "gopher://ada:s3cret@proxy:70")
    with client_for("http://registry.example") as client, pytest.raises(WrongUse, match="proxy") as caught:
        client.tags(KAI)
    assert "s3cret" not in str(caught.value)


def test_a_ca_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with client_for("https://127.0.0.1:9", ca_file=tmp_path / "ca.pem") as client, pytest.raises(WrongUse) as caught:
        client.tags(KAI)
    assert "ca_file" in str(caught.value)


@pytest.mark.parametrize(
    "reference", ["", "kai", "oci://", "oci://ghcr.io", "oci://ghcr.io/A B", "oci://u:p@h/x", "./x"]
)
def test_a_reference_that_is_none(reference: str) -> None:
    with OciClient() as client, pytest.raises(WrongUse, match="chart reference"):
        client.repository(reference)


def test_where_repositories_are_asked_for() -> None:
    client = OciClient(mirrors={"docker.io": "https://harbor.example/hub/", "quay.io": "mirror.example:5000"})
    assert (
        client.repository("oci://index.docker.io/a/b").url("tags/list") == "https://harbor.example/v2/hub/a/b/tags/list"
    )
    assert client.repository("oci://quay.io/a").base == "https://mirror.example:5000"
    assert client.repository("oci://ghcr.io/a").base == "https://ghcr.io"
    assert client.repository("oci://localhost:5000/a").base == "http://localhost:5000"
    assert client.repository("oci://[::1]:5000/a").base == "http://[::1]:5000"
    assert OciClient().repository("oci://docker.io/a/b").base == "https://registry-1.docker.io"
    with pytest.raises(WrongUse, match=r"mirror of ghcr\.io"):
        OciClient(mirrors={"ghcr.io": "ftp://x"}).repository("oci://ghcr.io/a")
    assert not is_loopback("127.0.0.1.example.com")
    assert tag_of("1.0.0+a") == "1.0.0_a"


def test_a_version_that_can_be_no_tag_is_refused_before_asking(url: str, registry: RehearsalRegistry) -> None:
    with client_for(url) as client, pytest.raises(WrongUse, match="can be no tag"):
        client.digest(KAI, "../../blobs/x?y")
    assert registry.requests == []


def test_settings_make_a_client(url: str, tmp_path: Path) -> None:
    root = Path(__file__).parent.parent
    settings = load_settings(root, environ={"KAI_LAB_MIRRORS": json.dumps(mirrors(url))})
    with OciClient.from_settings(settings) as client:
        assert "v0.17.0" in client.tags(settings.charts.kai_scheduler.chart)


Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def answering(answer: Callable[[str, dict[str, str]], Answer], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server that gives whatever `answer` says for a path and its headers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, body = answer(self.path, {k.lower(): v for k, v in self.headers.items()})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


BAD_ANSWERS = [
    (200, {}, b"", "not what the distribution API says"),
    (200, {"Content-Type": "application/json"}, b"[" * 100_000, "not what the distribution API says"),
    (200, {}, b'{"errors": []}', "not what the distribution API says"),
    (200, {}, b'{"tags": ["v1.0.0", 7]}', "not what the distribution API says"),
    (200, {}, b'{"tags": "v1.0.0"}', "not what the distribution API says"),
    (200, {}, b"\xff\xfe\x00", "not what the distribution API says"),
    (200, {"Link": '<http://elsewhere.example/v2/>; rel="next"'}, b'{"tags": []}', "another host"),
    (302, {"Location": "ftp://elsewhere.example/"}, b"", "not safe"),
    (302, {}, b"", "unexpected answer"),
    (418, {}, b"\x1b[31mteapot", "unexpected answer"),
    (401, {"WWW-Authenticate": 'Bearer realm="http://elsewhere.example/token"'}, b"", "name cannot be resolved"),
    (401, {"WWW-Authenticate": "Bearer"}, b"", "other credentials"),
    (401, {"WWW-Authenticate": 'Bearer realm="file:///etc/hostname"'}, b"", "not safe to ask"),
    (401, {"WWW-Authenticate": "Negotiate"}, b"", "other credentials"),
]


@pytest.mark.parametrize(("status", "headers", "body", "words"), BAD_ANSWERS)
def test_answers_no_registry_should_give(status: int, headers: dict[str, str], body: bytes, words: str) -> None:
    with answering(lambda path, sent: (status, headers, body)) as url, client_for(url) as client:
        with pytest.raises(oci_errors.RegistryError, match=words) as caught:
            client.tags(KAI)
        assert "\x1b" not in str(caught.value)


def test_basic_credentials_do_not_follow_a_redirect_to_another_host(tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []

    def elsewhere(path: str, headers: dict[str, str]) -> Answer:
        seen.append(headers)
        return 200, {}, b'{"tags": ["v1.0.0"]}'

    with answering(elsewhere) as other:

        def home(path: str, headers: dict[str, str]) -> Answer:
            if "authorization" not in headers:
                return 401, {"WWW-Authenticate": 'Basic realm="x"'}, b""
            return 307, {"Location": f"{other}/moved"}, b""

        with answering(home) as url:
            write_config(tmp_path, {"auths": {url: {"auth": encode("ada:s3cret")}}})
            with client_for(url) as client:
                assert client.tags(KAI) == ["v1.0.0"]
    assert seen
    assert "authorization" not in seen[0]


def test_a_certificate_of_an_own_authority(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with answering(lambda path, sent: (200, {}, b'{"tags": ["v1.0.0"]}'), tls) as url:
        with client_for(url) as client, pytest.raises(oci_errors.RegistryTlsError, match="not trusted") as caught:
            client.tags(KAI)
        assert "ca_file" in caught.value.next_step
        with client_for(url, ca_file=certificate) as client:
            assert client.tags(KAI) == ["v1.0.0"]


def self_signed(folder: Path) -> Path:
    """A certificate for 127.0.0.1 with its key, in one PEM file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "registry of a test")])
    now = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "registry.pem"
    private = serialization.PrivateFormat.PKCS8
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return file


def test_an_expired_token_is_replaced(registry: RehearsalRegistry, url: str) -> None:
    with client_for(url) as client:
        client.tags(KAI)
        registry.faults[KAI_REPOSITORY] = Fault("unauthorized", times=1)
        assert "v0.17.0" in client.tags(KAI)


def test_retry_after_as_seconds_and_as_a_date() -> None:
    now = datetime(2026, 11, 30, 3, 0, tzinfo=timezone.utc)
    later = (now + timedelta(seconds=90)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert oci_errors.retry_after({"retry-after": "7"}, now) == 7.0
    assert oci_errors.retry_after({"retry-after": later}, now) == 90.0
    assert oci_errors.retry_after({"retry-after": now.strftime("%a, %d %b %Y 02:00:00 GMT")}, now) == 0.0
    assert oci_errors.retry_after({"retry-after": "soon"}, now) is None
    assert oci_errors.retry_after({}, now) is None


def encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def write_config(tmp_path: Path, content: object) -> Path:
    file = tmp_path / "docker" / "config.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))
    return file
