"""Two versions of a chart compared before any cluster is touched: what would change, and which of our values die.

Pure: values trees and objects in, a structured difference and a text out. Objects are those rendered with the lab's
values; without a renderer at hand values, CRDs and metadata are still compared, and the rest says that it was not.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

import yaml

from kai_lab_pipeline.lab.chart_facts import (
    Identity,
    crd_versions,
    effects_of,
    identity_of,
    images_of,
    lookup,
    quiet,
    reads_value,
    split_key,
    value_keys,
)
from kai_lab_pipeline.lab.evidence import K8sObject
from kai_lab_pipeline.lab.versions import normalized

_VERSION = "(its version)"
MAX_OBJECT_LINES = 400
"""Longer objects (CRDs mostly) are said to differ without a text."""


@dataclass(frozen=True)
class ChartContents:
    """One version of a chart."""

    name: str
    version: str
    values: Mapping[str, Any]
    """values.yaml, with those of subcharts below their names."""
    crds: tuple[K8sObject, ...] = ()
    """Objects of the crds/ folder, which helm never renders."""
    objects: tuple[K8sObject, ...] | None = None
    """Rendered with the lab's values; None when nothing could render them."""
    unrendered: str = "no helm at hand"
    """Why `objects` is None, where it is."""
    app_version: str = ""
    kube_version: str = ""
    """Kubernetes versions that the chart accepts, as it says."""
    templates: str = field(default="", repr=False)
    """Text of the templates, to tell a value that is only no default any more from one that nothing reads."""


class ValueFate(str, Enum):
    """What becomes of a value that the lab sets."""

    GONE = "gone"
    """The pinned chart has the key, the new one does not: helm accepts it silently, and it has no effect."""
    DEPRECATED = "deprecated"
    """No default of the new chart, and its templates read it all the same (KAI v0.18: global.gpuSharing)."""
    NEVER_THERE = "never there"
    """Neither chart has the key among its defaults, and no template of theirs that was read names it: mistyped."""
    UNREAD = "unread"
    """In neither chart's defaults, and there are no templates to read: mistyped, or read without a default."""
    OTHER_TYPE = "other type"
    """The key is there and its default is of another kind (a tree where a switch was)."""
    OPEN = "open"
    """Below a part that the chart leaves free: cannot be told from the values."""

    def __str__(self) -> str:
        return self.value


_DEAD = frozenset({ValueFate.GONE, ValueFate.NEVER_THERE, ValueFate.OTHER_TYPE})


@dataclass(frozen=True)
class ValueProblem:
    """A value of ours that does not mean in the new chart what it means in the pinned one."""

    key: str
    fate: ValueFate
    similar: tuple[str, ...] = ()
    """Keys of the new chart that look like its successor."""
    nearest: str = ""
    """The key of the new chart that is spelled most like it; empty for a chart without values."""

    @property
    def sentence(self) -> str:
        hint = f" Perhaps {' or '.join(self.similar)} now." if self.similar else ""
        return {
            ValueFate.GONE: f"{self.key} no longer exists: helm accepts it and it has no effect.{hint}",
            ValueFate.DEPRECATED: f"{self.key} has no default there; the templates read it, as yet.{hint}",
            ValueFate.NEVER_THERE: f"{self.key} is known in neither version: helm accepts it, it has no effect.{hint}",
            ValueFate.UNREAD: f"{self.key} is in neither version's defaults: mistyped, or without a default.{hint}",
            ValueFate.OTHER_TYPE: f"{self.key} is of another kind now.",
            ValueFate.OPEN: f"{self.key} is below a part that the chart leaves free: its effect must be checked.",
        }[self.fate]


