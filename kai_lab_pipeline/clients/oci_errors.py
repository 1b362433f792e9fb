"""What can go wrong between us and an OCI registry, told apart, each with what to do about it."""

from __future__ import annotations

import email.utils
import json
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone

import httpx

from kai_lab_pipeline.lab.errors import LabError


class RegistryError(LabError):
    """A registry could not be asked, or gave no usable answer."""


class RegistryUnauthorized(RegistryError):
    """401, or the token service gave no token."""


class RegistryForbidden(RegistryError):
    """403: known to the registry, and not allowed."""


class RegistryNotFound(RegistryError):
    """404: no such repository, tag or blob."""


class RegistryRateLimited(RegistryError):
    """429. `retry_after` is what the registry asked for, in seconds, None when it did not say."""

    retry_after: float | None = None


class RegistryServerError(RegistryError):
    """5xx."""

    status = 500
    retry_after: float | None = None


class RegistryTimeout(RegistryError):
    """No answer in time."""


class RegistryUnreachable(RegistryError):
    """No connection: refused, reset, no route, or the proxy failed."""


class RegistryNameError(RegistryUnreachable):
    """The host's name cannot be resolved."""


class RegistryTlsError(RegistryUnreachable):
    """The certificate is not trusted, or the handshake failed."""


class RegistryPlainHttp(RegistryTlsError):
    """The other side speaks plain HTTP where HTTPS was expected."""


class RegistryAnswerError(RegistryError):
    """Something answered, but not as a registry: HTML, a redirect loop, a broken list."""


class NotAChart(RegistryAnswerError):
    """The tag names an image or another artefact, not a helm chart."""


class DigestMismatch(RegistryAnswerError):
    """What was received is not what its digest says."""


def from_status(
    status: int, headers: Mapping[str, str], body: bytes, *, what: str, where: str, hint: str = ""
) -> RegistryError:
    """The error of an HTTP status that is no success. `hint` is what is known about credentials."""
    seen = f"HTTP {status}" + (f": {detail}" if (detail := _detail(body)) else "")
    if status == 401:
        step = "The repository is private, or there is none of that name: log in with `docker login`, or correct it."
        return RegistryUnauthorized(
            f"{what}: the registry wants other credentials.", where=where, seen=seen, next_step=hint or step
        )
    if status == 403:
        step = "Ask for read access, or check the name: some registries say 'denied' for what is not there."
        return RegistryForbidden(f"{what}: access is denied.", where=where, seen=seen, next_step=hint or step)
    if status == 404:
        return RegistryNotFound(
            f"{what}: the registry has no such repository or tag.",
            where=where,
            seen=seen,
            next_step="Check the chart reference in lab.toml, and that a mirror holds it.",
        )
    if status == 429:
        limited = RegistryRateLimited(
            f"{what}: the registry limits the rate of requests.",
            where=where,
            seen=seen,
            next_step="Try again later, log in (`docker login` raises the limit), or set a mirror.",
            transient=True,
        )
        limited.retry_after = retry_after(headers)
        return limited
    if status >= 500:
        failed = RegistryServerError(
            f"{what}: the registry itself failed.",
            where=where,
            seen=seen,
            next_step="Try again later; the registry's status page may say more.",
            transient=True,
        )
        failed.status = status
        failed.retry_after = retry_after(headers)
        return failed
    return RegistryAnswerError(
        f"{what}: unexpected answer.", where=where, seen=seen, next_step="Is that address an OCI registry?"
    )


def from_transport(error: httpx.HTTPError, *, what: str, where: str) -> RegistryError:
    """The error of a request that got no HTTP answer."""
    seen = _clean(str(error)) or type(error).__name__
    causes = list(_chain(error))
    if isinstance(error, httpx.TimeoutException) or any(isinstance(cause, TimeoutError) for cause in causes):
        return timed_out(what=what, where=where, seen=seen)
    if isinstance(error, httpx.ProxyError):
        step = "Check HTTP_PROXY, HTTPS_PROXY and NO_PROXY."
        return RegistryUnreachable(f"{what}: the proxy failed.", where=where, seen=seen, next_step=step, transient=True)
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return RegistryNameError(
            f"{what}: the registry's name cannot be resolved.",
            where=where,
            seen=seen,
            next_step="Check the network and DNS; behind a proxy set HTTPS_PROXY, offline set a mirror in lab.toml.",
            transient=True,
        )
    tls = next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None)
    if isinstance(tls, ssl.SSLCertVerificationError):
        return RegistryTlsError(
            f"{what}: the registry's certificate is not trusted.",
            where=where,
            seen=seen,
            next_step="Set ca_file in lab.toml (KAI_LAB_CA_FILE) to the PEM file of its certificate authority.",
        )
    if tls is not None and re.search(r"WRONG_VERSION_NUMBER|HTTP_REQUEST|RECORD_LAYER_FAILURE", str(tls), re.I):
        return RegistryPlainHttp(
            f"{what}: the registry speaks plain HTTP, not HTTPS.",
            where=where,
            seen=seen,
            next_step="If that is meant, name it as a mirror with http:// in lab.toml; nothing falls back by itself.",
        )
    if tls is not None:
        return RegistryTlsError(
            f"{what}: the TLS handshake failed.",
            where=where,
            seen=seen,
            next_step="Check that the address is right and that no proxy breaks TLS open.",
        )
    if isinstance(error, httpx.NetworkError):
        return RegistryUnreachable(
            f"{what}: no connection to the registry.",
            where=where,
            seen=seen,
            next_step="Check that it runs and that the address and port are right.",
            transient=True,
        )
    return RegistryAnswerError(
        f"{what}: the answer is not HTTP as it should be.",
        where=where,
        seen=seen,
        next_step="Is that address a registry, and is http:// or https:// right?",
        transient=isinstance(error, httpx.RemoteProtocolError),
    )


def timed_out(*, what: str, where: str, seen: str) -> RegistryTimeout:
    return RegistryTimeout(
        f"{what}: no answer in time.",
        where=where,
        seen=seen,
        next_step="Try again; if it stays, check proxy and firewall, or set a mirror.",
        transient=True,
    )


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds to wait by the Retry-After header (seconds or an HTTP date); None when absent or not understood."""
    value = headers.get("retry-after", "").strip()
    if value.isdecimal():
        return float(value[:9])
    try:
        at = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=timezone.utc)
    return max(0.0, (at - (now or datetime.now(timezone.utc))).total_seconds())


def _detail(body: bytes) -> str:
    """The registry's own words: errors[].code and message of the distribution API, else the beginning of the body."""
    try:
        errors = json.loads(body)["errors"]
        return _clean("; ".join(": ".join(filter(None, (e.get("code"), e.get("message")))) for e in errors))
    except (ValueError, KeyError, TypeError, AttributeError):
        return _clean(body[:400].decode("utf-8", "replace"))


def _clean(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f\s]+", " ", text).strip()[:200]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__
