"""One lab with all that a step needs: settings, backend, state folder, lock, evidence, and the judge."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Collection, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from kai_lab_pipeline.backends import make_backend
from kai_lab_pipeline.backends.base import Backend, Log
from kai_lab_pipeline.clients import bundle
from kai_lab_pipeline.clients.files import write_atomic
from kai_lab_pipeline.lab import judge as judging
from kai_lab_pipeline.lab.errors import Blocked, LabError
from kai_lab_pipeline.lab.evidence import Evidence, Observation
from kai_lab_pipeline.lab.spec import CANNOT_HOLD_WITHOUT, CHECKS, UPSTREAM, Expectations
from kai_lab_pipeline.lab.verdict import CheckResult, Excuse, Judgement, Verdict
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.apply import Applier
from kai_lab_pipeline.workbench.newest import newest
from kai_lab_pipeline.workbench.nights import StoredSet
from kai_lab_pipeline.workbench.observe import Observer
from kai_lab_pipeline.workbench.parent import end_with
from kai_lab_pipeline.workbench.settle import Settled, settle
from kai_lab_pipeline.workbench.state import NATURE, LabState, WriteLock, now, now_text

_SEEN: dict[Path, Observation] = {}
"""Observations this process has made, by their folder in the evidence: written there, and not read back from there."""
_LOCKS: dict[Path, WriteLock] = {}
"""Locks this process holds: a run keeps its lab until the process ends or `Lab.release` is called."""


@dataclass
class Lab:
    """A lab at work for one run."""

    settings: Settings
    run_id: str
    log: Log
    gates: Collection[str] = judging.PINNED_GATES
    """Checks (``asset.check``) that stop what lies behind them."""
    candidate: StoredSet | None = None
    """The version set, where this lab is a candidate's."""
    project: Settings | None = None
    """The project's own settings, where `settings` are a candidate's."""
    backend: Backend = field(init=False)
    state: LabState = field(init=False)

    def __post_init__(self) -> None:
        self.backend = make_backend(self.settings)
        self.state = LabState.of(self.settings)

    @property
    def project_settings(self) -> Settings:
        """The project's settings: what is pinned, and where nights are kept."""
        return self.project or self.settings

    # -- the state folder ------------------------------------------------------------------------------------------

    def hold(self, purpose: str) -> None:
        """Become this lab's one writer. Raises WrongUse when another run is at work on it."""
        self.state.open()
        end_with(self._lock().acquire(self.run_id, purpose))
        self.backend.keep_output(self.bundle_dir / "commands")

    def release(self) -> None:
        self._lock().release()

    def remove_folder(self) -> None:
        """Remove the state folder of this lab, which is held, and release it."""
        with suppress(FileNotFoundError):  # another tear-down of all labs may sweep it meanwhile
            shutil.rmtree(self._lock().move_away())

    def _lock(self) -> WriteLock:
        return _LOCKS.setdefault(self.state.folder, WriteLock(self.state.folder))

    @property
    def bundle_dir(self) -> Path:
        return self.state.bundle_dir(self.run_id)

    # -- judging ---------------------------------------------------------------------------------------------------

    @cached_property
    def _nature(self) -> tuple[str | None, Mapping[str, str]]:
        """How NVML gets into pods here, and which steps make no sense; remembered for when the cluster is gone."""
        memory = self.state.folder / NATURE
        try:
            crossing, skipped = self.backend.crossing(), dict(self.backend.skips())
        except LabError:
            try:
                known = json.loads(memory.read_text(encoding="utf-8"))
                return known["crossing"], dict(known["skipped"])
            except (FileNotFoundError, ValueError, KeyError, TypeError):
                return self.settings.boundary.crossing, {}  # nothing remembered, or nothing that can be understood
        if self.state.folder.is_dir() and (crossing or skipped):
            write_atomic(memory, json.dumps({"crossing": crossing, "skipped": skipped}))
        return crossing, skipped

    @property
    def expectations(self) -> Expectations:
        """What this lab is judged against; the boundary must be crossed where NVML is known to get into pods."""
        return replace(self.settings.expectations(), crossing=self._nature[0])

    @property
    def skipped(self) -> Mapping[str, str]:
        """Assets whose step makes no sense on this cluster, with the reason."""
        return self._nature[1]

    def evidence_of(self, observations: Mapping[str, Observation], captured_at: datetime | None = None) -> Evidence:
        """Observations as evidence of this lab, marked with the backend that gave them."""
        nodes = [name for seen in observations.values() for name in _node_names(seen)]
        return Evidence(
            backend=self.backend.name,
            versions=self.settings.version_set(),
            node=nodes[0] if nodes else None,
            captured_at=captured_at or now(),
            crossing=self.expectations.crossing,
            skipped=self.skipped,
            time_scale=self.backend.time_scale,
            observations=observations,
        )

    def judge_asset(self, asset: str, observation: Observation) -> tuple[CheckResult, ...]:
        evidence = self.evidence_of({asset: observation}, observation.observed_at)
        results = judging.judge_asset(evidence, self.expectations, asset)
        return tuple(self.excused(result) for result in results)

    def excused(self, result: CheckResult) -> CheckResult:
        """A broken check with the excuse that lab.toml has for it, where that still counts."""
        excuse = self.excuses.get(result.name)
        if excuse is None or result.verdict is not Verdict.BROKEN or not excuse.counts(now().date()):
            return result
        return replace(result, excused=excuse)

    @property
    def excuses(self) -> Mapping[str, Excuse]:
        return self.settings.excuses_on(self.settings.version_set())

    def judge(self, evidence: Evidence, *, only: Iterable[str] | None = None) -> Judgement:
        """Judge evidence of this lab; `only` restricts to these ``asset.check`` names and the claims they make up."""
        return judging.judge(
            evidence,
            self.expectations,
            only=None if only is None else frozenset(only),
            excuses=self.excuses,
            today=now().date(),
            gates=tuple(self.gates),
            blocked={name: by for name, step in self.steps().items() if (by := step.get("blocked_by"))},
        )

    # -- evidence --------------------------------------------------------------------------------------------------

    def observer(self) -> Observer:
        return Observer(self.settings, self.backend, self.backend.connect(), self.run_id)

    def look(
        self,
        asset: str,
        *,
        deadline_s: float | None = None,
        hopeless: Container[str] = (),
    ) -> Settled:
        """Observe an asset until its checks hold or the deadline (seconds) is over, and keep what was seen."""
        settled = self.settle(asset, deadline_s=deadline_s, hopeless=hopeless)
        self.keep(asset, settled.observation)
        return settled

    def settle(
        self,
        asset: str,
        *,
        deadline_s: float | None = None,
        hopeless: Container[str] = (),
    ) -> Settled:
        """Observe an asset until its checks hold or the deadline (seconds) is over; nothing is kept."""
        with self.observer() as observer:
            return settle(
                observer,
                asset,
                lambda observation: self.judge_asset(asset, observation),
                deadline_s=self.settings.deadline_s(asset) if deadline_s is None else deadline_s,
                log=self.log,
                hopeless=hopeless,
            )

    def hopeless(self, asset: str, broken: Iterable[str] = ()) -> dict[str, str]:
        """Checks of `asset` that stand on something broken, each with the ``asset.check`` that is.

        Known as broken is what this run has seen of upstream assets, and what `broken` names besides.
        """
        needs = {check.name: CANNOT_HOLD_WITHOUT.get(f"{asset}.{check.name}", ()) for check in CHECKS.get(asset, ())}
        wanted = {name for names in needs.values() for name in names}
        known = {*broken, *self._seen_broken({name.partition(".")[0] for name in wanted} & set(ancestors(asset)))}
        found = {check: next((name for name in names if name in known), "") for check, names in needs.items()}
        return {check: name for check, name in found.items() if name}

    def _seen_broken(self, assets: Iterable[str]) -> set[str]:
        """Checks of these assets, as ``asset.check``, that this run has seen broken."""
        seen = {asset: self.seen_in_this_run(asset) for asset in assets}
        judged = [self.judge_asset(asset, found) for asset, found in seen.items() if found is not None]
        return {result.name for results in judged for result in results if result.verdict is Verdict.BROKEN}

    def keep(self, asset: str, observation: Observation) -> Path:
        """Write an observation into this run's bundle; returns the asset's folder."""
        if not any(folder.is_relative_to(self.bundle_dir) for folder in _SEEN):
            _SEEN.clear()  # another run begins: what the last one saw is on disk
        self.bundle_dir.mkdir(parents=True, exist_ok=True)
        bundle.write_observation(self.bundle_dir, asset, observation)
        _SEEN[self.bundle_dir / asset] = observation
        evidence = self.evidence_of({asset: observation}, observation.observed_at)
        bundle.write_bundle_json(
            self.bundle_dir,
            backend=evidence.backend,
            versions=evidence.versions,
            node=evidence.node or bundle.node_of(self.bundle_dir),  # not every asset is observed with the nodes
            captured_at=evidence.captured_at,
            crossing=evidence.crossing,
            skipped=evidence.skipped,
            time_scale=evidence.time_scale,
            profile=self.settings.profile.model_dump(),
        )
        return self.bundle_dir / asset

    def seen_in_this_run(self, asset: str) -> Observation | None:
        """What this very run saw of an asset, or None when it did not look yet."""
        return self._observation(self.bundle_dir, asset)

    @staticmethod
    def _observation(folder: Path, asset: str) -> Observation | None:
        return _SEEN.get(folder / asset) or bundle.read_observation(folder, asset)

    def newest_evidence(self) -> Evidence:
        """Each asset's newest observation over all runs of this lab, as one evidence; empty when there is none.

        Only of what is there now; what was left out as gone is told in the notes.
        """
        known = newest(self.state)
        found = {asset: self._observation(folder, asset) for asset, folder in known.bundles.items()}
        observations = {asset: seen for asset, seen in found.items() if seen is not None}
        latest = max((seen.observed_at for seen in observations.values() if seen.observed_at), default=now())
        return replace(self.evidence_of(observations, latest), notes=known.notes)

    def of_this_run(self, evidence: Evidence, assets: Iterable[str]) -> Evidence:
        """`evidence` without what other runs saw of these assets: a run that could not look must not pass by memory."""
        stale = {name for name in assets if evidence.of(name).run_id != self.run_id}
        kept = {name: seen for name, seen in evidence.observations.items() if name not in stale}
        return replace(evidence, observations=kept)

    # -- manifests -------------------------------------------------------------------------------------------------

    def applier(self, asset: str) -> Applier:
        return Applier(self.backend, self.backend.connect(), self.settings.deadline_s(asset), self.log)

    # -- gates -----------------------------------------------------------------------------------------------------

    def require_upstream(self, asset: str, *, gates_only: Iterable[str] | None = None) -> None:
        """Stop with the reason when something this asset is built on is not there (any more), read live.

        Assets that this run itself has just built and judged are not looked at again. Raises Blocked, or LabError
        when the cluster cannot be looked at.
        """
        needed = [name for name in ancestors(asset) if any(check.gate for check in CHECKS.get(name, ()))]
        needed = [name for name in needed if not (self.bundle_dir / name).is_dir()]
        if not needed:
            return
        patience_s = min(self.settings.deadline_s(asset), 20.0 * self.backend.time_scale + 2.0)
        until = time.monotonic() + patience_s
        with self.observer() as observer:
            while True:
                seen = observer.observe_for_gates(needed)
                evidence = self.evidence_of(dict.fromkeys(needed, seen))
                red = [result for name in needed for result in self._red_gates(evidence, name, gates_only)]
                if not red:
                    return
                if time.monotonic() >= until or not any(result.finding.transient for result in red):
                    break
                time.sleep(max(0.1, self.backend.time_scale))
        first = red[0]
        raise Blocked(
            f"{asset} is built on {first.asset}, and that is not in order: {first.check} is {first.verdict}",
            by=first.name,
            where=f"live cluster of lab {self.state.name!r} (backend {self.backend.name})",
            seen=f"expected {first.finding.expected}; observed {first.finding.observed}. {first.finding.message}",
            next_step=f"Materialise {first.asset} again (kai-lab run --select '{first.asset}+'), then this asset.",
        )

    def _red_gates(self, evidence: Evidence, asset: str, gates_only: Iterable[str] | None) -> list[CheckResult]:
        gates = {check.name for check in CHECKS[asset] if check.gate}
        if gates_only is not None:
            gates &= {name.partition(".")[2] for name in gates_only if name.startswith(f"{asset}.")}
        results = map(self.excused, judging.judge_asset(evidence, self.expectations, asset))
        broken = [result for result in results if result.check in gates and result.verdict is Verdict.BROKEN]
        return [result for result in broken if result.excused is None]  # as its check, which then lets the run go on

    # -- step records ----------------------------------------------------------------------------------------------

    def require_infrastructure(self, asset: str) -> None:
        """Stop when infrastructure kept something in this run from being done that `asset` is built on.

        Its absence would read as broken, and says nothing about the versions. Raises Blocked.
        """
        for name, step in self.steps().items():
            if step.get("infrastructure") and name in ancestors(asset):
                raise Blocked(f"{asset} is built on {name}, which could not be done", seen=str(step["error"]))

    def record_step(self, asset: str, *, seconds: float, error: LabError | None = None) -> None:
        """Note how long an asset's step took in this run (seconds), and how it failed if it did."""
        folder = self.state.steps / self.run_id
        folder.mkdir(parents=True, exist_ok=True)
        record = {
            "asset": asset,
            "seconds": round(seconds, 3),
            "error": error.text() if error else None,
            "blocked_by": error.by if isinstance(error, Blocked) else "",
            "infrastructure": error is not None and not error.finding,
            "at": now_text(),
            "run_id": self.run_id,
        }
        write_atomic(folder / f"{asset}.json", json.dumps(record))

    def steps(self) -> dict[str, dict[str, Any]]:
        """The step records of this run, by asset."""
        records: dict[str, dict[str, Any]] = {}
        for path in sorted((self.state.steps / self.run_id).glob("*.json")):
            records[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        return records


def ancestors(asset: str) -> list[str]:
    """Assets of the lab that `asset` is built on, nearest last, in the order of the lab's steps."""
    found: set[str] = set()
    todo = [asset]
    while todo:
        for name in UPSTREAM.get(todo.pop(), ()):
            if name in UPSTREAM and name not in found:
                found.add(name)
                todo.append(name)
    return [name for name in UPSTREAM if name in found]


def descendants(asset: str) -> list[str]:
    """Assets of the lab that are built on `asset`, in the order of the lab's steps."""
    return [name for name in UPSTREAM if asset in ancestors(name)]


def _node_names(seen: Observation) -> list[str]:
    return [str(node["metadata"]["name"]) for node in seen.resources.get("nodes", ())]
