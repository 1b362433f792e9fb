"""What went wrong in a run, why, and what to do: the diagnosis of its evidence and of its steps' errors.

Looking for causes comes after something failed, so it must never fail itself, hide the first error, or take long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TypeVar

from kai_lab_pipeline.lab.diagnosis import Diagnosis, diagnose_evidence, diagnose_text
from kai_lab_pipeline.lab.diagnosis.reach import reaching
from kai_lab_pipeline.lab.evidence import Evidence
from kai_lab_pipeline.lab.spec import CHECKS, UPSTREAM
from kai_lab_pipeline.lab.verdict import Judgement
from kai_lab_pipeline.report.context import ClusterAccess
from kai_lab_pipeline.workbench.lab import Lab, ancestors

GATHER_S = 12.0
"""Longest time that looking at a cluster takes after a step failed, seconds."""
DIAGNOSE_S = 8.0
"""Longest time that the search for causes takes after that, seconds."""

T = TypeVar("T")


def within(seconds: float, gather: Callable[[], T]) -> T | None:
    """What `gather` gives; None where it fails, or is not done after so many seconds and is left to itself."""
    given: list[T] = []

    def work() -> None:
        with suppress(Exception):  # the first error is being told, and no second one may take its place
            given.append(gather())

    thread = threading.Thread(target=work, name="gather", daemon=True)
    thread.start()
    thread.join(seconds)
    return given[0] if given else None


def diagnose_run(lab: Lab, evidence: Evidence, judgement: Judgement) -> Diagnosis:
    """What kept these checks from being held, from evidence and from the steps of this run that could not be done.

    Empty where all is well.
    """
    errors = [str(step["error"]) for step in lab.steps().values() if step["error"]]
    if not errors and judgement.all_is_well:
        return Diagnosis()
    return _diagnosed(lab, lambda: evidence, errors)


def diagnose_asset(lab: Lab, asset: str, errors: Collection[str] = ()) -> Diagnosis:
    """Why an asset is not as expected, or could not be made: from what this run saw of it and of what it stands on."""

    def seen() -> Evidence:
        captured = [name for name in UPSTREAM if name in CHECKS and name in (*ancestors(asset), asset)]
        found = {name: lab.seen_in_this_run(name) for name in captured}
        return lab.evidence_of({name: observation for name, observation in found.items() if observation is not None})

    return _diagnosed(lab, seen, errors)


def diagnose_error(lab: Lab, error: str) -> Diagnosis:
    """What an error gives away, without a look at the cluster."""
    return _reaching(lab, diagnose_text(error, lab.backend.name))


def _diagnosed(lab: Lab, seen: Callable[[], Evidence], errors: Collection[str]) -> Diagnosis:
    found = within(DIAGNOSE_S, lambda: diagnose_evidence(seen(), lab.expectations, errors)) or Diagnosis()
    return _reaching(lab, found)


def _reaching(lab: Lab, found: Diagnosis) -> Diagnosis:
    access = ClusterAccess(kubeconfig=str(lab.backend.kubeconfig_hint()))
    return reaching(found, access.kubectl(), access.helm())
