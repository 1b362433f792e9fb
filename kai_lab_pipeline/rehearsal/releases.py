"""Releases as helm 3 keeps them: one secret per revision, packed, with labels that tell its state."""

from __future__ import annotations

import base64
import gzip
import json
import time
from collections.abc import Mapping
from typing import Any

from kai_lab_pipeline.rehearsal.client import RESOURCES, Object, SyncApi, create_request, delete_request, patch_request

MANAGER = "helm"
PENDING = ("pending-install", "pending-upgrade", "pending-rollback")


def revisions(api: SyncApi, namespace: str, release: str) -> list[Object]:
    """All kept revisions of a release, oldest first."""
    secrets = api.list(RESOURCES["secrets"], namespace, labelSelector=f"owner=helm,name={release}")
    return sorted((_decode(secret) for secret in secrets), key=lambda record: int(record["revision"]))


def newest(api: SyncApi, namespace: str, release: str) -> Object | None:
    kept = revisions(api, namespace, release)
    return kept[-1] if kept else None


def all_newest(api: SyncApi) -> list[Object]:
    """The newest revision of every release in the cluster, by name."""
    found: dict[tuple[str, str], Object] = {}
    for secret in api.list(RESOURCES["secrets"], labelSelector="owner=helm"):
        record = _decode(secret)
        key = (record["name"], record["namespace"])
        if key not in found or record["revision"] > found[key]["revision"]:
            found[key] = record
    return [record for _, record in sorted(found.items())]


def store(api: SyncApi, record: Mapping[str, Any]) -> None:
    """Keeps a new revision."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "helm.sh/release.v1",
        "metadata": {"name": _name(record), "namespace": record["namespace"], "labels": _labels(record)},
        "data": {"release": _encode(record)},
    }
    api.send(create_request(secret, MANAGER))


def update(api: SyncApi, record: Mapping[str, Any]) -> None:
    """Writes a revision again, with another state."""
    patch = {"metadata": {"labels": _labels(record)}, "data": {"release": _encode(record)}}
    api.send(patch_request(RESOURCES["secrets"], record["namespace"], _name(record), patch, MANAGER))


def forget(api: SyncApi, namespace: str, release: str) -> None:
    """Removes every revision."""
    for record in revisions(api, namespace, release):
        drop(api, record)


def drop(api: SyncApi, record: Mapping[str, Any]) -> None:
    """Removes one revision."""
    api.send(delete_request(RESOURCES["secrets"], record["namespace"], _name(record)))


def row(record: Mapping[str, Any]) -> dict[str, str]:
    """The revision as a row of ``helm list -o json``."""
    return {
        "name": record["name"],
        "namespace": record["namespace"],
        "revision": str(record["revision"]),
        "updated": record["updated"],
        "status": record["status"],
        "chart": f"{record['chart']}-{record['chart_version']}",
        "app_version": record["app_version"],
    }


def _name(record: Mapping[str, Any]) -> str:
    return f"sh.helm.release.v1.{record['name']}.v{record['revision']}"


def _labels(record: Mapping[str, Any]) -> dict[str, str]:
    return {
        "name": record["name"],
        "owner": "helm",
        "status": record["status"],
        "version": str(record["revision"]),
        "modifiedAt": str(int(time.time())),
    }


def _encode(record: Mapping[str, Any]) -> str:
    packed = base64.b64encode(gzip.compress(json.dumps(record).encode(), mtime=0))
    return base64.b64encode(packed).decode()


def _decode(secret: Mapping[str, Any]) -> Object:
    packed = base64.b64decode(base64.b64decode(secret["data"]["release"]))
    record: Object = json.loads(gzip.decompress(packed))
    return record
