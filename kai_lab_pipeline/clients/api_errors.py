"""Errors of the Kubernetes API: what a server answered, whether it passes by itself, and what is no API server."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

from kai_lab_pipeline.lab.errors import LabError, is_about_the_request


class ApiError(LabError):
    """The API server answered with an error Status, or could not be reached (`code` 0)."""

    def __init__(
        self,
        what: str,
        *,
        code: int,
        reason: str,
        message: str,
        where: str = "",
        next_step: str = "",
        transient: bool = False,
    ):
        self.code = code
        self.reason = reason
        self.message = message
        super().__init__(
            what,
            where=where,
            seen=message,
            next_step=next_step,
            transient=transient,
            finding=is_about_the_request(code),
        )

    def status(self) -> dict[str, Any]:
        """The error as a Status object, as a dry-run's answer is kept in the evidence."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


class NotFound(ApiError):
    """404: the object is absent (or its kind: a CRD that is not there, or not yet)."""


class Conflict(ApiError):
    """409: somebody else changed or owns it."""


class Forbidden(ApiError):
    """403: refused by admission (a webhook's denial, a missing RuntimeClass) or by rights."""


class Invalid(ApiError):
    """422: a field's value is not allowed or not changeable."""


class Unreachable(ApiError):
    """No answer from the API server, or one that is not an API server's."""


UNAUTHORIZED = 401
_BY_CODE: Mapping[int, type[ApiError]] = {403: Forbidden, 404: NotFound, 409: Conflict, 422: Invalid}
_WEBHOOK_NOT_SERVING = (
    "connect: connection refused",
    "no endpoints available for service",
    "EOF",
    "context deadline exceeded",
)


def is_transient(code: int, message: str) -> bool:
    """Whether an API error is known to pass by itself: a webhook that does not serve yet, or an overloaded server.

    A denial, an unknown certificate or a bad value is not: those fail at once. Source: KAI v0.17.0 and Kubernetes v1.34
    as measured, where the webhook's window after installation gives exactly these causes.
    """
    if code in (0, 429, 503, 504):
        return True
    if code == 500 and "failed calling webhook" in message:
        return any(cause in message for cause in _WEBHOOK_NOT_SERVING)
    return False


NOT_SERVED = ("could not find the requested resource", "404 page not found")
"""How an API server says that it does not serve a kind: of a group it knows, and of a group it does not."""


def refused(status: Mapping[str, Any], what: str, where: str) -> ApiError:
    """The error of a Status."""
    code = int(status.get("code") or 0)
    message = str(status.get("message", ""))
    return _BY_CODE.get(code, ApiError)(
        f"The API server refused to {what} ({code} {status.get('reason', '')})".replace(" )", ")"),
        code=code,
        reason=str(status.get("reason", "")),
        message=message,
        where=where,
        next_step="Log in again, as you do before kubectl, then run it again." if code == UNAUTHORIZED else "",
        transient=is_transient(code, message),
    )


def refused_with(body: bytes, code: int, what: str, where: str, *, built_in: bool) -> ApiError:
    """The error of an HTTP answer. `built_in`: every API server knows what was asked for.

    A 404 says that something is absent only where an API server says it, with a Status; of a group that nobody has
    installed it says so in plain text (Kubernetes v1.34). Anything else that refuses is a gateway or a proxy.
    """
    text = body.decode("utf-8", "replace").strip()
    try:
        status = json.loads(text)
    except ValueError:
        status = None
    if isinstance(status, dict) and status.get("kind") == "Status":
        return refused(status, what, where)
    if code in _BY_CODE and (built_in or text != NOT_SERVED[1]):
        return Unreachable(
            f"No Kubernetes API server answered when asked to {what}",
            code=0,
            reason=f"HTTP {code}",
            message=f"HTTP {code}: {text[:300] or 'nothing more'}",
            where=where,
            next_step="Check the server's address in the kubeconfig: a gateway or a proxy answers there.",
        )
    return refused({"code": code, "message": text[:1000]}, what, where)


def unanswered(error: Exception, what: str, where: str) -> Unreachable:
    """The error of a connection. A certificate that is not accepted will not be the next time either."""
    tls = next((cause for cause in _causes(error) if isinstance(cause, ssl.SSLError)), None)
    if tls is None or isinstance(tls, _TLS_CUT_OFF):
        said, transient = f"The API server did not answer when asked to {what}", True
    else:
        why = getattr(tls, "verify_message", "") or getattr(tls, "reason", "") or "no handshake"
        said, transient = f"TLS with the API server failed ({why}) when asked to {what}", False
    return Unreachable(
        said,
        code=0,
        reason=type(error).__name__,
        message=str(error),
        where=where,
        next_step="" if transient else "Get the cluster's kubeconfig anew, and check the server's address in it.",
        transient=transient,
    )


_TLS_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""A server that stops or starts ends the handshake in the middle."""


def _causes(error: BaseException) -> Iterator[BaseException]:
    yield error
    for cause in (*error.args, error.__cause__):
        if isinstance(cause, BaseException):
            yield from _causes(cause)
