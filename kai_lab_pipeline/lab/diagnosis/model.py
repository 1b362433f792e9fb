"""Faults as data: what each looks like, why it happens and what to do; and the answer made of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kai_lab_pipeline.lab.diagnosis.plain import plain, plain_line

GENERIC = 10
"""Says only that something failed; named when nothing better is known."""
SYMPTOM = 30
"""A state that many causes share (CrashLoopBackOff, a refused connection)."""
CLASS = 50
"""A class of faults with one remedy (an image that cannot be pulled for want of a login)."""
NAMED = 70
"""One fault of one component."""
EXACT = 90
"""One fault of one component in the lab's own names."""


class Nature(str, Enum):
    """What a known text means for the lab."""

    FAULT = "fault"
    EXPECTED = "expected"
    """The lab's own boundary: it has to be there on a mock without NVML in pods."""
    HARMLESS = "harmless"
    """Looks like trouble and is none."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Fact:
    """One thing seen: a line of text, or a part of an object that speaks about its state."""

    kind: str
    """text, status, event, container, pod, condition, deleting, workload, helm or state."""
    message: str
    line: str
    """What a person is shown as evidence."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """Names for the remedy's commands: namespace, pod, container, node, release, ..."""

    def __post_init__(self) -> None:
        # Names, reasons and messages come from whoever could write them into the cluster, and are shown as they are.
        object.__setattr__(self, "message", plain(self.message))
        object.__setattr__(self, "line", plain_line(self.line))
        for part in ("attributes", "names"):
            kept = {key: plain_line(value) for key, value in getattr(self, part).items()}
            object.__setattr__(self, part, kept)

    @property
    def subject(self) -> str:
        """What the fact is about, as namespace/name; empty where a text does not tell."""
        name = self.names.get("pod") or self.names.get("name") or ""
        return f"{self.names.get('namespace', '')}/{name}" if name else ""


@dataclass(frozen=True)
class Sign:
    """What gives a fault away: attributes of a fact, words in it, or both.

    `needle` is a literal in lower case that stands in every text `pattern` matches. It is searched first, so the
    pattern only ever runs on one line of bounded length.
    """

    specificity: int
    kind: str | None = None
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()
    needle: str = ""
    pattern: re.Pattern[str] | None = None

    def match(self, fact: Fact, lowered: str) -> Mapping[str, str] | None:
        """Names found in the fact, or None where it does not match. `lowered` is the message in lower-case ASCII."""
        if self.kind is not None and fact.kind != self.kind:
            return None
        for key, values in self.where:
            if fact.attributes.get(key) not in values:
                return None
        if self.needle and self.needle not in lowered:
            return None
        if self.pattern is None:
            return {}
        found = self.pattern.search(fact.message)
        if found is None:
            return None
        return {key: value for key, value in found.groupdict().items() if value}


MAKE_ANEW = "kai-lab run, without a scenario, makes the rehearsed cluster anew"
"""What mends a simulated node, which nobody can log in to."""
CORRECT = "kai-lab run, once lab.toml has it right: the rehearsal installs charts itself, without helm"
"""What mends a simulated release."""
_CONTROL_PLANE = "-control-plane"
LAB_NAMES: Mapping[str, str] = {"cluster": "kai-hami-test", "node": f"kai-hami-test{_CONTROL_PLANE}"}
"""Names of the lab's own cluster, where nothing that was seen tells another."""
_NEEDS_HELM = re.compile(r"(?:^|: )(?:or )?(?:helm\b|let helm\b)|^With helm 4")
_NEEDS_KIND = re.compile(r"^(?:or )?docker (?!login\b|logout\b|manifest\b)|(?<![{\w])kind(?![}\w])")


def needs_kind(step: str) -> bool:
    """Whether a step of a remedy works on a cluster of kind only: it names kind, or looks into docker's node."""
    return _NEEDS_KIND.search(step) is not None


@dataclass(frozen=True)
class Fault:
    """One known fault, with the words it is known by."""

    id: str
    component: str
    title: str
    """The error text a person would search for."""
    cause: str
    remedy: tuple[str, ...]
    """Commands or steps; ``{name}`` is filled in from what was seen. Where kind made the cluster, all of them fit."""
    signs: tuple[Sign, ...]
    transient: bool = False
    """Goes away by itself or with a retry."""
    versions: str = "any"
    links: tuple[str, ...] = ()
    nature: Nature = Nature.FAULT
    explains: tuple[str, ...] = ()
    """Ids of faults that are only symptoms where this one is seen of the same thing; ``*`` at the end is any ending."""
    explains_all: tuple[str, ...] = ()
    """Ids of faults that are only symptoms wherever they are seen, once this one is seen."""
    explains_missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Ids of faults that miss something that runs, each with the workloads without which it is missed anyway.

    They are only symptoms where this one is seen of such a workload, or of each that the symptom itself names.
    """
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Names used in the remedy where the text does not give them."""
    elsewhere: tuple[str, ...] = ()
    """The remedy on a given cluster, where leaving out kind's own steps would not do."""

    def remedy_on(self, backend: str) -> tuple[str, ...]:
        """The steps that fit a backend; all of them where it is kind, or where nothing is known of the cluster.

        Only kind has a node in docker on this machine. What docker or kind themselves said shows that they are in use.
        """
        if backend not in ("context", "rehearsal") or self.id.startswith(("docker.", "kind.")):
            return self.remedy
        fitting = tuple(step for step in self.remedy if not needs_kind(step))
        if backend == "context":
            return self.elsewhere or fitting
        without_helm = tuple(step for step in fitting if not _NEEDS_HELM.search(step))
        of_kind, of_helm = len(fitting) < len(self.remedy), len(without_helm) < len(fitting)
        return (*without_helm, *((CORRECT,) if of_helm else ()), *((MAKE_ANEW,) if of_kind else ()))

    @property
    def anchor(self) -> str:
        """The fault's anchor on the page of known issues."""
        return self.id.replace(".", "-")


