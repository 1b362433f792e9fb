"""Registry credentials from the Docker configuration, read only; values are never shown or logged."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_DOCKER_HUB = "docker.io"
_DOCKER_HUB_NAMES = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"})


def canonical_host(host: str) -> str:
    """One name per registry: Docker Hub goes by several."""
    lowered = host.lower()
    return _DOCKER_HUB if lowered in _DOCKER_HUB_NAMES else lowered


@dataclass(frozen=True)
class Credentials:
    username: str
    password: str = field(repr=False)
    identity_token: str = field(default="", repr=False)
    """A refresh token to exchange at the token service, instead of a password."""


@dataclass(frozen=True)
class Login:
    """What the Docker configuration says about one registry."""

    credentials: Credentials | None = None
    note: str = ""
    """Why there are no credentials although the file names the registry; a sentence with the remedy."""


def docker_config_file(environ: Mapping[str, str] | None = None) -> Path:
    """``$DOCKER_CONFIG/config.json``, by default ``~/.docker/config.json``."""
    folder = (os.environ if environ is None else environ).get("DOCKER_CONFIG")
    return (Path(folder) if folder else Path.home() / ".docker") / "config.json"


def login_for(host: str, file: Path) -> Login:
    """Credentials for a registry host. A missing file means none; a broken one gives a note, never an exception.

    Credential helpers are other people's programs: they are named in the note and not run.
    """
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Login()
    except (OSError, ValueError):
        return Login(note=f"{file} cannot be read as JSON, so no credentials were used: correct it, or log in again.")
    if not isinstance(config, dict):
        return Login(note=f"{file} holds no JSON object, so no credentials were used: correct it, or log in again.")
    entry = _entry(config.get("auths"), host)
    found = _credentials(entry)
    if found is not None:
        return Login(found)
    helper = _entry(config.get("credHelpers"), host) or config.get("credsStore")
    if isinstance(helper, str) and helper:
        return Login(
            note=f"{file} leaves credentials to docker-credential-{helper}, which is not run from here: put an auths"
            f" entry for {host} into a config.json of its own and point DOCKER_CONFIG at its folder."
        )
    if entry:
        return Login(note=f"{file} names {host} without usable credentials: `docker login {host}` again.")
    return Login()


def _entry(section: Any, host: str) -> Any:
    wanted = canonical_host(host)
    for name, value in section.items() if isinstance(section, dict) else ():
        bare = str(name).split("://", 1)[-1].split("/", 1)[0]
        if canonical_host(bare) == wanted:
            return value
    return None


def _credentials(entry: Any) -> Credentials | None:
    if not isinstance(entry, dict):
        return None
    token = entry.get("identitytoken")
    try:
        decoded = base64.b64decode(str(entry.get("auth", "")), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        decoded = ""
    username, colon, password = decoded.partition(":")
    if not colon and isinstance(entry.get("username"), str) and isinstance(entry.get("password"), str):
        username, colon, password = entry["username"], ":", entry["password"]
    password = password.strip("\x00")
    if isinstance(token, str) and token:
        return Credentials(username, password, token)
    return Credentials(username, password) if colon and username else None
