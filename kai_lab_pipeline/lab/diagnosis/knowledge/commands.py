"""Commands that several remedies share, with the lab's own charts and values."""

from __future__ import annotations

KAI_UPGRADE = (
    "helm upgrade --install kai-scheduler oci://ghcr.io/kai-scheduler/kai-scheduler/kai-scheduler -n kai-scheduler "
    "--version v0.17.0 --set global.gpuSharing=true --set binder.plugins.hamicore.enabled=true"
)
KAI_CROSSING = f"{KAI_UPGRADE} --set binder.runtimeClassName=nvidia"
ISOLATOR_UPGRADE = (
    "helm upgrade --install kai-resource-isolator oci://docker.io/projecthami/kai-resource-isolator -n "
    "kai-resource-isolator --version 1.1.0-chart --set monitor.enabled=true"
)
RELEASE_UPGRADE = "helm upgrade --install {release} CHART -n {namespace} --set KEY=VALUE"
ALL_VALUES = "Give that command all values again: a failed revision's own would be kept"
HEAL = "kai-lab run"
"""Rerun the lab: it heals failed and pending releases."""
RENEW = "kai-lab run --select cluster"
"""Adopt the lab's own cluster, after starting it where it is stopped, and write the lab's own kubeconfig anew.

kind's own export writes into the person's kubeconfig and switches its current context.
"""
TRY_ANEW = (
    "kind create cluster --retain --name try --kubeconfig try.kubeconfig",
    "kind export logs --name try",
    "kind delete cluster --name try --kubeconfig try.kubeconfig",
)
"""The same fault on a cluster to throw away: nothing of the lab's name, and no context of the person's is switched."""
NODE_LOGS = "Look into kubelet.log and journal.log of the nodes, which the lab keeps in the folder kind-logs-<time>"
HELM_LIST = ("helm list -A -a", "With helm 4 leave -a away: it lists every state by itself")


def on_node(command: str) -> str:
    """A command on a node that is nobody's container here, in kubectl's words (1.31 and newer)."""
    return f"kubectl debug node/{{node}} -it --image=busybox:1.37 -- chroot /host {command}"