@dataclass(frozen=True)
class Cause:
    """A fault that was recognised, with the real names filled in."""

    fault: Fault
    cause: str
    remedy: tuple[str, ...]
    evidence: tuple[str, ...]
    specificity: int

    @property
    def id(self) -> str:
        return self.fault.id

    @property
    def transient(self) -> bool:
        return self.fault.transient

    @property
    def nature(self) -> Nature:
        return self.fault.nature

    @property
    def known_issue(self) -> str:
        """Where the fault is described, relative to the project."""
        return f"docs/known-issues.md#{self.fault.anchor}"

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "component": self.fault.component,
            "cause": self.cause,
            "remedy": list(self.remedy),
            "transient": self.transient,
            "evidence": list(self.evidence),
        }


@dataclass(frozen=True)
class Diagnosis:
    """What is known about a text, some objects or an evidence bundle; best first."""

    causes: tuple[Cause, ...] = ()
    expected: tuple[Cause, ...] = ()
    """The lab's boundary where it stands as it should."""
    harmless: tuple[Cause, ...] = ()
    looked_at: tuple[str, ...] = ()
    """What was read, in words; shown when nothing was recognised."""
    well: bool = False
    """Objects or evidence were read, and none of it says that it is not well."""

    @property
    def known(self) -> bool:
        return bool(self.causes or self.expected or self.harmless)

    @property
    def all(self) -> tuple[Cause, ...]:
        """Faults first, then the expected boundary, then what is harmless."""
        return self.causes + self.expected + self.harmless

    @property
    def best(self) -> Cause | None:
        return self.all[0] if self.known else None

    def to_json(self) -> dict[str, Any]:
        """The public JSON shape of ``kai-lab explain --json``."""
        return {"known": self.known, "causes": [cause.to_json() for cause in self.all]}


def said(needle: str, pattern: str | None = None, at: int = NAMED) -> Sign:
    """Words in a text, a message or a log, in any letter case."""
    return Sign(at, needle=needle.lower(), pattern=_compiled(pattern))


def seen(
    kind: str, needle: str = "", pattern: str | None = None, at: int = NAMED, **where: str | tuple[str, ...]
) -> Sign:
    """A fact of that kind with these attributes (a tuple: any of these) and, where given, these words."""
    wanted = tuple((key, (value,) if isinstance(value, str) else value) for key, value in where.items())
    return Sign(at, kind, wanted, needle.lower(), _compiled(pattern))


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    return re.compile(pattern, re.IGNORECASE) if pattern else None


def names_for(fault: Fault, seen: Mapping[str, str], *, command: bool) -> dict[str, str]:
    """The names that fill in a fault's sentence or, with `command`, its commands: what was seen before what is usual.

    In a command a default in prose is left out, so that ``<name>`` shows what is to be put there.
    """
    found = {key: value for key, value in seen.items() if value}
    defaults = {key: value for key, value in fault.defaults.items() if not command or _COMMAND_WORD.match(value)}
    node = found.get("node", "")
    if node.endswith(_CONTROL_PLANE):
        found.setdefault("cluster", node.removesuffix(_CONTROL_PLANE))
    elif not node and "cluster" in found:
        found["node"] = found["cluster"] + _CONTROL_PLANE
    return {**LAB_NAMES, **defaults, **found}


_COMMAND_WORD = re.compile(r"(?!(?:object|given|named|another|tool|devices)\Z)[a-z0-9/][\w./:-]*\Z|[A-Z]+\Z")
"""Names of objects, paths, and placeholders in capitals."""
_PLACE = re.compile(r"\{([a-z_]+)\}")
_SHELL_SAFE = re.compile(r"[A-Za-z0-9._:/@%+=,-]{1,200}\Z")


def filled(template: str, names: Mapping[str, str], *, command: bool) -> str:
    """`template` with names filled in; an unknown one stays as ``<name>``.

    In a command a name with characters that mean something to a shell is quoted: it may come from a hostile text.
    """

    def value(found: re.Match[str]) -> str:
        name = found.group(1)
        text = plain_line(names.get(name, ""))[:200]
        if not text:
            return f"<{name}>"
        return text if not command or _SHELL_SAFE.match(text) else shlex.quote(text)

    return _PLACE.sub(value, template)
