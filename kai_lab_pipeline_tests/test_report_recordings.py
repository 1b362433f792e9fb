"""The report of real runs: the lines that decide each check are found in what real components said."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from kai_lab_pipeline.clients.bundle import read_bundle
from kai_lab_pipeline.lab.evidence import Evidence
from kai_lab_pipeline.lab.judge import expectations_for, judge
from kai_lab_pipeline.lab.spec import CHECKS, Expectations
from kai_lab_pipeline.report import Report, ReportContext, build_report, render_html, render_json, render_junit
from kai_lab_pipeline.report.excerpts import excerpt
from kai_lab_pipeline.report.model import Answer

RECORDINGS = Path(__file__).parent / "data" / "recordings"
BOUNDARY_STANDS = ("real-kai-v0.17.0", "real-kind", "kai-v0.16.8")
ALL = (*BOUNDARY_STANDS, "real-kai-v0.17.0-crossed", "kai-v0.20.1")

DECIDING = {
    "cluster.node_ready": "Ready=True",
    "cluster.kubernetes_version_supported": "kubeletVersion=v1.34.0",
    "nvml_mock_release.release_deployed": "chart=nvml-mock-0.3.0",
    "nvml_mock_release.daemonset_ready": "desired=1 ready=1",
    "nvml_mock_release.gpu_present_label": 'nvidia.com/gpu.present="true"',
    "device_plugin.plugin_pod_ready": "phase=Running Ready=True",
    "device_plugin.eight_whole_gpus": '{"nvidia.com/gpu": "8"}',
    "labelled_node.gpu_memory_label": 'nvidia.com/gpu.memory="40960"',
    "labelled_node.gpu_product_label": '"NVIDIA-A100-SXM4-40GB"',
    "labelled_node.gpu_count_label": 'nvidia.com/gpu.count="8"',
    "kai_release.release_deployed": "chart=kai-scheduler-v0.17.0",
    "kai_release.seven_components_running": "kai-scheduler/queue-controller Available=True",
    "kai_release.sharing_enabled": "--gpu-sharing-enabled=true",
    "kai_release.hamicore_enabled": '"hamicore":{"enabled":true',
    "kai_release.queue_webhook_serving": "dry-run answered Queue",
    "kai_release.scheduler_alive": "nodeName=kai-hami-test-control-plane",
    "queues.queues_exist": "queue default-parent-queue",
    "queues.default_queue_is_leaf_of_default": "queue default-queue parentQueue=default childQueues=[]",
    "queues.queues_unlimited": '"gpu": {"limit": -1, "overQuotaWeight": 1, "quota": -1}',
    "nvidia_runtime_class.runtime_class_handler": "runtimeclass nvidia handler=runc",
    "isolator_release.release_deployed": "chart=kai-resource-isolator-1.1.0-chart",
    "isolator_release.isolator_pods_running": "kai-resource-isolator-monitor",
    "isolator_release.webhook_annotation_keys": "annotationKeys=gpu-fraction|gpu-memory",
    "isolator_release.webhook_mutates": "mount /etc/ld.so.preload volume=kai-resource-isolator-vgpu",
    "whole_gpu_pod.whole_gpu_running": "phase=Running",
    "whole_gpu_pod.no_sharing_injected": 'labels {"kai.scheduler/queue": "default-queue"}',
    "shared_gpu_pod.label_read_by_kai": "Scheduled from kai-scheduler",
    "shared_gpu_pod.fraction_accounted": "requested: <1.51>, maxAllowed: <Unlimited>, allocated: <1.51>",
    "shared_gpu_pod.hami_core_injected": "hostPath=/tmp/vgpulock",
    "shared_gpu_pod.runtime_class_injected": "runtimeClassName=nvidia",
    "shared_gpu_pod.memory_limit_wired": '"key": "CUDA_DEVICE_MEMORY_LIMIT"',
    "reservation_boundary.shared_pod_state": "phase=Pending Ready=unset nodeName=(unbound)",
    "reservation_boundary.binding_result": "to allocate: kai-resource-reservation/gpu-reservation-",
    "reservation_boundary.reservation_nvml": "unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND",
    "reservation_boundary.boundary_outcome": "ERROR_LIBRARY_NOT_FOUND",
}
NOT_IN_BASE = {"shared_gpu_pod.memory_limit_value"}
"""The ConfigMap gets its values when the pod is bound, which the boundary prevents."""


def _evidence(name: str) -> Evidence:
    return read_bundle(RECORDINGS / name / "bundle")


def _report(name: str) -> Report:
    evidence = _evidence(name)
    assert evidence.captured_at is not None
    expectations = expectations_for(evidence, Expectations())
    context = ReportContext(generated_at=evidence.captured_at + timedelta(minutes=6), lab="kai-hami-test")
    return build_report(judge(evidence, expectations), evidence, context, expectations)


def test_every_check_has_its_deciding_words() -> None:
    known = {f"{asset}.{check.name}" for asset, checks in CHECKS.items() for check in checks}
    assert set(DECIDING) | NOT_IN_BASE == known


@pytest.fixture(scope="module")
def base() -> Evidence:
    return _evidence("real-kai-v0.17.0")


@pytest.mark.parametrize("name", DECIDING)
def test_the_deciding_words_are_in_the_excerpt(name: str, base: Evidence) -> None:
    lines = excerpt(name, base)
    assert any(DECIDING[name] in line for line in lines), lines
    assert not any("(cut, " in line for line in lines)


def test_the_limits_value_is_shown_where_the_boundary_is_crossed() -> None:
    lines = excerpt("shared_gpu_pod.memory_limit_value", _evidence("real-kai-v0.17.0-crossed"))
    assert len(lines) == 1
    assert '"CUDA_DEVICE_MEMORY_LIMIT": "20889m", "GPU_PORTION": "0.51"' in lines[0]


def test_the_crossing_is_shown_by_the_gpu_that_was_found() -> None:
    crossed = _evidence("real-kai-v0.17.0-crossed")
    assert any("Found GPU device" in line for line in excerpt("reservation_boundary.reservation_nvml", crossed))
    assert any(
        "run.ai/reserve_for_gpu_index=GPU-" in line for line in excerpt("reservation_boundary.binding_result", crossed)
    )


@pytest.mark.parametrize("name", BOUNDARY_STANDS)
def test_scheduled_and_wired_but_neither_limited_nor_running(name: str) -> None:
    answers = [degree.answer for degree in _report(name).degrees]
    assert answers == [Answer.YES, Answer.YES, Answer.NOT_REACHABLE, Answer.NOT_REACHABLE]


def test_all_four_degrees_where_the_boundary_is_crossed() -> None:
    assert [degree.answer for degree in _report("real-kai-v0.17.0-crossed").degrees] == [Answer.YES] * 4


def test_a_newer_kai_that_does_not_fit_is_shown_as_broken() -> None:
    made = _report("kai-v0.20.1")
    assert made.exit_code == 1
    assert "broken" in made.headline
    assert {claim.id: claim.label for claim in made.claims}[2] == "broken"


@pytest.mark.parametrize("name", ALL)
def test_all_formats_of_a_real_run(name: str) -> None:
    made = _report(name)
    document: dict[str, Any] = json.loads(render_json(made))
    assert document["backend"] == "recorded"
    assert len(document["claims"]) == len(ET.fromstring(render_junit(made).encode()).findall("testsuite")) == 8
    assert made.headline in render_html(made)
    assert {step.age for step in made.steps} == {"6 min"}
