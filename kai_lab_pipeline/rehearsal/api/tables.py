"""Server-side printing: the columns kubectl shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any, TypeAlias

from kai_lab_pipeline.rehearsal.api import versions
from kai_lab_pipeline.rehearsal.api.errors import Obj
from kai_lab_pipeline.rehearsal.api.resources import Resource
from kai_lab_pipeline.rehearsal.store import Stored

Cells: TypeAlias = Callable[[Obj], list[Any]]

_NONE = "<none>"


def _column(text: str) -> Obj:
    """`Name`, or `Name:wide` for a column of `-o wide`, with `#` for numbers."""
    name, _, wide = text.partition(":")
    number = name.endswith("#")
    name = name.rstrip("#")
    return {
        "name": name,
        "type": "integer" if number else "string",
        "format": "name" if name == "Name" else "",
        "description": "",
        "priority": 1 if wide else 0,
    }


def age(timestamp: str | None) -> str:
    """Time since, as kubectl says it: 5s, 3m20s, 2h, 4d."""
    if not timestamp:
        return "<unknown>"
    try:
        moment = datetime.fromisoformat(str(timestamp).replace("Z", "+00:00"))
    except ValueError:
        return "<invalid>"
    return _duration(int((datetime.now(timezone.utc) - moment).total_seconds()))


def _duration(seconds: int) -> str:
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours = seconds // 60, seconds // 3600
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if hours < 192:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 365 * 2:
        return f"{days}d"
    return f"{days // 365}y"


def _created(obj: Obj) -> str:
    return age(obj["metadata"].get("creationTimestamp"))


def _labels(labels: Obj | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or _NONE


def _pod_reason(pod: Obj) -> tuple[str, int, int, str]:
    """(STATUS, ready containers, restarts, when the last restart was)."""
    status = pod.get("status") or {}
    reason = status.get("reason") or status.get("phase") or "Unknown"
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    ready, restarts, last = 0, 0, ""
    initializing = False
    total = len(pod["spec"].get("initContainers") or ())
    for index, container in enumerate(status.get("initContainerStatuses") or ()):
        state = container.get("state") or {}
        restarts += container.get("restartCount", 0)
        terminated, waiting = state.get("terminated"), state.get("waiting")
        if terminated and terminated.get("exitCode") == 0:
            continue
        if terminated:
            reason = f"Init:{terminated.get('reason') or 'ExitCode:' + str(terminated.get('exitCode'))}"
        elif waiting and waiting.get("reason") not in (None, "", "PodInitializing"):
            reason = f"Init:{waiting['reason']}"
        else:
            reason = f"Init:{index}/{total}"
        initializing = True
        break
    if not initializing:
        restarts = 0
        running = False
        for container in reversed(status.get("containerStatuses") or ()):
            state = container.get("state") or {}
            restarts += container.get("restartCount", 0)
            finished = ((container.get("lastState") or {}).get("terminated") or {}).get("finishedAt") or ""
            last = max(last, finished)
            waiting, terminated = state.get("waiting"), state.get("terminated")
            if waiting and waiting.get("reason"):
                reason = waiting["reason"]
            elif terminated:
                reason = terminated.get("reason") or f"ExitCode:{terminated.get('exitCode')}"
            elif container.get("ready") and "running" in state:
                running = True
                ready += 1
        if reason == "Completed" and running:
            reason = "Running"
    if pod["metadata"].get("deletionTimestamp"):
        reason = "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return reason, ready, restarts, last


def _pod(pod: Obj) -> list[Any]:
    status, spec = pod.get("status") or {}, pod["spec"]
    reason, ready, restarts, last = _pod_reason(pod)
    said = f"{restarts} ({age(last)} ago)" if restarts and last else str(restarts)
    return [
        pod["metadata"]["name"],
        f"{ready}/{len(spec['containers'])}",
        reason,
        said,
        _created(pod),
        status.get("podIP") or _NONE,
        spec.get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        _NONE,
    ]


def _node(node: Obj) -> list[Any]:
    labels = node["metadata"].get("labels") or {}
    status = node.get("status") or {}
    info = status.get("nodeInfo") or {}
    ready = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), None)
    said = "Unknown" if ready is None else ("Ready" if ready["status"] == "True" else "NotReady")
    if (node.get("spec") or {}).get("unschedulable"):
        said += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    roles = sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix))
    addresses = {a["type"]: a["address"] for a in status.get("addresses") or ()}
    return [
        node["metadata"]["name"],
        said,
        ",".join(roles) or _NONE,
        _created(node),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", _NONE),
        addresses.get("ExternalIP", _NONE),
        info.get("osImage", "<unknown>"),
        info.get("kernelVersion", "<unknown>"),
        info.get("containerRuntimeVersion", "<unknown>"),
    ]


def _containers(obj: Obj) -> tuple[str, str]:
    containers = obj["spec"]["template"]["spec"].get("containers") or ()
    return ",".join(c["name"] for c in containers), ",".join(c.get("image", "") for c in containers)


def _selector(selector: Obj | None) -> str:
    return _labels((selector or {}).get("matchLabels"))


def _deployment(obj: Obj) -> list[Any]:
    status, spec = obj.get("status") or {}, obj["spec"]
    return [
        obj["metadata"]["name"],
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 1)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        _created(obj),
        *_containers(obj),
        _selector(spec.get("selector")),
    ]


def _daemonset(obj: Obj) -> list[Any]:
    status, spec = obj.get("status") or {}, obj["spec"]
    counts = (
        "desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled", "numberAvailable",
    )  # fmt: skip
    return [
        obj["metadata"]["name"],
        *(status.get(count, 0) for count in counts),
        _labels(spec["template"]["spec"].get("nodeSelector")),
        _created(obj),
        *_containers(obj),
        _selector(spec.get("selector")),
    ]


def _replicaset(obj: Obj) -> list[Any]:
    status, spec = obj.get("status") or {}, obj["spec"]
    counts = [spec.get("replicas", 0), status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [obj["metadata"]["name"], *counts, _created(obj), *_containers(obj), _selector(spec.get("selector"))]


def _job(obj: Obj) -> list[Any]:
    status, spec = obj.get("status") or {}, obj["spec"]
    kinds = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    said = next((kind for kind in ("Complete", "Failed", "Suspended") if kinds.get(kind) == "True"), "Running")
    duration = ""
    if status.get("startTime"):
        start = datetime.fromisoformat(status["startTime"].replace("Z", "+00:00"))
        end = status.get("completionTime")
        until = datetime.fromisoformat(end.replace("Z", "+00:00")) if end else datetime.now(timezone.utc)
        duration = _duration(int((until - start).total_seconds()))
    done = f"{status.get('succeeded', 0)}/{spec.get('completions', 1)}"
    row = [obj["metadata"]["name"], said, done, duration, _created(obj)]
    return [*row, *_containers(obj), _selector(spec.get("selector"))]


def _event(obj: Obj) -> list[Any]:
    about = obj.get("involvedObject") or {}
    source = obj.get("source") or {}
    component = source.get("component") or obj.get("reportingComponent") or ""
    said = f"{component}, {source['host']}" if source.get("host") else component
    last = obj.get("lastTimestamp") or obj.get("eventTime") or obj["metadata"].get("creationTimestamp")
    first = obj.get("firstTimestamp") or obj.get("eventTime") or last
    return [
        age(last),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        said,
        (obj.get("message") or "").strip(),
        age(first),
        obj.get("count") or 1,
        obj["metadata"]["name"],
    ]


def _service(obj: Obj) -> list[Any]:
    spec = obj["spec"]
    ports = ",".join(
        f"{p['port']}:{p['nodePort']}/{p['protocol']}" if p.get("nodePort") else f"{p['port']}/{p['protocol']}"
        for p in spec.get("ports") or ()
    )
    external = spec.get("externalName") if spec["type"] == "ExternalName" else ",".join(spec.get("externalIPs") or ())
    return [
        obj["metadata"]["name"], spec["type"], spec.get("clusterIP") or _NONE, external or _NONE, ports or _NONE,
        _created(obj), _labels(spec.get("selector")),
    ]  # fmt: skip


def _name(obj: Obj) -> str:
    return str(obj["metadata"]["name"])


_TABLES: dict[str, tuple[str, Cells]] = {
    "pods": ("Name Ready Status Restarts Age IP:w Node:w Nominated_Node:w Readiness_Gates:w", _pod),
    "nodes": (
        "Name Status Roles Age Version Internal-IP:w External-IP:w OS-Image:w Kernel-Version:w Container-Runtime:w",
        _node,
    ),
    "deployments.apps": ("Name Ready Up-to-date# Available# Age Containers:w Images:w Selector:w", _deployment),
    "daemonsets.apps": (
        "Name Desired# Current# Ready# Up-to-date# Available# Node_Selector Age Containers:w Images:w Selector:w",
        _daemonset,
    ),
    "replicasets.apps": ("Name Desired# Current# Ready# Age Containers:w Images:w Selector:w", _replicaset),
    "jobs.batch": ("Name Status Completions Duration Age Containers:w Images:w Selector:w", _job),
    "events": (
        "Last_Seen Type Reason Object Subobject:w Source:w Message First_Seen:w Count#:w Name:w",
        _event,
    ),
    "services": ("Name Type Cluster-IP External-IP Port(s) Age Selector:w", _service),
    "namespaces": ("Name Status Age", lambda o: [_name(o), (o.get("status") or {}).get("phase", ""), _created(o)]),
    "configmaps": ("Name Data# Age", lambda o: [_name(o), _count(o, "data", "binaryData"), _created(o)]),
    "secrets": ("Name Type Data# Age", lambda o: [_name(o), o.get("type", ""), _count(o, "data"), _created(o)]),
    "serviceaccounts": ("Name Secrets# Age", lambda o: [_name(o), _count(o, "secrets"), _created(o)]),
    "runtimeclasses.node.k8s.io": ("Name Handler Age", lambda o: [_name(o), o.get("handler", ""), _created(o)]),
    "customresourcedefinitions.apiextensions.k8s.io": (
        "Name Created_At",
        lambda o: [_name(o), o["metadata"].get("creationTimestamp", "")],
    ),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": (
        "Name Webhooks# Age",
        lambda o: [_name(o), _count(o, "webhooks"), _created(o)],
    ),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": (
        "Name Webhooks# Age",
        lambda o: [_name(o), _count(o, "webhooks"), _created(o)],
    ),
    "priorityclasses.scheduling.k8s.io": (
        "Name Value# Global-Default Age PreemptionPolicy:w",
        lambda o: [
            _name(o), o.get("value", 0), str(bool(o.get("globalDefault"))).lower(), _created(o),
            o.get("preemptionPolicy", ""),
        ],
    ),
    "leases.coordination.k8s.io": (
        "Name Holder Age",
        lambda o: [_name(o), (o.get("spec") or {}).get("holderIdentity", ""), _created(o)],
    ),
}  # fmt: skip


def _count(obj: Obj, *fields: str) -> int:
    return sum(len(obj.get(field) or ()) for field in fields)


def _find(obj: Obj, path: str) -> Any:
    """The value at a printer column's JSONPath: fields, `[0]`, and `[?(@.type=="X")]`."""
    values: list[Any] = [obj]
    for name, quoted, index, key, wanted in re.findall(
        r"""\.((?:\\\.|[\w/-])+)|\['([^']+)'\]|\[(\d+|\*)\]|\[\?\(@\.(\w+)\s*==\s*["']([^"']*)["']\)\]""", path
    ):
        step = (name or quoted).replace("\\.", ".")
        found: list[Any] = []
        for value in values:
            if step and isinstance(value, dict) and step in value:
                found.append(value[step])
            elif index and isinstance(value, list):
                found += value if index == "*" else value[int(index) : int(index) + 1]
            elif key and isinstance(value, list):
                found += [item for item in value if isinstance(item, dict) and item.get(key) == wanted]
        values = found
    return values[0] if values else None


