"""The official client's connections to one API server: it loads the kubeconfig and carries credentials and TLS.

Where it differs from kubectl and helm, theirs is the rule, so that all three reach the same server as the same user: a
proxy of the environment is left out for this machine's own addresses, and who the kubeconfig's user is to act ``as`` is
told to the server.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from kai_lab_pipeline.clients.kubeconfig import Kubeconfig
from kai_lab_pipeline.clients.loopback import is_loopback
from kai_lab_pipeline.lab.errors import LabError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration

CONNECTIONS = 16
"""Kept connections: one per watched resource, and one for the rest."""
CONNECT_TIMEOUT_S = 5.0
_HEADER_SIGNS = "!#$&'*+-.^_`|~"
"""What a header's name may hold besides letters and digits; anything else is escaped, as is ``%``."""


class Connection:
    """What a context of a kubeconfig file says about reaching its server, and the connections to it."""

    def __init__(self, kubeconfig: Path, context: str, *, where: str) -> None:
        """Raises LabError for a kubeconfig that cannot be used. Nothing is sent yet."""
        # Imported here: half a second that --help and offline judging must not pay.
        from kubernetes.client import ApiClient

        self._client: ApiClient = ApiClient(configuration=_configuration(kubeconfig, context, where))
        self._impersonation = _impersonation(Kubeconfig([kubeconfig]).user(context))
        # The client's own socket options leave Nagle's algorithm on: 40 ms a request on loopback.
        options = self._client.rest_client.pool_manager.connection_pool_kw
        options["maxsize"] = CONNECTIONS
        options["socket_options"] = [
            *(options.get("socket_options") or ()),
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        ]

    def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        read_timeout_s: float,
        stream: bool,
    ) -> Any:
        """One exchange, whatever its status is. Raises urllib3's HTTPError or OSError where no answer came."""
        import urllib3

        configuration = self._client.configuration
        sent = urllib3.HTTPHeaderDict(headers)
        for auth in configuration.auth_settings().values():
            if auth["in"] == "header" and auth["value"]:
                sent[auth["key"]] = auth["value"]
        for name, value in self._impersonation:
            sent.add(name, value)
        return self._client.rest_client.pool_manager.request(
            method,
            f"{configuration.host}{path}",
            headers=sent,
            body=body,
            timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=read_timeout_s),
            retries=False,
            preload_content=not stream,
        )


def _impersonation(user: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The headers of a kubeconfig user's ``as`` fields, as client-go sends them (v0.34)."""
    headers = [("Impersonate-User", user.get("as")), ("Impersonate-Uid", user.get("as-uid"))]
    headers += [("Impersonate-Group", group) for group in user.get("as-groups") or ()]
    for key, values in (user.get("as-user-extra") or {}).items():
        headers += [(f"Impersonate-Extra-{quote(key, safe=_HEADER_SIGNS)}", value) for value in values]
    return [(name, str(value)) for name, value in headers if value]


def _configuration(kubeconfig: Path, context: str, where: str) -> Configuration:
    from kubernetes import config
    from kubernetes.client import Configuration
    from kubernetes.config.config_exception import ConfigException

    found = Configuration()
    found.proxy = None
    try:
        config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=str(kubeconfig), context=context, client_configuration=found
        )
    except (ConfigException, OSError, ValueError) as error:
        raise LabError(
            "The kubeconfig cannot be used",
            where=where,
            seen=str(error).splitlines()[0] if str(error) else type(error).__name__,
            next_step="Correct that kubeconfig; 'kubectl config view' shows it.",
        ) from error
    if found.proxy is None and not is_loopback(urlsplit(found.host).hostname or ""):
        found.proxy = Configuration(host=found.host).proxy  # the environment's
    return found
