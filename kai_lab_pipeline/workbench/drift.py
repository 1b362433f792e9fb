"""What was changed on the live cluster by somebody else, read from who owns each field.

A server-side dry-run of what the lab applies, compared with what is there, shows the fields that differ. managedFields
tell the manager that owns a field now and when it last wrote; who took an object or a field away is kept nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kai_lab_pipeline.backends.releases import SHARED_NAMESPACES
from kai_lab_pipeline.clients.kubernetes import FIELD_MANAGER, ApiError, Cluster
from kai_lab_pipeline.lab.spec import RELEASED
from kai_lab_pipeline.workbench.apply import MANIFESTS, content_of
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.steps import GPU_RESOURCE, gpu_labels, objects_of

Path = tuple[str, ...]
_COMPONENT_OF = {asset: component for component, asset in RELEASED.items()}
_OF_RELEASES = ("deployments", "daemonsets")
_HANDS = ("kubectl", "k9s", "lens", "headlamp", "freelens", "octant", "python", "node-fetch", "curl", "unknown")
"""Field managers behind which a person or a script stands; any other one is a controller's or an installer's."""


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
    """Differences of one asset on the live cluster. Raises LabError when the API server does not answer."""
    cluster = lab.backend.connect()
    if asset in MANIFESTS or asset == "device_plugin":
        return [drift for obj in objects_of(lab, asset) for drift in _of_object(cluster, asset, obj)]
    if asset == "labelled_node":
        return list(_of_labels(cluster, gpu_labels(lab)))
    if asset in _COMPONENT_OF:
        return list(_of_release(lab, cluster, asset))
    return []


def _of_object(cluster: Cluster, asset: str, obj: Mapping[str, Any]) -> Iterator[Drift]:
    meta = obj["metadata"]
    name = f"{obj['kind']} {meta['name']}"
    living = cluster.find(cluster.resource_of(obj), meta["name"], namespace=meta.get("namespace"))
    if living is None:
        yield Drift(asset, f"{name} is not there")
        return
    if meta.get("deletionTimestamp") or living["metadata"].get("deletionTimestamp"):
        yield Drift(asset, f"{name} is being deleted")
        return
    try:
        wanted = cluster.apply(obj, dry_run=True)
    except ApiError as error:
        if error.code == 0:
            raise
        return  # what cannot be applied any more is an edited manifest, or a check's finding: not somebody's change
    for path, there, should in _differences(content_of(living), content_of(wanted)):
        manager, when = owner_of(living, path)
        if manager == FIELD_MANAGER:
            continue  # ours as it was applied: the manifest was edited since, which is not drift
        yield Drift(asset, f"{name}: {'.'.join(path)} is {there}, not {should}", _who(manager, when))


def _of_labels(cluster: Cluster, wanted: Mapping[str, str]) -> Iterator[Drift]:
    for node in cluster.objects("nodes"):
        if GPU_RESOURCE not in ((node.get("status") or {}).get("allocatable") or {}):
            continue
        labels, name = node["metadata"].get("labels") or {}, node["metadata"]["name"]
        for key, value in wanted.items():
            if key not in labels:
                yield Drift("labelled_node", f"Node {name}: label {key} is gone")
            elif labels[key] != value:
                manager, when = owner_of(node, ("metadata", "labels", key))
                if manager != FIELD_MANAGER:
                    what = f"Node {name}: label {key} is {labels[key]!r}, not {value!r}"
                    yield Drift("labelled_node", what, _who(manager, when))


def _of_release(lab: Lab, cluster: Cluster, asset: str) -> Iterator[Drift]:
    chart = lab.settings.charts.by_component()[_COMPONENT_OF[asset]]
    rows = [row for row in lab.backend.releases() if row["name"] == chart.release]
    if not any(row["namespace"] == chart.namespace for row in rows):
        yield Drift(asset, f"helm release {chart.release} is not in namespace {chart.namespace}")
        return
    # What a chart's own controller makes carries no name of a release; in a namespace of everybody, nor does theirs.
    unnamed = None if chart.namespace in SHARED_NAMESPACES else chart.release
    for resource in _OF_RELEASES:
        for obj in cluster.objects(resource, namespace=chart.namespace):
            marks = obj["metadata"].get("annotations") or {}
            if marks.get("meta.helm.sh/release-name", unnamed) != chart.release:
                continue
            for path, manager, when in _by_hand(obj):
                what = f"{obj['kind']} {obj['metadata']['name']}: {'.'.join(path)} is {_value(obj, path)}"
                yield Drift(asset, what, _who(manager, when))


def _by_hand(obj: Mapping[str, Any]) -> Iterator[tuple[Path, str, str]]:
    """Fields of the spec whose owner is no installer and no controller."""
    for entry in obj["metadata"].get("managedFields") or ():
        manager = str(entry.get("manager") or "unknown")
        if entry.get("subresource") == "status" or not manager.lower().startswith(_HANDS):
            continue
        for path in _leaves((entry.get("fieldsV1") or {}).get("f:spec") or {}, ("spec",)):
            if "annotations" not in path:  # `kubectl rollout restart` stamps the template: a restart, no other content
                yield path, manager, str(entry.get("time") or "")


def _leaves(fields: Mapping[str, Any], path: Path) -> Iterator[Path]:
    below = {key: value for key, value in fields.items() if key.startswith("f:")}
    if not below:
        yield path
    for key, value in below.items():
        yield from _leaves(value or {}, (*path, key.removeprefix("f:")))


def owner_of(obj: Mapping[str, Any], path: Path) -> tuple[str, str]:
    """Who owns a field and when they last wrote (RFC 3339); the newest where several do, empty where nobody does."""
    owners = [
        (str(entry.get("time") or ""), str(entry.get("manager") or ""))
        for entry in obj["metadata"].get("managedFields") or ()
        if _owns(entry.get("fieldsV1") or {}, path)
    ]
    when, manager = max(owners, default=("", ""))
    return manager, when


def _owns(fields: Mapping[str, Any], path: Path) -> bool:
    for part in path:
        found = fields.get(f"f:{part}")
        if found is None:
            return False
        fields = found
    return True


def _who(manager: str, when: str) -> str:
    return f"written by {manager} at {when}" if manager else ""


def _differences(there: Any, should: Any, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """Paths at which two values differ; a list counts as one value."""
    if isinstance(there, Mapping) and isinstance(should, Mapping):
        for key in _keys(there, should):
            yield from _differences(there.get(key), should.get(key), (*path, key))
    elif there != should:
        yield path, there, should


def _keys(one: Iterable[str], other: Iterable[str]) -> list[str]:
    return list(dict.fromkeys((*one, *other)))


def _value(obj: Mapping[str, Any], path: Path) -> Any:
    found: Any = obj
    for part in path:
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
