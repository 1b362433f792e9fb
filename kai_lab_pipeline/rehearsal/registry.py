"""A small OCI registry on loopback, for rehearsing discovery: data in, distribution API out, with faults to order.

It answers as ghcr.io does: anonymous tokens, pages by Link, digests. `serve` runs it in a thread;
``python -m kai_lab_pipeline.rehearsal.registry`` in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from kai_lab_pipeline.clients.oci import CHART_MEDIA_TYPE, CONFIG_MEDIA_TYPE, MANIFEST_MEDIA_TYPE
from kai_lab_pipeline.rehearsal.registry_charts import CHARTS, FURTHER_TAGS, IMAGES, ChartSource

FAULTS: Mapping[str, str] = {
    "unauthorized": "401, and no token is ever good enough",
    "forbidden": "403 denied",
    "not_found": "404, as if the repository were not there",
    "rate_limited": "429 with Retry-After: 1",
    "server_error": "500",
    "unavailable": "503",
    "html": "a web page, as a proxy's log-in page",
    "garbage": "JSON that is no tag list",
    "redirect_loop": "redirects in a circle",
    "empty": "a repository without tags",
    "many_tags": "10 000 tags",
    "endless_pages": "every page links to itself",
    "slow": "no answer until the registry stops",
    "tampered": "blobs that are not what their digest says",
}
"""What can be ordered, and what a client meets then."""
ALL_REPOSITORIES = "*"
_IMAGE_CONFIG = "application/vnd.oci.image.config.v1+json"


@dataclass(frozen=True)
class Fault:
    """A fault of `FAULTS`; with `times` only for so many requests, then it is healed."""

    name: str
    times: int | None = None

    def __post_init__(self) -> None:
        if self.name not in FAULTS:
            raise ValueError(f"no registry fault is named {self.name!r}; known: {', '.join(FAULTS)}")


@dataclass
class RehearsalRegistry:
    """The registry's content and behaviour; may be changed while it serves."""

    manifests: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Repository -> tag -> manifest."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    """Repository, or `ALL_REPOSITORIES` -> what is wrong with it."""
    page_size: int | None = None
    """Largest page; None gives what is asked for, 0 ignores `n` and gives everything at once."""
    anonymous_tokens: bool = True
    """Whether reading needs a token, which anybody gets (ghcr.io, Docker Hub)."""
    login: tuple[str, str] | None = None
    """User and password that the token service wants; None takes everybody."""
    requests: list[str] = field(default_factory=list)
    """Method and path of every request, in order."""
    _stopped: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    def push_chart(self, repository: str, chart: ChartSource, tag: str | None = None) -> str:
        """Add or overwrite a chart version; returns the manifest's digest."""
        config = json.dumps(chart.metadata()).encode()
        return self._push(
            repository, tag or chart.version.replace("+", "_"), config, CONFIG_MEDIA_TYPE, chart.archive()
        )

    def push_image(self, repository: str, tag: str) -> str:
        """Add an image tag: something beside the charts that is none."""
        config = json.dumps({"architecture": "amd64", "os": "linux", "config": {"Labels": {"tag": tag}}}).encode()
        return self._push(repository, tag, config, _IMAGE_CONFIG, None)

    def _push(self, repository: str, tag: str, config: bytes, media_type: str, archive: bytes | None) -> str:
        layers = [] if archive is None else [self._blob(archive, CHART_MEDIA_TYPE)]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_MEDIA_TYPE,
            "config": self._blob(config, media_type),
            "layers": layers,
        }
        content = json.dumps(manifest).encode()
        self.manifests.setdefault(repository, {})[tag] = content
        return _digest(content)

    def _blob(self, content: bytes, media_type: str) -> dict[str, object]:
        digest = _digest(content)
        self.blobs[digest] = content
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    def fault_of(self, repository: str) -> str | None:
        """The fault that this request meets; counts it."""
        key = repository if repository in self.faults else ALL_REPOSITORIES
        fault = self.faults.get(key)
        if fault is None:
            return None
        if fault.times is not None:
            if fault.times <= 1:
                del self.faults[key]
            else:
                self.faults[key] = Fault(fault.name, fault.times - 1)
        return fault.name

    def app(self) -> Starlette:
        """The registry as an ASGI application."""
        return Starlette(
            routes=[
                Route("/v2/", self._root),
                Route("/token", self._token, methods=["GET", "POST"]),
                Route("/v2/{name:path}/tags/list", self._tags),
                Route("/v2/{name:path}/manifests/{reference}", self._manifest),
                Route("/v2/{name:path}/blobs/{digest}", self._blob_content),
            ]
        )

    async def _root(self, request: Request) -> Response:
        return JSONResponse({})

    async def _token(self, request: Request) -> Response:
        self.requests.append(f"{request.method} {request.url.path}")
        if self.login is not None:
            expected = "Basic " + _base64(":".join(self.login))
            if request.headers.get("authorization") != expected:
                return _error(401, "UNAUTHORIZED", "authentication required")
        return JSONResponse({"token": self._good_token(request.query_params.get("scope", "")), "expires_in": 300})

    def _good_token(self, scope: str) -> str:
        return hashlib.sha256(f"rehearsal {scope}".encode()).hexdigest()

    async def _before(self, request: Request) -> Response | None:
        """The answer that faults or missing rights give instead of the content."""
        name = request.path_params["name"]
        self.requests.append(f"{request.method} {request.url.path}")
        fault = self.fault_of(name)
        if fault == "slow":
            await self._stopped.wait()
        simple = _FAULT_ANSWERS.get(fault or "")
        if simple is not None:
            status, code, message = simple
            return _error(status, code, message, {"retry-after": "1"} if status == 429 else None)
        if fault == "html":
            return HTMLResponse("<!doctype html><title>Sign in</title><p>Sign in to the network first.")
        if fault == "redirect_loop":
            return RedirectResponse(request.url.path, 307)
        if fault == "garbage":
            return JSONResponse({"tags": {"not": "a list"}})
        if fault == "empty":
            return JSONResponse({"name": name, "tags": None})
        if fault == "many_tags":
            return JSONResponse({"name": name, "tags": [f"v0.{n // 100}.{n % 100}" for n in range(10_000)]})
        if fault == "endless_pages":
            link = f'<{request.url.path}?{request.url.query}>; rel="next"'
            return JSONResponse({"name": name, "tags": ["v0.1.0"]}, headers={"link": link})
        scope = f"repository:{name}:pull"
        if fault == "unauthorized" or (
            self.anonymous_tokens and request.headers.get("authorization") != f"Bearer {self._good_token(scope)}"
        ):
            realm = f"{request.url.scheme}://{request.url.netloc}/token"
            challenge = f'Bearer realm="{realm}",service="rehearsal",scope="{scope}"'
            return _error(401, "UNAUTHORIZED", "authentication required", {"www-authenticate": challenge})
        if name not in self.manifests:
            return _error(404, "NAME_UNKNOWN", "repository name not known to registry")
        if fault == "tampered" and "digest" in request.path_params:
            return Response(b"something else", media_type="application/octet-stream")
        return None

    async def _tags(self, request: Request) -> Response:
        refused = await self._before(request)
        if refused is not None:
            return refused
        name = request.path_params["name"]
        tags = sorted(self.manifests[name])
        wanted = request.query_params.get("n", "")
        size = int(wanted) if wanted.isdecimal() else len(tags)
        if self.page_size is not None:
            size = min(size, self.page_size) if self.page_size else len(tags)
        last = request.query_params.get("last")
        rest = [tag for tag in tags if last is None or tag > last]
        page = rest[:size]
        link = {"link": f'</v2/{name}/tags/list?n={size}&last={page[-1]}>; rel="next"'} if rest[size:] else None
        return JSONResponse({"name": name, "tags": page}, headers=link)

    async def _manifest(self, request: Request) -> Response:
        refused = await self._before(request)
        if refused is not None:
            return refused
        tags = self.manifests[request.path_params["name"]]
        reference = request.path_params["reference"]
        content = tags.get(reference) or next((m for m in tags.values() if _digest(m) == reference), None)
        if content is None:
            return _error(404, "MANIFEST_UNKNOWN", "manifest unknown")
        headers = {"docker-content-digest": _digest(content)}
        return Response(content, media_type=MANIFEST_MEDIA_TYPE, headers=headers)

    async def _blob_content(self, request: Request) -> Response:
        refused = await self._before(request)
        if refused is not None:
            return refused
        content = self.blobs.get(request.path_params["digest"])
        if content is None:
            return _error(404, "BLOB_UNKNOWN", "blob unknown to registry")
        return Response(content, media_type="application/octet-stream")


