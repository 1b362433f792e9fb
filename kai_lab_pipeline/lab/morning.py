"""The morning summary: did the night run, what is new, what broke, what could not be judged, when is the next one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from kai_lab_pipeline.lab.attribution import FAILURES, Cell, Kind, subjects
from kai_lab_pipeline.lab.evidence import parse_time
from kai_lab_pipeline.lab.version_matrix import Matrix, Row, row_news

ALARM_AFTER = timedelta(hours=26)
"""A nightly that is older than this did not run: a day, and two hours for a late or slow one."""


@dataclass(frozen=True)
class Nightly:
    """One nightly run: when it began and which version sets it took on."""

    started_at: datetime
    keys: tuple[str, ...] = ()
    could_not_look: tuple[str, ...] = ()
    """Sentences about components whose registry could not be asked."""
    backend: str = ""
    """Where it ran; empty in entries of an older version, which told no backend."""
    records_before: int | None = None
    """How many verdicts were kept when it began: those after them are its own, whatever clocks say. None in entries of
    an older version."""
    waiting: int = 0
    """How many version sets were due beside `keys`, more than the cap of a night lets in."""

    @property
    def said_of_waiting(self) -> str:
        """A sentence about what the cap kept out; empty where nothing was."""
        if not self.waiting:
            return ""
        sets = "1 version set waits" if self.waiting == 1 else f"{self.waiting} version sets wait"
        return f"{sets} for the next night: one takes on {len(self.keys)} (nightly.cap in lab.toml)."

    def made(self, row: Row) -> bool:
        """Whether the newest attempt of a row of the matrix is of this night."""
        return self._mine(row, -1) and self.backend in ("", row.backend)

    def made_first_verdict(self, row: Row) -> bool:
        """Whether a row that this night made had no verdict before."""
        first = next((place for place, record in enumerate(row.records) if record.judged), None)
        return first is not None and self._mine(row, first)

    def _mine(self, row: Row, attempt: int) -> bool:
        if self.records_before is None:
            return row.records[attempt].at >= self.started_at
        return row.places[attempt] >= self.records_before

    def to_json(self) -> dict[str, Any]:
        return {
            "started_at": self.started_at.isoformat(),
            "keys": list(self.keys),
            "could_not_look": list(self.could_not_look),
            "backend": self.backend,
            "records_before": self.records_before,
            "waiting": self.waiting,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Nightly:
        """The inverse of `to_json`. Raises KeyError or ValueError on something else."""
        started = parse_time(data["started_at"])
        if started is None:
            raise ValueError(f"'started_at' is no RFC 3339 time: {data['started_at']!r}")
        before = data.get("records_before")
        return cls(
            started,
            tuple(data.get("keys", ())),
            tuple(data.get("could_not_look", ())),
            str(data.get("backend", "")),
            None if before is None else int(before),
            int(data.get("waiting", 0)),
        )


@dataclass(frozen=True)
class Summary:
    """The morning's facts; `text` says them."""

    last: Nightly | None
    next_at: datetime | None
    """When the schedule runs next; None while it is off."""
    new: tuple[str, ...] = ()
    """Version sets that got their first verdict in the last nightly."""
    broken: tuple[str, ...] = ()
    not_evaluated: tuple[str, ...] = ()
    """Version sets of the last nightly without a verdict, or with one that may be chance; they are tried again."""
    details: tuple[str, ...] = field(default=())
    flakes: tuple[str, ...] = ()
    """What broke and held with the very same content in the last nightly: run again, or to be run again."""
    alarm: str = ""
    missing_after: datetime | None = None
    """Later than this without another nightly, one is missing; None where none ever ran and none is scheduled."""

    @property
    def validity(self) -> str:
        """A sentence that tells on a page which nobody writes any more that a nightly is missing; may be empty."""
        if self.missing_after is None:
            return ""
        return f"If it is later than {_minute(self.missing_after)} now, a nightly is missing."

    def exit_code(self) -> int:
        """Of the last nightly: 1 for a broken claim that nobody excused, 3 where it could not judge or look, else 0."""
        if self.broken:
            return 1
        return 3 if self.not_evaluated or (self.last is not None and self.last.could_not_look) else 0

    def text(self) -> str:
        lines = [f"ALARM: {self.alarm}"] if self.alarm else []
        counts = f"{len(self.new)} new, {len(self.broken)} broken, {len(self.not_evaluated)} not evaluated"
        lines.append(f"{said_of_last(self.last)}: {counts}, {said_of_next(self.next_at)}.")
        if self.last is not None and self.last.said_of_waiting:
            lines.append(self.last.said_of_waiting)
        return "\n".join([*lines, *self.details, *self.flakes])

    def to_json(self) -> dict[str, Any]:
        return {
            "last_nightly": self.last.to_json() if self.last else None,
            "next_at": self.next_at.isoformat() if self.next_at else None,
            "new": list(self.new),
            "broken": list(self.broken),
            "not_evaluated": list(self.not_evaluated),
            "details": list(self.details),
            "flakes": list(self.flakes),
            "alarm": self.alarm,
            "missing_after": self.missing_after.isoformat() if self.missing_after else None,
            "text": self.text(),
        }


