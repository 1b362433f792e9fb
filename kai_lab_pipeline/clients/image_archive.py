"""What a ``docker save`` archive says that it holds."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

from kai_lab_pipeline.clients.docker import full_name

_DIGEST = re.compile(r"[0-9a-f]{64}")


def image_id_in(archive: Path, image: str) -> str | None:
    """The id (``sha256:...`` of its config) that an image of this name has in an archive; None where it tells none.

    The id is the one that a node gives the image once it is loaded (crictl, containerd).
    """
    for row in _manifest(archive):
        names = row.get("RepoTags") or ()
        found = _DIGEST.search(str(row.get("Config")))
        if found and any(full_name(str(name)) == full_name(image) for name in names):
            return f"sha256:{found[0]}"
    return None


def _manifest(archive: Path) -> list[dict[str, Any]]:
    try:
        with tarfile.open(archive) as tar:
            file = tar.extractfile("manifest.json")
            rows = json.load(file) if file is not None else []
    except (OSError, EOFError, tarfile.TarError, KeyError, ValueError):
        return []  # an archive of another make: whoever loads it says what is wrong with it
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
