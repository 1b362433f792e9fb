"""Which known faults the facts give away: structure before words, and the most specific sign wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kai_lab_pipeline.lab.diagnosis.catalogue import FAULTS
from kai_lab_pipeline.lab.diagnosis.model import GENERIC, Cause, Diagnosis, Fact, Fault, Nature, Sign, filled, names_for
from kai_lab_pipeline.lab.diagnosis.text import hits, lowered, text_fact

EVIDENCE_LINES = 5

_SIGNS: tuple[tuple[Fault, Sign], ...] = tuple((fault, sign) for fault in FAULTS for sign in fault.signs)
_BY_NEEDLE: dict[str, list[tuple[Fault, Sign]]] = {}
for _fault, _sign in _SIGNS:
    if _sign.kind is None:
        _BY_NEEDLE.setdefault(_sign.needle, []).append((_fault, _sign))

_Hit = tuple[Fault, Sign, Mapping[str, str]]


@dataclass
class _Found:
    """A fault of one subject, with the facts that speak for it."""

    fault: Fault
    subject: str
    first: int
    specificity: int = 0
    structured: bool = False
    lines: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, fact: Fact, specificity: int, names: Mapping[str, str]) -> None:
        if specificity > self.specificity:
            self.specificity = specificity
            self.names = {**self.names, **fact.names, **names}
        else:
            self.names = {**fact.names, **names, **self.names}
        self.structured = self.structured or fact.kind != "text"
        if fact.line not in self.lines:
            self.lines.append(fact.line)

    def is_symptom_of(self, other: _Found) -> bool:
        if other.fault.id == self.fault.id:
            return False
        same = not self.subject or not other.subject or self.subject == other.subject
        return _named(self.fault.id, other.fault.explains_all) or (same and _named(self.fault.id, other.fault.explains))


def diagnose(
    facts: Iterable[Fact],
    texts: Iterable[tuple[str, Mapping[str, str]]] = (),
    looked_at: Sequence[str] = (),
    backend: str = "",
) -> Diagnosis:
    """The causes that facts and texts (each with the names it is about) give away, best first.

    `backend` is what the lab runs on, where that is known: remedies fit it.
    """
    found: dict[tuple[str, str], _Found] = {}
    for order, (fact, candidates) in enumerate((*_fact_hits(facts), *_text_hits(texts))):
        best = max(sign.specificity for _, sign, _ in candidates)
        for fault, sign, names in candidates:
            if sign.specificity == best:
                entry = found.setdefault((fault.id, fact.subject), _Found(fault, fact.subject, order))
                entry.add(fact, sign.specificity, names)
    return _ranked(_merged(_without_symptoms(list(found.values()))), looked_at, backend)


def _fact_hits(facts: Iterable[Fact]) -> list[tuple[Fact, list[_Hit]]]:
    out: list[tuple[Fact, list[_Hit]]] = []
    done: set[tuple[str, str]] = set()
    for fact in facts:
        key = (fact.kind, fact.line)
        if key in done:
            continue
        done.add(key)
        low = lowered(fact.message)
        candidates: list[_Hit] = []
        for fault, sign in _SIGNS:
            names = sign.match(fact, low)
            if names is not None:
                candidates.append((fault, sign, names))
        if candidates:
            out.append((fact, candidates))
    return out


def _text_hits(texts: Iterable[tuple[str, Mapping[str, str]]]) -> list[tuple[Fact, list[_Hit]]]:
    out: list[tuple[Fact, list[_Hit]]] = []
    for text, about in texts:
        for line, needles in hits(text, _BY_NEEDLE):
            fact, low = text_fact(line, about), lowered(line)
            candidates: list[_Hit] = []
            for needle in needles:
                for fault, sign in _BY_NEEDLE[needle]:
                    names = sign.match(fact, low)
                    if names is not None:
                        candidates.append((fault, sign, names))
            if candidates:
                out.append((fact, candidates))
    return out


def _named(id_: str, patterns: tuple[str, ...]) -> bool:
    return any(id_ == pattern or (pattern.endswith("*") and id_.startswith(pattern[:-1])) for pattern in patterns)


def _without_symptoms(found: Sequence[_Found]) -> list[_Found]:
    kept = [entry for entry in found if not any(entry.is_symptom_of(other) for other in found)]
    better = any(entry.specificity > GENERIC and entry.fault.nature is Nature.FAULT for entry in kept)
    return [entry for entry in kept if not (better and entry.specificity <= GENERIC)]


def _merged(found: Iterable[_Found]) -> list[_Found]:
    """One entry per fault: the names of the subject that speaks clearest, the lines of all."""
    out: dict[str, _Found] = {}
    for entry in sorted(found, key=lambda one: (-one.specificity, not one.structured, one.first)):
        first = out.setdefault(entry.fault.id, entry)
        first.lines.extend(line for line in entry.lines if line not in first.lines)
    return list(out.values())


def _ranked(ordered: Sequence[_Found], looked_at: Sequence[str], backend: str) -> Diagnosis:
    causes = [_cause(entry, backend) for entry in ordered]

    def of(nature: Nature) -> tuple[Cause, ...]:
        return tuple(cause for cause in causes if cause.nature is nature)

    return Diagnosis(of(Nature.FAULT), of(Nature.EXPECTED), of(Nature.HARMLESS), tuple(looked_at))


def _cause(entry: _Found, backend: str) -> Cause:
    words = names_for(entry.fault, entry.names, command=False)
    names = names_for(entry.fault, entry.names, command=True)
    return Cause(
        fault=entry.fault,
        cause=filled(entry.fault.cause, words, command=False),
        remedy=tuple(filled(step, names, command=True) for step in entry.fault.remedy_on(backend)),
        evidence=tuple(entry.lines[:EVIDENCE_LINES]),
        specificity=entry.specificity,
    )
