"""The nvml-mock image on nodes that somebody else runs: and the way there if they are kind's on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kai_lab_pipeline.backends.base import Log, StepFacts
from kai_lab_pipeline.backends.image import ImageProvider
from kai_lab_pipeline.clients.docker import Docker, full_name
from kai_lab_pipeline.clients.kind import Kind
from kai_lab_pipeline.clients.kubernetes import Cluster
from kai_lab_pipeline.clients.mirrors import write_private
from kai_lab_pipeline.clients.tools import Runner
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.settings import Settings

LOADED = "image-loaded"
"""File in the lab's folder with the incarnation of the cluster into whose nodes the lab has loaded the image."""
_KEEPS_PODS_OUT = ("NoSchedule", "NoExecute")


def provide_borrowed(settings: Settings, runner: Runner, cluster: Cluster, log: Log) -> StepFacts:
    """Skipped, with the reason and the way out, where the image is not on the nodes and cannot be loaded into them.

    What the lab has loaded once it goes on looking after: as the image of a kind cluster of its own.
    """
    image = settings.image.nvml_mock.name
    nodes = {str(node["metadata"]["name"]): node for node in cluster.objects("nodes") if _takes_pods(node)}
    without = [name for name, node in nodes.items() if full_name(image) not in _images(node)]
    if nodes and not without and not _has_loaded(settings, cluster):
        return StepFacts(f"{image} is on the nodes", changed=False)
    kind = Kind(runner)
    kind_name = _kind_here(kind, cluster, log)
    if kind_name is not None:
        facts = ImageProvider(settings, runner, Docker(runner), kind).provide(kind_name, log)
        write_private(settings.lab_dir / LOADED, cluster.incarnation())
        return facts
    if nodes and not without:
        return StepFacts(f"{image} is on the nodes", changed=False)
    lacking = ", ".join(without[:5]) + (" and others" if len(without) > 5 else "")
    return StepFacts(
        f"{image} is not on {lacking or 'any node'}, and the lab cannot load images into the nodes "
        f"of context {cluster.context}. They pull what the chart names: push {image} to a registry they reach, and set "
        '"image.repository" and "image.tag" of charts.nvml_mock',
        changed=False,
        skipped=True,
    )


def borrowed_digests(settings: Settings, runner: Runner, cluster: Cluster) -> Mapping[str, frozenset[str]]:
    """Per node, the digests of the image that it has now; empty where the lab has not loaded it."""
    if not _has_loaded(settings, cluster):
        return {}
    kind = Kind(runner)
    name = _kind_here(kind, cluster, lambda _: None)
    return {} if name is None else ImageProvider(settings, runner, Docker(runner), kind).digests(name)


def _has_loaded(settings: Settings, cluster: Cluster) -> bool:
    """Whether the lab has loaded the image into the nodes of this very cluster."""
    try:
        return (settings.lab_dir / LOADED).read_text(encoding="utf-8") == cluster.incarnation()
    except FileNotFoundError:
        return False


def _images(node: Mapping[str, Any]) -> set[str]:
    images = (node.get("status") or {}).get("images") or ()
    return {full_name(str(name)) for item in images for name in item.get("names") or ()}


def _takes_pods(node: Mapping[str, Any]) -> bool:
    """Whether the mock's DaemonSet comes to a node; a cordoned one is no exception."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return not any(
        taint.get("effect") in _KEEPS_PODS_OUT and not str(taint.get("key")).startswith("node.kubernetes.io/")
        for taint in taints
    )


def _kind_here(kind: Kind, cluster: Cluster, log: Log) -> str | None:
    """Name of the kind cluster of this machine that a context means; a name alone proves nothing."""
    name = cluster.context.removeprefix("kind-")
    if name == cluster.context:
        return None
    try:
        if name not in kind.clusters():
            return None
        with tempfile.TemporaryDirectory(dir=cluster.kubeconfig.parent, prefix=".kubeconfig-") as scratch:
            file = Path(scratch) / "kubeconfig"
            kind.export_kubeconfig(name, file)
            same = Cluster(file, cluster.context).incarnation() == cluster.incarnation()
    except LabError as error:
        log(f"no kind cluster of this machine: {error.what}")
        return None
    if not same:
        log(f"the kind cluster {name} of this machine is another one than that of context {cluster.context}")
    return name if same else None
