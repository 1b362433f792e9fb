"""Evidence that somebody else wrote: markup, terminal sequences and half characters reach nobody's screen or file."""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree as ET

import pytest

from kai_lab_pipeline import cli
from kai_lab_pipeline.clients.bundle import read_bundle, write_observation
from kai_lab_pipeline.commands.explain import explain_bytes, show
from kai_lab_pipeline.lab.diagnosis import diagnose_evidence, diagnose_objects
from kai_lab_pipeline.lab.diagnosis.model import Fact
from kai_lab_pipeline.lab.diagnosis.objects import facts_of
from kai_lab_pipeline.lab.diagnosis.relations import relation_facts
from kai_lab_pipeline.lab.evidence import Observation
from kai_lab_pipeline.report import Cause, ReportContext, build_report, write_report
from kai_lab_pipeline_tests.damages import judged
from kai_lab_pipeline_tests.damages.draft import LAB, RECORDINGS
from kai_lab_pipeline_tests.lab_project import LabProject, make_project
from kai_lab_pipeline_tests.report_samples import NOW

HOSTILE = (
    "[/x]",
    "[bold red]x",
    "[link=https://example.org]y[/link]",
    "x\\",
    "x\ud800y",
    "\udfff",
    "x\x1b[2J\x1b]0;owned\x07y",
    "\x9b31mred",
    "x\nCause: forged\r\nDo: forged",
    "x\u2028Cause: forged",
    "\u202eabc",
)
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]")
"""What may not reach a terminal; lines end with a plain newline."""


@pytest.fixture
def project(tmp_path: Path) -> LabProject:
    return make_project(tmp_path / "project")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDINGS / LAB / "bundle", tmp_path / "bundle"))


def on_a_terminal(project: LabProject, *arguments: str) -> tuple[int, str]:
    """Exit code and standard output of a command whose output is encoded as strictly as a terminal's is."""
    screen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", newline="")
    with (
        mock.patch.dict("os.environ", project.environment(), clear=True),
        mock.patch.object(sys, "argv", ["kai-lab", *arguments]),
        mock.patch.object(sys, "stdout", screen),
        pytest.raises(SystemExit) as end,
    ):
        cli.main()
    screen.flush()
    return int(end.value.code or 0), screen.buffer.getvalue().decode("utf-8")


