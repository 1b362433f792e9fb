"""Where a broken claim comes from: which component's step, the upgrade, chance, or the infrastructure.

Pure: the attempts at all version sets in, one cell of the version matrix out. Attempts come in the order in which they
were written, which decides; their clock times are only shown, because clocks jump.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from enum import Enum
from typing import NamedTuple

from kai_lab_pipeline.lab.spec import VALUES_HAVE_EFFECT
from kai_lab_pipeline.lab.verdict import Boundary, Verdict
from kai_lab_pipeline.lab.verdict_record import VALUES, ClaimVerdict, Subject, VerdictRecord
from kai_lab_pipeline.lab.version_order import place_in_line
from kai_lab_pipeline.lab.version_sets import Lane, VersionSet, moved_components
from kai_lab_pipeline.lab.versions import VersionKey, normalized

BOUNDARY_CLAIM = 8


class Kind(str, Enum):
    """What a cell of the matrix means."""

    HELD = "held"
    NOT_REACHABLE = "not reachable"
    REGRESSION = "regression"
    """Held with an older version, or with the same version before, and is broken now."""
    FIRST_FAILURE = "first-time failure"
    """Broken, and nothing is known with which it held."""
    FLAKE = "flake"
    """Broken once and held once with the very same content: no verdict about the version."""
    EXCUSED = "excused"
    BOUNDARY_MOVED = "boundary moved"
    """The boundary was crossed where nobody set that up: good news to look at."""
    NOT_EVALUATED = "not evaluated"
    """Infrastructure, or something before it broke; tried again, never counted as a regression."""

    def __str__(self) -> str:
        return self.value


FAILURES = frozenset({Kind.REGRESSION, Kind.FIRST_FAILURE})


@dataclass(frozen=True)
class VersionRef:
    """A component's version in a recorded version set."""

    component: str
    version: str
    key: str
    at: datetime
    evidence: str = ""

    def __str__(self) -> str:
        return f"{self.component} {self.version}"


@dataclass(frozen=True)
class Cell:
    """One claim of one version set, or its charts' values."""

    claim: Subject
    verdict: Verdict
    kind: Kind
    since: datetime
    """Since when the verdict has been this one (first record of the unbroken row of them)."""
    sentence: str
    run_id: str
    evidence: str = ""
    blamed: tuple[str, ...] = ()
    """Components whose step broke the claim; empty where no step did."""
    last_good: VersionRef | None = None
    first_bad: VersionRef | None = None
    checks: tuple[str, ...] = ()
    message: str = ""
    """The sentence of the check that decided."""
    attempts: int = 0
    """How many attempts in a row gave this verdict."""

    @property
    def needs_rerun(self) -> bool:
        """Broken once, against an earlier verdict with the same content: run it once more to tell."""
        return self.kind is Kind.FLAKE and self.verdict is Verdict.BROKEN


def subjects(cells: Sequence[Cell]) -> str:
    """What cells are about, for a sentence: ``claims 2, 7, values_have_effect``."""
    claims = [str(cell.claim) for cell in cells if isinstance(cell.claim, int)]
    named = [f"claim{'s' * (len(claims) > 1)} {', '.join(claims)}"] if claims else []
    return ", ".join([*named, *(VALUES_HAVE_EFFECT for cell in cells if cell.claim == VALUES)])


