"""Which observation counts as the newest of each asset: what was seen of the cluster that is there now.

Evidence outlives what it was seen of. What was taken away since, and what was seen of a cluster that another one has
replaced, is left out, and said.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from kai_lab_pipeline.lab.evidence import parse_time
from kai_lab_pipeline.lab.spec import UPSTREAM
from kai_lab_pipeline.workbench.state import LabState

_EARLIEST = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class Newest:
    """The newest observation of each asset that still counts."""

    bundles: dict[str, Path]
    """By asset, the bundle in which it lies."""
    notes: tuple[str, ...]
    """What was left out and why, as sentences."""


@dataclass(frozen=True)
class _Seen:
    asset: str
    bundle: Path
    at: datetime
    cluster: str | None


def newest(state: LabState) -> Newest:
    """The newest observations over all runs of a lab."""
    every = [seen for path in state.evidence.glob("*/*/observed.json") if (seen := _read(path)) is not None]
    every.sort(key=lambda seen: seen.at)
    cluster = next((seen.cluster for seen in reversed(every) if seen.cluster is not None), None)
    gone = {asset: parse_time(when) or _EARLIEST for asset, when in state.gone().items()}
    last = {seen.asset: seen for seen in every}
    taken = [seen.asset for seen in last.values() if seen.at <= gone.get(seen.asset, _EARLIEST)]
    other = [seen.asset for seen in last.values() if cluster and seen.cluster and seen.cluster != cluster]
    notes = []
    if taken:
        when = max(gone[asset] for asset in taken).isoformat(timespec="seconds")
        notes.append(f"Left out, because it was taken away at {when}: what was seen of {_listed(taken)} before.")
    replaced = [asset for asset in other if asset not in taken]
    if replaced:
        notes.append(f"Left out, because another cluster is there now: what was seen of {_listed(replaced)}.")
    bundles = {asset: seen.bundle for asset, seen in last.items() if asset not in taken and asset not in other}
    return Newest(bundles, tuple(notes))


def _listed(assets: Iterable[str]) -> str:
    found = set(assets)
    return ", ".join(asset for asset in UPSTREAM if asset in found)


def _read(path: Path) -> _Seen | None:
    """None for what is no asset's, and for what a killed run left half-written: an older observation counts."""
    asset = path.parent.name
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        at, cluster = parse_time(content.get("observed_at")), content.get("cluster")
    except (OSError, ValueError, AttributeError):
        return None
    if asset not in UPSTREAM or at is None:
        return None
    return _Seen(asset, path.parent.parent, at, cluster if isinstance(cluster, str) else None)