def _custom(resource: Resource) -> tuple[list[Obj], Cells]:
    described = resource.columns or ({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},)
    optional = {"format": "", "description": "", "priority": 0}
    columns = [_column("Name")] + [
        {"name": column["name"], "type": column["type"], **{key: column.get(key, optional[key]) for key in optional}}
        for column in described
    ]

    def cells(obj: Obj) -> list[Any]:
        row: list[Any] = [_name(obj)]
        for column in described:
            value = _find(obj, column["jsonPath"])
            if column["type"] == "date" and value:
                value = age(value)
            elif isinstance(value, (dict, list)):
                value = str(value).replace("'", '"')
            row.append(value)
        return row

    return columns, cells


def table(resource: Resource, items: Iterable[Stored], metadata: Obj, include: str, *, headers: bool = True) -> Obj:
    """A `Table` of objects; `include` is None, Metadata or Object: what each row carries besides its cells."""
    if resource.custom:
        columns, cells = _custom(resource)
    elif resource.storage in _TABLES:
        text, cells = _TABLES[resource.storage]
        columns = [_column(part.replace("_", " ")) for part in text.split()]
    else:
        columns, cells = [_column("Name"), _column("Age")], lambda obj: [_name(obj), _created(obj)]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns if headers else [],
        "rows": [{"cells": cells(stored.obj), **_carried(resource, stored, include)} for stored in items],
    }


def _carried(resource: Resource, stored: Stored, include: str) -> Obj:
    if include == "None":
        return {}
    if include == "Object":
        return {"object": versions.to_asked(resource, stored.obj)}
    partial = {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": stored.obj["metadata"],
    }
    return {"object": partial}
