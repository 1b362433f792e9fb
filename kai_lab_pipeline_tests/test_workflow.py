"""The workflow that people copy into their own CI: valid for GitHub, and true about this project's commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from kai_lab_pipeline.cli import cli

PROJECT = Path(__file__).resolve().parent.parent
WORKFLOW = PROJECT / "docs" / "ci" / "github-workflow.yml"


def runs() -> list[str]:
    document: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    return [step["run"] for job in document["jobs"].values() for step in job["steps"] if "run" in step]


def test_the_workflow_is_valid_for_github() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_broken_workflow_is_noticed(tmp_path: Path) -> None:
    broken = tmp_path / "workflow.yml"
    broken.write_text(WORKFLOW.read_text(encoding="utf-8").replace("runs-on", "run-on"), encoding="utf-8")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(broken)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


def test_its_commands_exist() -> None:
    targets = re.findall(r"^([\w./$()]+):", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    known = {target.replace("$(VENV)", ".venv") for target in targets}
    assert runs(), "the workflow runs nothing"
    for line in runs():
        make = re.fullmatch(r"make (\S+)", line)
        if make:
            assert make[1] in known, line
            continue
        found = re.match(r"\.venv/bin/kai-lab (\w+)((?: --?[\w-]+(?: [\w./-]+)?)*)", line)
        assert found, f"nobody knows what {line!r} does"
        options = {option for parameter in cli.commands[found[1]].params for option in parameter.opts}
        assert set(re.findall(r"--[\w-]+", found[2])) <= options, line
