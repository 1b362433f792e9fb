from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt

from kai_lab_pipeline.lab.verdict import Boundary, Excuse, Verdict
from kai_lab_pipeline.report import (
    Cause,
    Report,
    build_report,
    render_html,
    render_json,
    render_junit,
    render_markdown,
)
from kai_lab_pipeline_tests.report_samples import LIMIT, context, evidence, judgement, report

FRACTION = "shared_gpu_pod.fraction_accounted"
MUTATES = "isolator_release.webhook_mutates"
EVIL = (
    "<script>alert(1)</script> | `x` ``` ]]> <img src=x onerror=y> \x1b[31mred\x1b[0m \x00 \ud800 ' \" & "
    "**b** [l](javascript:z)"
)
RENDERERS = [render_markdown, render_html, render_json, render_junit]
Renderer = Callable[[Report], str]


@pytest.fixture(scope="module")
def evil() -> Report:
    """Every text that comes from outside is hostile, and one log is a megabyte long."""
    verdicts = {FRACTION: Verdict.BROKEN, MUTATES: Verdict.NOT_EVALUATED, "queues.queues_exist": Verdict.BROKEN}
    made = judgement(verdicts, text=EVIL, backend=f"kind{EVIL}", excuses={FRACTION: Excuse(EVIL, EVIL)})
    made = replace(made, versions={f"kai{EVIL}": f"v1{EVIL}"}, notes=(EVIL,), boundary=Boundary.DIFFERENT)
    seen = evidence(log=f"unable to initialize NVML {EVIL} {'y' * 1_000_000}")
    cause = Cause(EVIL, (EVIL,), (EVIL,))
    given = context(lab=f"lab{EVIL}", causes=(cause,), notes=("z" * 1_000_000,), evidence_folder=f"javascript:{EVIL}")
    return build_report(made, seen, given)


@pytest.mark.parametrize("render", RENDERERS)
@pytest.mark.parametrize("backend", ["rehearsal", "kind", "recorded"])
def test_the_first_line_names_the_backend(render: Renderer, backend: str) -> None:
    first = render(report(backend=backend)).splitlines()[0]
    assert backend in first


@pytest.mark.parametrize("render", [render_markdown, render_html, render_junit])
def test_simulated_is_said_in_the_first_line_of_what_people_read(render: Renderer) -> None:
    assert "SIMULATED" in render(report(backend="rehearsal")).splitlines()[0]
    assert "SIMULATED" not in render(report(backend="kind"))


@pytest.mark.parametrize("render", RENDERERS)
def test_all_formats_are_bounded_and_free_of_control_characters(render: Renderer, evil: Report) -> None:
    text = render(evil)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]", text)
    assert len(text) < 400_000
    text.encode("utf-8")


@pytest.mark.parametrize("render", RENDERERS)
def test_rendering_is_deterministic(render: Renderer) -> None:
    assert render(report()) == render(report())


@pytest.mark.parametrize("render", [render_markdown, render_html, render_junit])
def test_every_check_is_there(render: Renderer) -> None:
    made = report()
    text = render(made)
    for row in made.checks:
        assert row.check in text


# Markdown


def _markdown_html(made: Report) -> ET.Element:
    html = MarkdownIt("commonmark", {"html": True, "xhtmlOut": True}).enable("table").render(render_markdown(made))
    return ET.fromstring(f"<root>{html}</root>")


def test_markdown_tables_keep_their_shape_under_evil_text(evil: Report) -> None:
    tables = _markdown_html(evil).findall(".//table")
    assert len(tables) == 2 + len(evil.claims) + 2
    for table in tables:
        width = len(table.findall("./thead/tr/th"))
        rows = table.findall("./tbody/tr")
        assert rows
        assert all(len(row.findall("td")) == width for row in rows)


