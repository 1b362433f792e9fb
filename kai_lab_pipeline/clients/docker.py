"""Docker as the lab uses it: is the daemon there, build, save and load images, look into a kind node.

The binary alone proves nothing, and a dead daemon can look like a missing image: `require_daemon` asks first. Words as
recorded from Docker 20.10 and 28.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kai_lab_pipeline.clients.tools import Log, Outcome, Runner, Tool, ToolError

START_IT = "Start the daemon ('sudo systemctl start docker', or Docker Desktop) and check with 'docker info'."


@dataclass(frozen=True)
class Daemon:
    """What ``docker info`` says about the daemon."""

    server_version: str
    cgroup_version: str
    memory_bytes: int
    root_dir: str
    rootless: bool
    operating_system: str = ""
    id: str = ""
    """Another one on every daemon, and the same for as long as it keeps its data."""


@dataclass(frozen=True)
class NodeImage:
    """An image in a node's container runtime."""

    id: str
    names: tuple[str, ...]

    @property
    def tag(self) -> str | None:
        """A name with a tag, if it has one."""
        return next((name for name in self.names if "@" not in name), None)

    @property
    def pulled(self) -> bool:
        """Whether it came from a registry, with a digest in the tag's own repository.

        What kind loads has a digest as well, under a name made up for the day: ``.../import-2026-11-30@sha256:...``.
        """
        if self.tag is None:
            return False
        repository = full_name(self.tag).rpartition(":")[0]
        return any(name.partition("@")[0] == repository for name in self.names if "@" in name)

    @property
    def digests(self) -> frozenset[str]:
        """``sha256:...`` by which a pod's status may name it: its id, and the digests of its names."""
        return frozenset({self.id, *(name.rpartition("@")[2] for name in self.names if "@" in name)})

    def is_called(self, name: str) -> bool:
        return full_name(name) in {full_name(tag) for tag in self.names}


def full_name(image: str) -> str:
    """An image reference with the registry, namespace and tag that docker and containerd add by themselves.

    >>> full_name("nvml-mock:local")
    'docker.io/library/nvml-mock:local'
    """
    first, slash, rest = image.partition("/")
    if not slash:
        image = f"docker.io/library/{image}"
    elif not ("." in first or ":" in first or first == "localhost"):
        image = f"docker.io/{image}"
    elif first == "docker.io" and "/" not in rest:
        image = f"docker.io/library/{rest}"
    last = image.rsplit("/", 1)[-1]
    return image if ":" in last or "@" in last else f"{image}:latest"


