"""Which known faults the facts give away: structure before words, and the most specific sign wins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from kai_lab_pipeline.lab.diagnosis.catalogue import FAULTS
from kai_lab_pipeline.lab.diagnosis.model import GENERIC, Cause, Diagnosis, Fact, Fault, Nature, Sign, filled, names_for
from kai_lab_pipeline.lab.diagnosis.text import hits, lowered, text_fact

EVIDENCE_LINES = 5

_BY_NEEDLE: dict[str, list[tuple[Fault, Sign]]] = {}
_BY_KIND: dict[str, list[tuple[Fault, Sign]]] = {}
for _fault in FAULTS:
    for _sign in _fault.signs:
        if _sign.kind is None:
            _BY_NEEDLE.setdefault(_sign.needle, []).append((_fault, _sign))
        else:
            _BY_KIND.setdefault(_sign.kind, []).append((_fault, _sign))

_Hit = tuple[Fault, Sign, Mapping[str, str]]


@dataclass
class _Found:
    """A fault of one subject, with the facts that speak for it."""

    fault: Fault
    subject: str
    first: int
    specificity: int = 0
    structured: bool = False
    lines: dict[str, None] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    missed: set[str] = field(default_factory=set)
    """Workloads that a check says do not run; empty where it names none."""

    def add(self, fact: Fact, specificity: int, names: Mapping[str, str]) -> None:
        if specificity > self.specificity:
            self.specificity = specificity
            self.names = {**self.names, **fact.names, **names}
        else:
            self.names = {**fact.names, **names, **self.names}
        self.structured = self.structured or fact.kind != "text"
        self.lines.setdefault(fact.line)
        self.missed.update(fact.attributes.get("missed", "").split())


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
    first: dict[tuple[str, str], Fact] = {}
    for fact in facts:
        first.setdefault((fact.kind, fact.line), fact)
    distinct = [(fact, lowered(fact.message)) for fact in first.values()]
    # Of thousands of facts nearly all say the same few words: the others are looked for once, in all of them together.
    anywhere = "\n".join(low for _, low in distinct)
    said = [needle for needle in _BY_NEEDLE if needle in anywhere]
    out: list[tuple[Fact, list[_Hit]]] = []
    same: dict[tuple[object, ...], list[_Hit]] = {}
    for fact, low in distinct:
        key = (fact.kind, fact.message, *fact.attributes.items())
        if key in same:
            if same[key]:
                out.append((fact, same[key]))
            continue
        signs = [*_BY_KIND.get(fact.kind, ()), *(one for needle in said if needle in low for one in _BY_NEEDLE[needle])]
        same[key] = _matching(signs, fact, low)
        if same[key]:
            out.append((fact, same[key]))
    return out


def _matching(signs: Iterable[tuple[Fault, Sign]], fact: Fact, low: str) -> list[_Hit]:
    found = ((fault, sign, sign.match(fact, low)) for fault, sign in signs)
    return [(fault, sign, names) for fault, sign, names in found if names is not None]


def _text_hits(texts: Iterable[tuple[str, Mapping[str, str]]]) -> list[tuple[Fact, list[_Hit]]]:
    out: list[tuple[Fact, list[_Hit]]] = []
    for text, about in texts:
        for line, needles in hits(text, _BY_NEEDLE):
            fact, low = text_fact(line, about), lowered(line)
            signs = (one for needle in needles for one in _BY_NEEDLE[needle])
            if candidates := _matching(signs, fact, low):
                out.append((fact, candidates))
    return out


def _named(id_: str, patterns: tuple[str, ...]) -> bool:
    return any(id_ == pattern or (pattern.endswith("*") and id_.startswith(pattern[:-1])) for pattern in patterns)


class _Explained:
    """What explains what of all that was found, by fault and subject: facts may be tens of thousands."""

    def __init__(self, found: Sequence[_Found]) -> None:
        self._subjects: dict[str, set[str]] = {}
        for entry in found:
            self._subjects.setdefault(entry.fault.id, set()).add(entry.subject)
        self._faults = {entry.fault.id: entry.fault for entry in found}
        self._ill: dict[str, set[str]] = {}
        self._everywhere = {id_: self._explained_everywhere(id_) for id_ in self._faults}
        self._by_subject = {
            id_: [other.id for other in self._faults.values() if other.id != id_ and _named(id_, other.explains)]
            for id_ in self._faults
        }

    def is_symptom(self, entry: _Found) -> bool:
        if self._everywhere[entry.fault.id] or self._is_missed(entry):
            return True
        others = (self._subjects[id_] for id_ in self._by_subject[entry.fault.id])
        return any(not entry.subject or "" in subjects or entry.subject in subjects for subjects in others)

    def _explained_everywhere(self, id_: str) -> bool:
        return any(_named(id_, fault.explains_all) for fault in self._faults.values() if fault.id != id_)

    def _is_missed(self, entry: _Found) -> bool:
        """Whether what it misses is what is seen not to run: one that all need, or each that it names."""
        id_ = entry.fault.id
        by = [fault for fault in self._faults.values() if fault.id != id_ and id_ in fault.explains_missing]
        if not by:
            return False
        if id_ not in self._ill:
            subjects = {subject for fault in by for subject in self._subjects[fault.id]}
            self._ill[id_] = {name for subject in subjects for name in _workloads(subject)}
        ill = self._ill[id_]
        needed = {name for fault in by for name in fault.explains_missing[id_]}
        named = entry.missed or ({entry.subject} if entry.subject else set())
        # A text that does not tell what it is about may be about anything.
        return "" in ill or not (named or needed) or bool(needed & ill) or (bool(named) and named <= ill)


def _workloads(subject: str) -> Iterator[str]:
    """A subject, and the DaemonSets and Deployments whose generated pod names it may have; without namespace, too."""
    namespace, _, name = subject.rpartition("/")
    for _ in range(3):
        yield name
        if namespace:
            yield f"{namespace}/{name}"
        name, dash, _ = name.rpartition("-")
        if not dash:
            return


def _without_symptoms(found: Sequence[_Found]) -> list[_Found]:
    explained = _Explained(found)
    kept = [entry for entry in found if not explained.is_symptom(entry)]
    better = any(entry.specificity > GENERIC and entry.fault.nature is Nature.FAULT for entry in kept)
    return [entry for entry in kept if not (better and entry.specificity <= GENERIC)]


def _merged(found: Iterable[_Found]) -> list[_Found]:
    """One entry per fault: the names of the subject that speaks clearest, the lines of all."""
    out: dict[str, _Found] = {}
    for entry in sorted(found, key=lambda one: (-one.specificity, not one.structured, one.first)):
        first = out.setdefault(entry.fault.id, entry)
        if entry is not first:
            first.lines.update(entry.lines)
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
        evidence=tuple(islice(entry.lines, EVIDENCE_LINES)),
        specificity=entry.specificity,
    )
