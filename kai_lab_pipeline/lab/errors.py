"""Errors as people read them: what happened, where, the last thing seen, and what to do next, in that order."""

from __future__ import annotations


class LabError(Exception):
    """Something went wrong that a person can act on.

    `what` and `where` are short sentences, `seen` is the last output or mismatch (may be many lines), `next_step` is
    what to do. `transient` says that trying again later may help by itself. `finding` says that it speaks about the
    components under test: what an API server refuses, and an installation that a chart's own values, hooks or objects
    made fail. Everything else (registry, Docker, network, tools, the machine) says nothing about them.
    """

    exit_code = 3
    """The exit code of `kai-lab` for it: 3 infrastructure, 2 wrong use."""

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        seen: str = "",
        next_step: str = "",
        transient: bool = False,
        finding: bool = False,
    ) -> None:
        self.what = what
        self.where = where
        self.seen = seen
        self.next_step = next_step
        self.transient = transient
        self.finding = finding
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


class WrongUse(LabError):
    """A wrong option, name, setting or state that the person has to change; nothing was touched."""

    exit_code = 2


class Blocked(LabError):
    """A step that was not tried, because something it is built on is not in order: nothing is known of its asset.

    `by` is the gate (``asset.check``) that stands in its way; empty where a step before it could not be done.
    """

    def __init__(self, what: str, *, by: str = "", where: str = "", seen: str = "", next_step: str = "") -> None:
        self.by = by
        super().__init__(what, where=where, seen=seen, next_step=next_step)


_ABOUT_THE_SERVER = (0, 401, 429, 503, 504)


def is_about_the_request(code: int) -> bool:
    """Whether an API server's error code (0: no answer) is about what it was asked, and not about the server itself.

    500 counts: with it the server says that a webhook failed (Kubernetes v1.34).
    """
    return code not in _ABOUT_THE_SERVER
