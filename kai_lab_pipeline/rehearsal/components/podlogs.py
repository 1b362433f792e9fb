"""Container logs as files, one per attempt, in the line format of the container runtime interface."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

_LIMIT_BYTES = 2 * 1024 * 1024
"""A log grown beyond this is cut to its newer half, as a kubelet rotates."""


@dataclass(frozen=True)
class LogQuery:
    """What a reader asked for; times in seconds, sizes in bytes."""

    tail_lines: int | None = None
    since: datetime | None = None
    timestamps: bool = False
    limit_bytes: int | None = None

    @staticmethod
    def since_seconds(seconds: int) -> datetime:
        return datetime.now(timezone.utc) - timedelta(seconds=seconds)


def render(raw: Iterable[str], query: LogQuery) -> bytes:
    """The text of stored lines (``time stream flag text``); a flag P is a part of a line without its end."""
    lines: list[str] = []
    for entry in raw:
        stamp, _, flag, text = [*entry.split(" ", 3), "", "", ""][:4]
        if query.since is not None and _time_of(stamp) < query.since:
            continue
        lines.append(f"{stamp + ' ' if query.timestamps else ''}{text}{'' if flag == 'P' else chr(10)}")
    if query.tail_lines is not None:
        lines = lines[-query.tail_lines :] if query.tail_lines else []
    data = "".join(lines).encode()
    return data if query.limit_bytes is None else data[: query.limit_bytes]


def _time_of(stamp: str) -> datetime:
    try:
        return datetime.strptime(stamp[:26] + "Z", "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return datetime.now(timezone.utc)


class ContainerLog:
    """The log of one attempt of one container."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._grown = asyncio.Event()
        self.closed = False

    def write(self, *lines: str) -> None:
        self._append(lines, "F")

    def write_part(self, text: str) -> None:
        """Text without a newline at its end."""
        self._append((text,), "P")

    def close(self) -> None:
        self.closed = True
        self._grown.set()

    def _append(self, lines: Iterable[str], flag: str) -> None:
        stamp = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            for line in lines:
                for part in line.split("\n"):
                    file.write(f"{stamp} stdout {flag} {part}\n")
            size = file.tell()
        if size > _LIMIT_BYTES:
            self._cut()
        self._grown.set()

    def _cut(self) -> None:
        kept = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(kept[len(kept) // 2 :]), encoding="utf-8")
        fresh.replace(self.path)

    def lines(self) -> list[str]:
        try:
            return self.path.read_text(encoding="utf-8").split("\n")[:-1]
        except FileNotFoundError:
            return []

    async def grown(self) -> None:
        """Waits until something was written or the log was closed."""
        self._grown.clear()
        await self._grown.wait()


class PodLogs:
    """All logs of the node, below one folder: ``<namespace>_<pod>_<uid>/<container>/<attempt>.log``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: dict[Path, ContainerLog] = {}

    def _folder(self, namespace: str, pod: str, uid: str) -> Path:
        return self._root / f"{namespace}_{pod}_{uid}"

    def of(self, namespace: str, pod: str, uid: str, container: str, attempt: int) -> ContainerLog:
        path = self._folder(namespace, pod, uid) / container / f"{attempt}.log"
        log = self._open.get(path)
        if log is None:
            log = self._open[path] = ContainerLog(path)
        return log

    def forget_attempt(self, namespace: str, pod: str, uid: str, container: str, attempt: int) -> None:
        """Drops the log of an attempt that is neither the current nor the previous one."""
        path = self._folder(namespace, pod, uid) / container / f"{attempt}.log"
        self._open.pop(path, None)
        path.unlink(missing_ok=True)

    def remove_pod(self, namespace: str, pod: str, uid: str) -> None:
        folder = self._folder(namespace, pod, uid)
        for path in [path for path in self._open if folder in path.parents]:
            self._open.pop(path).close()
        shutil.rmtree(folder, ignore_errors=True)

    def keep_only(self, uids: Iterable[str]) -> None:
        """Removes what is left of pods that are no more, as of a cluster that was forgotten."""
        known = set(uids)
        for folder in self._root.glob("*_*_*"):
            if folder.name.rpartition("_")[2] not in known:
                shutil.rmtree(folder, ignore_errors=True)