def test_markdown_lets_no_markup_through(evil: Report) -> None:
    page = _markdown_html(evil)
    assert {element.tag for element in page.iter()} == {
        *("root", "h1", "h2", "h3", "h4", "p", "strong", "code", "pre", "ul", "ol", "li", "a"),
        *("table", "thead", "tbody", "tr", "th", "td"),
    }
    assert all(not link.get("href", "").startswith("javascript:") for link in page.iter("a"))


def test_markdown_tells_excused_and_not_evaluated_apart() -> None:
    text = render_markdown(
        report(
            {FRACTION: Verdict.BROKEN, MUTATES: Verdict.NOT_EVALUATED}, excuses={FRACTION: Excuse("why", "2027-01-31")}
        )
    )
    assert f"| `{FRACTION}` | **broken, excused** until 2027-01-31: why |" in text
    assert f"| `{MUTATES}` | **not evaluated** |" in text


def test_markdown_shows_the_degrees_with_their_checks() -> None:
    text = render_markdown(report())
    assert re.search(r"\| \*\*limited\*\* \| \*\*not reachable\*\* \|.*`shared_gpu_pod\.memory_limit_value` \|", text)
    assert re.search(r"\| \*\*scheduled\*\* \| \*\*yes\*\* \|", text)


def test_scaled_time_is_said() -> None:
    made = build_report(judgement(), replace(evidence(), time_scale=0.01), context())
    sentence = "0.01 s here stand for 1 s of a real cluster"
    assert sentence in render_markdown(made)
    assert sentence in render_html(made)
    assert sentence not in render_html(report())


# HTML


