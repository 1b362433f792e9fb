"""Tear-down: whole labs and pieces of them, twice, after half a lab, and when somebody was faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kai_lab_pipeline.automation.staleness import Sync
from kai_lab_pipeline.backends.base import Log, StepFacts
from kai_lab_pipeline.backends.rehearsal import RehearsalBackend
from kai_lab_pipeline.clients.kubernetes import Cluster
from kai_lab_pipeline.lab.spec import ASSETS
from kai_lab_pipeline.rehearsal import process
from kai_lab_pipeline.settings import Chart
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.teardown import Torn, tear_down
from kai_lab_pipeline_tests.lab_project import listens, processes_in
from kai_lab_pipeline_tests.living_lab import LivingLab, living_lab
from kai_lab_pipeline_tests.rehearsal_lab import NODE, shared_pod

pytestmark = pytest.mark.xdist_group("teardown")


def last_checks(lab: LivingLab) -> dict[str, bool]:
    """Whether the last evaluation of each check passed, as the UI shows it."""
    keys = [key for checks in lab.definitions().asset_checks or () for key in _keys(checks)]
    storage = lab.instance.event_log_storage
    records = storage.get_latest_asset_check_execution_by_key([key for key in keys if len(key.asset_key.path) == 1])
    return {
        f"{key.asset_key.to_user_string()}.{key.name}": record.status.value == "SUCCEEDED"
        for key, record in records.items()
    }


def _keys(checks: Any) -> list[dg.AssetCheckKey]:
    return [spec.key for spec in checks.check_specs]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivingLab]:
    with living_lab(tmp_path_factory.mktemp("whole"), built=False) as made:
        yield made


@pytest.fixture(scope="module")
def borrowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivingLab]:
    with living_lab(tmp_path_factory.mktemp("borrowed")) as made:
        yield made


class TestWholeLab:
    def test_after_the_job_nothing_runs_and_nothing_is_green(self, lab: LivingLab) -> None:
        assert lab.remake().success
        server = lab.server()
        assert server is not None
        assert all(last_checks(lab).values())
        result = lab.do("tear_down")
        assert result.success
        assert not listens(server.port)
        assert processes_in(lab.folder) == []
        assert list((lab.lab_dir / "rehearsal").iterdir()) == [], "files left of the cluster"
        states = lab.states()
        there = set(ASSETS) - {"boundary_report"}
        assert {name for name, state in states.items() if state.sync is Sync.GONE} == there
        assert all("torn down at " in states[name].reason for name in there)
        assert states["boundary_report"].sync is Sync.UNSYNCED
        green = {name for name, passed in last_checks(lab).items() if passed}
        not_of_the_cluster = {"boundary_report.every_claim_judged", "cluster.machine_ready"}
        assert green <= not_of_the_cluster, "the report and the machine are still there, and nothing else is"

    def test_evidence_and_reports_outlive_the_cluster(self, lab: LivingLab) -> None:
        assert (lab.report_dir / "report.html").is_file()
        assert lab.newest_bundle().joinpath("bundle.json").is_file()

    def test_a_second_time_is_fine_from_the_ui_and_from_the_command_line(self, lab: LivingLab) -> None:
        events = len(lab.instance.fetch_materializations(dg.AssetKey("cluster"), limit=100).records)
        assert lab.do("tear_down").success
        for _ in range(2):
            said = lab.call("down")
            assert (said.code, "nothing is left" in said.out) == (0, True), said.text
        assert len(lab.instance.fetch_materializations(dg.AssetKey("cluster"), limit=100).records) == events

    def test_half_a_lab_goes_as_a_whole_one(self, lab: LivingLab) -> None:
        assert lab.remake("cluster", "nvml_mock_image", "nvidia_runtime_class").success
        assert lab.states()["cluster"].sync is Sync.IN_SYNC
        assert lab.do("tear_down").success
        assert processes_in(lab.folder) == []
        assert lab.states()["nvidia_runtime_class"].sync is Sync.GONE

    def test_a_cluster_that_somebody_deleted_before_is_no_error(self, lab: LivingLab) -> None:
        assert lab.remake("cluster").success
        lab.forget_cluster()
        assert lab.do("tear_down").success
        assert lab.states()["cluster"].sync is Sync.GONE

    def test_an_asset_on_a_cluster_that_is_gone_stops_with_that_reason(self, lab: LivingLab) -> None:
        ran = lab.remake("queues")
        assert (ran.success, ran.assets) == (False, ())
        assert "The lab has no cluster" in ran.said["queues"]
        assert "kai-lab run" in ran.said["queues"]


class Borrowed(RehearsalBackend):
    """A cluster that was there before the lab, and stays."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.order: list[str] = []

    @property
    def makes_cluster(self) -> bool:
        return False

    def connect(self) -> Cluster:
        cluster = super().connect()
        delete = cluster.delete

        def noted(resource: str, name: str, *, namespace: str | None = None, grace_s: int | None = None) -> bool:
            self.order.append(f"{resource}/{name}")
            return delete(resource, name, namespace=namespace, grace_s=grace_s)

        cluster.delete = noted  # type: ignore[method-assign]
        return cluster

    def uninstall(self, component: str, chart: Chart, log: Log) -> StepFacts:
        self.order.append(f"release/{chart.release}")
        return super().uninstall(component, chart, log)

    def remove_cluster(self, log: Log) -> StepFacts:
        return StepFacts("the cluster is not the lab's", changed=False)


