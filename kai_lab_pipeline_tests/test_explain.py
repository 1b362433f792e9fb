"""`kai-lab explain`: whatever a person has at hand goes in, and an answer comes out, never a traceback."""

from __future__ import annotations

import io
import json
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from kai_lab_pipeline.cli import cli
from kai_lab_pipeline.commands.explain import MAX_BYTES, explain_bytes, explain_command
from kai_lab_pipeline.lab.diagnosis.catalogue import FAULTS
from kai_lab_pipeline.lab.errors import WrongUse
from kai_lab_pipeline.report.known_issues import main as write_known_issues
from kai_lab_pipeline.report.known_issues import render_known_issues
from kai_lab_pipeline_tests.damages.draft import CROSSED
from kai_lab_pipeline_tests.explain_page import INPUTS, render_page
from kai_lab_pipeline_tests.explain_shape import SHAPE
from kai_lab_pipeline_tests.fault_samples import DATA, recorded

PROJECT = Path(__file__).parent.parent
NAME_IN_USE = b"Error: INSTALLATION FAILED: cannot re-use a name that is still in use"


class Stdin(io.TextIOWrapper):
    """Bytes as standard input."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")


class Asking(Protocol):
    """Explains standard input; returns what was printed on stdout and stderr."""

    def __call__(self, data: bytes, *, as_json: bool = False) -> tuple[str, str]: ...


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Asking:
    def _ask(data: bytes, *, as_json: bool = False) -> tuple[str, str]:
        monkeypatch.setattr(sys, "stdin", Stdin(data))
        assert explain_command("-", as_json=as_json) == 0
        printed = capsys.readouterr()
        return printed.out, printed.err

    return _ask


def test_an_answer_has_cause_evidence_remedy_and_where_to_read_on(ask: Asking) -> None:
    out, err = ask(NAME_IN_USE)
    assert err == ""
    assert out.startswith("Cause: A release of that name is there already.")
    assert f"  seen: {NAME_IN_USE.decode()}" in out
    assert "  do:   helm list -A -a" in out
    assert "  stays until something is changed" in out
    assert "docs/known-issues.md#helm-name-in-use" in out


def test_json_has_the_public_shape(ask: Asking) -> None:
    for data in (NAME_IN_USE, b"all is well", b""):
        out, _ = ask(data, as_json=True)
        answer = json.loads(out)
        jsonschema.validate(answer, SHAPE)
        assert answer["known"] == (data == NAME_IN_USE)


def test_an_unknown_text_says_so_and_what_was_looked_at(ask: Asking) -> None:
    out, _ = ask("всё хорошо\n一切正常\n".encode())
    assert "Nothing in stdin is known to the lab." in out
    assert "Looked at: 3 lines of text" in out
    assert "Next: " in out


def test_a_file_a_missing_file_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "error.txt"
    file.write_bytes(NAME_IN_USE)
    assert explain_command(str(file), as_json=False) == 0
    assert "known as helm.name-in-use" in capsys.readouterr().out
    with pytest.raises(WrongUse, match="cannot be read"):
        explain_command(str(tmp_path / "absent"), as_json=False)
    with pytest.raises(WrongUse, match="no evidence bundle"):
        explain_command(str(tmp_path), as_json=False)
    with pytest.raises(WrongUse, match="cannot be read"):
        explain_command("a\0b", as_json=False)


def test_the_command_line_takes_a_file_and_prints_json(tmp_path: Path) -> None:
    file = tmp_path / "error.txt"
    file.write_bytes(NAME_IN_USE)
    said = CliRunner().invoke(cli, ["explain", str(file), "--json"])
    assert said.exit_code == 0
    assert json.loads(said.stdout)["causes"][0]["id"] == "helm.name-in-use"
    absent = CliRunner().invoke(cli, ["explain", str(tmp_path / "absent")])
    assert absent.exit_code == 2
    assert "Traceback" not in absent.output


def test_a_bundle_of_a_healthy_lab_names_only_its_boundary(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain_command(str(DATA / "recordings" / "real-kind" / "bundle"), as_json=True) == 0
    answer = json.loads(capsys.readouterr().out)
    jsonschema.validate(answer, SHAPE)
    assert [cause["id"] for cause in answer["causes"]] == ["boundary.nvml-library-missing"]


def test_a_bundle_of_a_healthy_crossed_lab_is_said_to_be_well(capsys: pytest.CaptureFixture[str]) -> None:
    bundle = DATA / "recordings" / CROSSED / "bundle"
    assert explain_command(str(bundle), as_json=False) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Nothing in {bundle} is unwell.\n")
    assert "Looked at: evidence of cluster, " in out
    assert "known to the lab" not in out
    assert "evidence bundle" not in out


def test_objects_are_said_to_be_well_only_where_they_say_nothing_else(ask: Asking) -> None:
    ready = {"type": "Ready", "status": "True"}
    node: dict[str, Any] = {"kind": "Node", "metadata": {"name": "n"}, "status": {"conditions": [ready]}}
    for printed in (json.dumps(node), yaml.safe_dump({"apiVersion": "v1", **node})):
        assert ask(printed.encode())[0].startswith("Nothing in stdin is unwell.\nLooked at: 1 Node\n")
    # Something that is not well, and that the lab does not know, is no reason to say that all is well.
    node["status"]["conditions"].append({"type": "Ripe", "status": "False", "message": "not yet"})
    assert ask(json.dumps(node).encode())[0].startswith("Nothing in stdin is known to the lab.\n")
    assert ask(b"[]")[0].startswith("Nothing in stdin is known to the lab.\n")


@pytest.mark.parametrize("from_stdin", [True, False], ids=["stdin", "file"])
def test_of_a_huge_input_the_end_is_read_and_that_is_said(
    from_stdin: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    early, late = b"Error: release: not found\n", b"\n" + NAME_IN_USE
    filler = b"".join(b"%08d INFO reconciled\n" % number for number in range(1_000_000))
    data = early + filler + late
    assert len(data) > 4 * MAX_BYTES
    name = "-"
    if from_stdin:
        monkeypatch.setattr(sys, "stdin", Stdin(data))
    else:
        name = str(tmp_path / "huge.log")
        Path(name).write_bytes(data)
    started = time.process_time()
    explain_command(name, as_json=True)
    spent = time.process_time() - started
    printed = capsys.readouterr()
    assert [cause["id"] for cause in json.loads(printed.out)["causes"]] == ["helm.name-in-use"]
    assert "Only the last 5 MB of" in printed.err
    assert spent < 6  # it takes about one second; the rest is for slow machines


def test_yaml_and_json_of_the_same_objects_give_the_same_answer() -> None:
    compared = 0
    for recording, fault, text in recorded():
        if recording.startswith("api/pod-") and text.startswith("{"):
            as_yaml = yaml.safe_dump(json.loads(text)).encode()
            found = explain_bytes(as_yaml)
            assert found.best is not None
            assert found.best.id == fault, recording
            assert found.to_json() == explain_bytes(text.encode()).to_json()
            compared += 1
    assert compared > 20


def test_yaml_that_is_cut_off_or_hostile_is_read_as_text() -> None:
    cut = b'apiVersion: v1\nkind: Status\nmessage: "release: not found\nstatus: [Failure'
    assert [cause.id for cause in explain_bytes(cut).causes] == ["helm.release-missing"]
    for bomb in (b"items: &a [" + b"*a," * 10_000 + b"]", b"a: &a [1]\nitems: [*a, *a]", b"items:\n- &b {x: 1}\n- *b"):
        found = explain_bytes(b"kind: List\n" + bomb + b"\nmessage: 'release: not found'\n")
        assert [cause.id for cause in found.causes] == ["helm.release-missing"]
        assert found.looked_at[0].endswith("lines of text")
    assert not explain_bytes(b"kind: Pod\n" + b"a: {" * 20_000).known


@pytest.mark.parametrize(
    "data",
    [
        NAME_IN_USE.decode().encode("utf-16"),
        NAME_IN_USE + b"\xff\xfe\x00" + bytes(range(256)),
        b"\x7fELF" + bytes(random.Random(7).randbytes(100_000)) + b"\n" + NAME_IN_USE,
        b"\x1b[31m" + NAME_IN_USE + b"\x1b[0m\r\n",
        json.dumps({"stderr": "é\n" + NAME_IN_USE.decode()}).encode()[:-2] ,
    ],
)  # fmt: skip
def test_binary_and_odd_encodings_hide_nothing(data: bytes) -> None:
    found = explain_bytes(data)
    assert found.best is not None
    assert found.best.id == "helm.name-in-use"


@pytest.mark.parametrize("seed", range(40))
def test_random_and_half_broken_input_never_raises(seed: int, ask: Asking) -> None:
    chance = random.Random(seed)
    text = chance.choice(recorded())[2].encode()
    pieces = [text[: chance.randrange(len(text) + 1)], chance.randbytes(chance.randrange(200))]
    pieces += [bytes(chance.choices(b'{}[]":,\\\n\x1b\xff\x00 kind: apiVersion: items', k=300))]
    chance.shuffle(pieces)
    data = b"".join(pieces)
    jsonschema.validate(json.loads(ask(data, as_json=True)[0]), SHAPE)
    assert ask(data)[0].strip()


def test_answers_can_be_printed_on_a_terminal_without_unicode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = io.BytesIO()
    out = io.TextIOWrapper(target, encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", out)
    file = tmp_path / "x"
    file.write_text("ошибка 错误: release: not found \udcff", encoding="utf-8", errors="surrogateescape")
    assert explain_command(str(file), as_json=False) == 0
    out.flush()
    written = target.getvalue()
    assert b"seen: ?" in written
    assert b"helm.release-missing" in written


def test_the_page_of_known_issues_is_the_generated_one(tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "known-issues.md").read_text(encoding="utf-8")
    assert page == render_known_issues(), "run: python -m kai_lab_pipeline.report.known_issues docs/known-issues.md"
    assert write_known_issues([str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == page
    assert write_known_issues([]) == 2


def test_the_page_of_examples_shows_what_is_really_printed() -> None:
    page = (PROJECT / "docs" / "explain.md").read_text(encoding="utf-8")
    assert page == render_page(), "run: python -m kai_lab_pipeline_tests.explain_page docs/explain.md"
    assert page.count("Nothing in stdin is known") == 1
    assert len(set(re.findall(r"known as ([a-z.-]+) of", page))) == len(INPUTS) - 1


def test_every_fault_has_its_anchor_and_links_on_the_page() -> None:
    page = render_known_issues()
    for fault in FAULTS:
        assert page.count(f'<a id="{fault.anchor}"></a>') == 1
        assert f"`{fault.id}`" in page
        assert all(f"<{link}>" in page for link in fault.links)


def _list_of(item: Callable[[int], dict[str, Any]]) -> bytes:
    """A List of about 5 MB as `kubectl get -o json` prints it: indented, and with who manages which field."""
    manager = {
        "manager": "kubelet",
        "operation": "Update",
        "time": "2026-11-30T00:00:00Z",
        "fieldsV1": {"f:status": {}},
    }

    def printed(number: int) -> str:
        obj = item(number)
        obj["metadata"] |= {"uid": f"uid-{number}", "managedFields": [manager]}
        return json.dumps(obj, indent=4)

    number = 5_000_000 // (len(printed(10_000)) + 2)
    return f'{{"kind": "List", "items": [{", ".join(map(printed, range(number)))}]}}'.encode()


def _pending(number: int) -> dict[str, Any]:
    waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "web:{number}"'}
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    return {
        "kind": "Pod",
        "metadata": {"name": f"web-{number}", "namespace": "team-x"},
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "Ready", "status": "False"}, unscheduled],
            "containerStatuses": [{"name": "web", "state": {"waiting": waiting}}],
        },
    }


def _backing_off(number: int) -> dict[str, Any]:
    return {
        "kind": "Event",
        "type": "Warning",
        "reason": "BackOff",
        "metadata": {"name": f"web-{number}.0", "namespace": "team-x"},
        "message": f"Back-off restarting failed container web in pod web-{number}_team-x",
        "involvedObject": {"kind": "Pod", "name": f"web-{number}", "namespace": "team-x"},
    }


def _unavailable(number: int) -> dict[str, Any]:
    return {
        "kind": "Deployment",
        "metadata": {"name": f"web-{number}", "namespace": "team-x"},
        "spec": {"replicas": 1},
        "status": {"conditions": [{"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable"}]},
    }


@pytest.mark.parametrize(
    ("item", "best"),
    [(_pending, "pod.image-pull"), (_backing_off, "pod.crash-loop"), (_unavailable, "workload.not-ready")],
    ids=["pods", "events", "deployments"],
)
def test_thousands_of_objects_that_are_unwell_take_no_longer_than_their_reading(
    item: Callable[[int], dict[str, Any]], best: str
) -> None:
    data = _list_of(item)
    assert 4_500_000 < len(data) < MAX_BYTES
    started = time.process_time()
    found = explain_bytes(data)
    spent = time.process_time() - started
    assert found.best is not None
    assert found.best.id == best
    assert spent < 2
