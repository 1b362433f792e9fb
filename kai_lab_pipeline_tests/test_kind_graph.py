"""The whole graph on backend kind: the lab's own command lines, stubs on the PATH, simulated components behind them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kai_lab_pipeline_tests.lab_project import processes_in
from kai_lab_pipeline_tests.stubs.simulated_place import kind_project, simulated_cluster
from kai_lab_pipeline_tests.stubs.workplace import Workplace, make_workplace

pytestmark = pytest.mark.timeout(300)

NAME, IMAGE = "kai-hami-test", "nvml-mock:local"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    yield from make_workplace(tmp_path, monkeypatch)


def test_the_graph_runs_on_the_labs_own_command_lines(place: Workplace, tmp_path: Path) -> None:
    project = kind_project(place)
    with simulated_cluster(place, tmp_path / "simulated"):
        ran = project.run("run", "--json")
        assert ran.code == 0, ran.text
        assert ran.json["counts"] == {"held": 8, "broken": 0, "not_reachable": 0, "not_evaluated": 0}
        assert ran.json["boundary"] == "expected"
        assert "Traceback" not in ran.err
        assert "DEBUG" not in ran.err, "the steps' processes do not log on the terminal"
        lab = project.lab_dir
        kubeconfig = ["--kubeconfig", str(lab / "kubeconfig")]
        (source,) = (project.settings.state_root / "sources").glob("nvml-mock-v0.3.0-*")
        made_and_filled(place, source, kubeconfig)
        installed(place, [*kubeconfig, "--kube-context", f"kind-{NAME}"])
        assert {env["HELM_CACHE_HOME"] for env in place.environments("helm", "upgrade")} == {str(lab / "helm/cache")}
        assert (lab / "kubeconfig").stat().st_mode & 0o777 == 0o600
        assert not (place.home / ".kube").exists(), "the person's own kubeconfig is not touched"
        down = project.call("down")
        assert down.code == 0, down.text
        assert place.calls("kind", "delete") == [["kind", "delete", "cluster", "--name", NAME, *kubeconfig]]
        assert place.look()["clusters"] == {}
        assert not (lab / "kubeconfig").exists()
        assert processes_in(place.project) == []


def made_and_filled(place: Workplace, source: Path, kubeconfig: list[str]) -> None:
    """One cluster, and one image that was cloned, built and loaded."""
    assert place.calls("kind", "create") == [["kind", "create", "cluster", "--name", NAME, *kubeconfig, "--retain"]]
    (clone,) = place.calls("git", "clone")
    origin = "https://github.com/NVIDIA/k8s-test-infra.git"
    assert clone[:-1] == ["git", "clone", "--depth", "1", "--branch", "v0.3.0", "--", origin]
    (build,) = place.calls("docker", "build")
    label = f"kai-lab.source={origin}@v0.3.0#{(source / '.git' / 'commit').read_text()}"
    file = str(source / "deployments" / "nvml-mock" / "Dockerfile")
    assert build == ["docker", "build", "--tag", IMAGE, "--label", label, "--file", file, str(source)]
    assert place.calls("kind", "load") == [["kind", "load", "docker-image", IMAGE, "--name", NAME]]
    assert ["docker", "exec", f"{NAME}-control-plane", "crictl", "images", "-o", "json"] in place.calls("docker")


def installed(place: Workplace, target: list[str]) -> None:
    """Three charts with exactly their values, and no call of helm without kubeconfig and context."""
    for call in place.calls("helm"):
        assert call == ["helm", "version"] or call[-4:] == target
    charts = {call[3]: call[4:-4] for call in place.calls("helm", "upgrade")}
    assert all(call[1:3] == ["upgrade", "--install"] for call in place.calls("helm", "upgrade"))
    assert len(place.calls("helm", "upgrade")) == len(charts), "none is installed twice"
    assert charts == {
        "nvml-mock": [
            *("oci://ghcr.io/nvidia/k8s-test-infra/chart/nvml-mock", "--version", "0.3.0", "--namespace", "default"),
            *("--create-namespace", "--reset-values", "--set-string", "gpu.profile=a100"),
            *("--set-string", "image.repository=nvml-mock", "--set-string", "image.tag=local", "--timeout", "180s"),
        ],
        "kai-scheduler": [
            *("oci://ghcr.io/kai-scheduler/kai-scheduler/kai-scheduler", "--version", "v0.17.0"),
            *("--namespace", "kai-scheduler", "--create-namespace", "--reset-values"),
            *("--set", "global.gpuSharing=true", "--set", "binder.plugins.hamicore.enabled=true", "--timeout", "300s"),
        ],
        "kai-resource-isolator": [
            *("oci://docker.io/projecthami/kai-resource-isolator", "--version", "1.1.0-chart"),
            *("--namespace", "kai-resource-isolator", "--create-namespace", "--reset-values"),
            *("--set", "monitor.enabled=true", "--timeout", "180s"),
        ],
    }
