"""The rehearsal's server as a process of its own: start it or find it, and stop it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kai_lab_pipeline.rehearsal import state

START_S = 30.0
"""Seconds a server gets to start; a quiet machine needs under one."""

STOP_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""


class RehearsalError(Exception):
    """The rehearsal's server could not be started, found or stopped."""

    def __init__(self, what: str, where: Path | str, seen: str, next_step: str) -> None:
        super().__init__(f"{what} ({where}): {seen}. Next: {next_step}")
        self.what = what
        self.where = str(where)
        self.seen = seen
        self.next = next_step


@dataclass(frozen=True)
class ServerHandle:
    """A running server. `url` is plain HTTP on the loopback; the kubeconfig uses TLS, since kubectl keeps its token
    to itself without it. `started` tells whether this call started the process."""

    url: str
    port: int
    pid: int
    token: str
    kubeconfig: Path
    started: bool


def find(state_dir: Path) -> ServerHandle | None:
    """The running server of a state folder, or None."""
    record = _alive(state_dir)
    return None if record is None else _handle(state_dir, record, started=False)


def ensure(
    state_dir: Path, *, name: str, options: Mapping[str, Any] | None = None, idle_stop_s: float = 1800
) -> ServerHandle:
    """Start the server of a state folder, or find it; ready for requests when this returns.

    A server that runs with other `options` is started anew on its kept state. `idle_stop_s`: seconds without use
    after which it stops by itself, 0 for never.

    Raises: RehearsalError when the folder cannot be written or the server does not come up.
    """
    with _locked(state_dir):
        return _ensured(state_dir, name, dict(options or {}), idle_stop_s)


def revive(state_dir: Path, *, name: str, idle_stop_s: float = 1800) -> ServerHandle | None:
    """The server of a state folder that is kept, started as it last was; None where no state is: nothing is made.

    Raises: RehearsalError as `ensure` does.
    """
    if not state_dir.is_dir():
        return None
    with _locked(state_dir):
        # Looked at again with the lock held: a tear-down may have been at work until now.
        if not any((state_dir / kept).exists() for kept in (state.SERVER, state.STORE)):
            (state_dir / state.LOCK).unlink(missing_ok=True)
            return None
        return _ensured(state_dir, name, state.read_json(state_dir / state.OPTIONS) or {}, idle_stop_s)


def _ensured(state_dir: Path, name: str, wanted: dict[str, Any], idle_stop_s: float) -> ServerHandle:
    record = _alive(state_dir)
    if record is not None and record.get("options") == wanted:
        return _handle(state_dir, record, started=False)
    if record is not None:
        _stop_process(state_dir, record)
    try:
        state.write_private(state_dir / state.OPTIONS, json.dumps(wanted))
    except (OSError, TypeError) as error:
        raise _unwritable(state_dir, error) from error
    record = _start(state_dir, name, idle_stop_s)
    _write_kubeconfig(state_dir, name, record)
    return _handle(state_dir, record, started=True)


def stop(state_dir: Path, *, forget: bool = False) -> bool:
    """Stop the server; whether one ran. `forget` removes the state as well.

    Raises: RehearsalError when the process does not end or files cannot be removed.
    """
    if not state_dir.is_dir():
        return False
    with _locked(state_dir):
        record = _alive(state_dir)
        if record is not None:
            _stop_process(state_dir, record, at_once=forget)
        if forget:
            try:
                for name in state.ALL:
                    path = state_dir / name
                    if path.is_dir():
                        shutil.rmtree(path)
                    path.unlink(missing_ok=True)
                (state_dir / state.LOCK).unlink(missing_ok=True)
            except OSError as error:
                raise _unwritable(state_dir, error) from error
    return record is not None


def _unwritable(state_dir: Path, error: Exception) -> RehearsalError:
    return RehearsalError(
        "the rehearsal's state cannot be written",
        state_dir,
        str(error),
        "choose a folder you may write to (KAI_LAB_STATE_DIR), or mend its permissions",
    )


