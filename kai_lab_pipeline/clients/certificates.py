"""Certificate authorities for tools that take a file instead of this machine's, and not besides them."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from pathlib import Path

from kai_lab_pipeline.lab.errors import WrongUse

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def with_system(ca_file: Path) -> str:
    """The certificates (PEM) of `ca_file` and those that this machine trusts, each once; raises WrongUse without any.

    The machine's are where OpenSSL looks for them, SSL_CERT_FILE and SSL_CERT_DIR included, as in helm (Go).
    """
    try:
        own = _CERTIFICATE.findall(ca_file.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise _unusable(ca_file, error.strerror or str(error)) from error
    if not own:
        raise _unusable(ca_file, "there is no certificate in it")
    return "\n".join(dict.fromkeys((*own, *_of_this_machine()))) + "\n"


def _of_this_machine() -> Iterator[str]:
    paths = ssl.get_default_verify_paths()
    files = [Path(paths.cafile)] if paths.cafile else []
    if paths.capath:
        files += sorted(Path(paths.capath).iterdir())
    for file in dict.fromkeys(file.resolve() for file in files):
        try:
            yield from _CERTIFICATE.findall(file.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue  # a folder, or a link to nowhere


def _unusable(ca_file: Path, why: str) -> WrongUse:
    return WrongUse(
        "The certificates in ca_file cannot be read",
        where=str(ca_file),
        seen=why,
        next_step="Name a PEM file (ca_file in lab.toml, KAI_LAB_CA_FILE).",
    )
