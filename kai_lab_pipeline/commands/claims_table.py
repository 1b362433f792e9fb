"""The eight claims as a table in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kai_lab_pipeline.commands.common import told
from kai_lab_pipeline.lab.diagnosis.model import Diagnosis
from kai_lab_pipeline.lab.diagnosis.words import in_words
from kai_lab_pipeline.lab.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from rich.console import Console

_STYLE = {
    Verdict.HELD: "green",
    Verdict.BROKEN: "bold red",
    Verdict.NOT_REACHABLE: "cyan",
    Verdict.NOT_EVALUATED: "yellow",
}


def claims_json(judgement: Judgement, diagnosis: Diagnosis) -> dict[str, Any]:
    """What `--json` of run, check and judge prints: the claims, and the causes of what does not hold, best first."""
    return {**judgement.to_json(), "causes": [cause.to_json() for cause in diagnosis.causes]}


def print_claims(console: Console, judgement: Judgement, diagnosis: Diagnosis | None = None) -> None:
    """Print claims with their verdicts, what is known of why, then every check that did not hold with both sides."""
    from rich.table import Table

    if not judgement.claims:
        console.print("No claim is judged by what was made.")
        return
    marked = " (SIMULATED: nothing here was shown on a real cluster)" if judgement.backend == "rehearsal" else ""
    table = Table(title=f"The lab's claims on backend {told(judgement.backend)}{marked}", title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("claim")
    table.add_column("verdict")
    table.add_column("checks held", justify="right")
    for claim in judgement.claims:
        good = sum(check.verdict is Verdict.HELD for check in claim.checks)
        style = _STYLE[claim.verdict]
        table.add_row(
            str(claim.id), told(claim.statement), f"[{style}]{claim.verdict}[/]", f"{good}/{len(claim.checks)}"
        )
    console.print(table)
    print_causes(console, diagnosis)
    blocked: dict[str, list[str]] = {}
    for check in judgement.checks:
        if check.verdict is Verdict.HELD:
            continue
        style = _STYLE[check.verdict]
        finding = check.finding
        if finding.observed.startswith("blocked by "):
            blocked.setdefault(finding.observed, []).append(check.name)
            continue
        console.print(f"[{style}]{check.verdict}[/] {check.name}: {told(finding.message)}", soft_wrap=True)
        if check.verdict is not Verdict.NOT_REACHABLE:
            console.print(f"    expected {told(finding.expected)}", soft_wrap=True)
            console.print(f"    observed {told(finding.observed)}", soft_wrap=True)
        if check.excused is not None:
            console.print(f"    excused until {check.excused.until}: {told(check.excused.reason)}")
    for reason, names in blocked.items():
        style = _STYLE[Verdict.NOT_EVALUATED]
        console.print(f"[{style}]{Verdict.NOT_EVALUATED}[/] {told(reason)}: {', '.join(names)}", soft_wrap=True)
    counts = judgement.counts()
    said = ", ".join(f"{count} {verdict.replace('_', ' ')}" for verdict, count in counts.items() if count)
    console.print(f"Claims: {said}. Boundary: [bold]{judgement.boundary}[/].")


def print_causes(console: Console, diagnosis: Diagnosis | None) -> None:
    """Print what is known of why something is not held, and what it shows in, best first; nothing if nothing is."""
    for line in in_words(diagnosis.causes if diagnosis else (), evidence=True):
        said = f"[bold]{told(line)}[/]" if line.startswith("Cause: ") else f"  {told(line)}"
        console.print(said, soft_wrap=True)