_FAULT_ANSWERS: Mapping[str, tuple[int, str, str]] = {
    "forbidden": (403, "DENIED", "requested access to the resource is denied"),
    "not_found": (404, "NAME_UNKNOWN", "repository name not known to registry"),
    "rate_limited": (429, "TOOMANYREQUESTS", "rate limit exceeded"),
    "server_error": (500, "UNKNOWN", "unknown error"),
    "unavailable": (503, "UNAVAILABLE", "service unavailable"),
}


def _error(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"errors": [{"code": code, "message": message}]}, status, headers)


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode("ascii")


def lab_registry() -> RehearsalRegistry:
    """The registry with the lab's three charts in all their versions, and the other tags that live beside them."""
    registry = RehearsalRegistry()
    for repository, charts in CHARTS.items():
        for chart in charts:
            registry.push_chart(repository, chart)
        by_version = {chart.version: chart for chart in charts}
        for tag, version in FURTHER_TAGS.get(repository, {}).items():
            registry.push_chart(repository, by_version[version], tag)
        for tag in IMAGES.get(repository, ()):
            registry.push_image(repository, tag)
    return registry


def mirrors(url: str) -> dict[str, str]:
    """Settings' mirrors that send the lab's chart references to a registry at `url`."""
    return {"ghcr.io": url, "docker.io": url}


