"""KAI's GPU arithmetic against what was measured with KAI v0.17.0 and read from its source."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kai_lab_pipeline.lab.gpu import (
    BYTES_FROM,
    devices_of,
    floored_memory_mib,
    format_quantity,
    fraction_of_memory,
    label_memory_mib,
    memory_limit_mib,
    portion_per_device,
    requested_fraction,
)

REPEATABLE = settings(derandomize=True, deadline=None)

A100 = "40960"
labels = st.integers(min_value=100, max_value=BYTES_FROM - 1)
requests = st.integers(min_value=1, max_value=2_000_000)


@pytest.mark.parametrize(
    ("request_mib", "fraction"),
    [
        (1, 0.01),
        (10000, 0.25),
        (20400, 0.50),
        (20450, 0.50),
        (20451, 0.51),
        (20480, 0.51),
        (30000, 0.74),
        (40900, 1.00),
        (40901, 1.01),
        (40960, 1.01),
        (50000, 1.23),
    ],
)
def test_measured_fractions_of_an_a100(request_mib: int, fraction: float) -> None:
    assert fraction_of_memory(request_mib, A100) == fraction


@pytest.mark.parametrize(
    ("label", "request_mib", "floored", "portion", "limit"),
    [
        ("40960", 20480, 40900, 0.51, 20889),
        ("40960", 20450, 40900, 0.50, 20480),
        ("40960", 10000, 40900, 0.25, 10240),
        ("40960", 30000, 40900, 0.74, 30310),
        ("81920", 40960, 81900, 0.51, 41779),
        ("15360", 4096, 15300, 0.27, 4147),
        ("40960", 40900, 40900, 1.00, 40960),
    ],
)
def test_limits_come_from_the_unfloored_label(
    label: str, request_mib: int, floored: int, portion: float, limit: int
) -> None:
    assert floored_memory_mib(label) == floored
    assert fraction_of_memory(request_mib, label) == portion
    assert memory_limit_mib(label, portion) == limit


@pytest.mark.parametrize("label", [None, "", "40960Mi", "40Gi", "40960.0", " 40960", "40_960", "٤٠٩٦٠", "9" * 19, "x"])
def test_an_unreadable_label_counts_as_a_hundred_mib(label: str | None) -> None:
    assert label_memory_mib(label) is None
    assert floored_memory_mib(label) == 100
    assert fraction_of_memory(20480, label) == 204.8
    assert memory_limit_mib(label, 0.51) is None


def test_bytes_are_taken_for_bytes() -> None:
    assert label_memory_mib(str(40960 * 2**20)) == 40960
    assert label_memory_mib(str(BYTES_FROM)) == 1
    assert label_memory_mib(str(BYTES_FROM - 1)) == BYTES_FROM - 1


@pytest.mark.parametrize("label", ["0", "99", "-5"])
def test_a_label_below_the_step_fits_nothing(label: str) -> None:
    assert fraction_of_memory(1, label) == math.inf
    assert memory_limit_mib(label, math.inf) is None


@REPEATABLE
@given(requests, labels)
def test_a_fraction_covers_its_request(request_mib: int, label: int) -> None:
    fraction = fraction_of_memory(request_mib, str(label))
    floored = floored_memory_mib(str(label))
    assert fraction * floored >= request_mib - 1e-6 * floored
    assert (fraction - 0.02) * floored < request_mib
    assert round(fraction * 100) == pytest.approx(fraction * 100)


@REPEATABLE
@given(requests, requests, labels)
def test_more_memory_is_never_a_smaller_fraction(one: int, other: int, label: int) -> None:
    small, large = sorted((one, other))
    assert fraction_of_memory(small, str(label)) <= fraction_of_memory(large, str(label))


@REPEATABLE
@given(labels)
def test_the_floor_takes_off_less_than_a_step(label: int) -> None:
    floored = floored_memory_mib(str(label))
    assert floored % 100 == 0
    assert 0 <= label - floored < 100


@REPEATABLE
@given(labels)
def test_the_advertised_memory_fits_only_if_a_multiple_of_the_step(label: int) -> None:
    assert (fraction_of_memory(label, str(label)) <= 1) == (label % 100 == 0)


@REPEATABLE
@given(st.text(max_size=12))
def test_any_label_can_be_read(label: str) -> None:
    assert floored_memory_mib(label) % 100 == 0
    assert fraction_of_memory(1, label) > 0


@pytest.mark.parametrize(
    ("annotations", "gpus"),
    [
        ({"gpu-memory": "20480"}, 0.51),
        ({"gpu-memory": "10000", "gpu-fraction-num-devices": "2"}, 0.5),
        ({"gpu-fraction": "0.5"}, 0.5),
        ({"gpu-fraction": "0.505"}, 0.51),
        ({"gpu-fraction": "0.07"}, 0.07),
        ({"gpu-fraction": "0.25", "gpu-fraction-num-devices": "4"}, 1.0),
        ({"gpu-fraction": "0.25", "gpu-fraction-num-devices": "many"}, 0.25),
        ({"gpu-memory": 20480}, 0.51),
    ],
)
def test_sharing_annotations_ask_gpus(annotations: dict[str, object], gpus: float) -> None:
    assert requested_fraction(annotations, A100) == pytest.approx(gpus)


@pytest.mark.parametrize(
    "annotations",
    [{}]
    + [{"gpu-memory": value} for value in ("abc", "0", "-5", "0.5Gi", "", " 20480", "+20480")]
    + [{"gpu-fraction": value} for value in ("0", "1", "1.5", "abc", "nan", "-0.5", "")],
)
def test_what_admission_refuses_shares_nothing(annotations: dict[str, object]) -> None:
    assert portion_per_device(annotations, A100) is None
    assert requested_fraction(annotations, A100) is None


@REPEATABLE
@given(st.integers(min_value=1, max_value=99))
def test_hundredths_stay_what_they_are(hundredths: int) -> None:
    text = f"{hundredths / 100:.2f}"
    assert portion_per_device({"gpu-fraction": text}, A100) == hundredths / 100


def test_one_device_unless_said() -> None:
    assert devices_of({}) == 1
    assert devices_of({"gpu-fraction-num-devices": "0"}) == 1
    assert devices_of({"gpu-fraction-num-devices": "3"}) == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1, "Unlimited"),
        (0, "0"),
        (1, "1"),
        (10, "10"),
        (100, "100"),
        (1.51, "1.51"),
        (1 + 20480 / 40900, "1.5"),
        (1.001, "1.001"),
        (1.2225, "1.222"),
        (0.51 + 0.5 + 0.25 + 0.74 + 1, "3"),
        (math.inf, "inf"),
    ],
)
def test_numbers_are_printed_as_the_scheduler_prints_them(value: float, text: str) -> None:
    assert format_quantity(value) == text


@REPEATABLE
@given(st.lists(st.integers(min_value=1, max_value=100), min_size=1, max_size=20))
def test_sums_of_hundredths_print_exactly(hundredths: list[int]) -> None:
    total = sum(hundredths)
    printed = format_quantity(sum(h / 100 for h in hundredths))
    assert float(printed) == total / 100
