"""Small ASGI servers of the simulated components, inside the event loop that runs them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from kai_lab_pipeline.rehearsal.components.certificates import self_signed


class _Server(uvicorn.Server):
    """Leaves signals to the process that runs the components."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(remembered: Path) -> socket.socket:
    """A socket on the port of last time if it is free, else on another: what points here stays true over a restart."""
    try:
        last = int(remembered.read_text())
    except (OSError, ValueError):
        last = 0
    for port in (last, 0):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            listener.close()
            if not port:
                raise
        else:
            listener.listen(128)
            remembered.parent.mkdir(parents=True, exist_ok=True)
            remembered.write_text(str(listener.getsockname()[1]))
            return listener
    raise OSError("no free port on 127.0.0.1")


class LocalServer:
    """One ASGI application on a port of 127.0.0.1."""

    def __init__(self, app: Any, remembered: Path, *, certificates: Path | None = None) -> None:
        """Serves HTTPS with `certificates` (a folder for certificate and key), else HTTP.

        `remembered` is the file that keeps the port for the next start.
        """
        self._socket = _listen(remembered)
        self.port: int = self._socket.getsockname()[1]
        self.tls = certificates is not None
        self.certificate = b""
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        if certificates is not None:
            certificate_file, key_file = self._write_certificate(certificates)
            config.ssl_certfile, config.ssl_keyfile = str(certificate_file), str(key_file)
            config.ssl_version = ssl.PROTOCOL_TLS_SERVER
        self._server = _Server(config)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def _write_certificate(self, folder: Path) -> tuple[Path, Path]:
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate, key = self_signed("localhost")
        certificate_file, key_file = folder / f"{self.port}.crt", folder / f"{self.port}.key"
        certificate_file.write_bytes(self.certificate)
        key_file.touch(mode=0o600)
        key_file.write_bytes(key)
        return certificate_file, key_file

    async def serve(self) -> None:
        """Serves until cancelled."""
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            self._server.should_exit = True
            self._server.force_exit = True
            await asyncio.gather(serving, return_exceptions=True)
            raise
        finally:
            self._socket.close()
