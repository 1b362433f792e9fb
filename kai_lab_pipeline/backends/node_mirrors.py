"""Registry mirrors and certificates for the container runtime of kind nodes, as containerd's certs.d files.

A mirror on this machine's loopback is not reachable from inside a node: the nodes ask the gateway of their network.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import yaml

from kai_lab_pipeline.backends.base import Log
from kai_lab_pipeline.clients.docker import Docker
from kai_lab_pipeline.clients.mirrors import Mirrors, Source
from kai_lab_pipeline.clients.process import write_file
from kai_lab_pipeline.lab.errors import WrongUse
from kai_lab_pipeline.settings import Settings

CERTS_D = "/etc/containerd/certs.d"
CA_FILE = f"{CERTS_D}/_default/ca.crt"
"""Beside the hosts.toml that containerd reads for every registry that has no folder of its own."""
KIND_NETWORK = "kind"
_PATCH = f'[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "{CERTS_D}"\n'


def mirrors_config(settings: Settings) -> Path | None:
    """A kind config that makes the nodes read certs.d, where the settings name mirrors or certificates; else None.

    Node images of kind 0.27 and newer read it anyway, older ones only with this.
    """
    if not settings.mirrors and not settings.ca_file:
        return None
    config = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": "control-plane"}],
        "containerdConfigPatches": [_PATCH],
    }
    file = settings.lab_dir / "kind-config.yaml"
    write_file(file, yaml.safe_dump(config, sort_keys=False))
    return file


def authorities(settings: Settings) -> str | None:
    """The certificates (PEM) that ca_file names; raises WrongUse where it has none, with which nothing is pulled."""
    if not settings.ca_file:
        return None
    file = settings.project_file(settings.ca_file)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        seen = getattr(error, "strerror", None) or "it is no text"
    else:
        if "-----BEGIN CERTIFICATE-----" in text:
            return text
        seen = "it has no -----BEGIN CERTIFICATE-----"
    raise WrongUse(
        f"ca_file names {settings.ca_file}, and no certificates can be read from it",
        where=str(file),
        seen=seen,
        next_step="Name a PEM file (ca_file in lab.toml, KAI_LAB_CA_FILE).",
    )


def write_mirrors(settings: Settings, docker: Docker, nodes: Sequence[str], log: Log) -> None:
    """Tell every node where each registry is really taken from, and whose certificates it trusts besides its own."""
    ca_text = authorities(settings)
    if ca_text is not None:
        for node in nodes:
            docker.write_in(node, CA_FILE, ca_text)
            docker.write_in(node, f"{CERTS_D}/_default/hosts.toml", f'ca = "{CA_FILE}"\n')
        log(f"nodes trust the certificates of {settings.ca_file}")
    mirrors = list(Mirrors(settings.mirrors))
    gateway = docker.gateway(KIND_NETWORK) if mirrors else None
    for host, source in mirrors:
        if source.loopback and gateway is None:
            log(f"the mirror of {host} is on loopback and the nodes' gateway is unknown: nodes cannot use it")
            continue
        for node in nodes:
            text = hosts_toml(host, source, gateway, ca_text is not None)
            docker.write_in(node, f"{CERTS_D}/{host}/hosts.toml", text)
        log(f"nodes take {host} from {_from_node(source, gateway)}")


def hosts_toml(host: str, source: Source, gateway: str | None, with_ca: bool) -> str:
    """containerd's hosts.toml for a registry; `override_path` only where the mirror keeps it below a prefix."""
    server = "registry-1.docker.io" if host == "docker.io" else host
    ca = [f'ca = "{CA_FILE}"'] if with_ca else []
    lines = [f'server = "https://{server}"', *ca, f'[host."{_from_node(source, gateway)}"]']
    lines.append('  capabilities = ["pull", "resolve"]')
    if source.prefix:
        lines.append("  override_path = true")
    if not source.plain_http:
        lines += [f"  {line}" for line in ca]
    if source.login is not None:
        token = base64.b64encode(":".join(source.login).encode()).decode()
        lines += [f'[host."{_from_node(source, gateway)}".header]', f'  Authorization = "Basic {token}"']
    return "\n".join(lines) + "\n"


def _from_node(source: Source, gateway: str | None) -> str:
    _, colon, port = source.host.rpartition(":")
    host = f"{gateway}{colon}{port}" if source.loopback and gateway else source.host
    scheme = "http" if source.plain_http else "https"
    return f"{scheme}://{host}" + (f"/v2/{source.prefix}" if source.prefix else "")
