"""The version matrix for people and programs: Markdown, one self-contained HTML page, JSON.

Sentences in a matrix carry words of components and registries, so everything is cleaned once here and escaped by each
format.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kai_lab_pipeline.lab.attribution import FAILURES, Cell, Kind, VersionRef, subjects
from kai_lab_pipeline.lab.morning import Summary
from kai_lab_pipeline.lab.spec import CLAIMS
from kai_lab_pipeline.lab.verdict_record import VALUES, Subject
from kai_lab_pipeline.lab.version_matrix import Matrix, Row
from kai_lab_pipeline.report.text import clean, markdown, markdown_block, markdown_code, one_line
from kai_lab_pipeline.report.write import _write_beside

if TYPE_CHECKING:
    from jinja2 import Template

SIMULATED = "SIMULATED: the backend rehearsal ran models of the components, never the components themselves"
MAX_SENTENCE = 500
MAX_DIFF = 20_000
"""Characters of a chart diff that are shown; the whole one is on the candidate's asset."""
TONES = {
    Kind.HELD: "good",
    Kind.NOT_REACHABLE: "beyond",
    Kind.REGRESSION: "bad",
    Kind.FIRST_FAILURE: "bad",
    Kind.FLAKE: "unknown",
    Kind.EXCUSED: "excused",
    Kind.BOUNDARY_MOVED: "beyond",
    Kind.NOT_EVALUATED: "unknown",
}
_SHORT = {
    Kind.REGRESSION: "broken",
    Kind.FIRST_FAILURE: "broken, first time",
    Kind.BOUNDARY_MOVED: "moved",
    Kind.NOT_EVALUATED: "no verdict",
}
_STATEMENTS = {claim.id: claim.statement for claim in CLAIMS}
VALUES_STATEMENT = "the values that the lab sets have an effect in the charts (checked before any cluster, no claim)"


@dataclass(frozen=True)
class MatrixFiles:
    markdown: Path
    html: Path
    json: Path


