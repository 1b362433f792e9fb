"""What a tag of each component is, which versions are newer, and which version sets are worth a lab.

A registry gives tags; only some of them are versions somebody may want to run. The rules per component are data
(`RULES`), first match wins, and a tag that fits no rule is *unknown*: listed, never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

VersionKey = tuple[object, ...]
"""Sort key of a version; opaque, made by `version_key`."""


class TagKind(str, Enum):
    STABLE = "stable"
    PRE_RELEASE = "pre-release"
    FIPS = "fips build"
    COMMIT = "commit build"
    IMAGE = "image tag"
    SIGNATURE = "signature"
    RETRACTED = "retracted"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


class TagRule(NamedTuple):
    """Tags of this shape are not candidates, for this reason."""

    kind: TagKind
    pattern: re.Pattern[str]
    reason: str


class Retraction(NamedTuple):
    """Published versions that their authors, or measurement, took back."""

    pattern: re.Pattern[str]
    reason: str


@dataclass(frozen=True)
class ComponentRules:
    """How the tags of one component are read."""

    stable: re.Pattern[str]
    excluded: tuple[TagRule, ...]
    retracted: tuple[Retraction, ...] = ()
    suffix: str = ""
    """A suffix that every stable version carries; semver alone would take it for a pre-release."""


def _rule(kind: TagKind, pattern: str, reason: str) -> TagRule:
    return TagRule(kind, re.compile(pattern, re.ASCII | re.IGNORECASE), reason)


_NUMBER = r"v?[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}"
_BUILD = r"(?:[+_][0-9A-Za-z.-]+)?"
_PRE = r"(?:rc|alpha|beta|pre|preview|dev|snapshot|nightly)"
_SIGNATURES = _rule(
    TagKind.SIGNATURE, r"sha256-[0-9a-f]{64}(?:\.(?:sig|att|sbom))?", "a signature or attestation, not a chart"
)
_COMMITS = _rule(
    TagKind.COMMIT,
    rf"v?0\.0\.0-[0-9a-f]{{7,40}}{_BUILD}|{_NUMBER}-[0-9]+-g[0-9a-f]{{7,40}}|(?:sha-)?[0-9a-f]{{40}}|sha-[0-9a-f]{{7,40}}",
    "a commit build of a branch, not a release",
)
_FIPS = _rule(
    TagKind.FIPS,
    rf"{_NUMBER}-(?:[0-9A-Za-z.-]*[.-])?fips(?:[.-][0-9A-Za-z.-]+)?{_BUILD}",
    "a FIPS build of a release: the same version, compiled with another crypto module",
)
_PRE_RELEASES = _rule(
    TagKind.PRE_RELEASE, rf"{_NUMBER}-{_PRE}[0-9A-Za-z.-]*{_BUILD}", "a pre-release; the release itself is waited for"
)
_MOVING = _rule(
    TagKind.IMAGE, r"latest|main|master|edge|(?:ci|main)-latest", "a moving tag: its content changes under the name"
)
_PLAIN = re.compile(_NUMBER + _BUILD, re.ASCII)
_COMMON = (_SIGNATURES, _COMMITS, _FIPS, _PRE_RELEASES, _MOVING)

RULES: Mapping[str, ComponentRules] = {
    "kai_scheduler": ComponentRules(
        stable=_PLAIN,
        excluded=_COMMON,
        retracted=(
            Retraction(
                re.compile(r"v?0\.20\.[0-9]+(?:[+_].*)?", re.ASCII),
                "retracted: published in November 2025, older than v0.17 although semver says newer; without the GPU"
                " operator's ClusterPolicy CRD only kai-operator ever runs (measured)",
            ),
        ),
    ),
    "nvml_mock": ComponentRules(stable=_PLAIN, excluded=_COMMON),
    "kai_resource_isolator": ComponentRules(
        stable=re.compile(rf"{_NUMBER}-chart{_BUILD}", re.ASCII),
        excluded=(
            _SIGNATURES,
            _COMMITS,
            _FIPS,
            _rule(
                TagKind.IMAGE,
                r"v[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}(?:-rc\.?[0-9]*)?|latest|ci-latest|main|master",
                "an image tag: images and charts share this repository, charts end in -chart",
            ),
            _rule(
                TagKind.PRE_RELEASE,
                rf"{_NUMBER}-{_PRE}[0-9A-Za-z.-]*(?:-chart)?|{_NUMBER}-chart-{_PRE}[0-9A-Za-z.-]*",
                "a pre-release; the release itself is waited for",
            ),
        ),
        suffix="-chart",
    ),
    "device_plugin": ComponentRules(stable=_PLAIN, excluded=_COMMON),
}
"""Rules per component; those of the device plugin are for the releases of k8s-test-infra that its manifest comes with.
Sources: KAI's and k8s-test-infra's publishing workflows, measured retraction of v0.20."""

SHORT_NAMES: Mapping[str, str] = {
    "kai_scheduler": "kai",
    "nvml_mock": "nvml",
    "kai_resource_isolator": "isolator",
    "device_plugin": "plugin",
}
"""How components are called in partition and cluster names."""

_SEMVER = re.compile(
    r"v?(?P<numbers>[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9})(?:-(?P<pre>[0-9A-Za-z.-]+))?(?:\+(?P<build>[0-9A-Za-z.-]+))?",
    re.ASCII,
)


def helm_version(tag: str) -> str:
    """The chart version behind an OCI tag: helm writes ``_`` for ``+``, which tags cannot hold."""
    return tag.replace("_", "+")


def normalized(version: str) -> str:
    """One spelling per version: without the leading ``v``, build metadata after ``+``."""
    text = helm_version(version)
    return text[1:] if re.match(r"v[0-9]", text) else text


def version_key(version: str, suffix: str = "") -> VersionKey | None:
    """Sort key by semver precedence, or None for what is no version.

    `suffix` is taken off first, so ``1.1.0-chart`` ranks as the release 1.1.0 with suffix ``-chart``. Semver gives
    build metadata no rank; here it ranks last, because another build is another chart.
    """
    text = normalized(version)
    if suffix:
        head, plus, build = text.partition("+")
        text = head.removesuffix(suffix) + plus + build
    match = _SEMVER.fullmatch(text)
    if match is None:
        return None
    numbers = tuple(int(part) for part in match["numbers"].split("."))
    pre, build = match["pre"], match["build"]
    return (numbers, (1,) if pre is None else (0, *_identifiers(pre)), _identifiers(build) if build else ())


def _identifiers(text: str) -> tuple[tuple[int, int, str], ...]:
    # Semver: numeric identifiers compare as numbers and rank below words; a longer list of equal ones ranks higher.
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in text.split("."))


def component_rules(component: str, pinned: str = "") -> ComponentRules:
    """The rules of a component. Raises KeyError, naming the known ones, for another name.

    Somebody who pins a suffix-less isolator chart has another repository, where charts live alone: plain rules then.
    """
    try:
        rules = RULES[component]
    except KeyError:
        raise KeyError(f"no tag rules for {component!r}; known: {', '.join(RULES)}") from None
    if rules.suffix and _PLAIN.fullmatch(pinned) and not pinned.startswith("v"):
        return ComponentRules(stable=_PLAIN, excluded=_COMMON)
    return rules


def component_suffix(component: str) -> str:
    """The suffix that a component's stable versions carry; empty for components without rules of their own."""
    return RULES[component].suffix if component in RULES else ""


