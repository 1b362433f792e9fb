"""The rules of the simulated components, without a server: counting, admission, injection, logs, versions."""

from __future__ import annotations

import asyncio
import copy
import random
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonpatch
import pytest

from kai_lab_pipeline.rehearsal import charts, profiles
from kai_lab_pipeline.rehearsal.components import isolator
from kai_lab_pipeline.rehearsal.components import kai_accounting as accounting
from kai_lab_pipeline.rehearsal.components.default_scheduler import quantity
from kai_lab_pipeline.rehearsal.components.faults import FAULTS, Faults
from kai_lab_pipeline.rehearsal.components.kai_accounting import NodeState, Task, Unfit
from kai_lab_pipeline.rehearsal.components.kai_admission import AdmissionSettings, denial, mutated
from kai_lab_pipeline.rehearsal.components.kai_binder import RESERVATION_NAMESPACE, Binder, reservation_name
from kai_lab_pipeline.rehearsal.components.kai_groups import quantity_text
from kai_lab_pipeline.rehearsal.components.node import canonical_image, gpu_uuid
from kai_lab_pipeline.rehearsal.components.podlogs import LogQuery, PodLogs, render
from kai_lab_pipeline.rehearsal.components.runtime import SimOptions
from kai_lab_pipeline.rehearsal.components.workloads import template_hash
from kai_lab_pipeline_tests.rehearsal_lab import shared_pod

ON = AdmissionSettings(sharing=True, hamicore=True, runtime_class="nvidia")


def queue(parent: str | None = None, quota: float = -1) -> dict[str, Any]:
    amounts = {"quota": quota, "limit": -1, "overQuotaWeight": 1}
    spec: dict[str, Any] = {"resources": {"cpu": amounts, "memory": amounts, "gpu": amounts}}
    return {"spec": spec | ({"parentQueue": parent} if parent else {})}


QUEUES = {"default": queue(), "default-queue": queue("default"), "default-parent-queue": queue(quota=0)}
LABELS: dict[str, str | None] = {"node": "40960"}


def shared(memory: int, node: str | None = None, **more: Any) -> Task:
    return Task("default", f"p{memory}", "u", "default-queue", memory_mib=memory, node=node, **more)


WHOLE = Task("default", "whole", "w", "default-queue", whole=1, node="node")


def gpu_part(line: str) -> str:
    return line.partition("GPU: ")[2].partition(" CPU (cores)")[0]


@pytest.mark.parametrize(
    ("memory", "line"),
    [
        (20480, "requested: <1.5>, maxAllowed: <Unlimited>, allocated: <1>, historicalUsage: <0>, fairShare: <1.5>"),
        (
            40960,
            "requested: <2.001>, maxAllowed: <Unlimited>, allocated: <1>, historicalUsage: <0>, fairShare: <2.001>",
        ),
        (
            50000,
            "requested: <2.222>, maxAllowed: <Unlimited>, allocated: <1>, historicalUsage: <0>, fairShare: <2.222>",
        ),
    ],
)
def test_a_waiting_pod_counts_unrounded(memory: int, line: str) -> None:
    shares = accounting.divide(QUEUES, [WHOLE, shared(memory)], LABELS)
    assert gpu_part(shares["default-queue"].line("default-queue")) == f"deserved: <Unlimited>, {line}"


def test_a_placed_pod_counts_rounded_up_for_its_queue_and_the_queue_above() -> None:
    shares = accounting.divide(QUEUES, [WHOLE, shared(20480, "node")], LABELS)
    for name in ("default-queue", "default"):
        assert (shares[name].gpu.requested, shares[name].gpu.allocated, shares[name].gpu.fair) == (1.51, 1.51, 1.51)
    assert "GPU: deserved: <0>, requested: <0>" in shares["default-parent-queue"].line("default-parent-queue")


def test_a_placed_pod_is_counted_anew_when_its_node_s_label_changes() -> None:
    shares = accounting.divide(QUEUES, [WHOLE, shared(20480, "node")], {"node": "30000"})
    assert (shares["default-queue"].gpu.requested, shares["default-queue"].gpu.allocated) == (1.69, 1.69)