@dataclass(frozen=True)
class Change:
    """Something named, before and after; None where it is absent."""

    name: str
    before: str | None
    after: str | None

    def line(self) -> str:
        if self.before is None:
            return f"+ {self.name}: {self.after}" if self.after else f"+ {self.name}"
        if self.after is None:
            return f"- {self.name}: {self.before}" if self.before else f"- {self.name}"
        return f"~ {self.name}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class ChartDiff:
    """How a new chart version differs from the pinned one."""

    chart: str
    pinned: str
    new: str
    rendered: bool
    """Whether objects could be compared; without, `images`, `resources`, `effects` and `texts` say nothing."""
    unrendered: str = ""
    """Why they could not."""
    values: tuple[ValueProblem, ...] = ()
    defaults: tuple[Change, ...] = ()
    """Default values that came, went or changed."""
    crds: tuple[Change, ...] = ()
    images: tuple[Change, ...] = ()
    resources: tuple[Change, ...] = ()
    effects: tuple[Change, ...] = ()
    """Container arguments and settings that the lab's checks look at."""
    other: tuple[Change, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    """Unified difference by object."""

    @property
    def dead_values(self) -> tuple[ValueProblem, ...]:
        """Values of ours without effect in the new chart: a broken check, not a surprise later."""
        return tuple(problem for problem in self.values if problem.fate in _DEAD)

    @property
    def lost_effects(self) -> tuple[Change, ...]:
        """Checked arguments and settings that the new chart no longer sets, or sets otherwise."""
        return tuple(change for change in self.effects if change.before is not None)

    @property
    def empty(self) -> bool:
        parts = (self.values, self.defaults, self.crds, self.images, self.resources, self.effects, self.other)
        return not any(parts) and not self.texts

    def text(self) -> str:
        """The difference for a person, what matters most first."""
        lines = [f"{self.chart} {self.pinned} -> {self.new}"]
        if not self.rendered:
            lines.append(
                f"Not rendered ({self.unrendered}): images, resources and effects are not_evaluated; "
                "values, CRDs and metadata were compared."
            )
        if self.empty:
            lines.append("No difference.")
        if self.values:
            lines += ["", "Our values:", *(f"! {problem.sentence}" for problem in self.values)]
        for title, changes in (
            ("Effects that are checked:", self.effects),
            ("CRD versions:", self.crds),
            ("Images:", self.images),
            ("Resources:", self.resources),
            ("Chart:", self.other),
            ("Default values:", self.defaults),
        ):
            if changes:
                lines += ["", title, *(change.line() for change in changes)]
        for name, text in self.texts.items():
            lines += ["", f"{name}:", text]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        document["values"] = [{**asdict(one), "fate": one.fate.value, "sentence": one.sentence} for one in self.values]
        document["texts"] = dict(self.texts)
        return document


def compare_charts(pinned: ChartContents, new: ChartContents, our_values: Mapping[str, Any]) -> ChartDiff:
    """Compare a chart version with the pinned one. `our_values` are the dotted keys that the lab sets."""
    rendered = pinned.objects is not None and new.objects is not None
    before, after = _by_identity(pinned.objects if rendered else ()), _by_identity(new.objects if rendered else ())
    all_before = (*pinned.crds, *(pinned.objects or ()))
    all_after = (*new.crds, *(new.objects or ()))
    return ChartDiff(
        chart=new.name,
        pinned=pinned.version,
        new=new.version,
        rendered=rendered,
        unrendered=next((one.unrendered for one in (pinned, new) if one.objects is None), ""),
        values=tuple(_value_problems(pinned, new, our_values)),
        defaults=_changes(value_keys(pinned.values), value_keys(new.values)),
        crds=_changes(crd_versions(all_before), crd_versions(all_after)),
        images=_changes(images_of(before.values()), images_of(after.values())),
        resources=tuple(
            change
            for change in _changes({str(one): "" for one in before}, {str(one): "" for one in after})
            if change.before is None or change.after is None
        ),
        effects=_changes(effects_of(before.values()), effects_of(after.values())),
        other=_changes(_metadata(pinned), _metadata(new)),
        texts=dict(_texts(before, after, _spellings(pinned), _spellings(new))),
    )


def _metadata(chart: ChartContents) -> dict[str, str]:
    return {"Kubernetes versions accepted": chart.kube_version} if chart.kube_version else {}


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    names = sorted({*before, *after})
    found = (Change(name, before.get(name), after.get(name)) for name in names)
    return tuple(change for change in found if change.before != change.after)


def _value_problems(pinned: ChartContents, new: ChartContents, ours: Mapping[str, Any]) -> Iterator[ValueProblem]:
    known = tuple(value_keys(new.values))
    for key in ours:
        path = split_key(key)
        was, now = lookup(pinned.values, path), lookup(new.values, path)
        if now.found:
            if was.found and isinstance(was.value, Mapping) is not isinstance(now.value, Mapping):
                yield ValueProblem(key, ValueFate.OTHER_TYPE)
        elif now.open and not was.found:
            yield ValueProblem(key, ValueFate.OPEN)
        elif _reads(new, path):
            yield ValueProblem(key, ValueFate.DEPRECATED, _similar(key, known), _nearest(key, known))
        else:
            fate = ValueFate.NEVER_THERE if new.templates else ValueFate.UNREAD
            if was.found or was.open or _reads(pinned, path):
                fate = ValueFate.GONE
            yield ValueProblem(key, fate, _similar(key, known), _nearest(key, known))


def _reads(chart: ChartContents, path: Sequence[str]) -> bool:
    """Whether a template names a value without a default, or takes a part above it whole that has none either.

    Templates of a subchart name its values without the subchart.
    """
    text, whole = chart.templates, tuple(path)
    if reads_value(text, whole) or (len(whole) == 2 and reads_value(text, whole[1:])):
        return True
    above = (whole[:length] for length in range(1, len(whole)))
    return any(reads_value(text, part, whole=True) for part in above if not lookup(chart.values, part).found)


def _similar(key: str, known: Sequence[str]) -> tuple[str, ...]:
    """Keys that a renamed value may have now: the last word kept and made longer, or nearly the same spelling."""
    last = key.rpartition(".")[2].lower()
    longer = [one for one in known if one.rpartition(".")[2].lower().startswith(last) and last != "enabled"]
    close = difflib.get_close_matches(key, known, n=2, cutoff=0.8)
    return tuple(dict.fromkeys([*longer, *close]))[:3]


def _nearest(key: str, known: Sequence[str]) -> str:
    """The one key to look at first: what looks like its successor, else what shares most of its path and spelling."""
    path = split_key(key)

    def likeness(other: str) -> tuple[int, float]:
        shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(path, split_key(other), strict=False))
        return len(list(shared)), difflib.SequenceMatcher(None, key, other).ratio()

    return next(iter(_similar(key, known)), "") or max(known, key=likeness, default="")


