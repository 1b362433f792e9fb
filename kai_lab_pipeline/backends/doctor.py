"""What this machine has and what a lab needs, looked at before anything is touched.

`examine` only reads: it starts no daemon, makes no cluster and writes nothing but a probe file in the state folder.
Each finding says what was found, what is needed, the command that mends it, and whether it stands in the way.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kai_lab_pipeline.backends.kind_owner import KindOwner
from kai_lab_pipeline.backends.machine import Machine
from kai_lab_pipeline.backends.ports import fixed_ports
from kai_lab_pipeline.backends.tenancy import refuse_taken
from kai_lab_pipeline.backends.toolbox import user_kubeconfig
from kai_lab_pipeline.clients.docker import Daemon, Docker
from kai_lab_pipeline.clients.helm import KNOWN_BAD
from kai_lab_pipeline.clients.kind import MINIMUM as KIND_MINIMUM
from kai_lab_pipeline.clients.kind import Kind
from kai_lab_pipeline.clients.kubeconfig import check_plugin, write_kubeconfig
from kai_lab_pipeline.clients.kubernetes import Cluster
from kai_lab_pipeline.clients.mirrors import OCI, Mirrors, login_file, registry_of
from kai_lab_pipeline.clients.process import Toolbox
from kai_lab_pipeline.clients.redaction import redact
from kai_lab_pipeline.clients.tools import INSTALL, version_in, version_of
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.settings import BackendName, Settings

KUBECTL_MINIMUM = (1, 31, 0)
PLAIN_HTTP_HELM = (3, 13, 0)
"""First helm with --plain-http."""
INOTIFY = {"max_user_watches": 524288, "max_user_instances": 512}
"""What kind's documentation asks for; KAI, the mock and kube-system together pass the usual defaults."""
MEMORY_MIB = {"blocked": 2048, "warning": 4096}
DISK_MIB = {"blocked": 3 * 1024, "warning": 10 * 1024}
STATE_DISK_MIB = {"blocked": 100, "warning": 500}
CGROUP_V2_ONLY = (1, 35)
"""First Kubernetes whose kubelet refuses hosts with cgroup v1."""
KIND_WITH_CGROUP_V2_ONLY = (0, 31, 0)
"""First kind whose default node image is that Kubernetes."""
MIB = 1024 * 1024


class Level(str, Enum):
    """How much a finding matters."""

    OK = "ok"
    WARNING = "warning"
    BLOCKED = "blocked"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    level: Level
    found: str
    needed: str = ""
    fix: str = ""
    """A command or step; empty where nothing is to be mended."""

    def to_json(self) -> dict[str, str]:
        return {
            "name": self.name,
            "level": self.level.value,
            "found": self.found,
            "needed": self.needed,
            "fix": self.fix,
        }


def examine(settings: Settings, backend: BackendName, machine: Machine | None = None) -> tuple[Finding, ...]:
    """Everything `backend` needs of this machine, in the order in which it would be needed."""
    with tempfile.TemporaryDirectory() as scratch:
        if machine is None:
            machine = Machine(run=Toolbox(Path(scratch) / "running").run)
        doctor = _Doctor(settings, machine, Path(scratch))
        return tuple({"rehearsal": doctor.rehearsal, "kind": doctor.kind, "context": doctor.context}[backend]())


def blocked(findings: Iterable[Finding]) -> bool:
    return any(finding.level is Level.BLOCKED for finding in findings)


