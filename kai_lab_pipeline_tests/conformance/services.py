"""Long-running programs of the lane: each in a group of its own that ends with this process, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from kai_lab_pipeline.clients import watchdog

STOP_S = 20.0
"""Seconds a program gets to end after SIGTERM."""
_POLL_S = 0.05


class ServiceFailed(Exception):
    """A program ended or did not become ready; the text holds the last lines of its log."""


class Service:
    """A running program and its log."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    def wait_ready(self, probe: Callable[[], str | None], deadline_s: float) -> None:
        """Wait until `probe` returns None; what it returns says what is not ready yet.

        Raises ServiceFailed when the program ends before, or after `deadline_s` seconds.
        """
        deadline = time.monotonic() + deadline_s
        seen = "nothing asked yet"
        while time.monotonic() < deadline:
            answer = probe()
            if answer is None:
                return
            seen = answer
            if self._process.poll() is not None:
                raise ServiceFailed(f"{self.name} ended with {self._process.returncode}:\n{self.tail()}")
            time.sleep(_POLL_S)
        raise ServiceFailed(f"{self.name} was not ready within {deadline_s:.0f} s, last: {seen}\n{self.tail()}")

    def tail(self, lines: int = 20) -> str:
        text = self.log.read_text(encoding="utf-8", errors="replace").strip()
        return "\n".join(f"  {line}" for line in text.splitlines()[-lines:]) or "  (its log is empty)"


@contextlib.contextmanager
def service(
    name: str, command: Sequence[str], folder: Path, env: Mapping[str, str | None] | None = None
) -> Iterator[Service]:
    """Run `command` for the time of the block, its output in `folder`/`name`.log.

    `env` changes the environment (None removes a variable).
    """
    log = folder / f"{name}.log"
    environment = {**os.environ, **(env or {})}
    lifeline, ours = os.pipe()
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__, str(lifeline), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env={variable: value for variable, value in environment.items() if value is not None},
                pass_fds=(lifeline,),
                start_new_session=True,
            )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(lifeline)
    try:
        yield Service(name, process, log)
    finally:
        _end(process)
        os.close(ours)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody has now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [opened.getsockname()[1] for opened in sockets]
