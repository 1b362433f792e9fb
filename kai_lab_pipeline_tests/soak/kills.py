"""One interruption of `kai-lab run`, and what must be true afterwards.

The point is drawn from a seed: so many steps into the run, and a part of a second later. What is compared is the end
state; where exactly the kill lands varies with the machine, which is the purpose.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from kai_lab_pipeline.lab.spec import ASSETS
from kai_lab_pipeline_tests.lab_project import LabProject

PATIENCE_S = 300.0
"""Longest time for anything here, seconds: a machine that does much else at the same time."""
LATER_S = 0.6
"""The kill comes up to this many seconds after the step it was drawn for."""
FULL_AT_BYTES = (20_000, 500_000)
"""A full disk is a limit on the size of every file, drawn from here: from no history at all to a run cut off midway."""


@dataclass(frozen=True)
class Kill:
    """What is done to a run, and after how many of its steps."""

    how: str
    after_steps: int
    later_s: float
    full_at: int

    def __str__(self) -> str:
        if self.how == FULL:
            return f"disk full at {self.full_at} bytes a file"
        return f"{self.how} {self.later_s:.2f} s after step {self.after_steps}"


FULL = "disk full"
HOW = ("SIGINT", "SIGTERM", "SIGKILL", "server", FULL)


def drawn(seed: int) -> Kill:
    """The kill of a seed: the five ways in turn, the point at random."""
    chance = random.Random(seed)
    after_steps, later_s = chance.randrange(1, len(ASSETS)), chance.uniform(0, LATER_S)
    return Kill(HOW[seed % len(HOW)], after_steps, later_s, chance.randrange(*FULL_AT_BYTES))


class Undone(Exception):
    """A run of `kai-lab` was not to be stopped, or did not end as it must."""


class Run:
    """`kai-lab run` as a process, with its progress."""

    def __init__(self, project: LabProject, *, file_limit: int | None = None) -> None:
        self._steps = 0
        self._ended = False
        self._news = threading.Condition()
        self.text = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kai_lab_pipeline.cli", "run"],
            cwd=project.folder,
            env=project.environment(PYTHONUNBUFFERED="1"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: _as_in_a_terminal(file_limit),
        )
        self._reader = threading.Thread(target=self._read, name="read-run", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.text += line
                self._steps += line.startswith(("✓", "✗"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_steps(self, count: int) -> None:
        """Wait until so many steps are told, or the run has ended."""
        with self._news:
            if not self._news.wait_for(lambda: self._ended or self._steps >= count, PATIENCE_S):
                raise Undone(f"not {count} steps within {PATIENCE_S:.0f} s:\n{self.text}")

    def halt(self) -> None:
        """SIGSTOP, and wait until it is halted. Raises Undone when it has ended before."""
        self.process.send_signal(signal.SIGSTOP)
        found = os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if found is None or found.si_code != os.CLD_STOPPED:
            raise Undone(f"the run ended before it was halted:\n{self.text}")

    def ended_within(self, seconds: float) -> bool:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> int:
        """Wait for the end; returns the exit code, negative for a signal."""
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise Undone(f"the run did not end within {PATIENCE_S:.0f} s:\n{self.text}") from None
        self._reader.join(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


def _as_in_a_terminal(file_limit: int | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job of a shell would ignore it
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))


def strike(project: LabProject, kill: Kill) -> tuple[int, str]:
    """Start a run and do to it what the kill says; returns its exit code and what it printed."""
    if kill.how == FULL:
        run = Run(project, file_limit=kill.full_at)
        return run.end(), run.text
    run = Run(project)
    run.wait_steps(kill.after_steps)
    if not run.ended_within(kill.later_s):
        if kill.how == "server":
            kill_server(project)
        else:
            run.process.send_signal(getattr(signal, kill.how))
    return run.end(), run.text


def kill_server(project: LabProject) -> None:
    """SIGKILL to the rehearsal's server, if it runs."""
    handle = project.server()
    if handle is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(handle.pid, signal.SIGKILL)


def whole_run(project: LabProject) -> Mapping[str, Any]:
    """An undisturbed `kai-lab run --json`; raises Undone when it does not end green."""
    said = project.run("run", "--json")
    if said.code != 0:
        raise Undone(f"the run after it is not green: {said.text}")
    found: Mapping[str, Any] = said.json
    return found


def verdicts(claims: Mapping[str, Any]) -> dict[str, str]:
    """Verdict by check and by claim, and the boundary: the end state that is compared."""
    found = {f"{c['asset']}.{c['check']}": c["verdict"] for claim in claims["claims"] for c in claim["checks"]}
    found |= {f"claim {claim['id']}": claim["verdict"] for claim in claims["claims"]}
    return found | {"boundary": claims["boundary"]}


def left_running(project: LabProject) -> list[int]:
    """Processes that carry this project in their environment, without the rehearsal's server and its children."""
    server = project.server()
    spared = set() if server is None else {server.pid, *_children(server.pid)}
    return sorted(pid for pid in marked(project.folder) if pid not in spared)


def marked(folder: Path) -> Iterator[int]:
    """Processes that carry the project in this folder in their environment."""
    mark = f"KAI_LAB_PROJECT={folder}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0") and path.parent.name != str(os.getpid()):
                yield int(path.parent.name)


def command_of(pid: int) -> str:
    """A process's command line, empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def kept(project: LabProject) -> dict[str, str]:
    """Digest of every file of evidence and reports by run that a finished run left."""
    found = {}
    for part in ("evidence", "reports"):
        for path in sorted((project.lab_dir / part).rglob("*")):
            if path.is_file():
                found[str(path.relative_to(project.lab_dir))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def history(project: LabProject) -> dict[str, str]:
    """Status of every run in the project's Dagster history, by run id."""
    return _with_history(
        project,
        lambda instance: {r.dagster_run.run_id: r.dagster_run.status.value for r in instance.get_run_records()},
    )


def history_is_being_written(project: LabProject) -> bool:
    """Whether some process is inside a write to a database that all runs of the project share."""
    for path in (project.folder / ".dagster_home" / "history").rglob("*.db"):
        with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            database.execute("ROLLBACK")
    return False


def _with_history(project: LabProject, read: Callable[[dg.DagsterInstance], dict[str, str]]) -> dict[str, str]:
    home = project.folder / ".dagster_home"
    with dg.DagsterInstance.from_config(str(home)) as instance:
        return read(instance)