class _Server(uvicorn.Server):
    """Says when it is ready, so that nobody has to poll, and lets go of waiting requests when it stops."""

    def __init__(self, config: uvicorn.Config, registry: RehearsalRegistry) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        self._registry = registry
        self.loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.ready.set()

    def stop(self) -> None:
        self.should_exit = True
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._registry._stopped.set)


@contextmanager
def serve(registry: RehearsalRegistry, port: int = 0) -> Iterator[str]:
    """Serve on 127.0.0.1 in a thread until the block ends; gives the base URL.

    Raises OSError when the port is taken, RuntimeError when the server does not come up in 10 s.
    """
    registry._stopped = asyncio.Event()
    with socket.create_server(("127.0.0.1", port)) as listener:
        config = uvicorn.Config(registry.app(), lifespan="off", ws="none", log_level="critical", access_log=False)
        server = _Server(config, registry)
        thread = threading.Thread(target=server.run, args=([listener],), name="rehearsal-registry", daemon=True)
        thread.start()
        try:
            if not server.ready.wait(10):
                raise RuntimeError("the rehearsal's registry did not start within 10 s")
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.stop()
            thread.join(10)


def main(argv: Sequence[str] | None = None) -> None:
    """Serve the lab's registry until interrupted; prints its URL on the first line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="[REPOSITORY=]NAME", help=f"one of: {', '.join(FAULTS)}"
    )
    options = parser.parse_args(argv)
    registry = lab_registry()
    for entry in options.fault:
        repository, equals, name = entry.rpartition("=")
        try:
            registry.faults[repository if equals else ALL_REPOSITORIES] = Fault(name)
        except ValueError as error:
            parser.error(str(error))
    try:
        with serve(registry, options.port) as url:
            print(url, flush=True)
            threading.Event().wait()
    except OSError as error:
        parser.error(f"port {options.port} of 127.0.0.1 cannot be used: {error.strerror}")
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