def changed(path: Path, change: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every text in decoded JSON, as its holder and its place in it."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        if isinstance(inner, str):
            yield value, key
        else:
            yield from leaves(inner)


def harmless(said: str) -> None:
    assert STEERING.search(said) is None
    assert not any(line.strip().startswith(("Cause: forged", "Do: forged")) for line in said.splitlines())


@pytest.mark.parametrize("word", HOSTILE)
def test_a_hostile_header_is_shown_as_it_is(project: LabProject, bundle: Path, word: str) -> None:
    def change(header: Any) -> None:
        header.update(backend=f"real {word}", node={"x": word}, versions={**header["versions"], "kai_scheduler": word})

    changed(bundle / "bundle.json", change)
    code, said = on_a_terminal(project, "judge", str(bundle))
    assert code in (0, 1)
    assert "The lab's claims on backend real" in said
    assert "node is {" in said
    harmless(said)
    if word == "[/x]":
        assert "backend real [/x]" in said
        assert "node is {'x': '[/x]'}" in said


@pytest.mark.parametrize("seed", range(6))
def test_the_command_judges_any_hostile_bundle(project: LabProject, bundle: Path, seed: int) -> None:
    dice = random.Random(seed)
    for path in sorted(bundle.glob("**/*.json")):
        if path.name == "bundle.json" or path.stat().st_size > 200_000:
            continue

        def change(content: Any) -> None:
            places = list(leaves(content))
            for holder, key in dice.sample(places, min(len(places), 1 + len(places) // 20)):
                holder[key] = dice.choice(HOSTILE)

        changed(path, change)
    code, said = on_a_terminal(project, "judge", str(bundle))
    assert code in (0, 1)
    assert "Claims: " in said
    harmless(said)
    code, said = on_a_terminal(project, "judge", str(bundle), "--json")
    assert code in (0, 1)
    assert json.loads(said)["claims"]
    code, said = on_a_terminal(project, "explain", str(bundle))
    assert code == 0
    harmless(said)


def spoilt(bundle: Path, word: str) -> None:
    """The whole-GPU pod in a phase and of a reason that nobody has heard of."""

    def change(content: Any) -> None:
        for pod in content["items"] if isinstance(content, dict) else content:
            if "whole" in pod["metadata"]["name"]:
                pod["status"].update(phase=f"Failed{word}", reason=word, message=word)
                pod["status"].pop("conditions", None)

    changed(bundle / "whole_gpu_pod" / "pods.json", change)


@pytest.mark.parametrize("word", HOSTILE)
def test_what_a_pod_says_reaches_terminal_and_report_as_plain_text(
    project: LabProject, bundle: Path, tmp_path: Path, word: str
) -> None:
    spoilt(bundle, word)
    code, said = on_a_terminal(project, "judge", str(bundle))
    assert code == 1
    assert "observed Failed" in said
    harmless(said)
    evidence = read_bundle(bundle)
    judgement = judged(evidence)
    found = diagnose_evidence(evidence)
    causes = tuple(Cause(one.cause, one.remedy, one.evidence, one.transient) for one in found.causes)
    report = build_report(judgement, evidence, ReportContext(NOW, "lab", causes=causes))
    files = write_report(report, tmp_path / "report")
    for path in (files.markdown, files.html, files.json, files.junit):
        harmless(path.read_text(encoding="utf-8"))
    json.loads(files.json.read_text(encoding="utf-8"))
    ET.fromstring(files.junit.read_text(encoding="utf-8"))


def test_half_a_character_from_a_cluster_can_be_kept(tmp_path: Path) -> None:
    pod = {"metadata": {"name": "p", "annotations": {"note": "a\ud800b"}}, "status": {}}
    write_observation(tmp_path, "whole_gpu_pod", Observation({"pods": (pod,)}))
    (kept,) = json.loads((tmp_path / "whole_gpu_pod" / "pods.json").read_text(encoding="utf-8"))["items"]
    assert kept["metadata"]["annotations"]["note"] == "a?b"


@pytest.mark.parametrize("word", HOSTILE)
def test_facts_hold_nothing_that_steers_a_terminal(word: str) -> None:
    meta = {"name": f"n{word}", "namespace": f"s{word}", "labels": {"kai.scheduler/queue": word}}
    state = {"waiting": {"reason": f"r{word}", "message": word}}
    pod = {
        "kind": "Pod",
        "metadata": {**meta, "annotations": {"gpu.memory": word}},
        "status": {
            "phase": "Failed",
            "reason": word,
            "containerStatuses": [{"name": word, "image": word, "state": state}],
            "conditions": [{"type": f"t{word}", "status": "False", "reason": word, "message": word}],
        },
    }
    about = {"name": word, "kind": f"Pod{word}", "namespace": word}
    objects: list[dict[str, Any]] = [
        pod,
        {"kind": f"Thing{word}", "metadata": {**meta, "deletionTimestamp": word, "finalizers": [word]}},
        {"kind": "Event", "type": "Warning", "reason": word, "message": word, "involvedObject": about},
        {"kind": "Status", "reason": word, "message": word, "details": {"name": word, "kind": word}},
        {"kind": "Queue", "metadata": {"name": "other"}, "spec": {"parentQueue": word}},
        {"kind": "Queue", "metadata": {"name": "more"}},
        {
            "kind": "Node",
            "metadata": {"name": word, "labels": {"nvidia.com/gpu.memory": word}},
            "status": {"allocatable": {"nvidia.com/gpu": word}, "capacity": {"nvidia.com/gpu": "1"}},
        },
        {"name": word, "status": word, "chart": word, "namespace": word, "description": word, "revision": word},
    ]
    facts = [*relation_facts(objects), *(fact for obj in objects for fact in facts_of(obj))]
    assert {fact.kind for fact in facts} >= {"pod", "container", "condition", "deleting", "event", "status", "helm"}
    assert {fact.kind for fact in facts} >= {"relation", "label"}
    for fact in facts:
        assert STEERING.search(fact.message) is None
        for text in (fact.line, *fact.attributes.values(), *fact.names.values()):
            assert STEERING.search(text) is None
            assert "\n" not in text
    for cause in diagnose_objects(objects).all:
        for text in (cause.cause, *cause.remedy, *cause.evidence):
            assert "\n" not in text


def test_a_name_found_in_a_message_of_several_lines_stays_on_one() -> None:
    said = 'pods "a" is forbidden: User "x\nDo: forged" cannot list resource "pods"'
    (cause,) = diagnose_objects([{"kind": "Status", "reason": "Forbidden", "code": 403, "message": said}]).causes
    assert cause.cause.startswith("x Do: forged has not the right to list pods")
    assert not any("\n" in step for step in cause.remedy)


def test_explain_prints_nothing_that_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b[31mRED\nCause: forged"
    pod = {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "n\x1b]0;t\x07"},
        "status": {"phase": "Failed", "reason": "Evicted\x1b[2J"},
    }
    show(explain_bytes(json.dumps(pod).encode()), "stdin")
    said = capsys.readouterr().out
    assert "aRED Cause: forged" in said
    harmless(said)


def test_what_explain_looked_at_is_shown_as_plain_text(project: LabProject, tmp_path: Path) -> None:
    for number, word in enumerate(HOSTILE):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps({"kind": f"Thing{word}", "metadata": {"name": word}}), encoding="utf-8")
        code, said = on_a_terminal(project, "explain", str(file))
        assert code == 0
        assert "Looked at: 1 Thing" in said
        harmless(said)


def test_a_fact_keeps_the_lines_of_a_message_and_the_letters_of_any_language() -> None:
    fact = Fact("text", "eins\r\nzwei – 三\x1b[0m", "eins\nzwei", {"a": "ß\t"}, {"pod": "p\x00"})
    assert (fact.message, fact.line) == ("eins\nzwei – 三", "eins zwei")
    assert (fact.attributes["a"], fact.names["pod"]) == ("ß ", "p ")