def test_without_a_label_a_waiting_share_counts_as_nothing() -> None:
    shares = accounting.divide(QUEUES, [WHOLE, shared(20480)], {"node": None})
    assert shares["default-queue"].gpu.requested == 1


def test_a_queue_without_its_parent_is_left_out() -> None:
    shares = accounting.divide({"default-queue": queue("gone")}, [WHOLE], LABELS)
    assert shares == {}
    assert not accounting.usable("default-queue", {"default-queue": queue("gone")})


def state(label: str | None = "40960", gpus: int = 8) -> NodeState:
    return NodeState("node", label, gpus, cpu=2.0, memory_bytes=2e10)


@pytest.mark.parametrize(
    ("memory", "portion"), [(1, 0.01), (10000, 0.25), (20400, 0.5), (20450, 0.5), (20451, 0.51), (40900, 1.0)]
)
def test_portions_follow_the_floored_label(memory: int, portion: float) -> None:
    placement = accounting.place(shared(memory), [state()])
    assert (placement.portion, placement.kind, len(placement.groups)) == (portion, "Fraction", 1)


@pytest.mark.parametrize("memory", [40901, 40960, 50000])
def test_the_whole_card_by_memory_fits_nowhere(memory: int) -> None:
    with pytest.raises(Unfit, match=r"didn't have enough resources: GPU memory\. \n1 node\(s\) didn't .*: GPUs\."):
        accounting.place(shared(memory), [state()])


def test_a_missing_label_stops_shares_with_the_text_that_fits_the_number() -> None:
    with pytest.raises(Unfit, match="GPU memory"):
        accounting.place(shared(20480), [state(None)])
    with pytest.raises(Unfit, match="node is not a gpu node or the gpu memory count on the node was not synced yet"):
        accounting.place(shared(4000), [state(None)])


def test_shares_fill_a_card_before_they_open_another() -> None:
    node = state()
    first = accounting.place(shared(20480), [node])
    node.take(shared(20480, "node", groups=first.groups))
    second = accounting.place(shared(20400), [node])
    assert second.groups == first.groups
    node.take(shared(20400, "node", groups=second.groups))
    third = accounting.place(shared(10000), [node])
    assert third.groups != first.groups
    assert node.idle_gpus == 7


def test_whole_cards_run_out() -> None:
    node = state(gpus=1)
    node.take(WHOLE)
    with pytest.raises(Unfit, match="didn't have enough resources: GPUs"):
        accounting.place(Task("default", "b", "b", "default-queue", whole=1), [node])
    with pytest.raises(Unfit, match="topped at 1"):
        accounting.place(Task("default", "b", "b", "default-queue", whole=2), [node])


DENIALS: list[tuple[dict[str, str], dict[str, str], str]] = [
    *(
        ({"gpu-memory": value}, {}, "gpu-memory annotation value must be a positive integer greater than 0")
        for value in ("abc", "0", "-5", "0.5Gi", "", " 20480", "+20480")
    ),
    *(
        ({"gpu-fraction": value}, {}, "gpu-fraction annotation value must be a positive number smaller than 1.0")
        for value in ("0", "1", "1.5", "abc")
    ),
    ({"gpu-memory": "1", "gpu-fraction": "0.5"}, {}, "cannot request both GPU and GPU memory"),
    ({"gpu-memory": "1"}, {"nvidia.com/gpu": "1"}, "cannot request both GPU and GPU memory"),
    (
        {"gpu-fraction": "0.5"},
        {"nvidia.com/gpu": "1"},
        "cannot have both GPU fraction request and whole GPU resource request/limit",
    ),
    ({"mps": "true"}, {}, "MPS is only supported with GPU fraction request"),
    (
        {"gpu-fraction-num-devices": "2"},
        {},
        "cannot request multiple fractional devices without specifying fraction portion or gpu-memory",
    ),
    (
        {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "0"},
        {},
        "fraction count annotation value must be a positive integer greater than 0",
    ),
    (
        {"gpu-memory": "1", "gpu-fraction-container-name": "X"},
        {},
        "failed to get fraction container ref: container with name X not found for fraction request",
    ),
]


@pytest.mark.parametrize(("annotations", "limits", "text"), DENIALS)
def test_admission_refuses_in_kais_words(annotations: dict[str, str], limits: dict[str, str], text: str) -> None:
    assert denial(shared_pod("p", annotations, **limits), "default", ON) == text


