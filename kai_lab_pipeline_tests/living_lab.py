"""A project of its own with a lab built on the rehearsal, worked on in this process with a Dagster instance of its own.

What a person does is here as methods: edit a file, rematerialise assets, execute checks, look at what is in sync.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.automation.staleness import Sync, SyncState, sync_states
from kai_lab_pipeline.definitions import build_definitions
from kai_lab_pipeline.lab.spec import ASSETS, UPSTREAM
from kai_lab_pipeline.lab.verdict import Judgement
from kai_lab_pipeline.rehearsal import process
from kai_lab_pipeline.workbench.lab import Lab, descendants
from kai_lab_pipeline_tests.lab_project import LabProject, make_project

PATIENCE_S = 30.0
"""Least wait of an asset, seconds: a busy machine must not turn a check red."""
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True)
class Ran:
    """What one run did."""

    run_id: str
    success: bool
    assets: tuple[str, ...]
    """Assets of the lab that were materialised, in the order of the lab's steps."""
    changed: tuple[str, ...]
    """Those of them whose step changed something."""
    said: dict[str, str]
    """What each step said it did, or why it failed."""


@dataclass
class LivingLab(LabProject):
    """One project, its Dagster history, and the cluster that it builds."""

    instance: dg.DagsterInstance = field(kw_only=True)

    def lab(self, run_id: str = "test") -> Lab:
        return Lab(self.settings, run_id, lambda _: None)

    def definitions(self) -> dg.Definitions:
        return build_definitions(self.settings)

    def group(self) -> Group:
        return Group("lab", self.settings)

    # -- what a person does ----------------------------------------------------------------------------------------

    @contextmanager
    def edited(self, name: str, old: str, new: str) -> Iterator[None]:
        """The change, taken back afterwards."""
        before = (self.folder / name).read_text(encoding="utf-8")
        self.edit(name, old, new)
        try:
            yield
        finally:
            (self.folder / name).write_text(before, encoding="utf-8")

    def remake(self, *names: str) -> Ran:
        """Materialise assets in one run (``NAME+``: with all descendants; none: everything), and what it did."""
        chosen = {asset for name in names for asset in _chosen(name)}
        pinned = {upper for asset in chosen for upper in UPSTREAM.get(asset, ()) if "/" in upper}
        keys = [dg.AssetKey(name.split("/")) for name in sorted(chosen | pinned)]
        result = self._do("build_lab", keys or None)
        return self._ran(result)

    def drift(self) -> dict[str, dict[str, Any]]:
        """Execute the job `drift`: each check's outcome by ``asset.check``: passed, description and metadata."""
        result = self._do("drift", None)
        stumbled = [event.step_key for event in result.all_events if event.is_step_failure and not _is_gate(event)]
        assert not stumbled, f"these checks could not be executed: {stumbled}"
        return {
            f"{evaluation.asset_key.to_user_string()}.{evaluation.check_name}": {
                "passed": evaluation.passed,
                "description": evaluation.description or "",
                "metadata": {name: value.value for name, value in evaluation.metadata.items()},
            }
            for evaluation in result.get_asset_check_evaluations()
        }

    def do(self, job: str) -> dg.ExecuteInProcessResult:
        return self._do(job, None)

    def _do(self, job: str, keys: list[dg.AssetKey] | None) -> dg.ExecuteInProcessResult:
        with mock.patch.dict(os.environ, self.environment(), clear=True):
            result = (
                self.definitions()
                .resolve_job_def(job)
                .execute_in_process(
                    instance=self.instance, asset_selection=keys, raise_on_error=False, run_config=QUIET
                )
            )
        self.lab(result.run_id).release()
        return result

    # -- what is -----------------------------------------------------------------------------------------------------

    def states(self) -> dict[str, SyncState]:
        return sync_states(self.instance, self.definitions(), self.group())

    def not_in_sync(self) -> dict[str, str]:
        """Assets that are unsynced, gone or never made, with the reason; those only behind one are left out."""
        calm = (Sync.IN_SYNC, Sync.BEHIND)
        return {name: state.reason for name, state in self.states().items() if state.sync not in calm}

    def judge(self) -> Judgement:
        lab = self.lab()
        return lab.judge(lab.newest_evidence())

    def forget_cluster(self) -> None:
        """As when somebody deletes the cluster by hand."""
        process.stop(self.lab_dir / "rehearsal", forget=True)

    def _ran(self, result: dg.ExecuteInProcessResult) -> Ran:
        made: dict[str, Any] = {}
        said: dict[str, str] = {}
        for event in result.all_events:
            if event.is_step_materialization:
                found = event.step_materialization_data.materialization
                made[found.asset_key.to_user_string()] = found.metadata
            elif event.is_step_failure:
                failure = event.step_failure_data.user_failure_data
                said[str(event.step_key)] = str(failure.description if failure else event.message)
        said |= {name: str(meta["step"].value) for name, meta in made.items() if "step" in meta}
        ours = tuple(name for name in ASSETS if name in made)
        changed = tuple(name for name in ours if "changed" in made[name] and made[name]["changed"].value)
        return Ran(result.run_id, result.success, ours, changed, said)


def _is_gate(event: dg.DagsterEvent) -> bool:
    """Whether a step failed because a blocking check did, which is a result and not a stumble."""
    error = event.step_failure_data.error
    return error is not None and error.cls_name == "DagsterAssetCheckFailedError"


def _chosen(name: str) -> list[str]:
    asset = name.removesuffix("+")
    return [asset, *(descendants(asset) if name.endswith("+") else [])]


@contextmanager
def living_lab(folder: Path, *, built: bool = True, patience_s: float = PATIENCE_S) -> Iterator[LivingLab]:
    """A lab in a folder of its own, built once and gone afterwards; `patience_s`: least wait of an asset, seconds."""
    made = make_project(folder, KAI_LAB_PATIENCE_S=f"{patience_s:g}")
    with dg.DagsterInstance.ephemeral() as instance:
        lab = LivingLab(made.folder, made.variables, instance=instance)
        try:
            if built:
                ran = lab.remake()
                assert ran.success, ran.said
            yield lab
        finally:
            lab.forget_cluster()
