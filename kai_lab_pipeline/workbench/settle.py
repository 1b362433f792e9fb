"""Waiting for what an asset expects: the checks themselves say when it is there.

List, judge, watch from that version, judge again on a change; one deadline over all, the last mismatch kept. Logs
cannot be watched, so while something is missing they are read again, never faster than their writer's own cycle.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from kai_lab_pipeline.backends.base import Log
from kai_lab_pipeline.clients.kubernetes import ApiError, Cluster
from kai_lab_pipeline.lab.evidence import Observation
from kai_lab_pipeline.lab.verdict import CheckResult, Verdict
from kai_lab_pipeline.workbench.observe import WATCHED, Observer

SCHEDULER_CYCLE_S = 1.0
"""KAI's scheduler writes its log once a cycle (v0.17.0): reading it more often shows nothing new."""
LEAST_GAP_S = 0.1
LEAST_LOOKS = 15
"""On a starved machine time passes and nothing can happen: a deadline counts only after this many looks..."""
LONGEST = 6
"""...and after this many times the deadline in any case."""
HOPELESS = 4
"""By how much the deadline is cut for checks that stand on something which this run has seen broken."""
WATCH_S = 5.0
"""A watch is renewed this often, so that a thread that is no longer needed ends soon."""
READ_AGAIN = ("kai_release", "isolator_release", "shared_gpu_pod", "reservation_boundary")
"""Assets judged by logs, dry-runs or the clock as well, which no watch announces."""
_SETTLED = (Verdict.HELD, Verdict.NOT_REACHABLE)


@dataclass(frozen=True)
class Settled:
    """What was last seen, and how it was judged."""

    observation: Observation
    results: tuple[CheckResult, ...]
    waited_s: float
    looks: int

    @property
    def mismatches(self) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.results if result.verdict not in _SETTLED)


def settle(
    observer: Observer,
    asset: str,
    judge: Callable[[Observation], tuple[CheckResult, ...]],
    *,
    deadline_s: float,
    log: Log,
    hopeless: Container[str] = (),
) -> Settled:
    """Observe `asset` until its checks hold, none of them can still turn, or `deadline_s` seconds have passed.

    What was seen once and is out of sight at the deadline (a reservation pod between two attempts) is looked for as
    long again: what is kept should tell what there was. Once none but `hopeless` ones are missing, a part of the
    deadline is enough. What is waited for is logged when it changes, not each look.
    Raises LabError when the API server does not answer at all.
    """
    started = time.monotonic()
    cycle_s = max(LEAST_GAP_S, SCHEDULER_CYCLE_S * observer.backend.time_scale)
    looks, last_said = 0, ""
    told: set[str] = set()
    with _Changes(observer.cluster, WATCHED[asset]) as changes:
        while True:
            changes.clear()
            observation = observer.observe(asset)
            looks += 1
            results = judge(observation)
            waited = time.monotonic() - started
            settled = Settled(observation, results, waited, looks)
            turning = [result for result in settled.mismatches if result.finding.transient]
            left_s = deadline_s / HOPELESS if all(result.check in hopeless for result in turning) else deadline_s
            told |= {result.check for result in results if result.verdict is not Verdict.NOT_EVALUATED}
            if any(result.check in told and result.verdict is Verdict.NOT_EVALUATED for result in turning):
                left_s *= 2
            if not turning or (waited >= left_s and (looks >= LEAST_LOOKS or waited >= LONGEST * left_s)):
                return settled
            said = "; ".join(f"{result.check}: {result.finding.message}" for result in turning)
            if said != last_said:
                log(f"waiting for {said}")
                last_said = said
            # Often enough for the least looks within the deadline: what never comes must not take longer than that.
            patience_s = cycle_s if asset in READ_AGAIN else min(5 * cycle_s, max(LEAST_GAP_S, left_s / LEAST_LOOKS))
            changes.wait(min(patience_s, max(LEAST_GAP_S, left_s - waited)))


class _Changes:
    """Watches several resources in the background and wakes the waiting loop when one of them changes."""

    def __init__(self, cluster: Cluster, resources: Iterable[str]) -> None:
        self._cluster = cluster
        self._resources = tuple(resources)
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> _Changes:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def clear(self) -> None:
        self._changed.clear()

    def wait(self, timeout_s: float) -> None:
        """Return on a change, or after `timeout_s` seconds; begins to watch at the first call."""
        if not self._threads:
            for resource in self._resources:
                thread = threading.Thread(target=self._follow, args=(resource,), name=f"watch-{resource}", daemon=True)
                thread.start()
                self._threads.append(thread)
        if self._changed.wait(timeout_s):
            # Changes come in bursts: one look after the burst sees them all.
            self._stopped.wait(min(LEAST_GAP_S, timeout_s))

    def _follow(self, resource: str) -> None:
        while not self._stopped.is_set():
            try:
                _, version = self._cluster.list_with_version(resource)
                for kind, _ in self._cluster.watch(resource, version, timeout_s=WATCH_S):
                    if self._stopped.is_set():
                        return
                    if kind != "BOOKMARK":
                        self._changed.set()
            except ApiError as error:
                # 410: too old a version, list again. Anything else shows in the loop's own look, with its reason.
                if error.code != 410:
                    self._stopped.wait(1.0)