def morning_summary(
    matrix: Matrix, *, now: datetime, last: Nightly | None, next_at: datetime | None, on_since: datetime | None = None
) -> Summary:
    """What the last nightly left, judged at `now`. All times carry a time zone.

    `next_at` is when the schedule runs next, None while it is off; `on_since` when it was turned on, where known.
    """
    began = last.started_at if last else on_since if next_at else None
    rows = [row for row in matrix.rows if last is not None and row.version_set.key in last.keys]
    tonight = [row for row in rows if last is not None and last.made(row)]
    judged = {row.version_set.key for row in tonight}
    missing = [key for key in (last.keys if last else ()) if key not in judged]
    lost = [row.version_set.key for row in tonight if row.state is Kind.NOT_EVALUATED or _unsettled(row)]
    return Summary(
        last=last,
        next_at=next_at,
        new=tuple(row.version_set.key for row in tonight if last is not None and last.made_first_verdict(row)),
        broken=tuple(row.version_set.key for row in tonight if row.state in FAILURES),
        not_evaluated=(*lost, *missing),
        details=(
            *_details(tonight),
            *(
                f"{key}: no verdict, it was not reached or ended before its report; it is tried again."
                for key in missing
            ),
            *(sentence for row in tonight for sentence in row_news(row)),
            *(last.could_not_look if last else ()),
        ),
        flakes=tuple(_flakes(tonight)),
        alarm=alarm(now, last, next_at, on_since),
        missing_after=began + ALARM_AFTER if began else None,
    )


def alarm(now: datetime, last: Nightly | None, next_at: datetime | None, on_since: datetime | None = None) -> str:
    """Why a nightly is missing at `now`, or the clock is wrong; empty where all is in order.

    A schedule that was turned on has as long for its first nightly as there may be between two.
    """
    if last is None:
        if next_at is None or (on_since is not None and now - on_since <= ALARM_AFTER):
            return ""
        since = f" since {_minute(on_since)}" if on_since is not None else ""
        return f"no nightly has run yet, although the schedule is on{since}: is the daemon running?"
    age = now - last.started_at
    if age < timedelta(0):
        return f"the last nightly began at {last.started_at:%Y-%m-%d %H:%M}, which is later than now: check the clock."
    if age > ALARM_AFTER:
        hours = int(age.total_seconds() // 3600)
        return f"the last nightly is {hours} h old: is the daemon running, and the schedule on?"
    return ""


def said_of_last(last: Nightly | None) -> str:
    return f"Last nightly ran at {_minute(last.started_at)}" if last else "No nightly has run yet"


def said_of_next(next_at: datetime | None) -> str:
    return f"next at {_minute(next_at)}" if next_at else "no next one is scheduled: the schedule is off"


def _minute(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M %Z}".strip()


def _details(rows: list[Row]) -> list[str]:
    lines: list[str] = []
    for row in rows:
        for told, cells in _by_cause(row.failures):
            messages = "".join(f" {cell.message}" for cell in cells if not isinstance(cell.claim, int))
            lines.append(f"{row.version_set.key}, {subjects(cells)}: {told}{messages}")
        if row.state is Kind.NOT_EVALUATED:
            told = next(cell.sentence for cell in row.cells if cell.kind is Kind.NOT_EVALUATED)
            lines.append(f"{row.version_set.key}: {told}")
    return lines


def _unsettled(row: Row) -> bool:
    return row.state is Kind.FLAKE and any(cell.needs_rerun for cell in row.every_cell)


def _flakes(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        for told, cells in _by_cause(tuple(cell for cell in row.every_cell if cell.kind is Kind.FLAKE)):
            yield f"{row.version_set.key}, {subjects(cells)}: {told}"


def _by_cause(cells: Sequence[Cell]) -> Iterator[tuple[str, tuple[Cell, ...]]]:
    """What is said of cells that follow each other and have the same cause, once."""
    for told, found in itertools.groupby(cells, key=lambda cell: f"{cell.kind}. {cell.sentence}"):
        yield told, tuple(found)
