"""The same assets twice: the pinned lab, and one partition per candidate version set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from kai_lab_pipeline.lab.spec import CHECKS, UPSTREAM
from kai_lab_pipeline.settings import Settings

STEP_VERSION = "1"
"""Raised when what a step does changes: all its materialisations then count as outdated."""


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

    def key(self, asset: str) -> dg.AssetKey:
        """The key of a lab asset in this group; charts/* and manifests/* are shared by all groups."""
        shared = "/" in asset
        return dg.AssetKey(asset.split("/") if shared else [*self.prefix, asset])

    def asset(
        self, name: str, *, kinds: set[str], built_from: Any = None
    ) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
        """Decorator for one asset of the lab; its docstring is what the UI teaches about the step.

        `built_from` is what the step is made of (manifest text, chart values): its hash is the code version, so that an
        edit turns exactly this asset unsynced.
        """
        return dg.asset(
            name=name,
            key_prefix=list(self.prefix) or None,
            group_name=self.name,
            partitions_def=self.partitions,
            deps=[self.key(upstream) for upstream in UPSTREAM[name]],
            code_version=digest(STEP_VERSION, built_from),
            kinds=kinds,
            pool=f"lab-{self.name}",
        )


def digest(*parts: Any) -> str:
    """A short stable hash of JSON-like values, for data versions and code versions."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