class History:
    """All attempts at one version set on one lane and backend."""

    def __init__(self, records: tuple[VerdictRecord, ...], pinned: Mapping[str, str]) -> None:
        first = records[0]
        moved = moved_components(pinned, first.versions)
        self.records = records
        self.backend = first.backend
        self.version_set = VersionSet(first.key, first.versions, first.lane, moved)
        self._pinned = pinned
        self._judged: dict[Subject, list[tuple[VerdictRecord, ClaimVerdict]]] = {}

    def judged(self, claim: Subject) -> list[tuple[VerdictRecord, ClaimVerdict]]:
        """Attempts in which the claim got a verdict; a night lost to infrastructure says nothing."""
        if claim not in self._judged:
            found = ((record, record.verdict_of(claim)) for record in self.records if not record.infrastructure)
            self._judged[claim] = [
                (record, one) for record, one in found if one is not None and one.verdict is not Verdict.NOT_EVALUATED
            ]
        return self._judged[claim]

    def holds(self, claim: Subject) -> bool | None:
        """Whether the claim held in the last attempt that judged it; None when there is none."""
        judged = self.judged(claim)
        return None if not judged else judged[-1][1].verdict is not Verdict.BROKEN

    @property
    def moved(self) -> tuple[str, ...]:
        return self.version_set.moved

    def place(self, component: str) -> VersionKey | None:
        return place_in_line(component, self.version_set.versions[component], self._pinned.get(component, ""))

    def repushed(self) -> tuple[str, ...]:
        known = [record.digests for record in self.records if record.digests]
        return _changed(known[0], known[-1]) if known else ()


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted(name for name, digest in after.items() if before.get(name, digest) != digest))


class _Step(NamedTuple):
    """From a version with which a claim held to one with which it is broken."""

    good: VersionRef | None
    bad: VersionRef
    from_pinned: bool = False
    """Straight from the pinned version, which is not below the bad one."""


