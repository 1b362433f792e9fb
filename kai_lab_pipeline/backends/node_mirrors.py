"""Registry mirrors for the container runtime of kind nodes, as containerd's certs.d files.

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
from kai_lab_pipeline.settings import Settings

CERTS_D = "/etc/containerd/certs.d"
KIND_NETWORK = "kind"
_PATCH = f'[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "{CERTS_D}"\n'


def mirrors_config(settings: Settings) -> Path | None:
    """A kind config that makes the nodes read certs.d, where the settings name mirrors; else None.

    Node images of kind 0.27 and newer read it anyway, older ones only with this.
    """
    if not settings.mirrors:
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


def write_mirrors(settings: Settings, docker: Docker, nodes: Sequence[str], log: Log) -> None:
    """Tell every node where each registry is really taken from."""
    mirrors = list(Mirrors(settings.mirrors))
    if not mirrors:
        return
    gateway = docker.gateway(KIND_NETWORK)
    ca_text = settings.project_file(settings.ca_file).read_text(encoding="utf-8") if settings.ca_file else None
    for host, source in mirrors:
        if source.loopback and gateway is None:
            log(f"the mirror of {host} is on loopback and the nodes' gateway is unknown: nodes cannot use it")
            continue
        for node in nodes:
            docker.write_in(
                node, f"{CERTS_D}/{host}/hosts.toml", hosts_toml(host, source, gateway, ca_text is not None)
            )
            if ca_text is not None:
                docker.write_in(node, f"{CERTS_D}/{host}/ca.crt", ca_text)
        log(f"nodes take {host} from {_from_node(source, gateway)}")


def hosts_toml(host: str, source: Source, gateway: str | None, with_ca: bool) -> str:
    """containerd's hosts.toml for a registry; `override_path` only where the mirror keeps it below a prefix."""
    server = "registry-1.docker.io" if host == "docker.io" else host
    lines = [f'server = "https://{server}"', f'[host."{_from_node(source, gateway)}"]']
    lines.append('  capabilities = ["pull", "resolve"]')
    if source.prefix:
        lines.append("  override_path = true")
    if with_ca and not source.plain_http:
        lines.append(f'  ca = "{CERTS_D}/{host}/ca.crt"')
    if source.login is not None:
        token = base64.b64encode(":".join(source.login).encode()).decode()
        lines += [f'[host."{_from_node(source, gateway)}".header]', f'  Authorization = "Basic {token}"']
    return "\n".join(lines) + "\n"


def _from_node(source: Source, gateway: str | None) -> str:
    _, colon, port = source.host.rpartition(":")
    host = f"{gateway}{colon}{port}" if source.loopback and gateway else source.host
    scheme = "http" if source.plain_http else "https"
    return f"{scheme}://{host}" + (f"/v2/{source.prefix}" if source.prefix else "")
