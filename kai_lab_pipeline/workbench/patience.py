"""Retrying what is known to be transient, and waiting for something to be gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import tenacity

from kai_lab_pipeline.backends.base import Log
from kai_lab_pipeline.clients.kubernetes import ApiError, Cluster
from kai_lab_pipeline.lab.errors import LabError

T = TypeVar("T")
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


def retry_transient(call: Callable[[], T], *, what: str, deadline_s: float, log: Log) -> tuple[T, int]:
    """Call until it succeeds; only errors known to pass by themselves are tried again, the rest fails at once.

    Returns the result and the number of attempts. Raises the last LabError.
    """

    def say(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        seen = error.message if isinstance(error, ApiError) else str(error)
        log(f"{what}: attempt {state.attempt_number} met something that passes by itself: {seen}")

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, LabError) and error.transient),
        stop=tenacity.stop_after_delay(deadline_s),
        wait=tenacity.wait_exponential(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S),
        before_sleep=say,
        reraise=True,
    )
    result = retrying(call)
    return result, int(retrying.statistics.get("attempt_number", 1))


def wait_gone(cluster: Cluster, resource: str, name: str, *, namespace: str | None, deadline_s: float) -> None:
    """Watch until an object is gone. Raises LabError with what still holds it after `deadline_s` seconds."""
    until = time.monotonic() + deadline_s
    while True:
        objects, version = cluster.list_with_version(
            resource, namespace=namespace, field_selector=f"metadata.name={name}"
        )
        if not objects:
            return
        left = until - time.monotonic()
        if left <= 0:
            meta = objects[0]["metadata"]
            raise LabError(
                f"{resource}/{name} is still there {deadline_s:.0f} s after it was deleted",
                where=str(cluster),
                seen=f"deletionTimestamp {meta.get('deletionTimestamp')}, finalizers {meta.get('finalizers')}",
                next_step="Look at its finalizers and at the controller that should remove them.",
            )
        _until_deleted(cluster, resource, name, version, namespace, left)


def _until_deleted(
    cluster: Cluster, resource: str, name: str, version: str, namespace: str | None, left_s: float
) -> None:
    try:
        for kind, obj in cluster.watch(resource, version, timeout_s=min(left_s, 5.0), namespace=namespace):
            if kind == "DELETED" and obj["metadata"]["name"] == name:
                return
    except ApiError as error:
        if error.code != 410:
            raise
