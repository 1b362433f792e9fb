"""The rehearsal's API server as a plain ASGI application: authentication, routing, negotiation, streaming."""

from __future__ import annotations

import hmac
import json
import logging
import time
from collections.abc import AsyncIterator
from urllib.parse import parse_qsl

from kai_lab_pipeline.rehearsal.api import discovery, protobuf, tables, versions
from kai_lab_pipeline.rehearsal.api.errors import ApiError, Obj, internal, method_not_allowed, unauthorized
from kai_lab_pipeline.rehearsal.api.lists import ListOptions, Lists
from kai_lab_pipeline.rehearsal.api.logs import Logs
from kai_lab_pipeline.rehearsal.api.resources import BUILTIN, REVIEWS, Resource
from kai_lab_pipeline.rehearsal.api.service import Service
from kai_lab_pipeline.rehearsal.api.subresources import Subresources
from kai_lab_pipeline.rehearsal.api.webhooks import review_answer
from kai_lab_pipeline.rehearsal.http import (
    Receive,
    Reply,
    Request,
    Scope,
    Send,
    json_reply,
    page_not_found,
    send_reply,
    success,
)
from kai_lab_pipeline.rehearsal.store import Store, Stored, encode

log = logging.getLogger(__name__)

COMPONENT_HEADER = "x-kai-lab-component"
"""Requests with this header come from the rehearsal's own components and do not count as use."""

_HEALTH = frozenset({"healthz", "readyz", "livez"})


