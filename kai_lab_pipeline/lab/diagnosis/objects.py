"""What Kubernetes objects, API Status answers and helm's lists say about themselves, as facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kai_lab_pipeline.lab.diagnosis.model import Fact
from kai_lab_pipeline.lab.diagnosis.text import LINE_LIMIT, cleaned, shown
from kai_lab_pipeline.lab.evidence import K8sObject, mapping, metadata_of, sequence, spec_of, status_of

_SPEAKING_NORMAL = frozenset({"Unschedulable", "NotReady"})
"""Event reasons that KAI emits as Normal although they tell why a PodGroup does not run."""
_WATCH_TYPES = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"})
MAX_DEPTH = 4


def expanded(values: Iterable[Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Single objects out of Lists, arrays and watch events."""
    for value in values:
        if isinstance(value, list | tuple) and depth < MAX_DEPTH:
            yield from expanded(value, depth + 1)
        elif isinstance(value, Mapping):
            if isinstance(value.get("items"), list) and depth < MAX_DEPTH:
                yield from expanded(value["items"], depth + 1)
            elif str(value.get("type")) in _WATCH_TYPES and isinstance(value.get("object"), Mapping):
                yield value["object"]
            else:
                yield value


def speaks(value: Mapping[str, Any]) -> bool:
    """Whether it is a Kubernetes object, a Status, or a row of ``helm list``."""
    return "kind" in value or _is_helm_row(value)


def facts_of(obj: K8sObject) -> Iterator[Fact]:
    """Facts about one object. Nothing where it is well."""
    if _is_helm_row(obj):
        yield from _helm_facts(obj)
        return
    kind = obj.get("kind")
    if kind == "Status":
        yield from _status_facts(obj)
        return
    if kind == "Event":
        yield from _event_facts(obj)
        return
    if metadata_of(obj).get("deletionTimestamp"):
        yield _fact(
            "deleting",
            obj,
            f"deletionTimestamp {metadata_of(obj).get('deletionTimestamp')}",
            object_kind=str(kind),
            finalizers="yes" if _finalizers(obj) else "no",
        )
    if kind == "Pod":
        yield from _pod_facts(obj)
    elif kind in ("Deployment", "DaemonSet", "StatefulSet", "Job"):
        yield from _workload_facts(obj)
    yield from _condition_facts(obj)


def _is_helm_row(value: Mapping[str, Any]) -> bool:
    return all(isinstance(value.get(key), str) for key in ("name", "status", "chart"))


def _finalizers(obj: K8sObject) -> tuple[Any, ...]:
    return sequence(metadata_of(obj).get("finalizers")) + sequence(spec_of(obj).get("finalizers"))


def names_of(obj: K8sObject) -> dict[str, str]:
    """Names for commands about this object."""
    meta = metadata_of(obj)
    names = {"name": str(meta.get("name") or ""), "object_kind": str(obj.get("kind") or "")}
    if meta.get("namespace"):
        names["namespace"] = str(meta["namespace"])
    kind = names["object_kind"].lower()
    if kind in ("pod", "node", "queue", "deployment", "daemonset", "namespace"):
        names[kind] = names["name"]
    if kind == "pod" and spec_of(obj).get("nodeName"):
        names["node"] = str(spec_of(obj)["nodeName"])
    return names


def _fact(
    fact_kind: str, about: K8sObject, message: str, names: Mapping[str, str] | None = None, **attributes: str
) -> Fact:
    text = cleaned(message[:LINE_LIMIT])
    known = {**names_of(about), **(names or {})}
    place = "/".join(part for part in (known.get("namespace"), known.get("name")) if part)
    what = " ".join(part for part in (attributes.get("reason"), text) if part)
    line = f"{known.get('object_kind', '')} {place}: {what}".strip()
    return Fact(fact_kind, text, shown(line), attributes, known)


def _status_facts(obj: K8sObject) -> Iterator[Fact]:
    if obj.get("status") == "Success":
        return
    details = mapping(obj.get("details"))
    causes = [mapping(cause) for cause in sequence(details.get("causes"))]
    names = {"object_kind": str(details.get("kind") or ""), "name": str(details.get("name") or "")}
    if causes and causes[0].get("field"):
        names["field"] = str(causes[0]["field"])
    message = cleaned(str(obj.get("message") or "")[:LINE_LIMIT])
    reason, code = str(obj.get("reason") or ""), str(obj.get("code") or "")
    attributes = {"reason": reason, "code": code, "cause": str(causes[0].get("reason") or "") if causes else ""}
    yield Fact("status", message, shown(f"Status {code} {reason}: {message}"), attributes, names)


