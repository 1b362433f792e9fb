"""Lists and watches: selectors, pages, bookmarks, and versions that are too old."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass

from kai_lab_pipeline.rehearsal.api import versions
from kai_lab_pipeline.rehearsal.api.errors import (
    Obj,
    bad_request,
    expired,
    too_large_resource_version,
)
from kai_lab_pipeline.rehearsal.api.resources import Resource
from kai_lab_pipeline.rehearsal.api.selectors import Matcher, both, field_selector, label_selector
from kai_lab_pipeline.rehearsal.store import Change, Store, Stored, TooOld, Watcher, encode

_SNAPSHOTS = 32
"""Lists being paged through that are kept; an older one's next page is answered with 410 Expired."""

_BOOKMARK_S = 60.0
"""Seconds without a change after which a watch that asked for bookmarks gets one, as the real server does."""

_TOO_OLD_LIST = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without"
    " the continue parameter, or use the continue token in this response to retrieve the remainder of the results."
    " Continuing with the provided token results in an inconsistent list - objects that were created, modified, or"
    " deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass(frozen=True)
class ListOptions:
    """What a list or watch asks for."""

    namespace: str | None
    matches: Matcher | None
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    match: str = ""
    timeout_s: float = 0.0
    bookmarks: bool = False
    send_initial: bool = False

    @staticmethod
    def parse(query: dict[str, str], resource: Resource, namespace: str | None, name: str = "") -> ListOptions:
        """Raises: ApiError 400 for values that cannot be read."""
        matches = both(
            label_selector(query.get("labelSelector", "")), field_selector(query.get("fieldSelector", ""), resource)
        )
        if name:
            matches = both(matches, lambda obj: obj["metadata"]["name"] == name)
        try:
            limit, timeout = int(query.get("limit") or 0), float(query.get("timeoutSeconds") or 0)
        except ValueError as error:
            raise bad_request(f"invalid value in the query: {error}") from error
        rv = query.get("resourceVersion", "")
        if rv and not rv.isdigit():
            raise bad_request(f'Invalid value: "{rv}": strconv.ParseUint: parsing "{rv}": invalid syntax')
        return ListOptions(
            namespace=namespace,
            matches=matches,
            limit=limit,
            continue_token=query.get("continue", ""),
            resource_version=rv,
            match=query.get("resourceVersionMatch", ""),
            timeout_s=timeout,
            bookmarks=_true(query.get("allowWatchBookmarks")),
            send_initial=_true(query.get("sendInitialEvents")),
        )


def _true(value: str | None) -> bool:
    return value is not None and value.lower() in ("1", "true", "")


@dataclass(frozen=True)
class Page:
    """One page of a list."""

    items: list[Stored]
    resource_version: int
    continue_token: str = ""
    remaining: int | None = None

    def metadata(self) -> Obj:
        out: Obj = {"resourceVersion": str(self.resource_version)}
        if self.continue_token:
            out["continue"] = self.continue_token
            if self.remaining is not None:
                out["remainingItemCount"] = self.remaining
        return out


