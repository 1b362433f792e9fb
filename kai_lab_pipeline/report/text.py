"""Untrusted text made harmless: what a component logged or a chart value said must never become markup.

Two steps kept apart: `clean` (and `one_line`) takes out what no reader wants to meet, once, when the report is built;
each format then escapes what is special to it alone.
"""

from __future__ import annotations

import re

_SCAN_FACTOR = 4
"""How many times the wanted length is looked at: escape sequences and control characters take room and then vanish."""

_ANSI = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor moves
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, hyperlinks
    r"|\x1b[@-Z\\-_]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
# Not allowed in XML 1.0, or invisible and able to reorder what a person reads (bidirectional overrides).
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]")
_SPACES = re.compile(r"\s+")

_MARKDOWN = re.compile(r"[\\`*\[\]|~#!{}]|(?<!\w)_|_(?!\w)")
_BACKTICKS = re.compile(r"`+")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def clean(text: str, limit: int) -> str:
    """`text` without escape sequences and characters that XML forbids, cut to `limit` characters with a note."""
    seen = text[: limit * _SCAN_FACTOR]
    cleaned = _FORBIDDEN.sub("", _ANSI.sub("", seen)).replace("\r\n", "\n").replace("\r", "\n")
    if len(cleaned) <= limit and len(seen) == len(text):
        return cleaned
    shown = cleaned[:limit]
    return f"{shown} … (cut, {len(text)} characters in all)"


def one_line(text: str, limit: int) -> str:
    """`clean`, with every run of white space as one blank."""
    return _SPACES.sub(" ", clean(text, limit)).strip()


def markdown(text: str) -> str:
    """Text for a Markdown paragraph or table cell: nothing in it is markup any more, and it stays on one line."""
    escaped = "".join(_ENTITIES.get(char, char) for char in _SPACES.sub(" ", text).strip())
    return _MARKDOWN.sub(lambda match: "\\" + match.group(), escaped)


def markdown_code(text: str) -> str:
    """Text as a Markdown code span that also stands in a table cell; backticks inside are kept by a longer fence."""
    flat = _SPACES.sub(" ", text).strip()
    if not flat:
        return ""
    if "|" in flat:
        # A pipe ends a cell even inside a code span, and a backslash there would be shown: plain text escapes both.
        return markdown(flat)
    fence = "`" * (_longest_run(flat) + 1)
    pad = " " if "`" in flat else ""
    return f"{fence}{pad}{flat}{pad}{fence}"


def markdown_block(lines: tuple[str, ...], language: str = "text") -> str:
    """Lines as a fenced Markdown code block with a fence longer than any run of backticks in them."""
    body = "\n".join(lines)
    fence = "`" * max(3, _longest_run(body) + 1)
    return f"{fence}{language}\n{body}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)