class _Page(HTMLParser):
    """The tags of a page with their attributes, and its text by tag."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[tuple[str, str]] = []
        self.unbalanced: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append((self.open[-1] if self.open else "", data))

    def of(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.tags if name == tag)


def test_html_is_well_nested_and_carries_no_foreign_markup(evil: Report) -> None:
    page = _Page(render_html(evil))
    assert page.unbalanced == []
    assert page.open == []
    assert not {"script", "img", "iframe", "link", "object", "b"} & {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on") or name == "style"]


def test_html_loads_nothing(evil: Report) -> None:
    html = render_html(evil)
    page = _Page(html)
    assert not [attributes for _, attributes in page.tags if "src" in attributes]
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    for link in page.of("a"):
        assert re.match(r"#|http://127\.0\.0\.1:3000/|javascript%3A", link["href"] or "")


def test_the_content_security_policy_allows_the_pages_own_style_and_nothing_else() -> None:
    html = render_html(report())
    policy = next(meta["content"] for meta in _Page(html).of("meta") if meta.get("http-equiv"))
    style = html.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_html_is_built_for_assistive_technology() -> None:
    page = _Page(render_html(report({FRACTION: Verdict.BROKEN})))
    assert all(header.get("scope") in ("col", "row") for header in page.of("th"))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
    ids = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    for link in page.of("a"):
        href = link["href"] or ""
        assert not href.startswith("#") or href[1:] in ids
    assert next(page.of("html"))["lang"] == "en"


def test_html_opens_what_needs_a_look_and_folds_the_rest() -> None:
    page = _Page(render_html(report({FRACTION: Verdict.BROKEN, MUTATES: Verdict.NOT_EVALUATED})))
    claims = [details for details in page.of("details") if (details["class"] or "").startswith("claim")]
    assert [index + 1 for index, details in enumerate(claims) if "open" in details] == [4, 6]


def test_a_command_line_that_makes_no_page_does_not_load_the_template_engine() -> None:
    code = "import sys, kai_lab_pipeline.report; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_html_shows_evidence_commands_and_links() -> None:
    made = build_report(judgement(), evidence(log="unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND"), context())
    html = render_html(made)
    assert "unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND" in html
    assert "kubectl --kubeconfig .lab/kai-hami-test/kubeconfig get nodes" in html
    assert 'href="http://127.0.0.1:3000/locations/kai_lab_pipeline/asset-groups/lab/lineage"' in html
    assert 'href="../evidence"' in html


def _luminance(colour: str) -> float:
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_has_contrast_in_light_and_dark() -> None:
    """WCAG 2 AA: 4.5 to 1 for text."""
    style = render_html(report()).partition("<style>")[2].partition("</style>")[0]
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block)) for block in style.split("prefers-color", 1))
    pairs = [(ink, paper) for ink in ("ink", "soft", "link") for paper in ("ground", "card")]
    pairs += [(tone, f"{tone}-tint") for tone in ("good", "bad", "excused", "beyond", "unknown")]
    pairs += [(tone, "card") for tone in ("good", "bad", "excused", "beyond", "unknown")] + [("ink", "code")]
    for palette in (light, dark):
        for ink, paper in pairs:
            darker, lighter = sorted((_luminance(palette[ink]), _luminance(palette[paper])))
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, f"{ink} {palette[ink]} on {paper} {palette[paper]}"


# JSON


def _json(made: Report) -> dict[str, Any]:
    document = json.loads(render_json(made))
    assert isinstance(document, dict)
    return document


def test_json_is_the_judges_shape_and_a_report_key(evil: Report) -> None:
    for made in (report(), evil):
        document = _json(made)
        extra = document.pop("report")
        assert document == json.loads(json.dumps(made.judgement.to_json()))
        assert extra["format"] == 1


def test_json_report_part() -> None:
    made = build_report(judgement(backend="rehearsal"), evidence("rehearsal"), context(durations={"queues": 0.5}))
    part = _json(made)["report"]
    assert part["simulated"] is True
    assert part["exit_code"] == 0
    assert [(degree["name"], degree["answer"]) for degree in part["degrees"]] == [
        ("scheduled", "yes"),
        ("wired", "yes"),
        ("limited", "not reachable"),
        ("running", "not reachable"),
    ]
    assert set(part["checks"]) == {row.name for row in made.checks}
    assert part["steps"][0] == {
        **{"asset": "queues", "captured": False, "duration_s": 0.5, "run_id": None, "run_url": None},
        **{"observed_at": None, "age": "nothing captured"},
    }
    assert part["links"]["dagster_group"].endswith("/asset-groups/lab/lineage")


# JUnit


def test_junit_counts_and_kinds() -> None:
    verdicts = {FRACTION: Verdict.BROKEN, MUTATES: Verdict.NOT_EVALUATED, "queues.queues_exist": Verdict.BROKEN}
    excuse = Excuse("known", "2027-01-31")
    made = report(verdicts, excuses={"queues.queues_exist": excuse})
    root = ET.fromstring(render_junit(made).encode())
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == (str(len(made.checks)), "1", "3")
    assert len(root.findall("testsuite")) == 8
    cases = {f"{case.get('classname')}.{case.get('name')}": case for case in root.iter("testcase")}
    failed = {name for name, case in cases.items() if case.find("failure") is not None}
    skipped = {
        name: skip.get("message", "").split(":")[0]
        for name, case in cases.items()
        if (skip := case.find("skipped")) is not None
    }
    assert failed == {FRACTION}
    assert skipped == {
        LIMIT: "not reachable",
        MUTATES: "not evaluated",
        "queues.queues_exist": "broken, excused until 2027-01-31 (known)",
    }
    for suite in root.findall("testsuite"):
        assert suite.get("tests") == str(len(suite.findall("testcase")))
        properties = {entry.get("name"): entry.get("value") for entry in suite.iter("property")}
        assert properties["backend"] == "kind"
        assert properties["version.kai_scheduler"] == "v0.17.0"


def test_junit_is_well_formed_under_evil_text(evil: Report) -> None:
    root = ET.fromstring(render_junit(evil).encode())
    failure = next(root.iter("failure"))
    assert "<script>alert(1)</script>" in failure.get("message", "")
    assert "]]>" in (failure.text or "")
