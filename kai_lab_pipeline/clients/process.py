"""Runs a tool as an argument list, with a deadline, and leaves nothing behind.

Each command leads its own process group under a watchdog (`clients.watchdog`), which ends the group when this process
dies; whatever ends the call here (deadline, Ctrl-C, a cancelled run) ends the group too. A file per running command in
the lab's state folder lets the next start end what a killed machine-wide cleanup still left (`Toolbox.end_leftovers`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kai_lab_pipeline.clients import redaction, watchdog
from kai_lab_pipeline.clients.redaction import command_line, redact
from kai_lab_pipeline.clients.tools import INSTALL, Log, Outcome, ToolMissing, ToolTimeout
from kai_lab_pipeline.lab.errors import LabError

GRACE_S = 10.0
"""Seconds a command gets to end itself after SIGTERM: helm needs them to record that it was cancelled."""
_MARK = "_LAB_COMMAND_ID"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass
class Toolbox:
    """Runs commands for one lab. Safe to use from several threads."""

    registry: Path
    """Folder with one small file per running command."""
    transcripts: Path | None = None
    """Folder for the whole output, redacted, of each command that is followed by a log or fails; None keeps nothing."""
    _running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _closed: threading.Event = field(default_factory=threading.Event, repr=False)

    def run(
        self,
        command: Sequence[str],
        *,
        deadline_s: float,
        log: Log | None = None,
        stdin: bytes | None = None,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
    ) -> Outcome:
        """Run `command` and return how it ended, whatever its exit code.

        `env` changes the environment (None removes a variable). `log` gets each line of both streams as it comes.
        Raises ToolMissing, and ToolTimeout after `deadline_s` seconds. However the call ends, the group is gone.
        """
        if self._closed.is_set():
            raise LabError("Stopped before it began", where=command_line(command), next_step="Run it again.")
        if shutil.which(command[0]) is None:
            tool = Path(command[0]).name
            raise ToolMissing(
                f"{tool} is not on the PATH",
                where=command_line(command),
                next_step=INSTALL.get(tool, f"Install {tool} and run it again."),
            )
        environment = dict(os.environ)
        for name, value in (env or {}).items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = value
        mark = uuid.uuid4().hex
        environment[_MARK] = mark
        started = time.monotonic()
        lifeline, ours = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__, str(lifeline), *command],
                stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(lifeline,),
                start_new_session=True,
                env=environment,
                cwd=cwd,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(lifeline)
        streams = _Streams(process, log, stdin)
        registration = contextlib.ExitStack()
        try:
            registration.enter_context(self._registered(process, command, mark))
            streams.read_until(started + deadline_s, self._closed)
        except BaseException:
            with contextlib.suppress(LabError):
                self._keep(self._ended(process, ours, registration, streams, command, started), "interrupted")
            raise
        outcome = self._ended(process, ours, registration, streams, command, started)
        if log is not None or streams.timed_out or outcome.exit_code != 0:  # a question that was answered is no news
            self._keep(outcome, "stopped at its deadline" if streams.timed_out else f"exit code {outcome.exit_code}")
        if self._closed.is_set():
            raise LabError("Stopped while it was running", where=command_line(command), next_step="Run it again.")
        if streams.timed_out:
            raise ToolTimeout(
                f"{command[0]} did not end within {deadline_s:.0f} s and was stopped",
                where=command_line(command),
                seen=outcome.last_lines() or "no output",
                next_step="Run it again; if it hangs again, raise its deadline in lab.toml or see what it waits for.",
                transient=True,
            )
        return outcome

    def end_all(self) -> None:
        """End every command that another thread is running here; those calls raise LabError.

        Also one that is just being started and would not hear the signal: whoever reads it looks whether to go on.
        """
        self._closed.set()
        with self._lock:
            running = list(self._running.values())
        for process in running:
            _signal_group(process.pid, signal.SIGTERM)

    def reopen(self) -> None:
        """Allow commands again after `end_all`."""
        self._closed.clear()

    def end_leftovers(self, log: Log) -> int:
        """End commands whose worker was killed, found by the files it left; returns how many groups were ended.

        A process is only touched when its group and the mark in its environment (or, where that cannot be read, its
        start time) are those written down: a pid that another program got since is never signalled.
        """
        ended = 0
        for file in sorted(self.registry.glob("*.json")) if self.registry.is_dir() else ():
            try:
                entry = json.loads(file.read_text(encoding="utf-8"))
                owner, leader = (entry["owner"], entry["owner_started"]), (int(entry["pid"]), entry["started"])
                mark, line = str(entry["mark"]), str(entry["command"])
            except (OSError, ValueError, KeyError, TypeError):
                file.unlink(missing_ok=True)
                continue
            if start_time(int(owner[0])) == owner[1] and int(owner[0]) != os.getpid():
                continue  # its worker lives: a parallel step of the same run
            if int(owner[0]) == os.getpid() and leader[0] in self._running:
                continue
            if _group_is_ours(leader, mark):
                log(f"Ending what a killed run left running: {line}")
                _signal_group(leader[0], signal.SIGTERM)
                _wait_group_gone(leader, mark)
                ended += 1
            file.unlink(missing_ok=True)
        return ended

    @staticmethod
    def _ended(
        process: subprocess.Popen[bytes],
        lifeline: int,
        registration: contextlib.ExitStack,
        streams: _Streams,
        command: Sequence[str],
        started: float,
    ) -> Outcome:
        """End the group, then let go of everything that pointed to it, in this order and whatever happens."""
        with contextlib.ExitStack() as last:
            last.callback(os.close, lifeline)
            last.callback(streams.close)
            last.callback(registration.close)
            _end_group(process)
        text = (streams.text("out"), streams.text("err"))
        return Outcome(tuple(command), process.returncode, *text, time.monotonic() - started)

    @contextlib.contextmanager
    def _registered(self, process: subprocess.Popen[bytes], command: Sequence[str], mark: str) -> Iterator[None]:
        file = self.registry / f"{mark}.json"
        entry = {
            "pid": process.pid,
            "started": start_time(process.pid),
            "owner": os.getpid(),
            "owner_started": start_time(os.getpid()),
            "mark": mark,
            "command": command_line(command),
        }
        write_file(file, json.dumps(entry))
        with self._lock:
            self._running[process.pid] = process
        try:
            yield
        finally:
            with self._lock:
                self._running.pop(process.pid, None)
            file.unlink(missing_ok=True)

    def _keep(self, outcome: Outcome, end: str) -> None:
        if self.transcripts is None:
            return
        words = [Path(word).name for word in outcome.command[:3]]
        name = "-".join(word for word in words if re.fullmatch(r"[\w.]+[\w.-]*", word))
        text = f"$ {command_line(outcome.command)}\n{outcome.stdout}"
        text += f"--- stderr\n{outcome.stderr}--- {end}, {outcome.seconds:.2f} s\n"
        write_file(self.transcripts / f"{time.time_ns()}-{name}.txt", redact(text))


def write_file(file: Path, text: str) -> None:
    """Write a text file of the lab's state, with its folder; raises LabError when that cannot be done."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LabError(
            "The lab's state folder cannot be written",
            where=str(file),
            seen=error.strerror or str(error),
            next_step="Free disk space ('df -h' shows it) or name another folder in lab.state_dir.",
        ) from error


