"""What is known about the command line tools: how a command ended, what its words mean, and how to get a tool.

What the words mean is known to `lab.diagnosis`; a client adds a `Hint` only where it knows more than the words say.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from kai_lab_pipeline.clients.redaction import command_line, redact
from kai_lab_pipeline.lab.diagnosis import diagnose_text
from kai_lab_pipeline.lab.diagnosis.reach import reached
from kai_lab_pipeline.lab.errors import LabError

Log = Callable[[str], None]
"""Takes one line for the person who follows the run."""
TAIL_LINES = 12


@dataclass(frozen=True)
class Outcome:
    """How a command ended. The streams are as the tool wrote them, except that colours are taken out."""

    command: tuple[str, ...]
    exit_code: int
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return f"{self.stderr}\n{self.stdout}".strip()

    def last_lines(self, count: int = TAIL_LINES) -> str:
        # What a secret begins with may stand before the last lines.
        lines = [line for line in redact(self.text).splitlines() if line.strip()]
        return "\n".join(lines[-count:])


@dataclass(frozen=True)
class Hint:
    """What words mean in one place: a regular expression, the cause, and the remedy. Named groups fill in {name}."""

    pattern: str
    cause: str
    remedy: str

    def match(self, text: str) -> re.Match[str] | None:
        return re.search(self.pattern, text, re.IGNORECASE | re.MULTILINE)


class ToolError(LabError):
    """A tool failed, with its own last words and, where they are known, the cause and the remedy."""

    def __init__(
        self, outcome: Outcome, what: str, hints: Sequence[Hint] = (), *, next_step: str = "", backend: str = ""
    ) -> None:
        self.outcome = outcome
        self.command = command_line(outcome.command)
        self.exit_code_of_tool = outcome.exit_code
        self.tail = outcome.last_lines()
        self.fault = ""
        """Id of the known fault (`lab.diagnosis`), where it is one."""
        self.cause, self.remedy, transient = "", next_step, False
        for hint in hints:
            found = hint.match(outcome.text)
            if found:
                self.cause, self.remedy = _fill(hint.cause, found), _fill(hint.remedy, found)
                break
        else:
            for known in diagnose_text(outcome.text, backend, self.command).causes[:1]:
                self.fault, transient = known.id, known.transient
                steps = (_reached(step, outcome.command) for step in known.remedy)
                self.cause, self.remedy = redact(known.cause), redact("; ".join(steps))
        super().__init__(
            f"{what}{f': {self.cause}' if self.cause else ''} (exit code {outcome.exit_code})",
            where=self.command,
            seen=self.tail or f"nothing but exit code {outcome.exit_code}",
            next_step=self.remedy or "Read the last lines above; the same command can be run by hand.",
            transient=transient,
        )

    def add_seen(self, text: str) -> None:
        """Add what was seen elsewhere, such as the log of a pod that did not come up."""
        if text:
            self.seen = f"{self.seen}\n{text}"
            self.args = (self.text(),)


class ToolMissing(LabError):
    """The tool is not installed."""


class ToolTimeout(LabError):
    """The tool did not end within its deadline and was ended, with everything it had started."""


def _reached(step: str, command: Sequence[str]) -> str:
    """A step of a remedy for the very cluster that the command was for, where it names one."""
    file, context = _option(command, "--kubeconfig"), _option(command, "--kube-context")
    if not file:
        return step
    reach = ("--kubeconfig", file)
    kubectl = shlex.join(("kubectl", *reach, *(("--context", context) if context else ())))
    return reached(step, kubectl, shlex.join(("helm", *reach, *(("--kube-context", context) if context else ()))))


def _option(command: Sequence[str], name: str) -> str:
    return next((value for option, value in pairwise(command) if option == name), "")


def _fill(text: str, found: re.Match[str]) -> str:
    """`text` with {name} replaced by the named groups that matched."""
    for name, value in found.groupdict().items():
        text = text.replace(f"{{{name}}}", redact(value or "?"))
    return text


class Runner(Protocol):
    """Runs a command to its end; what `Toolbox.run` does, and what tests replay."""

    def __call__(
        self,
        command: Sequence[str],
        *,
        deadline_s: float,
        log: Log | None = None,
        stdin: bytes | None = None,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
    ) -> Outcome: ...


INSTALL: Mapping[str, str] = {
    "docker": "Install Docker Engine (https://docs.docker.com/engine/install/) and start its daemon.",
    "kind": "Install kind 0.20 or newer: 'go install sigs.k8s.io/kind@latest', 'brew install kind', "
    "or a binary from https://kind.sigs.k8s.io/docs/user/quick-start/.",
    "helm": "Install helm 3 or 4: 'brew install helm', or https://helm.sh/docs/intro/install/.",
    "kubectl": "Install kubectl 1.31 or newer: https://kubernetes.io/docs/tasks/tools/.",
    "git": "Install git with your package manager, or name a checkout in image.nvml_mock.checkout.",
    "go": "Install Go: https://go.dev/doc/install.",
}
"""How to get each tool."""


@dataclass(frozen=True)
class Tool:
    """One executable, and the environment it runs in."""

    runner: Runner
    name: str
    env: Mapping[str, str | None] | None = None
    backend: str = ""
    """What the lab runs on, for remedies that fit; empty where the tool itself tells (docker, kind)."""

    def call(
        self,
        *arguments: str,
        what: str,
        deadline_s: float = 60.0,
        log: Log | None = None,
        stdin: bytes | None = None,
        cwd: Path | None = None,
        hints: Sequence[Hint] = (),
    ) -> Outcome:
        """Run it; raises ToolError unless it exits 0. `what` says what could not be done."""
        outcome = self.attempt(*arguments, deadline_s=deadline_s, log=log, stdin=stdin, cwd=cwd)
        if outcome.exit_code != 0:
            raise ToolError(outcome, what, hints, backend=self.backend)
        return outcome

    def attempt(
        self,
        *arguments: str,
        deadline_s: float = 60.0,
        log: Log | None = None,
        stdin: bytes | None = None,
        cwd: Path | None = None,
    ) -> Outcome:
        """Run it and return how it ended, whatever the exit code."""
        command = [self.name, *arguments]
        return self.runner(command, deadline_s=deadline_s, log=log, stdin=stdin, env=self.env, cwd=cwd)


def version_of(outcome: Outcome) -> tuple[int, int, int] | None:
    """The version that a tool printed; None where it failed: what it says then may name any (asdf and mise do)."""
    return version_in(outcome.stdout) if outcome.exit_code == 0 else None


_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


def version_in(text: str) -> tuple[int, int, int] | None:
    """The first version in a tool's output as numbers; a missing patch is 0."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None
