"""What every namespace is given: a service account and the cluster's certificate bundle."""

from __future__ import annotations

from kai_lab_pipeline.rehearsal.client import Object
from kai_lab_pipeline.rehearsal.components.informers import Key
from kai_lab_pipeline.rehearsal.components.runtime import Controller, Sim


class NamespaceDefaults(Controller):
    """The service account and the certificate bundle that every namespace gets."""

    name = "root-ca-certificate-publisher"

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self.namespaces = self.watch("namespaces")

    async def reconcile(self, key: Key) -> None:
        found = self.namespaces.get(*key)
        if found is None or found["metadata"].get("deletionTimestamp"):
            return
        name = key[1]
        text = (
            "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as "
            "the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of "
            "Kubernetes clusters."
        )
        wanted: tuple[Object, ...] = (
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}},
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": "kube-root-ca.crt",
                    "namespace": name,
                    "annotations": {"kubernetes.io/description": text},
                },
                "data": {"ca.crt": "rehearsal\n"},
            },
        )
        for obj in wanted:
            plural = "serviceaccounts" if obj["kind"] == "ServiceAccount" else "configmaps"
            if self.sim.of(plural).get(name, obj["metadata"]["name"]) is None:
                await self.ensure(obj)
