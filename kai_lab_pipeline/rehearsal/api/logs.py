"""pods/log: passed on to the kubelet of the pod's node, as the real server does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from kai_lab_pipeline.rehearsal.api.errors import ApiError, Obj, bad_request, internal
from kai_lab_pipeline.rehearsal.store import Store

if TYPE_CHECKING:
    import httpx

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_PASSED_ON = ("follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes")


def container_of(pod: Obj, asked: str) -> str:
    """Which container's log is meant. Raises: ApiError 400 when that is not clear or there is none of that name."""
    name = pod["metadata"]["name"]
    spec = pod["spec"]
    everyone = [c["name"] for kind in ("initContainers", "containers") for c in spec.get(kind) or ()]
    if asked:
        if asked not in everyone:
            raise bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    default = (pod["metadata"].get("annotations") or {}).get(_DEFAULT_CONTAINER)
    if default in everyone:
        return str(default)
    main = [c["name"] for c in spec["containers"]]
    if len(main) == 1:
        return str(main[0])
    raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{' '.join(main)}]")


class Logs:
    """Fetches container logs from kubelets."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def open(self, pod: Obj, query: dict[str, str]) -> AsyncIterator[bytes] | None:
        """The log as it comes; None for a pod that is on no node yet, whose log is empty.

        Raises: ApiError with what the kubelet says, or 500 when there is no kubelet to ask.
        """
        container = container_of(pod, query.get("container", ""))
        node_name = pod["spec"].get("nodeName")
        if not node_name:
            return None
        address = self._kubelet(node_name)
        metadata = pod["metadata"]
        path = f"/containerLogs/{metadata['namespace']}/{metadata['name']}/{container}"
        asked = urlencode({key: query[key] for key in _PASSED_ON if query.get(key)})
        url = f"https://{address}{path}" + (f"?{asked}" if asked else "")
        import httpx

        if self._client is None:
            # Kubelets of the rehearsal certify themselves, as kind's do; they are on the loopback.
            self._client = httpx.AsyncClient(verify=False, trust_env=False, timeout=httpx.Timeout(10, read=None))
        stack = AsyncExitStack()
        try:
            response = await stack.enter_async_context(self._client.stream("GET", url))
            if response.status_code >= 300:
                text = (await response.aread()).decode(errors="replace").strip()
                await stack.aclose()
                raise _refusal(response.status_code, text)
        except httpx.HTTPError as error:
            await stack.aclose()
            cause = "connect: connection refused" if isinstance(error, httpx.ConnectError) else str(error)
            raise ApiError(500, "", f'Get "{url}": dial tcp {address}: {cause}') from error
        return _chunks(response, stack)

    def _kubelet(self, name: str) -> str:
        stored = self._store.get("nodes", ("", name))
        if stored is None:
            raise ApiError(404, "NotFound", f'nodes "{name}" not found', {"name": name, "kind": "nodes"})
        status = stored.obj.get("status") or {}
        port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
        addresses = {a["type"]: a["address"] for a in status.get("addresses") or ()}
        if not port or "InternalIP" not in addresses:
            raise internal(f"no preferred addresses found; known addresses: {list(addresses.values())}")
        return f"{addresses['InternalIP']}:{port}"


async def _chunks(response: httpx.Response, stack: AsyncExitStack) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_raw():
            yield chunk
    finally:
        await stack.aclose()


def _refusal(code: int, text: str) -> ApiError:
    if code == 400:
        return bad_request(text)
    if code == 404:
        return ApiError(404, "NotFound", f"the server could not find the requested resource ({text})")
    return internal(text) if code == 500 else ApiError(code, "", text)
