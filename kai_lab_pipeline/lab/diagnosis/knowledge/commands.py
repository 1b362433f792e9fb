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
HELM_LIST = ("helm list -A -a", "With helm 4 leave -a away: it lists every state by itself")


def on_node(command: str) -> str:
    """A command on a node that is nobody's container here, in kubectl's words (1.31 and newer)."""
    return f"kubectl debug node/{{node}} -it --image=busybox:1.37 -- chroot /host {command}"
