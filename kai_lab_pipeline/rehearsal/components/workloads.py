"""What kube-controller-manager does for the lab: deployments, replica sets, daemon sets, jobs, namespace defaults."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from kai_lab_pipeline.rehearsal.client import RESOURCES, ApiError, Object
from kai_lab_pipeline.rehearsal.components.informers import Key, key_of
from kai_lab_pipeline.rehearsal.components.runtime import Controller, Sim, now

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Kubernetes leaves out vowels and look-alikes in generated suffixes."""
_REVISION = "deployment.kubernetes.io/revision"


def template_hash(template: Mapping[str, Any]) -> str:
    """A short name for a pod template: equal templates, equal names."""
    number = int.from_bytes(hashlib.sha256(json.dumps(template, sort_keys=True).encode()).digest()[:6], "big")
    letters = ""
    while len(letters) < 9:
        number, rest = divmod(number, len(_ALPHABET))
        letters += _ALPHABET[rest]
    return letters


def owner_of(obj: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The controlling owner's reference."""
    for reference in obj["metadata"].get("ownerReferences") or []:
        if reference.get("controller"):
            found: Mapping[str, Any] = reference
            return found
    return None


def owned_by(obj: Mapping[str, Any], owner: Mapping[str, Any]) -> bool:
    reference = owner_of(obj)
    return reference is not None and reference["uid"] == owner["metadata"]["uid"]


def reference_to(owner: Mapping[str, Any]) -> Object:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def owner_keys(kind: str) -> Callable[[Object], list[Key]]:
    """Keys of the owner of that kind."""

    def keys(obj: Object) -> list[Key]:
        reference = owner_of(obj)
        if reference is None or reference["kind"] != kind:
            return []
        return [(obj["metadata"].get("namespace", ""), reference["name"])]

    return keys


def pod_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def finished(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


class WorkloadController(Controller):
    """Shared parts of the controllers that make pods."""

    def pods_of(self, owner: Object) -> list[Object]:
        pods = self.sim.of("pods").all(owner["metadata"].get("namespace"))
        return [pod for pod in pods if owned_by(pod, owner)]

    async def make_pod(self, owner: Object, extra: Callable[[Object], None] | None = None) -> str | None:
        """Creates a pod from the owner's template; the refusal's text when it was refused."""
        template = copy.deepcopy(owner["spec"]["template"])
        namespace, name = key_of(owner)
        pod: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": f"{name}-",
                "namespace": namespace,
                "labels": dict(template.get("metadata", {}).get("labels") or {}),
                "ownerReferences": [reference_to(owner)],
            },
            "spec": template["spec"],
        }
        annotations = template.get("metadata", {}).get("annotations")
        if annotations:
            pod["metadata"]["annotations"] = dict(annotations)
        if extra is not None:
            extra(pod)
        try:
            refused = self._account_missing(pod)
            if refused is None:
                created = self.sim.informers.learn(await self.api.create(pod))
                text = f"Created pod: {created['metadata']['name']}"
                await self.sim.recorder.record(owner, "Normal", "SuccessfulCreate", text, self.name)
                return None
        except ApiError as error:
            if error.code == 404:
                raise
            refused = str(error)
        await self.sim.recorder.record(owner, "Warning", "FailedCreate", f"Error creating: {refused}", self.name)
        return refused

    def _account_missing(self, pod: Object) -> str | None:
        """What the API server's ServiceAccount admission says when the account is not there."""
        account = pod["spec"].get("serviceAccountName")
        namespace = pod["metadata"]["namespace"]
        if not account or account == "default" or self.sim.of("serviceaccounts").get(namespace, account):
            return None
        return (
            f'pods "{pod["metadata"]["generateName"]}" is forbidden: error looking up service account '
            f'{namespace}/{account}: serviceaccount "{account}" not found'
        )

    async def remove_pod(self, owner: Object, pod: Object) -> None:
        if pod["metadata"].get("deletionTimestamp"):
            return
        namespace, name = key_of(pod)
        await self.api.delete(RESOURCES["pods"], namespace, name, uid=pod["metadata"]["uid"])
        await self.sim.recorder.record(owner, "Normal", "SuccessfulDelete", f"Deleted pod: {name}", self.name)

    async def set_status(self, obj: Object, status: Object) -> None:
        """Writes the status if it differs; fields that are None are removed."""
        current = obj.get("status") or {}
        wanted = {key: value for key, value in status.items() if value is not None}
        if {key: current.get(key) for key in status} == {key: wanted.get(key) for key in status}:
            return
        await self.patch(obj, {"status": status}, subresource="status")