@contextlib.contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    """One at a time per state folder; also after whoever held the lock before has removed it with the state."""
    lock = state_dir / state.LOCK
    while True:
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unwritable(state_dir, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(lock, descriptor):
                yield
                return
        finally:
            os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    return False


def _alive(state_dir: Path) -> dict[str, Any] | None:
    """What server.json says, when the very process it names still runs."""
    record = state.read_json(state_dir / state.SERVER)
    if record is None or not isinstance(record.get("pid"), int):
        return None
    started = state.process_start(record["pid"])
    return record if started is not None and started == record.get("pid_started") else None


def _handle(state_dir: Path, record: dict[str, Any], *, started: bool) -> ServerHandle:
    return ServerHandle(
        url=f"http://127.0.0.1:{record['port']}",
        port=record["port"],
        pid=record["pid"],
        token=record["token"],
        kubeconfig=state_dir / state.KUBECONFIG,
        started=started,
    )


def _start(state_dir: Path, name: str, idle_stop_s: float) -> dict[str, Any]:
    command = [
        sys.executable, "-m", "kai_lab_pipeline.rehearsal",
        "--state", str(state_dir.resolve()), "--name", name, "--idle-stop", str(idle_stop_s),
    ]  # fmt: skip
    package_root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (package_root, os.environ.get("PYTHONPATH", "")) if part)
    log = state_dir / state.LOG
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        raise _unwritable(state_dir, error) from error
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
            close_fds=True,
        )
    except OSError as error:
        raise RehearsalError(
            "the rehearsal's server cannot be started", state_dir, str(error), f"check that {sys.executable} runs"
        ) from error
    finally:
        os.close(descriptor)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        record = _alive(state_dir)
        if record is not None and record["pid"] == process.pid:
            process.returncode = 0  # it lives on without us: Popen must not warn about it
            return record
        if process.poll() is not None:
            raise RehearsalError(
                "the rehearsal's server ended while it started",
                state_dir,
                f"exit code {process.returncode}, last lines of {log}: {_tail(log)}",
                "mend what these lines say; `kai-lab down` removes a damaged state",
            )
        time.sleep(0.01)
    process.kill()
    process.wait()
    raise RehearsalError(
        "the rehearsal's server did not become ready",
        state_dir,
        f"nothing within {START_S:.0f} s, last lines of {log}: {_tail(log)}",
        "try again when the machine is less busy",
    )


def _tail(log: Path, lines: int = 8) -> str:
    try:
        text = log.read_text(errors="replace").strip()
    except OSError as error:
        return str(error)
    return " | ".join(text.splitlines()[-lines:]) or "(empty)"


def _stop_process(state_dir: Path, record: dict[str, Any], *, at_once: bool = False) -> None:
    """End the server; `at_once` where its state goes too, so that there is nothing to end in order."""
    pid = record["pid"]
    for number, patience in ((signal.SIGTERM, 0.0 if at_once else STOP_S), (signal.SIGKILL, STOP_S)):
        with contextlib.suppress(ProcessLookupError):
            try:
                os.kill(pid, number)
            except PermissionError as error:
                raise RehearsalError(
                    "the rehearsal's server cannot be stopped",
                    state_dir,
                    str(error),
                    f"stop process {pid} as its owner",
                ) from error
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if _alive(state_dir) is None:
                return
            time.sleep(0.01)
    raise RehearsalError(
        "the rehearsal's server did not stop",
        state_dir,
        f"process {pid} still runs after SIGKILL",
        f"look at process {pid}",
    )


def _write_kubeconfig(state_dir: Path, name: str, record: dict[str, Any]) -> None:
    import base64

    import yaml

    authority = base64.b64encode((state_dir / state.CERTIFICATE).read_bytes()).decode()
    context = f"kai-lab-rehearsal-{name}"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [
            {
                "name": context,
                "cluster": {
                    "server": f"https://127.0.0.1:{record['tls_port']}",
                    "certificate-authority-data": authority,
                },
            }
        ],
        "users": [{"name": context, "user": {"token": record["token"]}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context, "namespace": "default"}}],
    }
    state.write_private(state_dir / state.KUBECONFIG, yaml.safe_dump(config, sort_keys=False))