class Lists:
    """Lists and watches over one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._snapshots: OrderedDict[str, tuple[int, list[Stored]]] = OrderedDict()

    def page(self, resource: Resource, options: ListOptions) -> Page:
        """Raises: ApiError 410 for a version or page that is not kept, 504 for a version of the future."""
        if options.continue_token:
            return self._next_page(options)
        self._check_version(options)
        items = [
            stored
            for _, stored in self._store.objects(resource.storage, options.namespace)
            if options.matches is None or options.matches(stored.obj)
        ]
        return self._cut(items, self._store.rv, options, secrets.token_hex(8))

    def _check_version(self, options: ListOptions) -> None:
        asked = int(options.resource_version or 0)
        if asked > self._store.rv:
            raise too_large_resource_version(asked, self._store.rv)
        if options.match == "Exact" and asked != self._store.rv:
            raise expired("The resourceVersion for the provided list is too old.")

    def _cut(self, items: list[Stored], rv: int, options: ListOptions, snapshot: str) -> Page:
        if not options.limit or len(items) <= options.limit:
            self._snapshots.pop(snapshot, None)
            return Page(items, rv)
        page, rest = items[: options.limit], items[options.limit :]
        self._snapshots[snapshot] = (rv, rest)
        self._snapshots.move_to_end(snapshot)
        while len(self._snapshots) > _SNAPSHOTS:
            self._snapshots.popitem(last=False)
        remaining = len(rest) if options.matches is None else None
        return Page(page, rv, _token(rv, snapshot), remaining)

    def _next_page(self, options: ListOptions) -> Page:
        try:
            padded = options.continue_token + "=" * (-len(options.continue_token) % 4)
            token = json.loads(base64.urlsafe_b64decode(padded))
            snapshot = str(token["start"])
        except (ValueError, KeyError, TypeError) as error:
            raise bad_request(f"continue key is not valid: {error}") from error
        kept = self._snapshots.get(snapshot)
        if kept is None:
            raise expired(_TOO_OLD_LIST, {"continue": ""})
        rv, items = kept
        return self._cut(items, rv, options, snapshot)

    async def watch(self, resource: Resource, options: ListOptions) -> AsyncIterator[bytes]:
        """The lines of a watch stream, until its timeout or the server's end.

        Raises: ApiError 410 (as the first thing) when the wanted version is older than what is kept.
        """
        since = int(options.resource_version or 0)
        if since > self._store.rv:
            raise too_large_resource_version(since, self._store.rv)
        replay = options.send_initial or (not since and options.match != "NotOlderThan")
        initial: list[Stored] = []
        if replay or not since:
            page = self.page(resource, ListOptions(options.namespace, options.matches))
            initial, since = (page.items, page.resource_version) if replay else ([], page.resource_version)
        try:
            watcher = self._store.watch(resource.storage, since)
        except TooOld:
            raise expired(f"too old resource version: {since} ({self._store.rv})") from None
        return self._stream(resource, options, watcher, initial, since)

    async def _stream(
        self, resource: Resource, options: ListOptions, watcher: Watcher, initial: list[Stored], since: int
    ) -> AsyncIterator[bytes]:
        deadline = time.monotonic() + (options.timeout_s or 1800 + secrets.randbelow(1800))
        last = since
        try:
            lines = [b'{"type":"ADDED","object":%s}\n' % versions.raw(resource, stored) for stored in initial]
            if options.send_initial and options.bookmarks:
                lines.append(_bookmark(resource, since, initial_end=True))
            if lines:
                yield b"".join(lines)
            while not watcher.closed:
                left = deadline - time.monotonic()
                if left <= 0:
                    if options.bookmarks:
                        yield _bookmark(resource, last)
                    return
                changes = await watcher.next(min(left, _BOOKMARK_S))
                if not changes and not watcher.closed and options.bookmarks and deadline > time.monotonic():
                    last = self._store.rv
                    yield _bookmark(resource, last)
                lines = [line for change in changes if (line := _line(resource, options, change))]
                if changes:
                    last = changes[-1].rv
                if lines:
                    yield b"".join(lines)
        finally:
            self._store.unwatch(resource.storage, watcher)


def _token(rv: int, snapshot: str) -> str:
    token = {"v": "meta.k8s.io/v1", "rv": rv, "start": snapshot}
    return base64.urlsafe_b64encode(encode(token)).decode().rstrip("=")


def _bookmark(resource: Resource, rv: int, *, initial_end: bool = False) -> bytes:
    metadata: Obj = {"resourceVersion": str(rv), "creationTimestamp": None}
    if initial_end:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    obj = {"kind": resource.kind, "apiVersion": resource.group_version, "metadata": metadata}
    return encode({"type": "BOOKMARK", "object": obj}) + b"\n"


def _line(resource: Resource, options: ListOptions, change: Change) -> bytes | None:
    """One change as a watcher with these selectors sees it: objects enter and leave its view."""
    obj = change.new.obj
    if options.namespace is not None and obj["metadata"].get("namespace", "") != options.namespace:
        return None
    kind = change.kind
    if options.matches is not None:
        before = change.old is not None and options.matches(change.old.obj)
        after = kind != "DELETED" and options.matches(obj)
        if not before and not after:
            return None
        kind = "MODIFIED" if before and after else ("ADDED" if after else "DELETED")
    if obj.get("apiVersion") == resource.group_version:
        return change.frame(kind)
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), versions.raw(resource, change.new))
