"""`python -m kai_lab_pipeline.rehearsal --state DIR`: the rehearsal's API server and, on it, its components."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import logging
import os
import secrets
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import uvicorn

from kai_lab_pipeline.rehearsal.app import App
from kai_lab_pipeline.rehearsal.bootstrap import furnish
from kai_lab_pipeline.rehearsal.certificates import ensure_certificate
from kai_lab_pipeline.rehearsal.state import OPTIONS, SERVER, STORE, process_start, read_json, write_private
from kai_lab_pipeline.rehearsal.store import Store

log = logging.getLogger("kai_lab_pipeline.rehearsal")

_EVENT_TTL = timedelta(hours=1)
"""How long the real server keeps events by default (--event-ttl)."""

_RESTART_S = 1.0
_RESTART_MAX_S = 30.0


def _listen(port: int) -> socket.socket:
    """A socket on the loopback; another port where `port` is taken (0: any)."""
    for candidate in (port, 0):
        # The protocol is named because asyncio turns off Nagle's algorithm only for sockets that say TCP.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", candidate))
        except OSError:
            listener.close()
            if not candidate:
                raise
            log.warning("port %d is taken, using another one", candidate)
            continue
        listener.listen(512)
        return listener
    raise OSError("no port to listen on")


def _server(app: App, certificate: tuple[Path, Path] | None) -> uvicorn.Server:
    tls: dict[str, Any] = {}
    if certificate is not None:
        tls = {"ssl_certfile": str(certificate[0]), "ssl_keyfile": str(certificate[1])}
    config = uvicorn.Config(
        app,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
        **tls,
    )
    return uvicorn.Server(config)


async def _components(url: str, token: str, state: Path, options: Mapping[str, Any]) -> None:
    """Keep the simulated components running; their crash must not take the API down with it."""
    pause = _RESTART_S
    while True:
        try:
            # Imported here: the components are a large part of the program, and the API must be up first.
            components = importlib.import_module("kai_lab_pipeline.rehearsal.components")
            await components.run_components(url, token, state, options)
            log.warning("the components ended by themselves and are started again")
        except Exception:
            log.exception("the components crashed and are started again in %.0f s", pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _RESTART_MAX_S)


async def _forget_old_events(store: Store) -> None:
    while True:
        limit = (datetime.now(timezone.utc) - _EVENT_TTL).strftime("%Y-%m-%dT%H:%M:%SZ")
        for key, stored in store.objects("events"):
            last = stored.obj.get("lastTimestamp") or stored.obj["metadata"]["creationTimestamp"]
            if last < limit:
                store.remove("events", key)
        await asyncio.sleep(60)


async def _stop_when_idle(app: App, idle_stop_s: float, stop: asyncio.Event) -> None:
    while idle_stop_s > 0:
        left = idle_stop_s - app.idle_s()
        if left <= 0:
            log.info("nobody asked for %.0f s: stopping", idle_stop_s)
            stop.set()
            return
        await asyncio.sleep(max(left, 0.05))


async def serve(state: Path, name: str, idle_stop_s: float) -> None:
    """Serve until told to stop or idle for `idle_stop_s` seconds (0: never)."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    previous = read_json(state / SERVER) or {}
    options = read_json(state / OPTIONS) or {}
    store = Store(state / STORE)
    token = previous.get("token") or secrets.token_urlsafe(32)
    app = App(store, token)
    furnish(app.service)
    plain, secure = _listen(int(previous.get("port") or 0)), _listen(int(previous.get("tls_port") or 0))
    certificate = ensure_certificate(state)
    servers = [(_server(app, None), plain), (_server(app, certificate), secure)]
    background = [
        asyncio.create_task(app.service.deletion.run()),
        asyncio.create_task(_forget_old_events(store)),
        asyncio.create_task(_stop_when_idle(app, idle_stop_s, stop)),
    ]
    serving = [asyncio.create_task(_run(server, listener)) for server, listener in servers]
    while not all(server.started for server, _ in servers):
        await asyncio.sleep(0.002)
        for task in serving:
            if task.done():
                task.result()
                raise RuntimeError("the HTTP server ended while it started")
    port, tls_port = plain.getsockname()[1], secure.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    write_private(
        state / SERVER,
        json.dumps(
            {
                "name": name,
                "pid": os.getpid(),
                "pid_started": process_start(os.getpid()),
                "port": port,
                "tls_port": tls_port,
                "token": token,
                "options": options,
                "idle_stop_s": idle_stop_s,
                "ready_at": time.time(),
            },
            indent=1,
        ),
    )
    log.info("serving %s on ports %d (plain) and %d (TLS)", name, port, tls_port)
    if options.get("components", True):
        background.append(asyncio.create_task(_components(url, token, state, options)))
    await stop.wait()
    for task in background:
        task.cancel()
    await asyncio.wait(background, timeout=0.5)
    store.close_all_watchers()  # open watches would hold the servers up
    for server, _ in servers:
        server.should_exit = True
    await asyncio.gather(*serving)
    await app.close()
    log.info("stopped")


async def _run(server: uvicorn.Server, listener: socket.socket) -> None:
    # Signals are ours: two servers share the process, and each would take them for itself.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    await server.serve(sockets=[listener])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kai_lab_pipeline.rehearsal", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="folder that holds the rehearsal's state")
    parser.add_argument("--name", default="lab", help="name of the lab, for the kubeconfig's context")
    parser.add_argument("--idle-stop", type=float, default=1800.0, help="seconds without use until it stops; 0: never")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        asyncio.run(serve(arguments.state, arguments.name, arguments.idle_stop))
    except (OSError, sqlite3.Error) as error:
        print(f"the rehearsal's API server cannot run in {arguments.state}: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
