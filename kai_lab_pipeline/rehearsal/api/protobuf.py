"""Protobuf as typed Go clients send it: enough kinds for `kubectl create namespace|configmap|secret|serviceaccount`,
`kubectl auth can-i|whoami` and `kubectl drain`. Everything else is answered with 415, and such clients say so.

Field numbers: generated.proto of k8s.io/api and k8s.io/apimachinery v0.34.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, TypeAlias

from kai_lab_pipeline.rehearsal.api.errors import Obj, bad_request

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
OPENAPI_V2_MEDIA_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

_MAGIC = b"k8s\x00"

Message: TypeAlias = "dict[int, tuple[str, Any]]"
"""Field number to (name, type); a type is string, bytes, int, bool, another message, or one of those in a list
(repeated) or in a one-key dict (map from string)."""

_OWNER: Message = {
    1: ("kind", "string"), 3: ("name", "string"), 4: ("uid", "string"), 5: ("apiVersion", "string"),
    6: ("controller", "bool"), 7: ("blockOwnerDeletion", "bool"),
}  # fmt: skip
_METADATA: Message = {
    1: ("name", "string"), 2: ("generateName", "string"), 3: ("namespace", "string"), 5: ("uid", "string"),
    6: ("resourceVersion", "string"), 11: ("labels", {"": "string"}), 12: ("annotations", {"": "string"}),
    13: ("ownerReferences", [_OWNER]), 14: ("finalizers", ["string"]),
}  # fmt: skip
_NAMED: Message = {1: ("name", "string")}
_PRECONDITIONS: Message = {1: ("uid", "string"), 2: ("resourceVersion", "string")}
_DELETE_OPTIONS: Message = {
    1: ("gracePeriodSeconds", "int"), 2: ("preconditions", _PRECONDITIONS), 3: ("orphanDependents", "bool"),
    4: ("propagationPolicy", "string"), 5: ("dryRun", ["string"]),
}  # fmt: skip
_ACCESS: Message = {
    1: ("namespace", "string"), 2: ("verb", "string"), 3: ("group", "string"), 4: ("version", "string"),
    5: ("resource", "string"), 6: ("subresource", "string"), 7: ("name", "string"),
}  # fmt: skip
_DATA = {"": "string"}
_ENCODED = {"": "bytes"}
_PATH: Message = {1: ("path", "string"), 2: ("verb", "string")}
_MESSAGES: dict[str, Message] = {
    "Namespace": {1: ("metadata", _METADATA), 2: ("spec", {1: ("finalizers", ["string"])})},
    "ConfigMap": {
        1: ("metadata", _METADATA),
        2: ("data", _DATA),
        3: ("binaryData", _ENCODED),
        4: ("immutable", "bool"),
    },
    "Secret": {
        1: ("metadata", _METADATA),
        2: ("data", _ENCODED),
        3: ("type", "string"),
        4: ("stringData", _DATA),
        5: ("immutable", "bool"),
    },
    "ServiceAccount": {
        1: ("metadata", _METADATA),
        2: ("secrets", [{3: ("name", "string")}]),
        3: ("imagePullSecrets", [_NAMED]),
    },
    "SelfSubjectAccessReview": {
        1: ("metadata", _METADATA),
        2: ("spec", {1: ("resourceAttributes", _ACCESS), 2: ("nonResourceAttributes", _PATH)}),
    },
    "SelfSubjectRulesReview": {1: ("metadata", _METADATA), 2: ("spec", {1: ("namespace", "string")})},
    "SelfSubjectReview": {1: ("metadata", _METADATA)},
    "Eviction": {1: ("metadata", _METADATA), 2: ("deleteOptions", _DELETE_OPTIONS)},
    "DeleteOptions": _DELETE_OPTIONS,
}


def decode(body: bytes) -> Obj | None:
    """The object in a protobuf body, or None for a kind this module does not read.

    Raises: ApiError 400 when the bytes are no such message.
    """
    try:
        if not body.startswith(_MAGIC):
            raise ValueError("the bytes do not start with k8s")
        envelope = dict(_fields(body[len(_MAGIC) :]))
        names = {number: value.decode() for number, value in _fields(envelope[1])}
        message = _MESSAGES.get(names[2])
        if message is None:
            return None
        return {"apiVersion": names[1], "kind": names[2], **_read(envelope.get(2, b""), message)}
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        raise bad_request(f"the object provided is unrecognized: {error}") from error


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, integer or bytes) of a message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError("a field is longer than its message")
            yield number, data[at : at + length]
            at += length
        else:
            raise ValueError(f"unexpected wire type {wire}")


def _read(data: bytes, message: Message) -> Obj:
    found: Obj = {}
    for number, value in _fields(data):
        if number not in message:
            continue
        name, kind = message[number]
        if isinstance(kind, list):
            found.setdefault(name, []).append(_value(value, kind[0]))
        elif isinstance(kind, dict) and "" in kind:
            pair = dict(_fields(value))
            found.setdefault(name, {})[pair.get(1, b"").decode()] = _value(pair.get(2, b""), kind[""])
        else:
            found[name] = _value(value, kind)
    # Go writes every string, also empty ones, which JSON leaves out.
    return {name: value for name, value in found.items() if value != ""}


def _value(value: Any, kind: Any) -> Any:
    if isinstance(kind, dict):
        return _read(value, kind)
    if kind == "string":
        return value.decode()
    if kind == "bytes":
        return base64.b64encode(value).decode()
    return bool(value) if kind == "bool" else int(value)


def empty_openapi_v2() -> bytes:
    """An OpenAPI v2 document without definitions.

    kubectl asks for this older format, in protobuf only, about kinds the v3 documents do not have; it then goes on
    to say that there is no such kind.
    """
    info = b"\x0a\x0aKubernetes\x12\x07v1.34.0"
    return b"\x0a\x032.0\x12" + bytes([len(info)]) + info
