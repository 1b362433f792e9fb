"""Ports of this machine that a kind config fixes: they have to be free before the cluster is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class FixedPort:
    """A TCP port that docker is to listen on."""

    name: str
    host: str
    """Address to listen on, as kind takes it where the config names none."""
    number: int
    key: str
    """Where the kind config has it."""


def fixed_ports(config: Path) -> list[FixedPort]:
    """The ports of a kind config; none where it cannot be read, which kind itself tells better."""
    try:
        content = yaml.safe_load(config.read_text(encoding="utf-8")) or {}
        return list(dict.fromkeys(_ports(content)))
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError):
        return []


def _ports(content: Any) -> Iterator[FixedPort]:
    networking = content.get("networking") or {}
    port = int(networking.get("apiServerPort") or 0)
    if port > 0:  # 0 and -1 leave the choice to kind and docker
        host = str(networking.get("apiServerAddress") or "127.0.0.1")
        yield FixedPort("API port", host, port, "networking.apiServerPort")
    for node in content.get("nodes") or ():
        for mapping in node.get("extraPortMappings") or ():
            port = int(mapping.get("hostPort") or 0)
            if port > 0 and str(mapping.get("protocol") or "TCP").upper() == "TCP":
                host = str(mapping.get("listenAddress") or "0.0.0.0")
                yield FixedPort(f"host port {port}", host, port, "nodes[].extraPortMappings[].hostPort")
