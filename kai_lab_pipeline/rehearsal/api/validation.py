"""What the API server refuses in built-in kinds: names, labels, pods without containers, immutable fields."""

from __future__ import annotations

import difflib
import json
import re
from typing import Any

from kai_lab_pipeline.rehearsal.api.errors import Cause, Obj
from kai_lab_pipeline.rehearsal.api.resources import Resource

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'example.com', regex used for validation is"
    r" '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with"
    " an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    " '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_IMMUTABLE_POD = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing"
    " tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_IMMUTABLE = "field is immutable"
_FREE_NAMES = frozenset({"rbac.authorization.k8s.io"})
"""Groups whose names may hold anything a URL segment can (`system:node`)."""


def _said(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _invalid(field: str, value: Any, rule: str) -> Cause:
    return Cause(field, f"Invalid value: {_said(value)}: {rule}")


def _required(field: str, text: str = "") -> Cause:
    return Cause(field, f"Required value{': ' + text if text else ''}", "FieldValueRequired")


def check_metadata(resource: Resource, metadata: Obj) -> list[Cause]:
    name = metadata.get("name")
    if not name:
        return [_required("metadata.name", "name or generateName is required")]
    causes = []
    if resource.group in _FREE_NAMES:
        if "/" in name or "%" in name:
            causes.append(_invalid("metadata.name", name, "may not contain '/'"))
    elif resource.plural in ("namespaces", "services"):
        if not _LABEL_NAME.fullmatch(name):
            causes.append(_invalid("metadata.name", name, _LABEL_RULE))
        elif len(name) > 63:
            causes.append(_invalid("metadata.name", name, "must be no more than 63 bytes"))
    elif not _SUBDOMAIN.fullmatch(name):
        causes.append(_invalid("metadata.name", name, _SUBDOMAIN_RULE))
    elif len(name) > 253:
        causes.append(_invalid("metadata.name", name, "must be no more than 253 bytes"))
    return causes + check_labels(metadata.get("labels") or {}, "metadata.labels")


def check_labels(labels: Obj, field: str) -> list[Cause]:
    causes = []
    for value in labels.values():
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            causes.append(_invalid(field, value, _VALUE_RULE))
        elif len(value) > 63:
            causes.append(_invalid(field, value, "must be no more than 63 bytes"))
    return causes


def _extended(name: str) -> bool:
    return "/" in name and "kubernetes.io/" not in name


def _check_resources(container: Obj, field: str) -> list[Cause]:
    causes = []
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            if _extended(name) and not re.fullmatch(r"\d+", str(amount)):
                value = _milli(str(amount))
                causes.append(_invalid(f"{field}.resources.{kind}[{name}]", value, "must be an integer"))
    for name, amount in requests.items():
        if not _extended(name):
            continue
        if name not in limits:
            text = "Limit must be set for non overcommitable resources"
            causes.append(_required(f"{field}.resources.limits", text))
        elif limits[name] != amount:
            text = f"must be equal to {name} limit of {limits[name]}"
            causes.append(_invalid(f"{field}.resources.requests", amount, text))
    return causes


def _milli(amount: str) -> str:
    """A decimal fraction as the API writes quantities: 0.5 is 500m."""
    return f"{round(float(amount) * 1000)}m" if re.fullmatch(r"\d*\.\d+", amount) else amount


def check_pod_spec(spec: Obj, field: str = "spec") -> list[Cause]:
    causes = []
    if not spec.get("containers"):
        causes.append(_required(f"{field}.containers"))
    seen: set[str] = set()
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            here = f"{field}.{kind}[{index}]"
            name = container.get("name")
            if not name:
                causes.append(_required(f"{here}.name"))
            elif not _LABEL_NAME.fullmatch(name):
                causes.append(_invalid(f"{here}.name", name, _LABEL_RULE))
            elif name in seen:
                causes.append(Cause(f"{here}.name", f"Duplicate value: {_said(name)}", "FieldValueDuplicate"))
            seen.add(name or "")
            if not container.get("image"):
                causes.append(_required(f"{here}.image"))
            causes += _check_resources(container, here)
            causes += _check_mounts(spec, container, here)
    return causes


def _check_mounts(spec: Obj, container: Obj, field: str) -> list[Cause]:
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    return [
        Cause(f"{field}.volumeMounts[{index}].name", f"Not found: {_said(mount.get('name'))}", "FieldValueNotFound")
        for index, mount in enumerate(container.get("volumeMounts") or ())
        if mount.get("name") not in volumes
    ]


def _check_workload(resource: Resource, obj: Obj) -> list[Cause]:
    spec = obj.get("spec") or {}
    template = spec.get("template") or {}
    causes = check_pod_spec(template.get("spec") or {}, "spec.template.spec")
    if resource.plural == "jobs":
        return causes
    selector = spec.get("selector")
    labels = (template.get("metadata") or {}).get("labels") or {}
    wanted = (selector or {}).get("matchLabels") or {}
    if not selector:
        causes.insert(0, _required("spec.selector"))
    elif any(labels.get(key) != value for key, value in wanted.items()):
        text = "`selector` does not match template `labels`"
        causes.insert(0, _invalid("spec.template.metadata.labels", labels, text))
    return causes


def check_object(resource: Resource, obj: Obj, old: Obj | None) -> list[Cause]:
    """Why a built-in object cannot be stored; empty when it can."""
    causes = check_metadata(resource, obj["metadata"])
    if resource.storage == "pods":
        causes += check_pod_spec(obj.get("spec") or {})
        if old is not None:
            causes += _check_pod_update(obj, old)
    elif resource.group == "apps" and "template" in (obj.get("spec") or {}):
        causes += _check_workload(resource, obj)
        if old is not None and old["spec"].get("selector") != obj["spec"].get("selector"):
            causes.append(_invalid("spec.selector", obj["spec"].get("selector"), _IMMUTABLE))
    elif resource.plural == "jobs":
        causes += _check_workload(resource, obj)
    elif resource.plural == "runtimeclasses":
        if not obj.get("handler"):
            causes.append(_required("handler"))
        if old is not None and old.get("handler") != obj.get("handler"):
            causes.append(_invalid("handler", obj.get("handler"), _IMMUTABLE))
    elif resource.plural == "customresourcedefinitions":
        expected = f"{obj['spec']['names']['plural']}.{obj['spec']['group']}"
        if obj["metadata"].get("name") != expected:
            text = 'must be spec.names.plural+"."+spec.group'
            causes.append(_invalid("metadata.name", obj["metadata"].get("name"), text))
    return causes


def _frozen(spec: Obj) -> Obj:
    """A pod's spec without what an update may change."""
    left = {
        key: value for key, value in spec.items()
        if key not in ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates")
    }  # fmt: skip
    for kind in ("containers", "initContainers"):
        if kind in left:
            left[kind] = [{k: v for k, v in container.items() if k != "image"} for container in left[kind] or ()]
    return left


def _check_pod_update(new: Obj, old: Obj) -> list[Cause]:
    before, after = _frozen(old["spec"]), _frozen(new["spec"])
    old_tolerations = old["spec"].get("tolerations") or []
    kept = all(toleration in (new["spec"].get("tolerations") or []) for toleration in old_tolerations)
    grace = (old["spec"].get("terminationGracePeriodSeconds"), new["spec"].get("terminationGracePeriodSeconds"))
    if before == after and kept and grace[0] == grace[1]:
        return []
    lines = [json.dumps(old["spec"], indent=1, sort_keys=True), json.dumps(new["spec"], indent=1, sort_keys=True)]
    diff = list(difflib.unified_diff(lines[0].splitlines(), lines[1].splitlines(), n=3, lineterm=""))[2:]
    return [Cause("spec", f"{_IMMUTABLE_POD}\n" + "\n".join(diff) + "\n", "FieldValueForbidden")]
