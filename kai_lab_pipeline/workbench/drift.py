"""What was changed on the live cluster by somebody else, read from who owns each field.

A server-side dry-run of what the lab applies, compared with what is there, shows the fields that differ; what somebody
added shows in who owns it. managedFields tell the manager that owns a field now and when it last wrote; who took an
object or a field away is kept nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kai_lab_pipeline.clients.kubernetes import FIELD_MANAGER, ApiError, Cluster
from kai_lab_pipeline.lab.field_owners import Change, differences, owner_of
from kai_lab_pipeline.lab.spec import RELEASED
from kai_lab_pipeline.workbench.apply import MANIFESTS, additions
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.ownership import is_foreign
from kai_lab_pipeline.workbench.release_changes import changes_of_release
from kai_lab_pipeline.workbench.steps import GPU_RESOURCE, gpu_labels, objects_of

LOOKS = 5
"""How often an object is looked at again that is written all the time."""
_COMPONENT_OF = {asset: component for component, asset in RELEASED.items()}


@dataclass(frozen=True)
class Drift:
    """One difference between what the lab applied and what is there."""

    asset: str
    what: str
    who: str = ""
    """Field manager and time (RFC 3339) of the last write, where the API knows it."""

    def text(self) -> str:
        return f"{self.what}; {self.who or 'who did it is not recorded by the API'}"


def drift_of(lab: Lab, asset: str) -> list[Drift]:
    """Differences of one asset on the live cluster; none of one whose step is skipped there.

    Raises LabError when the API server does not answer.
    """
    if asset in lab.skipped:
        return []
    cluster = lab.backend.connect()
    if asset in MANIFESTS or asset == "device_plugin":
        return [drift for obj in objects_of(lab, asset) for drift in _of_object(lab, cluster, asset, obj)]
    if asset == "labelled_node":
        return list(_of_labels(cluster, gpu_labels(lab)))
    if asset in _COMPONENT_OF:
        return list(_of_release(lab, cluster, asset))
    return []


def _of_object(lab: Lab, cluster: Cluster, asset: str, obj: Mapping[str, Any]) -> Iterator[Drift]:
    meta, resource = obj["metadata"], cluster.resource_of(obj)
    name = f"{obj['kind']} {meta['name']}"
    changes: list[Change] = []
    for _ in range(LOOKS):
        living = cluster.find(resource, meta["name"], namespace=meta.get("namespace"))
        if living is None:
            yield Drift(asset, f"{name} is not there")
            return
        if living["metadata"].get("deletionTimestamp"):
            yield Drift(asset, f"{name} is being deleted")
            return
        try:
            changes = _changes(lab, cluster, obj, living)
        except ApiError as error:
            if error.code == 0:
                raise
            return  # what cannot be applied any more is an edited manifest, or a check's finding: nobody's change
        after = cluster.find(resource, meta["name"], namespace=meta.get("namespace")) if changes else living
        if _version(after) == _version(living):
            break  # else somebody, such as a controller, wrote it between the two looks that were compared
    for change in changes:
        yield Drift(asset, f"{name}: {change.text()}", _who(change.manager, change.when))


def _changes(lab: Lab, cluster: Cluster, obj: Mapping[str, Any], living: Mapping[str, Any]) -> list[Change]:
    wanted = cluster.apply(obj, dry_run=True)
    changes = [
        change
        for change in differences(living, wanted)
        if change.manager != FIELD_MANAGER  # ours as it was applied: the manifest was edited since, which is no drift
    ]
    if is_foreign(lab.backend, cluster.resource_of(obj), living):
        return changes
    return changes + additions(cluster, obj, wanted)[0]


def _version(obj: Mapping[str, Any] | None) -> Any:
    return obj["metadata"].get("resourceVersion") if obj else None


def _of_labels(cluster: Cluster, wanted: Mapping[str, str]) -> Iterator[Drift]:
    for node in cluster.objects("nodes"):
        if GPU_RESOURCE not in ((node.get("status") or {}).get("allocatable") or {}):
            continue
        labels, name = node["metadata"].get("labels") or {}, node["metadata"]["name"]
        for key, value in wanted.items():
            if key not in labels:
                yield Drift("labelled_node", f"Node {name}: label {key} is gone")
            elif labels[key] != value:
                manager, when = owner_of(node, ("f:metadata", "f:labels", f"f:{key}"))
                if manager != FIELD_MANAGER:
                    what = f"Node {name}: label {key} is {labels[key]!r}, not {value!r}"
                    yield Drift("labelled_node", what, _who(manager, when))


def _of_release(lab: Lab, cluster: Cluster, asset: str) -> Iterator[Drift]:
    chart = lab.settings.charts.by_component()[_COMPONENT_OF[asset]]
    rows = [row for row in lab.backend.releases() if row["name"] == chart.release]
    if not any(row["namespace"] == chart.namespace for row in rows):
        yield Drift(asset, f"helm release {chart.release} is not in namespace {chart.namespace}")
        return
    for change in changes_of_release(lab, cluster, _COMPONENT_OF[asset], chart):
        yield Drift(asset, change.text(), _who(change.manager, change.when))


def _who(manager: str, when: str) -> str:
    return f"written by {manager} at {when}" if manager else ""
