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


def jobs() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    return dict(document["jobs"])


def runs() -> list[str]:
    return [step["run"] for job in jobs().values() for step in job["steps"] if "run" in step]


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


def test_a_red_lab_is_shown_kept_and_searched_for_the_version_that_broke_it() -> None:
    lab = jobs()["kind"]
    by_use = {str(step.get("uses", step.get("run"))).partition("@")[0]: step for step in lab["steps"]}
    order = list(by_use)
    red = next(name for name in order if " run --json" in name)
    for name in order[order.index(red) + 1 :]:
        assert re.search(r"always\(\)|!cancelled\(\)", by_use[name]["if"]), (
            f"{name} is left out where a claim is broken"
        )
    assert lab["permissions"]["checks"] == "write", "without it mikepenz/action-junit-report shows nothing"
    kept = by_use["actions/upload-artifact"]["with"]["path"].split()
    assert {".lab/_nightly/matrix/", ".lab/*/reports/"} <= set(kept), "the matrix links to the candidates' reports"
