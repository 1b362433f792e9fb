"""The files of a rehearsal's state folder, and how to tell whether the process they name is alive."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SERVER = "server.json"
KUBECONFIG = "kubeconfig"
STORE = "rehearsal.db"
LOG = "server.log"
OPTIONS = "options.json"
LOCK = "server.lock"
CERTIFICATE = "server.crt"
KEY = "server.key"

OF_COMPONENTS = ("certificates", "devices.json", "ports", "pods")
"""What the simulated components keep beside the server's files: webhook certificates, devices given out, logs."""

ALL = (SERVER, KUBECONFIG, STORE, f"{STORE}-wal", f"{STORE}-shm", LOG, OPTIONS, CERTIFICATE, KEY, *OF_COMPONENTS)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is none or it is no JSON object."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_private(path: Path, text: str) -> None:
    """Write a file whole or not at all, readable by its owner only. Raises: OSError."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    temporary.replace(path)


def process_start(pid: int) -> str | None:
    """When a process started, in the system's own words; None when there is no such process.

    A pid alone does not name a process: after a reboot or a long time another program has it.
    """
    if sys.platform.startswith("linux"):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()
        if fields[0] in "ZX":  # it has ended; where it was our child, nobody else will ever look after it
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            return None
        return fields[19]  # field 22 of the line, the start time in clock ticks
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip() or None
