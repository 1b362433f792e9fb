"""Charts pushed again under the same version: told, and judged again once, whichever version set has them."""

from __future__ import annotations

import io
import shutil
import threading
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from rich.console import Console

from kai_lab_pipeline.automation import nightly
from kai_lab_pipeline.automation.nightly import new_chart_versions_sensor
from kai_lab_pipeline.automation.partitions import look, waiting
from kai_lab_pipeline.clients.digests import ChartAt, Digests, digests_of
from kai_lab_pipeline.clients.discovery import Lookup
from kai_lab_pipeline.commands.versions import discover, print_versions
from kai_lab_pipeline.lab.due import Reason
from kai_lab_pipeline.lab.version_sets import version_set
from kai_lab_pipeline.rehearsal.registry import Fault, RehearsalRegistry
from kai_lab_pipeline.rehearsal.registry_charts import CHARTS, KAI_REPOSITORY, NVML_MOCK_REPOSITORY
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.adding import add_version_set
from kai_lab_pipeline.workbench.nights import Comparison, Nights
from kai_lab_pipeline_tests.test_nights import record


@pytest.fixture
def settings(registry_settings: Settings) -> Settings:
    return registry_settings


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


def sensor_says(settings: Settings, instance: dg.DagsterInstance) -> str:
    tick = new_chart_versions_sensor(settings)(dg.build_sensor_context(instance=instance))
    assert isinstance(tick, dg.SensorResult)
    assert tick.skip_reason is not None
    return tick.skip_reason.skip_message or ""


class Dangling(dict[str, bytes]):
    """Manifests of a repository that lists v0.19.0 and has lost what it points at."""

    def get(self, tag: str, default: Any = None) -> Any:
        return default if tag == "v0.19.0" else super().get(tag, default)


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
    registry.faults[KAI_REPOSITORY] = Fault("server_error", times=1)
    assert look(settings, nights)["kai_scheduler"].error is not None
    assert nights.load(both).digests.keys() == settings.charts.by_component().keys(), "an outage makes nobody forget"
    look(settings, nights)
    assert nights.load(both).diff == "diff of kai_scheduler\n\ndiff of nvml_mock"
    push_again(registry, NVML_MOCK_REPOSITORY, "0.4.0")
    look(settings, nights)
    assert nights.load(both).diff == "diff of kai_scheduler"


def test_a_chart_pushed_again_is_told_until_it_is_judged_again(
    settings: Settings, nights: Nights, registry: RehearsalRegistry
) -> None:
    night(settings, nights)
    assert discover(settings)["components"]["kai_scheduler"]["repushed"] == []
    push_again(registry, KAI_REPOSITORY, "v0.18.2")
    for _ in range(2):  # the sensor looks every hour
        with dg.DagsterInstance.ephemeral() as instance:
            assert "; pushed again with other content: v0.18.2" in sensor_says(settings, instance)
        answer = discover(settings)["components"]
        assert {component: found["repushed"] for component, found in answer.items()} == {
            "nvml_mock": [],
            "kai_scheduler": ["v0.18.2"],
            "kai_resource_isolator": [],
        }
    out = io.StringIO()
    assert print_versions(settings, False, Console(file=out, width=200)) == 0
    assert "kai_scheduler: pushed again with other content: v0.18.2." in out.getvalue()
    night(settings, nights)
    assert discover(settings)["components"]["kai_scheduler"]["repushed"] == []


def test_a_tag_without_a_manifest_costs_its_own_digest_and_nothing_else(
    settings: Settings, nights: Nights, registry: RehearsalRegistry
) -> None:
    registry.manifests[KAI_REPOSITORY] = Dangling(registry.manifests[KAI_REPOSITORY])
    found = look(settings, nights)["kai_scheduler"]
    assert found.newer == ("v0.18.2", "v0.19.0")
    assert found.error is None
    assert "not known whether pushed again: v0.19.0 (Looking up the digest of v0.19.0" in found.sentence
    [one, _] = [
        stored
        for stored in nights.sets().values()
        if stored.version_set.versions["kai_scheduler"] == "v0.19.0" and len(stored.version_set.moved) == 1
    ]
    assert "kai_scheduler" not in one.digests
    assert one.digests["nvml_mock"].startswith("sha256:")