def tag_kind(rules: ComponentRules, tag: str) -> tuple[TagKind, str]:
    """What a tag is, and why it is no candidate (empty for a stable version)."""
    for rule in rules.excluded:
        if rule.pattern.fullmatch(tag):
            return rule.kind, rule.reason
    for retraction in rules.retracted:
        if retraction.pattern.fullmatch(tag):
            return TagKind.RETRACTED, retraction.reason
    if rules.stable.fullmatch(tag):
        return TagKind.STABLE, ""
    return TagKind.UNKNOWN, "fits no rule of this component"


class Excluded(NamedTuple):
    """A tag that is left out, and why."""

    tag: str
    reason: str


@dataclass(frozen=True)
class ComponentVersions:
    """The tags of one component, sorted out against the pinned version. Every tag is in exactly one list."""

    component: str
    pinned: str
    newer: tuple[str, ...] = ()
    """Stable and newer than the pinned version, oldest first, one spelling per version."""
    excluded: tuple[Excluded, ...] = ()
    """Left out by a rule, whatever their age, oldest first."""
    unknown: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    """Spellings of the pinned version that the registry has; empty when it is gone from there."""
    older: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ()
    """Further spellings of versions in `newer` (``0.18.5`` beside ``v0.18.5``)."""

    @property
    def newer_but_excluded(self) -> tuple[Excluded, ...]:
        """What a plain look at the registry would take for news."""
        suffix = component_rules(self.component, self.pinned).suffix
        pinned = version_key(self.pinned, suffix)
        keys = ((entry, version_key(entry.tag, suffix)) for entry in self.excluded)
        return tuple(entry for entry, key in keys if key is not None and pinned is not None and key > pinned)


