"""What Dagster's UI renders as Markdown: words from a cluster are text in it, never links, pictures or headings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.step import diagnosis_metadata
from kai_lab_pipeline.checks import _shown
from kai_lab_pipeline.lab.diagnosis import Diagnosis, diagnose_objects
from kai_lab_pipeline.lab.verdict import CheckResult, Finding, Verdict

HOSTILE = (
    "![seen](https://example.org/seen.png)",
    "[click](https://example.org)",
    "`code` **bold** # head",
    "<img src=x>",
    "``` | a | b",
)


@pytest.mark.parametrize("word", HOSTILE)
def test_a_diagnosis_keeps_its_shape_whatever_a_pod_said(word: str) -> None:
    pod = {
        "kind": "Pod",
        "metadata": {"name": word, "namespace": word},
        "status": {
            "containerStatuses": [
                {"name": word, "image": word, "state": {"waiting": {"reason": "CrashLoopBackOff", "message": word}}}
            ]
        },
    }
    found = diagnose_objects([pod])
    assert [cause.id for cause in found.causes] == ["pod.crash-loop"]
    html = MarkdownIt("commonmark", {"html": True}).render(str(diagnosis_metadata(found)["diagnosis"].value))
    page = ET.fromstring(f"<root>{html}</root>")
    (cause,) = found.causes
    assert {element.tag for element in page.iter()} <= {"root", "p", "strong", "ul", "li", "code", "blockquote"}
    (bold,) = page.iter("strong")
    assert "".join(bold.itertext()).split() == cause.cause.split()
    assert ["".join(item.itertext()).split() for item in page.iter("li")] == [step.split() for step in cause.remedy]
    assert ["".join(quote.itertext()).split() for quote in page.iter("blockquote")] == [
        line.split() for line in cause.evidence
    ]


@pytest.mark.parametrize("word", HOSTILE)
def test_a_red_check_keeps_its_lines_whatever_was_observed(word: str) -> None:
    lab = SimpleNamespace(
        bundle_dir=Path("/evidence"), backend=SimpleNamespace(name="kind"), state=SimpleNamespace(name="lab")
    )
    finding = Finding(Verdict.BROKEN, word, word, word)
    result = CheckResult("cluster", "node_ready", finding)
    shown = _shown(Group("lab", cast(Any, None)), cast(Any, lab), result, "the cluster", [word], Diagnosis())
    page = ET.fromstring(MarkdownIt("commonmark", {"html": True}).render(shown.description or ""))
    assert {element.tag for element in page.iter()} == {"p", "br"}
    assert [text.split() for text in "".join(page.itertext()).splitlines() if text.strip()] == [
        f"broken: expected {word}; observed {word}. {word} Changed on the cluster: {word}".split(),
        ["Evidence:", "/evidence/cluster"],
    ]
