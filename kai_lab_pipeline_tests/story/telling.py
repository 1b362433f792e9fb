"""Plays the changes and writes down what happened: the table of docs/rematerialise.md."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kai_lab_pipeline.lab.spec import ASSETS
from kai_lab_pipeline.lab.verdict import Judgement
from kai_lab_pipeline.workbench.drift import drift_of
from kai_lab_pipeline_tests.living_lab import LivingLab
from kai_lab_pipeline_tests.story.changes import CHANGES, Change

MOST_PASSES = len(ASSETS)
"""A change travels at most from the first asset to the last, one a pass."""
PATIENCE_S = 12.0
"""Least wait of an asset, seconds: what a change breaks is waited for that long, in three of the rows."""
SECONDS = 4
"""Column of the table that is another one on every machine."""
HEADER = ("change", "unsynced then", "found on the cluster", "made again", "s", "claims after it")


@dataclass(frozen=True)
class Told:
    """What one change led to."""

    change: str
    unsynced: tuple[str, ...]
    drift: tuple[str, ...]
    ran: tuple[str, ...]
    changed: tuple[str, ...]
    """Those of `ran` whose step changed something; the others looked, and left what was there alone."""
    stopped: str
    """Why the rest was not made: a red gate, in the words of the step that it stopped."""
    look_only: bool
    seconds: float
    claims: str

    def cells(self) -> tuple[str, ...]:
        made = ", ".join(f"**{name}**" if name in self.changed else name for name in self.ran)
        return (
            self.change,
            ", ".join(self.unsynced) or "nothing",
            "; ".join(self.drift) or "-",
            (made or ("nothing: checks alone" if self.look_only else "nothing"))
            + (f"; then stopped: {self.stopped}" if self.stopped else ""),
            f"{self.seconds:.0f}",
            self.claims,
        )


def play(lab: LivingLab, changes: Sequence[Change] = CHANGES) -> Iterator[Told]:
    """Do one change after the other; after each, make again what is unsynced or drifted until nothing is."""
    for change in changes:
        change.do(lab)
        unsynced = tuple(lab.not_in_sync())
        drifted = {asset: drift_of(lab.lab(), asset) for asset in ASSETS if asset not in unsynced}
        started = time.monotonic()
        ran: set[str] = set()
        changed: set[str] = set()
        stopped = ""
        if change.look_only:
            lab.drift()
        todo = set(unsynced) | {asset for asset, found in drifted.items() if found}
        for _ in range(MOST_PASSES):
            if not todo:
                break
            run = lab.remake(*sorted(name for name in todo if name in ASSETS))
            ran.update(run.assets)
            changed.update(run.changed)
            if not run.assets:
                stopped = "; ".join(_reason(text) for text in run.said.values())
                break
            todo = set(lab.not_in_sync())
        assert stopped or not todo, f"{change.title}: still not in sync: {todo}"
        yield Told(
            change=change.title,
            unsynced=unsynced,
            drift=tuple(_drift(drift.what, drift.who) for found in drifted.values() for drift in found),
            ran=tuple(name for name in ASSETS if name in ran),
            changed=tuple(name for name in ASSETS if name in changed),
            stopped=stopped,
            look_only=change.look_only,
            seconds=time.monotonic() - started,
            claims=claims_text(lab.judge()),
        )


def _reason(text: str) -> str:
    """The sentence of a failed step that names what is not in order; the first line where none does."""
    lines = text.splitlines()
    return next((line for line in lines if "is built on" in line), lines[0])


def _drift(what: str, who: str) -> str:
    return f"{what} ({who.partition(' at ')[0] or 'by whom is not recorded'})"


def claims_text(judgement: Judgement) -> str:
    """How the eight claims stand, and the GPUs of the queue that the checks compute by KAI's rule."""
    counts = judgement.counts()
    said = ", ".join(f"{count} {verdict.replace('_', ' ')}" for verdict, count in counts.items() if count)
    broken = [check.name for check in judgement.checks if check.verdict.value == "broken"]
    rule = next(check.finding.expected for check in judgement.checks if check.check == "fraction_accounted")
    accounted = re.search(r"of default-queue: ([0-9.]+)", rule)
    named = f" ({', '.join(broken)})" if broken else ""
    computed = f"; {accounted[1]} GPUs by KAI's rule" if accounted else ""
    return f"{said}{named}; boundary {judgement.boundary}{computed}"


def table(told: Sequence[Told]) -> str:
    """The rows as a Markdown table."""
    rows = [HEADER, tuple("---" for _ in HEADER), *(row.cells() for row in told)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)


PAGE = """# Fix one thing, rematerialise one thing

Printed by `python -m kai_lab_pipeline_tests.story`, which plays it on the rehearsal; a test plays it again and compares
every column but the seconds (those of one machine with two cores, and other work on it).

An asset is *unsynced* when what it is built from has changed (its manifest, its values or version in lab.toml, what is
in a chart of this machine), or when what it stands on is another one than it was built with. The UI shows it as a
badge, some seconds after an edit (its sensor `reload_on_edit` has it read the project again, once no run is at work),
`kai-lab status` with the reason.
A change travels: the next asset becomes unsynced when the one before it came out differently, and stays in sync when it
came out the same; a red gate stops what lies behind it. The column *made again* holds what that came to in all, until
nothing was unsynced any more; what is **bold** changed something on the cluster, the rest looked, found all in order
and left it alone.

A change by hand on the cluster makes nothing unsynced, for what the project describes is the same. The checks find it
(`kai-lab check`, the job `drift`, the schedule `drift_watch`, off until you turn it on), `kai-lab status` names
the field, and who wrote it where the API knows that. Materialising that one asset repairs it.

`kai-lab run --select unsynced` makes again, in one run, what is unsynced and what may follow from it.

{table}
Rules behind the table:

- Nothing is done where nothing changed, and the step says `unchanged`. Objects are applied server-side, and what
  somebody has added to them by hand is removed; a pod, which cannot be changed, is replaced when its manifest differs,
  when somebody has changed it, or when it would be given other mounts, variables or runtime class if it were made now.
- A chart release is upgraded when its chart, version or values differ, and applied again when its own checks are broken
  or somebody has changed what it consists of. What helm leaves of such a change is put back, and what KAI's operator
  makes is made anew. The mock's pods are restarted where its label is gone from the node.
- An asset looks at what it stands on before it does anything, in a later run as well: a red gate or a cluster that is
  gone stops it with that reason.
- Another label on the node does not make KAI another one: KAI v0.17.0 reads it as it runs. The shared pod, which is
  accounted by the label, is judged anew.
- A cluster that was rebuilt takes everything with it: what stood on the old one is shown as no longer there, and its
  checks as not evaluated, until it is made again.
- One writer per lab: a second run, a tear-down beside a run, or a check beside either is refused, and told who holds
  the lab. A crash frees it.
"""


def page(told: Sequence[Told]) -> str:
    return PAGE.format(table=table(told))


def without_seconds(text: str) -> list[list[str]]:
    """The table's rows of a page, each without the column that differs from machine to machine."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell for number, cell in enumerate(row) if number != SECONDS] for row in rows]
