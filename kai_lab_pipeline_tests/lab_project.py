"""A project folder of its own for a test: `kai-lab` on it as people call it, its graph in this process, and its end.

A project that a test made is torn down with `kai-lab down --all`, and nothing of it may be left: no process, no port,
no file in the state folder.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg

from kai_lab_pipeline import cli
from kai_lab_pipeline.commands import run
from kai_lab_pipeline.definitions import build_definitions
from kai_lab_pipeline.lab.spec import ASSETS
from kai_lab_pipeline.rehearsal import process
from kai_lab_pipeline.settings import Settings, load_settings
from kai_lab_pipeline.workbench.lab import Lab, descendants
from kai_lab_pipeline_tests.rehearsal_lab import Lab as LivingCluster

CHECKOUT = Path(__file__).resolve().parent.parent
FILES = ("lab.toml", "dagster.yaml", "workspace.yaml")
COMMAND_S = 280.0
"""Longest time a command may take, seconds: far more than any needs on a busy machine, less than a test may take."""
TEST_S = 300
"""Longest time of a test that waits for whole runs, seconds; they take some on a quiet machine."""
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True)
class Said:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON document it must be."""
        return json.loads(self.out)

    @property
    def text(self) -> str:
        return f"exit code {self.code}\n{self.out}\n{self.err}"


@dataclass(frozen=True)
class Executed:
    """A run of the graph in this process."""

    run_id: str
    success: bool
    materialised: frozenset[str]
    verdicts: Mapping[str, str]
    """Verdict by ``asset.check``, of the checks that were executed."""
    passed: Mapping[str, bool]
    """Whether Dagster shows the check as passed, by ``asset.check``."""

    def of(self, verdict: str) -> set[str]:
        """The checks with this verdict."""
        return {name for name, found in self.verdicts.items() if found == verdict}

    @property
    def red(self) -> dict[str, str]:
        """The checks that Dagster shows as failed, with their verdicts."""
        return {name: self.verdicts.get(name, "") for name, passed in self.passed.items() if not passed}


