"""The rehearsal's object store: objects in memory, written through to SQLite, with a window of past changes to watch.

Objects are never changed in place: a new version replaces the old one, so that readers, watchers and list snapshots
can share them without copies, and every object is serialised exactly once.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Key: TypeAlias = tuple[str, str]
"""(namespace, name); the namespace is empty for cluster-wide objects."""

WINDOW = 1024
"""Changes kept per resource for watches that start in the past; an older start is answered with 410 Expired."""

WINDOW_BYTES = 2 << 20
"""Bytes of JSON these changes may hold; as Python objects they take several times that."""

BACKLOG = 20_000
"""Changes a watcher may lag behind before its stream is closed, as the real server does with slow watchers."""


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(frozen=True)
class Stored:
    """One version of an object, and its JSON."""

    obj: dict[str, Any]
    raw: bytes
    rv: int


@dataclass
class Change:
    """What happened to one object at one resource version."""

    kind: str
    """ADDED, MODIFIED or DELETED."""
    rv: int
    new: Stored
    old: Stored | None
    _frames: dict[str, bytes] = field(default_factory=dict)

    def frame(self, kind: str) -> bytes:
        """The line of a watch stream, made once however many watchers there are."""
        if kind not in self._frames:
            self._frames[kind] = b'{"type":"%s","object":%s}\n' % (kind.encode(), self.new.raw)
        return self._frames[kind]


class Watcher:
    """A subscription to one resource's changes."""

    def __init__(self, past: Iterable[Change]) -> None:
        self._changes = deque(past)
        self._wake = asyncio.Event()
        self.closed = False

    def push(self, change: Change) -> None:
        if len(self._changes) >= BACKLOG:
            self.closed = True
        else:
            self._changes.append(change)
        self._wake.set()

    def close(self) -> None:
        self.closed = True
        self._wake.set()

    async def next(self, timeout: float) -> list[Change]:
        """The changes since the last call; empty after `timeout` seconds without one, or when closed."""
        if not self._changes and not self.closed:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), timeout)
            except asyncio.TimeoutError:
                return []
        taken = list(self._changes)
        self._changes.clear()
        return taken


class TooOld(Exception):
    """A watch wants to start before the kept window."""


class _Table:
    """The objects of one resource with their recent history."""

    def __init__(self, floor: int) -> None:
        self.objects: dict[Key, Stored] = {}
        self.history: deque[Change] = deque()
        self.history_bytes = 0
        self.floor = floor  # changes up to this version are forgotten
        self.watchers: set[Watcher] = set()

    def remember(self, change: Change) -> None:
        self.history.append(change)
        self.history_bytes += len(change.new.raw)
        while len(self.history) > WINDOW or self.history_bytes > WINDOW_BYTES:
            forgotten = self.history.popleft()
            self.history_bytes -= len(forgotten.new.raw)
            self.floor = forgotten.rv
        for watcher in self.watchers:
            watcher.push(change)


