"""Writes the report's files so that a reader sees the old report or the new one, never a half of either."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.report.model import Report
from kai_lab_pipeline.report.render_html import render_html
from kai_lab_pipeline.report.render_json import render_json
from kai_lab_pipeline.report.render_junit import render_junit
from kai_lab_pipeline.report.render_markdown import render_markdown


@dataclass(frozen=True)
class ReportFiles:
    """Where the four formats of a report are."""

    markdown: Path
    html: Path
    json: Path
    junit: Path


_RENDERERS: tuple[tuple[str, str, Callable[[Report], str]], ...] = (
    ("markdown", "report.md", render_markdown),
    ("html", "report.html", render_html),
    ("json", "report.json", render_json),
    ("junit", "junit.xml", render_junit),
)

_PERSONS_TO_CHANGE = (PermissionError, NotADirectoryError, FileExistsError, IsADirectoryError)


def write_report(report: Report, folder: Path) -> ReportFiles:
    """Write report.md, report.html, report.json and junit.xml into `folder`, which is made when it is not there.

    All four are rendered and written beside their places before the first is moved there, so an error in between (a
    full disk, a read-only folder) leaves an earlier report as it was. Raises WrongUse where the folder
    cannot be written to at all, LabError for any other failure of the disk.
    """
    texts = [(key, folder / name, render(report)) for key, name, render in _RENDERERS]
    waiting: list[tuple[Path, Path]] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for _, target, text in texts:
            waiting.append((_write_beside(target, text), target))
        for temporary, target in waiting:
            os.replace(temporary, target)
    except OSError as error:
        kind = WrongUse if isinstance(error, _PERSONS_TO_CHANGE) or error.errno == errno.EROFS else LabError
        raise kind(
            "The report could not be written.",
            where=str(folder),
            seen=error.strerror or str(error),
            next_step="make that folder writable or free space on its disk, or name another one with --report-dir",
        ) from error
    finally:
        for temporary, _ in waiting:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    return ReportFiles(**{key: target for key, target, _ in texts})


def _write_beside(target: Path, text: str) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    path = Path(name)
    try:
        with open(handle, "w", encoding="utf-8", errors="replace", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        # A temporary file is private; a report is meant to be read by whoever may read the folder.
        path.chmod(0o644)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path
