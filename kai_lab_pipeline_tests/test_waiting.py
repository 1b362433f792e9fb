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
from kai_lab_pipeline.lab.spec import GPU_GATES, NEED_GPUS, UPSTREAM
from kai_lab_pipeline.lab.verdict import CheckResult, Verdict, broken, held, not_evaluated
from kai_lab_pipeline.settings import load_settings
from kai_lab_pipeline.workbench import settle as settling
from kai_lab_pipeline.workbench.lab import Lab, ancestors

PROJECT = Path(__file__).resolve().parent.parent
SEEN = Observation(observed_at=datetime(2026, 11, 30, tzinfo=timezone.utc))


@dataclass
class Clock:
    """Time that passes only while somebody waits."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("asset", ["whole_gpu_pod", "kai_release"])
@pytest.mark.parametrize("deadline_s", [5.0, 180.0])
def test_what_never_comes_is_waited_for_until_the_deadline_and_looked_at_often_enough(
    monkeypatch: pytest.MonkeyPatch, asset: str, deadline_s: float
) -> None:
    clock = Clock()

    class Silent:
        """Watches that never announce anything."""

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

    monkeypatch.setattr(settling, "_Changes", Silent)
    monkeypatch.setattr(settling, "time", clock)
    observer: Any = SimpleNamespace(backend=SimpleNamespace(time_scale=0.01), cluster=None, observe=lambda name: SEEN)
    result = CheckResult(asset, "never", broken("it", "nothing", "It is not there."))
    settled = settling.settle(observer, asset, lambda _: (result,), deadline_s=deadline_s, log=lambda _: None)
    assert settled.looks >= settling.LEAST_LOOKS
    assert deadline_s <= settled.waited_s < deadline_s + 0.5


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    shutil.copy(PROJECT / "lab.toml", tmp_path)
    return Lab(load_settings(tmp_path, environ={}), "run", lambda _: None)


def seeing(lab: Lab, monkeypatch: pytest.MonkeyPatch, **verdicts: Verdict) -> None:
    """Have the run seen these checks of the mock's release and the device plugin."""
    makers = {
        Verdict.BROKEN: broken("a", "b", "c"),
        Verdict.HELD: held("a", "b", "c"),
        Verdict.NOT_EVALUATED: not_evaluated("a", "b"),
    }
    gates = [name.split(".") for name in GPU_GATES]
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


def test_without_gpus_only_what_needs_them_is_hopeless(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    seeing(lab, monkeypatch, gpu_present_label=Verdict.BROKEN, eight_whole_gpus=Verdict.BROKEN)
    hopeless = {asset for asset in UPSTREAM if lab.without_gpus(asset)}
    assert hopeless == set(NEED_GPUS)
    assert not hopeless & {"kai_release", "isolator_release", "reservation_boundary"}, "these come without GPUs too"
    assert lab.without_gpus("whole_gpu_pod") == "nvml_mock_release.gpu_present_label"


@pytest.mark.parametrize("verdict", [Verdict.HELD, Verdict.NOT_EVALUATED])
def test_nothing_is_hopeless_that_was_not_seen_broken(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, verdict: Verdict
) -> None:
    seeing(lab, monkeypatch, gpu_present_label=verdict, eight_whole_gpus=verdict)
    assert not any(lab.without_gpus(asset) for asset in UPSTREAM)


def test_an_asset_is_no_reason_for_itself(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    seeing(lab, monkeypatch, eight_whole_gpus=Verdict.BROKEN)
    assert "device_plugin" not in ancestors("device_plugin")
    assert lab.without_gpus("device_plugin") == ""
    assert lab.without_gpus("whole_gpu_pod") == "device_plugin.eight_whole_gpus"
