"""Registries replaced by mirrors: which address a chart or image is really taken from."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kai_lab_pipeline.clients.docker_config import canonical_host, docker_config_file
from kai_lab_pipeline.clients.files import write_atomic
from kai_lab_pipeline.clients.loopback import is_loopback

OCI = "oci://"


@dataclass(frozen=True)
class Source:
    """Where a registry's content is taken from."""

    host: str
    """Host and port, as in a reference."""
    prefix: str = ""
    """Path before the repository, without slashes at the ends."""
    plain_http: bool = False
    login: tuple[str, str] | None = field(default=None, repr=False)
    """User and password, where the mirror's address has them."""

    @property
    def url(self) -> str:
        return f"{'http' if self.plain_http else 'https'}://{self.host}" + (f"/{self.prefix}" if self.prefix else "")

    @property
    def loopback(self) -> bool:
        return _is_loopback(self.host)


def _is_loopback(host: str) -> bool:
    """`is_loopback` of a host with or without port."""
    return is_loopback(re.sub(r":\d+$", "", host))


def registry_of(reference: str) -> str:
    """Registry host of an ``oci://`` reference."""
    return reference.removeprefix(OCI).split("/", 1)[0]


class Mirrors:
    """Settings [mirrors]: registry host -> address. Without a scheme it is https."""

    def __init__(self, mirrors: Mapping[str, str]) -> None:
        self._sources = {canonical_host(host): _source(address) for host, address in mirrors.items()}

    def __iter__(self) -> Iterator[tuple[str, Source]]:
        return iter(self._sources.items())

    def of(self, host: str) -> Source:
        """Where a registry is reached: its mirror, or itself."""
        return self._sources.get(canonical_host(host)) or Source(host, plain_http=_is_loopback(host))

    def chart(self, reference: str) -> tuple[str, Source]:
        """An ``oci://`` chart reference as it is to be pulled, and its source."""
        host, _, path = reference.removeprefix(OCI).partition("/")
        source = self.of(host)
        return OCI + "/".join(part for part in (source.host, source.prefix, path) if part), source


def _source(address: str) -> Source:
    parts = urlsplit(address if "://" in address else f"https://{address}")
    login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    return Source(parts.netloc.rpartition("@")[2], parts.path.strip("/"), parts.scheme == "http", login)


def login_file(host: str, environ: Mapping[str, str] | None = None) -> Path | None:
    """The file with this user's login for a registry (helm's own, then docker's), or None when there is no login."""
    environ = os.environ if environ is None else environ
    home = Path(environ.get("HOME") or Path.home())
    helm_home = home / ("Library/Preferences/helm" if sys.platform == "darwin" else ".config/helm")
    helm_config = Path(environ.get("HELM_REGISTRY_CONFIG") or helm_home / "registry" / "config.json")
    for file in (helm_config, docker_config_file(environ)):
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        sections = [config.get(name) or {} for name in ("auths", "credHelpers")] if isinstance(config, dict) else []
        keys = (key for section in sections for key in section)
        if any(canonical_host(key.split("://", 1)[-1].split("/", 1)[0]) == canonical_host(host) for key in keys):
            return file
    return None


def write_logins(file: Path, logins: Mapping[str, tuple[str, str]]) -> None:
    """Write a registry config as helm reads it, so that no password stands on a command line."""
    auths = {host: {"auth": base64.b64encode(":".join(pair).encode()).decode()} for host, pair in logins.items()}
    write_private(file, json.dumps({"auths": auths}))


def write_private(file: Path, text: str) -> None:
    """Write a file (mode 0600) with its folder, whole or not at all: another helm may be reading it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, text, mode=0o600)