class _Doctor:
    def __init__(self, settings: Settings, machine: Machine, scratch: Path) -> None:
        self._settings = settings
        self._machine = machine
        self._scratch = scratch
        self._docker = Docker(machine.run)

    def rehearsal(self) -> list[Finding]:
        return [self._state_folder(), self._state_disk(), self._dagster_home()]

    def kind(self) -> list[Finding]:
        kind_finding, kind_version = self._kind_version()
        docker_finding, daemon = self._daemon()
        findings = [*self.rehearsal(), docker_finding, kind_finding, self._helm(), self._kubectl(), *self._building()]
        findings += [*self._files(), self._cgroup(daemon, kind_version), *self._inotify(), self._memory(daemon)]
        findings += [self._docker_disk(daemon), *self._ports()]
        if daemon is not None and kind_version is not None:
            findings.append(self._cluster_name())
        return [*findings, *self._registries(), self._current_context()]

    def context(self) -> list[Finding]:
        return [*self.rehearsal(), self._helm(), self._kubectl(), *self._named_context(), *self._registries()]

    # -- the lab's own folders ---------------------------------------------------------------------------------------

    def _state_folder(self) -> Finding:
        folder = self._settings.state_root
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as probe:
                probe.write(b"x")
        except OSError as error:
            return Finding(
                "state folder",
                Level.BLOCKED,
                f"{folder}: {error.strerror}",
                "a folder that can be written",
                "Name another folder in lab.state_dir (KAI_LAB_STATE_DIR), or free disk space.",
            )
        return Finding("state folder", Level.OK, str(folder), "a folder that can be written")

    def _state_disk(self) -> Finding:
        return self._space("disk for the state", self._settings.state_root, STATE_DISK_MIB)

    def _space(self, name: str, folder: Path, limits: Mapping[str, int], fix: str = "df -h") -> Finding:
        at = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
        try:
            free = self._machine.disk_free(at) // MIB
        except OSError as error:
            return Finding(name, Level.WARNING, f"{at}: {error.strerror}", f"{limits['warning']} MiB free")
        return _amount(name, free, limits, f"{free} MiB free at {at}", fix)

    def _dagster_home(self) -> Finding:
        chosen = self._machine.environ.get("DAGSTER_HOME")
        ours = self._settings.dagster_home
        needed = f"{ours}, where the lab's history is kept"
        if chosen and Path(chosen).resolve() != ours.resolve():
            return Finding(
                "DAGSTER_HOME", Level.WARNING, chosen, needed, "unset DAGSTER_HOME (kai-lab and make set their own)"
            )
        return Finding("DAGSTER_HOME", Level.OK, chosen or "not set: the lab sets it", needed)

    # -- tools -------------------------------------------------------------------------------------------------------

    def _version(self, tool: str, *arguments: str) -> tuple[str, tuple[int, int, int] | None]:
        """What a tool says about its version: (nothing, None) when it is missing or says none."""
        if self._machine.which(tool) is None:
            return "not on the PATH", None
        try:
            outcome = self._machine.run([tool, *arguments], deadline_s=15)
        except LabError as error:
            return error.what, None
        version = version_of(outcome)
        if version is not None:
            return _dotted(version), version
        said = redact(next(iter(outcome.text.splitlines()), "says nothing"))
        return said if outcome.exit_code == 0 else f"{said} (exit code {outcome.exit_code})", None

    def _kind_version(self) -> tuple[Finding, tuple[int, int, int] | None]:
        found, version = self._version("kind", "version")
        needed = f"{_dotted(KIND_MINIMUM)} or newer"
        if version is None or version < KIND_MINIMUM:
            return Finding("kind", Level.BLOCKED, found, needed, INSTALL["kind"]), None
        return Finding("kind", Level.OK, found, needed), version

    def _helm(self) -> Finding:
        found, version = self._version("helm", "version")
        needed = "helm 3 or 4"
        if version is None or version[0] not in (3, 4):
            return Finding("helm", Level.BLOCKED, found, needed, INSTALL["helm"])
        if version in KNOWN_BAD:
            return Finding("helm", Level.BLOCKED, found, KNOWN_BAD[version], INSTALL["helm"])
        plain = [host for host, source in Mirrors(self._settings.mirrors) if source.plain_http]
        if plain and version < PLAIN_HTTP_HELM:
            needed = f"helm {_dotted(PLAIN_HTTP_HELM)} or newer for the plain HTTP mirror of {plain[0]}"
            return Finding("helm", Level.BLOCKED, found, needed, INSTALL["helm"])
        return Finding("helm", Level.OK, found, needed)

    def _kubectl(self) -> Finding:
        found, version = self._version("kubectl", "version", "--client")
        needed = f"{_dotted(KUBECTL_MINIMUM)} or newer, for looking by hand; the lab itself does not use it"
        if version is None or version < KUBECTL_MINIMUM:
            return Finding("kubectl", Level.WARNING, found, needed, INSTALL["kubectl"])
        return Finding("kubectl", Level.OK, found, needed)

    def _daemon(self) -> tuple[Finding, Daemon | None]:
        needed = "a docker daemon that answers 'docker info'"
        if self._machine.which("docker") is None:
            return Finding("docker", Level.BLOCKED, "not on the PATH", needed, INSTALL["docker"]), None
        try:
            daemon = self._docker.daemon()
        except LabError as error:
            found = "the daemon does not answer" if getattr(error, "fault", "") == "docker.daemon-down" else error.what
            return Finding("docker", Level.BLOCKED, found, needed, error.next_step), None
        rootless = ", rootless" if daemon.rootless else ""
        return Finding("docker", Level.OK, f"daemon {daemon.server_version}{rootless}", needed), daemon

    def _building(self) -> list[Finding]:
        """git, where the image is built from a git ref."""
        image = self._settings.image.nvml_mock
        if image.archive or image.checkout:
            return []
        needed = f"git, to clone {image.git_ref}; not with image.nvml_mock.checkout or .archive"
        path = self._machine.which("git")
        if path is None:
            return [Finding("git", Level.BLOCKED, "not on the PATH", needed, INSTALL["git"])]
        return [Finding("git", Level.OK, path, needed)]

    def _files(self) -> list[Finding]:
        """Files that the settings name."""
        image, kind = self._settings.image.nvml_mock, self._settings.kind
        named = [("image.nvml_mock.checkout", image.checkout), ("image.nvml_mock.archive", image.archive)]
        named += [("kind.config", kind.config), ("ca_file", self._settings.ca_file)]
        named += [("kind.preload", archive) for archive in kind.preload]
        return [
            Finding(key, Level.OK, name, "a file that is there")
            if self._settings.project_file(name).exists()
            else Finding(
                key, Level.BLOCKED, f"{name} is not there", "a file that is there", f"Correct {key} in lab.toml"
            )
            for key, name in named
            if name
        ]

    # -- the host ----------------------------------------------------------------------------------------------------

    def _cgroup(self, daemon: Daemon | None, kind_version: tuple[int, int, int] | None) -> Finding:
        version = daemon.cgroup_version if daemon else ""
        if not version:
            version = "2" if self._machine.read("/sys/fs/cgroup/cgroup.controllers") is not None else "1"
        needed = f"cgroup v2 for Kubernetes {_dotted(CGROUP_V2_ONLY)} and newer"
        if version != "1":
            return Finding("cgroup", Level.OK, f"v{version}", needed)
        image = self._settings.kind.node_image
        kubernetes = version_in(image.partition("@")[0].rpartition(":")[2]) if image else None
        if image:
            refused = kubernetes is not None and kubernetes[:2] >= CGROUP_V2_ONLY
        else:
            refused = kind_version is not None and kind_version >= KIND_WITH_CGROUP_V2_ONLY
        fix = "export KAI_LAB_NODE_IMAGE=kindest/node:v1.34.0, or boot with systemd.unified_cgroup_hierarchy=1"
        return Finding("cgroup", Level.BLOCKED if refused else Level.WARNING, "v1", needed, fix)

    def _inotify(self) -> list[Finding]:
        findings = []
        for name, needed in INOTIFY.items():
            text = self._machine.read(f"/proc/sys/fs/inotify/{name}")
            if text is None or not text.isdigit():
                continue  # not Linux: the daemon's own machine has them, out of sight
            low = int(text) < needed
            level, fix = (Level.WARNING, f"sudo sysctl fs.inotify.{name}={needed}") if low else (Level.OK, "")
            findings.append(Finding(f"inotify {name}", level, text, str(needed), fix))
        return findings

    def _memory(self, daemon: Daemon | None) -> Finding:
        text = self._machine.read("/proc/meminfo") or ""
        available = next((line.split()[1] for line in text.splitlines() if line.startswith("MemAvailable:")), None)
        if available is not None:
            free = int(available) // 1024
            return _amount("memory", free, MEMORY_MIB, f"{free} MiB available", "Close what uses it, or add memory.")
        if daemon is not None and daemon.memory_bytes:
            total = daemon.memory_bytes // MIB
            fix = "Give Docker's machine more memory in its settings."
            return _amount("memory", total, MEMORY_MIB, f"{total} MiB for the daemon", fix)
        return Finding("memory", Level.WARNING, "unknown", f"{MEMORY_MIB['warning']} MiB available")

    def _docker_disk(self, daemon: Daemon | None) -> Finding:
        root = Path(daemon.root_dir) if daemon and daemon.root_dir.startswith("/") else Path("/var/lib/docker")
        return self._space(
            "disk for images", root, DISK_MIB, "docker system df; docker image prune; docker builder prune"
        )

    def _ports(self) -> list[Finding]:
        """The ports of this machine that the kind config fixes."""
        if not self._settings.kind.config:
            return []
        ports = fixed_ports(self._settings.project_file(self._settings.kind.config))
        taken = [port for port in ports if self._machine.port_taken(port.host, port.number)]
        if taken and self._has_cluster():
            taken = []
        findings = []
        for port in ports:
            needed = f"port {port.number} of {port.host} free, or held by the lab's own cluster"
            finding = Finding(port.name, Level.OK, f"port {port.number}", needed)
            if port in taken:
                fix = f"Stop what listens there ('ss -ltnp'), or change {port.key} in the kind config."
                finding = Finding(port.name, Level.BLOCKED, f"port {port.number} is taken", needed, fix)
            findings.append(finding)
        return findings

    def _has_cluster(self) -> bool:
        """Whether kind has a cluster of the lab's name; whose it is is a finding of its own."""
        try:
            return self._settings.lab.name in Kind(self._machine.run).clusters()
        except LabError:
            return False

    def _cluster_name(self) -> Finding:
        name = self._settings.lab.name
        needed = f"no foreign kind cluster named {name}"
        kind = Kind(self._machine.run)
        try:
            clusters = kind.clusters()
        except LabError as error:
            return Finding("cluster name", Level.WARNING, error.what, needed, error.next_step)
        if name not in clusters:
            return Finding("cluster name", Level.OK, f"{name} is free", needed)
        try:
            KindOwner(self._settings, self._docker, kind, scratch=self._scratch).refuse_foreign()
        except LabError as error:
            found = f"{name} is there, and this lab did not make it: {error.seen}"
            fix = f"Set KAI_LAB_NAME to another name, or, if nobody needs it: kind delete cluster --name {name}"
            return Finding("cluster name", Level.BLOCKED, found, needed, fix)
        return Finding("cluster name", Level.OK, f"{name} is there and this lab's", needed)

    # -- clusters and registries -------------------------------------------------------------------------------------

    def _current_context(self) -> Finding:
        needed = "nothing: the lab has a kubeconfig of its own and never uses the current context"
        try:
            current = user_kubeconfig(self._settings, self._machine.environ).current
        except LabError as error:
            return Finding("current context", Level.OK, f"not read: {error.what} ({error.where})", needed)
        return Finding("current context", Level.OK, f"{current} (will not be used)" if current else "none", needed)

    def _named_context(self) -> list[Finding]:
        findings = [self._current_context()]
        context = self._settings.lab.context
        needed = "the name of a context in lab.context (KAI_LAB_CONTEXT)"
        if not context:
            fix = "kubectl config get-contexts; then export KAI_LAB_CONTEXT=NAME"
            return [*findings, Finding("context", Level.BLOCKED, "none is named", needed, fix)]
        needed = "a context that answers and is free for the lab"
        try:
            machine = self._machine
            persons = user_kubeconfig(self._settings, machine.environ)
            content = persons.minimal(context)
            check_plugin(content, machine.run)
            file = self._scratch / "kubeconfig"
            write_kubeconfig(file, content)
            cluster = Cluster(file, context, shown=persons.where(context))
            version = cluster.version()
            mark = refuse_taken(cluster, self._settings, machine.run if machine.which("helm") else None)
        except LabError as error:
            found = f"{error.what}. {error.seen}".strip(". ")
            return [*findings, Finding("context", Level.BLOCKED, found, needed, error.next_step)]
        owner = f", used by lab {mark.lab} since {mark.since}" if mark else ""
        return [*findings, Finding("context", Level.OK, f"{context}: Kubernetes {version}{owner}", needed)]

    def _registries(self) -> list[Finding]:
        """Whether the registries of the charts answer; local charts need none."""
        charts = self._settings.charts.by_component().values()
        hosts = dict.fromkeys(registry_of(chart.chart) for chart in charts if chart.chart.startswith(OCI))
        mirrors = Mirrors(self._settings.mirrors)
        ca_file = self._settings.project_file(self._settings.ca_file) if self._settings.ca_file else None
        findings = []
        for host in hosts:
            source = mirrors.of(host)
            name = f"registry {host}" if source.host == host else f"registry {host} (mirror {source.url})"
            trouble = self._machine.ask_registry(source, ca_file if ca_file and ca_file.exists() else None)
            needed = "an answer to HEAD /v2/"
            if trouble:
                fix = "Check the network or proxy; or give a mirror (KAI_LAB_MIRRORS) or local charts in lab.toml."
                findings.append(Finding(name, Level.BLOCKED, trouble, needed, fix))
                continue
            login = login_file(source.host, self._machine.environ)
            note = f"; the login in {login} will be used" if login else ""
            findings.append(Finding(name, Level.OK, f"answers{note}", needed))
        return findings


def _amount(name: str, value: int, limits: Mapping[str, int], found: str, fix: str) -> Finding:
    needed = f"{limits['warning']} MiB; with less than {limits['blocked']} MiB it cannot work"
    if value < limits["blocked"]:
        return Finding(name, Level.BLOCKED, found, needed, fix)
    if value < limits["warning"]:
        return Finding(name, Level.WARNING, found, needed, fix)
    return Finding(name, Level.OK, found, needed)


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
