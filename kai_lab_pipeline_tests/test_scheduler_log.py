"""Reading the scheduler's division lines as real schedulers of several versions wrote them."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kai_lab_pipeline.lab.scheduler_log import newest_division, parse_division, strip_ansi
from kai_lab_pipeline_tests.damages import recorded
from kai_lab_pipeline_tests.damages.draft import CROSSED, LAB

REPEATABLE = settings(derandomize=True, deadline=None)

RECORDED = (
    "2026-11-30T01:10:44.564718803Z 2026-11-30T01:10:44.563Z\t\x1b[34mINFO\x1b[0m\tresource_division/"
    "resource_division.go:68\t[\x1b[36mqE56Kw\x1b[0m] Resource division result for queue <default-queue>: "
    "Queue Priority: <100>, GPU: deserved: <Unlimited>, requested: <1.51>, maxAllowed: <Unlimited>, "
    "allocated: <1.51>, historicalUsage: <0>, fairShare: <1.51> CPU (cores): deserved: <Unlimited>, "
    "requested: <7>, maxAllowed: <Unlimited>, allocated: <0>, historicalUsage: <0>, fairShare: <0> "
    "memory (GB): deserved: <Unlimited>, requested: <0>, maxAllowed: <Unlimited>, allocated: <0>, fairShare: <0> "
)


def line(queue: str, gpu: str, at: str = "2026-11-30T01:00:00Z") -> str:
    return (
        f"{at}\tINFO\t[x] Resource division result for queue <{queue}>: Queue Priority: <100>, "
        f"GPU: {gpu} CPU (cores): requested: <9> "
    )


def test_a_recorded_line() -> None:
    division = parse_division(RECORDED)
    assert division is not None
    assert division.queue == "default-queue"
    assert list(division.gpu) == ["deserved", "requested", "maxAllowed", "allocated", "historicalUsage", "fairShare"]
    assert [division.number(key) for key in ("requested", "allocated", "fairShare")] == [1.51, 1.51, 1.51]
    assert division.number("deserved") == math.inf
    assert division.at is not None
    assert division.at.second == 44


def test_keys_of_v0_20_are_read_by_name() -> None:
    division = parse_division(
        line("default-queue", "deserved: <0>, requested: <1>, maxAllowed: <Unlimited>, usage: <0.5>, fairShare: <1>")
    )
    assert division is not None
    assert division.number("allocated") is None
    assert division.number("usage") == 0.5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Resource division result for queue <default-queue>",
        "Resource division result for queue <default-queue>: Queue Priority: <100>, GPU: deserved: <Unl",
        "Resource division result for queue <default-queue>: Queue Priority: <100>, GPU: requested: <1.51>, fairSh",
        "Total allocatable resources are <8>, number of nodes: <1>, number of queues: <3>",
    ],
)
def test_other_and_cut_lines_are_none(text: str) -> None:
    assert parse_division(text) is None


def test_a_value_that_is_no_number() -> None:
    division = parse_division(line("q", "requested: <many>"))
    assert division is not None
    assert division.number("requested") is None


def test_newest_line_of_one_queue_in_random_order() -> None:
    cycles = []
    shuffle = random.Random(7)
    for value in ("1", "1.5", "1.51"):
        cycle = [line(queue, f"requested: <{value}>") for queue in ("default", "default-parent-queue")]
        cycle.append(line("default-queue", f"requested: <{value}0>"))
        shuffle.shuffle(cycle)
        cycles += cycle
    found = newest_division(["\n".join(cycles)], "default-queue")
    assert found is not None
    assert found.gpu["requested"] == "1.510"


def test_a_line_still_being_written_is_not_read() -> None:
    whole = line("q", "requested: <2>")
    found = newest_division([f"{whole}\n{whole[:90]}"], "q")
    assert found is not None
    assert found.number("requested") == 2


def test_newest_of_several_logs_by_time() -> None:
    old = line("q", "requested: <1>", "2026-11-30T01:00:00Z")
    new = line("q", "requested: <2>", "2026-11-30T01:00:01Z")
    for texts in ([old, new], [new, old], [new, "", old]):
        found = newest_division(texts, "q")
        assert found is not None
        assert found.number("requested") == 2


def test_no_line_of_the_queue() -> None:
    assert newest_division([line("default", "requested: <1>")], "default-queue") is None
    assert newest_division([], "default-queue") is None


@pytest.mark.parametrize(("recording", "value"), [(LAB, 1.51), (CROSSED, 3)])
def test_recorded_logs(recording: str, value: float) -> None:
    texts = [log.text for log in recorded(recording).of("shared_gpu_pod").logs if "kai-scheduler-default" in log.pod]
    found = newest_division(texts, "default-queue")
    assert found is not None
    assert found.number("fairShare") == value


def test_ansi_is_stripped() -> None:
    assert strip_ansi("\x1b[34mINFO\x1b[0m \x1b[1;31mx") == "INFO x"


@REPEATABLE
@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    newest_division([text, RECORDED[: len(text)], text + RECORDED], "default-queue")
    assert strip_ansi(strip_ansi(text)) is not None


@REPEATABLE
@given(
    st.dictionaries(
        st.from_regex(r"[a-z][A-Za-z]{0,12}", fullmatch=True),
        st.from_regex(r"[0-9]{1,4}(\.[0-9]{1,3})?", fullmatch=True),
        min_size=1,
    )
)
def test_pairs_survive(pairs: dict[str, str]) -> None:
    text = ", ".join(f"{key}: <{value}>" for key, value in pairs.items())
    division = parse_division(line("q", text))
    assert division is not None
    assert dict(division.gpu) == pairs
    assert str(division) == text
