"""API discovery, plain and aggregated, and the OpenAPI documents kubectl asks for before it applies."""

from __future__ import annotations

import hashlib

from kai_lab_pipeline.rehearsal.api.errors import Obj
from kai_lab_pipeline.rehearsal.api.resources import REVIEWS, VERBS, Registry, Resource

VERSION: Obj = {
    "major": "1",
    "minor": "34",
    "emulationMajor": "1",
    "emulationMinor": "34",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "33",
    "gitVersion": "v1.34.0",
    "gitCommit": "0000000000000000000000000000000000000000",
    "gitTreeState": "clean",
    "buildDate": "2026-11-30T00:00:00Z",
    "goVersion": "rehearsal",
    "compiler": "python",
    "platform": "linux/amd64",
}

_SCALE = {"group": "autoscaling", "version": "v1", "kind": "Scale"}
_SUBRESOURCES: dict[str, tuple[str, list[str], Obj | None]] = {
    "status": ("", ["get", "patch", "update"], None),
    "finalize": ("", ["update"], None),
    "scale": ("Scale", ["get", "patch", "update"], _SCALE),
    "binding": ("Binding", ["create"], None),
    "eviction": ("Eviction", ["create"], {"group": "policy", "version": "v1", "kind": "Eviction"}),
    "log": ("", ["get"], None),
}


def _in_version(registry: Registry, group: str, version: str) -> list[Resource]:
    return sorted((r for r in registry if (r.group, r.version) == (group, version)), key=lambda r: r.plural)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def api_versions(host: str) -> Obj:
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}],
    }


def _group(group: str, versions: list[str]) -> Obj:
    listed = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": listed, "preferredVersion": listed[0]}


def api_groups(registry: Registry) -> Obj:
    groups = [_group(group, versions) for group, versions in registry.groups().items() if group]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def api_group(registry: Registry, group: str) -> Obj | None:
    versions = registry.groups().get(group)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, versions)} if versions and group else None


def api_resources(registry: Registry, group: str, version: str) -> Obj | None:
    """The resources of one group version, or None when there is no such version."""
    if version not in registry.groups().get(group, ()):
        return None
    listed: list[Obj] = []
    for plural, kind in REVIEWS.get((group, version), {}).items():
        namespaced = plural.startswith("local")
        listed.append(
            {"name": plural, "singularName": kind.lower(), "namespaced": namespaced, "kind": kind, "verbs": ["create"]}
        )
    for resource in _in_version(registry, group, version):
        entry: Obj = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(VERBS),
            "storageVersionHash": _hash(resource.storage)[:11] + "=",
        }
        if resource.short_names:
            entry["shortNames"] = list(resource.short_names)
        if resource.categories:
            entry["categories"] = list(resource.categories)
        listed.append(entry)
        for name in sorted(resource.subresources & _SUBRESOURCES.keys()):
            kind, verbs, gvk = _SUBRESOURCES[name]
            listed.append(
                {
                    "name": f"{resource.plural}/{name}",
                    "singularName": "",
                    "namespaced": resource.namespaced,
                    "kind": kind or resource.kind,
                    "verbs": verbs,
                    **({"group": gvk["group"], "version": gvk["version"]} if gvk else {}),
                }
            )
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}


def _aggregated_version(registry: Registry, group: str, version: str) -> Obj:
    resources: list[Obj] = []
    for plural, kind in REVIEWS.get((group, version), {}).items():
        scope = "Namespaced" if plural.startswith("local") else "Cluster"
        response = {"group": group, "version": version, "kind": kind}
        resources.append(
            {
                "resource": plural,
                "responseKind": response,
                "scope": scope,
                "singularResource": kind.lower(),
                "verbs": ["create"],
            }
        )
    for resource in _in_version(registry, group, version):
        entry: Obj = {
            "resource": resource.plural,
            "responseKind": {"group": group, "version": version, "kind": resource.kind},
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "singularResource": resource.singular,
            "verbs": list(VERBS),
        }
        if resource.short_names:
            entry["shortNames"] = list(resource.short_names)
        if resource.categories:
            entry["categories"] = list(resource.categories)
        subresources = [
            {
                "subresource": name,
                "responseKind": _SUBRESOURCES[name][2]
                or {"group": group, "version": version, "kind": _SUBRESOURCES[name][0] or resource.kind},
                "verbs": _SUBRESOURCES[name][1],
            }
            for name in sorted(resource.subresources & _SUBRESOURCES.keys())
        ]
        if subresources:
            entry["subresources"] = subresources
        resources.append(entry)
    return {"version": version, "resources": resources, "freshness": "Current"}


def aggregated(registry: Registry, *, core: bool, version: str) -> Obj:
    """All groups with their resources in one answer; `version` of the format is v2 or v2beta1."""
    groups = [
        {
            "metadata": {"name": group, "creationTimestamp": None} if group else {"creationTimestamp": None},
            "versions": [_aggregated_version(registry, group, v) for v in versions],
        }
        for group, versions in registry.groups().items()
        if bool(group) != core
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": groups,
    }


def openapi_v3_root(registry: Registry) -> Obj:
    paths = {}
    for group, versions in registry.groups().items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            stamp = _hash(f"{path}#{registry.revision}")
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={stamp}"}
    return {"paths": paths}


def openapi_v3(registry: Registry, group: str, version: str) -> Obj | None:
    """A document that names kinds, paths and the field validation parameter; schemas are left open."""
    if version not in registry.groups().get(group, ()):
        return None
    paths: Obj = {}
    schemas: Obj = {}
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    for resource in _in_version(registry, group, version):
        gvk = {"group": group, "version": version, "kind": resource.kind}
        name = ".".join(["io.k8s.rehearsal", *(group.split(".") if group else ["core"]), version, resource.kind])
        schemas[name] = _schema(resource, gvk)
        where = (
            f"{base}/namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else f"{base}/{resource.plural}"
        )
        parameters = [
            {"name": parameter, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for parameter in ("dryRun", "fieldManager", "fieldValidation")
        ]
        operation = {
            "parameters": parameters,
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-group-version-kind": gvk,
        }
        paths[where] = {"post": {**operation, "x-kubernetes-action": "post"}}
        paths[f"{where}/{{name}}"] = {
            "patch": {**operation, "x-kubernetes-action": "patch"},
            "put": {**operation, "x-kubernetes-action": "put"},
        }
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _schema(resource: Resource, gvk: Obj) -> Obj:
    open_object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = resource.schema or open_object
    return {**schema, "x-kubernetes-group-version-kind": [gvk]}


def openapi_v2(registry: Registry) -> Obj:
    """The older document, in the same spirit."""
    paths: Obj = {}
    definitions: Obj = {}
    for group, versions in registry.groups().items():
        for version in versions:
            document = openapi_v3(registry, group, version)
            if document is not None:
                definitions.update(
                    {name: {key: schema[key] for key in ("type", "x-kubernetes-group-version-kind") if key in schema}
                     for name, schema in document["components"]["schemas"].items()}
                )  # fmt: skip
                paths.update(
                    {
                        path: {
                            verb: {
                                **operation,
                                "parameters": [
                                    {"name": p["name"], "in": "query", "type": "string", "uniqueItems": True}
                                    for p in operation["parameters"]
                                ],
                            }
                            for verb, operation in verbs.items()
                        }
                        for path, verbs in document["paths"].items()
                    }
                )
    info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
    return {"swagger": "2.0", "info": info, "paths": paths, "definitions": definitions}
