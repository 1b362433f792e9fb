"""Nights without clusters: what is due, what is kept, and what a damaged store, a clock or a lost lookup does to it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from kai_lab_pipeline.automation import partitions
from kai_lab_pipeline.automation.partitions import begin_night, retired, sets_found, waiting
from kai_lab_pipeline.clients.discovery import Lookup
from kai_lab_pipeline.commands import nightly
from kai_lab_pipeline.lab.due import Reason
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.lab.morning import Nightly
from kai_lab_pipeline.lab.spec import CLAIMS
from kai_lab_pipeline.lab.verdict import Boundary, Verdict
from kai_lab_pipeline.lab.verdict_record import ClaimVerdict, VerdictRecord
from kai_lab_pipeline.lab.version_sets import Lane, version_set
from kai_lab_pipeline.lab.versions import classify
from kai_lab_pipeline.settings import Settings, load_settings
from kai_lab_pipeline.workbench.candidates import candidate_settings, write_matrix_now
from kai_lab_pipeline.workbench.nights import Nights, StoredSet
from kai_lab_pipeline.workbench.state import now
from kai_lab_pipeline_tests.lab_project import make_project

PROJECT = Path(__file__).resolve().parent.parent


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    shutil.copy(PROJECT / "lab.toml", tmp_path)
    return load_settings(tmp_path, environ={})


def found(settings: Settings, **tags: list[str]) -> dict[str, Lookup]:
    """Lookups as the registries would give them; a component that is not named has nothing but its pinned version."""
    lookups = {}
    for component, chart in settings.charts.by_component().items():
        seen = [chart.version, *tags.get(component, [])]
        versions = classify(component, seen, chart.version)
        lookups[component] = Lookup(component, chart.version, chart.chart, versions)
    return lookups


def keep(settings: Settings, nights: Nights, contents: Mapping[str, str] | None = None, **tags: list[str]) -> list[str]:
    """Store the version sets of a lookup, their charts as pushed once or with other `contents`; their keys."""
    sets = sets_found(settings, found(settings, **tags))
    for stored in sets:
        digests = {name: f"sha256:{version}" for name, version in stored.version_set.versions.items()}
        nights.keep(replace(stored, digests={**digests, **(contents or {})}))
    return [stored.version_set.key for stored in sets]


def record(stored: StoredSet, verdict: Verdict = Verdict.HELD, *, infrastructure: str = "") -> VerdictRecord:
    return VerdictRecord(
        key=stored.version_set.key,
        versions=stored.version_set.versions,
        lane=stored.version_set.lane,
        backend="rehearsal",
        at=now(),
        run_id="run",
        claims={claim.id: ClaimVerdict(verdict) for claim in CLAIMS} if not infrastructure else {},
        boundary=Boundary.EXPECTED,
        infrastructure=infrastructure,
        digests=stored.digests,
    )


def test_a_new_version_gives_a_set_in_each_lane_and_the_pinned_set_is_the_baseline(settings: Settings) -> None:
    nights = Nights(settings)
    keep(settings, nights, kai_scheduler=["v0.18.2"])
    due = waiting(settings, nights)
    assert [one.version_set.moved for one in due] == [(), ("kai_scheduler",), ("kai_scheduler",)]
    assert [one.version_set.lane for one in due[1:]] == [Lane.FRESH, Lane.UPGRADE]
    assert all(one.reason is Reason.NEW for one in due)


def test_no_combination_is_made_while_the_newest_of_one_component_is_not_known(settings: Settings) -> None:
    looked = found(settings, kai_resource_isolator=["1.2.0-chart"], nvml_mock=["0.4.0"], kai_scheduler=["v0.18.2"])
    assert any(len(one.version_set.moved) == 3 for one in sets_found(settings, looked))
    kai = replace(looked["kai_scheduler"], versions=None, error=LabError("The registry did not answer."))
    partly = sets_found(settings, looked | {"kai_scheduler": kai})
    assert {one.version_set.moved for one in partly} == {("kai_resource_isolator",), ("nvml_mock",)}


def test_what_has_its_verdict_is_not_due_and_what_was_lost_or_pushed_again_is(settings: Settings) -> None:
    nights = Nights(settings)
    keys = keep(settings, nights, kai_scheduler=["v0.18.2"])
    waiting(settings, nights)
    for stored in nights.sets().values():
        nights.add_record(record(stored))
    assert waiting(settings, nights) == []
    keep(settings, nights, {"kai_scheduler": "sha256:other"}, kai_scheduler=["v0.18.2"])
    again = waiting(settings, nights)
    assert [one.version_set.key for one in again] == keys
    assert {one.reason for one in again} == {Reason.REPUSHED}
    for key in keys:
        nights.add_record(record(nights.load(key)))
    assert waiting(settings, nights) == []
    lost = StoredSet(version_set(settings.version_set(), {"nvml_mock": "0.4.0"}), {}, {})
    nights.save(lost)
    nights.add_record(record(lost, infrastructure="the registry did not answer"))
    assert [one.reason for one in waiting(settings, nights)] == [Reason.LOST]


def test_a_night_takes_on_no_more_than_its_cap(settings: Settings) -> None:
    nights = Nights(settings)
    keep(settings, nights, kai_scheduler=[f"v0.18.{n}" for n in range(30)])
    nights.add_record(record(StoredSet(version_set(settings.version_set(), {"nvml_mock": "0.4.0"}), {}, {})))
    due = [one.version_set.key for one in waiting(settings, nights)]
    night = begin_night(settings, nights, {due[1]}, ["nvml_mock: no connection"])
    assert night.keys == (due[0], *due[2 : settings.nightly.cap + 1])
    assert night == nights.last_nightly()
    assert night.waiting == len(due) - 1 - settings.nightly.cap > 0
    assert (night.backend, night.records_before) == (settings.lab.backend, 1)
    assert night.could_not_look == ("nvml_mock: no connection",)


def test_a_night_that_judges_nothing_is_told_as_such_and_says_first_that_one_was_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))  # so that what the command sets there does not outlive the test
    project = make_project(tmp_path / "project")
    project.edit("lab.toml", "cap = 12", "cap = 1")
    nights = Nights(project.settings)
    for version in ("v0.18.2", "v0.18.3"):
        nights.save(StoredSet(version_set(project.settings.version_set(), {"kai_scheduler": version}), {}, {}))
    pinned = StoredSet(version_set(project.settings.version_set(), {}), {}, {})
    nights.save(pinned)
    lost = record(pinned, infrastructure="the registry did not answer")
    for backend in ("rehearsal", "kind"):
        nights.add_record(replace(lost, backend=backend))
    nights.add_nightly(Nightly(now() - timedelta(hours=30), (pinned.version_set.key,)))
    monkeypatch.setattr(partitions, "look", lambda settings, nights: {})
    monkeypatch.setattr(nightly, "_run_one", lambda settings, nights, instance, key, out: None)
    said = project.call("nightly")
    assert said.code == 3, said.text
    assert "ALARM: the last nightly is 30 h old" in said.out.partition("[1/1]")[0]
    assert "ALARM" not in said.out.partition("[1/1]")[2]
    assert "0 new, 0 broken, 1 not evaluated" in said.out
    assert said.out.count("2 version sets wait for the next night: one takes on 1") == 2, "when it begins, and after it"


def test_sets_are_retired_when_nothing_moves_in_them_any_more_or_when_they_are_old(settings: Settings) -> None:
    nights = Nights(settings)
    sets = [nights.load(key) for key in keep(settings, nights, kai_scheduler=["v0.18.2"], nvml_mock=["0.4.0"])]
    assert retired(settings, nights) == {}
    old = sets[0]
    nights.add_record(replace(record(old), at=now() - timedelta(days=settings.nightly.keep_days + 1)))
    assert list(retired(settings, nights)) == [old.version_set.key]
    moved = settings.charts.model_copy(
        update={
            "kai_scheduler": settings.charts.kai_scheduler.model_copy(update={"version": "v0.18.2"}),
            "nvml_mock": settings.charts.nvml_mock.model_copy(update={"version": "0.4.0"}),
        }
    )
    newest = [one.version_set.key for one in sets if len(one.version_set.moved) == 2]
    gone = retired(settings.model_copy(update={"charts": moved}), nights)
    assert set(newest) <= set(gone)


def test_a_candidate_has_its_versions_and_a_cluster_of_its_own(settings: Settings) -> None:
    stored = StoredSet(version_set(settings.version_set(), {"nvml_mock": "0.4.0"}), {"nvml_mock": "/charts/mock"}, {})
    candidate = candidate_settings(settings, stored)
    assert candidate.lab.name == stored.version_set.key != settings.lab.name
    assert candidate.charts.nvml_mock.version == "0.4.0"
    assert candidate.charts.nvml_mock.chart == "/charts/mock"
    assert candidate.image.nvml_mock.git_ref == "v0.4.0"
    assert candidate.charts.kai_scheduler == settings.charts.kai_scheduler


def test_what_was_forgotten_while_somebody_looked_stays_forgotten(settings: Settings) -> None:
    nights = Nights(settings)
    [key, *_] = keep(settings, nights, kai_scheduler=["v0.18.2"])
    nights.see(key, {"kai_scheduler": "sha256:other"})
    assert nights.load(key).digests["kai_scheduler"] == "sha256:other"
    nights.forget(key)
    nights.see(key, {"kai_scheduler": "sha256:third"})
    assert key not in nights.sets()


def test_half_a_line_of_a_killed_writer_loses_nothing_else(settings: Settings) -> None:
    nights = Nights(settings)
    stored = StoredSet(version_set(settings.version_set(), {"kai_scheduler": "v0.18.2"}), {}, {})
    nights.add_record(record(stored))
    with open(nights.folder / "verdicts.jsonl", "a", encoding="utf-8") as file:
        file.write('{"key": "half')
    nights.add_record(record(stored, Verdict.BROKEN))
    assert [r.claims[1].verdict for r in nights.records()] == [Verdict.HELD, Verdict.BROKEN]


def test_a_version_set_that_nobody_stored_or_that_is_damaged_is_named(settings: Settings) -> None:
    nights = Nights(settings)
    with pytest.raises(WrongUse, match="No version set is stored for partition 'kai-x'"):
        nights.load("kai-x")
    stored = StoredSet(version_set(settings.version_set(), {"kai_scheduler": "v0.18.2"}), {}, {})
    nights.save(stored)
    (nights.folder / "version_sets" / f"{stored.version_set.key}.json").write_text("{")
    with pytest.raises(LabError, match="cannot be read"):
        nights.load(stored.version_set.key)
    assert nights.sets() == {}


def test_the_matrix_attributes_a_regression_to_the_component_that_moved(settings: Settings) -> None:
    nights = Nights(settings)
    keep(settings, nights, kai_scheduler=["v0.18.2"])
    keys = [one.version_set.key for one in waiting(settings, nights)]
    verdicts: Mapping[str, Verdict] = {keys[0]: Verdict.HELD, keys[1]: Verdict.BROKEN, keys[2]: Verdict.BROKEN}
    begin_night(settings, nights, (), ())
    for _ in range(2):
        for key in keys:
            nights.add_record(record(nights.load(key), verdicts[key]))
    matrix, summary, files = write_matrix_now(settings, next_at=None)
    regressions = matrix.regressions()
    assert {one.cell.blamed for one in regressions} == {("kai_scheduler",)}
    assert "v0.18.2" in files.markdown.read_text(encoding="utf-8")
    assert summary.exit_code() == 1
