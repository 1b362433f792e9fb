"""Which cluster a lab was given: kept in its state folder, because a context's name can come to mean another one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kai_lab_pipeline.lab.errors import LabError


@dataclass(frozen=True)
class GivenCluster:
    """The cluster that a lab is on."""

    context: str
    incarnation: str
    """UID of the namespace kube-system."""
    leaving: bool = False
    """Nothing of the lab is on it, and the lab's mark is being made or removed: a missing mark is no riddle."""


class Given:
    """The note of it, from the lab's first step there to the end of its tear-down."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> GivenCluster | None:
        """None where the lab is on no cluster. Raises LabError for a note that cannot be read: then it is not known."""
        try:
            return GivenCluster(**json.loads(self._file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise LabError(
                "It cannot be read which cluster this lab is on",
                where=str(self._file),
                seen=str(error),
                next_step="Write it anew by materialising 'cluster' again after removing this file; what the lab made "
                "stays marked on its cluster.",
            ) from error

    def write(self, context: str, incarnation: str, *, leaving: bool = False) -> None:
        self._put(GivenCluster(context, incarnation, leaving))

    def leave(self) -> None:
        """Note that nothing is left there."""
        given = self.read()
        if given is not None:
            self._put(replace(given, leaving=True))

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)

    def _put(self, given: GivenCluster) -> None:
        partial = self._file.with_name(f".{self._file.name}")
        partial.write_text(json.dumps(asdict(given)), encoding="utf-8")
        partial.replace(self._file)
