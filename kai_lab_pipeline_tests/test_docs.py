"""Every command that stands in a code block of the README and the docs is run, in the order in which it is written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
GENERATED = {"known-issues.md", "scenarios.md", "rematerialise.md"}
"""Pages that are printed from data and have tests of their own; their commands name other people's clusters."""
CODES = {"doctor": (0, 3)}
"""Exit codes by subcommand, where it is not 0 alone: a machine without Docker is told so with 3."""
ELSEWHERE = {"nightly", "dev"}
"""Subcommands that take minutes or never end: that they exist is tested here, what they do in tests of their own."""


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith("#")]


def pages_with_commands() -> list[Path]:
    return [page for page in PAGES if page.name not in GENERATED and commands(page)]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder that looks like a clone that was set up: the commands of the docs are relative to it."""
    for name in ("lab.toml", "dagster.yaml", "workspace.yaml", "Makefile"):
        shutil.copy(PROJECT / name, tmp_path)
    shutil.copytree(PROJECT / "manifests", tmp_path / "manifests")
    (tmp_path / "kai_lab_pipeline_tests").symlink_to(PROJECT / "kai_lab_pipeline_tests")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", pages_with_commands(), ids=lambda page: str(page.name))
def test_the_commands_of_a_page_work(page: Path, clone: Path) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("KAI_LAB_", "DAGSTER_"))}
    env["KAI_LAB_PROJECT"] = str(clone)
    lines = commands(page)
    try:
        for line in lines:
            _try(line, clone, env)
    finally:
        _call(".venv/bin/kai-lab down --all", clone, env)


def _try(line: str, clone: Path, env: dict[str, str]) -> None:
    make = re.fullmatch(r"make (\w+)", line)
    module = re.fullmatch(r"\.venv/bin/python -m ([\w.]+)", line)
    if make:
        targets = re.findall(r"^(\w+):", (clone / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert make[1] in targets, f"the Makefile has no target {make[1]}"
        return
    if module:
        probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{module[1]}') is None)"
        assert subprocess.run([sys.executable, "-c", probe], cwd=PROJECT, check=False).returncode == 0, line
        return
    found = re.search(r"\.venv/bin/kai-lab (\w+)", line)
    assert found, f"nobody knows how to test {line!r}"
    if found[1] in ELSEWHERE:
        line = f".venv/bin/kai-lab {found[1]} --help"
    done = _call(line, clone, env)
    assert done.returncode in CODES.get(found[1], (0,)), f"{line}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
    assert "Traceback" not in done.stderr


def _call(line: str, clone: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", line], cwd=clone, env=env, capture_output=True, text=True, check=False)


def test_every_option_and_command_in_the_docs_exists() -> None:
    """Inline mentions too: `kai-lab foo --bar` anywhere must be something that kai-lab has."""
    from kai_lab_pipeline.cli import cli

    unknown = []
    for page in PAGES:
        for command, rest in re.findall(r"kai-lab (\w+)((?: --?[\w-]+)*)", page.read_text(encoding="utf-8")):
            known = cli.commands.get(command)
            options = {option for parameter in known.params for option in parameter.opts} if known else set()
            if known is None or not set(rest.split()) <= options | {"--help"}:
                unknown.append(f"{page.name}: kai-lab {command}{rest}")
    assert unknown == []


def test_links_between_pages_lead_somewhere() -> None:
    links = [
        (page, target)
        for page in PAGES
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8"))
    ]
    assert [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()] == []