def write_matrix(matrix: Matrix, summary: Summary, folder: Path, evidence_base: str = "") -> MatrixFiles:
    """Write matrix.md, matrix.html and matrix.json; each is the old or the new one, never a half. Raises OSError.

    `evidence_base` leads from `folder` to the folder that evidence paths are relative to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "matrix.md": render_matrix_markdown(matrix, summary, evidence_base),
        "matrix.html": render_matrix_html(matrix, summary, evidence_base),
        "matrix.json": render_matrix_json(matrix, summary),
    }
    for name, text in texts.items():
        os.replace(_write_beside(folder / name, text), folder / name)
    return MatrixFiles(*(folder / name for name in texts))


def render_matrix_json(matrix: Matrix, summary: Summary) -> str:
    """``{"pinned", "summary", "rows": [{"key", "versions", "lane", "backend", "moved", "state", "claims": [...]}],
    "values": {...}}], "regressions": [{"id", ...}], "dead_values": [{"id", ...}], "news"}``; times in RFC 3339.

    `regressions` are of the claims, `dead_values` of the charts' values.
    """
    found = [
        (
            one.cell.claim == VALUES,
            {"id": one.id, "key": one.row.version_set.key, **_cell_json(one.cell)},
        )
        for one in matrix.regressions()
    ]
    document = {
        "pinned": dict(matrix.pinned),
        "summary": summary.to_json(),
        "rows": [_row_json(row) for row in matrix.rows],
        "regressions": [told for of_values, told in found if not of_values],
        "dead_values": [told for of_values, told in found if of_values],
        "news": list(matrix.news()),
    }
    return json.dumps(document, indent=2) + "\n"


def _row_json(row: Row) -> dict[str, Any]:
    return {
        **row.version_set.to_json(),
        "backend": row.backend,
        "state": row.state.value,
        "attempts": len(row.records),
        "judged_at": row.latest.at.isoformat(),
        "run_id": row.latest.run_id,
        "evidence": row.latest.evidence,
        "boundary": row.latest.boundary.value,
        "infrastructure": row.latest.infrastructure,
        "chart_diff": row.chart_diff,
        "claims": [_cell_json(cell) for cell in row.cells],
        "values": None if row.values is None else _cell_json(row.values),
    }


def _cell_json(cell: Cell) -> dict[str, Any]:
    return {
        "claim": cell.claim,
        "verdict": cell.verdict.value,
        "kind": cell.kind.value,
        "since": cell.since.isoformat(),
        "sentence": cell.sentence,
        "blamed": list(cell.blamed),
        "last_good": _ref_json(cell.last_good),
        "first_bad": _ref_json(cell.first_bad),
        "checks": list(cell.checks),
        "message": cell.message,
        "attempts": cell.attempts,
        "needs_rerun": cell.needs_rerun,
        "run_id": cell.run_id,
        "evidence": cell.evidence,
    }


def _ref_json(ref: VersionRef | None) -> dict[str, str] | None:
    if ref is None:
        return None
    return {
        "component": ref.component,
        "version": ref.version,
        "key": ref.key,
        "at": ref.at.isoformat(),
        "evidence": ref.evidence,
    }


@dataclass(frozen=True)
class _Finding:
    """One cause worth reading, cleaned for showing: a step between versions, with all it broke."""

    title: str
    tone: str
    kind: str
    sentence: str
    broke: tuple[str, ...]
    facts: tuple[tuple[str, str, str], ...]
    """Name, text, link (may be empty)."""
    diff: str


def _findings(matrix: Matrix, base: str) -> list[_Finding]:
    """Failures first, then what a rerun has to tell; claims and combined sets with the same cause stand together."""
    worth = [(row, cell) for row in matrix.rows for cell in row.every_cell if _worth(cell)]
    causes: dict[tuple[object, ...], list[tuple[Row, Cell]]] = {}
    for row, cell in sorted(worth, key=lambda pair: pair[1].kind not in FAILURES):
        own = "" if cell.first_bad is not None else row.version_set.key
        cause = (row.backend, row.version_set.lane, cell.kind, cell.sentence, own)
        causes.setdefault(cause, []).append((row, cell))
    return [_finding(matrix, pairs, base) for pairs in causes.values()]


def _worth(cell: Cell) -> bool:
    return cell.kind in FAILURES or cell.needs_rerun


def _finding(matrix: Matrix, pairs: list[tuple[Row, Cell]], base: str) -> _Finding:
    row, cell = pairs[0]
    facts = [
        (name, f"{ref} ({ref.key}, {ref.at:%Y-%m-%d %H:%M})", _link(ref.evidence, base))
        for name, ref in (("last good", cell.last_good), ("first bad", cell.first_bad))
        if ref is not None
    ]
    for other in dict.fromkeys(one.version_set.key for one, _ in pairs):
        cells = [found for one, found in pairs if one.version_set.key == other]
        latest = next(one.latest for one, _ in pairs if one.version_set.key == other)
        text = f"{other}: {subjects(cells)}, run {latest.run_id}"
        facts.append(("seen in", text, _link(latest.evidence, base)))
    facts.append(("since", f"{min(found.since for _, found in pairs):%Y-%m-%d %H:%M}", ""))
    broke = [
        f"{_statement(found.claim)}: {found.message or 'broken'}"
        + (f" ({', '.join(found.checks)})" if found.checks else "")
        for one, found in pairs
        if one is row
    ]
    return _Finding(
        title=one_line(f"{_moved(row)} ({row.version_set.lane}, {row.backend})", MAX_SENTENCE),
        tone=TONES[cell.kind],
        kind=cell.kind.value,
        sentence=one_line(cell.sentence, MAX_SENTENCE),
        broke=tuple(one_line(line, MAX_SENTENCE) for line in broke),
        facts=tuple((name, one_line(text, MAX_SENTENCE), link) for name, text, link in facts),
        diff=clean(_diff_at(matrix, row, cell), MAX_DIFF),
    )


def _statement(subject: Subject) -> str:
    return f"{subject}. {_STATEMENTS[subject]}" if isinstance(subject, int) else VALUES_STATEMENT


def _diff_at(matrix: Matrix, row: Row, cell: Cell) -> str:
    """The chart difference that belongs to the first bad version; of the row itself where none is known."""
    if cell.first_bad is not None:
        for other in matrix.rows:
            if other.version_set.key == cell.first_bad.key and other.chart_diff:
                return other.chart_diff
    return row.chart_diff


def _link(path: str, base: str) -> str:
    return quote(f"{base.rstrip('/')}/{path}" if base else path, safe="/.") if path else ""


def _moved(row: Row) -> str:
    versions = row.version_set.versions
    moved = ", ".join(f"{component} {versions[component]}" for component in row.version_set.moved)
    return one_line(moved or "pinned versions", MAX_SENTENCE)


def _label(kind: Kind) -> str:
    return _SHORT.get(kind, kind.value)


def _notice(matrix: Matrix) -> str:
    return SIMULATED if any(row.backend == "rehearsal" for row in matrix.rows) else ""


def render_matrix_markdown(matrix: Matrix, summary: Summary, evidence_base: str = "") -> str:
    """The morning page as Markdown: summary, what broke, the table."""
    lines = ["# Version matrix", ""]
    if _notice(matrix):
        lines += [f"**{_notice(matrix)}.**", ""]
    lines += [markdown(one_line(line, MAX_SENTENCE)) + "  " for line in summary.text().splitlines()]
    if summary.validity:
        lines += ["", markdown(summary.validity)]
    findings = _findings(matrix, evidence_base)
    if findings:
        lines += ["", "## What broke", ""]
        for finding in findings:
            lines += [f"### {markdown(finding.title)}", "", f"**{finding.kind}**: {markdown(finding.sentence)}", ""]
            lines += [*(f"- {markdown(line)}" for line in finding.broke), ""]
            lines += [f"- {name}: {_markdown_link(text, link)}" for name, text, link in finding.facts]
            lines.append("")
            if finding.diff:
                lines += [
                    "Charts, pinned against this one:",
                    "",
                    markdown_block(tuple(finding.diff.splitlines()), "diff"),
                    "",
                ]
    news = matrix.news()
    if news:
        lines += ["", "## News", ""] + [f"- {markdown(one_line(line, MAX_SENTENCE))}" for line in news]
    numbers = [str(claim.id) for claim in CLAIMS]
    lines += ["", "## Version sets by claims", ""]
    if not matrix.rows:
        return "\n".join([*lines, "No version set has a verdict yet.", ""])
    lines.append("| version set | moved | lane | backend | " + " | ".join(numbers) + " | values | judged |")
    lines.append("|" + " --- |" * (len(numbers) + 6))
    for row in matrix.rows:
        cells = " | ".join(f"{_label(cell.kind)} since {cell.since:%m-%d}" for cell in row.cells)
        key, backend = (one_line(text, MAX_SENTENCE) for text in (row.version_set.key, row.backend))
        head = f"| {markdown_code(key)} | {markdown(_moved(row))} | {row.version_set.lane} | {markdown(backend)}"
        values = "" if row.values is None else _label(row.values.kind)
        lines.append(f"{head} | {cells} | {values} | {row.latest.at:%Y-%m-%d %H:%M} |")
    lines += ["", *(f"{claim.id}. {markdown(claim.statement)}" for claim in CLAIMS)]
    lines += ["", f"values: {markdown(VALUES_STATEMENT)}", ""]
    return "\n".join(lines)


def _markdown_link(text: str, link: str) -> str:
    return f"[{markdown(text)}]({link})" if link else markdown(text)


def render_matrix_html(matrix: Matrix, summary: Summary, evidence_base: str = "") -> str:
    """The morning page as one HTML file: nothing is loaded, nothing is executed, everything is escaped."""
    from markupsafe import Markup

    page, style = _templates()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    headline, *details = summary.text().splitlines()
    if summary.alarm:
        headline, details = details[0], [headline, *details[1:]]
    failed = any(row.state in FAILURES for row in matrix.rows)
    waiting = any(row.state is Kind.NOT_EVALUATED for row in matrix.rows)
    return page.render(
        style=Markup(style),  # ours: the only text on the page that is not escaped
        style_hash=f"sha256-{digest}",
        notice=_notice(matrix),
        tone="bad" if failed or summary.alarm else "unknown" if waiting else "good",
        headline=one_line(headline, MAX_SENTENCE),
        validity=summary.validity,
        details=[one_line(line, MAX_SENTENCE) for line in details],
        findings=_findings(matrix, evidence_base),
        news=[one_line(line, MAX_SENTENCE) for line in matrix.news()],
        claims=CLAIMS,
        values_statement=VALUES_STATEMENT,
        rows=matrix.rows,
        moved=_moved,
        label=_label,
        tones=TONES,
        link=lambda path: _link(path, evidence_base),
        sentence=lambda text: one_line(text, MAX_SENTENCE),
    )


@lru_cache(maxsize=1)
def _templates() -> tuple[Template, str]:
    # Imported here because the command line builds its help from modules that import this one.
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("kai_lab_pipeline.report", "templates"),
        autoescape=select_autoescape(enabled_extensions=("html.j2",), default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = "".join(environment.get_template(name).render() for name in ("report.css.j2", "matrix.css.j2"))
    return environment.get_template("matrix.html.j2"), style
