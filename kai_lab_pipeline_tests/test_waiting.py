"""How long a candidate waits for what will never come: no longer than it must, and never too short to be sure."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kai_lab_pipeline.lab.evidence import Observation
from kai_lab_pipeline.lab.spec import CANNOT_HOLD_WITHOUT, CHECKS, UPSTREAM
from kai_lab_pipeline.lab.verdict import CheckResult, Verdict, broken, held, not_evaluated
from kai_lab_pipeline.settings import load_settings
from kai_lab_pipeline.workbench import settle as settling
from kai_lab_pipeline.workbench.lab import Lab

PROJECT = Path(__file__).resolve().parent.parent
SEEN = Observation(observed_at=datetime(2026, 11, 30, tzinfo=timezone.utc))


@dataclass
class Clock:
    """Time that passes only while somebody waits."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


def silent(clock: Clock) -> type:
    """Watches that never announce anything: waiting for them only takes its time."""

    class Silent:
        def __init__(self, *_: Any) -> None:
            pass

        def __enter__(self) -> Silent:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def clear(self) -> None:
            pass

        def wait(self, timeout_s: float) -> None:
            clock.now += timeout_s

    return Silent


def observer() -> Any:
    return SimpleNamespace(backend=SimpleNamespace(time_scale=0.01), cluster=None, observe=lambda name: SEEN)


