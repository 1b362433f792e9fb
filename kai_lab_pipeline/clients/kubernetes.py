"""The Kubernetes API as the lab uses it: plain objects in and out, explicit kubeconfig and context on every connection.

The official client carries credentials, TLS and connections (`clients.connection`); paths and bodies are plain JSON,
so that evidence is what `kubectl -o json` shows and a kind whose CRD is not there yet is a plain 404 instead of a stale
discovery cache. API errors become `ApiError` with the Status that the server gave, never a header dump.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kai_lab_pipeline.clients.api_errors import (
    NOT_SERVED,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unreachable,
    is_transient,
    refused,
    refused_with,
    unanswered,
)
from kai_lab_pipeline.clients.connection import CONNECTIONS, Connection
from kai_lab_pipeline.lab.errors import LabError

__all__ = [
    "CONNECTIONS",
    "FIELD_MANAGER",
    "KAI_GROUPS",
    "KINDS",
    "REPAIR_MANAGER",
    "REQUEST_TIMEOUT_S",
    "ApiError",
    "Cluster",
    "Conflict",
    "Forbidden",
    "Invalid",
    "NotFound",
    "Unreachable",
    "is_ours",
    "is_transient",
    "label_writers",
]

FIELD_MANAGER = "kai-lab"
"""Field manager of everything the lab applies: managedFields then say what is ours."""
REPAIR_MANAGER = "kai-lab-repair"
"""Field manager of what the lab sets back in objects of a chart: what it writes there is no sign that they are ours."""
REQUEST_TIMEOUT_S = 30.0
KINDS: Mapping[str, tuple[str, str]] = {
    "nodes": ("v1", "Node"),
    "namespaces": ("v1", "Namespace"),
    "pods": ("v1", "Pod"),
    "events": ("v1", "Event"),
    "configmaps": ("v1", "ConfigMap"),
    "services": ("v1", "Service"),
    "deployments": ("apps/v1", "Deployment"),
    "daemonsets": ("apps/v1", "DaemonSet"),
    "runtimeclasses": ("node.k8s.io/v1", "RuntimeClass"),
    "mutatingwebhookconfigurations": ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
    "validatingwebhookconfigurations": ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
    "customresourcedefinitions": ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    "queues": ("scheduling.run.ai/v2", "Queue"),
    "podgroups": ("scheduling.run.ai/v2alpha2", "PodGroup"),
    "bindrequests": ("scheduling.run.ai/v1alpha2", "BindRequest"),
    "configs": ("kai.scheduler/v1", "Config"),
    "schedulingshards": ("kai.scheduler/v1", "SchedulingShard"),
}
"""Plural resource names of the evidence bundle, with their API version and kind."""
_NEVER_APPLIED = {"secrets": ("v1", "Secret"), "serviceaccounts": ("v1", "ServiceAccount")}
"""What the lab only looks for and removes: no manifest of the lab has a secret, whose content drift would show."""
_REACHED = {**KINDS, **_NEVER_APPLIED}
KAI_GROUPS = frozenset({"scheduling.run.ai", "kai.scheduler"})
"""API groups of the CRDs that the lab installs."""


def is_ours(obj: Mapping[str, Any]) -> bool:
    """Whether the lab has applied this object: its field manager stands in managedFields.

    A forced apply onto somebody else's object leaves the same trace, so this alone never allows a deletion where
    things may have been there before the lab.
    """
    return any(entry.get("manager") == FIELD_MANAGER for entry in obj["metadata"].get("managedFields") or ())


def label_writers(obj: Mapping[str, Any], label: str) -> frozenset[str]:
    """Field managers that hold a label of an object: who wrote the value that it has; none where it is not there."""
    held = {
        str(entry.get("manager"))
        for entry in obj["metadata"].get("managedFields") or ()
        if f"f:{label}" in (((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels") or {})
    }
    return frozenset(held if label in (obj["metadata"].get("labels") or {}) else ())


_CONNECTIONS: dict[tuple[str, str, int], Connection] = {}
"""The client of the cluster that this process used last: its connections outlive a step."""


class Cluster:
    """One cluster, through its own kubeconfig file and a named context."""

    def __init__(self, kubeconfig: Path, context: str, *, shown: str = "") -> None:
        """`shown` names the cluster in errors: a copy of a kubeconfig may be gone by the time somebody reads them."""
        self.kubeconfig = kubeconfig
        self.context = context
        self._shown = shown or f"context {context} of {kubeconfig}"
        self._client: Connection | None = None

    def __str__(self) -> str:
        return self._shown

    # -- reading ---------------------------------------------------------------------------------------------------

    def objects(
        self, resource: str, *, namespace: str | None = None, label_selector: str = "", field_selector: str = ""
    ) -> list[dict[str, Any]]:
        """Objects of a plural resource name; raises NotFound when the cluster does not know the kind."""
        return self.list_with_version(
            resource, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        )[0]

    def list_with_version(
        self, resource: str, *, namespace: str | None = None, label_selector: str = "", field_selector: str = ""
    ) -> tuple[list[dict[str, Any]], str]:
        """Objects and the list's resourceVersion, from which a watch may go on."""
        body = self._call(
            "GET",
            self._path(resource, namespace),
            query=[("labelSelector", label_selector), ("fieldSelector", field_selector)],
            what=f"list {resource}",
        )
        api_version, kind = _REACHED[resource]
        items = [{"apiVersion": api_version, "kind": kind} | item for item in body.get("items") or []]
        return items, str(body.get("metadata", {}).get("resourceVersion", ""))

    def get(self, resource: str, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        """One object; raises NotFound."""
        return self._call("GET", self._path(resource, namespace, name), what=f"get {resource}/{name}")

    def find(self, resource: str, name: str, *, namespace: str | None = None) -> dict[str, Any] | None:
        """One object, or None when it (or its kind) is absent."""
        try:
            return self.get(resource, name, namespace=namespace)
        except NotFound:
            return None

    def everything_in(
        self, namespace: str, *, leave_out: frozenset[str] = frozenset()
    ) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Each namespaced resource that can be listed, with its objects in a namespace. Raises ApiError.

        What is computed when it is asked for has no uid, and is left out: pod metrics, OLM's package manifests.
        """
        for base, api_version in self._api_versions():
            for kind in self._call("GET", base, what=f"list what {base} has")["resources"]:
                name = str(kind["name"])
                if not kind.get("namespaced") or "list" not in kind.get("verbs", ()) or name in leave_out:
                    continue
                path = f"{base}/namespaces/{namespace}/{name}"
                try:
                    items = self._call("GET", path, what=f"list {name}").get("items") or []
                except NotFound:
                    continue  # its API was removed meanwhile
                stored = [item for item in items if item["metadata"].get("uid")]
                yield name, [{"apiVersion": api_version, "kind": kind["kind"], **item} for item in stored]

    def _api_versions(self) -> Iterator[tuple[str, str]]:
        yield "/api/v1", "v1"
        for group in self._call("GET", "/apis", what="list the APIs")["groups"]:
            version = str(group["preferredVersion"]["groupVersion"])
            yield f"/apis/{version}", version

    def version(self) -> str:
        """The API server's version, such as ``v1.34.0``."""
        return str(self._call("GET", "/version", what="read the version").get("gitVersion", ""))

    def incarnation(self) -> str:
        """uid of the kube-system namespace, which changes whenever the cluster is made anew."""
        return str(self.get("namespaces", "kube-system")["metadata"]["uid"])

    def logs(self, namespace: str, pod: str, container: str, *, previous: bool = False, tail: int | None = None) -> str:
        """A container's log text; raises ApiError (400 while the container is waiting to start)."""
        query = [("container", container), ("previous", "true" if previous else ""), ("tailLines", str(tail or ""))]
        path = f"{self._path('pods', namespace, pod)}/log"
        response = self._request("GET", path, query=query, what=f"read the log of {namespace}/{pod}")
        return str(response.data.decode("utf-8", "replace"))

    def watch(
        self, resource: str, version: str, *, timeout_s: float, namespace: str | None = None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Changes after `version` as (type, object), until `timeout_s` seconds passed or the stream ended.

        Raises ApiError with code 410 when `version` is too old: list again.
        """
        import urllib3

        query = [
            ("watch", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(max(1, int(timeout_s)))),
            ("allowWatchBookmarks", "true"),
        ]
        response = self._request(
            "GET",
            self._path(resource, namespace),
            query=query,
            what=f"watch {resource}",
            read_timeout_s=timeout_s + 1.0,
            stream=True,
        )
        buffer = b""
        try:
            for chunk in response.stream(amt=None, decode_content=False):
                buffer += chunk
                *lines, buffer = buffer.split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise refused(event["object"], f"watch {resource}", str(self))
                    yield event["type"], event["object"]
        except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError):
            return  # a broken stream is an ended stream: whoever watches lists again
        finally:
            response.release_conn()
            response.close()

    # -- writing ---------------------------------------------------------------------------------------------------

    def apply(self, obj: Mapping[str, Any], *, dry_run: bool = False, force: bool = True) -> dict[str, Any]:
        """Server-side apply of one object under the lab's field manager; returns what the server made of it."""
        meta = obj["metadata"]
        query = [
            ("fieldManager", FIELD_MANAGER),
            ("force", "true" if force else ""),
            ("dryRun", "All" if dry_run else ""),
        ]
        resource = self.resource_of(obj)
        return self._write(
            resource,
            "PATCH",
            self._path(resource, meta.get("namespace"), meta["name"]),
            query=query,
            body=dict(obj),
            content_type="application/apply-patch+yaml",
            what=f"apply {obj['kind']} {meta['name']}",
        )

    def create(self, obj: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create one object; raises Conflict when it is there."""
        meta = obj["metadata"]
        query = [("fieldManager", FIELD_MANAGER), ("dryRun", "All" if dry_run else "")]
        resource = self.resource_of(obj)
        return self._write(
            resource,
            "POST",
            self._path(resource, meta.get("namespace")),
            query=query,
            body=dict(obj),
            what=f"create {obj['kind']} {meta.get('name', '')}",
        )

    def patch(
        self,
        resource: str,
        name: str,
        change: Mapping[str, Any],
        *,
        namespace: str | None = None,
        manager: str = "",
    ) -> dict[str, Any]:
        """JSON merge patch: it cannot meet a conflict, takes fields away with null, and replaces a list as a whole."""
        return self._call(
            "PATCH",
            self._path(resource, namespace, name),
            query=[("fieldManager", manager or FIELD_MANAGER)],
            body=dict(change),
            content_type="application/merge-patch+json",
            what=f"patch {resource}/{name}",
        )

    def delete(self, resource: str, name: str, *, namespace: str | None = None, grace_s: int | None = None) -> bool:
        """Delete one object; False when it was not there. `grace_s`: seconds a pod gets to end."""
        query = [("gracePeriodSeconds", "" if grace_s is None else str(grace_s))]
        try:
            self._call("DELETE", self._path(resource, namespace, name), query=query, what=f"delete {resource}/{name}")
        except NotFound:
            return False
        return True

    def _write(self, resource: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        try:
            return self._call(*arguments, **options)
        except NotFound as error:
            error.transient = any(words in error.message for words in NOT_SERVED) and self._is_coming(resource)
            raise

    def _is_coming(self, resource: str) -> bool:
        """Whether a kind is promised by a CRD that the lab installs, and only not served yet."""
        group, _, version = KINDS[resource][0].rpartition("/")
        definition = self.find("customresourcedefinitions", f"{resource}.{group}") if group in KAI_GROUPS else None
        if definition is None or definition["metadata"].get("deletionTimestamp"):
            return False
        return any(item.get("name") == version and item.get("served") for item in definition["spec"]["versions"])

    # -- plumbing --------------------------------------------------------------------------------------------------

    @staticmethod
    def resource_of(obj: Mapping[str, Any]) -> str:
        """The plural resource name of an object's kind. Raises LabError for a kind the lab does not use."""
        wanted = (obj["apiVersion"], obj["kind"])
        for resource, kind in KINDS.items():
            if kind == wanted:
                return resource
        raise LabError(f"The lab does not know the kind {wanted[1]} of {wanted[0]}", where="manifests/")

    @staticmethod
    def _path(resource: str, namespace: str | None = None, name: str | None = None) -> str:
        api_version = _REACHED[resource][0]
        prefix = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return f"{prefix}{scope}/{resource}" + (f"/{name}" if name else "")

    def _connection(self) -> Connection:
        if self._client is None:
            self._client = _CONNECTIONS.get(self._identity())
        if self._client is None:
            self._client = Connection(self.kubeconfig, self.context, where=str(self))
            _CONNECTIONS.clear()
            _CONNECTIONS[self._identity()] = self._client
        return self._client

    def _identity(self) -> tuple[str, str, int]:
        """Another file content, and be it under the same name, is another cluster."""
        try:
            changed = self.kubeconfig.stat().st_mtime_ns
        except OSError:
            changed = 0
        return str(self.kubeconfig), self.context, changed

    def _call(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Sequence[tuple[str, str]] = (),
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        response = self._request(method, path, query=query, body=body, content_type=content_type, what=what)
        try:
            answer = json.loads(response.data)
        except ValueError as error:
            text = response.data[:200].decode("utf-8", "replace")
            raise Unreachable(
                f"The API server gave no JSON when asked to {what}",
                code=0,
                reason="NotJSON",
                message=text,
                where=str(self),
            ) from error
        return dict(answer)

    def _request(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Sequence[tuple[str, str]] = (),
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        read_timeout_s: float = REQUEST_TIMEOUT_S,
        stream: bool = False,
    ) -> Any:
        import urllib3

        connection = self._connection()
        headers = {"Accept": "application/json", "User-Agent": FIELD_MANAGER}
        parameters = urlencode([pair for pair in query if pair[1]])
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            response = connection.send(
                method,
                path + (f"?{parameters}" if parameters else ""),
                headers=headers,
                body=None if body is None else json.dumps(body).encode(),
                read_timeout_s=read_timeout_s,
                stream=stream,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise unanswered(error, what, str(self)) from error
        if response.status >= 400:
            text = response.data if not stream else response.read()
            built_in = not path.startswith(tuple(f"/apis/{group}/" for group in KAI_GROUPS))
            raise refused_with(text, response.status, what, str(self), built_in=built_in)
        return response
