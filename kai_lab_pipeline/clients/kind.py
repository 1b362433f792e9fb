"""kind, whose exit codes mislead: what is there is looked at, not what was returned.

Measured with kind 0.33: a `--wait` that ran out exits 0, so does deleting an absent cluster (and it claims to have
deleted it), a stopped node still counts as a cluster, and `load docker-image` calls a dead daemon a missing image.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kai_lab_pipeline.clients.docker import DAEMON_DOWN, NO_SPACE, NOT_ALLOWED, REGISTRY
from kai_lab_pipeline.clients.tools import Hint, Log, Outcome, Runner, Tool, ToolError, version_in

MINIMUM = (0, 20, 0)
HINTS: Sequence[Hint] = (
    NOT_ALLOWED,
    DAEMON_DOWN,
    NO_SPACE,
    Hint(
        r"node\(s\) already exist for a cluster with the name \"(?P<name>[^\"]+)\"",
        "there is already a cluster named {name}",
        "Give the lab another name (lab.name, KAI_LAB_NAME), or remove that cluster: kind delete cluster --name {name}",
    ),
    Hint(
        r"bind: address already in use|port is already allocated",
        "a port that the cluster's API server needs is taken",
        "Stop what listens there ('ss -ltnp'), or change networking.apiServerPort in the kind config.",
    ),
    Hint(
        r"failed to pull image \"(?P<image>[^\"@]+)",
        "the node image {image} is not on this machine and cannot be pulled",
        "Check the network, 'docker pull' it first, or name another one in kind.node_image (KAI_LAB_NODE_IMAGE).",
        transient=True,
    ),
    Hint(
        r"too many open files",
        "the host's inotify limits are too low",
        "sudo sysctl fs.inotify.max_user_watches=524288 fs.inotify.max_user_instances=512",
    ),
    Hint(
        r"requires setting systemd property \"?Delegate=yes|cgroup.*(?:delegat|not (?:available|mounted))",
        "the cgroups are not delegated to this user (rootless)",
        "Set Delegate=yes for user@.service: https://kind.sigs.k8s.io/docs/user/rootless/",
    ),
    Hint(
        r"could not find a log line that matches",
        "the node container did not come up",
        "Look at its exported log; low inotify limits and missing cgroup delegation are the usual causes.",
    ),
    Hint(
        r"kubelet is not healthy|wait-control-plane|required cgroups disabled",
        "the kubelet in the node did not start",
        "Look at the exported kubelet log. Kubernetes 1.35 and newer refuse cgroup v1 hosts: use a node image of 1.34 "
        "(kind.node_image), or a host with cgroup v2.",
    ),
    Hint(
        r"operation not permitted|failed to create shim task",
        "the daemon may not start privileged containers here",
        "kind needs privileged containers: run on a machine (or CI runner) that allows them.",
    ),
    Hint(
        r"unable to decode config|failed to parse patches|error reading file"
        r"|failed to create cluster: (?:\[?invalid |unknown apiVersion|could not determine|must have at least one)",
        "the kind config cannot be used",
        "Correct the file that kind.config names (KAI_LAB_KIND_CONFIG).",
    ),
    Hint(
        r"is not a valid cluster name",
        "kind does not take this cluster name",
        "Use lower-case letters, digits and '-' in lab.name.",
    ),
    Hint(
        r"config\.lock: file exists|failed to lock config file",
        "another program holds the lock of the kubeconfig",
        "Wait for the other kind or kubectl; if there is none, remove the .lock file beside the kubeconfig.",
        transient=True,
    ),
    Hint(
        r"content digest .* not found|failed to detect containerd snapshotter",
        "the image could not be moved into the node directly",
        "The lab tries an archive next; see the lines above.",
    ),
    Hint(r"not present locally", "the image is not in the local docker", "Build or pull it first."),
    Hint(
        r"ctr: unexpected EOF|archive/tar|invalid tar header",
        "the archive is damaged or not an image archive",
        "Make it again: docker save --output FILE IMAGE",
    ),
    Hint(r"is not running", "the node's container is stopped", "Start it: docker start NAME-control-plane"),
    *REGISTRY,
)


class Kind:
    """The kind command line. Every name is matched exactly."""

    def __init__(self, runner: Runner) -> None:
        self._kind = Tool(runner, "kind", HINTS)

    def version(self) -> tuple[int, int, int] | None:
        return version_in(self._kind.call("version", what="kind does not tell its version").stdout)

    def clusters(self) -> tuple[str, ...]:
        """Names of all clusters, stopped ones too."""
        return self._names("get", "clusters", what="The kind clusters cannot be listed")

    def nodes(self, cluster: str) -> tuple[str, ...]:
        """Names of a cluster's node containers; empty when there is no such cluster."""
        return self._names("get", "nodes", "--name", cluster, what=f"The nodes of {cluster} cannot be listed")

    def create(
        self, cluster: str, *, kubeconfig: Path, image: str | None, config: Path | None, deadline_s: float, log: Log
    ) -> None:
        """Make a cluster; on failure its nodes are retained, so that their logs can be read.

        Does not wait for Ready: whoever calls looks at the nodes through the API.
        """
        arguments = ["create", "cluster", "--name", cluster, "--kubeconfig", str(kubeconfig), "--retain"]
        arguments += ["--image", image] if image else []
        arguments += ["--config", str(config)] if config else []
        self._kind.call(*arguments, what=f"kind could not make the cluster {cluster}", deadline_s=deadline_s, log=log)
        if not self.nodes(cluster):
            raise ToolError(
                Outcome(("kind", *arguments), 0, stderr="kind exited 0"), f"kind made no node for {cluster}"
            )

    def delete(self, cluster: str, *, kubeconfig: Path, log: Log, deadline_s: float = 120) -> None:
        """Delete a cluster and see that it is gone; one that is not there is no error."""
        arguments = ("delete", "cluster", "--name", cluster, "--kubeconfig", str(kubeconfig))
        outcome = self._kind.call(
            *arguments, what=f"kind could not delete the cluster {cluster}", deadline_s=deadline_s, log=log
        )
        if cluster in self.clusters():
            raise ToolError(
                outcome,
                f"kind says it deleted {cluster}, and the cluster is still there",
                next_step=f"docker rm -f $(docker ps -aq --filter label=io.x-k8s.kind.cluster={cluster})",
            )

    def export_kubeconfig(self, cluster: str, kubeconfig: Path) -> None:
        """Write the cluster's kubeconfig into a file of our own."""
        self._kind.call(
            *("export", "kubeconfig", "--name", cluster, "--kubeconfig", str(kubeconfig)),
            what=f"The kubeconfig of {cluster} cannot be read",
        )

    def export_logs(self, cluster: str, folder: Path) -> None:
        """Write the logs of all nodes into a folder."""
        self._kind.call(
            *("export", "logs", str(folder), "--name", cluster),
            what=f"The logs of {cluster} cannot be exported",
            deadline_s=120,
        )

    def load_image(self, cluster: str, image: str, *, log: Log) -> None:
        """Copy a local image into every node."""
        self._kind.call(
            *("load", "docker-image", image, "--name", cluster),
            what=f"The image {image} could not be loaded into {cluster}",
            deadline_s=600,
            log=log,
        )

    def load_archive(self, cluster: str, archive: Path, *, log: Log) -> None:
        """Copy the images of an archive into every node."""
        self._kind.call(
            *("load", "image-archive", str(archive), "--name", cluster),
            what=f"The archive {archive.name} could not be loaded into {cluster}",
            deadline_s=900,
            log=log,
        )

    def _names(self, *arguments: str, what: str) -> tuple[str, ...]:
        lines = self._kind.call(*arguments, what=what).stdout.splitlines()
        return tuple(line.strip() for line in lines if line.strip())
