"""A machine for one test: stub tools first on the PATH, a project with lab.toml, and an API server."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline.clients.process import Toolbox
from kai_lab_pipeline.clients.tools import Log, Outcome
from kai_lab_pipeline.settings import Settings, load_settings
from kai_lab_pipeline_tests.stubs.api import ApiStub
from kai_lab_pipeline_tests.stubs.tool import Tools

TOOLS = ("docker", "kind", "helm", "git")
RECORDED = Path(__file__).parent.parent / "data" / "tools"
PROJECT = Path(__file__).parent.parent.parent
PATIENCE_S = 20.0


def recorded(tool: str) -> dict[str, dict[str, Any]]:
    """Recorded commands of ``kind-and-docker``, ``helm3`` or ``helm4``: name -> cmd, rc, out, err."""
    return dict(json.loads((RECORDED / f"{tool}.json").read_text(encoding="utf-8")))


class Alive:
    """The reading end of a FIFO that a waiting stub and its child hold open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self.descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._seen = b""

    def _next(self) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(self.descriptor, selectors.EVENT_READ)
            assert selector.select(PATIENCE_S), "nothing happened on the FIFO"
        return os.read(self.descriptor, 100)

    def wait_up(self) -> None:
        """Until the stub and its child both live."""
        while self._seen.count(b"up") < 2:
            self._seen += self._next()

    def wait_gone(self) -> None:
        """Until nobody holds the FIFO any more."""
        while self._next():
            pass

    def close(self) -> None:
        os.close(self.descriptor)


class QuickTools(Toolbox):
    """Runs the stub tools inside the test's own process: most tests are about what is called, not about processes."""

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
        answer = Tools(Path(os.environ["TOOL_STATE"])).answer(
            command[0], list(command[1:]), dict(os.environ) | dict(env or {}), (stdin or b"").decode()
        )
        for line in f"{answer.err}{answer.out}".splitlines() if log else ():
            assert log is not None
            log(line)
        return Outcome(tuple(command), answer.code, answer.out, answer.err)


class Workplace:
    """Everything one test of a backend touches."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, api: ApiStub) -> None:
        self.api = api
        self.project = folder / "project"
        self.state = folder / "tool-state"
        self.bin = folder / "bin"
        self.home = folder / "home"
        for path in (self.project, self.state, self.bin, self.home):
            path.mkdir()
        shutil.copy(PROJECT / "lab.toml", self.project)
        shutil.copytree(PROJECT / "manifests", self.project / "manifests")
        (self.state / "server").write_text(api.url)
        for tool in TOOLS:
            self.add_tool(tool)
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")
        monkeypatch.setenv("TOOL_STATE", str(self.state))
        monkeypatch.setenv("HOME", str(self.home))
        for name in [*os.environ]:
            if name.startswith(("KAI_LAB_", "HELM_", "DOCKER_")) or name == "KUBECONFIG":
                monkeypatch.delenv(name)

    def add_tool(self, tool: str) -> None:
        script = self.bin / tool
        stub = Path(__file__).parent / "tool.py"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -S {stub} {tool} "$@"\n')
        script.chmod(0o755)

    def remove_tool(self, tool: str) -> None:
        (self.bin / tool).unlink()

    def settings(self, **overrides: Any) -> Settings:
        """Settings of the project; keys are paths joined by two underscores."""
        paths = {tuple(key.split("__")): value for key, value in overrides.items()}
        return load_settings(self.project, overrides={("lab", "backend"): "kind"} | paths, environ={})

    def rules(self, *rules: dict[str, Any]) -> None:
        """Answers that come before those of a machine where all is well."""
        (self.state / "rules.json").write_text(json.dumps(rules))
        self.change(used={})

    def calls(self, *words: str) -> list[list[str]]:
        """Calls so far as lists of words; only those that begin with `words`."""
        file = self.state / "calls.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        calls = [[entry["tool"], *entry["arguments"]] for entry in map(json.loads, lines)]
        return [call for call in calls if call[: len(words)] == list(words)]

    def environments(self, tool: str, verb: str) -> list[dict[str, str | None]]:
        entries = map(json.loads, (self.state / "calls.jsonl").read_text().splitlines())
        return [entry["env"] for entry in entries if (entry["tool"], entry["arguments"][0]) == (tool, verb)]

    def forget_calls(self) -> None:
        (self.state / "calls.jsonl").unlink(missing_ok=True)

    def look(self) -> dict[str, Any]:
        file = self.state / "state.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def change(self, **parts: Any) -> None:
        (self.state / "state.json").write_text(json.dumps(self.look() | parts))

    def release(self, namespace: str, name: str, chart: str, status: str = "deployed", **more: Any) -> None:
        """Put a helm release there."""
        row = {"name": name, "namespace": namespace, "revision": "1", "status": status, "chart": chart, **more}
        self.change(releases=self.look().get("releases", {}) | {f"{namespace}/{name}": row})


def make_workplace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    api = ApiStub()
    yield Workplace(folder, monkeypatch, api)
    api.close()