class ReplicaSetController(WorkloadController):
    name = "replicaset-controller"

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self.sets = self.watch("replicasets")
        self.watch("pods", owner_keys("ReplicaSet"))
        sim.of("serviceaccounts").on_change(self._account_changed)
        self._refusals: dict[Key, int] = {}

    def _account_changed(self, old: Object | None, new: Object | None) -> None:
        if new is not None:
            for key in self._refusals:
                if key[0] == key_of(new)[0]:
                    self.queue.add(key)

    async def reconcile(self, key: Key) -> None:
        found = self.sets.get(*key)
        if found is None or found["metadata"].get("deletionTimestamp"):
            self._refusals.pop(key, None)
            return
        pods = [pod for pod in self.pods_of(found) if not finished(pod)]
        active = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        wanted = int(found["spec"].get("replicas", 1))
        refused: str | None = None
        for _ in range(wanted - len(active)):
            refused = await self.make_pod(found)
            if refused is not None:
                break
        for pod in sorted(active, key=pod_ready)[: max(len(active) - wanted, 0)]:
            await self.remove_pod(found, pod)
        ready = sum(pod_ready(pod) for pod in active)
        failure = None
        if refused is not None:
            times = self._refusals[key] = self._refusals.get(key, 0) + 1
            # The rate limiter of controllers: doubled from 5 ms, here with a ceiling that lets an idle lab rest.
            self.queue.add(key, after_s=min(0.005 * 2**times, 600.0))
            failure = [
                {
                    "type": "ReplicaFailure",
                    "status": "True",
                    "reason": "FailedCreate",
                    "message": refused,
                    "lastTransitionTime": now(),
                }
            ]
            known = (found.get("status") or {}).get("conditions") or []
            if known and known[0].get("message") == refused:
                failure = known
        else:
            self._refusals.pop(key, None)
        status = {
            "replicas": len(active),
            "fullyLabeledReplicas": len(active) or None,
            "readyReplicas": ready or None,
            "availableReplicas": ready or None,
            "observedGeneration": found["metadata"].get("generation", 1),
            "conditions": failure,
        }
        await self.set_status(found, status)