def classify(component: str, tags: Iterable[str], pinned: str) -> ComponentVersions:
    """Sort the tags of a component out against its pinned version.

    Raises KeyError for a component without rules. A pinned version that is no version at all (a local build) leaves
    every stable tag newer.
    """
    rules = component_rules(component, pinned)
    pinned_key = version_key(pinned, rules.suffix)
    stable: dict[VersionKey, list[str]] = {}
    excluded: list[Excluded] = []
    unknown: list[str] = []
    for tag in dict.fromkeys(tags):
        kind, reason = tag_kind(rules, tag)
        key = version_key(tag, rules.suffix)
        if normalized(tag) == normalized(pinned) or (kind is TagKind.STABLE and key is not None):
            stable.setdefault(key if key is not None else (tag,), []).append(tag)
        elif kind is TagKind.UNKNOWN:
            unknown.append(tag)
        else:
            excluded.append(Excluded(tag, reason))
    same: list[str] = []
    older: list[str] = []
    newer: list[tuple[VersionKey, str]] = []
    spellings: list[str] = []
    for key, group in stable.items():
        # helm finds a version only under the very tag: keep the spelling that the pinned one has, where it exists.
        group.sort(key=lambda tag: (tag.startswith("v") != pinned.startswith("v"), tag))
        if key == pinned_key or normalized(group[0]) == normalized(pinned):
            same.extend(group)
        elif pinned_key is not None and key < pinned_key:
            older.extend(group)
        else:
            newer.append((key, group[0]))
            spellings.extend(group[1:])

    def oldest_first(tag: str) -> tuple[int, VersionKey, str]:
        return _precedence(tag, rules.suffix)

    return ComponentVersions(
        component=component,
        pinned=pinned,
        newer=tuple(tag for _, tag in sorted(newer)),
        excluded=tuple(sorted(excluded, key=lambda entry: oldest_first(entry.tag))),
        unknown=tuple(sorted(unknown)),
        same=tuple(same),
        older=tuple(sorted(older, key=oldest_first)),
        spellings=tuple(sorted(spellings, key=oldest_first)),
    )


def _precedence(tag: str, suffix: str) -> tuple[int, VersionKey, str]:
    """Sort key: versions by precedence, then what is none, by name."""
    key = version_key(tag, suffix)
    return (1, (), tag) if key is None else (0, key, tag)


def repushed(known: Mapping[str, str], seen: Mapping[str, str]) -> tuple[str, ...]:
    """Names that both have and whose digest is another one now: same name, other content.

    What only one of them knows is no news: a digest that nobody asked for before has not changed.
    """
    return tuple(sorted(name for name, digest in seen.items() if known.get(name, digest) != digest))