@pytest.fixture(scope="module")
def torn(borrowed: LivingLab) -> tuple[Torn, list[str]]:
    """The first tear-down, with things of other people on the cluster."""
    with borrowed.cluster() as cluster:
        cluster.create(queue("team-a"))
        cluster.create({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", **named("other"), "handler": "runc"})
        cluster.patch("nodes", NODE, {"metadata": {"labels": {"team": "a", "nvidia.com/gpu.count": "8"}}})
        plain = shared_pod("somebodys-pod", {})
        plain["spec"].pop("schedulerName")
        cluster.create(plain)
    return _tear_down(borrowed)


class TestPiecesOnABorrowedCluster:
    def test_what_depends_on_something_goes_before_it(self, torn: tuple[Torn, list[str]]) -> None:
        _, order = torn
        assert order == [
            "pods/gpu-sharing-with-isolation",
            "pods/kai-whole-gpu",
            "queues/default-queue",
            "queues/default",
            "runtimeclasses/nvidia",
            "release/kai-resource-isolator",
            "release/kai-scheduler",
            "daemonsets/nvidia-device-plugin-mock",
            "release/nvml-mock",
        ]

    def test_it_is_verified_absent(self, borrowed: LivingLab, torn: tuple[Torn, list[str]]) -> None:
        assert torn[0].leftovers == []
        with borrowed.cluster() as cluster:
            names = {
                obj["metadata"]["name"] for plural in ("pods", "queues", "daemonsets") for obj in cluster.all(plural)
            }
            assert not names & {"gpu-sharing-with-isolation", "kai-whole-gpu", "default", "default-queue"}
            assert not any(name.startswith(("nvidia-device-plugin-mock", "nvml-mock")) for name in names)
            assert cluster.get("runtimeclasses", "nvidia") is None
            labels = (cluster.get("nodes", NODE) or {})["metadata"]["labels"]
            assert "nvidia.com/gpu.memory" not in labels
        assert list(borrowed.lab().backend.releases()) == []

    def test_what_is_not_ours_stays(self, borrowed: LivingLab, torn: tuple[Torn, list[str]]) -> None:
        with borrowed.cluster() as cluster:
            assert cluster.get("queues", "team-a") is not None
            assert cluster.get("runtimeclasses", "other") is not None
            assert cluster.get("pods", "somebodys-pod", "default") is not None
            assert (cluster.get("nodes", NODE) or {})["metadata"]["labels"]["team"] == "a"

    def test_a_second_time_finds_nothing_to_do(self, borrowed: LivingLab, torn: tuple[Torn, list[str]]) -> None:
        again, order = _tear_down(borrowed)
        assert [step for step in order if not step.startswith("release/")] == []
        assert again.leftovers == []

    def test_an_object_of_our_name_that_somebody_else_made_stays(
        self, borrowed: LivingLab, torn: tuple[Torn, list[str]]
    ) -> None:
        with borrowed.cluster() as cluster:
            cluster.create(
                {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", **named("nvidia"), "handler": "runc"}
            )
        again, order = _tear_down(borrowed)
        assert "runtimeclasses/nvidia" not in order
        assert "runtimeclasses/nvidia was not made by this lab and stays" in again.done

    def test_what_cannot_be_removed_is_listed_with_the_command(
        self, borrowed: LivingLab, torn: tuple[Torn, list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kai_lab_pipeline.workbench.teardown.GONE_S", 1.0)
        ours = borrowed.lab().backend.connect()
        held = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "runc"}
        with borrowed.cluster() as cluster:
            cluster.delete("runtimeclasses", "nvidia")
        ours.apply(held | {"metadata": {"name": "nvidia", "finalizers": ["example.com/held"]}})
        again, _ = _tear_down(borrowed)
        (left,) = again.leftovers
        assert left.what.startswith("runtimeclasses/nvidia (deletionTimestamp ")
        assert "example.com/held" in left.what
        assert left.command.startswith("kubectl --kubeconfig ")
        assert left.command.endswith(" delete runtimeclasses nvidia")
        ours.patch("runtimeclasses", "nvidia", {"metadata": {"finalizers": None}})


def _tear_down(lab: LivingLab) -> tuple[Torn, list[str]]:
    opened = Lab(lab.settings, "down-test", lambda _: None)
    backend = Borrowed(lab.settings)
    opened.backend = backend
    return tear_down(opened), backend.order


def named(name: str) -> Mapping[str, Any]:
    return {"metadata": {"name": name}}


def queue(name: str) -> dict[str, Any]:
    amount = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    resources = dict.fromkeys(("cpu", "memory", "gpu"), amount)
    return {
        "apiVersion": "scheduling.run.ai/v2",
        "kind": "Queue",
        **named(name),
        "spec": {"parentQueue": "default-parent-queue", "resources": resources},
    }


def test_other_labs_of_the_project_keep_their_history(tmp_path: Path) -> None:
    """`kai-lab down` of one lab must not mark another lab's assets as gone."""
    with living_lab(tmp_path, built=False) as lab:
        assert lab.remake("cluster").success
        other = LivingLab(lab.folder, lab.variables | {"KAI_LAB_NAME": "another-lab"}, instance=lab.instance)
        assert other.do("tear_down").success
        assert lab.states()["cluster"].sync is Sync.IN_SYNC


def test_a_cluster_of_another_lab_made_in_between_is_not_this_one_rebuilt(tmp_path: Path) -> None:
    with living_lab(tmp_path, built=False) as lab:
        assert lab.remake("cluster", "nvidia_runtime_class").success
        other = LivingLab(lab.folder, lab.variables | {"KAI_LAB_NAME": "another-lab"}, instance=lab.instance)
        try:
            assert other.remake("cluster").success
        finally:
            other.forget_cluster()
        process.stop(lab.lab_dir / "rehearsal")  # as when nobody asks it anything for long
        assert lab.remake("cluster").changed == (), "its state was kept: it is the same cluster"
        assert lab.states()["nvidia_runtime_class"].sync is Sync.IN_SYNC
