"""The same assets twice: the pinned lab, and one partition per candidate version set."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from kai_lab_pipeline.lab.spec import CHECKS
from kai_lab_pipeline.settings import Settings


@dataclass(frozen=True)
class Group:
    """One asset group and what is different in it."""

    name: str
    settings: Settings
    prefix: tuple[str, ...] = ()
    partitions: dg.PartitionsDefinition[str] | None = None
    gates: frozenset[str] = field(
        default_factory=lambda: frozenset(
            f"{asset}.{check.name}" for asset, checks in CHECKS.items() for check in checks if check.gate
        )
    )
    """Checks (``asset.check``) that stop what lies behind them."""
    goes_on: bool = False
    """A step that could not be done is recorded and the rest goes on, so that one fault does not hide the others."""

    @property
    def pool(self) -> str:
        """Concurrency pool of the group's steps, which are those that hold the lab."""
        return f"lab-{self.name}"

    def checks_of(self, asset: str) -> str:
        """Name of the step that evaluates an asset's checks."""
        return f"{self.name}_{asset}_checks"

    def key(self, asset: str) -> dg.AssetKey:
        """The key of a lab asset in this group; charts/* and manifests/* are shared by all groups."""
        shared = "/" in asset
        return dg.AssetKey(asset.split("/") if shared else [*self.prefix, asset])


def digest(*parts: Any) -> str:
    """A short stable hash of JSON-like values, for data versions and code versions."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
