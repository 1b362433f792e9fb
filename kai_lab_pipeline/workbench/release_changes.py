"""What somebody changed by hand in what a chart release has put on the cluster, and how it is put back.

An object of the chart is compared with its manifest (``helm get manifest``) as it would come out today: what a hand has
written and is other than that, and what the manifest names and is gone. Of what KAI's operator and hooks make there is
no manifest, so there all that hands own counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kai_lab_pipeline.backends.base import Log
from kai_lab_pipeline.backends.releases import SHARED_NAMESPACES
from kai_lab_pipeline.clients.kubernetes import KAI_GROUPS, KINDS, REPAIR_MANAGER, Cluster, NotFound, is_ours
from kai_lab_pipeline.lab.field_owners import (
    ABSENT,
    Change,
    Path,
    changed_by_hand,
    readable,
    restoring,
    taken_out,
    told_written,
    value_at,
    written_by_hand,
)
from kai_lab_pipeline.settings import Chart
from kai_lab_pipeline.workbench.apply import as_made
from kai_lab_pipeline.workbench.lab import Lab

WORKLOADS = ("deployments", "daemonsets")
NAMESPACED = (*WORKLOADS, "configmaps", "services")
OF_CHARTS = (
    *NAMESPACED,
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "runtimeclasses",
    "queues",
    "schedulingshards",
)
"""Resources of a chart's manifest that are looked at. A namespace is left out: others may have things to say there."""
OF_HOOKS = ("configs",)
"""Resources that KAI's hooks apply."""


@dataclass(frozen=True)
class ReleaseChange:
    """One change by hand in an object of a release."""

    resource: str
    kind: str
    name: str
    namespace: str | None
    change: Change | None = None
    """The field; None where the whole object is gone."""
    made: Mapping[str, Any] | None = None
    """The object as the chart makes it; None where a hook or an operator does."""
    operated: bool = False
    """Whether an operator makes the object, and makes it anew when it is deleted."""

    @property
    def manager(self) -> str:
        return self.change.manager if self.change else ""

    @property
    def when(self) -> str:
        return self.change.when if self.change else ""

    def text(self) -> str:
        name = f"{self.kind} {self.name}"
        if self.change is None:
            return f"{name} is not there"
        said = self.change.text() if self.made is not None else told_written(self.change.path, self.change.there)
        return f"{name}: {said}"

    def where(self) -> str:
        """What is put back, in few words."""
        return f"{self.kind} {self.name}" + (f" {readable(self.change.path)}" if self.change else "")


def changes_of_release(lab: Lab, cluster: Cluster, component: str, chart: Chart) -> list[ReleaseChange]:
    """All that was changed by hand in what a release consists of. Raises LabError where the cluster does not answer."""
    objects = lab.backend.manifest(chart)
    found = [change for obj in objects for change in _of_chart(cluster, chart, obj)]
    if component == "kai_scheduler":
        found += _of_operator(cluster, chart)
        found += _of_hooks(cluster)
    return found


def put_back(cluster: Cluster, changes: Collection[ReleaseChange], log: Log) -> list[str]:
    """Put back what is still changed after the release was applied again; returns what it was, in few words.

    Helm writes over what its chart names, and leaves what somebody added. What an operator makes is deleted: it makes
    it anew. Raises ApiError.
    """
    done = []
    gone: set[tuple[str, str]] = set()
    for change in changes:
        living = cluster.find(change.resource, change.name, namespace=change.namespace)
        if change.change is None or living is None or (change.resource, change.name) in gone:
            continue
        if change.operated:
            log(f"{change.kind} {change.name} was changed by hand; its operator makes it anew")
            cluster.delete(change.resource, change.name, namespace=change.namespace)
            gone.add((change.resource, change.name))
            done.append(f"{change.kind} {change.name}")
        elif _is_still(living, change):
            patch = restoring(living, change.made or {}, [change.change.path])
            log(f"{change.where()} was changed by hand; putting it back")
            cluster.patch(change.resource, change.name, patch, namespace=change.namespace, manager=REPAIR_MANAGER)
            done.append(change.where())
    return done


def _is_still(living: Mapping[str, Any], found: ReleaseChange) -> bool:
    """Whether a living object is still changed in that field."""
    assert found.change is not None
    if found.made is None:
        return any(change.path == found.change.path for change in written_by_hand(living))
    return bool(value_at(living, found.change.path) != found.change.should)


def _of_chart(cluster: Cluster, chart: Chart, obj: Mapping[str, Any]) -> Iterator[ReleaseChange]:
    resource = _resource(obj)
    if resource is None:
        return
    meta = obj["metadata"]
    name, namespace = str(meta["name"]), (meta.get("namespace") or chart.namespace) if resource in NAMESPACED else None
    living = cluster.find(resource, name, namespace=namespace)
    if living is None:
        yield ReleaseChange(resource, obj["kind"], name, namespace)
        return
    if is_ours(living):
        return  # an asset of its own has applied it since
    missing = taken_out(living, obj)
    if not missing and not changed_by_hand(living, obj):
        return
    given = {**obj, "metadata": {**meta, "namespace": namespace} if namespace else meta}
    made = as_made(cluster, given)
    if made is given:
        missing = []  # not told how it comes out, so a field may be one that the API server does not keep
    changes = changed_by_hand(living, made)
    whole = {change.path for change in changes}
    left = [path for path in missing if not any(path[:length] in whole for length in range(len(path)))]
    for change in [*changes, *_gone(made, left)]:
        yield ReleaseChange(resource, obj["kind"], name, namespace, change, made)


def _gone(made: Mapping[str, Any], paths: Collection[Path]) -> Iterator[Change]:
    for path in paths:
        should = value_at(made, path)
        if should is not ABSENT:  # else the API server does not keep it anyhow
            yield Change(path, ABSENT, should)


def _of_operator(cluster: Cluster, chart: Chart) -> Iterator[ReleaseChange]:
    if chart.namespace in SHARED_NAMESPACES:
        return
    for resource in WORKLOADS:
        for obj in cluster.objects(resource, namespace=chart.namespace):
            owners = obj["metadata"].get("ownerReferences") or ()
            if not any(str(owner.get("apiVersion")).partition("/")[0] in KAI_GROUPS for owner in owners):
                continue
            for change in written_by_hand(obj):
                name = str(obj["metadata"]["name"])
                yield ReleaseChange(resource, obj["kind"], name, chart.namespace, change, operated=True)


def _of_hooks(cluster: Cluster) -> Iterator[ReleaseChange]:
    for resource in OF_HOOKS:
        try:
            objects = cluster.objects(resource)
        except NotFound:
            continue  # a version of KAI without it
        for obj in objects:
            for change in written_by_hand(obj):
                yield ReleaseChange(resource, obj["kind"], str(obj["metadata"]["name"]), None, change)


def _resource(obj: Mapping[str, Any]) -> str | None:
    kind = (obj.get("apiVersion"), obj.get("kind"))
    return next((resource for resource in OF_CHARTS if KINDS[resource] == kind), None)
