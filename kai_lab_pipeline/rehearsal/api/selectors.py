"""Label and field selectors, as text in a query and as structures in objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from kai_lab_pipeline.rehearsal.api.errors import Obj, bad_request
from kai_lab_pipeline.rehearsal.api.resources import Resource

Matcher: TypeAlias = Callable[[Obj], bool]

_SET = re.compile(r"^(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUAL = re.compile(r"^(?P<key>[^\s!=,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s!=,()]*)$")
_EXISTS = re.compile(r"^(?P<no>!?)\s*(?P<key>[^\s!=,()]+)$")
_GREATER = re.compile(r"^(?P<key>[^\s!=,()<>]+)\s*(?P<op>[<>])\s*(?P<value>-?\d+)$")

_FIELDS: dict[str, frozenset[str]] = {
    "pods": frozenset(
        {
            "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
            "status.phase", "status.podIP", "status.nominatedNodeName",
        }
    ),
    "events": frozenset(
        {
            "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
            "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
            "reason", "reportingComponent", "source", "type",
        }
    ),
    "nodes": frozenset({"spec.unschedulable"}),
    "namespaces": frozenset({"status.phase"}),
    "secrets": frozenset({"type"}),
    "jobs.batch": frozenset({"status.successful"}),
    "replicasets.apps": frozenset({"status.replicas"}),
    "replicationcontrollers": frozenset({"status.replicas"}),
}  # fmt: skip


def _split(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    return [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]


def _term(text: str) -> Callable[[Mapping[str, str]], bool]:
    if match := _SET.match(text):
        key = match["key"]
        values = {value.strip() for value in match["values"].split(",")}
        if match["op"] == "in":
            return lambda labels: key in labels and labels[key] in values
        return lambda labels: labels.get(key) not in values
    if match := _EQUAL.match(text):
        key, value = match["key"], match["value"]
        if match["op"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if match := _GREATER.match(text):
        key, bound, more = match["key"], int(match["value"]), match["op"] == ">"

        def compare(labels: Mapping[str, str]) -> bool:
            value = labels.get(key, "")
            if not re.fullmatch(r"-?\d+", value):
                return False
            return int(value) > bound if more else int(value) < bound

        return compare
    if match := _EXISTS.match(text):
        key, wanted = match["key"], not match["no"]
        return lambda labels: (key in labels) == wanted
    raise bad_request(f"unable to parse requirement: found '{text}', expected: a label requirement")


def label_selector(text: str) -> Matcher | None:
    """Matcher for a `labelSelector` query value; None when it selects everything.

    Raises: ApiError 400 for text that is no selector.
    """
    terms = [_term(part) for part in _split(text)]
    if not terms:
        return None
    return lambda obj: all(term(obj["metadata"].get("labels") or {}) for term in terms)


def _field(obj: Obj, path: str) -> str:
    value: Any = obj
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, dict):  # events: `source` means source.component
        value = value.get("component")
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "false" if path.endswith(("unschedulable", "hostNetwork")) else ""
    return str(value)


def field_selector(text: str, resource: Resource) -> Matcher | None:
    """Matcher for a `fieldSelector` query value; only the fields the real server indexes are allowed.

    Raises: ApiError 400 naming the field that is not supported.
    """
    terms: list[tuple[str, str, bool]] = []
    allowed = _FIELDS.get(resource.storage, frozenset())
    for part in _split(text):
        path, operator, value = re.match(r"^(.*?)(==|!=|=)(.*)$", part).groups() if "=" in part else ("", "", "")  # type: ignore[union-attr]
        if not operator:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        if path not in ("metadata.name", "metadata.namespace") and path not in allowed:
            raise bad_request(_unknown_field(path, resource))
        terms.append((path, value, operator != "!="))
    if not terms:
        return None
    return lambda obj: all((_field(obj, path) == value) == wanted for path, value, wanted in terms)


def _unknown_field(path: str, resource: Resource) -> str:
    """Kinds that convert their own field labels (most of the core group) refuse others in words of their own."""
    if resource.storage in _FIELDS:
        return f"field label not supported: {path}"
    return f'"{path}" is not a known field selector: only "metadata.name", "metadata.namespace"'


def both(first: Matcher | None, second: Matcher | None) -> Matcher | None:
    if first is None or second is None:
        return first or second
    return lambda obj: first(obj) and second(obj)


def matches_structure(selector: Obj | None, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector object (matchLabels, matchExpressions) selects these labels; empty selects all."""
    selector = selector or {}
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for expression in selector.get("matchExpressions") or ():
        key, operator, values = expression["key"], expression["operator"], expression.get("values") or ()
        held = {
            "In": key in labels and labels[key] in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }.get(operator, False)
        if not held:
            return False
    return True