class Docker:
    """The docker command line."""

    def __init__(self, runner: Runner) -> None:
        self._docker = Tool(runner, "docker")

    def daemon(self) -> Daemon:
        """What the daemon says about itself; raises ToolError when it does not answer, ToolMissing without docker."""
        outcome = self._docker.attempt("info", "--format", "{{json .}}", deadline_s=30)
        facts = _json(outcome)
        broken = [str(error) for error in facts.get("ServerErrors") or ()]
        if outcome.exit_code != 0 or broken or not facts.get("ServerVersion"):
            told = Outcome(outcome.command, outcome.exit_code, "\n".join(broken) or outcome.stdout, outcome.stderr)
            raise ToolError(told, "Docker cannot be used", next_step=START_IT)
        return Daemon(
            server_version=str(facts["ServerVersion"]),
            cgroup_version=str(facts.get("CgroupVersion") or ""),
            memory_bytes=int(facts.get("MemTotal") or 0),
            root_dir=str(facts.get("DockerRootDir") or ""),
            rootless=any("rootless" in str(option) for option in facts.get("SecurityOptions") or ()),
            operating_system=str(facts.get("OperatingSystem") or ""),
            id=str(facts.get("ID") or ""),
        )

    def image_id(self, name: str) -> str | None:
        """Id of a local image, or None when there is none of that name; raises ToolError when the daemon is down."""
        outcome = self._docker.attempt("image", "inspect", "--format", "{{.Id}}", name)
        if outcome.exit_code == 0:
            return outcome.stdout.strip()
        self.daemon()
        if "no such image" in outcome.text.lower() or "not found" in outcome.text.lower():
            return None
        raise ToolError(outcome, f"The image {name} cannot be looked up")

    def label(self, image: str, key: str) -> str | None:
        """A label of a local image, or None."""
        outcome = self._docker.attempt("image", "inspect", "--format", "{{json .Config.Labels}}", image)
        value = _json(outcome).get(key) if outcome.exit_code == 0 else None
        return None if value is None else str(value)

    def build(
        self, context: Path, dockerfile: Path, tag: str, *, labels: Mapping[str, str], deadline_s: float, log: Log
    ) -> str:
        """Build an image and return its id, looked up afterwards. Either builder will do."""
        marks = [part for key, value in labels.items() for part in ("--label", f"{key}={value}")]
        self._docker.call(
            *("build", "--tag", tag, *marks, "--file", str(dockerfile), str(context)),
            what=f"The image {tag} could not be built",
            deadline_s=deadline_s,
            log=log,
        )
        found = self.image_id(tag)
        if found is None:
            outcome = Outcome(("docker", "build", "--tag", tag), 0, stdout="the build exited 0")
            raise ToolError(outcome, f"docker built something, but there is no image {tag}")
        return found

    def save(self, images: Sequence[str], archive: Path, *, deadline_s: float = 600) -> None:
        """Write local images into an archive."""
        self._docker.call(
            *("save", "--output", str(archive), *images),
            what=f"The image {', '.join(images)} could not be saved",
            deadline_s=deadline_s,
        )

    def node_images(self, node: str) -> tuple[NodeImage, ...]:
        """Images in the container runtime of a kind node."""
        outcome = self._docker.call(
            "exec", node, "crictl", "images", "-o", "json", what=f"The images on node {node} cannot be read"
        )
        rows = _json(outcome).get("images") or ()
        return tuple(
            NodeImage(str(row.get("id", "")), (*(row.get("repoTags") or ()), *(row.get("repoDigests") or ())))
            for row in rows
        )

    def pull_on_node(self, node: str, image: str, *, deadline_s: float = 300) -> None:
        """Let a kind node's container runtime pull an image, by the mirrors and logins of the node."""
        self._docker.call(
            *("exec", node, "crictl", "pull", image), what=f"{node} could not pull {image}", deadline_s=deadline_s
        )

    def running(self, container: str) -> bool:
        """Whether a container runs; False when it is stopped or absent."""
        outcome = self._docker.attempt("inspect", "--format", "{{.State.Running}}", container)
        return outcome.exit_code == 0 and outcome.stdout.strip() == "true"

    def container_id(self, container: str) -> str | None:
        """Id of a container, which no other one ever has; None when it is absent."""
        outcome = self._docker.attempt("inspect", "--format", "{{.Id}}", container)
        return outcome.stdout.strip() or None if outcome.exit_code == 0 else None

    def created(self, container: str) -> datetime | None:
        """When a container was made; None when it is absent."""
        outcome = self._docker.attempt("inspect", "--format", "{{.Created}}", container)
        # Docker writes nanoseconds; Python reads at most microseconds.
        found = re.match(r"(\S+?)(?:\.\d+)?Z", outcome.stdout) if outcome.exit_code == 0 else None
        return datetime.fromisoformat(f"{found[1]}+00:00") if found else None

    def start(self, container: str) -> None:
        """Start a stopped container."""
        self._docker.call("start", container, what=f"{container} could not be started")

    def write_in(self, container: str, path: str, text: str) -> None:
        """Write a text file inside a container, with its folder."""
        folder = path.rsplit("/", 1)[0]
        what = f"{path} could not be written in {container}"
        self._docker.call("exec", container, "mkdir", "-p", folder, what=what)
        self._docker.call("exec", "-i", container, "cp", "/dev/stdin", path, what=what, stdin=text.encode())

    def gateway(self, network: str) -> str | None:
        """IPv4 gateway of a docker network: the host as its containers see it; None when the network is absent."""
        outcome = self._docker.attempt("network", "inspect", "--format", "{{json .IPAM.Config}}", network)
        if outcome.exit_code != 0:
            return None
        try:
            rows = json.loads(outcome.stdout)
        except ValueError:
            return None
        gateways = [str(row["Gateway"]) for row in rows or () if ":" not in str(row.get("Gateway", ":"))]
        return gateways[0] if gateways else None


def _json(outcome: Outcome) -> Mapping[str, Any]:
    try:
        parsed = json.loads(outcome.stdout)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
