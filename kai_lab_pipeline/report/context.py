"""What the report needs to know beside the verdicts and the evidence: when, which lab, which runs, how long."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote, urlsplit


@dataclass(frozen=True)
class AssetRun:
    """Which run made an asset's newest evidence, and when."""

    run_id: str | None = None
    observed_at: datetime | None = None
    """With time zone; None where it is not known."""


@dataclass(frozen=True)
class Cause:
    """One diagnosed cause of what went wrong, as the report shows it."""

    cause: str
    remedy: tuple[str, ...] = ()
    """Commands or steps, in order."""
    evidence: tuple[str, ...] = ()
    """The lines that gave it away."""
    transient: bool = False


@dataclass(frozen=True)
class ClusterAccess:
    """How a person reaches the lab's cluster: a kubeconfig file, a context, or both."""

    kubeconfig: str | None = None
    context: str | None = None

    def kubectl(self) -> str:
        """The start of a kubectl command line."""
        return " ".join(["kubectl", *self._flags("--context")])

    def helm(self) -> str:
        """The start of a helm command line."""
        return " ".join(["helm", *self._flags("--kube-context")])

    def _flags(self, context_flag: str) -> list[str]:
        flags: list[str] = []
        if self.kubeconfig:
            flags += ["--kubeconfig", shlex.quote(self.kubeconfig)]
        if self.context:
            flags += [context_flag, shlex.quote(self.context)]
        return flags


@dataclass(frozen=True)
class ReportContext:
    """Facts about the lab and its runs that no evidence bundle carries.

    Raises ValueError for a time without zone, a negative or infinite duration, and a Dagster address without http(s).
    """

    generated_at: datetime
    lab: str
    runs: Mapping[str, AssetRun] = field(default_factory=dict)
    """By asset; where an asset is missing here, the run and time in its evidence are shown."""
    durations: Mapping[str, float] = field(default_factory=dict)
    """Seconds each asset's step took, by asset."""
    notes: tuple[str, ...] = ()
    """Sentences for the top, such as which step ended the run and its error."""
    causes: tuple[Cause, ...] = ()
    """Diagnosed causes, best first."""
    access: ClusterAccess | None = None
    """None: the lab's own kubeconfig, ``.lab/<lab>/kubeconfig``."""
    evidence_folder: str | None = None
    """Relative to the folder of the report, so that both can be moved together."""
    dagster_url: str = "http://127.0.0.1:3000"
    code_location: str = "kai_lab_pipeline"
    group: str = "lab"

    def __post_init__(self) -> None:
        if self.generated_at.tzinfo is None:
            raise ValueError("generated_at needs a time zone: ages are counted from it")
        for asset, run in self.runs.items():
            if run.observed_at is not None and run.observed_at.tzinfo is None:
                raise ValueError(f"observed_at of {asset} needs a time zone: its age is counted from it")
        for asset, seconds in self.durations.items():
            if not math.isfinite(seconds) or seconds < 0:
                raise ValueError(f"the duration of {asset} is {seconds}: it must be a number of seconds from 0 up")
        if urlsplit(self.dagster_url).scheme not in ("http", "https"):
            raise ValueError(f"dagster_url is {self.dagster_url!r}: it must start with http:// or https://")

    @property
    def cluster_access(self) -> ClusterAccess:
        return self.access or ClusterAccess(kubeconfig=f".lab/{self.lab}/kubeconfig")

    @property
    def group_url(self) -> str:
        """The asset group's page in the Dagster UI, where one click materialises all of it."""
        parts = ("locations", self.code_location, "asset-groups", self.group, "lineage")
        return self._url(*parts)

    def run_url(self, run_id: str) -> str:
        """The page of one run in the Dagster UI."""
        return self._url("runs", run_id)

    def _url(self, *parts: str) -> str:
        return "/".join([self.dagster_url.rstrip("/"), *(quote(part, safe="") for part in parts)])
