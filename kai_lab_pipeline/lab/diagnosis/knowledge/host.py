"""Limits of the machine."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.knowledge.commands import on_node
from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, NAMED, Fault, Nature, said, seen

KIND = "https://github.com/kubernetes-sigs/kind"

_TAINT = r"(?:taint \{?|^Taints:\s{1,40})node\.kubernetes\.io/"
"""A taint of a node. Pods of DaemonSets tolerate them all by name, which says nothing."""

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="host.inotify",
        component="host",
        title="too many open files",
        cause="The machine's inotify limits are too low (fs.inotify.max_user_instances is 128 by default; several "
        "nodes need more).",
        remedy=(
            "sysctl fs.inotify.max_user_watches fs.inotify.max_user_instances",
            "sudo sysctl fs.inotify.max_user_watches=524288 fs.inotify.max_user_instances=512",
        ),
        signs=(
            said("too many open files"),
            said("fs.inotify.max_user_instances", r"max_user_instances ?= ?(?:\d{1,2}|1\d\d)\s{0,5}$", CLASS),
            said("inotify_init", r"inotify_init.{0,60}too many open files", EXACT),
            said("failed to create fsnotify watcher", at=EXACT),
            said("inotify_add_watch", r"inotify_add_watch.{0,200}no space left on device", EXACT),
        ),
        links=(f"{KIND}/issues/2586", "https://github.com/k0sproject/k0s/issues/8113"),
        explains=("pod.crash-loop", "pod.error-exit", "docker.no-space", "kind.node-log-line"),
    ),
    Fault(
        id="host.cgroup-v1-refused",
        component="host",
        title="kubelet is configured to not run on a host using cgroup v1",
        cause="This host has cgroup v1, and Kubernetes 1.35 and newer refuse it unless failCgroupV1 is false.",
        remedy=(
            "stat -fc %T /sys/fs/cgroup",
            "Use a node image of Kubernetes 1.34 or older (kind.node_image), or a host with cgroup v2",
        ),
        signs=(
            said("not run on a host using cgroup v1", at=EXACT),
            said("failcgroupv1", at=NAMED),
        ),
        versions="Kubernetes 1.35 and newer",
        explains=("kind.kubelet",),
        elsewhere=("Take a cluster whose nodes have cgroup v2, or Kubernetes 1.34 or older",),
    ),
    Fault(
        id="host.cgroup-v1",
        component="host",
        title="cgroup v1 is deprecated / cgroup v1 support is in maintenance mode",
        cause="The host still uses cgroup v1. It works with Kubernetes up to 1.34; newer kubelets and later kinds "
        "refuse it.",
        remedy=("stat -fc %T /sys/fs/cgroup", "Move to a host with cgroup v2 when you can"),
        signs=(
            seen("event", reason="CgroupV1"),
            said("cgroup v1 support is in maintenance mode", at=CLASS),
            said("cgroup v1 is deprecated in kubernetes", at=CLASS),
        ),
        nature=Nature.HARMLESS,
    ),
    Fault(
        id="host.disk-pressure",
        component="host",
        title="node.kubernetes.io/disk-pressure / DiskPressure",
        cause="The disk under the node {node} is nearly full: the kubelet evicts pods and lets no new ones in.",
        remedy=(
            "df -h",
            "docker system df",
            "docker image prune",
            "docker builder prune",
            "kubectl describe node {node}",
        ),
        signs=(
            seen("condition", type="DiskPressure", object_kind="Node"),
            said("disk-pressure", rf"{_TAINT}disk-pressure", NAMED),
            said("has diskpressure condition", at=NAMED),
            said("node was low on resource: ephemeral-storage", at=NAMED),
            said("the node had condition: [diskpressure]", at=NAMED),
        ),
        explains_all=("pod.evicted", "kai.unschedulable", "pod.unschedulable"),
        elsewhere=(
            "kubectl describe node {node}",
            on_node("df -h"),
        ),
    ),
    Fault(
        id="host.memory-pressure",
        component="host",
        title="node.kubernetes.io/memory-pressure / MemoryPressure",
        cause="The node {node} is short of memory: the kubelet evicts pods. The lab wants about 4 GB.",
        remedy=("free -m", "kubectl top node", "kubectl describe node {node}"),
        signs=(
            seen("condition", type="MemoryPressure", object_kind="Node"),
            said("memory-pressure", rf"{_TAINT}memory-pressure", NAMED),
            said("has memorypressure condition", at=NAMED),
            said("node was low on resource: memory", at=NAMED),
            said("cannot allocate memory", at=NAMED),
            said("out of memory: killed process", at=NAMED),
        ),
        explains_all=("pod.evicted",),
    ),
    Fault(
        id="host.pid-pressure",
        component="host",
        title="node.kubernetes.io/pid-pressure / PIDPressure",
        cause="The node {node} runs out of process ids.",
        remedy=("kubectl describe node {node}", "sysctl kernel.pid_max"),
        signs=(
            seen("condition", type="PIDPressure", object_kind="Node"),
            said("pid-pressure", rf"{_TAINT}pid-pressure", NAMED),
            said("fork: resource temporarily unavailable", at=NAMED),
        ),
    ),
    Fault(
        id="host.clock",
        component="host",
        title="x509: certificate has expired or is not yet valid",
        cause="A certificate is outside its time: the machine's clock is wrong, or the cluster's certificates ran "
        "out after a year.",
        remedy=("date -u", "timedatectl status", "If the clock is right: kai-lab down, and run the lab again"),
        signs=(said("certificate has expired or is not yet valid", at=EXACT),),
        explains=("webhook.*", "registry.tls", "kubernetes.tls"),
        elsewhere=(
            "date -u",
            "timedatectl status",
            "If the clock is right: renew the cluster's certificates",
        ),
    ),
    Fault(
        id="host.proxy",
        component="host",
        title="proxyconnect tcp / 407 Proxy Authentication Required",
        cause="The proxy that HTTP_PROXY or HTTPS_PROXY names does not let this through.",
        remedy=(
            "env | grep -i proxy",
            "export NO_PROXY=127.0.0.1,localhost,.svc,10.0.0.0/8",
            "docker info | grep -i proxy",
        ),
        signs=(
            said(": the proxy failed.", at=EXACT),
            said("proxyconnect tcp", at=EXACT),
            said("proxy authentication required", at=EXACT),
        ),
        explains=("registry.*", "net.*", "kubernetes.*"),
    ),
)
