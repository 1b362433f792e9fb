"""``kai-lab doctor``: the findings as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from kai_lab_pipeline.backends.doctor import Finding, Level, blocked, examine
from kai_lab_pipeline.backends.machine import Machine
from kai_lab_pipeline.settings import BackendName, Settings

BLOCKED_EXIT_CODE = 3
_SIGN = {Level.OK: "ok", Level.WARNING: "could be better", Level.BLOCKED: "MISSING"}
_STYLE = {Level.OK: "green", Level.WARNING: "yellow", Level.BLOCKED: "bold red"}


def doctor_command(
    settings: Settings, as_json: bool, backend: BackendName | None = None, *, machine: Machine | None = None
) -> int:
    """Print what was found; returns 0, or 3 when something stands in the way.

    Without `backend` a lab that rehearses is also told whether this machine could run it for real (kind): the rehearsal
    needs almost nothing, so nobody would ask the doctor about it alone.
    """
    if backend is not None:
        backends: tuple[BackendName, ...] = (backend,)
    elif settings.lab.backend == "rehearsal":
        backends = ("rehearsal", "kind")
    else:
        backends = (settings.lab.backend,)
    results = {name: examine(settings, name, machine) for name in backends}
    if as_json:
        print(json.dumps(_as_json(results), indent=2))
    else:
        _print_table(results)
    return BLOCKED_EXIT_CODE if any(map(blocked, results.values())) else 0


def _as_json(results: Mapping[BackendName, Sequence[Finding]]) -> dict[str, object]:
    return {
        "ready": {name: not blocked(findings) for name, findings in results.items()},
        "findings": [finding.to_json() | {"backends": names} for finding, names in _merged(results)],
    }


def _merged(results: Mapping[BackendName, Sequence[Finding]]) -> list[tuple[Finding, list[str]]]:
    """Each finding once, by its name, with the backends that need it."""
    merged: dict[str, tuple[Finding, list[str]]] = {}
    for backend, findings in results.items():
        for finding in findings:
            merged.setdefault(finding.name, (finding, []))[1].append(backend)
    return list(merged.values())


def _print_table(results: Mapping[BackendName, Sequence[Finding]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("", "what", "found", "needed", box=None, pad_edge=False)
    merged = [finding for finding, _ in _merged(results)]
    for finding in merged:
        needed = "" if finding.level is Level.OK else finding.needed
        sign = f"[{_STYLE[finding.level]}]{_SIGN[finding.level]}[/]"
        table.add_row(sign, *(escape(text) for text in (finding.name, finding.found, needed)))
    console.print(table)
    for finding in merged:
        if finding.fix:
            console.print(f"[{_STYLE[finding.level]}]{escape(finding.name)}[/]: {escape(finding.fix)}", soft_wrap=True)
    for name, findings in results.items():
        missing = [finding.name for finding in findings if finding.level is Level.BLOCKED]
        verdict = f"not ready: {', '.join(missing)}" if missing else "ready"
        console.print(f"Backend {name}: {verdict}", soft_wrap=True)
