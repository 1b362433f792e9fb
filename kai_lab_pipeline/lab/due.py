"""Which version sets the next nightly has to run, and why: new, lost, pushed again, or once more to tell chance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from kai_lab_pipeline.lab.attribution import FAILURES, Cell
from kai_lab_pipeline.lab.version_matrix import Matrix, Row, build_matrix
from kai_lab_pipeline.lab.version_sets import VersionSet
from kai_lab_pipeline.lab.versions import repushed


class Reason(str, Enum):
    NEW = "new"
    LOST = "lost"
    """Tried, and the infrastructure gave no verdict."""
    REPUSHED = "pushed again"
    """A chart has other content under the same version since the last verdict."""
    RERUN = "rerun"
    """Broken in a single attempt: once more, to tell a regression from chance."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Due:
    version_set: VersionSet
    reason: Reason
    sentence: str


def due(
    candidates: Iterable[VersionSet],
    matrix: Matrix,
    *,
    backend: str,
    digests: Mapping[str, Mapping[str, str]] | None = None,
    first_digests: Mapping[str, Mapping[str, str]] | None = None,
    uncompared: Mapping[str, Mapping[str, str]] | None = None,
) -> tuple[Due, ...]:
    """What has no verdict yet, in the order of `candidates`; what was never tried comes before what is tried again.

    `digests` are what the charts of each set hold now: key -> component -> digest. `first_digests`, alike, stand for
    what was judged where nobody knew its digest at the time. `uncompared` are runs that could not ask for the charts to
    compare, with what they said: key -> run -> sentence. A set that has a verdict for the content of
    today, confirmed where it is a bad one, is not due: by a second attempt, by the same versions in the other lane, or,
    for versions that move together, by one of them that breaks the same alone.
    """
    tried = {row.version_set.key: row for row in matrix.rows if row.backend == backend}
    # An attempt that gave no verdict must not hide what the one before it left to be confirmed.
    attempts = (record for row in tried.values() for record in row.records if record.judged)
    judged = {row.version_set.key: row for row in build_matrix(attempts, matrix.pinned, today=matrix.today).rows}
    now, first = digests or {}, first_digests or {}

    def of(candidate: VersionSet) -> Due | None:
        key = candidate.key
        if key not in judged:
            return _without_verdict(candidate, tried.get(key))
        latest = judged[key].latest
        pushed_again = repushed({**first.get(key, {}), **latest.digests}, now.get(key, {}))
        if pushed_again:
            said = f"pushed again since the last verdict: {', '.join(pushed_again)}"
            return Due(candidate, Reason.REPUSHED, said)
        not_compared = (uncompared or {}).get(key, {}).get(latest.run_id)
        if not_compared:
            return Due(candidate, Reason.LOST, f"tried again: {not_compared}")
        return _to_confirm(candidate, tried[key], judged[key], judged.values())

    found = (of(candidate) for candidate in candidates)
    order = list(Reason)
    return tuple(sorted((one for one in found if one is not None), key=lambda one: order.index(one.reason)))


def unconfirmed(row: Row, rows: Iterable[Row]) -> tuple[Cell, ...]:
    """Claims that broke with a version set in a single attempt, and that no other set of `rows` tells to be no chance.

    The charts' values are no matter of chance.
    """
    peers = [other for other in rows if other.backend == row.backend]
    return tuple(
        cell
        for cell in row.cells
        if (cell.kind in FAILURES or cell.needs_rerun) and cell.attempts < 2 and not _explained(row, cell, peers)
    )


def _without_verdict(candidate: VersionSet, tried: Row | None) -> Due:
    if tried is None:
        return Due(candidate, Reason.NEW, f"new: {candidate.description}")
    return Due(candidate, Reason.LOST, f"tried again, the last attempt gave no verdict: {_lost(tried)}")


def _lost(tried: Row) -> str:
    """Why the last attempt gave no verdict; empty where it gave one."""
    return "" if tried.latest.judged else tried.latest.infrastructure or "nothing was evaluated"


def _to_confirm(candidate: VersionSet, tried: Row, judged: Row, rows: Iterable[Row]) -> Due | None:
    lost = _lost(tried)
    shaky = ", ".join(str(cell.claim) for cell in unconfirmed(judged, rows))
    if shaky and lost:
        return Due(
            candidate, Reason.LOST, f"tried again (claims {shaky} broke once), the last attempt was lost: {lost}"
        )
    if shaky:
        return Due(candidate, Reason.RERUN, f"broken in one attempt (claims {shaky}): once more, to tell chance")
    return None


def _explained(row: Row, cell: Cell, rows: Iterable[Row]) -> bool:
    """Whether another version set tells already that it is no chance.

    The same versions in the other lane, which break the claim too; or one of the versions that move together, which
    breaks it alone and is run again for it.
    """
    mine = row.version_set
    return any(
        one.claim == cell.claim and one.kind in FAILURES
        for other in rows
        if other is not row and (_same(mine, other.version_set) or _part(mine, other.version_set))
        for one in other.cells
    )


def _same(mine: VersionSet, other: VersionSet) -> bool:
    return other.lane is not mine.lane and other.versions == mine.versions


def _part(mine: VersionSet, other: VersionSet) -> bool:
    alike = other.lane is mine.lane and len(other.moved) == 1 < len(mine.moved)
    return alike and all(name in mine.moved and other.versions[name] == mine.versions[name] for name in other.moved)