def test_admission_refuses_sharing_that_is_off_and_nothing_else() -> None:
    text = "attempting to create a pod default/p with gpu sharing request, while GPU sharing is disabled"
    assert denial(shared_pod("p", {"gpu-memory": "1"}), "default", AdmissionSettings()) == text
    assert denial(shared_pod("p", {}), "default", AdmissionSettings()) is None


@pytest.mark.parametrize("annotations", [{"gpu-memory": "20480"}, {"gpu-fraction": "0.505"}, {"gpu-fraction": "5e-1"}])
def test_admission_lets_valid_shares_through(annotations: dict[str, str]) -> None:
    assert denial(shared_pod("p", annotations), "default", ON) is None


def test_admission_adds_references_and_the_runtime_class_once() -> None:
    pod = mutated(shared_pod("p", {"gpu-memory": "20480"}), ON, random.Random(1))
    prefix = pod["metadata"]["annotations"]["runai/shared-gpu-configmap"]
    env = {entry["name"]: entry["valueFrom"]["configMapKeyRef"] for entry in pod["spec"]["containers"][0]["env"]}
    limit = {"name": f"{prefix}-0", "key": "CUDA_DEVICE_MEMORY_LIMIT", "optional": True}
    assert env["CUDA_DEVICE_MEMORY_LIMIT"] == limit
    assert env["GPU_PORTION"] == {"name": f"{prefix}-0", "key": "GPU_PORTION"}
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    assert mutated(pod, ON, random.Random(2)) == pod


def test_admission_without_hamicore_sets_no_limit() -> None:
    pod = mutated(shared_pod("p", {"gpu-memory": "1"}), AdmissionSettings(sharing=True), random.Random(1))
    names = {entry["name"] for entry in pod["spec"]["containers"][0]["env"]}
    assert names == {"NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION"}
    assert "runtimeClassName" not in pod["spec"]


def test_admission_settings_come_from_arguments() -> None:
    args = ["--gpu-sharing-enabled=true", "--gpu-fraction-runtime-class-name", "nvidia"]
    assert AdmissionSettings.of_args(args) == AdmissionSettings(True, False, "nvidia")


def test_the_isolator_mounts_hami_core() -> None:
    pod = shared_pod("p", {"gpu-memory": "1"})
    changed = jsonpatch.apply_patch(copy.deepcopy(pod), isolator.injection(pod, full=True))
    mounts = {mount["mountPath"]: mount for mount in changed["spec"]["containers"][0]["volumeMounts"]}
    assert set(mounts) == {"/usr/local/vgpu", "/etc/ld.so.preload", "/usr/local/vgpu/containers", "/tmp/vgpulock"}
    assert mounts["/etc/ld.so.preload"]["readOnly"] is True
    assert len(changed["spec"]["volumes"]) == 3
    old = jsonpatch.apply_patch(copy.deepcopy(pod), isolator.injection(pod, full=False))
    assert len(old["spec"]["volumes"]) == 1
    assert "env" not in old["spec"]["containers"][0]


def test_the_isolator_leaves_others_alone() -> None:
    keys = ("gpu-fraction", "gpu-memory")
    pod = shared_pod("p", {"gpu-memory": "1", isolator.INJECT: "false"})
    assert isolator.skip_reason(shared_pod("p", {}), keys) == 'missing annotations "gpu-fraction" or "gpu-memory"'
    assert isolator.skip_reason(pod, keys) is not None
    assert isolator.skip_reason(shared_pod("p", {"gpu-memory": "1"}), keys) is None
    with pytest.raises(isolator.UnknownContainer, match="container with name x not found"):
        isolator.injection(shared_pod("p", {"gpu-memory": "1", "gpu-fraction-container-name": "x"}), full=True)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1, "1"),
        (2.974609375, "2974609375n"),
        (0.5, "500m"),
        (20480, "20480"),
        (10000, "10k"),
        (0.498046875, "498046875n"),
    ],
)
def test_quantities_are_written_as_kubernetes_does(number: float, text: str) -> None:
    assert quantity_text(number) == text
    assert quantity(text) == pytest.approx(number)


