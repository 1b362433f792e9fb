"""Other people's words made harmless: what stood in evidence must not steer the terminal that shows it."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|[@-Z\\^_])")
# Half a character pair (a lone surrogate) can be decoded from JSON, and written nowhere.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def plain(text: str) -> str:
    """`text` without terminal sequences, with control, invisible and half characters as blanks; lines are kept."""
    if text.isprintable():  # the most of it
        return text
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return _CONTROL.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n"))


def plain_line(text: str) -> str:
    """The same on one line."""
    return plain(text).replace("\n", " ").replace("\t", " ")
