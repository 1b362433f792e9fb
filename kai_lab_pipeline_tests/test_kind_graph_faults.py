"""What can be wrong with a machine or a cluster, through Dagster: one clear message, the state kept, and a rerun."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline.clients.kubeconfig import write_kubeconfig
from kai_lab_pipeline_tests.lab_project import Said
from kai_lab_pipeline_tests.stubs.simulated_place import KindProject, SimulatedCluster, kind_project, simulated_cluster
from kai_lab_pipeline_tests.stubs.workplace import Workplace, make_workplace, recorded

pytestmark = pytest.mark.timeout(300)

WRONG_USE, INFRASTRUCTURE = 2, 3
NAME = "kai-hami-test"
MOCK = "^helm upgrade --install nvml-mock "
HELM_2 = 'Client: &version.Version{SemVer:"v2.17.0", GitCommit:"a690bad", GitTreeState:"clean"}\n'
NO_SPACE = "failed to register layer: write /usr/lib/x86_64-linux-gnu/libc.so.6: no space left on device\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    yield from make_workplace(tmp_path, monkeypatch)


@pytest.fixture
def project(place: Workplace) -> KindProject:
    return kind_project(place)


@pytest.fixture
def cluster(place: Workplace, tmp_path: Path) -> Iterator[SimulatedCluster]:
    with simulated_cluster(place, tmp_path / "simulated") as made:
        yield made


def rule(match: str, tool: str, case: str, **more: Any) -> dict[str, Any]:
    """The recorded words of a tool as the answer to the calls that match."""
    said = recorded(tool)[case]
    return {"match": match, "rc": said["rc"], "out": said["out"], "err": said["err"], **more}


def stopped(said: Said, code: int, asset: str, *words: str) -> None:
    """The run ended with this code, and says once, in a person's words, what stopped it and what to do."""
    assert said.code == code, said.text
    lines = [line.split()[1] for line in said.out.splitlines() if line.startswith("✗")]
    assert [word for word in lines if word.endswith(":")] == [f"{asset}:"], said.text  # the others count red checks
    for text in words:
        assert text in said.text, said.text
    assert "Next: " in said.text or "Do: " in said.text, said.text
    assert "Traceback" not in said.text


# -- the machine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        ("docker", "Install Docker Engine"),
        ("kind", "Install kind 0.20 or newer"),
        ("helm", "Install helm 3 or 4"),
    ],
)
def test_a_tool_that_is_not_there(place: Workplace, project: KindProject, tool: str, says: str) -> None:
    place.remove_tool(tool)
    stopped(project.here("run"), INFRASTRUCTURE, "cluster", f"{tool} is not on the PATH", says)
    assert place.calls("kind", "create") == []


def test_a_daemon_that_does_not_answer(place: Workplace, project: KindProject) -> None:
    place.rules(rule("^docker info", "kind-and-docker", "02-docker-info-dead"))
    stopped(project.here("run"), INFRASTRUCTURE, "cluster", "No docker daemon answers")
    assert place.calls("kind", "create") == []


def test_helm_2(place: Workplace, project: KindProject) -> None:
    place.rules({"match": "^helm version", "out": HELM_2})
    said = project.here("run")
    stopped(said, INFRASTRUCTURE, "cluster", "helm 2.17.0 cannot be used", "Install helm 3 or 4")
    assert place.calls("kind", "create") == []


@pytest.mark.usefixtures("cluster")
def test_an_image_that_does_not_arrive_on_the_node(place: Workplace, project: KindProject) -> None:
    place.rules(rule("^kind load", "kind-and-docker", "11-load-docker-image-ok"))
    said = project.here("run")
    stopped(said, INFRASTRUCTURE, "nvml_mock_image", "nvml-mock:local is not on", "after it was loaded")
    kept(place, project)


@pytest.mark.usefixtures("cluster")
def test_no_space_for_the_image(place: Workplace, project: KindProject) -> None:
    place.rules({"match": "^docker build", "rc": 1, "err": NO_SPACE})
    said = project.here("run")
    stopped(said, INFRASTRUCTURE, "nvml_mock_image", "no space left on device", "docker builder prune")
    kept(place, project)


# -- the registry ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("32-oci-404-repo-version", "registry has no"),
        ("37-auth-401-version", "wants a login"),
        ("39-registry-403", "refuses access"),
    ],
)
def test_a_chart_that_the_registry_does_not_give(place: Workplace, project: KindProject, case: str, says: str) -> None:
    place.rules(rule(MOCK, "helm3", case))
    stopped(project.here("run"), INFRASTRUCTURE, "nvml_mock_release", says)
    assert len(place.calls("helm", "upgrade")) == 1, "what does not pass by itself is not repeated"
    kept(place, project)


