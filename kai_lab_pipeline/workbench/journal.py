"""A file of JSON lines that only grows: one writer at a time, and what is damaged costs its own line only."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Journal:
    """Lines of one kind, in the order in which they were written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, data: Mapping[str, Any]) -> None:
        """Add a line. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - 1, 0))
            # A line that a killed writer left half is closed first, so that it cannot swallow this one.
            file.write((b"\n" if file.read() not in (b"", b"\n") else b"") + json.dumps(data).encode() + b"\n")

    def read(self, parse: Callable[[Mapping[str, Any]], T]) -> tuple[list[T], list[int]]:
        """What the lines hold, and the numbers, from 1, of those that cannot be read. Raises OSError.

        `parse` may raise what reading a field that is not there, or is another thing, raises.
        """
        found: list[T] = []
        damaged: list[int] = []
        try:
            with open(self.path, encoding="utf-8", errors="replace") as file:
                fcntl.flock(file, fcntl.LOCK_SH)  # never half of a line that is being written
                text = file.read()
        except FileNotFoundError:
            return [], []
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                found.append(parse(json.loads(line)))
            except UNREADABLE:
                damaged.append(number)
        return found, damaged

    def damage(self, parse: Callable[[Mapping[str, Any]], Any]) -> tuple[str, ...]:
        """A sentence about the lines that cannot be read; none where all can."""
        _, lines = self.read(parse)
        if not lines:
            return ()
        several = len(lines) > 1
        numbers = ", ".join(map(str, lines[:_NAMED])) + (f" and {len(lines) - _NAMED} more" if lines[_NAMED:] else "")
        return (
            f"{self.path}: {'lines' if several else 'line'} {numbers} cannot be read and {'are' if several else 'is'} "
            f"left out; all others count. Mend or delete {'them' if several else 'it'}.",
        )


UNREADABLE = (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
"""What reading text that somebody or something damaged raises."""
_NAMED = 10
