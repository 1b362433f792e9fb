"""`kai-lab` itself: every command explains itself, comes at once, and nothing heavy is loaded before it is needed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from kai_lab_pipeline import __version__
from kai_lab_pipeline.cli import cli, main
from kai_lab_pipeline_tests.lab_project import LabProject, make_project

HEAVY = ("dagster", "kubernetes", "uvicorn", "jinja2", "rich.table", "httpx", "sqlalchemy")
CONTRACT = {"run", "judge", "check", "status", "report", "down", "dev", "doctor", "explain", "versions", "nightly"}


@pytest.fixture
def project(tmp_path: Path) -> LabProject:
    return make_project(tmp_path / "project")


def test_the_commands_of_the_contract_are_there() -> None:
    assert set(cli.commands) >= CONTRACT


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_explains_itself_and_its_options(project: LabProject, name: str) -> None:
    before = project.tree()
    said = project.call(name, "--help")
    assert said.code == 0, said.text
    assert f"Usage: kai-lab {name}" in said.out
    command = cli.commands[name]
    assert command.help
    assert command.help.splitlines()[0] in " ".join(said.out.split())
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help or parameter.name == "port", f"{name} {parameter.opts[0]} says nothing"
    assert project.tree() == before


def test_help_names_the_exit_codes_and_the_version_is_told(project: LabProject) -> None:
    told = " ".join(project.call("--help").out.split())
    assert "0 every claim held, 1 a claim is broken, 2 wrong use or settings, 3 infrastructure failed" in told
    assert project.call("--version").out.strip().endswith(__version__)
    assert project.call("-h").code == 0


def test_help_loads_nothing_heavy(project: LabProject) -> None:
    script = (
        "import sys\nfrom kai_lab_pipeline import cli\nsys.argv = ['kai-lab', '--help']\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "import json\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=project.environment(),
        cwd=project.folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = set(json.loads(done.stderr))
    assert "click" in loaded
    assert not loaded & set(HEAVY)


def test_judging_loads_no_dagster_and_no_kubernetes(project: LabProject) -> None:
    bundle = project.folder / "bundle"
    bundle.mkdir()
    header = {"format": 1, "backend": "recorded", "versions": {}}
    (bundle / "bundle.json").write_text(json.dumps(header), encoding="utf-8")
    script = (
        "import sys\nfrom kai_lab_pipeline import cli\nsys.argv = ['kai-lab', 'judge', sys.argv[1], '--json']\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "print(*[name for name in ('dagster', 'kubernetes', 'uvicorn') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(bundle)],
        env=project.environment(),
        cwd=project.folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["backend"] == "recorded"
    assert done.stderr.split() == []


def test_a_broken_pipe_ends_quietly(project: LabProject) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "kai_lab_pipeline.cli", "--help"],
        env=project.environment(),
        cwd=project.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        process.wait(60)
    assert "Traceback" not in said


def test_a_background_job_of_a_script_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes with SIGINT ignored, and Dagster hands SIGTERM on to whatever handles SIGINT."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(sys, "argv", ["kai-lab", "--version"])
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        main()
        assert {signal.getsignal(number) for number in before} == {signal.default_int_handler}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
