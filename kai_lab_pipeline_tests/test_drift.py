"""A change made by hand is found, named with who made it where the API knows it, and repaired by one asset alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest

from kai_lab_pipeline.automation.drift import drift_schedule
from kai_lab_pipeline.backends.releases import Releases
from kai_lab_pipeline.checks import alone_patience_s
from kai_lab_pipeline.clients.helm import Helm, nested
from kai_lab_pipeline.clients.kubernetes import Cluster
from kai_lab_pipeline.rehearsal.client import (
    JSON_PATCH,
    MERGE_PATCH,
    RESOURCES,
    STRATEGIC_PATCH,
    create_request,
    patch_request,
)
from kai_lab_pipeline.rehearsal.components.kai_binder import ALLOCATION_TIMEOUT_S
from kai_lab_pipeline.settings import Chart
from kai_lab_pipeline.workbench.drift import drift_of
from kai_lab_pipeline.workbench.steps import apply, install
from kai_lab_pipeline_tests.lab_project import make_project
from kai_lab_pipeline_tests.living_lab import LivingLab, living_lab
from kai_lab_pipeline_tests.rehearsal_lab import NODE

pytestmark = pytest.mark.xdist_group("drift")
NOT_RECORDED = "who did it is not recorded by the API"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivingLab]:
    with living_lab(tmp_path_factory.mktemp("project")) as made:
        yield made


def by_hand(
    lab: LivingLab,
    plural: str,
    name: str,
    patch: Any,
    manager: str,
    namespace: str | None = None,
    kind: str = MERGE_PATCH,
) -> None:
    with lab.cluster() as cluster:
        cluster.api.send(patch_request(RESOURCES[plural], namespace, name, patch, manager, content_type=kind))


def container(name: str, **fields: Any) -> dict[str, Any]:
    """A strategic patch of one container of a workload."""
    return {"spec": {"template": {"spec": {"containers": [{"name": name, **fields}]}}}}


def texts(lab: LivingLab, asset: str) -> list[str]:
    return [drift.text() for drift in drift_of(lab.lab(), asset)]


def red(outcome: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {name: check["description"] for name, check in outcome.items() if not check["passed"]}


def test_a_lab_that_nobody_touched_shows_no_drift(lab: LivingLab) -> None:
    for asset in ("device_plugin", "labelled_node", "kai_release", "queues", "isolator_release", "shared_gpu_pod"):
        assert [drift.text() for drift in drift_of(lab.lab(), asset)] == []


def test_an_edited_queue_is_found_named_and_repaired_alone(lab: LivingLab) -> None:
    by_hand(lab, "queues", "default-queue", {"spec": {"resources": {"gpu": {"limit": 2}}}}, "kubectl-edit")
    (drift,) = drift_of(lab.lab(), "queues")
    assert drift.what == "Queue default-queue: spec.resources.gpu.limit is 2, not -1"
    assert drift.who.startswith("written by kubectl-edit at 20")
    found = red(lab.drift())
    assert set(found) == {"queues.queues_unlimited"}
    assert drift.text() in found["queues.queues_unlimited"]
    shown = lab.instance.fetch_observations(dg.AssetKey("queues"), limit=1).records[0].asset_observation
    assert shown is not None
    assert drift.text() in (shown.description or "")
    assert lab.not_in_sync() == {}, "what the project describes has not changed"
    ran = lab.remake("queues")
    assert (ran.assets, ran.changed) == (("queues",), ("queues",))
    assert red(lab.drift()) == {}
    assert lab.not_in_sync() == {}


def test_a_label_taken_from_the_node_is_found_and_given_back(lab: LivingLab) -> None:
    by_hand(lab, "nodes", NODE, {"metadata": {"labels": {"nvidia.com/gpu.product": None}}}, "kubectl-label")
    found = red(lab.drift())
    assert set(found) == {"labelled_node.gpu_product_label"}
    assert f"label nvidia.com/gpu.product is gone; {NOT_RECORDED}" in found["labelled_node.gpu_product_label"]
    assert lab.remake("labelled_node").changed == ("labelled_node",)
    assert red(lab.drift()) == {}


def test_a_label_written_over_names_its_writer(lab: LivingLab) -> None:
    by_hand(lab, "nodes", NODE, {"metadata": {"labels": {"nvidia.com/gpu.count": "4"}}}, "kubectl-label")
    (drift,) = drift_of(lab.lab(), "labelled_node")
    assert drift.what == f"Node {NODE}: label nvidia.com/gpu.count is '4', not '8'"
    assert drift.who.startswith("written by kubectl-label at ")
    assert lab.remake("labelled_node").success
    assert drift_of(lab.lab(), "labelled_node") == []


def test_a_component_scaled_down_by_hand_comes_back_with_its_release(lab: LivingLab) -> None:
    by_hand(lab, "deployments", "kai-operator", {"spec": {"replicas": 0}}, "kubectl", "kai-scheduler")
    with lab.cluster() as cluster:
        cluster.wait_for("deployments", "kai-operator", lambda obj: not obj["status"].get("readyReplicas"), "no pods")
    (drift,) = drift_of(lab.lab(), "kai_release")
    assert drift.what == "Deployment kai-operator: spec.replicas is 0, not 1"
    assert drift.who.startswith("written by kubectl at ")
    ran = lab.remake("kai_release")
    assert (ran.success, ran.changed) == (True, ("kai_release",)), ran.said
    assert "applied again because" in ran.said["kai_release"]
    assert "seven_components_running" in ran.said["kai_release"]
    assert drift_of(lab.lab(), "kai_release") == []
    assert lab.not_in_sync() == {}


def test_what_somebody_else_runs_in_the_mock_s_namespace_is_no_drift_of_it(lab: LivingLab) -> None:
    labels = {"app": "their-app"}
    theirs = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "their-app", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "busybox"}]}},
        },
    }
    with lab.cluster() as cluster:
        cluster.api.send(create_request(theirs, "kubectl-create"))
        try:
            assert drift_of(lab.lab(), "nvml_mock_release") == []
            by_hand(lab, "daemonsets", "nvml-mock", {"spec": {"minReadySeconds": 5}}, "kubectl-edit", "default")
            (drift,) = drift_of(lab.lab(), "nvml_mock_release")
            assert drift.what == "DaemonSet nvml-mock: spec.minReadySeconds was added: 5"
            done = install(lab.lab(), "nvml_mock")
            assert "because DaemonSet nvml-mock spec.minReadySeconds was changed by hand" in done.summary
            assert "; put back DaemonSet nvml-mock spec.minReadySeconds" in done.summary
            assert "their-app" not in done.summary
            assert cluster.get("daemonsets", "their-app", "default") is not None
        finally:
            cluster.delete("daemonsets", "their-app", "default")
    assert drift_of(lab.lab(), "nvml_mock_release") == []
    assert not install(lab.lab(), "nvml_mock").changed


def test_a_component_put_right_by_hand_is_no_drift(lab: LivingLab) -> None:
    for replicas in (0, 1):
        by_hand(lab, "deployments", "kai-operator", {"spec": {"replicas": replicas}}, "kubectl", "kai-scheduler")
    assert texts(lab, "kai_release") == []


def test_what_an_operator_makes_is_told_without_its_secrets_and_made_anew(lab: LivingLab) -> None:
    patch = container("binder", env=[{"name": "TOKEN", "value": "s3cr3t-value"}])
    by_hand(lab, "deployments", "binder", patch, "kubectl-set", "kai-scheduler", STRATEGIC_PATCH)
    (text,) = texts(lab, "kai_release")
    said = "Deployment binder: spec.template.spec.containers[name=binder].env[name=TOKEN] was set; "
    assert text.startswith(f"{said}written by kubectl-set at 20")
    with lab.cluster() as cluster:
        before = cluster.get("deployments", "binder", "kai-scheduler")
        assert install(lab.lab(), "kai_scheduler").summary.endswith("; put back Deployment binder")

        def is_back(deployment: Mapping[str, Any]) -> bool:
            anew = before is not None and deployment["metadata"]["uid"] != before["metadata"]["uid"]
            return bool(anew and (deployment.get("status") or {}).get("readyReplicas"))

        cluster.wait_for("deployments", "binder", is_back, "made anew")
    assert texts(lab, "kai_release") == []


def test_kai_s_config_edited_by_hand_is_named_and_put_back(lab: LivingLab) -> None:
    spec = {"binder": {"plugins": {"hamicore": {"enabled": False}}}, "global": {"replicaCount": 1, "qps": 5}}
    by_hand(lab, "configs", "kai-config", {"spec": spec}, "kubectl-edit")
    shown = sorted(text.partition(";")[0] for text in texts(lab, "kai_release"))
    assert shown == [
        "Config kai-config: spec.binder.plugins.hamicore.enabled is False",
        "Config kai-config: spec.global.qps is 5",
    ]
    assert "Config kai-config spec.global.qps" in install(lab.lab(), "kai_scheduler").summary
    assert texts(lab, "kai_release") == []
    lab.lab().settle("kai_release")


def test_a_webhook_that_was_narrowed_by_hand_is_as_its_chart_has_it_again(lab: LivingLab) -> None:
    name = "kai-resource-isolator-mutating"
    with lab.cluster() as cluster:
        before = cluster.get("mutatingwebhookconfigurations", name)
    assert before is not None
    hooks = [{**hook, "namespaceSelector": {"matchLabels": {"nope": "x"}}} for hook in before["webhooks"]]
    by_hand(lab, "mutatingwebhookconfigurations", name, {"webhooks": hooks}, "kubectl-edit")
    field = "webhooks[name=vgpu.lib.kai-resource-isolator.io].namespaceSelector"
    (text,) = texts(lab, "isolator_release")
    said = f"MutatingWebhookConfiguration {name}: {field} is another than was applied; written by kubectl-edit at 20"
    assert text.startswith(said)
    assert "put back" in install(lab.lab(), "kai_resource_isolator").summary
    assert texts(lab, "isolator_release") == []
    with lab.cluster() as cluster:
        after = cluster.get("mutatingwebhookconfigurations", name)
    assert after is not None
    assert after["webhooks"] == before["webhooks"]
    assert not lab.lab().settle("isolator_release").mismatches


def test_the_mock_s_label_taken_from_the_node_comes_back_with_its_release(lab: LivingLab) -> None:
    by_hand(lab, "nodes", NODE, {"metadata": {"labels": {"nvidia.com/gpu.present": None}}}, "kubectl-label")
    done = install(lab.lab(), "nvml_mock")
    assert re.search(r"already deployed .*; restarted nvml-mock-\w+ because gpu_present_label was broken", done.summary)
    assert done.changed
    assert not lab.lab().settle("nvml_mock_release").mismatches
    assert not lab.lab().settle("device_plugin").mismatches


@pytest.mark.parametrize(
    ("asset", "plural", "name", "patch", "said"),
    [
        ("nvidia_runtime_class", "runtimeclasses", "nvidia", {"scheduling": {"nodeSelector": {"disk": "ssd"}}},
         "RuntimeClass nvidia: scheduling.nodeSelector was added"),
        ("queues", "queues", "default-queue", {"spec": {"priority": 5}},
         "Queue default-queue: spec.priority was added: 5"),
        ("queues", "queues", "default", {"metadata": {"labels": {"team": "a"}}},
         "Queue default: metadata.labels.team was added: a"),
    ],
)  # fmt: skip
def test_what_was_added_by_hand_is_found_and_removed(
    lab: LivingLab, asset: str, plural: str, name: str, patch: Mapping[str, Any], said: str
) -> None:
    with lab.cluster() as cluster:
        before = cluster.get(plural, name)
    by_hand(lab, plural, name, patch, "kubectl-edit")
    (text,) = texts(lab, asset)
    assert text.startswith(f"{said}; written by kubectl-edit at 20")
    done = apply(lab.lab(), asset)
    assert done.changed
    assert f"configured (removed what was added by hand: {said.partition(': ')[2].split()[0]})" in done.summary
    assert texts(lab, asset) == []
    assert not apply(lab.lab(), asset).changed
    with lab.cluster() as cluster:
        after = cluster.get(plural, name)
    assert before is not None
    assert after is not None
    parts = [{key: value for key, value in obj.items() if key not in ("metadata", "status")} for obj in (before, after)]
    assert parts[0] == parts[1]


class TestTheDevicePlugin:
    NAME = "nvidia-device-plugin-mock"

    def edit(self, lab: LivingLab, patch: Any, kind: str) -> None:
        by_hand(lab, "daemonsets", self.NAME, patch, "kubectl-edit", "kube-system", kind)

    def repaired(self, lab: LivingLab) -> str:
        done = apply(lab.lab(), "device_plugin")
        assert texts(lab, "device_plugin") == []
        assert not lab.lab().settle("device_plugin").mismatches
        return done.summary

    def test_a_second_container_is_found_and_removed(self, lab: LivingLab) -> None:
        self.edit(lab, container("sidecar", image="busybox", command=["false"]), STRATEGIC_PATCH)
        (text,) = texts(lab, "device_plugin")
        assert f"{self.NAME}: spec.template.spec.containers[name=sidecar] was added; written by kubectl-edit" in text
        assert "removed what was added by hand: spec.template.spec.containers[name=sidecar]" in self.repaired(lab)
        with lab.cluster() as cluster:
            obj = cluster.get("daemonsets", self.NAME, "kube-system")
        assert obj is not None
        assert [item["name"] for item in obj["spec"]["template"]["spec"]["containers"]] == ["nvidia-device-plugin"]

    def test_who_wrote_a_field_that_is_owned_as_one_value_is_told(self, lab: LivingLab) -> None:
        self.edit(lab, {"spec": {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}}, MERGE_PATCH)
        (text,) = texts(lab, "device_plugin")
        assert "spec.template.spec.nodeSelector.disk was added: ssd; written by kubectl-edit at 20" in text
        self.repaired(lab)

    def test_an_item_that_was_taken_out_is_found_though_the_list_is_ours(self, lab: LivingLab) -> None:
        path = "/spec/template/spec/containers/0/volumeMounts/1"
        self.edit(lab, [{"op": "remove", "path": path}], JSON_PATCH)
        (text,) = texts(lab, "device_plugin")
        mount = "containers[name=nvidia-device-plugin].volumeMounts[mountPath=/var/lib/kubelet/device-plugins]"
        assert f"spec.template.spec.{mount} is gone; {NOT_RECORDED}" in text
        assert self.repaired(lab) == f"DaemonSet {self.NAME} configured"


def test_a_pod_labelled_by_hand_is_replaced(lab: LivingLab) -> None:
    pod = "kai-whole-gpu"
    by_hand(lab, "pods", pod, {"metadata": {"labels": {"debug": "me"}}}, "kubectl-label", "default")
    assert texts(lab, "whole_gpu_pod")[0].startswith(f"Pod {pod}: metadata.labels.debug was added: me; written by kub")
    assert apply(lab.lab(), "whole_gpu_pod").summary == f"Pod {pod} replaced (metadata.labels.debug was added by hand)"
    assert texts(lab, "whole_gpu_pod") == []


def test_a_runtime_class_deleted_by_hand_is_made_again(lab: LivingLab) -> None:
    with lab.cluster() as cluster:
        cluster.delete("runtimeclasses", "nvidia")
    (drift,) = drift_of(lab.lab(), "nvidia_runtime_class")
    assert drift.text() == f"RuntimeClass nvidia is not there; {NOT_RECORDED}"
    stopped = lab.remake("whole_gpu_pod")
    assert (stopped.success, stopped.assets) == (False, ())
    reason = "whole_gpu_pod is built on nvidia_runtime_class, and that is not in order: runtime_class_handler is broken"
    assert reason in stopped.said["whole_gpu_pod"]
    ran = lab.remake("nvidia_runtime_class")
    assert ran.said["nvidia_runtime_class"] == "RuntimeClass nvidia created"
    assert drift_of(lab.lab(), "nvidia_runtime_class") == []


def test_a_pod_annotated_by_hand_is_replaced_as_the_manifest_has_it(lab: LivingLab) -> None:
    pod = "gpu-sharing-with-isolation"
    by_hand(lab, "pods", pod, {"metadata": {"annotations": {"gpu-memory": "10240"}}}, "kubectl-annotate", "default")
    (drift,) = drift_of(lab.lab(), "shared_gpu_pod")
    assert drift.what == f"Pod {pod}: metadata.annotations.gpu-memory is 10240, not 20480"
    assert "kubectl-annotate" in drift.who
    ran = lab.remake("shared_gpu_pod+")
    assert ran.said["shared_gpu_pod"].startswith(f"Pod {pod} replaced (its annotations differ")
    assert red(lab.drift()) == {}


def test_an_edited_manifest_is_no_drift(lab: LivingLab) -> None:
    with lab.edited("manifests/queues.yaml", "overQuotaWeight: 1", "overQuotaWeight: 2"):
        assert drift_of(lab.lab(), "queues") == []
        assert set(lab.not_in_sync()) == {"queues"}


def test_the_schedule_is_off_and_skips_where_there_is_nothing_to_look_at(
    lab: LivingLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = drift_schedule()
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    for name, value in lab.environment().items():
        if name.startswith("KAI_LAB_"):
            monkeypatch.setenv(name, value)
    asked = schedule(dg.build_schedule_context())
    assert isinstance(asked, dg.RunRequest)
    lab.lab("somebody").hold("a test at work")
    try:
        busy = schedule(dg.build_schedule_context())
    finally:
        lab.lab("somebody").release()
    assert isinstance(busy, dg.SkipReason)
    assert "is at work: a test at work, pid" in (busy.skip_message or "")
    monkeypatch.setenv("KAI_LAB_NAME", "another-lab")
    skipped = schedule(dg.build_schedule_context())
    assert isinstance(skipped, dg.SkipReason)
    assert skipped.skip_message == "Lab another-lab has no cluster: nothing can drift."


class StandInHelm:
    """A helm that has the release as wanted, and notes what it is told."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.upgrades = 0

    def find(self, release: str, namespace: str) -> Mapping[str, Any]:
        chart = f"{self.chart.chart.rsplit('/', 1)[-1]}-{self.chart.version}"
        return {"name": release, "status": "deployed", "chart": chart, "revision": str(1 + self.upgrades)}

    def values(self, release: str, namespace: str) -> Mapping[str, Any]:
        return nested(self.chart.values)

    def upgrade_install(self, chart: Chart, **_: Any) -> Any:
        self.upgrades += 1
        return SimpleNamespace(seconds=1.0, text="")


def test_a_real_release_is_applied_again_only_to_repair_it(tmp_path: Path) -> None:
    chart = make_project(tmp_path / "project").settings.charts.kai_scheduler
    helm = StandInHelm(chart)
    releases = Releases(cast(Helm, helm), cast(Cluster, None))
    same = releases.install(chart, lambda _: None, deadline_s=1)
    assert (same.changed, helm.upgrades) == (False, 0)
    repaired = releases.install(chart, lambda _: None, deadline_s=1, repair=True)
    assert (repaired.changed, helm.upgrades) == (True, 1)
    moved = chart.model_copy(update={"version": "v0.16.8"})
    assert releases.install(moved, lambda _: None, deadline_s=1).changed


def test_a_boundary_that_is_checked_alone_is_given_one_attempt_of_the_binder() -> None:
    assert alone_patience_s("reservation_boundary", 1.0) > ALLOCATION_TIMEOUT_S
    assert alone_patience_s("queues", 1.0) < ALLOCATION_TIMEOUT_S
    assert alone_patience_s("reservation_boundary", 0.01) == alone_patience_s("queues", 0.01) > 1
