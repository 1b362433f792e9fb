"""One HTTP exchange with a registry: redirects, proxies, certificates, sizes and one deadline over everything."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from kai_lab_pipeline.clients.loopback import is_loopback
from kai_lab_pipeline.clients.oci_errors import RegistryAnswerError, from_transport, timed_out
from kai_lab_pipeline.lab.errors import WrongUse

_MAX_REDIRECTS = 5
_MAX_DOCUMENT = 32 * 1024 * 1024
_MAX_DOWNLOAD = 64 * 1024 * 1024


class Errand:
    """What is being done, where, and until when: the context of every error on the way."""

    def __init__(self, what: str, where: str, limit_s: float) -> None:
        self.what = what
        self.where = where
        self.limit_s = limit_s
        self._end = time.monotonic() + limit_s

    def left(self) -> float:
        """Seconds until the deadline; negative when it has passed."""
        return self._end - time.monotonic()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: httpx.Headers
    body: bytes
    url: httpx.URL

    def beginning(self) -> str:
        """The first words of the body, on one line."""
        return re.sub(r"[\x00-\x1f\x7f\s]+", " ", self.body[:160].decode("utf-8", "replace")).strip()


def origin(url: httpx.URL) -> tuple[str, str, int | None]:
    """What must be equal for credentials and page links to be carried on."""
    return url.scheme, url.host, url.port


class Transport:
    """Sends requests. Follows redirects itself, so that credentials stay with the host they are for."""

    def __init__(self, ca_file: Path | None, timeout_s: float) -> None:
        self._ca_file = ca_file
        self._timeout_s = timeout_s
        self._clients: dict[tuple[bool, bool], httpx.Client] = {}

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def exchange(
        self,
        errand: Errand,
        method: str,
        url: str,
        headers: Mapping[str, str],
        *,
        sink: IO[bytes] | None = None,
        form: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request and follow its redirects; the body of a success goes to `sink` where one is given.

        Raises RegistryError where no answer came or an answer cannot be followed, never for a status.
        """
        sent = dict(headers)
        try:
            target = httpx.URL(url)
            for _ in range(_MAX_REDIRECTS + 1):
                answer = self._send(errand, method, target, sent, sink, form)
                location = answer.headers.get("location")
                if answer.status not in (301, 302, 303, 307, 308) or not location:
                    return answer
                following = target.join(location)
                if following.scheme != "https" and following.scheme != target.scheme:
                    raise RegistryAnswerError(
                        f"{errand.what}: the registry redirects to an address that is not safe.",
                        where=errand.where,
                        seen=f"from {target.scheme}://{target.host} to {following.scheme}://{following.host}",
                        next_step="Check the registry's address; a proxy's log-in page redirects like that too.",
                    )
                if origin(following) != origin(target):
                    sent.pop("Authorization", None)
                target = following
        except httpx.InvalidURL as error:
            raise RegistryAnswerError(
                f"{errand.what}: the registry names no usable address.", where=errand.where, seen=str(error)
            ) from error
        raise RegistryAnswerError(
            f"{errand.what}: the registry redirects in a circle.",
            where=errand.where,
            seen=f"more than {_MAX_REDIRECTS} redirects, the last to {target.host}{target.path}",
            next_step="Check the registry's or mirror's address (http against https, a missing path).",
        )

    def _send(
        self,
        errand: Errand,
        method: str,
        url: httpx.URL,
        headers: Mapping[str, str],
        sink: IO[bytes] | None,
        form: Mapping[str, str] | None,
    ) -> Answer:
        if errand.left() <= 0:
            raise timed_out(what=errand.what, where=errand.where, seen=f"the limit of {errand.limit_s:g} s is used up")
        client = self._client(url)
        limit = _MAX_DOCUMENT if sink is None else _MAX_DOWNLOAD
        size = 0
        kept: list[bytes] = []
        if sink is not None:
            sink.seek(0)
            sink.truncate()
        timeout = min(self._timeout_s, errand.left())
        try:
            with client.stream(method, url, headers=dict(headers), data=form, timeout=timeout) as response:
                for chunk in response.iter_bytes():
                    size += len(chunk)
                    if errand.left() <= 0:
                        seen = f"{size} bytes in {errand.limit_s:g} s"
                        raise timed_out(what=errand.what, where=errand.where, seen=seen)
                    if size > limit:
                        raise RegistryAnswerError(
                            f"{errand.what}: the answer is larger than {limit // 2**20} MiB.",
                            where=errand.where,
                            next_step="No chart and no tag list is that large: check the address.",
                        )
                    if sink is not None and response.status_code == 200:
                        sink.write(chunk)
                    else:
                        kept.append(chunk)
                return Answer(response.status_code, response.headers, b"".join(kept), response.url)
        except httpx.HTTPError as error:
            raise from_transport(error, what=errand.what, where=errand.where) from error

    def _client(self, url: httpx.URL) -> httpx.Client:
        """Proxies from the environment, except for this machine: no proxy can reach our loopback."""
        local, secure = is_loopback(url.host), url.scheme == "https"
        if (local, secure) not in self._clients:
            verify: ssl.SSLContext | bool = self._trust() if secure or not local else False
            try:
                self._clients[local, secure] = httpx.Client(verify=verify, trust_env=not local)
            except (ValueError, ImportError) as error:
                raise WrongUse(
                    "The proxy in the environment cannot be used.",
                    seen=re.sub(r"//[^/@\s]+@", "//***@", str(error)),
                    next_step="Set HTTP_PROXY and HTTPS_PROXY to http://host:port, and NO_PROXY where needed.",
                ) from error
        return self._clients[local, secure]

    def _trust(self) -> ssl.SSLContext:
        context = httpx.create_ssl_context()
        context.load_default_certs()
        if self._ca_file is not None:
            try:
                context.load_verify_locations(cafile=self._ca_file)
            except (OSError, ssl.SSLError) as error:
                raise WrongUse(
                    "The certificates in ca_file cannot be read.",
                    where=str(self._ca_file),
                    seen=str(error),
                    next_step="Name a PEM file (ca_file in lab.toml, KAI_LAB_CA_FILE).",
                ) from error
        return context
