"""Faults of kind, with the words of 0.33."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.knowledge.commands import NODE_LOGS, RENEW, TRY_ANEW
from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, GENERIC, NAMED, Fault, said

KIND = "https://github.com/kubernetes-sigs/kind"

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="kind.cluster-exists",
        component="kind",
        title="node(s) already exist for a cluster with the name ...",
        cause="There is already a kind cluster {cluster}; a stopped one counts too.",
        remedy=(
            "kind get clusters",
            "Give the lab another name (lab.name in lab.toml, KAI_LAB_NAME)",
            "or, if nobody needs it: kind delete cluster --name {cluster}",
        ),
        signs=(said("already exist for a cluster with the name", r'with the name "(?P<cluster>[^"]{1,80})"', EXACT),),
        links=(f"{KIND}/issues/3077",),
    ),
    Fault(
        id="kind.cluster-unknown",
        component="kind",
        title="could not locate any control plane nodes for cluster named ...",
        cause="There is no kind cluster {cluster}. Names are matched exactly.",
        remedy=("kind get clusters", RENEW),
        signs=(
            said("could not locate any control plane nodes", r"for cluster named '(?P<cluster>[^']{1,80})'"),
            said("unknown cluster ", r'unknown cluster "(?P<cluster>[^"]{1,80})"'),
            said("no nodes found for cluster", r'for cluster "(?P<cluster>[^"]{1,80})"'),
            said("no kind nodes found for cluster", r'for cluster "(?P<cluster>[^"]{1,80})"'),
            said("no kind clusters found"),
        ),
        links=("https://github.com/antrea-io/antrea/issues/6838",),
    ),
    Fault(
        id="kind.port-taken",
        component="kind",
        title="Bind for 127.0.0.1:6443 failed: port is already allocated",
        cause="Port {port} of this machine, which the cluster's API server wants, is taken.",
        remedy=(
            "ss -ltnp 'sport = :{port}'",
            "Stop what listens there, or change networking.apiServerPort in the kind config",
        ),
        signs=(
            said("port is already allocated", r":(?P<port>\d{2,5}) failed: port is already allocated", EXACT),
            said("bind: address already in use", r":(?P<port>\d{2,5}): bind: address already in use"),
            said("ports are not available", r":(?P<port>\d{2,5})\b"),
        ),
    ),
    Fault(
        id="kind.node-image",
        component="kind",
        title='failed to create cluster: failed to pull image "kindest/node:..."',
        cause="The node image {image} is not on this machine, and pulling it failed.",
        remedy=(
            "docker pull {image}",
            "or name another one in kind.node_image (KAI_LAB_NODE_IMAGE), or a mirror in lab.toml",
        ),
        signs=(said("failed to create cluster: failed to pull image", r'pull image "(?P<image>[^"@]{1,200})', EXACT),),
        transient=True,
        explains=("registry.*", "net.*"),
    ),
    Fault(
        id="kind.kubelet",
        component="kind",
        title="failed to init node with kubeadm: ... The kubelet is not healthy",
        cause="The kubelet in the node never became healthy; kubeadm gave up after four minutes. A cgroup v1 host "
        "with Kubernetes 1.35 or newer, a bad kubelet patch, or too little memory are the usual reasons.",
        remedy=(NODE_LOGS, *TRY_ANEW),
        signs=(
            said("failed to init node with kubeadm", at=EXACT),
            said("the kubelet is not healthy", at=NAMED),
            said("the kubelet is not running", at=NAMED),
            said("error execution phase wait-control-plane", at=CLASS),
        ),
        explains=("net.*", "kubernetes.timeout", "kubernetes.crd-changed", "kubernetes.api-down", "kind.create-failed"),
    ),
    Fault(
        id="kind.node-log-line",
        component="kind",
        title='could not find a log line that matches "Reached target .*Multi-User System.*|detected cgroup v1"',
        cause="systemd in the node container did not come up. Exhausted inotify instances and missing cgroup "
        "delegation are the usual reasons, and kind removes the node and its evidence unless it is told to retain "
        "it.",
        remedy=(
            "sudo sysctl fs.inotify.max_user_watches=524288 fs.inotify.max_user_instances=512",
            NODE_LOGS,
            *TRY_ANEW,
        ),
        signs=(said("could not find a log line that matches", at=NAMED),),
        links=(f"{KIND}/issues/2586", f"{KIND}/issues/3901"),
    ),
    Fault(
        id="kind.rootless",
        component="kind",
        title='running kind with rootless provider requires setting systemd property "Delegate=yes"',
        cause="docker or podman runs rootless, and this user's cgroups are not delegated.",
        remedy=(
            "sudo mkdir -p /etc/systemd/system/user@.service.d",
            "printf '[Service]\\nDelegate=yes\\n' | sudo tee /etc/systemd/system/user@.service.d/delegate.conf",
            "sudo systemctl daemon-reload",
        ),
        signs=(
            said("delegate=yes", r"requires setting systemd property .{0,3}Delegate=yes", EXACT),
            said("rootless provider requires cgroup v2", at=EXACT),
            said("rootless", r"^\s{0,20}(?:name=)?rootless\s{0,5}$", CLASS),
        ),
        links=(f"{KIND}/issues/3758", "https://kind.sigs.k8s.io/docs/user/rootless/"),
    ),
    Fault(
        id="kind.config",
        component="kind",
        title="failed to create cluster: unable to decode config / invalid configuration",
        cause="The kind config cannot be used: {why}",
        remedy=(
            "Correct the file that kind.config names (KAI_LAB_KIND_CONFIG)",
            "kind create cluster --config FILE --name try --kubeconfig try.kubeconfig",
        ),
        signs=(
            said("unable to decode config", r"unable to decode config: (?P<why>.{1,200})"),
            said("field", r"\bfield (?P<why>\w{1,60} not found in type v1alpha4\.\w{1,40})"),
            said("invalid configuration for node", r"(?P<why>invalid configuration for node.{1,200})"),
            said("must have at least one control-plane node", r"(?P<why>must have at least one control-plane node)"),
            said("failed to parse patches", r"(?P<why>failed to parse patches.{1,200})"),
            said("failed to create cluster: unknown apiversion", r"(?P<why>unknown apiVersion: \S{1,80})"),
            said("failed to create cluster: error reading file", r"(?P<why>error reading file.{1,200})"),
            said("could not determine kind / apiversion", r"(?P<why>could not determine kind / apiVersion.{1,200})"),
            said("failed to create cluster: invalid pod subnet", r"(?P<why>invalid pod subnet.{1,200})"),
        ),
        defaults={"why": "see the evidence"},
        explains=("kubernetes.manifest-yaml",),
    ),
    Fault(
        id="kind.name",
        component="kind",
        title="... is not a valid cluster name, cluster names must match ^[a-z0-9.-]+$",
        cause="kind does not take the cluster name {cluster}.",
        remedy=("Use lower-case letters, digits, '.' and '-' in lab.name (KAI_LAB_NAME)",),
        signs=(said("is not a valid cluster name", r"'(?P<cluster>[^']{1,80})' is not a valid cluster name"),),
    ),
    Fault(
        id="kind.kubeconfig-lock",
        component="kind",
        title="failed to lock config file: open .../config.lock: file exists",
        cause="Another kind or kubectl writes the kubeconfig at this moment, or one that was killed left its lock "
        "{lock}.",
        remedy=("pgrep -a kind", "If none works on it: rm {lock}", "The lab's own kubeconfig is .lab/<lab>/kubeconfig"),
        signs=(
            said("config.lock: file exists", r"open (?P<lock>\S{1,200}\.lock): file exists", EXACT),
            said("failed to lock config file", r"(?:open (?P<lock>\S{1,200}))?"),
        ),
        transient=True,
        links=("https://github.com/kubernetes-sigs/kueue/pull/9084",),
    ),
    Fault(
        id="kind.image-digest",
        component="kind",
        title="ctr: content digest sha256:...: not found",
        cause="kind imports all platforms of the image, and the local docker holds only one of them: docker with "
        "the containerd image store (default since 29) and a multi-platform image.",
        remedy=(
            "docker save --platform linux/amd64 --output image.tar {image}",
            "kind load image-archive image.tar --name {cluster}",
            "docker exec {cluster}-control-plane crictl images",
        ),
        signs=(
            said("after it was loaded", at=CLASS),
            said("content digest", r"content digest sha256:[0-9a-f]{8,64}: not found"),
        ),
        versions="kind to 0.33 with docker 29",
        links=(f"{KIND}/issues/3795", f"{KIND}/pull/4247", f"{KIND}/issues/2402"),
    ),
    Fault(
        id="kind.snapshotter",
        component="kind",
        title="failed to detect containerd snapshotter",
        cause="kind could not ask the node for its containerd configuration: the node is stopped, or the image is "
        "not a kind node.",
        remedy=("docker ps -a --filter label=io.x-k8s.kind.cluster", "docker start {cluster}-control-plane"),
        signs=(said("failed to detect containerd snapshotter", at=CLASS),),
    ),
    Fault(
        id="kind.archive",
        component="kind",
        title="failed to load image: ... ctr: unexpected EOF",
        cause="The image archive is damaged, cut off, or no image archive.",
        remedy=("Make it again: docker save --output FILE IMAGE", "tar tf FILE"),
        signs=(
            said("ctr: unexpected eof"),
            said("archive/tar: invalid tar header"),
            said("ctr: unrecognized image format"),
            said("error: stat ", r"ERROR: stat (?P<file>\S{1,200}): no such file"),
        ),
    ),
    Fault(
        id="kind.export-logs",
        component="kind",
        title="failed to create logs directory / journalctl --no-pager failed with error",
        cause="kind cannot collect the logs: the folder cannot be written, or the node is stopped.",
        remedy=(
            "docker ps -a --filter label=io.x-k8s.kind.cluster",
            "Name a folder that can be written: kind export logs FOLDER --name {cluster}",
        ),
        signs=(said("failed to create logs directory"), said('journalctl --no-pager" failed with error')),
    ),
    Fault(
        id="kind.wait-timeout",
        component="kind",
        title="WARNING: Timed out waiting for Ready",
        cause="The node was not Ready within --wait. kind ends with 0 all the same: the cluster is there and may "
        "become Ready.",
        remedy=("kubectl wait --for=condition=Ready nodes --all --timeout=120s", "kubectl describe nodes"),
        signs=(said("timed out waiting for ready"),),
        transient=True,
    ),
    Fault(
        id="kind.ip-changed",
        component="kind",
        title="kind cluster unreachable after a restart of the machine",
        cause="After a reboot the node's container got another address than its certificates and etcd members name.",
        remedy=("kai-lab down", "kai-lab run"),
        signs=(said("etcd", r"etcd.{0,200}bind: cannot assign requested address"),),
        links=(f"{KIND}/issues/3071",),
    ),
    Fault(
        id="kind.create-failed",
        component="kind",
        title="ERROR: failed to create cluster",
        cause="kind could not make the cluster; the reason stands in the evidence. kind removes a failed node "
        "unless it is told to retain it.",
        remedy=(NODE_LOGS, *TRY_ANEW),
        signs=(said("error: failed to create cluster", at=GENERIC),),
    ),
)
