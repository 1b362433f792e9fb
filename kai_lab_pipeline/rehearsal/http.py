"""HTTP of the rehearsal's API server: requests as handlers need them, replies, and streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kai_lab_pipeline.rehearsal.api import protobuf
from kai_lab_pipeline.rehearsal.api.errors import Obj, bad_request, unsupported_media_type
from kai_lab_pipeline.rehearsal.api.service import APPLY_PATCH, DeleteOptions, WriteOptions
from kai_lab_pipeline.rehearsal.store import encode

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]

_JSON = b"application/json"
_PARTS = ("metadata", "spec", "status", "target", "deleteOptions")


@dataclass
class Request:
    """One HTTP request, decoded as far as every handler needs it."""

    method: str
    path: tuple[str, ...]
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    warnings: list[str] = field(default_factory=list)

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def decoded(self) -> Any:
        """The body as data. Raises: ApiError 400, or 415 for a format this server does not read."""
        kind = self.content_type
        if kind in ("application/yaml", APPLY_PATCH) and not self.body.lstrip().startswith(b"{"):
            import yaml

            try:
                return yaml.safe_load(self.body)
            except (yaml.YAMLError, ValueError, RecursionError) as error:
                raise bad_request(f"error decoding YAML: {error}") from error
        if kind == protobuf.MEDIA_TYPE:
            decoded = protobuf.decode(self.body)
            if decoded is not None:
                return decoded
        if kind and "json" not in kind and "yaml" not in kind and self.body:
            raise unsupported_media_type(["application/json", "application/yaml"])
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            said = self.body.decode(errors="replace")[:200]
            raise bad_request(
                f"the object provided is unrecognized: couldn't get version/kind; json parse error: {error} ({said})"
            ) from error

    def decoded_object(self) -> Obj:
        """The body as an object whose parts are objects too. Raises: ApiError 400, 415."""
        body = self.decoded()
        parts = [body.get(part) for part in _PARTS] if isinstance(body, dict) else [body]
        if not isinstance(body, dict) or not all(part is None or isinstance(part, dict) for part in parts):
            raise bad_request(f"the object provided is unrecognized: json: cannot unmarshal {str(body)[:200]}")
        return body

    def write_options(self) -> WriteOptions:
        dry_run = self.query.get("dryRun", "")
        if dry_run not in ("", "All"):
            raise bad_request(f'Invalid value: "{dry_run}": dryRun: Unsupported value: supported values: "All"')
        agent = self.headers.get("user-agent", "").partition("/")[0]
        return WriteOptions(
            manager=self.query.get("fieldManager") or agent or "unknown",
            manager_given=bool(self.query.get("fieldManager")),
            dry_run=dry_run == "All",
            force=self.query.get("force", "").lower() == "true",
            field_validation=self.query.get("fieldValidation") or "Warn",
            warnings=self.warnings,
        )

    def delete_options(self) -> DeleteOptions:
        body: Any = self.decoded() if self.body.strip() else {}
        given: Obj = body if isinstance(body, dict) else {}
        preconditions = given.get("preconditions") or {}
        dry_run = given.get("dryRun") or ()
        if not isinstance(preconditions, dict) or not isinstance(dry_run, list | tuple):
            raise bad_request("DeleteOptions: json: cannot unmarshal preconditions or dryRun")
        grace = _whole("gracePeriodSeconds", given.get("gracePeriodSeconds", self.query.get("gracePeriodSeconds")))
        propagation = given.get("propagationPolicy") or self.query.get("propagationPolicy")
        if given.get("orphanDependents"):
            propagation = "Orphan"
        return DeleteOptions(
            grace=grace,
            propagation=propagation,
            uid=preconditions.get("uid"),
            resource_version=preconditions.get("resourceVersion"),
            dry_run="All" in dry_run or self.query.get("dryRun") == "All",
        )

    def asked_form(self) -> str:
        """Table, PartialObjectMetadata or the empty string: how the client wants objects shown."""
        for part in self.headers.get("accept", "").split(","):
            pieces = [piece.strip() for piece in part.split(";")]
            if pieces[0] in ("application/json", "*/*", "application/*"):
                return next((piece[3:] for piece in pieces if piece.startswith("as=")), "").removesuffix("List")
        return ""

    def accepted(self) -> str:
        return self.headers.get("accept", "")


def _whole(name: str, given: Any) -> int | None:
    """A number that a client gave in a body or a query. Raises: ApiError 400."""
    try:
        return None if given is None else int(given)
    except (ValueError, TypeError, OverflowError) as error:
        raise bad_request(f"{name}: Invalid value: {given!r}: must be an integer") from error


@dataclass(frozen=True)
class Reply:
    """A complete answer, or a stream of chunks."""

    body: bytes | AsyncIterator[bytes]
    code: int = 200
    content_type: bytes = _JSON


def json_reply(value: Any, code: int = 200) -> Reply:
    return Reply(encode(value), code)


def page_not_found() -> Reply:
    return Reply(b"404 page not found\n", 404, b"text/plain; charset=utf-8")


def success(details: Obj | None, code: int = 200) -> Reply:
    body: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is None:
        return json_reply({**body, "code": code}, code)
    return json_reply({**body, "details": details}, code)


async def send_reply(reply: Reply, request: Request, receive: Receive, send: Send) -> None:
    headers = [(b"cache-control", b"no-cache, private")]
    if reply.code != 204:  # no content, and so none of its headers
        headers.append((b"content-type", reply.content_type))
    for warning in request.warnings:
        said = warning.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        headers.append((b"warning", f'299 - "{said}"'.encode("utf-8", "replace")))
    if isinstance(reply.body, bytes):
        if reply.code != 204:
            headers.append((b"content-length", str(len(reply.body)).encode()))
        await send({"type": "http.response.start", "status": reply.code, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})
        return
    await send({"type": "http.response.start", "status": reply.code, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": True})  # the head must not wait for an event
    await _pump(reply.body, receive, send)


async def _pump(chunks: AsyncIterator[bytes], receive: Receive, send: Send) -> None:
    """Send a stream until it ends or the client goes away."""
    gone = asyncio.ensure_future(_disconnected(receive))
    following: asyncio.Future[bytes] | None = None
    try:
        while True:
            following = asyncio.ensure_future(chunks.__anext__())
            await asyncio.wait({following, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return
            try:
                chunk = following.result()
            except StopAsyncIteration:
                await send({"type": "http.response.body", "body": b""})
                return
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    finally:
        gone.cancel()
        if following is not None and not following.done():
            following.cancel()
            await asyncio.wait({following})
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
