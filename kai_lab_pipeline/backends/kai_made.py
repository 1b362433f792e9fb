"""What KAI makes besides the objects of its chart, and helm therefore leaves: most of it goes with KAI, not all.

Its operator makes deployments, services and webhooks for its Config and its SchedulingShards; the chart's post-delete
job removes what has the operator's label, in so far as it gets to it. Its services make their certificates, its binder
makes reservation pods, and nothing removes either (v0.17.0). Where the namespaces are not the lab's this would stay for
good.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kai_lab_pipeline.backends.base import Leftover, Log
from kai_lab_pipeline.backends.owner import key
from kai_lab_pipeline.backends.releases import WEBHOOKS, kubectl_of, served_from
from kai_lab_pipeline.clients.api_errors import UNAUTHORIZED
from kai_lab_pipeline.clients.kubernetes import ApiError, Cluster

RESERVATIONS = "kai-resource-reservation"
"""Namespace that KAI makes for its reservation pods, and their label ``app``."""
CERTIFICATES = frozenset(f"{name}-webhook-tls-secret" for name in ("kai-admission", "podgroup", "queue"))
"""Secrets that KAI's services make for their webhooks; without an owner, and without the operator's label."""
KAI_DEPLOYMENTS = frozenset({"kai-operator", "kai-scheduler-default"})
"""By them a KAI is known to stand in a namespace."""
OPERATOR_LABEL = ("app.kubernetes.io/managed-by", "kai-operator")
OPERATOR_GROUP = "kai.scheduler"
"""API group of what the operator makes things for: Config and SchedulingShard."""
GONE_DEADLINE_S = 60.0
_IN_ITS_NAMESPACE = ("deployments", "daemonsets", "services", "serviceaccounts", "configmaps", "secrets")


@dataclass(frozen=True)
class KaiMade:
    """An object that KAI made."""

    resource: str
    namespace: str | None
    name: str
    uid: str
    deleting: str
    """What holds an object that is being deleted, else ''."""

    @classmethod
    def of(cls, resource: str, obj: Mapping[str, Any]) -> KaiMade:
        meta = obj["metadata"]
        since = meta.get("deletionTimestamp")
        held = f"deletionTimestamp {since}, finalizers {meta.get('finalizers')}" if since else ""
        return cls(resource, meta.get("namespace"), str(meta["name"]), str(meta["uid"]), held)

    @property
    def key(self) -> str:
        """As the mark of the cluster names what was found."""
        return key(self.resource, self.namespace, self.name)

    def left(self, cluster: Cluster) -> Leftover:
        scope = f" -n {self.namespace}" if self.namespace else ""
        return Leftover(
            f"{self.resource}/{self.name}" + (f" ({self.deleting})" if self.deleting else ", made by the lab's KAI"),
            f"{kubectl_of(cluster)} delete {self.resource} {self.name}{scope}",
        )


def kai_made(cluster: Cluster, namespace: str) -> Iterator[KaiMade]:
    """What the KAI in a namespace made, the webhooks first: they call the rest. Raises ApiError.

    Reservation pods do not tell which KAI made them: where `standing_kais` knows of others they may be theirs.
    """
    for hooks in WEBHOOKS:
        for obj in cluster.objects(hooks):
            if _is_operators(obj) and served_from(obj, namespace):
                yield KaiMade.of(hooks, obj)
    for resource in _IN_ITS_NAMESPACE:
        for obj in cluster.objects(resource, namespace=namespace):
            if _is_operators(obj) or (resource == "secrets" and obj["metadata"]["name"] in CERTIFICATES):
                yield KaiMade.of(resource, obj)
    for pod in cluster.objects("pods", namespace=RESERVATIONS):
        if (pod["metadata"].get("labels") or {}).get("app") == RESERVATIONS:
            yield KaiMade.of("pods", pod)


def standing_kais(cluster: Cluster, *, besides: Collection[str] = ()) -> list[str]:
    """Deployments (``namespace/name``) of KAIs that stand in other namespaces than those. Raises ApiError."""
    deployments = [obj["metadata"] for obj in cluster.objects("deployments")]
    return [
        f"{meta['namespace']}/{meta['name']}"
        for meta in deployments
        if meta["name"] in KAI_DEPLOYMENTS and meta["namespace"] not in besides
    ]


def remove_kai_made(
    cluster: Cluster,
    namespace: str,
    theirs: Callable[[KaiMade], bool],
    log: Log,
    pause: Callable[[float], None],
) -> list[KaiMade]:
    """Remove what the KAI in a namespace made, except what is `theirs`, and see it gone; returns what stays.

    It is looked at until nothing is left: an operator that is just ending may make something anew. Raises ApiError when
    the cluster does not answer.
    """
    deadline = time.monotonic() + GONE_DEADLINE_S
    refused: set[str] = set()
    while left := [made for made in kai_made(cluster, namespace) if not theirs(made)]:
        for made in left:
            if not made.deleting and made.uid not in refused and not _delete(cluster, made, log):
                refused.add(made.uid)
        if time.monotonic() >= deadline or refused.issuperset(made.uid for made in left):
            break
        pause(0.5)
    return left


def _delete(cluster: Cluster, made: KaiMade, log: Log) -> bool:
    """Whether the API server takes the deletion: one that it refuses does not keep the rest from going."""
    try:
        grace_s = 1 if made.resource == "pods" else None
        cluster.delete(made.resource, made.name, namespace=made.namespace, grace_s=grace_s)
    except ApiError as error:
        if error.code in (0, UNAUTHORIZED):
            raise
        log(f"{made.resource}/{made.name}, which KAI made, cannot be removed: {error.message}")
        return False
    log(f"removed {made.resource}/{made.name}, which KAI made")
    return True


def _is_operators(obj: Mapping[str, Any]) -> bool:
    meta = obj["metadata"]
    label, value = OPERATOR_LABEL
    if (meta.get("labels") or {}).get(label) == value:
        return True
    owners = meta.get("ownerReferences") or ()
    return any(str(owner.get("apiVersion", "")).split("/")[0] == OPERATOR_GROUP for owner in owners)
