"""A change made by hand is found, named with who made it where the API knows it, and repaired by one asset alone."""

from __future__ import annotations

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
from kai_lab_pipeline.rehearsal.client import RESOURCES, create_request, patch_request
from kai_lab_pipeline.rehearsal.components.kai_binder import ALLOCATION_TIMEOUT_S
from kai_lab_pipeline.settings import Chart
from kai_lab_pipeline.workbench.drift import drift_of, owner_of
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
    lab: LivingLab, plural: str, name: str, patch: Mapping[str, Any], manager: str, namespace: str | None = None
) -> None:
    with lab.cluster() as cluster:
        cluster.api.send(patch_request(RESOURCES[plural], namespace, name, patch, manager))


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
    assert drift.what == "Deployment kai-operator: spec.replicas is 0"
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
            assert drift.what == "DaemonSet nvml-mock: spec.minReadySeconds is 5"
        finally:
            by_hand(lab, "daemonsets", "nvml-mock", {"spec": {"minReadySeconds": None}}, "kubectl-edit", "default")
            cluster.delete("daemonsets", "their-app", "default")
    assert drift_of(lab.lab(), "nvml_mock_release") == []


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


def test_the_newest_owner_of_a_field_is_named() -> None:
    entries = [
        {"manager": "kai-lab", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": {"f:a": {}, "f:b": {}}}},
        {"manager": "kubectl-edit", "time": "2026-01-02T00:00:00Z", "fieldsV1": {"f:spec": {"f:a": {}}}},
    ]
    obj = {"metadata": {"managedFields": entries}}
    assert owner_of(obj, ("spec", "a")) == ("kubectl-edit", "2026-01-02T00:00:00Z")
    assert owner_of(obj, ("spec", "b")) == ("kai-lab", "2026-01-01T00:00:00Z")
    assert owner_of(obj, ("spec", "c")) == ("", "")
    assert owner_of({"metadata": {}}, ("spec", "a")) == ("", "")


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
