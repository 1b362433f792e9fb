"""`kai-lab status`: what is built, whether it is in sync, and whether the cluster is there."""

from __future__ import annotations

import json
from typing import Any

from kai_lab_pipeline.commands.common import OK, console, dagster_instance, settings_with
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.lab.spec import ASSETS, CHECKS
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.state import LabState, WriteLock


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
    exists = lab.backend.cluster_exists()
    return {
        "lab": state.name,
        "backend": settings.lab.backend,
        "folder": str(state.folder),
        "cluster": {"exists": exists, **(_live(lab) if exists else {})},
        "writer": WriteLock(state.folder).holder() if state.folder.is_dir() else None,
        "assets": _assets(settings) if state.recorded() is not None else [],
        "report": str(state.latest_report / "report.html") if state.latest_report.is_dir() else None,
    }


def _live(lab: Lab) -> dict[str, Any]:
    try:
        cluster = lab.backend.connect()
        return {"answers": True, "incarnation": cluster.incarnation(), "kubeconfig": str(cluster.kubeconfig)}
    except LabError as error:
        return {"answers": False, "error": error.what}


def _assets(settings: Settings) -> list[dict[str, Any]]:
    """Each asset's last materialisation and the last result of its checks, from Dagster's history."""
    import dagster as dg

    rows = []
    with dagster_instance(settings) as instance:
        for name in ASSETS:
            key = dg.AssetKey([name])
            event = instance.get_latest_materialization_event(key)
            checks = [dg.AssetCheckKey(key, check.name) for check in CHECKS.get(name, ())]
            records = instance.event_log_storage.get_latest_asset_check_execution_by_key(checks) if checks else {}
            passed = [check.name for check, record in records.items() if record.status.value == "SUCCEEDED"]
            rows.append(
                {
                    "asset": name,
                    "materialised_at": event.timestamp if event else None,
                    "run_id": event.run_id if event else None,
                    "checks": len(checks),
                    "passed": len(passed),
                }
            )
    return rows


def _print(found: dict[str, Any]) -> None:
    from datetime import datetime

    from rich.markup import escape
    from rich.table import Table

    out = console()
    cluster = found["cluster"]
    if not cluster["exists"]:
        said = "there is no cluster"
    elif cluster.get("answers"):
        said = f"the cluster answers (kubeconfig {cluster['kubeconfig']})"
    else:
        said = f"the cluster is there and does not answer: {cluster.get('error')}"
    out.print(f"Lab [bold]{found['lab']}[/], backend [bold]{found['backend']}[/]: {escape(said)}", soft_wrap=True)
    writer = found["writer"]
    if writer is not None:
        out.print(
            f"At work: {escape(str(writer.get('purpose')))}, pid {writer.get('pid')}, since {writer.get('since')}"
        )
    if not found["assets"]:
        out.print("Nothing was materialised yet: kai-lab run")
        return
    table = Table()
    for column in ("asset", "materialised", "run", "checks passed"):
        table.add_column(column)
    for row in found["assets"]:
        at = row["materialised_at"]
        when = datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S") if at else "never"
        counted = f"{row['passed']}/{row['checks']}" if row["checks"] else ""
        table.add_row(row["asset"], when, (row["run_id"] or "")[:8], counted)
    out.print(table)
    if found["report"]:
        out.print(f"Report: {escape(found['report'])}", soft_wrap=True)