def _event_facts(obj: K8sObject) -> Iterator[Fact]:
    reason = str(obj.get("reason") or "")
    if obj.get("type") != "Warning" and reason not in _SPEAKING_NORMAL:
        return
    about = mapping(obj.get("involvedObject")) or mapping(obj.get("regarding"))
    names = {"name": str(about.get("name") or ""), "object_kind": str(about.get("kind") or "")}
    if about.get("namespace"):
        names["namespace"] = str(about["namespace"])
    names[names["object_kind"].lower()] = names["name"]
    component = mapping(obj.get("source")).get("component") or obj.get("reportingComponent") or ""
    yield _fact(
        "event",
        {},
        str(obj.get("message") or obj.get("note") or ""),
        names,
        reason=reason,
        component=str(component),
        object_kind=names["object_kind"],
    )


def _pod_facts(obj: K8sObject) -> Iterator[Fact]:
    status = status_of(obj)
    if status.get("phase") == "Failed":
        yield _fact(
            "pod", obj, str(status.get("message") or ""), phase="Failed", reason=str(status.get("reason") or "")
        )
    for group in ("initContainerStatuses", "containerStatuses"):
        for entry in sequence(status.get(group)):
            container = mapping(entry)
            state, last = mapping(container.get("state")), mapping(container.get("lastState"))
            named = {"container": str(container.get("name") or ""), "image": str(container.get("image") or "")}
            for where, holder in (("waiting", state), ("terminated", state), ("terminated", last)):
                part = mapping(holder.get(where))
                if not part or (where == "terminated" and part.get("exitCode") == 0):
                    continue
                if holder is last and container.get("ready") is True:
                    continue  # it died once and is well now
                yield _fact(
                    "container",
                    obj,
                    str(part.get("message") or ""),
                    named,
                    reason=str(part.get("reason") or ""),
                    exit_code=str(part.get("exitCode", "")),
                    state=where,
                )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _workload_facts(obj: K8sObject) -> Iterator[Fact]:
    status, spec, kind = status_of(obj), spec_of(obj), str(obj.get("kind"))
    if kind == "DaemonSet":
        wanted, ready = _whole(status.get("desiredNumberScheduled")), _whole(status.get("numberReady"))
    elif kind == "Job":
        wanted, ready = 1, _whole(status.get("succeeded"))
    else:
        wanted, ready = _whole(spec.get("replicas", 1)), _whole(status.get("readyReplicas"))
    ready = ready or 0
    state = ""
    if kind == "Job":
        state = "failed" if _whole(status.get("failed")) and not ready else ""
    elif wanted is not None and ready <= wanted:
        state = "none_wanted" if wanted == 0 else "not_ready" if ready < wanted else ""
    if state:
        yield _fact(
            "workload",
            obj,
            f"{ready} of {wanted} ready",
            {"workload": kind.lower()},
            state=state,
            object_kind=kind,
            namespace=str(metadata_of(obj).get("namespace") or ""),
        )


_BAD_WHEN_TRUE = frozenset({"DiskPressure", "MemoryPressure", "PIDPressure", "NetworkUnavailable", "Failed"})


def _condition_facts(obj: K8sObject) -> Iterator[Fact]:
    kind = str(obj.get("kind") or "")
    status = status_of(obj)
    for entry in sequence(status.get("conditions")) + sequence(status.get("schedulingConditions")):
        condition = mapping(entry)
        name = str(condition.get("type") or "")
        bad = condition.get("status") in ("False", "Unknown")
        if name in _BAD_WHEN_TRUE or name == "UnschedulableOnNodePool":
            bad = condition.get("status") == "True"
        if not bad or (kind == "Pod" and name == "PodScheduled" and spec_of(obj).get("nodeName")):
            continue
        message, reason = str(condition.get("message") or ""), str(condition.get("reason") or "")
        yield _fact("condition", obj, message, type=name, reason=reason, object_kind=kind)


def _helm_facts(row: Mapping[str, Any]) -> Iterator[Fact]:
    if row["status"] == "deployed" or row["status"] == "superseded":
        return
    names = {"release": row["name"], "namespace": str(row.get("namespace") or ""), "revision": str(row.get("revision"))}
    line = f"helm list: {row['name']} in {names['namespace']} is {row['status']} ({row['chart']})"
    yield Fact("helm", str(row.get("description") or ""), line, {"status": row["status"]}, names)
