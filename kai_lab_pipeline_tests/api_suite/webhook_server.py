"""An admission webhook on the loopback that answers as a test says."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Review = dict[str, Any]
Handler = Callable[[Review], "dict[str, Any] | bytes | int"]


def certificate(folder: Path, address: str = "127.0.0.1") -> tuple[Path, str]:
    """(PEM file with key and certificate, caBundle in base64) for one address."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "webhook")])
    now = datetime.now(timezone.utc)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    public = built.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / f"webhook-{address}.pem"
    path.write_bytes(private + public)
    return path, base64.b64encode(public).decode()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that break off the handshake or the answer are what some tests are about."""


class WebhookServer:
    """Answers at https://127.0.0.1:PORT/NAME with the handler of that name; remembers what it was asked."""

    def __init__(self, pem: Path | None) -> None:
        self.handlers: dict[str, Handler] = {}
        self.asked: list[tuple[str, Review]] = []
        outer = self

        class _Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name = self.path.partition("?")[0].strip("/")
                outer.asked.append((name, review["request"]))
                answer = outer.handlers[name](review["request"])
                code = answer if isinstance(answer, int) else 200
                if isinstance(answer, dict):
                    response = {"uid": review["request"]["uid"], **answer}
                    body = json.dumps({**review, "response": response}).encode()
                else:
                    body = b"boom" if isinstance(answer, int) else answer
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Tests look at answers, not at access logs."""

        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        if pem is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pem)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    @contextlib.contextmanager
    def running(self) -> Iterator[WebhookServer]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


def allow(review: Review) -> dict[str, Any]:
    return {"allowed": True}


def deny(message: str, **status: Any) -> Handler:
    return lambda review: {"allowed": False, "status": {"message": message, **status}}


def mutate(*operations: dict[str, Any]) -> Handler:
    patch = base64.b64encode(json.dumps(operations).encode()).decode()
    return lambda review: {"allowed": True, "patchType": "JSONPatch", "patch": patch}
