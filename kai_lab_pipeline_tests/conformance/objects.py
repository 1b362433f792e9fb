"""Asks both servers what they would make of the lab's own objects, and compares the answers field by field.

Defaults, what admission adds and what is left out shape all evidence; a dry run shows them without leaving anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from kai_lab_pipeline.rehearsal import charts, process
from kai_lab_pipeline.rehearsal.client import resource_of
from kai_lab_pipeline_tests.api_suite.support import Api, Obj, until

_OWN = ("uid", "creationTimestamp", "resourceVersion", "managedFields", "generation")
"""Metadata that each server gives as it likes. Field ownership is compared by the suite."""
_RANDOM = {
    r"kube-api-access-\w{5}": "kube-api-access-RANDOM",
    r'("(?:batch\.kubernetes\.io/)?controller-uid": )"[^"]*"': r'\1"RANDOM"',
    r'("clusterIPs?": )(\["[^"]*"\]|"10\.[\d.]+")': r'\1"ADDRESS"',
}


def compare(kubeconfig: Path, objects: list[Obj], folder: Path) -> tuple[int, list[str]]:
    """(How many objects both servers answered alike, a line per difference), with a rehearsal of its own."""
    state = folder / "objects"
    rehearsal = process.ensure(state, name="objects", options={"components": False})
    try:
        servers = Api(rehearsal.kubeconfig), Api(kubeconfig)
        try:
            return _compare(servers, objects)
        finally:
            for server in servers:
                server.close()
    finally:
        process.stop(state, forget=True)


def lab_objects(manifests: Path, rendered: str) -> list[Obj]:
    """The objects of the lab's manifests and of its charts, as `helm template` rendered them."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(manifests.glob("*.yaml"))]
    return [document for text in [*texts, rendered] for document in yaml.safe_load_all(text) if document]


def _compare(servers: tuple[Api, Api], objects: list[Obj]) -> tuple[int, list[str]]:
    crds = charts.kai_crds()
    for server in servers:
        for crd in crds:
            server.post(resource_of(crd).path(), crd)
        for obj in objects:
            _prepare(server, obj)
    lines: list[str] = []
    alike = 0
    for obj in objects:
        ours, theirs = (_answer(server, obj) for server in servers)
        found = list(differing(ours, theirs))
        if ours["kind"] == theirs["kind"] == "Status":
            found.append(f" is refused by both: {theirs['message']}")
        alike += not found
        lines += [f"{obj['kind']} {obj['metadata']['name']}{line}" for line in found]
    for obj in [*crds, *objects]:  # the graph finds the real server as it was
        if obj["kind"] in ("CustomResourceDefinition", "RuntimeClass"):
            servers[1].delete(resource_of(obj).path(None, obj["metadata"]["name"]))
    return alike, lines


def _prepare(server: Api, obj: Obj) -> None:
    """What an object needs to be looked at: its kind, its namespace, its runtime class."""
    resource = resource_of(obj)
    until(lambda: server.exists(resource.path()), f"{resource.plural} to be served")
    if obj["kind"] == "RuntimeClass":
        server.http.post(resource.path(), json=obj)


def _answer(server: Api, obj: Obj) -> Obj:
    resource = resource_of(obj)
    namespace = "default" if resource.namespaced else None
    body = {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key != "namespace"}}
    if obj["kind"] == "RuntimeClass":
        answer: Obj = server.http.get(resource.path(None, obj["metadata"]["name"])).json()
    else:
        answer = server.http.post(resource.path(namespace), json=body, params={"dryRun": "All"}).json()
    metadata = {key: value for key, value in answer.get("metadata", {}).items() if key not in _OWN}
    text = json.dumps({**answer, "metadata": metadata})
    for pattern, plain in _RANDOM.items():
        text = re.sub(pattern, plain, text)
    plainly: Obj = json.loads(text)
    return plainly


def differing(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """A line per field that is not the same in both."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            yield from differing(ours.get(key, "(absent)"), theirs.get(key, "(absent)"), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differing(one, other, f"{path}[{index}]")
    elif ours != theirs:
        yield f"{path}: {_short(ours)} on the rehearsal, {_short(theirs)} on kube-apiserver"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:200] + "..."