def test_quantities_of_memory_are_binary() -> None:
    assert quantity_text(2 * 2**30, binary=True) == "2Gi"
    assert quantity("2Gi") == 2 * 2**30
    assert quantity("what") == 0


@pytest.mark.parametrize(
    ("image", "full"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1.37", "docker.io/library/busybox:1.37"),
        ("projecthami/x:1", "docker.io/projecthami/x:1"),
        ("127.0.0.1:5000/a/b", "127.0.0.1:5000/a/b:latest"),
        ("nvml-mock:local", "docker.io/library/nvml-mock:local"),
    ],
)
def test_images_have_a_full_name(image: str, full: str) -> None:
    assert canonical_image(image) == full


def test_images_that_no_registry_has() -> None:
    assert not profiles.image_exists(canonical_image("nvml-mock:local"))
    assert not profiles.image_exists("ghcr.io/kai-scheduler/kai-scheduler/crd-upgrader:v0.17.99")
    assert profiles.image_exists("ghcr.io/kai-scheduler/kai-scheduler/crd-upgrader:v0.17.0")
    assert profiles.image_exists("docker.io/library/nginx:1")


def test_reservation_names_are_a_function_of_node_and_group() -> None:
    name = reservation_name("node", "group")
    assert name == reservation_name("node", "group")
    assert name != reservation_name("node", "other")
    prefix, _, digits = name.rpartition("-")
    assert (prefix, len(digits)) == ("gpu-reservation", 16)
    assert int(digits, 16) >= 0


def test_cards_are_numbered_as_the_mock_does() -> None:
    assert gpu_uuid(3) == "GPU-12345678-1234-1234-1234-123456780003"


STORED = [
    "2026-11-30T01:00:00.000000000Z stdout F one",
    "2026-11-30T01:00:02.000000000Z stdout F two",
    "2026-11-30T01:00:03.000000000Z stdout P end",
]


def test_logs_keep_the_missing_newline_at_their_end() -> None:
    assert render(STORED, LogQuery()) == b"one\ntwo\nend"
    assert render(STORED, LogQuery(tail_lines=1)) == b"end"
    assert render(STORED, LogQuery(tail_lines=0)) == b""
    assert render(STORED, LogQuery(limit_bytes=5)) == b"one\nt"
    assert render(STORED, LogQuery(timestamps=True)).startswith(b"2026-11-30T01:00:00.000000000Z one\n")
    since = datetime(2026, 11, 30, 1, 0, 1, tzinfo=timezone.utc)
    assert render(STORED, LogQuery(since=since)) == b"two\nend"


def test_logs_of_pods_that_are_no_more_are_removed(tmp_path: Path) -> None:
    logs = PodLogs(tmp_path)
    logs.of("ns", "kept", "u1", "c", 0).write("stays")
    logs.of("ns", "gone", "u2", "c", 0).write("goes")
    logs.keep_only({"u1"})
    assert [folder.name for folder in tmp_path.iterdir()] == ["ns_kept_u1"]


def test_a_log_that_grew_too_long_keeps_its_newer_half(tmp_path: Path) -> None:
    log = PodLogs(tmp_path).of("ns", "p", "u", "c", 0)
    for number in range(5):
        log.write(f"{number} " + "x" * 600_000)
    lines = render(log.lines(), LogQuery()).decode().splitlines()
    assert lines[-1].startswith("4 ")
    assert len(lines) < 5


def test_faults_are_checked_by_name() -> None:
    with pytest.raises(ValueError, match=r"unknown fault nonsense; known: .*library_missing"):
        Faults.parse({"nonsense": True})
    faults = Faults.parse({"time_slicing": 5, "binder_down": False, "crash_loop": "component=binder"})
    assert not faults.on("binder_down")
    assert faults.number("time_slicing", 10) == 5
    assert faults.text("crash_loop", "") == "binder"
    with pytest.raises(ValueError, match="fault gpu_count: 'many' is not a number"):
        Faults.parse({"gpu_count": "many"}).number("gpu_count", 8)
    with pytest.raises(KeyError):
        faults.on("misspelt")
    assert all(FAULTS.values())


