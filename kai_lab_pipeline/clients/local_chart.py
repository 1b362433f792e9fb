"""What a chart on this machine holds, as a digest: an edit of a folder or an archive is another chart.

A chart in a registry is what its version says; one on the disk says the same version after any edit.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from kai_lab_pipeline.clients.mirrors import OCI
from kai_lab_pipeline.settings import Chart

_NOT_CHART = frozenset({".git"})
"""Folders that helm does not package and that change by themselves."""
_LENGTH = 12


def chart_content(root: Path, chart: Chart) -> str:
    """Digest of a local chart (folder or archive, named against `root`); empty for one in a registry.

    What cannot be read counts as it is now: helm says what is wrong with it when it is installed.
    """
    return "" if chart.chart.startswith(OCI) else content_of((root / chart.chart).resolve())


def content_of(path: Path) -> str:
    """Digest of a file, or of a folder with what is in it."""
    found = hashlib.sha256()
    for file in _files(path):
        found.update(f"{file.relative_to(path)}\0".encode())
        try:
            found.update(hashlib.sha256(file.read_bytes()).digest())
        except OSError as error:
            found.update(type(error).__name__.encode())
    return found.hexdigest()[:_LENGTH]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = (file for file in path.rglob("*") if not _NOT_CHART.intersection(file.relative_to(path).parts))
    return sorted(file for file in files if not file.is_dir())