@pytest.mark.usefixtures("cluster")
def test_a_registry_that_had_enough_pulls_and_the_run_after_it(place: Workplace, project: KindProject) -> None:
    place.rules(rule(MOCK, "helm4", "39-registry-429"))
    stopped(project.here("run"), INFRASTRUCTURE, "nvml_mock_release", "had enough pulls")
    kept(place, project)
    goes_on(place, project)


# -- the API server --------------------------------------------------------------------------------------------------


def test_an_api_server_that_dies_in_the_middle_and_the_run_after_it(
    place: Workplace, project: KindProject, cluster: SimulatedCluster
) -> None:
    dies = {"kills": cluster.pid, "times": 1}
    place.rules(rule("^helm upgrade --install kai-scheduler ", "helm4", "40-api-refused", **dies))
    said = project.here("run")
    stopped(said, INFRASTRUCTURE, "kai_release", "does not answer")
    kept(place, project)
    cluster.start()
    goes_on(place, project)


# -- a context -------------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(project: KindProject) -> KindProject:
    project.variables = {"KAI_LAB_BACKEND": "context", "KAI_LAB_CONTEXT": "lab"}
    return project


def kubeconfig(place: Workplace, **user: Any) -> None:
    content = {
        "clusters": [{"name": "lab", "cluster": {"server": place.api.url}}],
        "users": [{"name": "me", "user": {"token": "not-a-secret"} | user}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
        "current-context": "lab",
    }
    write_kubeconfig(place.home / ".kube" / "config", content)


def test_a_context_that_is_not_named(place: Workplace, elsewhere: KindProject) -> None:
    kubeconfig(place)
    del elsewhere.variables["KAI_LAB_CONTEXT"]
    stopped(elsewhere.here("run"), WRONG_USE, "cluster", "the current one is never used", "KAI_LAB_CONTEXT")
    assert place.api.names("configmaps") == []


def test_a_context_that_does_not_exist(place: Workplace, elsewhere: KindProject) -> None:
    kubeconfig(place)
    elsewhere.variables["KAI_LAB_CONTEXT"] = "prod"
    stopped(elsewhere.here("run"), WRONG_USE, "cluster", "no kubeconfig context 'prod'", "contexts: lab")
    assert place.api.names("configmaps") == []


def test_a_credential_plugin_that_fails(place: Workplace, elsewhere: KindProject) -> None:
    plugin = place.bin / "cloud-login"
    plugin.write_text("#!/bin/sh\necho 'secret-on-stdout'\necho 'session expired' >&2\nexit 7\n")
    plugin.chmod(0o755)
    kubeconfig(place, exec={"command": "cloud-login", "installHint": "run cloud-login first"})
    said = elsewhere.here("run")
    stopped(said, INFRASTRUCTURE, "cluster", "credential plugin cloud-login failed", "session expired")
    assert "run cloud-login first" in said.text
    told = [said.text, *(file.read_text(errors="replace") for file in place.project.rglob("*") if file.is_file())]
    assert not [text for text in told if "secret-on-stdout" in text]


def test_a_cluster_that_does_not_answer(place: Workplace, elsewhere: KindProject) -> None:
    kubeconfig(place)
    place.api.close()
    stopped(elsewhere.here("run"), INFRASTRUCTURE, "cluster", "does not answer")


# -- afterwards ------------------------------------------------------------------------------------------------------


def kept(place: Workplace, project: KindProject) -> None:
    """What was made before the fault is there, and so is the record of what stopped the run."""
    assert list(place.look()["clusters"]) == [NAME]
    assert (project.lab_dir / "kubeconfig").stat().st_mode & 0o777 == 0o600
    assert (project.newest_bundle() / "cluster" / "observed.json").is_file()
    assert len(json.loads((project.report_dir / "report.json").read_text())["claims"]) == 8


def goes_on(place: Workplace, project: KindProject) -> None:
    """The next run, with the fault gone, goes on from what is there and ends with every claim held."""
    place.rules()
    place.forget_calls()
    said = project.here("run", "--json")
    assert said.code == 0, said.text
    assert said.json["counts"] == {"held": 8, "broken": 0, "not_reachable": 0, "not_evaluated": 0}
    assert place.calls("kind", "create") == [], "the cluster was there"
    assert place.calls("docker", "build") == [], "the image was there"
