"""What is unsynced after which change, and nothing else; what is made again from the same content changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kai_lab_pipeline.automation.staleness import Sync
from kai_lab_pipeline.lab.spec import ASSETS
from kai_lab_pipeline_tests.living_lab import LivingLab, living_lab

pytestmark = pytest.mark.xdist_group("staleness")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivingLab]:
    with living_lab(tmp_path_factory.mktemp("project")) as made:
        yield made


def test_a_built_lab_is_in_sync(lab: LivingLab) -> None:
    states = lab.states()
    assert set(ASSETS) < set(states)
    assert {name: state for name, state in states.items() if state.sync is not Sync.IN_SYNC} == {}


@pytest.mark.parametrize(
    ("file", "old", "new", "unsynced"),
    [
        ("manifests/queues.yaml", "quota: -1, limit: -1", "quota: 4, limit: -1", {"queues"}),
        ("manifests/whole-gpu-pod.yaml", '"3600"', '"7200"', {"whole_gpu_pod"}),
        ("manifests/shared-gpu-pod.yaml", '"20480"', '"10240"', {"shared_gpu_pod"}),
        ("manifests/runtime-class.yaml", "handler: runc", "handler: crun", {"nvidia_runtime_class"}),
        (
            "manifests/device-plugin.yaml",
            "--pass-device-specs=true",
            "--pass-device-specs=false",
            {"manifests/device_plugin", "device_plugin"},
        ),
        ("manifests/canary-pod.yaml", '"sleep", "60"', '"sleep", "90"', {"kai_release"}),
        ("lab.toml", '"global.gpuSharing" = true', '"global.gpuSharing" = false', {"kai_release"}),
        ("lab.toml", 'version = "v0.17.0"', 'version = "v0.16.8"', {"charts/kai_scheduler", "kai_release"}),
        (
            "lab.toml",
            'version = "1.1.0-chart"',
            'version = "1.0.0-chart"',
            {"charts/kai_resource_isolator", "isolator_release"},
        ),
        ("lab.toml", 'version = "0.3.0"', 'version = "0.2.1"', {"charts/nvml_mock", "nvml_mock_release"}),
        ("lab.toml", "gpu_memory_mib = 40960", "gpu_memory_mib = 30000", {"labelled_node"}),
        ("lab.toml", 'git_ref = "v0.3.0"\nsource', 'git_ref = "v0.4.0"\nsource', {"nvml_mock_image"}),
        ("lab.toml", "idle_stop_s = 1800", "idle_stop_s = 900", set()),
        ("lab.toml", "time_scale = 0.01", "time_scale = 0.02", set()),
        ("lab.toml", "[rehearsal]", '[rehearsal]\nscenario = "fraction-wrong"', {"cluster"}),
        ("lab.toml", "[rehearsal]", "[rehearsal]\nfaults = {binder_down = true}", {"cluster"}),
    ],
)
def test_an_edit_makes_exactly_what_is_built_from_it_unsynced(
    lab: LivingLab, file: str, old: str, new: str, unsynced: set[str]
) -> None:
    with lab.edited(file, old, new):
        found = lab.not_in_sync()
        assert set(found) == unsynced
        for name, reason in found.items():
            told = file if file.startswith("manifests/") else "lab.toml"
            assert told in reason, f"{name}: {reason!r} does not name {told}"


def test_what_stands_on_an_unsynced_asset_is_behind_it(lab: LivingLab) -> None:
    with lab.edited("manifests/whole-gpu-pod.yaml", '"3600"', '"7200"'):
        behind = {name: state.reason for name, state in lab.states().items() if state.sync is Sync.BEHIND}
    assert set(behind) == {"shared_gpu_pod", "reservation_boundary", "boundary_report"}
    assert behind["shared_gpu_pod"] == "whole_gpu_pod not in sync"


def test_the_same_content_made_again_changes_nothing_and_leaves_what_is_below_in_sync(lab: LivingLab) -> None:
    for asset in ("cluster", "labelled_node", "queues", "kai_release", "isolator_release", "shared_gpu_pod"):
        ran = lab.remake(asset)
        assert (ran.success, ran.assets, ran.changed) == (True, (asset,), ()), ran.said
        assert lab.not_in_sync() == {}


def test_a_comment_in_a_manifest_is_made_again_with_the_same_result(lab: LivingLab) -> None:
    with lab.edited("manifests/queues.yaml", "# The two queues", "# Both queues"):
        assert set(lab.not_in_sync()) == {"queues"}
        assert lab.remake("queues").changed == ()
        assert lab.not_in_sync() == {}
    lab.remake("queues")


def test_a_change_travels_to_all_that_has_to_be_judged_anew(lab: LivingLab) -> None:
    with lab.edited("manifests/shared-gpu-pod.yaml", '"20480"', '"10240"'):
        ran = lab.remake("shared_gpu_pod")
        assert ran.success, ran.said
        assert "replaced" in ran.said["shared_gpu_pod"]
        assert lab.not_in_sync() == {"reservation_boundary": "shared_gpu_pod is another one than it was built with"}
        lab.remake("reservation_boundary")
        assert set(lab.not_in_sync()) == {"boundary_report"}
        lab.remake("boundary_report")
        assert lab.not_in_sync() == {}
    assert lab.remake("shared_gpu_pod+").success


def test_another_label_is_read_by_kai_as_it_runs_and_judged_anew_at_the_shared_pod(lab: LivingLab) -> None:
    with lab.edited("lab.toml", "gpu_memory_mib = 40960", "gpu_memory_mib = 30000"):
        assert lab.remake("labelled_node").changed == ("labelled_node",)
        assert set(lab.not_in_sync()) == {"kai_release", "shared_gpu_pod"}
        ran = lab.remake("kai_release", "shared_gpu_pod")
        assert (ran.success, ran.changed) == (True, ()), ran.said
        assert set(lab.not_in_sync()) == {"reservation_boundary"}, "KAI is the same: its queues stay in sync"
    assert lab.remake("labelled_node", "kai_release", "shared_gpu_pod+").success


def test_a_rebuilt_cluster_leaves_nothing_that_stood_on_the_old_one_in_sync(lab: LivingLab) -> None:
    lab.forget_cluster()
    ran = lab.remake("cluster")
    assert ran.changed == ("cluster",)
    states = lab.states()
    on_it = set(ASSETS) - {"cluster", "boundary_report"}
    assert {name for name, state in states.items() if state.sync is Sync.GONE} == on_it
    assert all("the cluster was rebuilt" in states[name].reason for name in on_it)
    assert states["cluster"].sync is Sync.IN_SYNC
    assert states["boundary_report"].sync is Sync.UNSYNCED
    assert lab.remake().success
    assert lab.not_in_sync() == {}