@pytest.mark.parametrize("asset", ["whole_gpu_pod", "kai_release"])
@pytest.mark.parametrize("deadline_s", [5.0, 180.0])
def test_what_never_comes_is_waited_for_until_the_deadline_and_looked_at_often_enough(
    monkeypatch: pytest.MonkeyPatch, asset: str, deadline_s: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(settling, "_Changes", silent(clock))
    monkeypatch.setattr(settling, "time", clock)
    result = CheckResult(asset, "never", broken("it", "nothing", "It is not there."))
    settled = settling.settle(observer(), asset, lambda _: (result,), deadline_s=deadline_s, log=lambda _: None)
    assert settled.looks >= settling.LEAST_LOOKS
    assert deadline_s <= settled.waited_s < deadline_s + 0.5


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    shutil.copy(PROJECT / "lab.toml", tmp_path)
    return Lab(load_settings(tmp_path, environ={}), "run", lambda _: None)


GATES = ("nvml_mock_release.daemonset_ready", "nvml_mock_release.gpu_present_label", "device_plugin.eight_whole_gpus")
VALUES = "kai_release.values_have_effect"


def seeing(lab: Lab, monkeypatch: pytest.MonkeyPatch, **verdicts: Verdict) -> None:
    """Have the run seen these checks of the mock's release and the device plugin."""
    makers = {
        Verdict.BROKEN: broken("a", "b", "c"),
        Verdict.HELD: held("a", "b", "c"),
        Verdict.NOT_EVALUATED: not_evaluated("a", "b"),
    }
    gates = [name.split(".") for name in GATES]
    results = {
        asset: tuple(
            CheckResult(asset, check, makers[verdicts[check]])
            for of, check in gates
            if of == asset and check in verdicts
        )
        for asset, _ in gates
    }
    monkeypatch.setattr(lab, "seen_in_this_run", lambda asset: SEEN if results.get(asset) else None)
    monkeypatch.setattr(lab, "judge_asset", lambda asset, _: results[asset])


def hopeless(lab: Lab, *known: str) -> dict[str, str]:
    """Each check that is waited for shortly, with what is broken."""
    return {f"{asset}.{check}": name for asset in UPSTREAM for check, name in lab.hopeless(asset, known).items()}


def test_the_names_are_those_of_checks() -> None:
    names = {f"{asset}.{check.name}" for asset, checks in CHECKS.items() for check in checks}
    assert set(CANNOT_HOLD_WITHOUT) <= names
    assert {name for needed in CANNOT_HOLD_WITHOUT.values() for name in needed} <= {*names, VALUES}


def test_without_a_marked_node_only_what_needs_gpus_is_hopeless(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    seeing(lab, monkeypatch, gpu_present_label=Verdict.BROKEN, eight_whole_gpus=Verdict.BROKEN)
    found = hopeless(lab)
    assert set(found) == {name for name, needed in CANNOT_HOLD_WITHOUT.items() if VALUES not in needed}
    assert set(found.values()) == {"nvml_mock_release.gpu_present_label"}
    assert "isolator_release.webhook_mutates" not in found, "the webhook comes without GPUs too"
    assert not any(name.startswith(("kai_release", "reservation_boundary")) for name in found)


def test_without_gpus_the_monitor_still_comes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    seeing(lab, monkeypatch, gpu_present_label=Verdict.HELD, eight_whole_gpus=Verdict.BROKEN)
    assert "whole_gpu_pod.whole_gpu_running" in hopeless(lab)
    assert "isolator_release.isolator_pods_running" not in hopeless(lab)


@pytest.mark.parametrize("verdict", [Verdict.HELD, Verdict.NOT_EVALUATED])
def test_nothing_is_hopeless_that_was_not_seen_broken(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, verdict: Verdict
) -> None:
    seeing(lab, monkeypatch, gpu_present_label=verdict, eight_whole_gpus=verdict)
    assert hopeless(lab) == {}


def test_a_check_is_no_reason_for_itself(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    seeing(lab, monkeypatch, eight_whole_gpus=Verdict.BROKEN)
    assert lab.hopeless("device_plugin") == {}
    assert lab.hopeless("whole_gpu_pod") == {"whole_gpu_running": "device_plugin.eight_whole_gpus"}


def test_what_a_value_without_effect_sets_is_hopeless(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    seeing(lab, monkeypatch)
    assert hopeless(lab, VALUES) == dict.fromkeys(
        ("kai_release.sharing_enabled", "kai_release.hamicore_enabled"), VALUES
    )


@pytest.mark.parametrize(
    ("known", "late_at_s", "waited_s"),
    [
        (set(), 10, 80),
        ({"never"}, 10, 20),
        ({"never", "late"}, 10, 20),
        ({"never"}, 50, 50),  # what can still come is waited for, whatever else is hopeless
        ({"never", "late"}, 50, 20),
    ],
)
def test_the_whole_deadline_is_for_what_can_still_come(
    monkeypatch: pytest.MonkeyPatch, known: set[str], late_at_s: int, waited_s: int
) -> None:
    """`late` comes after so many of 80 s, and `never` never."""
    clock = Clock()
    monkeypatch.setattr(settling, "_Changes", silent(clock))
    monkeypatch.setattr(settling, "time", clock)

    def judged(_: Observation) -> tuple[CheckResult, ...]:
        late = held("it", "it", "It is there.") if clock.now >= late_at_s else broken("it", "nothing", "It is late.")
        never = broken("it", "nothing", "It is not there.")
        return CheckResult("whole_gpu_pod", "never", never), CheckResult("whole_gpu_pod", "late", late)

    settled = settling.settle(observer(), "whole_gpu_pod", judged, deadline_s=80.0, log=lambda _: None, hopeless=known)
    assert settled.waited_s == pytest.approx(waited_s, abs=0.5)
    late_came = late_at_s <= waited_s
    assert [result.check for result in settled.mismatches] == (["never"] if late_came else ["never", "late"])


@pytest.mark.parametrize(
    ("in_sight_at_s", "waited_s", "verdict"),
    [
        ([(10, 200)], 80, Verdict.BROKEN),
        ([(10, 15), (100, 105)], 100, Verdict.BROKEN),  # between two attempts at the deadline
        ([(10, 15)], 160, Verdict.NOT_EVALUATED),
        ([], 80, Verdict.NOT_EVALUATED),  # never seen: nothing to look for again
    ],
)
def test_what_is_out_of_sight_at_the_deadline_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch, in_sight_at_s: list[tuple[int, int]], waited_s: int, verdict: Verdict
) -> None:
    clock = Clock()
    monkeypatch.setattr(settling, "_Changes", silent(clock))
    monkeypatch.setattr(settling, "time", clock)

    def judged(_: Observation) -> tuple[CheckResult, ...]:
        seen = any(first <= clock.now < last for first, last in in_sight_at_s)
        found = broken("it", "another", "It is another.") if seen else not_evaluated("it", "No pod is there.")
        return (CheckResult("reservation_boundary", "nvml", found),)

    settled = settling.settle(observer(), "reservation_boundary", judged, deadline_s=80.0, log=lambda _: None)
    assert settled.waited_s == pytest.approx(waited_s, abs=0.5)
    assert [result.verdict for result in settled.results] == [verdict]
