"""A small client of the Kubernetes API over httpx: what the simulated components and the rehearsal's helm speak.

It knows nothing of the rehearsal's server: the same calls work against a real kube-apiserver.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

Object = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

COMPONENT_HEADER = "X-Kai-Lab-Component"


@dataclass(frozen=True)
class Resource:
    """One resource type of the API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection, of one object, or of a subresource of it."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


_TABLE: tuple[tuple[str, str, str, str, bool], ...] = (
    ("", "v1", "nodes", "Node", False),
    ("", "v1", "namespaces", "Namespace", False),
    ("", "v1", "pods", "Pod", True),
    ("", "v1", "events", "Event", True),
    ("", "v1", "services", "Service", True),
    ("", "v1", "configmaps", "ConfigMap", True),
    ("", "v1", "secrets", "Secret", True),
    ("", "v1", "serviceaccounts", "ServiceAccount", True),
    ("apps", "v1", "deployments", "Deployment", True),
    ("apps", "v1", "replicasets", "ReplicaSet", True),
    ("apps", "v1", "daemonsets", "DaemonSet", True),
    ("batch", "v1", "jobs", "Job", True),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True),
    ("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False),
    ("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False),
    ("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False),
    ("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    ("rbac.authorization.k8s.io", "v1", "roles", "Role", True),
    ("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True),
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False),
    ("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False),
    ("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False),
    ("kai.scheduler", "v1", "configs", "Config", False),
    ("kai.scheduler", "v1", "schedulingshards", "SchedulingShard", False),
    ("kai.scheduler", "v1alpha1", "topologies", "Topology", False),
    ("scheduling.run.ai", "v2", "queues", "Queue", False),
    ("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup", True),
    ("scheduling.run.ai", "v1alpha2", "bindrequests", "BindRequest", True),
)

RESOURCES: Mapping[str, Resource] = {row[2]: Resource(*row) for row in _TABLE}
"""The resource types the rehearsal's parts use, by plural name."""

BY_KIND: Mapping[tuple[str, str], Resource] = {(r.api_version, r.kind): r for r in RESOURCES.values()}


def resource_of(obj: Mapping[str, Any]) -> Resource:
    """The resource type of an object. Raises KeyError for a kind that is not in the table."""
    return BY_KIND[(str(obj["apiVersion"]), str(obj["kind"]))]


class ApiError(Exception):
    """The API server answered with a Status: its code, reason and message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message

    @property
    def not_found(self) -> bool:
        return self.code == 404

    @property
    def conflict(self) -> bool:
        return self.code == 409

    @property
    def expired(self) -> bool:
        return self.code == 410


def error_of(code: int, body: bytes) -> ApiError:
    """The error in a response body: a Status, or whatever text there is."""
    try:
        status = json.loads(body)
    except ValueError:
        status = {}
    if not isinstance(status, dict):
        status = {}
    text = body.decode("utf-8", "replace")[:500]
    return ApiError(code, str(status.get("reason") or ""), str(status.get("message") or text or f"HTTP {code}"))


def _decoded(response: httpx.Response) -> Object:
    if response.status_code >= 400:
        raise error_of(response.status_code, response.content)
    decoded: Object = json.loads(response.content)
    return decoded


@dataclass(frozen=True)
class Request:
    """One call, ready to be sent by either client."""

    method: str
    path: str
    params: Mapping[str, str]
    body: bytes | None = None
    content_type: str = "application/json"


def create_request(obj: Mapping[str, Any], manager: str, *, dry_run: bool = False) -> Request:
    resource = resource_of(obj)
    namespace = obj.get("metadata", {}).get("namespace")
    params = {"fieldManager": manager} | ({"dryRun": "All"} if dry_run else {})
    return Request("POST", resource.path(namespace), params, json.dumps(obj).encode())


def patch_request(
    resource: Resource,
    namespace: str | None,
    name: str,
    patch: Any,
    manager: str,
    *,
    content_type: str = MERGE_PATCH,
    subresource: str | None = None,
    force: bool = False,
) -> Request:
    params = {"fieldManager": manager} | ({"force": "true"} if force else {})
    return Request(
        "PATCH", resource.path(namespace, name, subresource), params, json.dumps(patch).encode(), content_type
    )


def delete_request(
    resource: Resource,
    namespace: str | None,
    name: str,
    *,
    grace_s: int | None = None,
    uid: str | None = None,
    propagation: str = "Background",
) -> Request:
    options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    if uid is not None:
        options["preconditions"] = {"uid": uid}
    return Request("DELETE", resource.path(namespace, name), {}, json.dumps(options).encode())


class SyncApi:
    """Blocking client, for callers outside the server's process such as the rehearsal's helm."""

    def __init__(self, url: str, token: str, component: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        if component:
            headers[COMPONENT_HEADER] = component
        # A loopback server with its own certificate; the token is what protects it.
        self._http = httpx.Client(base_url=url, headers=headers, timeout=30, verify=False, trust_env=False)

    def __enter__(self) -> SyncApi:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def send(self, request: Request) -> Object:
        """Raises ApiError for an error Status and httpx.TransportError when the server cannot be reached."""
        headers = {"Content-Type": request.content_type}
        return _decoded(
            self._http.request(
                request.method, request.path, params=dict(request.params), content=request.body, headers=headers
            )
        )

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        """The object, or None when it does not exist."""
        try:
            return self.send(Request("GET", resource.path(namespace, name), {}))
        except ApiError as error:
            if error.not_found:
                return None
            raise

    def list(self, resource: Resource, namespace: str | None = None, **params: str) -> list[Object]:
        items: list[Object] = self.send(Request("GET", resource.path(namespace), params)).get("items") or []
        return items


def _spare_futile_imports() -> None:
    """httpcore tries to import sniffio for every lock it makes; where that is absent, Python would search its whole
    path each time, which costs more than the request. An entry of None makes the import fail at once."""
    if "sniffio" not in sys.modules and importlib.util.find_spec("sniffio") is None:
        sys.modules["sniffio"] = None  # type: ignore[assignment]


class Api:
    """Asynchronous client that acts as one named component."""

    def __init__(self, http: httpx.AsyncClient, streams: httpx.AsyncClient, component: str) -> None:
        self._http = http
        self._streams = streams
        self.component = component

    @staticmethod
    def connect(url: str, token: str, component: str) -> Api:
        _spare_futile_imports()

        def client(limits: httpx.Limits, timeout: httpx.Timeout) -> httpx.AsyncClient:
            headers = {"Authorization": f"Bearer {token}"}
            return httpx.AsyncClient(
                base_url=url, headers=headers, limits=limits, timeout=timeout, verify=False, trust_env=False
            )

        # Watches have a pool of their own: the pool looks at each of its connections for every request.
        few = httpx.Limits(max_connections=8, max_keepalive_connections=8)
        any_number = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        http = client(few, httpx.Timeout(60))
        return Api(http, client(any_number, httpx.Timeout(60, read=None)), component)

    def acting_as(self, component: str) -> Api:
        """The same connections under another component's name (request header and field manager)."""
        return Api(self._http, self._streams, component)

    async def close(self) -> None:
        await self._streams.aclose()
        await self._http.aclose()

    async def send(self, request: Request) -> Object:
        """Raises ApiError for an error Status and httpx.TransportError when the server cannot be reached."""
        headers = {"Content-Type": request.content_type, COMPONENT_HEADER: self.component}
        return _decoded(
            await self._http.request(
                request.method, request.path, params=dict(request.params), content=request.body, headers=headers
            )
        )

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        try:
            return await self.send(Request("GET", resource.path(namespace, name), {}))
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def list(self, resource: Resource) -> Object:
        return await self.send(Request("GET", resource.path(), {}))

    async def create(self, obj: Mapping[str, Any]) -> Object:
        return await self.send(create_request(obj, self.component))

    async def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        patch: Any,
        *,
        content_type: str = MERGE_PATCH,
        subresource: str | None = None,
        manager: str | None = None,
        force: bool = False,
    ) -> Object:
        return await self.send(
            patch_request(
                resource,
                namespace,
                name,
                patch,
                manager or self.component,
                content_type=content_type,
                subresource=subresource,
                force=force,
            )
        )

    async def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        grace_s: int | None = None,
        uid: str | None = None,
    ) -> None:
        """Deletes; an object that is already gone (or replaced by another of its name) is no error."""
        try:
            await self.send(delete_request(resource, namespace, name, grace_s=grace_s, uid=uid))
        except ApiError as error:
            if not (error.not_found or (uid and error.conflict)):
                raise

    async def bind(self, namespace: str, pod: str, node: str) -> None:
        """The binding subresource: what puts a pod on a node."""
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod, "namespace": namespace},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = RESOURCES["pods"].path(namespace, pod, "binding")
        await self.send(Request("POST", path, {"fieldManager": self.component}, json.dumps(binding).encode()))

    async def watch(self, resource: Resource, version: str) -> AsyncIterator[tuple[str, Object]]:
        """Events after `version` until the server ends the stream. Raises ApiError: 410 when the version is too old."""
        params = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        headers = {COMPONENT_HEADER: self.component}
        async with self._streams.stream("GET", resource.path(), params=params, headers=headers) as response:
            if response.status_code >= 400:
                raise error_of(response.status_code, await response.aread())
            async for line in response.aiter_lines():
                if not line:
                    continue
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    code = int(status.get("code") or 500)
                    raise ApiError(code, str(status.get("reason")), str(status.get("message")))
                yield event["type"], event["object"]
