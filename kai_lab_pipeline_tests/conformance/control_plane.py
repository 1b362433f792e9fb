"""A control plane without nodes: etcd, kube-apiserver and kube-controller-manager on the loopback."""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from kai_lab_pipeline.rehearsal.certificates import ensure_certificate
from kai_lab_pipeline_tests.conformance.services import free_ports, service
from kai_lab_pipeline_tests.conformance.toolchain import Binaries

CONTEXT = "kai-lab-conformance"
START_S = 120.0
"""Seconds that each server gets to become ready; a quiet machine needs under 8 in all."""


@dataclass(frozen=True)
class ControlPlane:
    """A running control plane; `token` is a cluster administrator's."""

    url: str
    token: str
    kubeconfig: Path
    """Mode 0600, one context (`CONTEXT`)."""


@contextlib.contextmanager
def control_plane(programs: Binaries, folder: Path) -> Iterator[ControlPlane]:
    """Run a control plane for the time of the block, with all its files in `folder`.

    Raises ServiceFailed when one of its servers does not come up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    etcd_port, peer_port, port, controller_port = free_ports(4)
    token = secrets.token_urlsafe(32)
    certificate, certificate_key = ensure_certificate(folder)
    account_key = folder / "service-account.key"
    _write_private(account_key, _rsa_key())
    _write_private(folder / "tokens.csv", f"{token},admin,admin,system:masters\n")
    url = f"https://127.0.0.1:{port}"
    kubeconfig = folder / "kubeconfig"
    _write_private(kubeconfig, _kubeconfig(url, token, certificate))
    etcd_url = f"http://127.0.0.1:{etcd_port}"
    with contextlib.ExitStack() as stack:
        etcd = [
            str(programs.etcd),
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
            "--unsafe-no-fsync",  # the data is thrown away afterwards
            "--log-level=warn",
        ]
        store = stack.enter_context(service("etcd", etcd, folder))
        store.wait_ready(lambda: _not_ok(f"{etcd_url}/health"), START_S)
        _age(etcd_url)
        api_server = [
            str(programs.kube_apiserver),
            f"--etcd-servers={etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={certificate_key}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={account_key}",
            f"--service-account-signing-key-file={account_key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--allow-privileged=true",  # as kind and kubeadm have it; nvml-mock's pod is privileged
            "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",  # as kubeadm has it
            "--endpoint-reconciler-type=none",  # a loopback address is refused as an endpoint
        ]
        server = stack.enter_context(service("kube-apiserver", api_server, folder))
        server.wait_ready(lambda: _not_ok(f"{url}/readyz"), START_S)
        controllers = [
            str(programs.kube_controller_manager),
            f"--kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={controller_port}",
            f"--cert-dir={folder / 'controllers'}",
            f"--service-account-private-key-file={account_key}",
            f"--root-ca-file={certificate}",
            "--leader-elect=false",
            "--node-monitor-grace-period=24h",  # the simulated kubelet renews no lease
        ]
        manager = stack.enter_context(service("kube-controller-manager", controllers, folder))
        manager.wait_ready(lambda: _not_ok(f"https://127.0.0.1:{controller_port}/healthz"), START_S)
        ready = ControlPlane(url, token, kubeconfig)
        manager.wait_ready(lambda: _no_account(ready), START_S)
        yield ready


def _not_ok(url: str) -> str | None:
    """None when `url` answers 200, else what happened. The certificate is not the question here."""
    try:
        answer = httpx.get(url, verify=False, trust_env=False, timeout=5)
    except httpx.TransportError as error:
        return f"{url}: {error}"
    return None if answer.status_code == 200 else f"{url}: {answer.status_code} {answer.text[-300:]}"


def _age(etcd_url: str) -> None:
    """Give a new etcd a past that is forgotten, as every cluster has one: version 1 is then too old to be read."""
    entry = {name: base64.b64encode(b"past").decode() for name in ("key", "value")}
    with httpx.Client(base_url=etcd_url, trust_env=False, timeout=10) as client:
        for _ in range(3):
            revision = client.post("/v3/kv/put", json=entry).raise_for_status().json()["header"]["revision"]
        client.post("/v3/kv/compaction", json={"revision": revision}).raise_for_status()


def _no_account(plane: ControlPlane) -> str | None:
    """None when pods can be made in the default namespace: the controllers gave it its service account."""
    answer = httpx.get(
        f"{plane.url}/api/v1/namespaces/default/serviceaccounts/default",
        headers={"Authorization": f"Bearer {plane.token}"},
        verify=False,
        trust_env=False,
        timeout=5,
    )
    return None if answer.status_code == 200 else f"service account default/default: {answer.status_code}"


def _rsa_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _kubeconfig(url: str, token: str, authority: Path) -> str:
    certificate = base64.b64encode(authority.read_bytes()).decode()
    cluster = {"server": url, "certificate-authority-data": certificate}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": CONTEXT,
            "clusters": [{"name": CONTEXT, "cluster": cluster}],
            "users": [{"name": CONTEXT, "user": {"token": token}}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        }
    )


def _write_private(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