def _by_identity(objects: Sequence[K8sObject] | None) -> dict[Identity, K8sObject]:
    return {identity_of(one): one for one in objects or ()}


def _spellings(chart: ChartContents) -> re.Pattern[str] | None:
    """A chart's version and that of its application, as they stand in objects."""
    spelled = {one for one in (normalized(chart.version), normalized(chart.app_version)) if one}
    longest_first = "|".join(re.escape(one) for one in sorted(spelled, key=len, reverse=True))
    return re.compile(rf"(?<![\w.])v?(?:{longest_first})(?![\w.])") if spelled else None


def _without(value: Any, version: re.Pattern[str] | None) -> Any:
    """A value without the version that every release changes, which `images` tells."""
    if isinstance(value, Mapping):
        return {key: _without(nested, version) for key, nested in value.items()}
    if isinstance(value, list):
        return [_without(nested, version) for nested in value]
    return version.sub(_VERSION, value) if version is not None and isinstance(value, str) else value


def _texts(
    before: Mapping[Identity, K8sObject],
    after: Mapping[Identity, K8sObject],
    old_version: re.Pattern[str] | None,
    new_version: re.Pattern[str] | None,
) -> Iterator[tuple[str, str]]:
    for identity in [one for one in before if one in after]:
        left, right = quiet(before[identity]), quiet(after[identity])
        if left == right:
            continue
        left, right = _without(left, old_version), _without(right, new_version)
        if left == right:
            continue
        if identity.kind == "CustomResourceDefinition":
            yield str(identity), "its schema or versions changed"
            continue
        was, now = _yaml_lines(left), _yaml_lines(right)
        if max(len(was), len(now)) > MAX_OBJECT_LINES:
            yield str(identity), f"changed; {len(was)} and {len(now)} lines are too long to show"
            continue
        unified = difflib.unified_diff(was, now, fromfile="pinned", tofile="new", lineterm="", n=2)
        yield str(identity), "\n".join(unified)


def _yaml_lines(value: Any) -> list[str]:
    plain = json.loads(json.dumps(value, default=str))  # no anchors, no tags of Python types
    text: str = yaml.safe_dump(plain, sort_keys=True, allow_unicode=True, width=4096)
    return text.splitlines()
