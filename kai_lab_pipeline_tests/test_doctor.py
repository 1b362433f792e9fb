"""The doctor finds what is missing before anything is touched, and says how to get it."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from unittest import mock

import pytest

from kai_lab_pipeline.backends.doctor import Finding, Level, blocked, examine
from kai_lab_pipeline.backends.machine import Machine
from kai_lab_pipeline.clients.kubeconfig import write_kubeconfig
from kai_lab_pipeline.clients.mirrors import Mirrors, write_logins
from kai_lab_pipeline.clients.process import Toolbox
from kai_lab_pipeline.clients.tools import Log, Outcome
from kai_lab_pipeline.doctor_cli import doctor_command
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.settings import BackendName, Settings
from kai_lab_pipeline_tests.stubs.workplace import Workplace, make_workplace, recorded

INFO = {"ServerVersion": "28.2.2", "CgroupVersion": "2", "MemTotal": 16 << 30, "DockerRootDir": "/var/lib/docker"}
GOOD: Mapping[str, str] = {
    "kind version": "kind v0.30.0 go1.24 linux/amd64",
    "helm list": "[]",
    "helm version": 'version.BuildInfo{Version:"v3.19.0"}',
    "kubectl version --client": "Client Version: v1.34.0",
    "docker info --format {{json .}}": json.dumps(INFO),
    "kind get clusters": "",
}
FILES: Mapping[str, str] = {
    "/proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable:    8388608 kB\n",
    "/proc/sys/fs/inotify/max_user_watches": "524288",
    "/proc/sys/fs/inotify/max_user_instances": "512",
}


class Run:
    """Tools that print what they are told to; a missing answer is a failure."""

    def __init__(self, **changes: str | Outcome) -> None:
        self.answers: dict[str, str | Outcome] = dict(GOOD)
        for line, answer in changes.items():
            self.answers[line.replace("_", " ")] = answer

    def __call__(
        self,
        command: Sequence[str],
        *,
        deadline_s: float,
        log: Log | None = None,
        stdin: bytes | None = None,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
    ) -> Outcome:
        line = "helm list" if command[:2] == ["helm", "list"] else " ".join(command)
        answer = self.answers.get(line, Outcome(tuple(command), 1, "", "not stubbed"))
        return answer if isinstance(answer, Outcome) else Outcome(tuple(command), 0, answer)


def machine(run: Run | None = None, missing: Sequence[str] = (), **changes: Any) -> Machine:
    """A machine on which all is well, but for the changes."""
    good = Machine(
        run=run or Run(),
        which=lambda tool: None if tool in missing else f"/usr/bin/{tool}",
        read=FILES.get,
        port_taken=lambda host, port: False,
        ask_registry=lambda source, ca_file: "",
        disk_free=lambda path: 100 << 30,
        environ={"HOME": "/nonexistent"},
    )
    return replace(good, **changes)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    yield from make_workplace(tmp_path, monkeypatch)


def look(settings: Settings, on: Machine, backend: BackendName = "kind") -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(settings, backend, on)}


@pytest.mark.parametrize("backend", ["rehearsal", "kind"])
def test_a_good_machine_is_ready(place: Workplace, backend: BackendName) -> None:
    findings = examine(place.settings(), backend, machine())
    assert [finding for finding in findings if finding.level is not Level.OK] == []
    assert not blocked(findings)
    names = [finding.name for finding in findings]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("tool", "advice"),
    [
        ("docker", "docs.docker.com"),
        ("kind", "kind.sigs.k8s.io"),
        ("helm", "helm.sh"),
        ("git", "image.nvml_mock.checkout"),
    ],
)
def test_a_missing_tool_blocks_kind_and_says_how_to_get_it(place: Workplace, tool: str, advice: str) -> None:
    finding = look(place.settings(), machine(missing=[tool]))[tool]
    assert (finding.level, finding.found) == (Level.BLOCKED, "not on the PATH")
    assert advice in finding.fix


def test_the_rehearsal_needs_none_of_them(place: Workplace) -> None:
    bare = machine(missing=["docker", "kind", "helm", "kubectl", "git"])
    assert not blocked(examine(place.settings(), "rehearsal", bare))


@pytest.mark.parametrize(("tool", "line"), [("kind", "kind version"), ("helm", "helm version")])
def test_a_shim_that_fails_is_not_the_version_it_names(place: Workplace, tool: str, line: str) -> None:
    said = f"No version is set for command {tool}\nConsider adding one of the following versions:\n{tool} 3.31.0\n"
    finding = look(place.settings(), machine(Run(**{line: Outcome((tool,), 126, "", said)})))[tool]
    assert finding.level is Level.BLOCKED
    assert finding.found == f"No version is set for command {tool} (exit code 126)"


def test_kubectl_is_only_advised(place: Workplace) -> None:
    assert look(place.settings(), machine(missing=["kubectl"]))["kubectl"].level is Level.WARNING
    old = machine(Run(**{"kubectl version --client": "Client Version: v1.28.2"}))
    assert look(place.settings(), old)["kubectl"].level is Level.WARNING


def test_git_is_not_needed_without_a_clone(place: Workplace) -> None:
    (place.project / "image.tar").write_text("")
    assert "git" not in look(place.settings(image__nvml_mock__archive="image.tar"), machine(missing=["git"]))


@pytest.mark.parametrize(
    ("name", "line", "text", "found"),
    [
        ("kind", "kind version", "kind v0.17.0 go1.19 linux/amd64", "0.17.0"),
        ("helm", "helm version", 'Client: &version.Version{SemVer:"v2.17.0"}', "2.17.0"),
        ("helm", "helm version", 'version.BuildInfo{Version:"v3.13.0"}', "3.13.0"),
        ("helm", "helm version", "what", "what"),
    ],
)
def test_a_version_that_cannot_be_used_blocks(place: Workplace, name: str, line: str, text: str, found: str) -> None:
    finding = look(place.settings(), machine(Run(**{line: text})))[name]
    assert (finding.level, finding.found) == (Level.BLOCKED, found)


def test_a_plain_http_mirror_needs_a_newer_helm(place: Workplace) -> None:
    run = Run(**{"helm version": 'version.BuildInfo{Version:"v3.12.3"}'})
    assert look(place.settings(), machine(run))["helm"].level is Level.OK
    finding = look(place.settings(mirrors={"ghcr.io": "http://127.0.0.1:5000"}), machine(run))["helm"]
    assert finding.level is Level.BLOCKED
    assert "plain HTTP" in finding.needed


@pytest.mark.parametrize("case", ["02-docker-info-dead", "02-docker-info-dead-client28"])
def test_the_binary_alone_is_not_enough(place: Workplace, case: str) -> None:
    words = recorded("kind-and-docker")[case]
    dead = Outcome(("docker", "info"), words["rc"], words["out"], words["err"])
    finding = look(place.settings(), machine(Run(**{"docker info --format {{json .}}": dead})))["docker"]
    assert (finding.level, finding.found) == (Level.BLOCKED, "the daemon does not answer")
    assert "systemctl start docker" in finding.fix


@pytest.mark.parametrize(
    ("kind_version", "node_image", "level"),
    [
        ("v0.30.0", None, Level.WARNING),
        ("v0.33.0", None, Level.BLOCKED),
        ("v0.33.0", "kindest/node:v1.34.0", Level.WARNING),
        ("v0.33.0", "kindest/node:v1.37.0@sha256:12", Level.BLOCKED),
    ],
)
def test_cgroup_v1_blocks_where_the_kubelet_would_refuse_it(
    place: Workplace, kind_version: str, node_image: str | None, level: Level
) -> None:
    info = json.dumps(INFO | {"CgroupVersion": "1"})
    run = Run(**{"docker info --format {{json .}}": info, "kind version": f"kind {kind_version}"})
    finding = look(place.settings(kind__node_image=node_image), machine(run))["cgroup"]
    assert finding.level is level
    assert "KAI_LAB_NODE_IMAGE" in finding.fix


def test_low_inotify_limits_name_the_sysctl(place: Workplace) -> None:
    low = dict(FILES) | {"/proc/sys/fs/inotify/max_user_instances": "128"}
    findings = look(place.settings(), machine(read=low.get))
    assert findings["inotify max_user_instances"].fix == "sudo sysctl fs.inotify.max_user_instances=512"
    assert findings["inotify max_user_watches"].level is Level.OK


@pytest.mark.parametrize(("available_kb", "level"), [(1 << 20, Level.BLOCKED), (3 << 20, Level.WARNING)])
def test_too_little_memory(place: Workplace, available_kb: int, level: Level) -> None:
    text = {"/proc/meminfo": f"MemAvailable: {available_kb} kB"}
    assert look(place.settings(), machine(read=text.get))["memory"].level is level


def test_memory_of_the_daemons_own_machine_counts_elsewhere(place: Workplace) -> None:
    finding = look(place.settings(), machine(read=lambda path: None))["memory"]
    assert finding.found == "16384 MiB for the daemon"


@pytest.mark.parametrize(("free_gib", "level"), [(1, Level.BLOCKED), (5, Level.WARNING), (50, Level.OK)])
def test_too_little_disk(place: Workplace, free_gib: int, level: Level) -> None:
    findings = look(place.settings(), machine(disk_free=lambda path: free_gib << 30))
    assert findings["disk for images"].level is level


def test_a_state_folder_that_cannot_be_written_blocks_everything(place: Workplace) -> None:
    (place.project / "file").write_text("")
    settings = place.settings(lab__state_dir="file/lab")
    finding = look(settings, machine(), "rehearsal")["state folder"]
    assert finding.level is Level.BLOCKED
    assert "KAI_LAB_STATE_DIR" in finding.fix


def test_a_dagster_home_of_somebody_else_is_a_warning(place: Workplace) -> None:
    findings = look(place.settings(), machine(environ={"DAGSTER_HOME": "/elsewhere", "HOME": "/x"}))
    assert findings["DAGSTER_HOME"].level is Level.WARNING
    assert findings["DAGSTER_HOME"].fix.startswith("unset DAGSTER_HOME")


def test_a_foreign_cluster_of_the_name_blocks(place: Workplace) -> None:
    run = Run(**{"kind get clusters": "kai-hami-test2\nkai-hami-test\n"})
    finding = look(place.settings(), machine(run))["cluster name"]
    assert finding.level is Level.BLOCKED
    assert "KAI_LAB_NAME" in finding.fix
    run = Run(**{"kind get clusters": "kai-hami-test2\n"})
    assert look(place.settings(), machine(run))["cluster name"].level is Level.OK


@pytest.mark.parametrize(("mark", "level"), [("ours", Level.OK), ("theirs", Level.BLOCKED), (None, Level.BLOCKED)])
def test_a_cluster_is_the_labs_by_its_mark_whatever_the_record_says(
    place: Workplace, mark: str | None, level: Level
) -> None:
    settings = place.settings()
    settings.lab_dir.mkdir(parents=True)
    (settings.lab_dir / "id").write_text("ours")
    (settings.lab_dir / "kind.json").write_text(
        json.dumps({"cluster": "kai-hami-test", "state": "made", "nodes": {"kai-hami-test-control-plane": "older"}})
    )
    if mark is not None:
        place.api.put("configmaps", "kube-system", "kai-lab-owner", data={"lab": "x", "id": mark, "made": "true"})
    place.change(clusters={"kai-hami-test": "2026-01-01T00:00:00.0Z"})
    stubbed = Machine(run=Toolbox(place.state / "running").run, ask_registry=lambda source, ca_file: "")
    finding = look(settings, stubbed)["cluster name"]
    assert finding.level is level
    assert ("this lab's" in finding.found) is (level is Level.OK)
    assert sorted(file.name for file in settings.lab_dir.iterdir()) == ["id", "kind.json"], "it only reads"


def test_a_fixed_api_port_that_is_taken_blocks(place: Workplace) -> None:
    (place.project / "kind.yaml").write_text("networking: {apiServerPort: 6443}")
    settings = place.settings(kind__config="kind.yaml")
    asked: list[tuple[str, int]] = []

    def taken(host: str, port: int) -> bool:
        asked.append((host, port))
        return True

    assert look(settings, machine(port_taken=taken))["API port"].level is Level.BLOCKED
    assert asked == [("127.0.0.1", 6443)]
    assert look(settings, machine())["API port"].level is Level.OK


NODES = """
nodes:
- role: control-plane
  extraPortMappings:
  - {containerPort: 30080, hostPort: 8080}
  - {containerPort: 30090, hostPort: 9090, listenAddress: 127.0.0.1}
  - {containerPort: 53, hostPort: 53, protocol: UDP}
  - {containerPort: 30100}