class _Streams:
    """Both output streams of a process, read line by line in the calling thread."""

    def __init__(self, process: subprocess.Popen[bytes], log: Log | None, stdin: bytes | None) -> None:
        self.process = process
        self.log = log
        self.timed_out = False
        self._parts: dict[str, list[bytes]] = {"out": [], "err": []}
        self._rest: dict[str, bytes] = {"out": b"", "err": b""}
        self._redacted = {"out": redaction.Lines(), "err": redaction.Lines()}
        self._selector = selectors.DefaultSelector()
        self._input = memoryview(stdin or b"")
        for name, stream in (("out", process.stdout), ("err", process.stderr)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, name)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            self._selector.register(process.stdin, selectors.EVENT_WRITE, "in")

    def read_until(self, deadline: float, stopped: threading.Event) -> None:
        """Read to the end of both streams and of the process, until `deadline` (monotonic seconds), or `stopped`."""
        while self._selector.get_map():
            if stopped.is_set():
                return
            left = deadline - time.monotonic()
            if left <= 0:
                self.timed_out = True
                return
            for key, _ in self._selector.select(min(left, 0.5)):
                self._pump(key)
            if self.process.poll() is not None and not self._selector.select(0):
                break  # the command ended; a helper of it may hold the streams open for ever
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.timed_out = True

    def _pump(self, key: selectors.SelectorKey) -> None:
        descriptor, name = key.fd, key.data
        if name == "in":
            try:
                self._input = self._input[os.write(descriptor, self._input[:65536]) :]
            except BrokenPipeError:
                self._input = memoryview(b"")
            if not self._input:
                self._selector.unregister(key.fileobj)
                assert self.process.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    self.process.stdin.close()
            return
        data = os.read(descriptor, 65536)
        if not data:
            self._selector.unregister(key.fileobj)
            self._lines(name, b"\n" if self._rest[name] else b"")
            return
        self._parts[name].append(data)
        self._lines(name, data)

    def _lines(self, name: str, data: bytes) -> None:
        *lines, self._rest[name] = (self._rest[name] + data).split(b"\n")
        if self.log is not None:
            for line in lines:
                shown = self._redacted[name].redact(_clean(line).rstrip())
                if shown:
                    self.log(shown)

    def text(self, name: str) -> str:
        return _clean(b"".join(self._parts[name]))

    def close(self) -> None:
        self._selector.close()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _clean(data: bytes) -> str:
    return _ANSI.sub("", data.decode("utf-8", "replace")).replace("\r", "")


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the group and reap its leader; repeats until done when interrupted in the middle."""
    if process.returncode is None:
        _signal_group(process.pid, signal.SIGTERM)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            pass
        except BaseException:
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
            raise
    # Also where the leader is gone: its group lives on in what the command started and left.
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def start_time(pid: int) -> str | None:
    """When a process began, as an opaque word that no later process of the same pid has; None when it is not there."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() else _start_time_from_ps(pid)
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]


def _start_time_from_ps(pid: int) -> str | None:
    listing = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listing.stdout.strip() or None


def _group_members(leader: int, mark: str) -> list[int]:
    """Processes of the group that carry the mark (Linux only; elsewhere none)."""
    members = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            state, _, group = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
            if (
                int(group) == leader
                and state != "Z"
                and f"{_MARK}={mark}".encode() in (folder / "environ").read_bytes()
            ):
                members.append(int(folder.name))
    return members


def _group_is_ours(leader: tuple[int, str | None], mark: str) -> bool:
    if Path("/proc/self/environ").exists():
        return bool(_group_members(leader[0], mark))
    return leader[1] is not None and start_time(leader[0]) == leader[1]


def _wait_group_gone(leader: tuple[int, str | None], mark: str) -> None:
    deadline = time.monotonic() + GRACE_S
    while _group_is_ours(leader, mark):
        if time.monotonic() > deadline:
            _signal_group(leader[0], signal.SIGKILL)
            return
        time.sleep(0.05)
