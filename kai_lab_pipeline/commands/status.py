"""`kai-lab status`: what is built, whether it is in sync with the project, and whether the cluster still has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kai_lab_pipeline.backends.rehearsal import RehearsalBackend
from kai_lab_pipeline.commands.common import OK, console, dagster_instance, settings_with, told, told_lines
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.lab.morning import alarm, said_of_last, said_of_next
from kai_lab_pipeline.lab.spec import ASSETS, CHECKS
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.nights import Nights
from kai_lab_pipeline.workbench.state import LabState, WriteLock, now

if TYPE_CHECKING:
    from dagster import DagsterInstance
    from rich.console import Console

_STYLE = {"in sync": "green", "behind": "cyan", "gone": "dim"}


def status_command(*, as_json: bool) -> int:
    settings = settings_with({})
    state = LabState.of(settings)
    state.check_backend()
    found = _status(settings, state)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        _print(found)
    return OK


def _status(settings: Settings, state: LabState) -> dict[str, Any]:
    lab = Lab(settings, "status", lambda _: None)
    cluster = _cluster(lab)
    recorded = state.recorded() is not None
    with _history(settings, needed=recorded) as instance:
        assets = _assets(settings, lab, cluster, instance) if recorded and instance is not None else []
        nightly = _nightly(settings, instance)
    return {
        "lab": state.name,
        "backend": settings.lab.backend,
        "folder": str(state.folder),
        "cluster": cluster,
        "writer": WriteLock(state.folder).holder() if state.folder.is_dir() else None,
        "assets": assets,
        "report": str(state.latest_report / "report.html") if state.latest_report.is_dir() else None,
        "nightly": nightly,
    }


@contextmanager
def _history(settings: Settings, *, needed: bool) -> Iterator[DagsterInstance | None]:
    """Dagster's history; None where there is none and nothing needs one."""
    if not needed and not settings.dagster_home.is_dir():
        yield None
        return
    with dagster_instance(settings) as instance:
        yield instance


def _nightly(settings: Settings, instance: DagsterInstance | None) -> dict[str, Any] | None:
    """The last nightly, the next one, and why one is missing; None where none ever ran and none is scheduled.

    Worked out here and now, because neither the daemon nor a page that was written once can tell that nothing runs.
    """
    from kai_lab_pipeline.assets.matrix import next_night, on_since

    last = Nights(settings).last_nightly()
    next_at = None if instance is None else next_night(instance, settings)
    if last is None and next_at is None:
        return None
    return {
        "last": None if last is None else last.to_json(),
        "next_at": None if next_at is None else next_at.isoformat(),
        "alarm": alarm(now(), last, next_at, None if instance is None else on_since(instance)),
        "text": f"{said_of_last(last)}, {said_of_next(next_at)}.",
    }


def _cluster(lab: Lab) -> dict[str, Any]:
    """Whether the cluster is there; `exists` is None where the backend could not tell, which does not mean gone."""
    try:
        exists = lab.backend.cluster_exists()
    except LabError as error:
        return {"exists": None, "answers": False, "error": error.text()}
    return {"exists": exists, **(_live(lab) if exists else {})}


def _live(lab: Lab) -> dict[str, Any]:
    try:
        cluster = lab.backend.connect()
        found = {"answers": True, "incarnation": cluster.incarnation(), "kubeconfig": str(cluster.kubeconfig)}
        scenario = lab.backend.living_scenario() if isinstance(lab.backend, RehearsalBackend) else None
        return found | ({"scenario": scenario} if scenario else {})
    except LabError as error:
        return {"answers": False, "error": error.what}


def _assets(settings: Settings, lab: Lab, cluster: dict[str, Any], instance: DagsterInstance) -> list[dict[str, Any]]:
    """Each asset's last materialisation and checks from Dagster's history, and what was changed on the cluster since.

    Only what was made in this very lab: labs of one project share the history.
    """
    from kai_lab_pipeline.assets.group import Group
    from kai_lab_pipeline.assets.versions import last_made_here, materialised_in, passes_here
    from kai_lab_pipeline.automation.staleness import Sync, sync_states
    from kai_lab_pipeline.definitions import build_definitions

    rows = []
    group = Group("lab", settings)
    states = sync_states(instance, build_definitions(settings), group)
    built = materialised_in(last_made_here(instance, group, "cluster"))
    known = built.metadata.get("incarnation") if built is not None else None
    drift = live_drift(lab, str(known.value) if known is not None else None, cluster)
    for name in ASSETS:
        gone = states[name].sync is Sync.GONE
        event = None if gone else last_made_here(instance, group, name)
        checks = [check.name for check in CHECKS.get(name, ())]
        passed = [check for check in checks if not gone and passes_here(instance, group, name, check)]
        rows.append(
            {
                "asset": name,
                "materialised_at": event.timestamp if event else None,
                "run_id": event.run_id if event else None,
                "checks": len(checks),
                "passed": len(passed),
                "sync": str(states[name].sync),
                "reason": states[name].reason,
                "drift": drift.get(name, []),
            }
        )
    return rows


