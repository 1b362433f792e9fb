"""Shared caches of API objects, kept by list and watch, that wake controllers on change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx

from kai_lab_pipeline.rehearsal.client import RESOURCES, Api, ApiError, Object, Resource

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace ("" when cluster-scoped) and name."""

Handler = Callable[[Object | None, Object | None], None]
"""Called with the old and the new object; None for what was not or is no longer there."""

_RETRY_S = 0.2
_HOPEFUL_S = 10.0
"""A new CRD is served a moment after it says so (up to 2 s, kube-apiserver 1.34): being told once is not enough."""


def key_of(obj: Mapping[str, Any]) -> Key:
    meta = obj["metadata"]
    return meta.get("namespace", ""), meta["name"]


def version_of(obj: Mapping[str, Any]) -> int:
    """The resource version as a number (0 when unreadable): newer is larger on every server there is."""
    try:
        return int(obj["metadata"]["resourceVersion"])
    except (KeyError, ValueError):
        return 0


def matches(labels: Mapping[str, str] | None, wanted: Mapping[str, str]) -> bool:
    return all((labels or {}).get(name) == value for name, value in wanted.items())


class Informer:
    """The objects of one resource type as last seen."""

    def __init__(self, api: Api, resource: Resource) -> None:
        self._api = api
        self._objects: dict[Key, Object] = {}
        self._removed: dict[Key, int] = {}
        self._handlers: list[Handler] = []
        self._wake = asyncio.Event()
        self._hopeful_until = 0.0
        self.resource = resource
        self.synced = asyncio.Event()

    def get(self, namespace: str, name: str) -> Object | None:
        return self._objects.get((namespace, name))

    def all(self, namespace: str | None = None, labels: Mapping[str, str] | None = None) -> Iterator[Object]:
        for (where, _), obj in tuple(self._objects.items()):
            if namespace is not None and where != namespace:
                continue
            if labels is None or matches(obj["metadata"].get("labels"), labels):
                yield obj

    def on_change(self, handler: Handler) -> None:
        self._handlers.append(handler)

    def retry_now(self) -> None:
        """Looks again at once, and for a while, for a resource type that did not exist."""
        self._hopeful_until = asyncio.get_running_loop().time() + _HOPEFUL_S
        self._wake.set()

    def learn(self, obj: Object) -> Object:
        """Takes in the answer to our own write, so that the next look at the cache does not see the past."""
        key = key_of(obj)
        known = self._objects.get(key)
        if version_of(obj) > max(version_of(known) if known else 0, self._removed.get(key, 0)):
            self._set(key, obj)
        return obj

    def forget(self, namespace: str, name: str, uid: str) -> None:
        """Takes in that we deleted this object."""
        known = self._objects.get((namespace, name))
        if known is not None and known["metadata"].get("uid") == uid:
            self._removed[namespace, name] = version_of(known)
            self._remove((namespace, name))

    async def run(self) -> None:
        while True:
            self._wake.clear()
            try:
                version = await self._relist()
                await self._follow(version)
            except ApiError as error:
                if error.not_found:
                    self._replace([])
                    self.synced.set()
                    hopeful = asyncio.get_running_loop().time() < self._hopeful_until
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), _RETRY_S if hopeful else None)
                elif not error.expired:
                    log.warning("watch of %s: %s", self.resource.plural, error)
                    await asyncio.sleep(_RETRY_S)
            except (httpx.TransportError, ValueError) as error:
                log.debug("watch of %s broke: %r", self.resource.plural, error)
                await asyncio.sleep(_RETRY_S)

    async def _relist(self) -> str:
        listing = await self._api.list(self.resource)
        items: list[Object] = listing.get("items") or []
        for item in items:
            item.setdefault("apiVersion", self.resource.api_version)
            item.setdefault("kind", self.resource.kind)
        self._replace(items)
        self.synced.set()
        return str(listing["metadata"]["resourceVersion"])

    async def _follow(self, version: str) -> None:
        while True:
            async for kind, obj in self._api.watch(self.resource, version):
                version = obj["metadata"]["resourceVersion"]
                if kind == "BOOKMARK":
                    continue
                key = key_of(obj)
                if kind == "DELETED":
                    self._removed[key] = version_of(obj)
                    self._remove(key)
                else:
                    self.learn(obj)

    def _replace(self, items: list[Object]) -> None:
        fresh = {key_of(item): item for item in items}
        for key in [key for key in self._objects if key not in fresh]:
            self._remove(key)
        for key, item in fresh.items():
            known = self._objects.get(key)
            if known is None or version_of(item) > version_of(known):
                self._set(key, item)

    def _set(self, key: Key, obj: Object) -> None:
        old = self._objects.get(key)
        self._objects[key] = obj
        self._notify(old, obj)

    def _remove(self, key: Key) -> None:
        old = self._objects.pop(key, None)
        if old is not None:
            self._notify(old, None)
        if len(self._removed) > 2000:
            self._removed.clear()

    def _notify(self, old: Object | None, new: Object | None) -> None:
        for handler in self._handlers:
            handler(old, new)


class Informers:
    """One informer per resource type, started when first asked for."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._informers: dict[str, Informer] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def of(self, plural: str) -> Informer:
        informer = self._informers.get(plural)
        if informer is None:
            informer = Informer(self._api, RESOURCES[plural])
            self._informers[plural] = informer
        return informer

    def learn(self, obj: Object) -> Object:
        """Takes in an object we wrote, if its type is watched."""
        for informer in self._informers.values():
            if informer.resource.kind == obj.get("kind"):
                informer.learn(obj)
        return obj

    async def start(self) -> None:
        """Starts every informer asked for so far and waits until each has its first list."""
        crds = self.of("customresourcedefinitions")
        crds.on_change(self._crd_changed)
        for informer in self._informers.values():
            self._tasks.append(asyncio.create_task(informer.run(), name=f"informer {informer.resource.plural}"))
        for informer in tuple(self._informers.values()):
            await informer.synced.wait()

    def _crd_changed(self, old: Object | None, new: Object | None) -> None:
        crd = new or old or {}
        informer = self._informers.get(crd.get("spec", {}).get("names", {}).get("plural", ""))
        if informer is not None:
            informer.retry_now()

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        return tuple(self._tasks)
