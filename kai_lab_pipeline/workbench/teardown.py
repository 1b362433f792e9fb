"""Taking a lab away, in an order that works, and looking whether it is gone.

Custom resources go before their operator. A cluster that the lab made itself is removed as a whole, which is the sure
way; on a cluster that was there before, each thing is removed, and only what this lab made.
"""

from __future__ import annotations

from dataclasses import dataclass

from kai_lab_pipeline.backends.base import Leftover
from kai_lab_pipeline.workbench.lab import Lab


@dataclass(frozen=True)
class Torn:
    """What a tear-down did, and what it could not remove."""

    done: tuple[str, ...]
    leftovers: tuple[Leftover, ...] = ()


def tear_down(lab: Lab) -> Torn:
    """Remove the lab's cluster or what it made on it. Raises LabError when the backend cannot be asked."""
    if not lab.backend.cluster_exists():
        return Torn(("the cluster is gone already",))
    facts = lab.backend.remove_cluster(lab.log)
    leftovers: tuple[Leftover, ...] = ()
    if lab.backend.cluster_exists():
        leftovers = (Leftover(f"the cluster of lab {lab.state.name}", "kai-lab down"),)
    return Torn((facts.summary,), leftovers)
