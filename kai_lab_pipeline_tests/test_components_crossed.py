"""The boundary crossed: NVML reaches the pods, so shared pods get cards, limits and run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kai_lab_pipeline_tests.rehearsal_lab import Lab, condition, labels, running

pytestmark = pytest.mark.xdist_group("components-crossed")

RESERVATIONS = "kai-resource-reservation"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running(tmp_path_factory.mktemp("crossed"), crossing="nvidia-container-runtime in cdi mode") as made:
        made.scheduling(**{"binder.runtimeClassName": "nvidia"})
        made.isolation(handler="nvidia")
        for name, memory in (("share1", "20480"), ("share2", "20400"), ("share3", "10000"), ("share4", "30000")):
            made.shared_pod(name, memory)
            made.wait_phase(name, "Running")
        yield made


def test_four_pods_share_two_cards(lab: Lab) -> None:
    groups = {p["metadata"]["name"]: labels(p).get("runai-gpu-group") for p in lab.all("pods", "default")}
    assert groups["share1"] == groups["share2"] != groups["share3"] == groups["share4"]
    reservations = lab.all("pods", RESERVATIONS)
    assert len(reservations) == 2
    assert all(pod["spec"]["runtimeClassName"] == "nvidia" for pod in reservations)
    cards = {pod["metadata"]["annotations"]["run.ai/reserve_for_gpu_index"] for pod in reservations}
    assert len(cards) == 2
    assert all(card.startswith("GPU-12345678-1234-1234-1234-12345678000") for card in cards)


@pytest.mark.parametrize(
    ("pod", "portion", "limit"),
    [
        ("share1", "0.51", "20889m"),
        ("share2", "0.50", "20480m"),
        ("share3", "0.25", "10240m"),
        ("share4", "0.74", "30310m"),
    ],
)
def test_limits_are_the_label_times_the_portion(lab: Lab, pod: str, portion: str, limit: str) -> None:
    maps = {obj["metadata"]["name"]: obj for obj in lab.all("configmaps", "default")}
    found = lab.get("pods", pod, "default")
    assert found is not None
    data = maps[found["metadata"]["annotations"]["runai/shared-gpu-configmap"] + "-0"]["data"]
    assert (data["CUDA_DEVICE_MEMORY_LIMIT"], data["GPU_PORTION"], data["RUNAI_NUM_OF_GPUS"]) == (
        limit,
        portion,
        portion,
    )


def test_the_queue_holds_the_sum_of_its_pods(lab: Lab) -> None:
    assert "requested: <2>, maxAllowed: <Unlimited>, allocated: <2>" in lab.scheduler_lines()[-1]
    lab.wait_for(
        "queues",
        "default-queue",
        lambda queue: queue.get("status", {}).get("allocated") == {"nvidia.com/gpu": "1974609375n"},
        "queue status",
    )


def test_the_reservation_found_its_card(lab: Lab) -> None:
    name = lab.all("pods", RESERVATIONS)[0]["metadata"]["name"]
    text = lab.log(RESERVATIONS, name, "resource-reservation")
    assert "Found 1 GPU devices" in text
    assert 'Found GPU device\t{"deviceId": "GPU-12345678' in text
    assert "ERROR_LIBRARY_NOT_FOUND" not in text


def test_a_bound_pod_is_bound_and_received_a_fraction(lab: Lab) -> None:
    pod = lab.get("pods", "share1", "default")
    assert pod is not None
    assert condition(pod, "PodBound")["status"] == "True"
    assert pod["metadata"]["annotations"]["received-resource-type"] == "Fraction"
    request = lab.get("bindrequests", "share1", "default")
    assert request is not None
    assert request["status"]["phase"] == "Succeeded"


def test_a_card_is_given_back_with_its_last_pod(lab: Lab) -> None:
    for name in ("share3", "share4"):
        lab.delete("pods", name, "default")

    def one_left(pods: list[dict[str, object]]) -> bool:
        return sum(pod["metadata"]["namespace"] == RESERVATIONS for pod in pods) == 1  # type: ignore[index]

    assert lab.wait("pods", one_left, "one reservation left")
    assert lab.get("pods", "share1", "default") is not None
