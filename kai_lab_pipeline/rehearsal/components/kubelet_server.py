"""The kubelet's own HTTPS port, from which the API server fetches container logs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from kai_lab_pipeline.rehearsal.components.kubelet import Kubelet, PodWorker
from kai_lab_pipeline.rehearsal.components.pod_status import ContainerState
from kai_lab_pipeline.rehearsal.components.podlogs import ContainerLog, LogQuery, render

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_PULL_FAILED = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


class BadRequest(Exception):
    """The kubelet cannot give this log; the text is what kubectl shows."""


class KubeletApp:
    """ASGI application: ``/containerLogs/<namespace>/<pod>/<container>`` and ``/healthz``."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        parts = scope["path"].strip("/").split("/")
        query = {name: values[-1] for name, values in parse_qs(scope["query_string"].decode()).items()}
        if parts == ["healthz"]:
            await _answer(send, 200, b"ok")
        elif len(parts) == 4 and parts[0] == "containerLogs":
            await self._logs(parts[1], parts[2], parts[3], query, receive, send)
        else:
            await _answer(send, 404, b"404 page not found\n")

    async def _logs(
        self, namespace: str, pod: str, name: str, query: dict[str, str], receive: Receive, send: Send
    ) -> None:
        worker = self._kubelet.worker(namespace, pod)
        if worker is None:
            await _answer(send, 404, f'pod "{pod}" does not exist\n'.encode())
            return
        container = next((c for c in worker.state.containers if c.name == name), None)
        if container is None:
            await _answer(send, 404, f'container "{name}" not found in pod "{pod}"\n'.encode())
            return
        try:
            log = _log_of(worker, container, query.get("previous") == "true")
            wanted = _query(query)
        except BadRequest as error:
            await _answer(send, 400, str(error).encode())
            return
        if query.get("follow") == "true" and not log.closed:
            await _follow(log, wanted, receive, send)
        else:
            await _answer(send, 200, render(log.lines(), wanted))


def _log_of(worker: PodWorker, container: ContainerState, previous: bool) -> ContainerLog:
    where = (worker.namespace, worker.name, worker.uid, container.name)
    logs = worker.sim.logs
    if previous:
        if not container.last.get("terminated"):
            raise BadRequest(f'previous terminated container "{container.name}" in pod "{worker.name}" not found')
        # While a container waits for its restart, its newest attempt is both current and previous.
        running = "running" in container.state
        return logs.of(*where, max(container.attempt - (1 if running else 0), 0))
    if not container.container_id:
        if worker.state.phase == "Failed":
            raise BadRequest(f'container "{container.name}" in pod "{worker.name}" is not available')
        reason = (container.state.get("waiting") or {}).get("reason", "ContainerCreating")
        reason = _PULL_FAILED.get(reason, reason)
        raise BadRequest(f'container "{container.name}" in pod "{worker.name}" is waiting to start: {reason}')
    log = logs.of(*where, container.attempt)
    if not log.path.exists() and container.attempt:
        return logs.of(*where, container.attempt - 1)
    return log


def _query(query: dict[str, str]) -> LogQuery:
    try:
        return LogQuery(
            tail_lines=int(query["tailLines"]) if "tailLines" in query else None,
            since=LogQuery.since_seconds(int(query["sinceSeconds"])) if "sinceSeconds" in query else None,
            timestamps=query.get("timestamps") == "true",
            limit_bytes=int(query["limitBytes"]) if "limitBytes" in query else None,
        )
    except ValueError as error:
        raise BadRequest(f"invalid log query: {error}") from None


async def _answer(send: Send, code: int, body: bytes) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _follow(log: ContainerLog, wanted: LogQuery, receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    seen = log.lines()
    await send({"type": "http.response.body", "body": render(seen, wanted), "more_body": True})
    gone = asyncio.create_task(_disconnected(receive))
    try:
        while not log.closed and not gone.done():
            grown = asyncio.create_task(log.grown())
            await asyncio.wait({grown, gone}, return_when=asyncio.FIRST_COMPLETED)
            grown.cancel()
            lines = log.lines()
            fresh = lines[len(seen) :] if len(lines) >= len(seen) else lines
            seen = lines
            if fresh:
                body = render(fresh, LogQuery(timestamps=wanted.timestamps))
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
