"""What follows from deleting: grace periods, finalizers, dependents of an owner, the content of a namespace."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TypeAlias

from kai_lab_pipeline.rehearsal.api.errors import Obj
from kai_lab_pipeline.rehearsal.store import Change, Key, Store, Stored

Task: TypeAlias = Callable[[], None]

_FOREGROUND = "foregroundDeletion"
_ORPHAN = "orphan"


def rfc3339(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def now() -> str:
    """The present as Kubernetes writes it, to the second."""
    return rfc3339(datetime.now(timezone.utc))


def copy_of(stored: Stored) -> Obj:
    """A copy of a stored object that may be changed; the stored one is shared and must not be."""
    obj: Obj = json.loads(stored.raw)
    return obj


class Deletion:
    """Deletes objects and, in the background, what belongs to them: the garbage and namespace controllers."""

    def __init__(self, store: Store, namespaced: Callable[[str], bool]) -> None:
        """`namespaced` tells whether a storage name is that of a namespaced resource."""
        self._store = store
        self._namespaced = namespaced
        self._tasks: deque[Task] = deque()
        self._wake = asyncio.Event()
        store.listeners.append(self._on_change)
        for resource, key, stored in store:  # what an earlier process left half done
            self._consider(resource, key, stored)

    async def run(self) -> None:
        """Work through what deletions left to do; until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._tasks:
                self._tasks.popleft()()
                await asyncio.sleep(0)  # a namespace full of objects must not hold up requests

    def _later(self, task: Task) -> None:
        self._tasks.append(task)
        self._wake.set()

    def _on_change(self, resource: str, key: Key, change: Change) -> None:
        if change.kind != "DELETED":
            self._consider(resource, key, change.new)
            return
        uid = change.new.obj["metadata"]["uid"]
        if self._store.dependents(uid):
            self._later(lambda: self._owner_gone(uid))
        for owner in change.new.obj["metadata"].get("ownerReferences") or ():
            self._later(lambda owner=owner: self._finish_foreground(owner["uid"]))  # type: ignore[misc]
        namespace = self._store.get("namespaces", ("", key[0])) if key[0] else None
        if namespace is not None and namespace.obj["metadata"].get("deletionTimestamp"):
            self._later(lambda: self._sweep(key[0]))

    def _consider(self, resource: str, key: Key, stored: Stored) -> None:
        metadata = stored.obj["metadata"]
        if any(not self._store.has_uid(owner["uid"]) for owner in metadata.get("ownerReferences") or ()):
            self._later(lambda: self._collect(resource, key))
        if metadata.get("deletionTimestamp"):
            if resource == "namespaces":
                self._later(lambda: self._sweep(key[1]))
            if _FOREGROUND in (metadata.get("finalizers") or ()):
                self._later(lambda: self._start_foreground(metadata["uid"]))

    def delete(
        self, resource: str, key: Key, *, grace: int | None = None, propagation: str | None = None
    ) -> tuple[Stored, bool]:
        """Delete an object; (its last known state, whether it is gone).

        `grace` in seconds is for pods: None means the pod's own terminationGracePeriodSeconds. `propagation` is
        Background (default), Foreground or Orphan.
        """
        stored = self._store.get(resource, key)
        if stored is None:
            raise KeyError(key)
        obj = copy_of(stored)
        metadata = obj["metadata"]
        finalizers = list(metadata.get("finalizers") or ())
        if propagation == "Orphan":
            self._orphan(metadata["uid"])
        elif propagation == "Foreground" and _FOREGROUND not in finalizers and self._blocking(metadata["uid"]):
            finalizers.append(_FOREGROUND)
        if finalizers:
            metadata["finalizers"] = finalizers
        wait = self._grace(obj, grace) if resource == "pods" else 0
        waits_for_namespace = resource == "namespaces" and bool(obj["spec"].get("finalizers"))
        if not (finalizers or wait or waits_for_namespace):
            if resource == "pods" or metadata.get("deletionTimestamp") is None:
                metadata.setdefault("deletionTimestamp", now())
                metadata["deletionGracePeriodSeconds"] = 0
            return self._store.remove(resource, key, obj), True
        if metadata.get("deletionTimestamp") and (resource != "pods" or wait >= metadata["deletionGracePeriodSeconds"]):
            return stored, False
        metadata["deletionTimestamp"] = rfc3339(datetime.now(timezone.utc) + timedelta(seconds=wait))
        metadata["deletionGracePeriodSeconds"] = wait
        if metadata.get("generation"):
            metadata["generation"] += 1
        if waits_for_namespace:
            obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
            metadata.pop("deletionGracePeriodSeconds")
        return self._store.put(resource, key, obj), False

    def _grace(self, pod: Obj, asked: int | None) -> int:
        """Seconds a pod gets; none at all when no kubelet has it, or it has ended.

        A pod on a node that does not exist would wait forever; the pod garbage collector takes such pods.
        """
        node = pod["spec"].get("nodeName")
        if not node or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return 0
        if self._store.get("nodes", ("", node)) is None:
            return 0
        default = pod["spec"].get("terminationGracePeriodSeconds")
        return int(30 if default is None else default) if asked is None else max(asked, 0)

    def released(self, resource: str, key: Key, obj: Obj) -> bool:
        """Whether an updated object that is being deleted has nothing left to wait for."""
        metadata = obj["metadata"]
        if not metadata.get("deletionTimestamp") or metadata.get("finalizers"):
            return False
        if resource == "namespaces":
            return not obj["spec"].get("finalizers")
        return not metadata.get("deletionGracePeriodSeconds")

    def _owner_gone(self, uid: str) -> None:
        for resource, key in self._store.dependents(uid):
            self._collect(resource, key)
        self._store.forget_owner(uid)

    def _collect(self, resource: str, key: Key) -> None:
        """Delete a dependent whose owners are all gone; else drop the references to those that are."""
        stored = self._store.get(resource, key)
        if stored is None:
            return
        owners = stored.obj["metadata"].get("ownerReferences") or []
        left = [owner for owner in owners if self._store.has_uid(owner["uid"])]
        if len(left) == len(owners):
            return
        if not left:
            self.delete(resource, key)
            return
        obj = copy_of(stored)
        obj["metadata"]["ownerReferences"] = left
        self._store.put(resource, key, obj)

    def _orphan(self, uid: str) -> None:
        for resource, key in self._store.dependents(uid):
            stored = self._store.get(resource, key)
            if stored is not None:
                obj = copy_of(stored)
                left = [owner for owner in obj["metadata"]["ownerReferences"] if owner["uid"] != uid]
                obj["metadata"]["ownerReferences"] = left
                if not left:
                    del obj["metadata"]["ownerReferences"]
                self._store.put(resource, key, obj)

    def _blocking(self, uid: str) -> list[tuple[str, Key]]:
        return self._store.dependents(uid)

    def _start_foreground(self, uid: str) -> None:
        for resource, key in self._store.dependents(uid):
            stored = self._store.get(resource, key)
            if stored is not None and not stored.obj["metadata"].get("deletionTimestamp"):
                self.delete(resource, key)
        self._finish_foreground(uid)

    def _finish_foreground(self, uid: str) -> None:
        where = self._store.where(uid)
        if where is None or self._store.dependents(uid):
            return
        stored = self._store.get(*where)
        if stored is None or _FOREGROUND not in (stored.obj["metadata"].get("finalizers") or ()):
            return
        obj = copy_of(stored)
        obj["metadata"]["finalizers"].remove(_FOREGROUND)
        if not obj["metadata"]["finalizers"]:
            del obj["metadata"]["finalizers"]
            self._store.remove(*where, obj)
        else:
            self._store.put(*where, obj)

    def _sweep(self, namespace: str) -> None:
        """Delete what is in a terminating namespace, and the namespace itself once it is empty."""
        stored = self._store.get("namespaces", ("", namespace))
        if stored is None or not stored.obj["metadata"].get("deletionTimestamp"):
            return
        left = 0
        for resource in self._store.resources():
            if not self._namespaced(resource):
                continue
            for key, found in self._store.objects(resource, namespace):
                if found.obj["metadata"].get("deletionTimestamp") or not self.delete(resource, key)[1]:
                    left += 1
        if left or not stored.obj["spec"].get("finalizers"):
            return
        obj = copy_of(stored)
        obj["spec"].pop("finalizers")
        if obj["metadata"].get("finalizers"):
            self._store.put("namespaces", ("", namespace), obj)
        else:
            self._store.remove("namespaces", ("", namespace), obj)