def test_options_say_what_is_wrong() -> None:
    assert SimOptions.parse({"name": "x"}).node_name == "x-control-plane"
    assert SimOptions.parse({"faults": {"crossed": True}}).crossing
    assert SimOptions.parse({"crossing": "toolkit"}).crossing == "toolkit"
    with pytest.raises(ValueError, match="time_scale 0"):
        SimOptions.parse({"time_scale": 0})


def test_a_mistyped_value_has_no_effect() -> None:
    chart = profiles.chart("oci://host/kai-scheduler", "v0.17.0")
    values = profiles.merged(chart.values, {"global.gpusharing": True})
    assert profiles.sharing(profiles.KAI["v0.17.0"], values) == (False, False)
    values = profiles.merged(chart.values, {"global.gpuSharing": "true", "binder.plugins.hamicore.enabled": True})
    assert profiles.sharing(profiles.KAI["v0.17.0"], values) == (True, True)


@pytest.mark.parametrize(
    ("given", "meaning"),
    [
        ({}, (True, False)),
        ({"global.gpuSharing": True, "binder.plugins.hamicore.enabled": True}, (True, True)),
        ({"global.gpuSharingMode": "HamiCore"}, (True, True)),
        ({"global.gpuSharingMode": "NonMemoryEnforced", "binder.plugins.hamicore.enabled": True}, (True, False)),
        ({"global.gpuSharingMode": "Disabled"}, (False, False)),
    ],
)
def test_sharing_modes_of_the_next_kai(given: dict[str, Any], meaning: tuple[bool, bool]) -> None:
    kai = profiles.KAI["v0.18.2"]
    values = profiles.merged(profiles.chart("oci://host/kai-scheduler", "v0.18.2").values, given)
    assert profiles.sharing(kai, values) == meaning


def test_an_unknown_version_is_not_found_in_helms_words() -> None:
    text = 'failed to perform "FetchReference" on source: host/kai-scheduler:v0.17.9: not found'
    with pytest.raises(profiles.UnknownVersion) as caught:
        profiles.chart("oci://host/kai-scheduler", "v0.17.9")
    assert str(caught.value) == text


def test_a_config_with_a_wrong_type_is_named() -> None:
    config = {"spec": {"binder": {"plugins": {"hamicore": {"enabled": "yes"}}}}}
    text = ".spec.binder.plugins.hamicore.enabled: expected boolean, got &{yes}"
    assert profiles.wrong_config_type(config) == text
    assert profiles.wrong_config_type({"spec": {"admission": {"gpuSharing": True}}}) is None


def test_template_hashes_differ_with_the_template() -> None:
    assert template_hash({"a": 1}) == template_hash({"a": 1}) != template_hash({"a": 2})


def test_crds_name_every_kind_the_lab_needs() -> None:
    names = {crd["metadata"]["name"] for crd in charts.kai_crds()}
    assert {"configs.kai.scheduler", "queues.scheduling.run.ai", "bindrequests.scheduling.run.ai"} <= names


PENDING = {"metadata": {"namespace": "default", "name": "p", "uid": "u"}}


def attempt(phase: str) -> str | None:
    """An attempt of a binder that has failed often and therefore takes its time; the reservation pod is in `phase`."""
    reserved: dict[str, Any] = {"metadata": {"name": "r"}, "status": {"phase": phase}}
    living = {("default", "p"): PENDING, (RESERVATION_NAMESPACE, "r"): reserved}
    binder = object.__new__(Binder)
    binder.pods = SimpleNamespace(get=lambda *key: living.get(key))  # type: ignore[assignment]
    binder.sim = SimpleNamespace(seconds=lambda seconds: seconds * 0.001)  # type: ignore[assignment]
    binder._attempts = {"u": 20}

    async def wait() -> str | None:
        return await asyncio.wait_for(binder._wait_for_device("r", asyncio.Event(), PENDING), 2)

    return asyncio.run(wait())


def test_a_reservation_that_the_kubelet_refused_ends_its_attempt_at_the_rehearsals_pace() -> None:
    # Else the next attempt, to which a person has given cards meanwhile, would begin up to 40 real seconds later.
    assert attempt("Failed") is None
    with pytest.raises((asyncio.TimeoutError, TimeoutError)):
        attempt("Running")
