"""Charts pushed again under the same version: told, and judged again once, whichever version set has them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kai_lab_pipeline.automation.partitions import look, waiting
from kai_lab_pipeline.lab.due import Reason
from kai_lab_pipeline.lab.version_sets import version_set
from kai_lab_pipeline.rehearsal.registry import RehearsalRegistry, lab_registry, mirrors, serve
from kai_lab_pipeline.rehearsal.registry_charts import CHARTS, KAI_REPOSITORY, NVML_MOCK_REPOSITORY
from kai_lab_pipeline.settings import Settings, load_settings
from kai_lab_pipeline.workbench.adding import add_version_set
from kai_lab_pipeline.workbench.nights import Comparison, Nights
from kai_lab_pipeline_tests.lab_project import CHECKOUT
from kai_lab_pipeline_tests.test_nights import record


@pytest.fixture
def registry() -> RehearsalRegistry:
    return lab_registry()


@pytest.fixture
def settings(tmp_path: Path, registry: RehearsalRegistry, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    shutil.copy(CHECKOUT / "lab.toml", tmp_path)
    with serve(registry) as url:
        monkeypatch.setenv("KAI_LAB_MIRRORS", json.dumps(mirrors(url)))
        yield load_settings(tmp_path)


@pytest.fixture
def nights(settings: Settings) -> Nights:
    return Nights(settings)


def push_again(registry: RehearsalRegistry, repository: str, tag: str) -> None:
    """The same chart under the same tag, built anew: its manifest has another digest."""
    [chart] = [one for one in CHARTS[repository] if one.version == tag]
    registry.push_chart(repository, replace(chart, app_version="built anew"), tag)


def night(settings: Settings, nights: Nights) -> dict[str, Reason]:
    """A night that judges all that is due, without clusters; what was due."""
    look(settings, nights)
    due = waiting(settings, nights)
    for one in due:
        nights.add_record(record(nights.load(one.version_set.key)))
    return {one.version_set.key: one.reason for one in due}


def with_version(nights: Nights, component: str, version: str) -> set[str]:
    return {key for key, stored in nights.sets().items() if stored.version_set.versions[component] == version}


def test_a_chart_pushed_again_makes_every_set_that_has_it_due_once(
    settings: Settings, nights: Nights, registry: RehearsalRegistry
) -> None:
    later = registry.manifests[KAI_REPOSITORY].pop("v0.19.0")
    assert set(night(settings, nights).values()) == {Reason.NEW}
    registry.manifests[KAI_REPOSITORY]["v0.19.0"] = later  # what was the newest of all is not looked up as such again
    assert set(night(settings, nights).values()) == {Reason.NEW}
    assert night(settings, nights) == {}
    push_again(registry, KAI_REPOSITORY, "v0.18.2")
    again = with_version(nights, "kai_scheduler", "v0.18.2")
    assert len(again) == 4, "alone and with the other newest, in both lanes"
    assert night(settings, nights) == dict.fromkeys(again, Reason.REPUSHED)
    assert night(settings, nights) == {}, "judged again, and no more"


def test_a_pinned_chart_pushed_again_makes_the_pinned_set_due(
    settings: Settings, nights: Nights, registry: RehearsalRegistry
) -> None:
    night(settings, nights)
    push_again(registry, NVML_MOCK_REPOSITORY, settings.charts.nvml_mock.version)
    again = night(settings, nights)
    assert set(again) == with_version(nights, "nvml_mock", settings.charts.nvml_mock.version)
    assert version_set(settings.version_set(), {}).key in again
    assert night(settings, nights) == {}


def test_an_older_version_that_somebody_added_is_looked_up_again(
    settings: Settings, nights: Nights, registry: RehearsalRegistry
) -> None:
    [added] = add_version_set(settings, {"kai_scheduler": "v0.16.8"})
    night(settings, nights)
    push_again(registry, KAI_REPOSITORY, "v0.16.8")
    assert night(settings, nights) == {added.version_set.key: Reason.REPUSHED}


def test_a_tag_with_helms_underscore_has_a_digest(
    settings: Settings, nights: Nights, registry: RehearsalRegistry
) -> None:
    registry.push_chart(KAI_REPOSITORY, CHARTS[KAI_REPOSITORY][0], "v0.21.0_b1")
    look(settings, nights)
    [fresh, _] = [
        stored
        for stored in nights.sets().values()
        if stored.version_set.versions["kai_scheduler"] == "v0.21.0+b1" and len(stored.version_set.moved) == 1
    ]
    assert fresh.digests["kai_scheduler"].startswith("sha256:")


def test_a_set_judged_before_its_digest_was_known_is_not_pushed_again(
    settings: Settings, nights: Nights, registry: RehearsalRegistry
) -> None:
    for one in waiting(settings, nights):  # the pinned set, before anybody looked
        nights.add_record(record(nights.load(one.version_set.key)))
    baseline = version_set(settings.version_set(), {}).key
    assert baseline not in night(settings, nights)
    assert nights.load(baseline).digests.keys() == settings.charts.by_component().keys()
    push_again(registry, KAI_REPOSITORY, settings.charts.kai_scheduler.version)
    assert night(settings, nights)[baseline] is Reason.REPUSHED


def test_only_the_comparison_of_the_chart_that_changed_is_dropped(
    settings: Settings, nights: Nights, registry: RehearsalRegistry
) -> None:
    look(settings, nights)
    [both, *_] = [key for key, stored in nights.sets().items() if len(stored.version_set.moved) == 2]
    for component in ("kai_scheduler", "nvml_mock"):
        nights.add_comparison(both, component, Comparison("run", f"diff of {component}", "held", "", "", ""))
    look(settings, nights)
    assert nights.load(both).diff == "diff of kai_scheduler\n\ndiff of nvml_mock"
    push_again(registry, NVML_MOCK_REPOSITORY, "0.4.0")
    look(settings, nights)
    assert nights.load(both).diff == "diff of kai_scheduler"
