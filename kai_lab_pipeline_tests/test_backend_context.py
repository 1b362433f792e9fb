"""The context backend: a cluster of somebody else, of which only what the lab made is ever touched."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kai_lab_pipeline.assets.gpus import image_version
from kai_lab_pipeline.backends.context import ContextBackend
from kai_lab_pipeline.backends.owner import read_mark
from kai_lab_pipeline.clients.kubeconfig import Kubeconfig, kubeconfig_files, write_kubeconfig
from kai_lab_pipeline.clients.kubernetes import Cluster
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline_tests.stubs.api import ApiStub, ready, status
from kai_lab_pipeline_tests.stubs.workplace import QuickTools, Workplace, make_workplace

NODE = "kai-hami-test-control-plane"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    for workplace in make_workplace(tmp_path, monkeypatch):
        kubeconfig(workplace)
        yield workplace


def kubeconfig(place: Workplace, **user: Any) -> Path:
    """The person's kubeconfig: context ``prod`` is current, ``lab`` is the one for the lab."""
    file = place.home / ".kube" / "config"
    content = {
        "clusters": [
            {"name": "lab", "cluster": {"server": place.api.url}},
            {"name": "prod", "cluster": {"server": "https://prod.invalid"}},
        ],
        "users": [{"name": "me", "user": {"token": "not-a-secret"} | user}, {"name": "root", "user": {"token": "no"}}],
        "contexts": [
            {"name": "prod", "context": {"cluster": "prod", "user": "root"}},
            {"name": "lab", "context": {"cluster": "lab", "user": "me"}},
        ],
        "current-context": "prod",
    }
    write_kubeconfig(file, content)
    return file


def backend(place: Workplace, **overrides: Any) -> ContextBackend:
    options = {"lab__backend": "context", "lab__context": "lab"} | overrides
    lab = ContextBackend(place.settings(**options), pause=lambda seconds: None)
    lab.use(QuickTools(lab.tools.registry, lab.tools.transcripts))
    return lab


def quiet(line: str) -> None:
    pass


# -- which cluster ---------------------------------------------------------------------------------------------------


def test_only_the_named_context_is_copied(place: Workplace) -> None:
    facts = backend(place).ensure_cluster(quiet)
    assert (facts.context, facts.made) == ("lab", False)
    content = yaml.safe_load(facts.kubeconfig.read_text())
    assert [entry["name"] for entry in content["contexts"]] == ["lab"]
    assert [entry["name"] for entry in content["clusters"] + content["users"]] == ["lab", "me"]
    assert "prod" not in facts.kubeconfig.read_text()
    assert facts.kubeconfig.stat().st_mode & 0o777 == 0o600
    assert "v1.34.0" in facts.note


def test_without_a_name_nothing_is_touched(place: Workplace) -> None:
    with pytest.raises(WrongUse, match="the current one is never used") as caught:
        backend(place, lab__context=None).ensure_cluster(quiet)
    assert caught.value.exit_code == 2
    assert place.api.names("configmaps") == []


def test_a_context_that_does_not_exist_names_those_that_do(place: Workplace) -> None:
    with pytest.raises(WrongUse, match="no kubeconfig context 'nope'") as caught:
        backend(place, lab__context="nope").ensure_cluster(quiet)
    assert caught.value.seen == "contexts: prod, lab"
    assert caught.value.exit_code == 2


def test_a_cluster_that_does_not_answer_is_infrastructure(place: Workplace) -> None:
    place.api.close()
    with pytest.raises(LabError, match="did not answer") as caught:
        backend(place).ensure_cluster(quiet)
    assert caught.value.exit_code == 3
    assert caught.value.where == f"context lab of {place.home}/.kube/config", "the lab's own copy is gone by then"


def test_a_credential_plugin_that_fails_is_named(place: Workplace) -> None:
    plugin = place.bin / "cloud-login"
    plugin.write_text("#!/bin/sh\necho 'secret-on-stdout'\necho 'session expired' >&2\nexit 7\n")
    plugin.chmod(0o755)
    hint = "run cloud-login first"
    kubeconfig(place, exec={"command": "cloud-login", "args": ["token"], "installHint": hint})
    lab = backend(place)
    with pytest.raises(LabError, match=r"credential plugin cloud-login failed \(exit code 7\)") as caught:
        lab.ensure_cluster(quiet)
    assert caught.value.seen == "session expired"
    assert caught.value.next_step == hint
    assert "secret-on-stdout" not in str(caught.value)
    kept = [file.read_text() for file in place.settings().lab_dir.rglob("*") if file.is_file()]
    assert not [text for text in kept if "secret-on-stdout" in text]


