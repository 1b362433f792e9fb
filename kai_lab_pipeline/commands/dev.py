"""`kai-lab dev`: the Dagster UI with the project's durable home."""

from __future__ import annotations

import os
import signal
import socket
import sys

from kai_lab_pipeline.commands.common import console, prepare_dagster_home, settings_with
from kai_lab_pipeline.lab.errors import WrongUse
from kai_lab_pipeline.workbench.state import LabState

GROUP_PAGE = "/locations/kai_lab_pipeline/asset-groups/lab/lineage"
"""Opens expanded, with a one-click "Materialize all"."""


def dev_command(port: int) -> int:
    """Become `dagster dev` on 127.0.0.1:`port`. Raises WrongUse when the port is taken, SettingsError."""
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
    prepare_dagster_home(settings)
    LabState.of(settings).open()
    os.environ["KAI_LAB_PORT"] = str(port)
    console().print(f'The lab\'s graph, with one-click "Materialize all": [bold]http://127.0.0.1:{port}{GROUP_PAGE}[/]')
    sys.stdout.flush()
    # A shell's background job ignores SIGINT, by which Dagster stops the processes it started: they would never end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.chdir(settings.root)
    command = [sys.executable, "-m", "dagster", "dev", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port)]
    os.execv(sys.executable, command)
