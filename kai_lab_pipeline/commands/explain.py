"""`kai-lab explain`: an error text, a log, objects or a bundle in; cause, remedy and where it is described out."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from kai_lab_pipeline.clients.bundle import BundleError, read_bundle
from kai_lab_pipeline.lab.diagnosis import Cause, Diagnosis, Nature, diagnose_evidence, diagnose_objects, diagnose_text
from kai_lab_pipeline.lab.diagnosis.plain import plain_line
from kai_lab_pipeline.lab.errors import WrongUse

MAX_BYTES = 5 * 1024 * 1024
"""Of a larger input the end is read: what went wrong stands there."""
MAX_YAML_BYTES = 512 * 1024
"""YAML takes seconds per megabyte; a longer one is read as text, in which most words stand as well."""
_CHUNK = 1024 * 1024
_YAML_OBJECT = re.compile(r"^(?:- )?(?:apiVersion|kind): \S", re.MULTILINE)
_YAML_ANCHOR = re.compile(r"(?:^|[:,\[{-])\s{0,20}[&*]\w", re.MULTILINE)
_NEXT_OF_WELL = "Next: where something does not work all the same, give its error text or its log."
_NEXT_OF_UNKNOWN = (
    "Next: give the lines around the first error, the output of 'kubectl describe', or the folder of an evidence "
    "bundle."
)
_SHOWN = {
    Nature.FAULT: "Cause",
    Nature.EXPECTED: "Expected here",
    Nature.HARMLESS: "Harmless",
}


def explain_command(file: str | None, *, as_json: bool) -> int:
    """Say what is known of a file, a bundle's folder, or stdin (``-`` or None); returns the exit code.

    0 whether or not something is known: that it is not known is an answer. Raises WrongUse for an input that cannot
    be read.
    """
    if file is not None and file != "-" and Path(file).is_dir():
        diagnosis = _of_bundle(Path(file))
    else:
        data, cut = _read(file)
        diagnosis = explain_bytes(data)
        if cut:
            print(f"Only the last {MAX_BYTES // 1024 // 1024} MB of {_name(file)} were read.", file=sys.stderr)
    if as_json:
        # Escaped, so that it can be printed whatever the terminal's encoding and whatever stood in the input.
        print(json.dumps(diagnosis.to_json(), indent=1))
    else:
        show(diagnosis, _name(file))
    return 0


def explain_bytes(data: bytes) -> Diagnosis:
    """What is known of a text or of JSON or YAML objects in any bytes; never raises."""
    text = _decoded(data)
    if len(data) <= MAX_YAML_BYTES and not text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        objects = _yaml_objects(text)
        if objects is not None:
            found = diagnose_objects(objects)
            if found.known:
                return found
            # A healthy object, or a log that happens to be YAML: its words may still say something.
            said = diagnose_text(text)
            return said if said.known else replace(found, looked_at=(*found.looked_at, *said.looked_at))
    return diagnose_text(text)


def _of_bundle(folder: Path) -> Diagnosis:
    try:
        return diagnose_evidence(read_bundle(folder))
    except BundleError as error:
        raise WrongUse(
            f"{folder} is a folder, and no evidence bundle",
            seen=str(error),
            next_step="Name a file, '-' for stdin, or the folder that holds bundle.json.",
        ) from error


def _name(file: str | None) -> str:
    return "stdin" if file in (None, "-") else str(file)


def _read(file: str | None) -> tuple[bytes, bool]:
    """The last MAX_BYTES of the input, and whether there were more."""
    if file is None or file == "-":
        if sys.stdin.isatty():
            print("Paste the error or log, then press Ctrl-D.", file=sys.stderr)
        return _tail(sys.stdin.buffer)
    try:
        with open(file, "rb") as stream:
            if stream.seekable():
                size = stream.seek(0, io.SEEK_END)
                stream.seek(max(0, size - MAX_BYTES))
                return stream.read(MAX_BYTES), size > MAX_BYTES
            return _tail(stream)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise WrongUse(
            f"{file} cannot be read: {reason}",
            next_step="Name a file, '-' for stdin, or the folder of an evidence bundle.",
        ) from error


def _tail(stream: BinaryIO) -> tuple[bytes, bool]:
    kept, total = bytearray(), 0
    while chunk := stream.read(_CHUNK):
        total += len(chunk)
        kept += chunk
        if len(kept) > MAX_BYTES + 4 * _CHUNK:
            del kept[: len(kept) - MAX_BYTES]
    return bytes(kept[-MAX_BYTES:]), total > MAX_BYTES


def _decoded(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):  # Windows writes UTF-16 with a mark
        return data.decode("utf-16", "replace")
    return data.decode("utf-8", "replace")


def _yaml_objects(text: str) -> list[Any] | None:
    """The documents of a YAML text with Kubernetes objects; None where it is something else or half-broken."""
    # kubectl prints no anchors; refusing them keeps a small file from becoming a huge object.
    if not _YAML_OBJECT.search(text) or _YAML_ANCHOR.search(text):
        return None
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return list(_documents(yaml.load_all(text, Loader=loader)))
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError):
        return None


def _documents(values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, dict | list):
            yield value


def show(diagnosis: Diagnosis, name: str) -> None:
    """Print an answer for a person; `name` is what was read."""
    for index, cause in enumerate(diagnosis.all):
        if index:
            _say("")
        _print_cause(cause)
    if not diagnosis.known:
        _say(f"Nothing in {name} is {'unwell' if diagnosis.well else 'known to the lab'}.")
        for line in diagnosis.looked_at:
            _say(f"Looked at: {line}")
        _say(_NEXT_OF_WELL if diagnosis.well else _NEXT_OF_UNKNOWN)


def _print_cause(cause: Cause) -> None:
    _say(f"{_SHOWN[cause.nature]}: {cause.cause}")
    _say(f"  known as {cause.id} of {cause.fault.component} (versions: {cause.fault.versions})")
    for line in cause.evidence:
        _say(f"  seen: {line}")
    for step in cause.remedy:
        _say(f"  do:   {step}")
    _say(f"  {'goes away by itself or with a retry' if cause.transient else 'stays until something is changed'}")
    _say(f"  more: {cause.known_issue}")


def _say(line: str) -> None:
    """Print a line that steers no terminal, with letters that it cannot show replaced: input is of any origin."""
    encoding = sys.stdout.encoding or "utf-8"
    print(plain_line(line).encode(encoding, "replace").decode(encoding, "replace"))