def test_thousands_of_tags_are_not_waited_for(settings: Settings, registry: RehearsalRegistry) -> None:
    reference = settings.charts.kai_scheduler.chart
    charts = [ChartAt(reference, f"v0.{n // 100}.{n % 100}") for n in range(10_000)]
    found = digests_of(settings, charts, seconds=-1)
    assert len(found.unknown) == 10_000
    assert registry.requests == []
    said = Lookup("kai_scheduler", "v0.17.0", reference, undigested={one.version: "late" for one in charts}).sentence
    assert "v0.0.0, v0.0.1, v0.0.2 and 9997 more (late)" in said


def test_a_registry_that_has_failed_is_asked_for_no_more_digests(
    settings: Settings, registry: RehearsalRegistry
) -> None:
    kai, nvml = (settings.charts.by_component()[name].chart for name in ("kai_scheduler", "nvml_mock"))
    registry.faults[KAI_REPOSITORY] = Fault("forbidden")
    charts = [ChartAt(kai, "v0.18.2"), ChartAt(nvml, "0.4.0"), *(ChartAt(kai, f"v0.18.{n}") for n in range(90))]
    found = digests_of(settings, charts)
    assert list(found.known) == [ChartAt(nvml, "0.4.0")]
    assert all("access is denied" in reason for reason in found.unknown.values())
    assert sum("kai-scheduler/manifests" in request for request in registry.requests) <= 8, "one per worker"
    before = len(registry.requests)
    assert digests_of(settings, charts[:1], silent=[kai]) == Digests({}, {})
    assert len(registry.requests) == before


def test_a_look_that_takes_too_long_costs_no_tick(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def forever(*_: object) -> dict[str, Lookup]:
        over.wait(60)
        return {}

    monkeypatch.setattr(nightly, "look", forever)
    monkeypatch.setattr(nightly, "LOOK_S", 0.01)
    with dg.DagsterInstance.ephemeral() as instance:
        assert "could not look: the registries were not asked through within 0.01 s" in sensor_says(settings, instance)
    over.set()


@pytest.mark.parametrize("again", ["added again", "left to the next night"])
def test_a_local_chart_edited_in_place_is_judged_again(settings: Settings, nights: Nights, again: str) -> None:
    folder = settings.root / "mine" / "kai-scheduler"
    folder.mkdir(parents=True)
    (folder / "Chart.yaml").write_text("name: kai-scheduler\nversion: v0.18.2\n")
    manifest = settings.root / "new.yaml"
    manifest.write_text("kind: DaemonSet\n")

    def add() -> list[str]:
        charts = {"kai_scheduler": "mine/kai-scheduler", "device_plugin": "new.yaml"}
        added = add_version_set(settings, {"device_plugin": "v0.19.0"}, charts)
        return [stored.version_set.key for stored in added]

    [key] = add()
    night(settings, nights)
    assert add() == [key]
    assert night(settings, nights) == {}, "nothing was edited"
    for edited in (folder / "values.yaml", manifest):
        edited.write_text("edited: true\n")
        if again == "added again":
            add()
            assert [one.version_set.key for one in waiting(settings, nights)] == [key]
        assert night(settings, nights) == {key: Reason.REPUSHED}
    shutil.rmtree(folder)
    assert night(settings, nights) == {}, "what is gone has no other content"


def test_a_chart_of_somebodys_own_repository_that_is_gone_is_told(
    settings: Settings, nights: Nights, registry: RehearsalRegistry
) -> None:
    registry.push_chart("me/kai-scheduler", CHARTS[KAI_REPOSITORY][0], "v0.18.2")
    reference = settings.charts.kai_scheduler.chart.replace(KAI_REPOSITORY, "me/kai-scheduler")
    add_version_set(settings, {"kai_scheduler": "v0.18.2"}, {"kai_scheduler": reference})
    assert "not known" not in look(settings, nights)["kai_scheduler"].sentence
    del registry.manifests["me/kai-scheduler"]
    assert "not known whether pushed again: v0.18.2 (" in look(settings, nights)["kai_scheduler"].sentence