class DeploymentController(WorkloadController):
    name = "deployment-controller"

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self.deployments = self.watch("deployments")
        self.sets = self.watch("replicasets", owner_keys("Deployment"))
        sim.of("pods").on_change(self._pod_changed)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A Recreate deployment waits for old pods to be gone: wake it when one goes."""
        if new is None and old is not None:
            for set_key in owner_keys("ReplicaSet")(old):
                found = self.sets.get(*set_key)
                for key in owner_keys("Deployment")(found) if found else []:
                    self.queue.add(key)

    async def reconcile(self, key: Key) -> None:
        found = self.deployments.get(*key)
        if found is None or found["metadata"].get("deletionTimestamp"):
            return
        sets = [rs for rs in self.sets.all(key[0]) if owned_by(rs, found)]
        label = template_hash(found["spec"]["template"])
        current = next((rs for rs in sets if rs["metadata"]["labels"].get("pod-template-hash") == label), None)
        old = [rs for rs in sets if rs is not current]
        wanted = int(found["spec"].get("replicas", 1))
        if current is None:
            current = await self._make_set(found, label, sets)
        recreate = found["spec"].get("strategy", {}).get("type") == "Recreate"
        ready = int((current.get("status") or {}).get("readyReplicas") or 0)
        old_pods = [pod for rs in old for pod in self.pods_of(rs) if not finished(pod)]
        if recreate:
            for rs in old:
                await self._scale(found, rs, 0)
            if not old_pods:
                await self._scale(found, current, wanted)
        else:
            await self._scale(found, current, wanted)
            if ready >= wanted:
                for rs in old:
                    await self._scale(found, rs, 0)
        await self._report(found, current, old, wanted)

    async def _make_set(self, found: Object, label: str, sets: list[Object]) -> Object:
        revision = 1 + max((int(rs["metadata"]["annotations"].get(_REVISION, 0)) for rs in sets), default=0)
        template = copy.deepcopy(found["spec"]["template"])
        template.setdefault("metadata", {}).setdefault("labels", {})["pod-template-hash"] = label
        selector = {**found["spec"]["selector"].get("matchLabels", {}), "pod-template-hash": label}
        namespace, name = key_of(found)
        created = await self.ensure(
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "metadata": {
                    "name": f"{name}-{label}",
                    "namespace": namespace,
                    "labels": template["metadata"]["labels"],
                    "annotations": {
                        "deployment.kubernetes.io/desired-replicas": str(found["spec"].get("replicas", 1)),
                        _REVISION: str(revision),
                    },
                    "ownerReferences": [reference_to(found)],
                },
                "spec": {"replicas": 0, "selector": {"matchLabels": selector}, "template": template},
            }
        )
        await self.patch(found, {"metadata": {"annotations": {_REVISION: str(revision)}}})
        return created

    async def _scale(self, found: Object, rs: Object, wanted: int) -> None:
        latest = self.sets.get(*key_of(rs)) or rs
        have = int(latest["spec"].get("replicas", 0))
        if have == wanted:
            return
        direction = "up" if wanted > have else "down"
        await self.patch(latest, {"spec": {"replicas": wanted}})
        text = f"Scaled {direction} replica set {rs['metadata']['name']} from {have} to {wanted}"
        await self.sim.recorder.record(found, "Normal", "ScalingReplicaSet", text, self.name)

    async def _report(self, found: Object, current: Object, old: list[Object], wanted: int) -> None:
        found = self.deployments.get(*key_of(found)) or found
        current = self.sets.get(*key_of(current)) or current
        state = current.get("status") or {}
        total = sum(int((rs.get("status") or {}).get("replicas") or 0) for rs in (current, *old))
        ready = sum(int((rs.get("status") or {}).get("readyReplicas") or 0) for rs in (current, *old))
        updated = int(state.get("replicas") or 0)
        name = current["metadata"]["name"]
        strategy = found["spec"].get("strategy", {}).get("type")
        enough = ready >= (wanted if strategy == "Recreate" else wanted - math.floor(wanted * 0.25))
        complete = updated >= wanted and ready >= wanted and total == updated
        available = (
            ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
            if enough
            else ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        )
        if complete:
            text = f'ReplicaSet "{name}" has successfully progressed.'
            progressing = ("True", "NewReplicaSetAvailable", text)
        elif updated:
            progressing = ("True", "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.')
        else:
            progressing = ("True", "NewReplicaSetCreated", f'Created new replica set "{name}"')
        known = {entry["type"]: entry for entry in (found.get("status") or {}).get("conditions") or []}
        conditions = [
            _timed("Available", available, known.get("Available")),
            _timed("Progressing", progressing, known.get("Progressing")),
        ]
        for entry in state.get("conditions") or []:
            if entry["type"] == "ReplicaFailure":
                values = (entry["status"], entry["reason"], entry["message"])
                conditions.append(_timed("ReplicaFailure", values, known.get("ReplicaFailure")))
        status = {
            "observedGeneration": found["metadata"].get("generation", 1),
            "replicas": total or None,
            "updatedReplicas": updated or None,
            "readyReplicas": ready or None,
            "availableReplicas": ready or None,
            "unavailableReplicas": max(wanted - ready, 0) or None,
            "conditions": conditions,
        }
        await self.set_status(found, status)


def _timed(kind: str, values: tuple[str, str, str], known: Mapping[str, Any] | None) -> Object:
    status, reason, message = values
    stamp = now()
    entry: Object = {"type": kind, "status": status, "reason": reason, "message": message}
    if known and all(known.get(field) == entry[field] for field in entry):
        return dict(known)
    same = known is not None and known.get("status") == status
    entry["lastTransitionTime"] = known["lastTransitionTime"] if known and same else stamp
    entry["lastUpdateTime"] = stamp
    return entry
