"""What docker, kind and helm really said, read by their clients: cause, remedy, and whether it passes by itself."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline.clients.docker import Docker, full_name
from kai_lab_pipeline.clients.helm import FINDING_FAMILIES, FINDINGS, Helm, nested, value_options
from kai_lab_pipeline.clients.kind import Kind
from kai_lab_pipeline.clients.mirrors import Mirrors, login_file, write_logins
from kai_lab_pipeline.clients.tools import Hint, Log, Outcome, ToolError, version_in
from kai_lab_pipeline.lab.diagnosis.catalogue import FAULTS
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.settings import Chart, Scalar
from kai_lab_pipeline_tests.stubs.workplace import recorded

Answers = Sequence[Outcome | tuple[str, str]]


class Replay:
    """A runner that gives recorded answers, in order, and keeps what was asked."""

    def __init__(self, *answers: tuple[str, str]) -> None:
        """Each answer is (recording, case)."""
        self._answers = [recorded(tool)[case] for tool, case in answers]
        self.asked: list[list[str]] = []
        self.env: list[Mapping[str, str | None]] = []

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
        self.asked.append(list(command))
        self.env.append(env or {})
        case = self._answers[len(self.asked) - 1]
        return Outcome(tuple(command), case["rc"], case["out"], case["err"])


def failure(tool: str, case: str) -> ToolError:
    """The error made of a recorded failure."""
    found = recorded(tool)[case]
    command = tuple(found["cmd"].split())
    return ToolError(Outcome(command, found["rc"], found["out"], found["err"]), "It failed")


@pytest.mark.parametrize(
    ("tool", "case", "fault", "cause"),
    [
        ("kind-and-docker", "02-create-dead", "docker.daemon-down", "No docker daemon answers"),
        ("kind-and-docker", "02-docker-build-dead-buildkit", "docker.daemon-down", "No docker daemon answers"),
        ("kind-and-docker", "04-create-image-missing", "kind.node-image", "kindest/node:v1.34.0-local"),
        ("kind-and-docker", "07-create-port-taken", "kind.port-taken", "Port 6443"),
        ("kind-and-docker", "07-create-kubelet-dies", "kind.kubelet", "kubelet"),
        ("kind-and-docker", "07-exists", "kind.cluster-exists", "already a kind cluster kai-kind-test"),
        ("kind-and-docker", "05-build-legacy-failstep", "docker.build-step-failed", "Dockerfile failed"),
        ("helm3", "32-oci-404-repo-version", "registry.not-found", "chart/nope:0.3.0"),
        ("helm4", "37-auth-401-version", "registry.unauthorized", "wants a login"),
        ("helm4", "39-registry-429", "registry.rate-limit", "nothing about the version"),
        ("helm3", "41-context-missing", "kubernetes.context-missing", "kind-nope"),
        ("helm4", "40-api-refused", "kubernetes.api-down", "does not answer"),
        ("helm3", "50-hook-fail-hami-yes", "helm.hook-failed", "post-install hook"),
    ],
)
def test_recorded_failures_become_errors_with_cause_and_remedy(tool: str, case: str, fault: str, cause: str) -> None:
    error = failure(tool, case)
    assert error.fault == fault
    assert cause in error.cause
    assert error.what == f"It failed: {error.cause} (exit code {error.exit_code_of_tool})"
    assert error.exit_code_of_tool != 0
    assert error.next_step == error.remedy != ""
    assert len(error.tail.splitlines()) <= 12
    assert error.exit_code == 3


@pytest.mark.parametrize("tool", ["kind-and-docker", "helm3", "helm4"])
def test_every_recorded_failure_of_a_tool_is_a_known_one(tool: str) -> None:
    failures = [case for case, words in recorded(tool).items() if words["rc"] != 0 and words["err"].strip()]
    unknown = [case for case in failures if not failure(tool, case).fault]
    assert len(failures) > 40
    assert len(unknown) <= len(failures) // 10, unknown


def test_a_hint_of_the_client_comes_first() -> None:
    found = recorded("helm3")["39-registry-403"]
    hint = Hint(r"status code (?P<code>\d+)", "login refused with {code}", "log in")
    error = ToolError(Outcome(("helm",), found["rc"], "", found["err"]), "No", [hint])
    assert (error.cause, error.remedy, error.fault) == ("login refused with 403", "log in", "")


# -- kind and docker -------------------------------------------------------------------------------------------------


def test_no_clusters_is_no_error() -> None:
    assert Kind(Replay(("kind-and-docker", "03-get-clusters-none"))).clusters() == ()


def test_cluster_names_are_whole_lines() -> None:
    clusters = Kind(Replay(("kind-and-docker", "14-client28-get-clusters"))).clusters()
    assert clusters == ("kai-kind-test", "kai-two")
    assert "kai-kind" not in clusters


def test_kind_tells_its_version() -> None:
    assert Kind(Replay(("kind-and-docker", "01-kind-version"))).version() == (0, 33, 0)


def test_a_deletion_is_only_believed_when_the_name_is_gone(tmp_path: Path) -> None:
    replay = Replay(("kind-and-docker", "08-delete-exists"), ("kind-and-docker", "10-get-clusters-one"))
    with pytest.raises(ToolError, match="the cluster is still there"):
        Kind(replay).delete("kai-kind-test", kubeconfig=tmp_path / "k", log=lambda line: None)
    assert replay.asked[1] == ["kind", "get", "clusters"]


def test_a_wait_that_ran_out_is_no_success_by_itself(tmp_path: Path) -> None:
    replay = Replay(("kind-and-docker", "14-client28-create-wait1s"), ("kind-and-docker", "03-get-nodes-none"))
    with pytest.raises(ToolError, match="made no node"):
        Kind(replay).create(
            "kai-w", kubeconfig=tmp_path / "k", image=None, config=None, deadline_s=1, log=lambda line: None
        )


@pytest.mark.parametrize("case", ["02-docker-info-dead", "02-docker-info-dead-client28"])
def test_a_dead_daemon_is_told_from_its_info(case: str) -> None:
    with pytest.raises(ToolError, match="No docker daemon answers") as caught:
        Docker(Replay(("kind-and-docker", case))).daemon()
    assert "systemctl start docker" in caught.value.next_step


def test_a_dead_daemon_is_not_a_missing_image() -> None:
    replay = Replay(("kind-and-docker", "02-docker-image-inspect-dead"), ("kind-and-docker", "02-docker-info-dead"))
    with pytest.raises(ToolError, match="No docker daemon answers"):
        Docker(replay).image_id("x:1")


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("nvml-mock:local", "docker.io/library/nvml-mock:local"),
        ("busybox", "docker.io/library/busybox:latest"),
        ("docker.io/busybox", "docker.io/library/busybox:latest"),
        ("projecthami/x:1", "docker.io/projecthami/x:1"),
        ("localhost/x", "localhost/x:latest"),
        ("127.0.0.1:5000/a/b", "127.0.0.1:5000/a/b:latest"),
        ("ghcr.io/a/b@sha256:12", "ghcr.io/a/b@sha256:12"),
    ],
)
def test_image_names_are_compared_as_containerd_writes_them(name: str, full: str) -> None:
    assert full_name(name) == full


# -- helm ------------------------------------------------------------------------------------------------------------


def helm(replay: Replay, tmp_path: Path, **options: Any) -> Helm:
    return Helm(replay, kubeconfig=tmp_path / "kc", context="kind-x", home=tmp_path / "h", root=tmp_path, **options)


@pytest.mark.parametrize(("major", "all_states"), [("helm3", True), ("helm4", False)])
def test_releases_of_all_states_are_listed_with_either_helm(tmp_path: Path, major: str, all_states: bool) -> None:
    case = "06-pending-install-list-a" if all_states else "06-pending-install-list"
    replay = Replay((major, "00-version"), (major, case))
    rows = {row["name"]: row["status"] for row in helm(replay, tmp_path).releases()}
    assert rows["web6"] == "pending-install"
    assert ("-a" in replay.asked[1]) is all_states
    assert replay.asked[1][replay.asked[1].index("--max") + 1] == "1000000"
    assert replay.asked[1][-4:] == ["--kubeconfig", str(tmp_path / "kc"), "--kube-context", "kind-x"]


@pytest.mark.parametrize(("major", "all_states"), [("helm3", ["-a"]), ("helm4", [])])
def test_one_release_is_asked_for_by_its_whole_name_in_all_states(
    tmp_path: Path, major: str, all_states: list[str]
) -> None:
    case = "06-pending-install-list-a" if all_states else "06-pending-install-list"
    replay = Replay((major, "00-version"), (major, case))
    rows = json.loads(recorded(major)[case]["out"])
    row = next(row for row in rows if row["name"] == "web6")
    assert helm(replay, tmp_path).find("web6", row["namespace"]) == row
    wanted = ["-n", row["namespace"], "--filter", "^web6$", *all_states, "--max", "1000000", "-o", "json"]
    assert replay.asked[1][2:-4] == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('Client: &version.Version{SemVer:"v2.17.0"}', "helm 2.17.0 cannot be used"),
        ('version.BuildInfo{Version:"v3.13.0", GitCommit:"825e86f"}', "helm 3.13.0"),
        ("garbage", "does not tell its version"),
    ],
)
def test_helm_that_cannot_be_used_is_refused(tmp_path: Path, text: str, message: str) -> None:
    def run(command: Sequence[str], **options: Any) -> Outcome:
        return Outcome(tuple(command), 0, text)

    with pytest.raises(LabError, match=message):
        Helm(run, kubeconfig=tmp_path, context="x", home=tmp_path, root=tmp_path).version()


def test_what_a_failed_helm_says_of_versions_is_none_of_its_own(tmp_path: Path) -> None:
    shim = "No version is set for command helm\nConsider adding one of the following versions:\nhelm 3.19.2\n"

    def run(command: Sequence[str], **options: Any) -> Outcome:
        return Outcome(tuple(command), 126, "", shim)

    with pytest.raises(ToolError, match="does not tell its version"):
        Helm(run, kubeconfig=tmp_path, context="x", home=tmp_path, root=tmp_path).version()


def test_values_keep_the_types_they_have_in_the_settings() -> None:
    values: dict[str, Scalar] = {
        "a.b": True,
        "n": 3,
        "f": 0.5,
        "tag": "1",
        "word": "true",
        "list": "{a,b}",
        "path": "x\\y",
    }
    assert value_options(values) == [
        *("--set", "a.b=true"),
        *("--set", "n=3"),
        *("--set-json", "f=0.5"),
        *("--set-string", "tag=1"),
        *("--set-string", "word=true"),
        *("--set-string", "list=\\{a\\,b}"),
        *("--set-string", "path=x\\\\y"),
    ]


def test_nested_values_are_what_helm_shows() -> None:
    found = json.loads(recorded("helm3")["01-deployed-kai-values"]["out"])
    assert nested({"global.gpuSharing": True, "binder.plugins.hamicore.enabled": True}) == found
    assert nested({"a\\.b.c": 1}) == {"a.b": {"c": 1}}
    assert nested({"t[0].key": "gpu", "t[0].operator": "Exists", "t[2]": 1, "m[0][1]": 2}) == {
        "t": [{"key": "gpu", "operator": "Exists"}, None, 1],
        "m": [[None, 2]],
    }
    for odd in ("", "[0]", "a[b]", "a[", "a.[1]", "a[99999999]"):
        assert isinstance(nested({"a.b": 3, "a": 2, odd: 1}), dict), odd


CHART = Chart(chart="oci://ghcr.io/kai-scheduler/kai-scheduler", version="v0.17.0", release="kai", namespace="kai-ns")


def install(tmp_path: Path, chart: Chart, **options: Any) -> tuple[list[str], Mapping[str, str | None]]:
    replay = Replay(("helm3", "31-oci-ok"))
    helm(replay, tmp_path, **options).upgrade_install(chart, deadline_s=60, log=lambda line: None)
    return replay.asked[0], replay.env[0]


def test_an_upgrade_drops_earlier_values_and_names_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELM_NAMESPACE", "somewhere")
    monkeypatch.setenv("HELM_KUBEASGROUPS", "admins")
    asked, env = install(tmp_path, CHART)
    assert asked[1:7] == ["upgrade", "--install", "kai", CHART.chart, "--version", "v0.17.0"]
    for option in ("--reset-values", "--create-namespace", "--kubeconfig", "--kube-context"):
        assert option in asked
    assert "--wait" not in asked
    assert "--plain-http" not in asked
    assert {"HELM_NAMESPACE", "HELM_KUBEASGROUPS"} <= {name for name, value in env.items() if value is None}
    assert str(env["HELM_REGISTRY_CONFIG"]).startswith(str(tmp_path / "h"))


def test_a_mirror_replaces_the_registry(tmp_path: Path) -> None:
    asked, _ = install(tmp_path, CHART, mirrors={"ghcr.io": "http://127.0.0.1:5000/proxy"})
    assert "oci://127.0.0.1:5000/proxy/kai-scheduler/kai-scheduler" in asked
    assert "--plain-http" in asked


PEM = "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----"


def test_own_certificates_are_trusted_beside_the_system_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system, folder, ca = tmp_path / "system.pem", tmp_path / "certs", tmp_path / "ca.pem"
    folder.mkdir()
    system.write_text(f"# all of them\n{PEM.format('one')}\n{PEM.format('two')}\n")
    (folder / "3.pem").write_text(PEM.format("three"))
    (folder / "again.pem").symlink_to(system)
    (folder / "nowhere.0").symlink_to(tmp_path / "gone")
    ca.write_text(PEM.format("ours"))
    monkeypatch.setenv("SSL_CERT_FILE", str(system))
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    asked, _ = install(tmp_path, CHART, mirrors={"docker.io": "https://mirror.corp"}, ca_file=ca)
    given = Path(asked[asked.index("--ca-file") + 1]).read_text()
    assert given == "".join(f"{PEM.format(name)}\n" for name in ("ours", "one", "two", "three"))


@pytest.mark.parametrize(("text", "why"), [(None, "No such file"), ("-----BEGIN PRIVATE KEY-----", "no certificate")])
def test_a_ca_file_without_certificates_is_wrong_use(tmp_path: Path, text: str | None, why: str) -> None:
    if text is not None:
        (tmp_path / "ca.pem").write_text(text)
    with pytest.raises(WrongUse, match=why):
        install(tmp_path, CHART, ca_file=tmp_path / "ca.pem")


def test_a_mirrors_password_is_in_a_file_of_ours_and_on_no_command_line(tmp_path: Path) -> None:
    asked, env = install(tmp_path, CHART, mirrors={"ghcr.io": "https://lab:s3cret@mirror.corp"})
    assert not [word for word in asked if "s3cret" in word]
    file = Path(str(env["HELM_REGISTRY_CONFIG"]))
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(json.loads(file.read_text())["auths"]) == ["mirror.corp"]


def test_releases_that_are_installed_at_once_have_a_login_each(tmp_path: Path) -> None:
    mirrors = {"ghcr.io": "https://a:1@mirror.corp/ghcr", "docker.io": "https://b:2@mirror.corp/hub"}
    isolator = CHART.model_copy(update={"chart": "oci://docker.io/projecthami/kai-resource-isolator"})
    files = [Path(str(install(tmp_path, one, mirrors=mirrors)[1]["HELM_REGISTRY_CONFIG"])) for one in (CHART, isolator)]
    logins = [json.loads(file.read_text())["auths"]["mirror.corp"]["auth"] for file in files]
    assert [base64.b64decode(login) for login in logins] == [b"a:1", b"b:2"]
    assert [len(list(file.parent.iterdir())) for file in files] == [1, 1]


def test_a_login_of_the_user_is_used_and_named_when_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HELM_REGISTRY_CONFIG", str(tmp_path / "none.json"))
    write_logins(tmp_path / "config.json", {"ghcr.io": ("me", "expired")})
    replay = Replay(("helm3", "39-registry-403"))
    with pytest.raises(ToolError, match="refuses this login") as caught:
        helm(replay, tmp_path).upgrade_install(CHART, deadline_s=60, log=lambda line: None)
    assert str(tmp_path / "config.json") in caught.value.next_step
    assert "helm registry logout ghcr.io" in caught.value.next_step
    assert "DOCKER_CONFIG" not in replay.env[0]
    assert replay.env[0]["HELM_REGISTRY_CONFIG"] is None, "helm looks into docker's by itself"


def test_a_login_of_helm_is_used_wherever_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "mine.json"
    monkeypatch.setenv("HELM_REGISTRY_CONFIG", str(own))
    write_logins(own, {"ghcr.io": ("me", "x")})
    assert install(tmp_path, CHART)[1]["HELM_REGISTRY_CONFIG"] == str(own)


def test_a_login_for_another_registry_is_not_taken(tmp_path: Path) -> None:
    environ = {"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)}
    write_logins(tmp_path / "config.json", {"https://index.docker.io/v1/": ("me", "x")})
    assert login_file("ghcr.io", environ) is None
    assert login_file("docker.io", environ) == tmp_path / "config.json"


def test_local_charts_need_no_version_option(tmp_path: Path) -> None:
    (tmp_path / "chart").mkdir()
    (tmp_path / "chart" / "Chart.yaml").write_text("name: kai\nversion: v0.17.0\n")
    asked, _ = install(tmp_path, CHART.model_copy(update={"chart": "chart"}))
    assert str(tmp_path / "chart") in asked
    assert "--version" not in asked


@pytest.mark.parametrize(("version", "message"), [("v0.16.8", "local chart is v0.16.8"), (None, "is not there")])
def test_a_local_chart_that_is_not_the_pinned_one_is_wrong_use(
    tmp_path: Path, version: str | None, message: str
) -> None:
    if version:
        (tmp_path / "chart").mkdir()
        (tmp_path / "chart" / "Chart.yaml").write_text(f"name: kai\nversion: {version}\n")
    with pytest.raises(WrongUse, match=message):
        install(tmp_path, CHART.model_copy(update={"chart": "chart"}))


@pytest.mark.parametrize("major", ["helm3", "helm4"])
def test_uninstalling_twice_is_no_error(tmp_path: Path, major: str) -> None:
    listed = "01-deployed-list-a" if major == "helm3" else "01-deployed-list"
    replay = Replay((major, "05d-uninstall-twice"), (major, "00-version"), (major, listed))
    assert helm(replay, tmp_path).uninstall("web", "h5", log=lambda line: None) is None


def test_mirrors_without_a_scheme_are_https() -> None:
    source = Mirrors({"docker.io": "mirror.corp:5000/hub"}).of("index.docker.io")
    assert (source.url, source.plain_http, source.loopback) == ("https://mirror.corp:5000/hub", False, False)


@pytest.mark.parametrize(
    ("text", "version"),
    [("v0.17.0", (0, 17, 0)), ('Version:"v4.3"', (4, 3, 0)), ("Client Version: v1.32.4", (1, 32, 4)), ("none", None)],
)
def test_versions_are_read_from_any_text(text: str, version: tuple[int, int, int] | None) -> None:
    assert version_in(text) == version


class Rendering(Replay):
    """A helm whose answer to `template` is this text."""

    def __init__(self, out: str, err: str = "", exit_code: int = 0) -> None:
        super().__init__()
        self._answers = [{"out": out, "err": err, "rc": exit_code}]


def test_a_fetched_chart_is_rendered_without_a_cluster(tmp_path: Path) -> None:
    run = Rendering("---\n# Source: a.yaml\nkind: A\n---\n---\nkind: B\n---\n# only a comment\n")
    archive = tmp_path / "kai-scheduler-v0.18.2.tgz"
    helm = Helm(run, kubeconfig=tmp_path / "none", context="nowhere", home=tmp_path, root=tmp_path)
    chart = CHART.model_copy(update={"values": {"global.gpuSharing": True, "global.tag": "8"}})
    assert [one["kind"] for one in helm.template(chart, archive)] == ["A", "B"]
    [asked] = run.asked
    assert asked[:4] == ["helm", "template", "kai", str(archive)]
    assert asked[asked.index("--namespace") + 1] == "kai-ns"
    assert asked[-4:] == ["--set", "global.gpuSharing=true", "--set-string", "global.tag=8"]
    assert not {"--kubeconfig", "--kube-context", "--version", "--validate"} & set(asked), "it asks nobody"


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (
            Rendering("", 'Error: execution error: Unknown GPU profile "a1000"\n', 1),
            r"could not render kai v0\.17\.0",
        ),
        (Rendering("a: [\n"), "rendered no YAML"),
    ],
)
def test_a_chart_that_cannot_be_rendered_is_told(tmp_path: Path, run: Rendering, words: str) -> None:
    helm = Helm(run, kubeconfig=tmp_path / "none", context="nowhere", home=tmp_path, root=tmp_path)
    with pytest.raises(ToolError, match=words):
        helm.template(CHART, tmp_path)


@pytest.mark.parametrize(
    ("tool", "case", "finding"),
    [
        ("helm3", "50-hook-fail-hami-yes", True),
        ("helm3", "53-upgrade-hook-fail", True),
        ("helm3", "21-schema-count-str", True),
        ("helm4", "21-profile-unknown", True),
        ("helm3", "55-queue-exists-before-upgrade-install", True),
        ("helm4", "45-rbac-edit-kai", True),
        ("helm3", "12-quota", True),
        ("helm3", "32-oci-404-repo", False),
        ("helm3", "39-registry-403", False),
        ("helm4", "37-auth-401", False),
        ("helm3", "36-registry-dns", False),
        ("helm3", "40-api-refused", False),
        ("helm3", "06-then-upgrade", False),
        ("helm3", "08-sigterm-install", False),
    ],
)
def test_a_failed_installation_is_a_finding_only_where_it_speaks_about_the_chart(
    tool: str, case: str, finding: bool, tmp_path: Path
) -> None:
    with pytest.raises(ToolError) as caught:
        helm(Replay((tool, case)), tmp_path).upgrade_install(CHART, deadline_s=60, log=lambda line: None)
    assert caught.value.finding is finding, caught.value.fault


def test_words_alone_make_no_finding() -> None:
    # Of docker, a registry or a proxy these words say nothing about what was to be installed.
    for words in ("denied the request", "access is forbidden", "is invalid", "cannot patch"):
        outcome = Outcome(("docker", "pull", "x"), 1, "", f"Error response from daemon: the proxy {words}")
        assert not ToolError(outcome, "The image cannot be pulled").finding
        assert not LabError("The registry did not answer", seen=words).finding


def test_what_is_listed_as_a_finding_is_a_known_fault() -> None:
    known = {fault.id for fault in FAULTS}
    assert set(FINDINGS) <= known
    assert set(FINDING_FAMILIES) <= {id_.partition(".")[0] for id_ in known}