class App:
    """ASGI application over one store. `token` is what every request but the health checks must bring."""

    def __init__(self, store: Store, token: str) -> None:
        self.service = Service(store)
        self.lists = Lists(store)
        self.logs = Logs(store)
        self.subresources = Subresources(self.service)
        self._store = store
        self._authorization = f"Bearer {token}"
        self._open = 0
        self._last_use = time.monotonic()

    def idle_s(self) -> float:
        """Seconds since somebody other than the rehearsal's own components had a request open."""
        return 0.0 if self._open else time.monotonic() - self._last_use

    async def close(self) -> None:
        await self.service.admission.webhooks.close()
        await self.logs.close()
        self._store.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the API server speaks HTTP only, not {scope['type']}")
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        counted = COMPONENT_HEADER not in headers
        self._open += counted
        try:
            await self._serve(scope, headers, receive, send)
        finally:
            self._open -= counted
            if counted:
                self._last_use = time.monotonic()

    async def _serve(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                break
        path = tuple(part for part in scope["path"].split("/") if part)
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        request = Request(scope["method"], path, query, headers, body)
        try:
            reply = await self._answer(request)
        except ApiError as error:
            reply = json_reply(error.status(), error.code)
        except Exception as error:
            log.exception("%s %s failed", request.method, scope["path"])
            reply = json_reply(internal(f"{type(error).__name__}: {error}").status(), 500)
        await send_reply(reply, request, receive, send)

    async def _answer(self, request: Request) -> Reply:
        path = request.path
        if path and path[0] in _HEALTH:
            return Reply(b"ok", content_type=b"text/plain; charset=utf-8")
        if not hmac.compare_digest(request.headers.get("authorization", "").encode(), self._authorization.encode()):
            raise unauthorized()
        if path and path[0] in ("api", "apis"):
            found = self._locate(request)
            if isinstance(found, Reply):
                return found
            return await self._resource(request, *found)
        return self._document(request)

    def _document(self, request: Request) -> Reply:
        path, registry = request.path, self.service.registry
        if path == ("version",):
            return json_reply(discovery.VERSION)
        if path == ("openapi", "v2") and "protobuf" in request.accepted():
            return Reply(protobuf.empty_openapi_v2(), content_type=protobuf.OPENAPI_V2_MEDIA_TYPE.encode())
        if path == ("openapi", "v2"):
            return json_reply(discovery.openapi_v2(registry))
        if path == ("openapi", "v3"):
            return json_reply(discovery.openapi_v3_root(registry))
        if path[:2] == ("openapi", "v3"):
            group, version = ("", path[-1]) if path[2] == "api" else (path[-2], path[-1])
            document = discovery.openapi_v3(registry, group, version)
            return page_not_found() if document is None else json_reply(document)
        if not path:
            return json_reply({"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]})
        return page_not_found()

    def _locate(self, request: Request) -> Reply | tuple[str, str, tuple[str, ...]]:
        """(group, version, the rest of the path), or the answer to a discovery request."""
        path, registry = request.path, self.service.registry
        if path in (("api",), ("apis",)):
            for form in ("v2", "v2beta1"):
                if f"g=apidiscovery.k8s.io;v={form};" in request.accepted() + ";":
                    body = encode(discovery.aggregated(registry, core=path[0] == "api", version=form))
                    kind = f"application/json;g=apidiscovery.k8s.io;v={form};as=APIGroupDiscoveryList"
                    return Reply(body, content_type=kind.encode())
            if path[0] == "api":
                return json_reply(discovery.api_versions(request.headers.get("host", "")))
            return json_reply(discovery.api_groups(registry))
        if path[0] == "apis" and len(path) == 2:
            group = discovery.api_group(registry, path[1])
            return page_not_found() if group is None else json_reply(group)
        skip = 2 if path[0] == "api" else 3
        group_name, version, rest = ("" if skip == 2 else path[1]), path[skip - 1], path[skip:]
        if rest:
            return group_name, version, rest
        resources = discovery.api_resources(registry, group_name, version)
        return self._unknown(group_name) if resources is None else json_reply(resources)

    def _unknown(self, group: str) -> Reply:
        """What is not served below a group: a Status for the server's own groups, else a page (1.34.0 does so)."""
        if any(resource.group == group for resource in BUILTIN):
            raise ApiError(404, "NotFound", "the server could not find the requested resource", {})
        return page_not_found()

    async def _resource(self, request: Request, group: str, version: str, rest: tuple[str, ...]) -> Reply:
        namespace: str | None = None
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        plural, name, subresource = (*rest, "", "")[:3]
        review = REVIEWS.get((group, version), {}).get(plural)
        if review and request.method == "POST":
            return json_reply(review_answer(review, group, request.decoded_object()), 201)
        if plural == "bindings" and not group and request.method == "POST":
            body = request.decoded_object()
            return self._bound(request, namespace or "", (body.get("metadata") or {}).get("name", ""), body)
        resource = self.service.registry.find(group, version, plural)
        if resource is None or len(rest) > 3 or (namespace is not None and not resource.namespaced):
            return self._unknown(group)
        if subresource and subresource not in resource.subresources:
            return page_not_found()
        if not name:
            return await self._collection(request, resource, namespace)
        if resource.namespaced and namespace is None:
            return page_not_found()
        if subresource:
            return await self._subresource(request, resource, namespace or "", name, subresource)
        return await self._single(request, resource, namespace or "", name)

    async def _collection(self, request: Request, resource: Resource, namespace: str | None) -> Reply:
        service = self.service
        if request.method == "GET":
            options = ListOptions.parse(request.query, resource, namespace)
            if request.query.get("watch", "").lower() in ("1", "true"):
                return await self._watch(request, resource, options)
            return self._list(request, resource, options)
        if request.method == "POST":
            if resource.namespaced and namespace is None:
                raise method_not_allowed("POST")
            stored = await service.create(resource, namespace or "", request.decoded(), request.write_options())
            return self._object(request, resource, stored, 201)
        if request.method == "DELETE":
            options = ListOptions.parse(request.query, resource, namespace)
            deleted = await service.delete_collection(
                resource, namespace, options.matches, request.delete_options(), request.warnings
            )
            return self._items(request, resource, deleted, {"resourceVersion": str(self._store.rv)})
        raise method_not_allowed(request.method)

    async def _watch(self, request: Request, resource: Resource, options: ListOptions) -> Reply:
        try:
            stream = await self.lists.watch(resource, options)
        except ApiError as error:
            if error.code != 410:
                raise
            # A watch reports this inside its stream; clients list anew when they see it.
            return Reply(encode({"type": "ERROR", "object": error.status()}) + b"\n")
        if request.asked_form() == "Table":
            stream = _as_tables(stream, resource, request.query.get("includeObject", "Metadata"))
        return Reply(stream)

    def _list(self, request: Request, resource: Resource, options: ListOptions) -> Reply:
        page = self.lists.page(resource, options)
        return self._items(request, resource, page.items, page.metadata())

    def _items(self, request: Request, resource: Resource, items: list[Stored], metadata: Obj) -> Reply:
        form = request.asked_form()
        if form == "Table":
            include = request.query.get("includeObject", "Metadata")
            return json_reply(tables.table(resource, items, metadata, include))
        kind, version = resource.list_kind, resource.group_version
        raws = [versions.raw(resource, stored) for stored in items]
        if form == "PartialObjectMetadata":
            kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
            raws = [encode(_partial(stored)) for stored in items]
        head = encode({"kind": kind, "apiVersion": version, "metadata": metadata})[:-1]
        return Reply(b'%s,"items":[%s]}' % (head, b",".join(raws)))

    def _object(self, request: Request, resource: Resource, stored: Stored, code: int = 200) -> Reply:
        form = request.asked_form()
        if form == "Table":
            metadata = {"resourceVersion": str(stored.rv)}
            include = request.query.get("includeObject", "Metadata")
            return json_reply(tables.table(resource, [stored], metadata, include), code)
        if form == "PartialObjectMetadata":
            return json_reply(_partial(stored), code)
        return Reply(versions.raw(resource, stored), code)

    async def _single(self, request: Request, resource: Resource, namespace: str, name: str) -> Reply:
        service, method = self.service, request.method
        if method == "GET":
            if request.query.get("watch", "").lower() in ("1", "true"):
                where = namespace if resource.namespaced else None
                return await self._watch(request, resource, ListOptions.parse(request.query, resource, where, name))
            return self._object(request, resource, service.get(resource, namespace, name))
        if method == "PUT":
            stored = await service.update(resource, namespace, name, request.decoded(), request.write_options())
            return self._object(request, resource, stored)
        if method == "PATCH":
            stored, created = await service.patch(
                resource, namespace, name, request.content_type, request.decoded(), request.write_options()
            )
            return self._object(request, resource, stored, 201 if created else 200)
        if method == "DELETE":
            stored, gone = await service.delete(resource, namespace, name, request.delete_options(), request.warnings)
            if not gone or resource.storage in ("pods", "services", "serviceaccounts", "persistentvolumeclaims"):
                return self._object(request, resource, stored)
            details = {
                "name": name,
                "group": resource.group,
                "kind": resource.plural,
                "uid": stored.obj["metadata"]["uid"],
            }
            return success({key: value for key, value in details.items() if value})
        raise method_not_allowed(method)

    async def _subresource(
        self, request: Request, resource: Resource, namespace: str, name: str, subresource: str
    ) -> Reply:
        service, method = self.service, request.method
        if subresource == "log":
            if method != "GET":
                raise method_not_allowed(method)
            stream = await self.logs.open(service.get(resource, namespace, name).obj, request.query)
            return Reply(b"", 204) if stream is None else Reply(stream, content_type=b"text/plain")
        if subresource == "binding" and method == "POST":
            return self._bound(request, namespace, name, request.decoded_object())
        if subresource == "eviction" and method == "POST":
            body = request.decoded_object()
            request.body = encode((body or {}).get("deleteOptions") or {})
            await self.subresources.evict(resource, namespace, name, request.delete_options(), request.warnings)
            return success(None, 201)
        if subresource == "scale":
            asked = None if method == "GET" else request.decoded()
            scale = await self.subresources.scale(
                resource, namespace, name, method, request.content_type, asked, request.write_options()
            )
            return json_reply(scale)
        if method == "GET":
            return self._object(request, resource, service.get(resource, namespace, name))
        if subresource == "finalize" and method == "PUT":
            stored = await self.subresources.finalize(resource, name, request.decoded_object(), request.write_options())
            return self._object(request, resource, stored)
        if subresource == "status" and method == "PUT":
            stored = await service.update(
                resource, namespace, name, request.decoded(), request.write_options(), subresource
            )
            return self._object(request, resource, stored)
        if subresource == "status" and method == "PATCH":
            stored, _ = await service.patch(
                resource, namespace, name, request.content_type, request.decoded(), request.write_options(), subresource
            )
            return self._object(request, resource, stored)
        raise method_not_allowed(method)

    def _bound(self, request: Request, namespace: str, name: str, binding: Obj) -> Reply:
        self.service.bind(namespace, name, binding, dry_run=request.query.get("dryRun") == "All")
        return success(None, 201)


def _partial(stored: Stored) -> Obj:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": stored.obj["metadata"]}


async def _as_tables(stream: AsyncIterator[bytes], resource: Resource, include: str) -> AsyncIterator[bytes]:
    """A watch stream with each object as a one-row table; the column heads come with the first only."""
    headers = True
    async for chunk in stream:
        lines = []
        for line in chunk.splitlines():
            event = json.loads(line)
            obj = event["object"]
            rows = [] if event["type"] == "BOOKMARK" else [Stored(obj, b"", 0)]
            metadata = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            shown = tables.table(resource, rows, metadata, include, headers=headers)
            headers = False
            lines.append(encode({"type": event["type"], "object": shown}) + b"\n")
        yield b"".join(lines)
