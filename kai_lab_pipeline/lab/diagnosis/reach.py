"""Remedies for one lab: each command names the cluster it is for, so that no other one is met by following them."""

from __future__ import annotations

import re
from dataclasses import replace

from kai_lab_pipeline.lab.diagnosis.model import Cause, Diagnosis

_COMMAND = re.compile(r"(?:^|: )(?:or )?(?:kubectl|helm|for) ")
"""Where a command begins in a step: the whole of it, or what a sentence ends in."""
_KUBECTL = re.compile(r"(?<![\w./-])kubectl (?!--kubeconfig|--context|config |version --client)")
_HELM = re.compile(
    r"(?<![\w./-])helm (?=(?:list|status|history|get|install|upgrade|uninstall|rollback|test)\b)(?!.*--kube-context)"
)
"""Helm's commands that ask a cluster."""


def reached(step: str, kubectl: str, helm: str) -> str:
    """A step of a remedy with `kubectl` and `helm` (command and flags) in place of its bare commands."""
    begins = _COMMAND.search(step)
    if begins is None:
        return step
    words, command = step[: begins.start()], step[begins.start() :]
    return words + _HELM.sub(lambda _: f"{helm} ", _KUBECTL.sub(lambda _: f"{kubectl} ", command))


def reaching(diagnosis: Diagnosis, kubectl: str, helm: str) -> Diagnosis:
    """`diagnosis` with `kubectl` and `helm` (command and flags) in place of the bare commands of its remedies."""

    def of(causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
        return tuple(
            replace(cause, remedy=tuple(reached(step, kubectl, helm) for step in cause.remedy)) for cause in causes
        )

    return replace(
        diagnosis, causes=of(diagnosis.causes), expected=of(diagnosis.expected), harmless=of(diagnosis.harmless)
    )
