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

from kai_lab_pipeline.clients.tools import Hint, Log, Outcome, Runner, Tool, ToolError

DAEMON_DOWN = Hint(
    r"cannot connect to the docker daemon|error during connect|is the docker daemon running",
    "the Docker daemon does not answer",
    "Start it ('sudo systemctl start docker', or Docker Desktop) and check with 'docker info'.",
)
NOT_ALLOWED = Hint(
    r"permission denied while trying to connect to the docker daemon",
    "this user may not talk to the Docker daemon",
    "Add the user to the docker group ('sudo usermod -aG docker $USER', then log in again) or use rootless Docker.",
)
NO_SPACE = Hint(
    r"no space left on device",
    "the disk is full",
    "Free space ('docker system df', 'docker system prune', 'df -h') and run it again.",
)
REGISTRY: Sequence[Hint] = (
    Hint(
        r"toomanyrequests|too many requests|status code 429",
        "the registry's rate limit is reached",
        "Wait, log in, or give a mirror of the registry in lab.toml [mirrors]; this says nothing about the version.",
        transient=True,
    ),
    Hint(
        r"basic credential not found|unauthorized|authentication required|status code 401",
        "the registry wants credentials (401)",
        "Log in to the registry, or remove an expired login with 'helm registry logout HOST' and 'docker logout HOST'.",
    ),
    Hint(
        r"status code 403|denied: requested access|403 Forbidden|\bdenied: denied",
        "the registry refuses access (403)",
        "For a public image or chart this is usually an expired login: 'helm registry logout HOST', 'docker logout "
        "HOST'. Otherwise check the name.",
    ),
    Hint(
        r"lookup (?P<host>\S+?)(?: on \S+)?: (?:no such host|.*server misbehaving|.*temporary failure)",
        "the name {host} cannot be resolved",
        "Check the network and the name; without internet give a mirror in lab.toml [mirrors] or a local archive.",
        transient=True,
    ),
    Hint(
        r"x509: certificate",
        "the registry's certificate is not trusted",
        "Name its authority's PEM file in lab.toml ca_file (KAI_LAB_CA_FILE).",
    ),
    Hint(
        r"server gave HTTP response to HTTPS client",
        "the registry speaks plain HTTP",
        "Write the mirror with http:// in lab.toml [mirrors], or list it under the daemon's insecure-registries.",
    ),
    Hint(
        r"(?:i/o|handshake) timeout|network is unreachable|no route to host",
        "the network does not answer",
        "Check the network or the proxy; without internet give mirrors or archives in lab.toml.",
        transient=True,
    ),
)
HINTS: Sequence[Hint] = (
    NOT_ALLOWED,
    DAEMON_DOWN,
    NO_SPACE,
    Hint(
        r"buildx component is missing or broken",
        "DOCKER_BUILDKIT=1 is set, but this client has no buildx",
        "Unset DOCKER_BUILDKIT, or install the docker-buildx plugin.",
    ),
    Hint(
        r"unable to evaluate symlinks in dockerfile path|failed to read dockerfile|dockerfile: no such file",
        "the Dockerfile is not there",
        "Check image.nvml_mock.dockerfile and the checkout or git ref in lab.toml.",
    ),
    Hint(
        r"returned a non-zero code|executor failed running|did not complete successfully",
        "a step of the Dockerfile failed",
        "Its output is above; a step that downloads needs the network: give image.nvml_mock.archive to go without.",
    ),
    Hint(
        r"is not running",
        "the container is not running",
        "Start it with 'docker start NAME', or let the lab make the cluster anew.",
    ),
    *REGISTRY,
)


@dataclass(frozen=True)
class Daemon:
    """What ``docker info`` says about the daemon."""

    server_version: str
    cgroup_version: str
    memory_bytes: int
    root_dir: str
    rootless: bool
    operating_system: str = ""


@dataclass(frozen=True)
class NodeImage:
    """An image in a node's container runtime."""

    id: str
    names: tuple[str, ...]

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
        self._docker = Tool(runner, "docker", HINTS)

    def daemon(self) -> Daemon:
        """What the daemon says about itself; raises ToolError when it does not answer, ToolMissing without docker."""
        outcome = self._docker.attempt("info", "--format", "{{json .}}", deadline_s=30)
        facts = _json(outcome)
        broken = [str(error) for error in facts.get("ServerErrors") or ()]
        if outcome.exit_code != 0 or broken or not facts.get("ServerVersion"):
            told = Outcome(outcome.command, outcome.exit_code, "\n".join(broken) or outcome.stdout, outcome.stderr)
            raise ToolError(told, "Docker cannot be used", HINTS, next_step=DAEMON_DOWN.remedy)
        return Daemon(
            server_version=str(facts["ServerVersion"]),
            cgroup_version=str(facts.get("CgroupVersion") or ""),
            memory_bytes=int(facts.get("MemTotal") or 0),
            root_dir=str(facts.get("DockerRootDir") or ""),
            rootless=any("rootless" in str(option) for option in facts.get("SecurityOptions") or ()),
            operating_system=str(facts.get("OperatingSystem") or ""),
        )

    def image_id(self, name: str) -> str | None:
        """Id of a local image, or None when there is none of that name; raises ToolError when the daemon is down."""
        outcome = self._docker.attempt("image", "inspect", "--format", "{{.Id}}", name)
        if outcome.exit_code == 0:
            return outcome.stdout.strip()
        self.daemon()
        if "no such image" in outcome.text.lower() or "not found" in outcome.text.lower():
            return None
        raise ToolError(outcome, f"The image {name} cannot be looked up", HINTS)

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

    def running(self, container: str) -> bool:
        """Whether a container runs; False when it is stopped or absent."""
        outcome = self._docker.attempt("inspect", "--format", "{{.State.Running}}", container)
        return outcome.exit_code == 0 and outcome.stdout.strip() == "true"

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
