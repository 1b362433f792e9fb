"""Errors as the Kubernetes API says them: every failure is a `Status` object with a code, a reason and details."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

Obj: TypeAlias = dict[str, Any]
"""A Kubernetes object as decoded from JSON."""


@dataclass(frozen=True)
class Cause:
    """One reason why an object was refused, with the field it is about."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def as_status(self) -> Obj:
        out: Obj = {"reason": self.reason, "message": self.message}
        return {**out, "field": self.field} if self.field else out


class ApiError(Exception):
    """A request the API server refuses; `status()` is the body a client gets."""

    def __init__(self, code: int, reason: str, message: str, details: Obj | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def status(self) -> Obj:
        body: Obj = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if not self.reason:
            del body["reason"]
        if self.details is not None:
            body["details"] = self.details
        return body


def _details(name: str, group: str, kind: str, **more: Any) -> Obj:
    details: Obj = {"name": name, "group": group, "kind": kind, **more}
    return {key: value for key, value in details.items() if value not in ("", None)}


def qualified(group: str, plural: str) -> str:
    """`deployments.apps`, or just `pods` for the core group."""
    return f"{plural}.{group}" if group else plural


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(group: str, plural: str, name: str, why: str, causes: list[Obj] | None = None) -> ApiError:
    subject = f'{qualified(group, plural)} "{name}"' if name else qualified(group, plural)
    details = _details(name, group, plural, causes=causes)
    return ApiError(403, "Forbidden", f"{subject} is forbidden: {why}", details)


def not_found(group: str, plural: str, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{qualified(group, plural)} "{name}" not found', _details(name, group, plural))


def method_not_allowed(method: str) -> ApiError:
    return ApiError(
        405, "MethodNotAllowed", f"the server does not allow this method on the requested resource ({method})", {}
    )


def already_exists(group: str, plural: str, name: str, *, being_deleted: bool = False) -> ApiError:
    prefix = "object is being deleted: " if being_deleted else ""
    message = f'{prefix}{qualified(group, plural)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, _details(name, group, plural))


def conflict(group: str, plural: str, name: str, why: str | None = None) -> ApiError:
    because = why or "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {qualified(group, plural)} "{name}": {because}'
    return ApiError(409, "Conflict", message, _details(name, group, plural))


def apply_conflict(conflicts: list[tuple[str, str]]) -> ApiError:
    """Server-side apply met fields of other managers: pairs of (manager as said to people, field path)."""
    managers: dict[str, list[str]] = {}
    for manager, field in conflicts:
        managers.setdefault(manager, []).append(field)
    lines = [
        f"conflict with {who}: {fields[0]}"
        if len(fields) == 1
        else "\n".join([f"conflicts with {who}:", *(f"- {f}" for f in fields)])
        for who, fields in sorted(managers.items())
    ]
    noun = "conflict" if len(conflicts) == 1 else "conflicts"
    message = f"Apply failed with {len(conflicts)} {noun}: " + "\n".join(lines)
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": field}
        for who, field in conflicts
    ]
    return ApiError(409, "Conflict", message, {"causes": causes})


def expired(message: str, metadata: Obj | None = None) -> ApiError:
    error = ApiError(410, "Expired", message)
    if metadata is not None:
        plain = error.status()
        error.status = lambda: {**plain, "metadata": metadata}  # type: ignore[method-assign]
    return error


def unsupported_media_type(accepted: Iterable[str] | None = None) -> ApiError:
    """415; without `accepted`, in the few words that built-in kinds have for an unknown kind of patch."""
    if accepted is None:
        return ApiError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
    return ApiError(415, "UnsupportedMediaType", message, {})


def invalid(group: str, kind: str, name: str, causes: list[Cause]) -> ApiError:
    """422 in the words of field.ErrorList: one cause inline, several in brackets."""
    said = [f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes]
    body = said[0] if len(said) == 1 else "[" + ", ".join(said) + "]"
    qualified_kind = f"{kind}.{group}" if group else kind
    details = _details(name, group, kind, causes=[cause.as_status() for cause in causes])
    return ApiError(422, "Invalid", f'{qualified_kind} "{name}" is invalid: {body}', details)


def internal(message: str) -> ApiError:
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})


def too_large_resource_version(asked: int, current: int) -> ApiError:
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return ApiError(504, "Timeout", message, details)
