"""Objects of one storage seen through several versions: conversion between what is stored and what is asked for."""

from __future__ import annotations

from kai_lab_pipeline.rehearsal.api.errors import Obj
from kai_lab_pipeline.rehearsal.api.resources import Resource
from kai_lab_pipeline.rehearsal.store import Stored, encode

_EVENT_FIELDS = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_CORE_FIELDS = {new: core for core, new in _EVENT_FIELDS.items()}


def stored_api_version(resource: Resource) -> str:
    if resource.storage == "events":
        return "v1"
    return f"{resource.group}/{resource.storage_version}" if resource.group else resource.storage_version


def to_stored(resource: Resource, obj: Obj) -> Obj:
    """The object in the version in which it is kept."""
    wanted = stored_api_version(resource)
    if resource.group_version == wanted:
        return obj
    renamed = {_CORE_FIELDS.get(key, key): value for key, value in obj.items()} if resource.storage == "events" else obj
    return {**renamed, "apiVersion": wanted}


def to_asked(resource: Resource, obj: Obj) -> Obj:
    """A stored object in the version of `resource`."""
    if obj.get("apiVersion") == resource.group_version:
        return obj
    renamed = (
        {_EVENT_FIELDS.get(key, key): value for key, value in obj.items()} if resource.storage == "events" else obj
    )
    return {**renamed, "apiVersion": resource.group_version}


def raw(resource: Resource, stored: Stored) -> bytes:
    """The JSON of a stored object in the version of `resource`; no work where that is how it is stored."""
    if stored.obj.get("apiVersion") == resource.group_version:
        return stored.raw
    return encode(to_asked(resource, stored.obj))