@dataclass
class LabProject:
    """One project folder and what a person does in it."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    """KAI_LAB_* variables that are set for everything done here."""

    # -- commands --------------------------------------------------------------------------------------------------

    def environment(self, **variables: str) -> dict[str, str]:
        """The environment of a command: nothing of the caller's own lab gets in."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("KAI_LAB_") and not name.startswith("DAGSTER_")
        }
        return {**kept, "COLUMNS": "160", "KAI_LAB_PROJECT": str(self.folder), **self.variables, **variables}

    def run(self, *arguments: str, **variables: str) -> Said:
        """`kai-lab` as a process of its own, which is what a person gets."""
        done = subprocess.run(
            [sys.executable, "-m", "kai_lab_pipeline.cli", *arguments],
            cwd=self.folder,
            env=self.environment(**variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def call(self, *arguments: str, **variables: str) -> Said:
        """The same in this process, without a second start of Dagster. Of `run` only what must be refused at once."""
        with mock.patch.object(run, "_execute", _must_not_run):
            return self.main_here(*arguments, **variables)

    def main_here(self, *arguments: str, **variables: str) -> Said:
        """The command line's entry point in this process, with whatever the caller has put in place of its parts."""
        out, err = io.StringIO(), io.StringIO()
        argv = ["kai-lab", *arguments]
        with (
            mock.patch.dict(os.environ, self.environment(**variables), clear=True),
            mock.patch.object(sys, "argv", argv),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                cli.main()
                code: Any = 0
            except SystemExit as end:
                code = end.code
        return Said(code if isinstance(code, int) else int(code is not None), out.getvalue(), err.getvalue())

    # -- the graph -------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        return load_settings(self.folder, environ=self.variables)

    def materialise(self, *names: str) -> Executed:
        """Materialise these assets (``NAME+`` with its descendants; all by default) with their checks."""
        chosen = {name.rstrip("+") for name in names}
        for name in names:
            if name.endswith("+"):
                chosen.update(descendants(name.rstrip("+")))
        keys = [dg.AssetKey([name]) for name in ASSETS if name in chosen] if names else None
        return self._execute("build_lab", keys)

    def check(self) -> Executed:
        """Execute all checks alone against the live cluster: the job `drift`."""
        return self._execute("drift", None)

    def _execute(self, job: str, keys: Sequence[dg.AssetKey] | None) -> Executed:
        settings = self.settings
        with (
            mock.patch.dict(os.environ, self.environment(), clear=True),
            dg.DagsterInstance.ephemeral() as instance,
        ):
            result = (
                build_definitions(settings)
                .resolve_job_def(job)
                .execute_in_process(
                    instance=instance,
                    asset_selection=keys,
                    run_config=_QUIET,
                    raise_on_error=False,
                )
            )
        Lab(settings, result.run_id, lambda _: None).release()
        evaluations = result.get_asset_check_evaluations()
        names = {f"{e.asset_key.to_user_string()}.{e.check_name}": e for e in evaluations}
        return Executed(
            run_id=result.run_id,
            success=result.success,
            materialised=frozenset(
                event.step_materialization_data.materialization.asset_key.to_user_string()
                for event in result.get_asset_materialization_events()
            ),
            verdicts={name: str(e.metadata["verdict"].value) for name, e in names.items() if "verdict" in e.metadata},
            passed={name: e.passed for name, e in names.items()},
        )

    # -- what lies in the folder -----------------------------------------------------------------------------------

    @property
    def lab_dir(self) -> Path:
        return self.settings.lab_dir

    @property
    def report_dir(self) -> Path:
        return self.lab_dir / "report"

    def newest_bundle(self) -> Path:
        bundles = sorted((self.lab_dir / "evidence").iterdir(), key=lambda folder: folder.stat().st_mtime_ns)
        return bundles[-1]

    def server(self) -> process.ServerHandle | None:
        """The rehearsal's server of this lab, if it runs."""
        return process.find(self.lab_dir / "rehearsal")

    @contextlib.contextmanager
    def cluster(self) -> Iterator[LivingCluster]:
        """The living cluster, as a person with kubectl has it in hand."""
        handle = self.server()
        assert handle is not None, "the rehearsal's server does not run"
        living = LivingCluster(handle)
        with living.api:
            yield living

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.folder / file
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{old!r} is not in {file}"
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    def tree(self) -> dict[str, str]:
        """Every file below the project with its content's size and time: what a command must not have touched."""
        return {
            str(path.relative_to(self.folder)): "folder"
            if path.is_dir()
            else f"{path.stat().st_size} {path.stat().st_mtime_ns}"
            for path in sorted(self.folder.rglob("*"))
        }

    # -- the end ---------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """`kai-lab down --all`, and a look whether anything is left."""
        handle = self.server()
        said = self.call("down", "--all")
        assert said.code == 0, said.text
        assert not self.settings.state_root.exists(), sorted(self.settings.state_root.rglob("*"))
        if handle is not None:
            assert not listens(handle.port)
        left = processes_in(self.folder)
        assert not left, f"still running: {left}"


def _must_not_run(*_: object) -> None:
    raise AssertionError("this run was to be refused")


def listens(port: int) -> bool:
    """Whether somebody accepts connections on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def processes_in(folder: Path) -> list[str]:
    """Command lines of the processes that name this folder; empty where the system does not tell (no /proc)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in line and path.parent.name != str(os.getpid()):
                found.append(line)
    return found


def make_project(folder: Path, **variables: str) -> LabProject:
    """A copy of the checkout's settings and manifests in `folder`; nothing is started."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(CHECKOUT / name, folder / name)
    shutil.copytree(CHECKOUT / "manifests", folder / "manifests")
    return LabProject(folder, dict(variables))


@contextlib.contextmanager
def project(folder: Path, **variables: str) -> Iterator[LabProject]:
    """A project in `folder`, torn down afterwards with nothing left."""
    made = make_project(folder, **variables)
    try:
        yield made
    finally:
        made.end()
