"""kind, whose exit codes mislead: what is there is looked at, not what was returned.

Measured with kind 0.33: a `--wait` that ran out exits 0, so does deleting an absent cluster (and it claims to have
deleted it), a stopped node still counts as a cluster, and `load docker-image` calls a dead daemon a missing image.
"""

from __future__ import annotations

from pathlib import Path

from kai_lab_pipeline.clients.tools import Log, Outcome, Runner, Tool, ToolError, version_in

MINIMUM = (0, 20, 0)


class Kind:
    """The kind command line. Every name is matched exactly."""

    def __init__(self, runner: Runner) -> None:
        self._kind = Tool(runner, "kind")

    def version(self) -> tuple[int, int, int] | None:
        return version_in(self._kind.call("version", what="kind does not tell its version").stdout)

    def clusters(self) -> tuple[str, ...]:
        """Names of all clusters, stopped ones too."""
        return self._names("get", "clusters", what="The kind clusters cannot be listed")

    def containers(self, cluster: str) -> tuple[str, ...]:
        """Names of a cluster's containers; empty when there is no such cluster.

        With several control planes kind lists its load balancer among the nodes.
        """
        return self._names("get", "nodes", "--name", cluster, what=f"The nodes of {cluster} cannot be listed")

    def nodes(self, cluster: str) -> tuple[str, ...]:
        """Names of the containers that are nodes: the load balancer has neither containerd nor a kubelet."""
        return tuple(name for name in self.containers(cluster) if name != f"{cluster}-external-load-balancer")

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
