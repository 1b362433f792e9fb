"""Queue accounting as KAI's scheduler logs it: one division line per queue and cycle, in random queue order.

Source: KAI Scheduler v0.17.0, resource_division.go, verbosity 3 (the default); v0.20 writes other keys
(``usage``, no ``allocated``), so the pairs are read by name and never by position.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from kai_lab_pipeline.lab.evidence import parse_time

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MARK = "Resource division result for queue <"
_LINE = re.compile(r"Resource division result for queue <(?P<queue>[^>]*)>:.*?\bGPU: (?P<gpu>.*?) ?CPU \(cores\)")
_PAIR = re.compile(r"(\w[\w ]*): <([^>]*)>")


def strip_ansi(text: str) -> str:
    """`text` without terminal colour codes."""
    return _ANSI.sub("", text)


@dataclass(frozen=True)
class Division:
    """What one division line says about the GPUs of one queue."""

    queue: str
    gpu: Mapping[str, str]
    """The printed pairs in their order (deserved, requested, maxAllowed, allocated, ..., fairShare), in GPUs."""
    at: datetime | None
    """When the line was written, where it begins with a time."""

    def number(self, key: str) -> float | None:
        """The value in GPUs (infinity for ``Unlimited``), or None when the key is absent or no number."""
        text = self.gpu.get(key)
        if text is None:
            return None
        if text == "Unlimited":
            return math.inf
        try:
            return float(text)
        except ValueError:
            return None

    def __str__(self) -> str:
        return ", ".join(f"{key}: <{value}>" for key, value in self.gpu.items())


def parse_division(line: str) -> Division | None:
    """The division in a log line, or None: another line, or one cut off before its GPU part is complete."""
    if _MARK not in line:
        return None
    plain = strip_ansi(line)
    match = _LINE.search(plain)
    if match is None:
        return None
    return Division(match["queue"], dict(_PAIR.findall(match["gpu"])), parse_time(plain.split(maxsplit=1)[0]))


def newest_division(logs: Iterable[str], queue: str) -> Division | None:
    """The newest division line of `queue` over one or several logs (a restarted scheduler leaves more than one)."""
    newest: Division | None = None
    for log in logs:
        for line in _backwards(log):
            division = parse_division(line)
            if division is not None and division.queue == queue:
                if newest is None or (division.at and newest.at and division.at > newest.at):
                    newest = division
                break
    return newest


def _backwards(text: str) -> Iterator[str]:
    """Lines that can hold a division, last first, without splitting a log of megabytes."""
    end = len(text)
    while (mark := text.rfind(_MARK, 0, end)) >= 0:
        start = text.rfind("\n", 0, mark) + 1
        stop = text.find("\n", mark)
        yield text[start : stop if stop >= 0 else len(text)]
        end = start
