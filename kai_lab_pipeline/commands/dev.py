"""`kai-lab dev`: the Dagster UI with the project's durable home."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import sys
from pathlib import Path

from kai_lab_pipeline.commands.common import console, prepare_dagster_home, settings_with
from kai_lab_pipeline.lab.errors import WrongUse
from kai_lab_pipeline.workbench.state import LabState

GROUP_PAGE = "/locations/kai_lab_pipeline/asset-groups/lab/lineage"
"""Opens expanded, with a one-click "Materialize all"."""


def dev_command(port: int) -> int:
    """Become `dagster dev` on 127.0.0.1:`port`.

    Raises WrongUse when the port is taken or the project's UI runs already, SettingsError.
    """
    settings = settings_with({})
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise WrongUse(
                f"Port {port} of 127.0.0.1 is in use",
                seen=error.strerror or str(error),
                next_step=f"Stop what listens there, or choose another one: kai-lab dev --port {port + 1}",
            ) from error
    url = f"http://127.0.0.1:{port}"
    _be_the_only_one(prepare_dagster_home(settings) / "dev.lock", url)
    LabState.of(settings).open()
    os.environ["KAI_LAB_PORT"] = str(port)
    console().print(f'The lab\'s graph, with one-click "Materialize all": [bold]{url}{GROUP_PAGE}[/]')
    sys.stdout.flush()
    # A shell's background job ignores SIGINT, by which Dagster stops the processes it started: they would never end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.chdir(settings.root)
    command = [sys.executable, "-m", "dagster", "dev", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port)]
    os.execv(sys.executable, command)


def _be_the_only_one(lock: Path, url: str) -> None:
    """Hold the project's UI until this process ends, also as the `dagster dev` that it becomes. Raises WrongUse.

    Two daemons on one history would tick every schedule and sensor twice.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        with open(descriptor, encoding="utf-8") as file:
            holder = json.loads(file.read() or "{}")
        raise WrongUse(
            "The UI of this project is running already",
            where=holder.get("url"),
            seen=f"process {holder.get('pid', '?')}",
            next_step="Open it there, or end that process (kill, or Ctrl-C in its terminal) and start it again.",
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"url": url, "pid": os.getpid()}).encode(), 0)
    os.set_inheritable(descriptor, True)
