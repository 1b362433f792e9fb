"""Wrong input: one clear message, exit code 2 (or 3 where infrastructure failed), and nothing half-written."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kai_lab_pipeline.workbench.state import LabState
from kai_lab_pipeline_tests.lab_project import LabProject, Said, make_project

WRONG_USE, INFRASTRUCTURE = 2, 3


@pytest.fixture
def project(tmp_path: Path) -> LabProject:
    """A project in which nothing was made yet."""
    return make_project(tmp_path / "project")


def refused(said: Said, code: int, *says: str) -> None:
    """A refusal as a person reads it: the reason, the place, no stack trace, and nothing on standard output."""
    assert said.code == code, said.text
    for text in says:
        assert text in said.err, said.text
    assert said.out == "", said.text
    assert "Traceback" not in said.err
    assert len(said.err.splitlines()) <= 8, said.text


def refused_untouched(project: LabProject, code: int, *says: str, of: Callable[[], Said]) -> None:
    before = project.tree()
    refused(of(), code, *says)
    assert project.tree() == before


@pytest.mark.parametrize("command", ["run --select", "check"])
def test_an_unknown_asset_is_named_with_those_there_are(project: LabProject, command: str) -> None:
    refused_untouched(
        project,
        WRONG_USE,
        "'shared_gpu_pods'",
        "Choose from: cluster",
        "shared_gpu_pod",
        of=lambda: project.call(*command.split(), "shared_gpu_pods"),
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--backend", "minikube"], "'minikube' is not one of 'rehearsal', 'kind', 'context'"),
        (["run", "--bakend", "kind"], "No such option"),
        (["judge"], "Missing argument 'BUNDLE'"),
        (["jugde", "bundle"], "No such command 'jugde'"),
        (["dev", "--port", "70000"], "70000"),
    ],
)
def test_a_wrong_option_or_command_is_said_with_its_usage(project: LabProject, arguments: list[str], says: str) -> None:
    refused_untouched(project, WRONG_USE, "Usage: kai-lab", says, of=lambda: project.call(*arguments))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "bundle.json"),
        ("", "bundle.json"),
        ('{"format": 1, "backend": "kind", "versi', "bundle.json"),
        ("[]", "bundle.json"),
        ('{"format": 99, "backend": "kind"}', "format"),
    ],
)
def test_a_broken_bundle_is_said_to_be_none(project: LabProject, content: str | None, says: str) -> None:
    bundle = project.folder / "bundle"
    bundle.mkdir()
    if content is not None:
        (bundle / "bundle.json").write_text(content, encoding="utf-8")
    refused_untouched(project, WRONG_USE, str(bundle), says, of=lambda: project.call("judge", str(bundle), "--json"))


def test_a_bundle_that_is_not_there_is_said_so(project: LabProject) -> None:
    missing = project.folder / "no-such-bundle"
    refused_untouched(project, WRONG_USE, str(missing), of=lambda: project.call("judge", str(missing)))


def test_a_bundle_with_half_broken_files_is_judged_as_far_as_it_can_be(project: LabProject) -> None:
    bundle = project.folder / "bundle"
    (bundle / "queues").mkdir(parents=True)
    header = {"format": 1, "backend": "recorded", "versions": {}}
    (bundle / "bundle.json").write_text(json.dumps(header), encoding="utf-8")
    (bundle / "queues" / "queues.json").write_text('{"items": [{"metadata"', encoding="utf-8")
    said = project.call("judge", str(bundle), "--json")
    assert said.code == INFRASTRUCTURE, said.text
    assert said.json["counts"] == {"held": 0, "broken": 0, "not_reachable": 0, "not_evaluated": 8}
    assert "Traceback" not in said.text


@pytest.mark.parametrize("command", ["run", "check", "status", "report", "down", "judge {folder}"])
def test_a_mistyped_setting_is_named_with_what_is_allowed(project: LabProject, command: str) -> None:
    (project.folder / "bundle.json").write_text('{"format": 1, "backend": "kind", "versions": {}}', encoding="utf-8")
    project.edit("lab.toml", 'backend = "rehearsal"', 'bakend = "rehearsal"')
    arguments = command.format(folder=project.folder).split()
    refused_untouched(
        project,
        WRONG_USE,
        f"{project.folder / 'lab.toml'}: unknown key lab.bakend",
        "backend, context",
        of=lambda: project.call(*arguments),
    )


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("KAI_LAB_BACKEND", "minikube", "'rehearsal', 'kind' or 'context'"),
        ("KAI_LAB_BACKNED", "kind", "Known variables: "),
        ("KAI_LAB_MIRRORS", "docker.io", '{"docker.io": "http://127.0.0.1:5000"}'),
        ("KAI_LAB_NAME", "Not A Name", "lab.name"),
    ],
)
def test_a_mistyped_variable_is_named(project: LabProject, variable: str, value: str, says: str) -> None:
    refused_untouched(project, WRONG_USE, variable, says, of=lambda: project.call("run", **{variable: value}))


def test_a_fault_that_nobody_knows_is_named_with_those_there_are(project: LabProject) -> None:
    with open(project.folder / "lab.toml", "a", encoding="utf-8") as file:
        file.write("[rehearsal.faults]\nplugin_not_registring = true\n")
    refused_untouched(
        project, WRONG_USE, "plugin_not_registring", "plugin_not_registering", of=lambda: project.call("run")
    )


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("manifests/queues.yaml", "kind: Queue\n  metadata: {name: default\n", ["A manifest is not YAML", "line 2"]),
        ("manifests/shared-gpu-pod.yaml", "- just\n- a list\n", ["no Kubernetes object", "document 1"]),
        ("manifests/device-plugin.yaml", "# nothing\n", ["A manifest is empty"]),
        ("manifests/canary-pod.yaml", "kind: Pod\napiVersion: v1\n", ["no Kubernetes object"]),
    ],
)
def test_a_manifest_that_cannot_be_used_stops_the_run_before_it_begins(
    project: LabProject, file: str, content: str, says: list[str]
) -> None:
    path = project.folder / file
    path.write_text(content, encoding="utf-8")
    refused_untouched(project, WRONG_USE, str(path), *says, of=lambda: project.call("run"))


def test_a_manifest_that_is_missing_is_named(project: LabProject) -> None:
    project.edit("lab.toml", "manifests/device-plugin.yaml", "manifests/devise-plugin.yaml")
    missing = str(project.folder / "manifests" / "devise-plugin.yaml")
    refused_untouched(project, WRONG_USE, "A manifest cannot be read", missing, of=lambda: project.call("run"))


def test_a_busy_port_is_said_with_another_one(project: LabProject) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        refused_untouched(
            project,
            WRONG_USE,
            f"Port {port} of 127.0.0.1 is in use",
            f"kai-lab dev --port {port + 1}",
            of=lambda: project.run("dev", "--port", str(port)),
        )


@pytest.mark.parametrize("command", ["run", "nightly", "dev"])
def test_a_cron_that_cannot_be_is_a_sentence_and_no_trace(project: LabProject, command: str) -> None:
    project.edit("lab.toml", 'cron = "0 2 * * *"', 'cron = "at night"')
    refused(project.run(command), WRONG_USE, "lab.toml: nightly.cron is 'at night'")


@pytest.mark.parametrize("command", ["run", "report"])
def test_a_state_folder_that_cannot_be_written_is_refused(project: LabProject, command: str) -> None:
    # A file in the way: file modes do not stop a superuser, and tests may run as one.
    (project.folder / "in-the-way").write_text("a file, not a folder", encoding="utf-8")
    refused_untouched(
        project,
        WRONG_USE,
        "The lab's state folder cannot be written",
        str(project.folder / "in-the-way" / "state"),
        "KAI_LAB_STATE_DIR",
        of=lambda: project.call(command, KAI_LAB_STATE_DIR="in-the-way/state"),
    )


def test_a_report_folder_that_cannot_be_written_is_refused(project: LabProject) -> None:
    blocked = project.folder / "lab.toml" / "reports"
    refused_untouched(
        project,
        WRONG_USE,
        "The report folder cannot be written",
        str(blocked),
        of=lambda: project.call("run", "--report-dir", str(blocked)),
    )


def test_dagster_s_home_that_cannot_be_made_is_infrastructure(project: LabProject) -> None:
    (project.folder / ".dagster_home").write_text("a file, not a folder", encoding="utf-8")
    refused(project.run("run"), INFRASTRUCTURE, "Dagster's home cannot be prepared", ".dagster_home")
    assert (project.folder / ".dagster_home").read_text(encoding="utf-8") == "a file, not a folder"


def test_another_backend_on_a_lab_is_refused_with_what_to_do(project: LabProject) -> None:
    LabState.of(project.settings).open()
    for arguments in (["run", "--backend", "kind"], ["down"], ["status"], ["check"]):
        variables = {} if "--backend" in arguments else {"KAI_LAB_BACKEND": "kind"}
        before = project.tree()
        said = project.call(*arguments, **variables)
        refused(said, WRONG_USE, "was made with backend 'rehearsal'", "another lab", "KAI_LAB_NAME")
        assert project.tree() == before


def test_a_folder_without_lab_toml_is_said_to_be_no_project(project: LabProject, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for command in ("run", "status", "down"):
        said = project.call(command, KAI_LAB_PROJECT=str(empty))
        refused(said, WRONG_USE, f"KAI_LAB_PROJECT names {empty}", "no lab.toml is there")
    assert list(empty.iterdir()) == []


def test_a_damaged_record_of_a_lab_is_said_and_the_advice_works(project: LabProject) -> None:
    LabState.of(project.settings).open()
    record = project.lab_dir / "lab.json"
    record.write_text('{"format": 1, "na', encoding="utf-8")
    before = project.tree()
    refused(project.call("run"), INFRASTRUCTURE, "The lab's own record cannot be read", str(record), "down --all")
    assert project.tree() == before
    assert project.call("down", "--all").code == 0
    assert not project.settings.state_root.exists()


def test_without_a_cluster_checks_and_down_say_so(project: LabProject) -> None:
    refused(project.call("check"), INFRASTRUCTURE, "The lab has no cluster", "kai-lab run")
    said = project.call("down")
    assert said.code == 0, said.text
    assert "nothing is left" in said.out


HOLD = """
import pathlib, sys
from kai_lab_pipeline.workbench.state import WriteLock
WriteLock(pathlib.Path(sys.argv[1])).acquire("run-a", "materialising queues in run run-a")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def a_writer_at_work(project: LabProject) -> Iterator[int]:
    """Another process that holds the lab until it is told to end; its pid."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(project.lab_dir)],
        env=project.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder.pid
        holder.communicate()
    assert holder.returncode == 0


def test_a_second_writer_is_refused_with_who_is_at_work(project: LabProject) -> None:
    LabState.of(project.settings).open()
    with a_writer_at_work(project) as pid:
        for command in ("run", "check", "down"):
            before = project.tree()
            said = project.call(command)
            refused(said, WRONG_USE, "Another writer is at work on this lab", f"pid {pid}", "materialising queues")
            assert project.tree() == before
        assert project.call("status", "--json").json["writer"]["pid"] == pid
    assert project.call("status", "--json").json["writer"] is None