class CellJudge:
    """Makes one cell: the latest verdict, and what the other histories say about where it comes from."""

    def __init__(self, history: History, peers: Sequence[History], claim: Subject, today: date | None = None) -> None:
        self.today = today
        self.history = history
        self.peers = peers
        self.claim = claim
        self.judged = history.judged(claim)

    def cell(self) -> Cell:
        latest = self.history.records[-1]
        current = latest.verdict_of(self.claim)
        if latest.infrastructure or current is None or current.verdict is Verdict.NOT_EVALUATED:
            return self._not_evaluated(latest, current)
        streak = self._streak()
        before = self.judged[-len(streak) - 1] if len(self.judged) > len(streak) else None
        make = self._maker(latest, current, streak[0][0].at, len(streak))
        if current.verdict is not Verdict.BROKEN:
            if before is not None and len(streak) == 1 and not _changed(before[0].digests, latest.digests):
                was = f"broken {_when(before[0])} with the same versions"
                return make(Kind.FLAKE, f"Held when it was run again; {was}.")
            kind = Kind.NOT_REACHABLE if current.verdict is Verdict.NOT_REACHABLE else Kind.HELD
            return make(kind, f"{str(kind).capitalize()} since {_when(streak[0][0])}.")
        excuse = current.excused
        if excuse is None:
            return self._broken(latest, streak, before, make)
        if excuse.counts(self.today):
            why = f"excused in lab.toml until {excuse.until} ({excuse.reason})"
            return make(Kind.EXCUSED, f"Broken, and {why}: {current.message}")
        cell = self._broken(latest, streak, before, make)
        return replace(cell, sentence=f"{cell.sentence} It was excused until {excuse.until} ({excuse.reason}).")

    def _broken(
        self,
        latest: VerdictRecord,
        streak: Sequence[tuple[VerdictRecord, ClaimVerdict]],
        before: tuple[VerdictRecord, ClaimVerdict] | None,
        make: Callable[..., Cell],
    ) -> Cell:
        if self.claim == BOUNDARY_CLAIM and latest.boundary is Boundary.CROSSED and latest.crossing is None:
            return make(Kind.BOUNDARY_MOVED, "The shared pod runs although nobody set up a crossing.")
        if before is not None:
            return self._broken_after_held(before[0], streak, make)
        return self._broken_from_the_start(make)

    def _not_evaluated(self, latest: VerdictRecord, current: ClaimVerdict | None) -> Cell:
        start = latest
        for record in reversed(self.history.records):
            found = record.verdict_of(self.claim)
            if not record.infrastructure and found is not None and found.verdict is not Verdict.NOT_EVALUATED:
                break
            start = record
        why = latest.infrastructure or (current.message if current is not None else "") or "no verdict was recorded"
        known = f" Last verdict: {self.judged[-1][1].verdict} {_when(self.judged[-1][0])}." if self.judged else ""
        make = self._maker(latest, current or ClaimVerdict(Verdict.NOT_EVALUATED), start.at)
        return make(Kind.NOT_EVALUATED, f"Not evaluated: {why.rstrip('.')}.{known}", verdict=Verdict.NOT_EVALUATED)

    def _streak(self) -> list[tuple[VerdictRecord, ClaimVerdict]]:
        """The last attempts with the same outcome, oldest first."""
        is_broken = self.judged[-1][1].verdict is Verdict.BROKEN
        streak: list[tuple[VerdictRecord, ClaimVerdict]] = []
        for entry in reversed(self.judged):
            if (entry[1].verdict is Verdict.BROKEN) is not is_broken:
                break
            streak.insert(0, entry)
        return streak

    def _maker(
        self, latest: VerdictRecord, current: ClaimVerdict, since: datetime, attempts: int = 0
    ) -> Callable[..., Cell]:
        def make(
            kind: Kind,
            sentence: str,
            *,
            verdict: Verdict = current.verdict,
            blamed: tuple[str, ...] = (),
            last_good: VersionRef | None = None,
            first_bad: VersionRef | None = None,
        ) -> Cell:
            return Cell(
                claim=self.claim,
                verdict=verdict,
                kind=kind,
                since=since,
                sentence=sentence,
                run_id=latest.run_id,
                evidence=latest.evidence,
                blamed=blamed,
                last_good=last_good,
                first_bad=first_bad,
                checks=current.checks,
                message=current.message,
                attempts=attempts,
            )

        return make

    def _broken_after_held(
        self,
        before: VerdictRecord,
        streak: Sequence[tuple[VerdictRecord, ClaimVerdict]],
        make: Callable[..., Cell],
    ) -> Cell:
        """The same version set held earlier: other content, something unpinned, or chance."""
        first = streak[0][0]
        changed = _changed(before.digests, first.digests)
        said = f"held {_when(before)} with the same versions"
        if changed:
            blamed = changed[0]
            good = self._ref(before, blamed)
            bad = self._ref(first, blamed)
            sentence = f"Broken since {', '.join(changed)} was pushed again under the same version; {said}."
            return make(Kind.REGRESSION, sentence, blamed=changed, last_good=good, first_bad=bad)
        if len(streak) == 1:
            return make(Kind.FLAKE, f"Broken once, {said}: run it again to tell.")
        sentence = f"Broken {len(streak)} times in a row, {said}: something that no version pins has moved."
        return make(Kind.REGRESSION, sentence)

    def _broken_from_the_start(self, make: Callable[..., Cell]) -> Cell:
        """Never held in this version set: which step from a good one broke it?"""
        found, lane = self.history.version_set, self.history.version_set.lane
        if not self.history.moved:
            return make(Kind.FIRST_FAILURE, "Broken with the pinned versions; nothing is known with which it held.")
        if lane is Lane.UPGRADE:
            fresh = self._peer(found.versions, Lane.FRESH)
            if fresh is not None and fresh.holds(self.claim):
                blamed = self.history.moved
                first_bad = self._ref(self.history.records[-1], blamed[0])
                good = self._ref(fresh.records[-1], blamed[0])
                step = " and ".join(f"{name} {found.versions[name]}" for name in blamed)
                sentence = f"Broken by upgrading a living lab to {step}; a fresh install of the same versions holds."
                return make(Kind.REGRESSION, sentence, blamed=blamed, last_good=good, first_bad=first_bad)
        blamed, how = self._blamed()
        steps = [self._step(component) for component in blamed]
        taken = next((one for one in steps if one.good is not None), steps[0])
        last_good = taken.good
        if last_good is None:
            pinned = self._pinned()
            why = "the pinned versions have no verdict yet" if pinned is None else "the pinned versions break it too"
            return make(Kind.FIRST_FAILURE, f"Broken, and {why}: no step between versions can be blamed.")
        first_bad = steps[0].bad
        sentence = f"{how} broke it: last good {last_good.version}, first bad {first_bad.version}."
        if len(blamed) > 1:
            sentence = f"{how} broke it; it held with {last_good}."
        elif taken.from_pinned:
            sentence = f"{how} broke it: it held with the pinned {last_good.version}."
        return make(Kind.REGRESSION, sentence, blamed=blamed, last_good=last_good, first_bad=first_bad)

    def _blamed(self) -> tuple[tuple[str, ...], str]:
        """The moved components that break the claim on their own; all of them where that cannot be told."""
        moved = self.history.moved
        versions = self.history.version_set.versions
        if len(moved) == 1:
            return moved, f"{moved[0]} {versions[moved[0]]}"
        alone = {component: self._alone(component, versions[component]) for component in moved}
        guilty = tuple(name for name, peer in alone.items() if peer is not None and peer.holds(self.claim) is False)
        names = ", ".join(f"{name} {versions[name]}" for name in guilty or moved)
        if guilty:
            return guilty, names
        tried = all(peer is not None and peer.holds(self.claim) for peer in alone.values())
        return moved, f"Only the combination of {names}" if tried else f"One of {names}"

    def _step(self, component: str) -> _Step:
        """From the newest good version of a component below its oldest bad one to that bad one.

        Where nothing good is below, or the version has no place among the others, from the pinned version straight to
        this one.
        """
        good: VersionRef | None = None
        bad: VersionRef | None = None
        for peer in self._line(component):
            holds = peer.holds(self.claim)
            if holds:
                good, bad = _peer_ref(peer, component), None
            elif holds is False and bad is None:
                bad = _peer_ref(peer, component)
        own = self._ref(self.history.records[-1], component)
        if good is not None:
            return _Step(good, bad or own)
        pinned = self._pinned()
        if pinned is not None and pinned.holds(self.claim):
            return _Step(_peer_ref(pinned, component), own, from_pinned=True)
        return _Step(None, own)

    def _line(self, component: str) -> list[History]:
        """What judged a component alone, from its oldest version up to the one of this set; empty for one aside."""
        peers = [
            peer
            for peer in self.peers
            if peer is not self.history
            and set(peer.moved) <= {component}
            and (not peer.moved or peer.version_set.lane is self.history.version_set.lane)
        ]
        peers.append(self.history)  # last, so that a component's own set names it before a combination does
        places = ((peer.place(component), peer) for peer in peers)
        line = [(place, peer) for place, peer in places if place is not None]
        limit = self.history.place(component)
        if limit is None:
            return []
        return [peer for place, peer in sorted(line, key=lambda entry: entry[0]) if place <= limit]

    def _alone(self, component: str, version: str) -> History | None:
        wanted = {normalized(version)}
        return next(
            (
                peer
                for peer in self.peers
                if peer.moved == (component,)
                and peer.version_set.lane is self.history.version_set.lane
                and {normalized(peer.version_set.versions[component])} == wanted
            ),
            None,
        )

    def _pinned(self) -> History | None:
        return next((peer for peer in self.peers if not peer.moved and peer.holds(self.claim) is not None), None)

    def _peer(self, versions: Mapping[str, str], lane: Lane) -> History | None:
        return next(
            (
                peer
                for peer in self.peers
                if peer.version_set.lane is lane and not moved_components(peer.version_set.versions, versions)
            ),
            None,
        )

    def _ref(self, record: VerdictRecord, component: str) -> VersionRef:
        return VersionRef(component, record.versions[component], record.key, record.at, record.evidence)


def _peer_ref(peer: History, component: str) -> VersionRef:
    latest = peer.records[-1]
    return VersionRef(component, peer.version_set.versions[component], latest.key, latest.at, latest.evidence)


def _when(record: VerdictRecord) -> str:
    return f"{record.at:%Y-%m-%d %H:%M}"
