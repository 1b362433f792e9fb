"""Claim 1, first part: the cluster is there, every node is Ready, and its Kubernetes is new enough."""

from __future__ import annotations

import re

from kai_lab_pipeline.lab.claims.reading import check, objects
from kai_lab_pipeline.lab.evidence import Evidence, condition, condition_true, mapping, name_of, status_of
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.lab.verdict import Finding, broken, held, not_evaluated

OLDEST_KUBERNETES = (1, 31)
"""The lab's charts are used with kubectl and servers from this minor version on."""


@check
def node_ready(evidence: Evidence, expect: Expectations) -> Finding:
    named = expect.node_names
    expected = f"exactly {', '.join(named)}, Ready" if named is not None else "every node Ready"
    nodes = objects(evidence.of("cluster"), "nodes", expected)
    names = [name_of(node) for node in nodes]
    observed = ", ".join(f"{name_of(n)} {'Ready' if condition_true(n, 'Ready') else 'not Ready'}" for n in nodes)
    if not nodes:
        return broken(expected, "no node", "The cluster has no node.")
    if named is not None and sorted(names) != sorted(named):
        return broken(expected, observed, f"The nodes are {', '.join(names)}; the lab configured {', '.join(named)}.")
    if evidence.node is not None and evidence.node not in names:
        return broken(expected, observed, f"The lab's node {evidence.node} is not in the cluster.")
    for node in nodes:
        if not condition_true(node, "Ready"):
            why = mapping(condition(node, "Ready")).get("message") or "it never reported"
            return broken(expected, observed, f"Node {name_of(node)} is not Ready: {why}")
    return held(expected, observed, f"All {len(nodes)} node(s) are Ready.")


@check
def kubernetes_version_supported(evidence: Evidence, expect: Expectations) -> Finding:
    expected = f"Kubernetes {OLDEST_KUBERNETES[0]}.{OLDEST_KUBERNETES[1]} or newer"
    nodes = objects(evidence.of("cluster"), "nodes", expected)
    found = {"API server": str(evidence.versions["kubernetes"])} if "kubernetes" in evidence.versions else {}
    for node in nodes:
        version = mapping(status_of(node).get("nodeInfo")).get("kubeletVersion")
        if version:
            found[f"kubelet of {name_of(node)}"] = str(version)
    observed = ", ".join(f"{who} {version}" for who, version in found.items())
    if not found:
        return not_evaluated(expected, "Neither bundle.json nor a node tells the version of Kubernetes.")
    for who, version in found.items():
        number = _minor(version)
        if number is None:
            return broken(expected, observed, f"The version {version!r} of the {who} cannot be read.", transient=False)
        # A kubelet is never newer than its API server, so an old one is as telling as an old server.
        if number < OLDEST_KUBERNETES:
            return broken(expected, observed, f"The {who} is {version}, older than {expected}.", transient=False)
    return held(expected, observed, f"{observed}: supported.")


def _minor(version: str) -> tuple[int, int] | None:
    match = re.match(r"v?([0-9]{1,4})\.([0-9]{1,4})(?:[.+-]|\Z)", version)
    return (int(match[1]), int(match[2])) if match else None