- role: worker
"""


def test_a_host_port_that_is_taken_blocks_unless_the_cluster_is_there(place: Workplace) -> None:
    (place.project / "kind.yaml").write_text(NODES)
    settings = place.settings(kind__config="kind.yaml")
    settings.lab_dir.mkdir(parents=True)
    (settings.lab_dir / "kind.json").write_text("{}")  # of a cluster that somebody deleted with kind

    def taken(host: str, port: int) -> bool:
        return (host, port) == ("0.0.0.0", 8080)

    def ports(run: Run | None = None) -> dict[str, Level]:
        found = look(settings, machine(run, port_taken=taken))
        return {name: finding.level for name, finding in found.items() if "port" in name}

    assert ports() == {"host port 8080": Level.BLOCKED, "host port 9090": Level.OK}
    run = Run(**{"kind get clusters": "kai-hami-test\n"})
    assert set(ports(run).values()) == {Level.OK}
    (place.project / "kind.yaml").write_text("nodes: [3]")
    assert ports() == {}


def test_only_a_port_that_somebody_listens_on_is_taken() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert Machine(Run()).port_taken("127.0.0.1", port)
    assert not Machine(Run()).port_taken("192.0.2.1", port)
    with mock.patch.object(socket, "socket", side_effect=OSError(errno.EAFNOSUPPORT, "no IPv6 on this machine")):
        assert not Machine(Run()).port_taken("::1", port)


def test_files_that_the_settings_name_have_to_be_there(place: Workplace) -> None:
    findings = look(place.settings(kind__config="nope.yaml", ca_file="nope.pem"), machine())
    assert findings["kind.config"].level is Level.BLOCKED
    assert findings["ca_file"].found == "nope.pem is not there"


# -- contexts and registries -----------------------------------------------------------------------------------------


def kubeconfig(place: Workplace) -> dict[str, str]:
    content = {
        "clusters": [{"name": "c", "cluster": {"server": place.api.url}}],
        "users": [{"name": "u", "user": {"token": "x"}}],
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "lab",
    }
    write_kubeconfig(place.home / ".kube" / "config", content)
    return {"HOME": str(place.home)}


def test_the_current_context_is_named_and_not_used(place: Workplace) -> None:
    finding = look(place.settings(), machine(environ=kubeconfig(place)))["current context"]
    assert finding.found == "lab (will not be used)"


def test_backend_context_needs_a_name_that_answers(place: Workplace) -> None:
    environ = kubeconfig(place)
    unnamed = look(place.settings(), machine(environ=environ), "context")["context"]
    assert (unnamed.level, unnamed.found) == (Level.BLOCKED, "none is named")
    wrong = look(place.settings(lab__context="nope"), machine(environ=environ), "context")["context"]
    assert wrong.level is Level.BLOCKED
    assert "contexts: lab" in wrong.found
    right = look(place.settings(lab__context="lab"), machine(environ=environ), "context")["context"]
    assert (right.level, right.found) == (Level.OK, "lab: Kubernetes v1.34.0")
    assert place.api.names("configmaps") == []


def test_a_context_that_the_run_would_refuse_is_not_ready(place: Workplace) -> None:
    environ, settings = kubeconfig(place), place.settings(lab__context="lab")
    kai = Run(helm_list=json.dumps([{"name": "kai", "namespace": "kai", "chart": "kai-scheduler-v0.16.8"}]))

    def found(run: Run | None = None) -> str:
        finding = look(settings, machine(run, environ=environ), "context")["context"]
        assert finding.level is Level.BLOCKED
        assert finding.fix
        return finding.found

    assert "KAI Scheduler is there (release kai in namespace kai)" in found(kai)
    place.api.put("configmaps", "kube-system", "kai-lab-owner", data={"lab": "other", "id": "x", "since": "monday"})
    assert "used by lab 'other' with another state folder, since monday" in found()
    place.api.unknown.clear()
    place.api.put("queues", "", "team-a")
    assert "team-a" in found()
    assert not settings.lab_dir.exists(), "the doctor only looks"


def test_registries_are_asked_by_their_mirrors(place: Workplace) -> None:
    asked: list[str] = []

    def ask(source: Any, ca_file: Path | None) -> str:
        asked.append(source.url)
        return "connection refused" if source.plain_http else ""

    findings = look(place.settings(mirrors={"ghcr.io": "http://127.0.0.1:5000"}), machine(ask_registry=ask))
    assert asked == ["http://127.0.0.1:5000", "https://docker.io"]
    assert findings["registry ghcr.io (mirror http://127.0.0.1:5000)"].level is Level.BLOCKED
    assert findings["registry docker.io"].level is Level.OK


def test_a_login_that_will_be_used_is_shown(place: Workplace) -> None:
    write_logins(place.home / ".docker" / "config.json", {"ghcr.io": ("me", "x")})
    finding = look(place.settings(), machine(environ={"HOME": str(place.home)}))["registry ghcr.io"]
    assert str(place.home / ".docker" / "config.json") in finding.found


@pytest.fixture
def registry() -> Iterator[HTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(self.server.status)  # type: ignore[attr-defined]
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("code", "trouble"), [(200, ""), (401, ""), (503, "HTTP status 503"), (429, "HTTP status 429")]
)
def test_a_registry_answers_or_says_why_not(registry: HTTPServer, code: int, trouble: str) -> None:
    registry.status = code  # type: ignore[attr-defined]
    source = Mirrors({"x": f"http://127.0.0.1:{registry.server_address[1]}"}).of("x")
    assert Machine(run=Run()).ask_registry(source, None) == trouble


def test_a_mirror_on_this_machine_is_asked_past_the_proxy(
    registry: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    registry.status = 200  # type: ignore[attr-defined]
    source = Mirrors({"docker.io": f"http://127.0.0.1:{registry.server_address[1]}"}).of("docker.io")
    assert Machine(run=Run()).ask_registry(source, None) == ""


def test_a_registry_that_is_not_there_says_so() -> None:
    assert "refused" in Machine(run=Run()).ask_registry(Mirrors({"x": "http://127.0.0.1:1"}).of("x"), None)


# -- the command -----------------------------------------------------------------------------------------------------


def test_without_docker_the_command_says_what_is_missing_and_exits_3(
    place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = machine(missing=["docker", "kind", "helm"])
    settings = place.settings(lab__backend="rehearsal")
    assert doctor_command(settings, False, machine=bare) == 3
    shown = capsys.readouterr().out
    assert "Backend rehearsal: ready" in shown
    assert "Backend kind: not ready: docker, kind, helm" in shown
    assert "https://docs.docker.com/engine/install/" in shown
    assert doctor_command(settings, False, "rehearsal", machine=bare) == 0


def test_json_lists_each_finding_once(place: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor_command(place.settings(lab__backend="rehearsal"), True, machine=machine()) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ready"] == {"rehearsal": True, "kind": True}
    by_name = {finding["name"]: finding for finding in shown["findings"]}
    assert len(by_name) == len(shown["findings"])
    assert by_name["state folder"]["backends"] == ["rehearsal", "kind"]
    assert by_name["helm"] == {
        "name": "helm",
        "level": "ok",
        "found": "3.19.0",
        "needed": "helm 3 or 4",
        "fix": "",
        "backends": ["kind"],
    }


def test_a_tool_that_hangs_is_a_finding(place: Workplace) -> None:
    class Hangs(Run):
        def __call__(self, command: Sequence[str], **options: Any) -> Outcome:
            if command[0] == "kind":
                raise LabError("kind did not end within 15 s and was stopped")
            return super().__call__(command, **options)

    finding = look(place.settings(), machine(Hangs()))["kind"]
    assert (finding.level, finding.found) == (Level.BLOCKED, "kind did not end within 15 s and was stopped")


def test_on_the_stub_tools_themselves_kind_is_ready(place: Workplace) -> None:
    stubbed = Machine(run=Toolbox(place.state / "running").run, ask_registry=lambda source, ca_file: "")
    assert stubbed.which("kind") == str(place.bin / "kind")
    findings = look(place.settings(), stubbed)
    assert findings["docker"].found == "daemon 20.10.24"
    assert findings["kind"].found == "0.33.0"
    assert findings["cluster name"].level is Level.OK
