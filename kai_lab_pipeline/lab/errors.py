"""Errors as people read them: what happened, where, the last thing seen, and what to do next, in that order."""

from __future__ import annotations

import re


class LabError(Exception):
    """Something went wrong that a person can act on.

    `what` and `where` are short sentences, `seen` is the last output or mismatch (may be many lines), `next_step` is
    what to do. `transient` says that trying again later may help by itself.
    """

    exit_code = 3
    """The exit code of `kai-lab` for it: 3 infrastructure, 2 wrong use."""

    def __init__(
        self, what: str, *, where: str = "", seen: str = "", next_step: str = "", transient: bool = False
    ) -> None:
        self.what = what
        self.where = where
        self.seen = seen
        self.next_step = next_step
        self.transient = transient
        super().__init__(self.text())

    def text(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"Where: {self.where}")
        if self.seen:
            lines.append(f"Last seen: {self.seen}")
        if self.next_step:
            lines.append(f"Next: {self.next_step}")
        return "\n".join(lines)

    @property
    def infrastructure(self) -> bool:
        """Whether it says nothing about the components under test: registry, Docker, network, tools.

        What an API server refuses, and an installation that a chart's own hooks or objects made fail, is a finding.
        """
        return not _FINDING.search(self.text())


_FINDING = re.compile(
    r"hooks? failed|failed (?:pre|post)-(?:install|upgrade)|denied the request|is forbidden|is invalid"
    r"|values don't meet the specifications|execution error at|cannot patch|invalid ownership metadata"
)
"""Words of helm 3.22 and 4.3 and of the API server v1.34 for faults of a chart or an object."""


class WrongUse(LabError):
    """A wrong option, name, setting or state that the person has to change; nothing was touched."""

    exit_code = 2
