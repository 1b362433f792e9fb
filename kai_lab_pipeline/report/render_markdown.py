"""The report as Markdown: for pull requests, chats, and the run's metadata in the Dagster UI."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import quote

from kai_lab_pipeline.report.model import CheckRow, ClaimRow, Report
from kai_lab_pipeline.report.text import markdown as esc
from kai_lab_pipeline.report.text import markdown_block, markdown_code


def render_markdown(report: Report) -> str:
    """Markdown text whose first line names the backend; untrusted text in it is escaped."""
    sections = (_summary, _degrees, _claims, _proof, _versions, _steps, _links)
    return "\n".join(line for section in sections for line in section(report)).rstrip() + "\n"


def counts_text(report: Report) -> str:
    """The counts of claims in words, such as ``8 held`` or ``6 held, 1 broken, 1 not evaluated``."""
    words = [f"{count} {verdict.replace('_', ' ')}" for verdict, count in report.counts.items() if count]
    return ", ".join(words) or "none judged"


def duration_text(seconds: float | None) -> str:
    """Seconds for people: ``-`` when not known, hundredths below ten seconds, tenths above."""
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"


def time_scale_text(report: Report) -> str | None:
    """How to read the durations where time is scaled; None on a real cluster."""
    if report.time_scale == 1.0:
        return None
    return f"Time is scaled: {report.time_scale:g} s here stand for 1 s of a real cluster."


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _summary(report: Report) -> Iterator[str]:
    yield f"# {esc(report.origin.label)}: lab {esc(report.lab)}"
    yield from ("", f"**{esc(report.headline)}.** Boundary: **{esc(report.boundary.value.replace('_', ' '))}**.", "")
    if report.origin.simulated:
        yield from (f"> **SIMULATED.** {esc(report.origin.sentence)}", "")
    else:
        yield from (esc(report.origin.sentence), "")
    yield from (esc(report.boundary_sentence), "")
    excused = f" Excused checks: {report.excused_checks}." if report.excused_checks else ""
    made = report.generated_at.isoformat(timespec="seconds")
    yield from (f"Claims: {counts_text(report)}.{excused} Exit code {report.exit_code}. Made at {made}.", "")
    for note in report.notes:
        yield f"- Note: {esc(note)}"
    if report.notes:
        yield ""
    if report.causes:
        yield from ("## What went wrong, and what to do", "")
    for number, cause in enumerate(report.causes, 1):
        passing = " (may pass by itself)" if cause.transient else ""
        yield from (f"{number}. **{esc(cause.cause)}**{passing}", "")
        if cause.remedy:
            yield from (markdown_block(cause.remedy), "")
        if cause.evidence:
            yield from ("Seen in:", "", markdown_block(cause.evidence), "")


def _degrees(report: Report) -> Iterator[str]:
    yield from ("## How far the shared pod got", "")
    rows = (
        (
            f"**{degree.name}**",
            f"**{degree.answer}**",
            esc(degree.meaning),
            esc(degree.message),
            ", ".join(map(markdown_code, degree.sources)),
        )
        for degree in report.degrees
    )
    yield from _table(("degree", "answer", "meaning", "seen", "from"), rows)


def _claims(report: Report) -> Iterator[str]:
    yield from ("## Claims", "")
    rows = ((str(claim.id), esc(claim.statement), f"**{claim.label}**", claim.tally) for claim in report.claims)
    yield from _table(("id", "claim", "verdict", "checks"), rows)
    for claim in report.claims:
        yield from _claim(claim)


def _claim(claim: ClaimRow) -> Iterator[str]:
    yield from (f"### {claim.id}. {esc(claim.statement)}: {claim.label}", "")
    rows = (
        (markdown_code(check.name), _verdict(check), esc(check.expected), esc(check.observed), esc(check.message))
        for check in claim.checks
    )
    yield from _table(("check", "verdict", "expected", "observed", "what it means"), rows)


def _verdict(check: CheckRow) -> str:
    if check.excused is None:
        return f"**{check.label}**"
    return f"**{check.label}** until {esc(check.excused.until)}: {esc(check.excused.reason)}"


def _proof(report: Report) -> Iterator[str]:
    yield from ("## Evidence and commands, check by check", "")
    for check in report.checks:
        yield from (f"#### {esc(check.name)}: {check.label}", "")
        if check.excerpt:
            yield from ("Evidence:", "", markdown_block(check.excerpt), "")
        else:
            yield from ("The evidence holds no line on this.", "")
        if check.commands:
            yield from ("By hand:", "", markdown_block(check.commands, "sh"), "")


def _versions(report: Report) -> Iterator[str]:
    yield from ("## Versions", "")
    yield from _table(("component", "version"), ((esc(name), esc(version)) for name, version in report.versions))


def _steps(report: Report) -> Iterator[str]:
    yield from ("## Steps: time, run and age of evidence", "")
    scale = time_scale_text(report)
    if scale:
        yield from (scale, "")
    rows = (
        (
            markdown_code(step.asset),
            duration_text(step.duration_s),
            f"[{esc(step.run_id)}]({step.run_url})" if step.run_id and step.run_url else "unknown",
            step.observed_at.isoformat(timespec="seconds") if step.observed_at else "unknown",
            step.age,
        )
        for step in report.steps
    )
    yield from _table(("asset", "step took", "run", "observed at", "age"), rows)


def _links(report: Report) -> Iterator[str]:
    yield from ("## Further", "", f"- [The lab in the Dagster UI]({report.group_url}), while it runs")
    if report.evidence_folder:
        yield f"- [The evidence bundle]({quote(report.evidence_folder, safe='/')})"
