"""The matrix as Markdown, HTML and JSON: complete, escaped, and whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kai_lab_pipeline.lab.morning import Nightly, Summary, morning_summary
from kai_lab_pipeline.lab.spec import CLAIMS
from kai_lab_pipeline.lab.verdict import Boundary, Verdict
from kai_lab_pipeline.lab.verdict_record import ClaimVerdict
from kai_lab_pipeline.lab.version_matrix import Matrix, build_matrix
from kai_lab_pipeline.lab.version_sets import Lane, version_set
from kai_lab_pipeline.report import matrix as matrix_report
from kai_lab_pipeline.report.matrix import (
    render_matrix_html,
    render_matrix_json,
    render_matrix_markdown,
    write_matrix,
)
from kai_lab_pipeline_tests.test_matrix import FIRST_NIGHT, KAI_18, MOCK_4, PINNED, lost, record

EVIL = "<script>alert(1)</script> | `x` **b** [l](javascript:x) \x1b[31m\x00 ]]>"


def nights() -> tuple[Matrix, Summary]:
    history = [
        record({}),
        record(KAI_18, [6, 7], night=1),
        record(KAI_18, [2], night=1, lane=Lane.UPGRADE),
        lost(MOCK_4, night=1),
        record(KAI_18 | MOCK_4, [7, 8], night=1, boundary=Boundary.CROSSED),
    ]
    key = version_set(PINNED, KAI_18).key
    diff = "-global:\n-  gpuSharing: false\n+global:\n+  gpuSharingMode: NonMemoryEnforced"
    matrix = build_matrix(history, PINNED, {key: diff})
    last = Nightly(
        FIRST_NIGHT + timedelta(days=1), tuple(row.version_set.key for row in matrix.rows if row.version_set.moved)
    )
    now = FIRST_NIGHT + timedelta(days=1, hours=6)
    return matrix, morning_summary(matrix, now=now, last=last, next_at=now + timedelta(hours=18))


def evil() -> tuple[Matrix, Summary]:
    claims = {claim.id: ClaimVerdict(Verdict.BROKEN, checks=(EVIL,), message=EVIL) for claim in CLAIMS}
    history = [
        record({}),
        record({"kai_scheduler": EVIL}, claims=claims, evidence=EVIL, run_id=EVIL, unexpected_passes=(EVIL,)),
        record(MOCK_4, claims={}, infrastructure=EVIL, backend=EVIL),
    ]
    matrix = build_matrix(history, PINNED, {row.key: EVIL for row in history})
    last = Nightly(FIRST_NIGHT, tuple(row.version_set.key for row in matrix.rows), (EVIL,))
    return matrix, morning_summary(matrix, now=FIRST_NIGHT, last=last, next_at=None)


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_markdown_has_summary_findings_and_every_row() -> None:
    matrix, summary = nights()
    text = render_matrix_markdown(matrix, summary, "../..")
    assert "SIMULATED" in text.splitlines()[2]
    assert "3 new, 3 broken, 1 not evaluated" in text
    assert "first bad v0.18.3" in text
    assert "gpuSharingMode" in text
    assert f"](../../evidence/{version_set(PINNED, KAI_18).key}/1)" in text
    table = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(table) == len(matrix.rows)
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert "broken since 11-28" in text
    assert "no verdict since 11-28" in text
    assert "boundary moved" in text


def test_html_is_one_well_formed_page_that_loads_nothing() -> None:
    matrix, summary = nights()
    text = render_matrix_html(matrix, summary)
    page = Page(text)
    assert page.open == []
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img", "link", "iframe", "object"})
    assert all("src" not in attributes and "onclick" not in attributes for _, attributes in page.tags)
    style = text.split("<style>", 1)[1].split("</style>", 1)[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a)
    assert policy is not None
    assert f"style-src &#39;sha256-{digest}&#39;" in text or f"'sha256-{digest}'" in policy
    assert "prefers-color-scheme: dark" in style
    assert text.count('<th scope="row">') == len(matrix.rows)
    assert "SIMULATED" in text


def test_untrusted_words_stay_words() -> None:
    matrix, summary = evil()
    html = render_matrix_html(matrix, summary)
    page = Page(html)
    assert page.open == []
    assert "script" not in {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        href = attributes.get("href")
        assert href is None or not href.lower().startswith("javascript")
    assert "\x1b" not in html
    assert "\x00" not in html
    text = render_matrix_markdown(matrix, summary)
    outside = re.sub(r"(?ms)^(`{3,})diff$.*?^\1$", "", text)
    assert "<script>" not in outside
    assert "\x1b" not in text
    assert not re.search(r"(?<!\\)\]\(javascript", outside)
    assert json.loads(render_matrix_json(matrix, summary))["rows"]


def test_json_is_complete() -> None:
    matrix, summary = nights()
    document = json.loads(render_matrix_json(matrix, summary))
    assert document["pinned"] == PINNED
    assert document["summary"]["broken"]
    rows = {(row["key"], row["lane"]): row for row in document["rows"]}
    assert len(rows) == len(matrix.rows)
    kai = rows[version_set(PINNED, KAI_18).key, "fresh"]
    claim = kai["claims"][6]
    assert (claim["claim"], claim["kind"], claim["blamed"]) == (7, "regression", ["kai_scheduler"])
    assert claim["last_good"]["version"] == "v0.17.0"
    assert {found["id"] for found in document["regressions"]} == {
        "rehearsal/fresh/kai_scheduler@0.18.3/claim-6",
        "rehearsal/fresh/kai_scheduler@0.18.3/claim-7",
        "rehearsal/upgrade/kai_scheduler@0.18.3/claim-2",
    }


def test_an_empty_matrix_says_so() -> None:
    matrix = build_matrix([], PINNED)
    summary = morning_summary(matrix, now=FIRST_NIGHT, last=None, next_at=None)
    assert "No version set has a verdict yet" in render_matrix_markdown(matrix, summary)
    assert "No version set has a verdict yet" in render_matrix_html(matrix, summary)
    assert "SIMULATED" not in render_matrix_html(matrix, summary)


def test_an_alarm_is_on_the_page() -> None:
    matrix, _ = nights()
    summary = morning_summary(matrix, now=FIRST_NIGHT + timedelta(days=3), last=Nightly(FIRST_NIGHT), next_at=None)
    assert "ALARM: the last nightly is 72 h old" in render_matrix_html(matrix, summary)
    assert "ALARM: the last nightly is 72 h old" in render_matrix_markdown(matrix, summary)


def test_a_page_that_nobody_writes_any_more_tells_when_a_nightly_is_missing() -> None:
    matrix = build_matrix([], PINNED)
    page = morning_summary(matrix, now=FIRST_NIGHT, last=Nightly(FIRST_NIGHT), next_at=None)
    told = "If it is later than 2026-11-28 04:00 UTC now, a nightly is missing."
    assert told in render_matrix_html(matrix, page)
    assert told in render_matrix_markdown(matrix, page).replace("\\", "")
    document = json.loads(render_matrix_json(matrix, page))
    assert document["summary"]["missing_after"] == "2026-11-28T04:00:00+00:00"
    turned_on = morning_summary(
        matrix, now=FIRST_NIGHT, last=None, next_at=FIRST_NIGHT + timedelta(days=1), on_since=FIRST_NIGHT
    )
    assert told in render_matrix_html(matrix, turned_on)
    never = morning_summary(matrix, now=FIRST_NIGHT, last=None, next_at=None)
    assert "is missing" not in render_matrix_html(matrix, never) + render_matrix_markdown(matrix, never)


def test_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, summary = nights()
    files = write_matrix(matrix, summary, tmp_path / "reports")
    assert files.markdown.read_text() == render_matrix_markdown(matrix, summary)
    before = files.html.read_bytes()

    def broken(*arguments: object) -> str:
        raise RuntimeError("rendering failed")

    monkeypatch.setattr(matrix_report, "render_matrix_json", broken)
    with pytest.raises(RuntimeError):
        write_matrix(build_matrix([], PINNED), summary, tmp_path / "reports")
    assert files.html.read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "reports").iterdir()) == ["matrix.html", "matrix.json", "matrix.md"]