class Store:
    """All objects by resource (`deployments.apps`, `pods`). Not thread-safe: one event loop owns it."""

    def __init__(self, path: Path | None = None) -> None:
        """Open `path` (None: memory only) and load what an earlier process left there.

        Raises: sqlite3.Error when the file cannot be opened or is no database of ours.
        """
        self.rv = 1
        self._start = 0
        self._tables: dict[str, _Table] = {}
        self._dependents: dict[str, set[tuple[str, Key]]] = {}
        self._uids: dict[str, tuple[str, Key]] = {}
        self.listeners: list[Callable[[str, Key, Change], None]] = []
        # The state must survive a killed process, not a power cut: the page cache of the system is enough.
        self._db = sqlite3.connect(":memory:" if path is None else path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS objects (resource TEXT, namespace TEXT, name TEXT, rv INTEGER, body BLOB,"
            " PRIMARY KEY (resource, namespace, name)) WITHOUT ROWID"
        )
        self._db.execute("CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY, rv INTEGER)")
        self._load()

    def _load(self) -> None:
        row = self._db.execute("SELECT rv FROM counter WHERE id = 1").fetchone()
        self.rv = self._start = row[0] if row else 1  # what came before an earlier process ended is not known any more
        for resource, namespace, name, rv, body in self._db.execute("SELECT * FROM objects ORDER BY namespace, name"):
            stored = Stored(json.loads(body), body, rv)
            self._table(resource).objects[namespace, name] = stored
            self._index(resource, (namespace, name), None, stored)

    def close_all_watchers(self) -> None:
        for resource in self._tables:
            self.close_watchers(resource)

    def close(self) -> None:
        self.close_all_watchers()
        self._db.close()

    def _table(self, resource: str) -> _Table:
        table = self._tables.get(resource)
        if table is None:
            table = self._tables[resource] = _Table(self._start)
        return table

    def get(self, resource: str, key: Key) -> Stored | None:
        return self._table(resource).objects.get(key)

    def objects(self, resource: str, namespace: str | None = None) -> list[tuple[Key, Stored]]:
        """Objects of a resource in the order of namespace and name; `namespace` None means all."""
        items = self._table(resource).objects.items()
        return sorted(item for item in items if namespace is None or item[0][0] == namespace) if items else []

    def resources(self) -> list[str]:
        return list(self._tables)

    def next_rv(self) -> int:
        return self.rv + 1

    def put(self, resource: str, key: Key, obj: dict[str, Any]) -> Stored:
        """Store a new version of an object and tell its watchers; sets metadata.resourceVersion."""
        self.rv += 1
        obj["metadata"]["resourceVersion"] = str(self.rv)
        stored = Stored(obj, encode(obj), self.rv)
        table = self._table(resource)
        old = table.objects.get(key)
        table.objects[key] = stored
        self._index(resource, key, old, stored)
        self._write("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", (resource, *key, self.rv, stored.raw))
        self._publish(resource, key, Change("ADDED" if old is None else "MODIFIED", self.rv, stored, old))
        return stored

    def remove(self, resource: str, key: Key, last: dict[str, Any] | None = None) -> Stored:
        """Take an object away; its last state (with the version of the removal) goes to the watchers."""
        self.rv += 1
        table = self._table(resource)
        old = table.objects.pop(key)
        obj = last or json.loads(old.raw)
        obj["metadata"]["resourceVersion"] = str(self.rv)
        stored = Stored(obj, encode(obj), self.rv)
        self._index(resource, key, old, None)
        self._write("DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?", (resource, *key))
        self._publish(resource, key, Change("DELETED", self.rv, stored, old))
        return stored

    def _write(self, statement: str, values: tuple[Any, ...]) -> None:
        self._db.execute("BEGIN")
        self._db.execute(statement, values)
        self._db.execute("INSERT OR REPLACE INTO counter VALUES (1, ?)", (self.rv,))
        self._db.execute("COMMIT")

    def _publish(self, resource: str, key: Key, change: Change) -> None:
        self._table(resource).remember(change)
        for listener in self.listeners:
            listener(resource, key, change)

    def _index(self, resource: str, key: Key, old: Stored | None, new: Stored | None) -> None:
        where = (resource, key)
        if old is not None:
            self._uids.pop(old.obj["metadata"]["uid"], None)
            for owner in old.obj["metadata"].get("ownerReferences") or ():
                self._dependents.get(owner["uid"], set()).discard(where)
        if new is not None:
            self._uids[new.obj["metadata"]["uid"]] = where
            for owner in new.obj["metadata"].get("ownerReferences") or ():
                self._dependents.setdefault(owner["uid"], set()).add(where)

    def dependents(self, uid: str) -> list[tuple[str, Key]]:
        """Where the objects are that name this uid as an owner."""
        return sorted(self._dependents.get(uid, ()))

    def where(self, uid: str) -> tuple[str, Key] | None:
        """Resource and key of the object with this uid."""
        return self._uids.get(uid)

    def has_uid(self, uid: str) -> bool:
        return uid in self._uids

    def forget_owner(self, uid: str) -> None:
        if not self._dependents.get(uid):
            self._dependents.pop(uid, None)

    def watch(self, resource: str, since: int) -> Watcher:
        """Subscribe to a resource's changes after version `since`.

        Raises: TooOld when those changes are no longer all known.
        """
        table = self._table(resource)
        if since < table.floor:
            raise TooOld
        watcher = Watcher(change for change in table.history if change.rv > since)
        table.watchers.add(watcher)
        return watcher

    def unwatch(self, resource: str, watcher: Watcher) -> None:
        self._table(resource).watchers.discard(watcher)

    def close_watchers(self, resource: str) -> None:
        for watcher in self._table(resource).watchers:
            watcher.close()

    def __iter__(self) -> Iterator[tuple[str, Key, Stored]]:
        for resource, table in list(self._tables.items()):
            for key, stored in list(table.objects.items()):
                yield resource, key, stored
