"""Whether a cluster that somebody else runs is free for the lab: no other lab on it, and no KAI of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kai_lab_pipeline.backends.kai_made import standing_kais
from kai_lab_pipeline.backends.owner import PART_OF, Mark, lab_id, read_mark
from kai_lab_pipeline.backends.releases import is_release_of
from kai_lab_pipeline.backends.toolbox import lab_helm
from kai_lab_pipeline.clients.kubernetes import Cluster, NotFound
from kai_lab_pipeline.clients.tools import Runner
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.settings import Settings

LAB_QUEUES = frozenset({"default", "default-queue", "default-parent-queue"})
"""Queues that the lab or KAI's own chart makes; any other is somebody's."""


def taken(context: str, why: str, next_step: str) -> LabError:
    return LabError(f"The cluster of context {context} is not free for the lab", seen=why, next_step=next_step)


def is_this_labs(mark: Mark, folder: Path) -> bool:
    """Whether a mark is that of the lab with this state folder; a folder that never had a lab is not given an id."""
    return (folder / "id").is_file() and mark.lab_id == lab_id(folder)


def refuse_taken(cluster: Cluster, settings: Settings, runner: Runner | None) -> Mark | None:
    """The mark of a cluster that the lab has or could be given; reads only. `runner`: None where there is no helm.

    Raises LabError as a run would that is to begin there.
    """
    refuse_foreign_queues(cluster)
    mark = read_mark(cluster)
    refuse_another_lab(cluster.context, mark, settings.lab_dir)
    if mark is None and runner is not None:
        handed_over(cluster, settings, lab_helm(settings, runner, cluster).releases())
    return mark


def refuse_another_lab(context: str, mark: Mark | None, folder: Path) -> None:
    """Raises LabError for the mark of another lab."""
    if mark is not None and not is_this_labs(mark, folder):
        raise taken(
            context,
            f"it is used by lab {mark.lab!r} with another state folder, since {mark.since}",
            "Tear that lab down first ('kai-lab down' in its folder), or take another cluster.",
        )


def refuse_foreign_queues(cluster: Cluster) -> None:
    """Raises LabError for KAI queues that are not the lab's."""
    try:
        names = {str(queue["metadata"]["name"]) for queue in cluster.objects("queues")}
    except NotFound:
        return
    foreign = sorted(names - LAB_QUEUES)
    if foreign:
        raise taken(
            cluster.context,
            f"it has KAI queues that are not the lab's: {', '.join(foreign[:5])}",
            "Others work with KAI there, and the lab would change its default queues: take another cluster.",
        )


def handed_over(cluster: Cluster, settings: Settings, rows: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """KAI releases (``namespace/name``) that a person handed over to the lab, of the rows of ``helm list``.

    Raises LabError when KAI is there and was not.
    """
    theirs = [row for row in rows if is_release_of("kai_scheduler", row)]
    key, value = next(iter(PART_OF.items()))
    for row in theirs:
        name, namespace = row["name"], row["namespace"]
        if not _is_labelled(cluster, namespace):
            raise taken(
                cluster.context,
                f"KAI Scheduler is there (release {name} in namespace {namespace}), and not by this lab",
                f"Take another cluster. Or hand it over, to be changed and removed by the lab: "
                f"{_persons_kubectl(settings, cluster)} label namespace {namespace} {key}={value}",
            )
    others = standing_kais(cluster)
    if others and not theirs:
        raise taken(
            cluster.context,
            f"KAI Scheduler runs there without a helm release ({others[0]})",
            "Take another cluster, or remove that KAI first.",
        )
    return frozenset(f"{row['namespace']}/{row['name']}" for row in theirs)


def _is_labelled(cluster: Cluster, namespace: str) -> bool:
    found = cluster.find("namespaces", namespace) or {}
    labels = (found.get("metadata") or {}).get("labels") or {}
    return all(labels.get(key) == value for key, value in PART_OF.items())


def _persons_kubectl(settings: Settings, cluster: Cluster) -> str:
    """kubectl on the context that the lab was given, in the file that the settings name: the lab has none of it yet."""
    named = settings.lab.kubeconfig
    file = f" --kubeconfig {settings.project_file(str(Path(named).expanduser()))}" if named else ""
    return f"kubectl{file} --context {cluster.context}"
