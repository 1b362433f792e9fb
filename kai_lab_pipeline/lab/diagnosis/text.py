"""Text of any kind made readable, and the lines in it that known words stand on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any

from kai_lab_pipeline.lab.diagnosis.model import Fact
from kai_lab_pipeline.lab.diagnosis.plain import plain

LINE_LIMIT = 4000
"""Characters of one line that are looked at around known words; a log can be one line of megabytes."""
HITS_PER_NEEDLE = 40
"""Places looked at per known word, from the start and from the end each."""
EVIDENCE_WIDTH = 300
ANSWER_LIMIT = 100_000
"""Characters of one answer that are looked at: a Status is short."""
ANSWERS = 50
"""Answers of the API server that are read out of one text; a program that tries on repeats the same."""


def cleaned(text: str) -> str:
    """`text` without terminal colours and control characters, with plain line ends and unescaped quotes."""
    text = plain(text)
    # Errors arrive quoted inside JSON strings and Go structs; the known words are written without that quoting.
    if "\\" in text:
        text = text.replace("\\\\", "\\").replace('\\"', '"').replace("\\n", "\n").replace("\\t", " ")
        text = text.replace("\\u003c", "<").replace("\\u003e", ">").replace("\\u0026", "&")
    # Texts are matched line by line, and the Python client breaks its first line in the middle.
    return _REASON.sub(r"(\g<code>) Reason: ", text) if "Reason: " in text else text


_REASON = re.compile(r"\((?P<code>[1-5]\d\d)\)[ \t]*\n[ \t]*Reason: ")
_BODY = re.compile(r"HTTP response body: (?:b')?(?=\{)")
_HEAD = re.compile(
    r"\([1-5]\d\d\)\s{0,20}Reason: [^\n]{0,200}\n\s{0,20}(?:HTTP response headers: [^\n]{0,4000}\n\s{0,20})?\Z"
)
"""What the official Python client (24 to 35) puts before the API server's answer in the text of an error."""


def without_answers(text: str) -> tuple[str, list[Mapping[str, Any]]]:
    """`text` without the errors of the Python client that carry a Status, and each such Status once."""
    decoder, answers = json.JSONDecoder(), list[Mapping[str, Any]]()
    kept, place = "", 0
    for found in islice(_BODY.finditer(text), ANSWERS):
        try:
            value, length = decoder.raw_decode(text[found.end() : found.end() + ANSWER_LIMIT])
        except (ValueError, RecursionError):
            continue
        if found.start() < place or value.get("kind") != "Status":
            continue
        before = text[max(place, found.start() - LINE_LIMIT - EVIDENCE_WIDTH) : found.start()]
        head = _HEAD.search(before)
        start = found.start() - len(before) + (head.start() if head else len(before))
        kept, place = kept + text[place:start], found.end() + length
        if value not in answers:
            answers.append(value)
    return kept + text[place:], answers


def lowered(text: str) -> str:
    """`text` with ASCII letters in lower case and every character in its place (str.lower moves some)."""
    return text.lower() if text.isascii() else text.encode("utf-8", "replace").lower().decode("utf-8")


def hits(text: str, needles: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Lines of `text` on which needles stand, once each and in order, with their needles; bounded per needle."""
    text = "\n".join(dict.fromkeys(text.split("\n")))
    low = lowered(text)
    if len(low) != len(text):  # a lone surrogate moves places; anything else keeps its own
        text = low
    lines: dict[tuple[int, int], list[str]] = {}
    for needle in _possible(low, needles):
        for place in _places(low, needle):
            lines.setdefault(_line_at(low, place), []).append(needle)
    for start, end in sorted(lines):
        yield text[start:end].strip(), lines[start, end]


_WORD = re.compile(r"[a-z]{4,60}")


def _possible(low: str, needles: Iterable[str]) -> Iterator[str]:
    """Needles all of whose words stand somewhere: of megabytes of log this leaves few to search for."""
    vocabulary = " ".join(set(_WORD.findall(low)))
    for needle in needles:
        if all(word in vocabulary for word in _words_of(needle)):
            yield needle


@cache
def _words_of(needle: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(needle))


def _line_at(low: str, place: int) -> tuple[int, int]:
    """Where the line around `place` begins and ends; of an endless line a window, the same for near places."""
    half = LINE_LIMIT // 2
    start = low.rfind("\n", max(0, place - half), place) + 1
    end = low.find("\n", place, place + half)
    if start == 0 and place > half:
        start = (place // half) * half - half // 4
    return start, end if end >= 0 else min(len(low), start + LINE_LIMIT)


def _places(low: str, needle: str) -> Iterator[int]:
    place = low.find(needle)
    for _ in range(HITS_PER_NEEDLE):
        if place < 0:
            return
        yield place
        line_end = low.find("\n", place)
        place = -1 if line_end < 0 else low.find(needle, line_end)
    if place < 0:
        return
    place = len(low)
    for _ in range(HITS_PER_NEEDLE):
        place = low.rfind(needle, 0, place)
        if place < 0:
            return
        yield place


def shown(line: str) -> str:
    """`line` as evidence: one line of bounded width."""
    flat = " ".join(line.split())
    return flat if len(flat) <= EVIDENCE_WIDTH else flat[: EVIDENCE_WIDTH - 1] + "…"


def text_fact(line: str, names: Mapping[str, str] | None = None) -> Fact:
    return Fact("text", line, shown(line), names=names or {})


_CONTEXT = (
    re.compile(r"^Name: +(?P<name>[a-z0-9][-a-z0-9.]{0,252})$", re.MULTILINE),
    re.compile(r"^Namespace: +(?P<namespace>[a-z0-9][-a-z0-9]{0,62})$", re.MULTILINE),
    re.compile(r"^Node: +(?P<node>[a-z0-9][-a-z0-9.]{0,252})", re.MULTILINE),
    re.compile(
        r"\bhelm (?:upgrade --install|upgrade|install|uninstall|rollback|history|get values) "
        r"(?P<release>[a-z0-9][-a-z0-9.]{0,52})"
    ),
    re.compile(r"(?:^| )(?:-n|--namespace)[ =](?P<namespace>[a-z0-9][-a-z0-9]{0,62})\b", re.MULTILINE),
    re.compile(r"(?:^| )--name[ =](?P<cluster>[a-zA-Z0-9][-a-zA-Z0-9.]{0,62})\b", re.MULTILINE),
    re.compile(r"\bcontext[ =]kind-(?P<cluster>[a-z0-9][-a-z0-9.]{0,62})\b"),
    re.compile(r"\bdocker [a-z -]{1,40} (?P<node>[a-z0-9][-a-z0-9.]{0,80}-(?:control-plane|worker)\d{0,3})(?![\w-])"),
)


def context(text: str) -> dict[str, str]:
    """Names that a text tells about itself: the head of ``kubectl describe``, or the command it came from."""
    names: dict[str, str] = {}
    head = text[:100_000]
    for pattern in _CONTEXT:
        if found := pattern.search(head):
            for key, value in found.groupdict().items():
                names.setdefault(key, value)
    if "name" in names and "node" in names:
        names["pod"] = names["name"]
    return names


def json_documents(text: str) -> list[Any] | None:
    """The JSON values that make up `text` (one, several, or one per line), or None where it is not JSON as a whole."""
    decoder = json.JSONDecoder()
    place, values = 0, []
    while place < len(text):
        while place < len(text) and text[place].isspace():
            place += 1
        if place == len(text):
            break
        if text[place] not in "{[":
            return None
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return None
        values.append(value)
    return values or None
