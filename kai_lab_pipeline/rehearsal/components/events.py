"""Events as the cluster's parts record them: counted up while they repeat, combined when they flood."""

from __future__ import annotations

import time
from collections import OrderedDict
from datetime import datetime, timezone
from typing import Any

from kai_lab_pipeline.rehearsal.client import RESOURCES, Api, ApiError, Object

_SIMILAR_LIMIT = 10
"""client-go combines events that differ only in their message from the eleventh on."""
_REMEMBERED = 4096


class Recorder:
    """Records events about objects in the name of a component."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._counts: OrderedDict[tuple[str, ...], tuple[str, int]] = OrderedDict()
        self._similar: OrderedDict[tuple[str, ...], set[str]] = OrderedDict()

    async def record(
        self,
        about: Object,
        kind: str,
        reason: str,
        message: str,
        component: str,
        *,
        host: str | None = None,
        container: str | None = None,
    ) -> None:
        """Records one event; a repeated one raises the count of the first. `kind` is Normal or Warning."""
        meta = about["metadata"]
        path = f"spec.containers{{{container}}}" if container else ""
        family = (component, str(meta.get("uid")), path, kind, reason)
        similar = self._similar.setdefault(family, set())
        similar.add(message)
        if len(similar) > _SIMILAR_LIMIT:
            message = f"(combined from similar events): {message}"
            same = (*family, "combined")
        else:
            same = (*family, message)
        at = _now()
        known = self._counts.get(same)
        namespace = meta.get("namespace") or "default"
        if known is not None:
            name, count = known
            try:
                await self._bump(component, namespace, name, count + 1, at, message)
            except ApiError as error:
                if not error.not_found:
                    raise
            else:
                self._remember(same, name, count + 1)
                return
        event = _event(about, kind, reason, message, component, host, path, at)
        await self._create(component, event)
        self._remember(same, event["metadata"]["name"], 1)

    async def scheduled(self, about: Object, kind: str, reason: str, message: str, scheduler: str) -> None:
        """An event in the form of the newer events API, as kube-scheduler writes it."""
        event = _event(about, kind, reason, message, scheduler, None, "", _now())
        del event["count"]
        event.update(
            action="Binding" if reason == "Scheduled" else "Scheduling",
            eventTime=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            firstTimestamp=None,
            lastTimestamp=None,
            reportingInstance=f"{scheduler}-rehearsal",
            source={},
        )
        await self._create(scheduler, event)

    async def _create(self, component: str, event: Object) -> None:
        try:
            await self._api.acting_as(component).create(event)
        except ApiError as error:
            # A namespace that is being deleted takes no more events; the event is lost, as it is in a real cluster.
            if error.code not in (403, 404, 409):
                raise

    async def _bump(self, component: str, namespace: str, name: str, count: int, at: str, message: str) -> None:
        patch: dict[str, Any] = {"count": count, "lastTimestamp": at, "message": message}
        await self._api.acting_as(component).patch(RESOURCES["events"], namespace, name, patch)

    def _remember(self, same: tuple[str, ...], name: str, count: int) -> None:
        self._counts[same] = (name, count)
        self._counts.move_to_end(same)
        for memory in (self._counts, self._similar):
            while len(memory) > _REMEMBERED:
                memory.popitem(last=False)


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _event(
    about: Object, kind: str, reason: str, message: str, component: str, host: str | None, path: str, at: str
) -> Object:
    meta = about["metadata"]
    involved = {
        "apiVersion": about["apiVersion"],
        "kind": about["kind"],
        "name": meta["name"],
        "resourceVersion": meta.get("resourceVersion", ""),
        "uid": meta.get("uid", ""),
    }
    if meta.get("namespace"):
        involved["namespace"] = meta["namespace"]
    if path:
        involved["fieldPath"] = path
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{meta['name'][:200]}.{time.time_ns():x}",
            "namespace": meta.get("namespace") or "default",
        },
        "count": 1,
        "eventTime": None,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "involvedObject": involved,
        "message": message,
        "reason": reason,
        "reportingComponent": component,
        "reportingInstance": host or "",
        "source": {"component": component} | ({"host": host} if host else {}),
        "type": kind,
    }