def live_drift(lab: Lab, incarnation: str | None, cluster: dict[str, Any]) -> dict[str, list[str]]:
    """What is other on the cluster than the lab applied it, as sentences by asset; nothing where nothing was built."""
    if incarnation is None:
        return {}
    if cluster["exists"] is None:
        return {"cluster": [f"the cluster cannot be asked for: {cluster['error']}"]}
    if not cluster["exists"]:
        return {"cluster": ["the cluster is gone"]}
    try:
        if lab.backend.connect().incarnation() != incarnation:
            return {"cluster": ["the cluster was rebuilt since, and not by this lab's history"]}
        return {asset: _drift(lab, asset) for asset in ASSETS}
    except LabError as error:
        return {"cluster": [f"the cluster cannot be asked: {error.what}"]}


def _drift(lab: Lab, asset: str) -> list[str]:
    from kai_lab_pipeline.clients.manifests import ManifestError
    from kai_lab_pipeline.workbench.drift import drift_of

    try:
        return [drift.text() for drift in drift_of(lab, asset)]
    except ManifestError as error:
        return [f"cannot be compared with the cluster: {error.what} ({error.where})"]


def _print_nightly(nightly: dict[str, Any] | None, out: Console) -> None:
    if nightly is None:
        return
    if nightly["alarm"]:
        out.print(f"[bold red]ALARM[/]: {told(nightly['alarm'])}", soft_wrap=True)
    out.print(nightly["text"], soft_wrap=True)


def _print(found: dict[str, Any]) -> None:
    from datetime import datetime

    from rich.table import Table

    out = console()
    cluster = found["cluster"]
    if cluster["exists"] is None:
        said = f"whether there is a cluster could not be asked: {cluster['error']}"
    elif not cluster["exists"]:
        said = "there is no cluster"
    elif cluster.get("answers"):
        said = f"the cluster answers (kubeconfig {cluster['kubeconfig']})"
    else:
        said = f"the cluster is there and does not answer: {cluster.get('error')}"
    out.print(f"Lab [bold]{found['lab']}[/], backend [bold]{found['backend']}[/]: {told_lines(said)}", soft_wrap=True)
    if cluster.get("scenario"):
        out.print(f"It rehearses scenario [bold]{told(cluster['scenario'])}[/]: what is red may be the scenario's.")
    writer = found["writer"]
    if writer is not None:
        out.print(f"At work: {told(str(writer.get('purpose')))}, pid {writer.get('pid')}, since {writer.get('since')}")
    _print_nightly(found["nightly"], out)
    if not found["assets"]:
        out.print("Nothing was materialised yet: kai-lab run")
        return
    table = Table()
    for column in ("asset", "materialised", "run", "checks passed", "in sync"):
        table.add_column(column)
    for row in found["assets"]:
        at = row["materialised_at"]
        when = (
            datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")
            if at
            else ("" if row["sync"] == "gone" else "never")
        )
        counted = f"{row['passed']}/{row['checks']}" if row["checks"] else ""
        style = _STYLE.get(row["sync"], "yellow")
        table.add_row(row["asset"], when, (row["run_id"] or "")[:8], counted, f"[{style}]{row['sync']}[/]")
    out.print(table)
    for row in found["assets"]:
        if row["reason"] and row["sync"] != "behind":
            out.print(f"{row['asset']} is {row['sync']}: {told(row['reason'])}", soft_wrap=True)
        for line in row["drift"]:
            out.print(f"[bold red]drift[/] {row['asset']}: {told(line)}", soft_wrap=True)
    if found["report"]:
        out.print(f"Report: {told(found['report'])}", soft_wrap=True)