def test_a_credential_plugin_that_asks_for_it_is_told_of_the_cluster(place: Workplace) -> None:
    plugin = place.bin / "cloud-login"
    plugin.write_text('#!/bin/sh\necho "$KUBERNETES_EXEC_INFO" >&2\nexit 7\n')
    plugin.chmod(0o755)
    kubeconfig(place, exec={"command": "cloud-login", "provideClusterInfo": True})
    with pytest.raises(LabError, match="credential plugin") as caught:
        backend(place).ensure_cluster(quiet)
    assert json.loads(caught.value.seen)["spec"] == {"interactive": False, "cluster": {"server": place.api.url}}


def test_a_context_without_a_user_is_used_as_it_is(place: Workplace) -> None:
    """As that of `kubectl proxy`, which asks for no credentials."""
    file = kubeconfig(place)
    content = yaml.safe_load(file.read_text())
    del content["contexts"][1]["context"]["user"]
    write_kubeconfig(file, content)
    facts = backend(place).ensure_cluster(quiet)
    assert yaml.safe_load(facts.kubeconfig.read_text())["users"] == []
    assert Cluster(facts.kubeconfig, facts.context).version() == "v1.34.0"


def test_kubeconfig_lists_are_merged_and_files_embedded(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (one / "ca.crt").write_text("CA")
    (one / "config").write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "c", "cluster": {"server": "https://x", "certificate-authority": "ca.crt"}}],
                "contexts": [{"name": "ctx", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
            }
        )
    )
    (two / "config").write_text(
        yaml.safe_dump(
            {
                "users": [{"name": "u", "user": {"exec": {"command": "./plugin"}, "tokenFile": "token"}}],
                "contexts": [{"name": "ctx", "context": {"cluster": "other", "user": "other"}}],
                "current-context": "ctx",
            }
        )
    )
    environ = {"KUBECONFIG": os.pathsep.join(["", str(one / "config"), str(two / "config"), "/nonexistent"])}
    found = Kubeconfig(kubeconfig_files(None, environ))
    content = found.minimal("ctx")
    assert content["clusters"][0]["cluster"] == {
        "server": "https://x",
        "certificate-authority-data": base64.b64encode(b"CA").decode(),
    }
    user = content["users"][0]["user"]
    assert user == {"exec": {"command": str(two / "plugin")}, "tokenFile": str(two / "token")}
    assert content["contexts"][0]["context"]["namespace"] == "n"
    assert found.current == "ctx"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("a: [", LabError, "cannot be read"),
        ("- a", LabError, "no YAML mapping"),
        ("contexts: [{name: x, context: {cluster: nope, user: u}}]", WrongUse, "names the cluster 'nope'"),
        (
            "contexts: [{name: x, context: {cluster: c, user: u}}]\n"
            "clusters: [{name: c, cluster: {certificate-authority: gone.crt}}]",
            LabError,
            "certificate-authority that cannot be read",
        ),
    ],
)
def test_broken_kubeconfigs_are_one_sentence(tmp_path: Path, text: str, error: type[LabError], message: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(error, match=message) as caught:
        Kubeconfig([file]).minimal("x")
    assert str(tmp_path) in caught.value.where


# -- whose cluster ---------------------------------------------------------------------------------------------------


def test_foreign_queues_are_refused(place: Workplace) -> None:
    place.api.unknown.clear()
    for name in ("default", "default-queue", "team-a"):
        place.api.put("queues", "", name)
    with pytest.raises(LabError, match="not free for the lab") as caught:
        backend(place).ensure_cluster(quiet)
    assert "team-a" in caught.value.seen
    assert place.api.names("configmaps") == []


def test_a_kai_release_of_others_is_refused_unless_it_is_handed_over(place: Workplace) -> None:
    place.api.put("namespaces", "", "kai")
    place.release("kai", "their-kai", "kai-scheduler-v0.16.8")
    with pytest.raises(LabError, match="not free for the lab") as caught:
        backend(place).ensure_cluster(quiet)
    label = "--context lab label namespace kai app.kubernetes.io/part-of=kai-lab"
    assert f"kubectl {label}" in caught.value.next_step
    named = kubeconfig(place).rename(place.project / "kube.yaml")
    with pytest.raises(LabError, match="not free for the lab") as caught:
        backend(place, lab__kubeconfig="kube.yaml").ensure_cluster(quiet)
    assert f"kubectl --kubeconfig {named} {label}" in caught.value.next_step, "and not another one's context"
    kubeconfig(place)
    place.api.put("namespaces", "", "kai", metadata={"labels": {"app.kubernetes.io/part-of": "kai-lab"}})
    backend(place).ensure_cluster(quiet)
    assert (
        place.api.objects["configmaps", "kube-system", "kai-lab-owner"]["data"]["release.kai.their-kai"]
        == "kai_scheduler"
    )


def test_a_handed_over_kai_is_known_where_the_lab_has_its_chart_as_a_file(place: Workplace) -> None:
    place.api.put("namespaces", "", "kai", metadata={"labels": {"app.kubernetes.io/part-of": "kai-lab"}})
    place.api.put("deployments", "kai", "kai-operator")
    place.release("kai", "their-kai", "kai-scheduler-v0.16.8")
    lab = backend(place, charts__kai_scheduler__chart="charts/kai-scheduler-v0.17.0.tgz")
    lab.ensure_cluster(quiet)
    mark = read_mark(lab.connect())
    assert mark is not None
    assert mark.releases == {"kai/their-kai": "kai_scheduler"}


def test_what_a_handed_over_kai_made_is_the_labs_to_remove(place: Workplace) -> None:
    place.api.put("namespaces", "", "kai", metadata={"labels": {"app.kubernetes.io/part-of": "kai-lab"}})
    place.release("kai", "their-kai", "kai-scheduler-v0.16.8")
    for name in ("binder", "admission"):
        labels = {"app.kubernetes.io/managed-by": "kai-operator"}
        place.api.put("deployments", "kai", name, metadata={"labels": labels})
    lab = backend(place)
    lab.ensure_cluster(quiet)
    denied = status(403, "Forbidden", "denied by a policy")
    place.api.answers = {"/apis/apps/v1/namespaces/kai/deployments/binder": (403, denied)}
    lines: list[str] = []
    (left,) = lab.remove_cluster(lines.append).leftovers
    assert left.what == "deployments/binder, made by the lab's KAI"
    assert left.command.endswith(" --context lab delete deployments binder -n kai")
    assert "deployments/binder, which KAI made, cannot be removed: denied by a policy" in lines
    assert place.api.names("deployments") == ["binder"], "what is refused does not keep the rest"
    assert lab.cluster_exists()
    place.api.answers = {}
    assert backend(place).remove_cluster(quiet).leftovers == ()
    assert place.api.names("deployments") == []
    assert not lab.cluster_exists()


@pytest.mark.parametrize(("component", "stays"), [("kai_scheduler", []), ("nvml_mock", ["binder"])])
def test_of_a_release_that_was_removed_by_hand_the_mark_tells_what_it_made(
    place: Workplace, component: str, stays: list[str]
) -> None:
    """Helm does not list it any more: only of the lab's KAI is it known that it made something."""
    lab = backend(place)
    lab.ensure_cluster(quiet)
    chart = place.settings().charts.by_component()[component]
    lab.install(component, chart.model_copy(update={"release": "by-hand"}), quiet)
    place.change(releases={})
    labels = {"app.kubernetes.io/managed-by": "kai-operator"}
    place.api.put("deployments", chart.namespace, "binder", metadata={"labels": labels})
    assert lab.remove_cluster(quiet).leftovers == ()
    assert place.api.names("deployments") == stays
    assert not lab.cluster_exists()


def test_a_kai_without_a_release_is_refused(place: Workplace) -> None:
    place.api.put("deployments", "kai-scheduler", "kai-operator")
    with pytest.raises(LabError, match="not free for the lab") as caught:
        backend(place).ensure_cluster(quiet)
    assert "without a helm release" in caught.value.seen


def test_a_cluster_that_another_lab_uses_is_refused(place: Workplace) -> None:
    backend(place).ensure_cluster(quiet)
    with pytest.raises(LabError, match="not free for the lab") as caught:
        backend(place, lab__state_dir="other").ensure_cluster(quiet)
    assert "used by lab 'kai-hami-test'" in caught.value.seen
    assert not backend(place, lab__state_dir="other").cluster_exists()


def test_a_release_of_the_same_name_that_is_not_ours_is_refused(place: Workplace) -> None:
    lab = backend(place)
    lab.ensure_cluster(quiet)
    place.release("default", "nvml-mock", "nvml-mock-0.2.1")
    chart = place.settings().charts.nvml_mock
    with pytest.raises(LabError, match="not free for the lab"):
        lab.install("nvml_mock", chart, quiet)
    assert lab.uninstall("nvml_mock", chart, quiet).skipped
    assert "default/nvml-mock" in place.look()["releases"]


def test_nothing_is_installed_without_the_mark(place: Workplace) -> None:
    lab = backend(place)
    lab.ensure_cluster(quiet)
    place.api.new_cluster()  # made anew under the same address
    with pytest.raises(LabError, match="does not carry this lab's mark"):
        lab.install("nvml_mock", place.settings().charts.nvml_mock, quiet)
    assert place.calls("helm", "upgrade") == []


# -- real GPUs and images --------------------------------------------------------------------------------------------


def test_real_gpus_skip_the_mock_and_expect_the_crossing(place: Workplace) -> None:
    place.api.put("nodes", "", "gpu-1", status=ready() | {"allocatable": {"nvidia.com/gpu": "8"}})
    lab = backend(place)
    assert "real GPUs" in lab.ensure_cluster(quiet).note
    assert lab.install("nvml_mock", place.settings().charts.nvml_mock, quiet).skipped
    assert lab.provide_image(quiet).skipped
    assert set(lab.skips()) == {"nvml_mock_image", "nvml_mock_release", "device_plugin"}
    assert lab.crossing() == "the nodes have real GPUs"
    assert place.calls("helm", "upgrade") == []


def test_gpus_that_the_mock_shows_are_not_real(place: Workplace) -> None:
    place.api.put("nodes", "", "n", status=ready() | {"allocatable": {"nvidia.com/gpu": "8"}})
    place.api.put("daemonsets", "default", "nvml-mock")
    lab = backend(place)
    lab.ensure_cluster(quiet)
    assert lab.skips() == {}
    assert lab.crossing() is None
    assert lab.install("nvml_mock", place.settings().charts.nvml_mock, quiet).changed


def test_an_image_that_cannot_be_loaded_is_skipped_with_the_way_out(place: Workplace) -> None:
    lab = backend(place)
    lab.ensure_cluster(quiet)
    facts = lab.provide_image(quiet)
    assert facts.skipped
    assert "image.repository" in facts.summary
    images = [{"names": ["docker.io/library/nvml-mock:local"]}]
    place.api.put("nodes", "", NODE, status=ready() | {"images": images})
    place.api.put("nodes", "", "front", spec={"taints": [{"key": "role", "effect": "NoSchedule"}]})
    assert "is on the nodes" in lab.provide_image(quiet).summary
    place.api.put("nodes", "", "worker", status=ready())
    assert lab.provide_image(quiet).summary.startswith("nvml-mock:local is not on worker, and the lab cannot load")


def kind_lab(place: Workplace, server: str) -> ContextBackend:
    """A lab on a context of kind's name for it, beside a kind cluster of this machine that somebody made."""
    place.change(clusters={"mine": "2026-01-01T00:00:00.0Z"})
    file = kubeconfig(place)
    content = yaml.safe_load(file.read_text())
    content["contexts"][1]["name"] = "kind-mine"
    content["clusters"][0]["cluster"]["server"] = server
    write_kubeconfig(file, content)
    lab = backend(place, lab__context="kind-mine")
    lab.ensure_cluster(quiet)
    return lab


def test_a_kind_cluster_of_another_machine_does_not_fill_the_one_here(place: Workplace) -> None:
    there, told = ApiStub(), list[str]()
    try:
        assert kind_lab(place, there.url).provide_image(told.append).skipped
    finally:
        there.close()
    assert told == ["the kind cluster mine of this machine is another one than that of context kind-mine"]
    assert place.calls("kind", "load") == place.calls("docker") == []


def test_a_kind_cluster_of_this_machine_gets_the_image(place: Workplace) -> None:
    lab = kind_lab(place, place.api.url)
    assert lab.image_digests() == {}, "nothing is known of what others have loaded"
    first = lab.provide_image(quiet)
    assert first.facts["nodes"] == "mine-control-plane"
    assert place.calls("kind", "create") == []
    images = [{"names": ["docker.io/library/nvml-mock:local"]}]  # as the kubelet reports it from then on
    place.api.put("nodes", "", "mine-control-plane", status=ready() | {"images": images})
    second = lab.provide_image(quiet)
    assert (first.changed, second.changed) == (True, False)
    assert image_version(first) == image_version(second) != [None, None]
    assert first.facts["image_id"] in lab.image_digests()["mine-control-plane"]


# -- tear-down -------------------------------------------------------------------------------------------------------


def test_the_last_of_the_lab_goes_and_nothing_else(place: Workplace) -> None:
    place.release("monitoring", "prometheus", "prometheus-1")
    lab = backend(place)
    lab.ensure_cluster(quiet)
    for component, chart in place.settings().charts.by_component().items():
        lab.install(component, chart, quiet)
    place.api.unknown.clear()
    place.api.put("pods", "default", "theirs")
    place.api.put("namespaces", "", "kai-scheduler")
    place.api.put("customresourcedefinitions", "", "queues.scheduling.run.ai")
    place.api.put("customresourcedefinitions", "", "certificates.cert-manager.io")
    facts = lab.remove_cluster(quiet)
    assert sorted(place.look()["releases"]) == ["monitoring/prometheus"]
    assert place.api.names("pods") == ["theirs"]
    assert place.api.names("namespaces") == ["kube-system"]
    assert place.api.names("configmaps") == []
    assert facts.leftovers == ()
    (kept,) = facts.kept
    assert kept.what == "CRD queues.scheduling.run.ai, with its objects"
    assert kept.command.startswith("kubectl --kubeconfig ")
    assert kept.command.endswith(" --context lab delete crd queues.scheduling.run.ai")
    assert not lab.cluster_exists()
    assert not lab.remove_cluster(quiet).changed


def test_metrics_of_pods_are_nobodys_work(place: Workplace) -> None:
    """metrics-server lists pods of its own, which are computed and have no uid."""
    lab = backend(place)
    lab.ensure_cluster(quiet)
    lab.install("kai_scheduler", place.settings().charts.kai_scheduler, quiet)
    place.api.put("namespaces", "", "kai-scheduler")
    version = "metrics.k8s.io/v1beta1"
    kind = {"name": "pods", "kind": "PodMetrics", "namespaced": True, "verbs": ["get", "list"]}
    place.api.answers = {
        "/apis": (200, {"groups": [{"name": "metrics.k8s.io", "preferredVersion": {"groupVersion": version}}]}),
        f"/apis/{version}": (200, {"resources": [kind]}),
        f"/apis/{version}/namespaces/kai-scheduler/pods": (200, {"items": [{"metadata": {"name": "kai-operator-1"}}]}),
    }
    assert lab.remove_cluster(quiet).leftovers == ()
    assert place.api.names("namespaces") == ["kube-system"]


def test_what_is_still_there_keeps_the_mark(place: Workplace) -> None:
    lab = backend(place)
    lab.ensure_cluster(quiet)
    managed = [{"manager": "kai-lab", "operation": "Apply"}]
    place.api.put("pods", "default", "kai-whole-gpu", metadata={"managedFields": managed})
    place.api.put("pods", "default", "gpu-sharing-with-isolation")  # not the lab's
    (left,) = lab.remove_cluster(quiet).leftovers
    assert left.what == "pods/kai-whole-gpu"
    assert left.command.endswith(" --context lab delete pods kai-whole-gpu -n default")
    assert lab.cluster_exists()


def test_the_marks_of_parallel_installs_do_not_undo_each_other(place: Workplace) -> None:
    lab = backend(place)
    lab.ensure_cluster(quiet)
    charts = place.settings().charts
    lab.install("kai_scheduler", charts.kai_scheduler, quiet)
    backend(place).install("kai_resource_isolator", charts.kai_resource_isolator, quiet)
    data = place.api.objects["configmaps", "kube-system", "kai-lab-owner"]["data"]
    assert {"release.kai-scheduler.kai-scheduler", "release.kai-resource-isolator.kai-resource-isolator"} <= set(data)
    assert json.loads(data["found"]) == []
    lab.uninstall("kai_scheduler", charts.kai_scheduler, quiet)
    assert "release.kai-scheduler.kai-scheduler" not in data
