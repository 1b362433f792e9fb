"""Version sets by claims over many nights: what holds since when, what broke, and which component's step broke it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date

from kai_lab_pipeline.lab.attribution import FAILURES, Cell, CellJudge, History, Kind
from kai_lab_pipeline.lab.spec import CLAIMS
from kai_lab_pipeline.lab.verdict_record import VALUES, VerdictRecord
from kai_lab_pipeline.lab.version_sets import Lane, VersionSet, sort_key
from kai_lab_pipeline.lab.versions import normalized


@dataclass(frozen=True)
class Row:
    """One version set on one lane and backend, over all its attempts."""

    version_set: VersionSet
    backend: str
    records: tuple[VerdictRecord, ...]
    places: tuple[int, ...]
    """Where each of them stands among all records, from 0."""
    cells: tuple[Cell, ...]
    repushed: tuple[str, ...] = ()
    """Components whose chart has other content than at an earlier attempt, under the same version."""
    values: Cell | None = None
    """Whether the lab's values have an effect in the charts; None where no attempt looked."""
    chart_diff: str = ""
    """How the charts differ from the pinned ones, as text."""

    @property
    def latest(self) -> VerdictRecord:
        return self.records[-1]

    @property
    def every_cell(self) -> tuple[Cell, ...]:
        """The claims, and the charts' values where somebody looked."""
        return self.cells if self.values is None else (*self.cells, self.values)

    @property
    def failures(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.every_cell if cell.kind in FAILURES)

    @property
    def state(self) -> Kind:
        """The row in one word: the worst of its cells. Charts that could not be compared leave the claims' word."""
        kinds = {cell.kind for cell in self.cells}
        if self.values is not None and self.values.kind in (*FAILURES, Kind.EXCUSED):
            kinds.add(self.values.kind)
        return next((kind for kind in _WORST_FIRST if kind in kinds), Kind.NOT_EVALUATED)


_WORST_FIRST = (
    Kind.REGRESSION,
    Kind.FIRST_FAILURE,
    Kind.NOT_EVALUATED,
    Kind.FLAKE,
    Kind.BOUNDARY_MOVED,
    Kind.EXCUSED,
    Kind.HELD,
    Kind.NOT_REACHABLE,
)


@dataclass(frozen=True)
class Regression:
    """One regression, however many rows show it."""

    id: str
    """The same in every night, for telling it once."""
    cell: Cell
    row: Row


@dataclass(frozen=True)
class Matrix:
    pinned: Mapping[str, str]
    rows: tuple[Row, ...] = field(default=())
    today: date | None = None
    """The day on which excuses were looked at."""

    def regressions(self) -> tuple[Regression, ...]:
        """Each regression once: a combined set that breaks through a component adds nothing to that component's own."""
        found: dict[str, Regression] = {}
        for row in self.rows:
            for cell in row.every_cell:
                if cell.kind is Kind.REGRESSION:
                    identity = _identity(row, cell)
                    found.setdefault(identity, Regression(identity, cell, row))
        return tuple(found.values())

    def news(self) -> tuple[str, ...]:
        """What is worth a look and no failure: boundary moved, excuses that are not needed, re-pushed charts."""
        return tuple(sentence for row in self.rows for sentence in row_news(row))


def _identity(row: Row, cell: Cell) -> str:
    bad = cell.first_bad
    subject = f"claim-{cell.claim}" if isinstance(cell.claim, int) else cell.claim
    what = f"{bad.component}@{normalized(bad.version)}" if bad is not None else row.version_set.key
    return f"{row.backend}/{row.version_set.lane}/{what}/{subject}"


def row_news(row: Row) -> Iterator[str]:
    """What is worth a look in a row and no failure, as sentences."""
    name = row.version_set.key
    for cell in row.cells:
        if cell.kind is Kind.BOUNDARY_MOVED:
            yield f"{name}: boundary moved. {cell.sentence}"
    for check in row.latest.unexpected_passes:
        yield f"{name}: {check} is excused and held all the same; the excuse can go."
    for component in row.repushed:
        version = row.version_set.versions[component]
        yield f"{name}: the chart of {component} {version} was pushed again with other content."


def build_matrix(
    records: Iterable[VerdictRecord],
    pinned: Mapping[str, str],
    chart_diffs: Mapping[str, str] | None = None,
    *,
    today: date | None = None,
) -> Matrix:
    """The matrix of all records, in the order in which they were written.

    `pinned` are the versions that lab.toml pins: the reference for what moved. `chart_diffs` are texts by version set
    key, shown beside the first bad version. `today` is the day on which excuses must still count; without it, all do.
    """
    groups: dict[tuple[str, Lane, str], list[tuple[int, VerdictRecord]]] = {}
    for place, record in enumerate(records):
        groups.setdefault((record.key, record.lane, record.backend), []).append((place, record))
    places = [tuple(place for place, _ in group) for group in groups.values()]
    histories = [History(tuple(record for _, record in group), pinned) for group in groups.values()]
    rows = []
    for history, at in zip(histories, places, strict=True):
        peers = [other for other in histories if other.backend == history.backend]
        cells = tuple(CellJudge(history, peers, claim.id, today).cell() for claim in CLAIMS)
        looked = any(record.values is not None for record in history.records)
        values = CellJudge(history, peers, VALUES, today).cell() if looked else None
        diff = (chart_diffs or {}).get(history.version_set.key, "")
        repushed = history.repushed()
        rows.append(Row(history.version_set, history.backend, history.records, at, cells, repushed, values, diff))
    rows.sort(key=lambda row: (row.backend, sort_key(row.version_set), row.version_set.key))
    return Matrix(dict(pinned), tuple(rows), today)
