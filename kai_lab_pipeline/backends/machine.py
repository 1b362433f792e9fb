"""The machine as the doctor looks at it. Each way of looking can be replaced, so that findings can be tested."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kai_lab_pipeline.clients.mirrors import Source
from kai_lab_pipeline.clients.tools import Runner


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _port_taken(host: str, port: int) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error.errno == errno.EADDRINUSE  # docker may listen where this user may not, such as below 1024
    return False


def _ask_registry(source: Source, ca_file: Path | None) -> str:
    """Ask a registry whether it is there; empty when it is, else why not. 401 is an answer too."""
    import ssl

    import httpx

    context = ssl.create_default_context()
    try:
        if ca_file is not None:
            context.load_verify_locations(cafile=str(ca_file))
        # As helm and the registry client do: no proxy of the environment reaches this machine's loopback.
        with httpx.Client(verify=context, timeout=5.0, trust_env=not source.loopback) as client:
            host = "registry-1.docker.io" if source.host == "docker.io" else source.host
            scheme = "http" if source.plain_http else "https"
            status = client.head(f"{scheme}://{host}/v2/").status_code
    except (httpx.HTTPError, OSError) as error:
        return str(error) or type(error).__name__
    return "" if status < 500 and status != 429 else f"HTTP status {status}"


@dataclass
class Machine:
    """The machine as the doctor sees it; each way of looking can be replaced."""

    run: Runner
    which: Callable[[str], str | None] = shutil.which
    read: Callable[[str], str | None] = _read
    port_taken: Callable[[str, int], bool] = _port_taken
    ask_registry: Callable[[Source, Path | None], str] = _ask_registry
    disk_free: Callable[[Path], int] = field(default=lambda path: shutil.disk_usage(path).free)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
