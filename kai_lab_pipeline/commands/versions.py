"""``kai-lab versions``: what is pinned, what is new, what was left out and why, and where nobody could look."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kai_lab_pipeline.clients.discovery import Lookup, look_up, look_up_git
from kai_lab_pipeline.commands.common import settings_with
from kai_lab_pipeline.lab.versions import Excluded
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.chart_comparison import with_registry
from kai_lab_pipeline.workbench.nights import Nights
from kai_lab_pipeline.workbench.set_digests import look_at, with_content

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 8
"""Longest list of tags in a table cell; --json has all."""


def discover(settings: Settings) -> dict[str, Any]:
    """The answer of ``kai-lab versions --json``; ``git`` and ``manifests`` are there only where a checkout is set,
    ``damages`` where something in the store of the nights cannot be read.

    Raises WrongUse for settings that cannot be asked with; a lookup that failed is part of the answer.
    """
    return _as_json(_look(settings), look_up_git(settings), Nights(settings).damages())


def versions_command(*, as_json: bool) -> int:
    """Print the versions; returns the exit code. The rehearsal asks a registry of its own."""
    with with_registry(settings_with({})) as settings:
        return print_versions(settings, as_json)


def print_versions(settings: Settings, as_json: bool, console: Console | None = None) -> int:
    """Print the versions; 0, or 3 when at least one lookup failed. Raises WrongUse."""
    found = _look(settings)
    git = look_up_git(settings)
    damages = Nights(settings).damages()
    if as_json:
        json.dump(_as_json(found, git, damages), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _print(found, git, damages, console)
    asked = [*found.values(), *git.values()]
    return 3 if any(lookup.error is not None for lookup in asked) else 0


def _look(settings: Settings) -> dict[str, Lookup]:
    """What the registries have, with what was pushed again of the version sets that nights have stored."""
    nights, found = Nights(settings), look_up(settings)
    return with_content(settings, nights, found, look_at(settings, found, nights.sets().values()))


def _as_json(found: Mapping[str, Lookup], git: Mapping[str, Lookup], damages: Sequence[str]) -> dict[str, Any]:
    answer: dict[str, Any] = {"components": {component: lookup.to_json() for component, lookup in found.items()}}
    if "nvml_mock" in git:
        answer["git"] = {"checkout": git["nvml_mock"].source, **git["nvml_mock"].to_json()}
    if "device_plugin" in git:
        manifest = git["device_plugin"]
        answer["manifests"] = {"device_plugin": {"source": manifest.source, **manifest.to_json()}}
    if damages:
        answer["damages"] = list(damages)
    return answer


def _print(
    found: Mapping[str, Lookup], git: Mapping[str, Lookup], damages: Sequence[str], console: Console | None
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    table = Table("component", "pinned", "new", "new but excluded, because", "not understood", title="Versions")
    rows = [*found.items(), *((f"{component} (git)", lookup) for component, lookup in git.items())]
    for component, lookup in rows:
        table.add_row(component, lookup.pinned, *(Text(cell, style) for cell, style in _cells(lookup)))
    console.print(table)
    for component, lookup in rows:
        if lookup.error is not None:
            console.print(Text(f"\n{component}: could not look.", "bold red"))
            console.print(Text(_plain(lookup.error.text(), keep_lines=True)))
        elif lookup.versions is not None and not lookup.versions.same:
            warning = f"\n{component}: the pinned {lookup.pinned} is not at {lookup.source} any more."
            console.print(Text(_plain(warning, keep_lines=True), "yellow"))
        for sentence in lookup.content:
            console.print(Text(_plain(f"\n{component}: {sentence}.", keep_lines=True), "yellow"))
    for sentence in damages:
        console.print(Text(_plain(f"\n{sentence}", keep_lines=True), "yellow"))


def _cells(lookup: Lookup) -> list[tuple[str, str]]:
    if lookup.versions is None:
        return [("could not look", "bold red") if lookup.error else (_plain(lookup.note), ""), ("", ""), ("", "")]
    found = lookup.versions
    new = (_list(found.newer), "bold green") if found.newer else ("nothing new", "dim")
    return [new, (_reasons(found.newer_but_excluded), ""), (_list(found.unknown), "yellow")]


def _reasons(excluded: tuple[Excluded, ...]) -> str:
    by_reason: dict[str, list[str]] = {}
    for entry in excluded:
        by_reason.setdefault(entry.reason, []).append(entry.tag)
    return "\n".join(f"{_list(tuple(tags))}: {_plain(reason)}" for reason, tags in by_reason.items())


def _list(tags: tuple[str, ...]) -> str:
    shown = [_plain(tag) for tag in tags[-SHOWN:]]
    more = len(tags) - len(shown)
    return ", ".join([*([f"{more} more"] if more else []), *shown])


def _plain(text: str, *, keep_lines: bool = False) -> str:
    """Without control characters: tags and answers are other people's text on somebody's terminal."""
    return re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]" if keep_lines else r"[\x00-\x1f\x7f-\x9f]", "\ufffd", text)
