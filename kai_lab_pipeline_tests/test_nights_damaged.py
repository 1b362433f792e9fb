"""A damaged store of nights: the good lines count, the others are told, and nothing ends in a stack trace."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from rich.console import Console

from kai_lab_pipeline.automation.nightly import new_chart_versions_sensor
from kai_lab_pipeline.automation.partitions import begin_night, waiting
from kai_lab_pipeline.commands.versions import discover, print_versions
from kai_lab_pipeline.lab.morning import morning_summary
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline.lab.version_matrix import build_matrix
from kai_lab_pipeline.lab.version_sets import version_set
from kai_lab_pipeline.settings import Settings, load_settings
from kai_lab_pipeline.workbench.candidates import write_matrix_now
from kai_lab_pipeline.workbench.nights import Comparison, Nights, StoredSet
from kai_lab_pipeline.workbench.state import now
from kai_lab_pipeline_tests.lab_project import CHECKOUT
from kai_lab_pipeline_tests.test_nights import record

DAMAGES = [b'{"at": "2026-11-30T00:00:00Z"}', b"{}", b"[]", b"null", b'{"key": "half', b"\xff\xfe", b"[" * 100_000]

OTHER: list[Any] = [None, [], 5, "x", {"x": "y"}]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    shutil.copy(CHECKOUT / "lab.toml", tmp_path)
    down = '{"ghcr.io": "http://127.0.0.1:9", "docker.io": "http://127.0.0.1:9"}'
    return load_settings(tmp_path, environ={"KAI_LAB_MIRRORS": down})


@pytest.fixture
def nights(settings: Settings) -> Nights:
    """A store with a version set, two verdicts, a night and a notice."""
    nights = Nights(settings)
    stored = nights.keep(
        StoredSet(
            version_set(settings.version_set(), {"kai_scheduler": "v0.18.2"}),
            {},
            {"kai_scheduler": "sha256:a"},
            {"kai_scheduler": Comparison("run", "a difference", "held", "", "", "")},
        )
    )
    nights.add_record(record(stored))
    nights.add_record(record(stored, Verdict.BROKEN))
    begin_night(settings, nights, (), ())
    nights.tell("a regression", "command")
    return nights


def everything(settings: Settings, nights: Nights) -> str:
    """All that reads the store; the summary's text."""
    waiting(settings, nights)
    nights.told("command")
    return write_matrix_now(settings, next_at=None)[1].text()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage[:12].decode(errors="replace"))
@pytest.mark.parametrize("name", ["verdicts.jsonl", "nightlies.jsonl", "told.jsonl"])
def test_a_damaged_line_is_left_out_and_told_and_the_others_count(
    settings: Settings, nights: Nights, name: str, damage: bytes
) -> None:
    def read() -> tuple[object, ...]:
        return nights.records(), nights.last_nightly(), nights.told("command")

    path, before = nights.folder / name, read()
    lines = path.read_bytes().count(b"\n")
    with open(path, "ab") as file:
        file.write(damage)  # without an end: the next writer closes it
    assert read() == before
    for _ in range(2):
        nights.add_record(record(nights.load(before[0][0].key)))  # type: ignore[index]
        nights.tell("another", "command")
    begin_night(settings, nights, (), ())
    assert (len(nights.records()), nights.told("command")) == (4, {"a regression", "another"})
    [said] = nights.damages()
    assert said == f"{path}: line {lines + 1} cannot be read and is left out; all others count. Mend or delete it."
    assert said in everything(settings, nights)


def test_what_is_damaged_is_told_by_versions_and_in_the_sensors_tick(settings: Settings, nights: Nights) -> None:
    assert "damages" not in discover(settings)
    (nights.folder / "verdicts.jsonl").write_bytes(b"{}\n" * 12)
    [said] = discover(settings)["damages"]
    assert "lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more cannot be read and are left out" in said
    out = io.StringIO()
    print_versions(settings, False, Console(file=out, width=1000))
    assert said in out.getvalue()
    with dg.DagsterInstance.ephemeral() as instance:
        tick = new_chart_versions_sensor(settings)(dg.build_sensor_context(instance=instance))
    assert isinstance(tick, dg.SensorResult)
    assert tick.skip_reason is not None
    assert said in (tick.skip_reason.skip_message or "")


@pytest.mark.parametrize("damage", [*DAMAGES, b'{"key": "another", "versions": {}, "lane": "fresh"}'])
def test_a_version_set_that_cannot_be_read_is_named(settings: Settings, nights: Nights, damage: bytes) -> None:
    [key] = [key for key, stored in nights.sets().items() if stored.version_set.moved]
    path = nights.folder / "version_sets" / f"{key}.json"
    path.write_bytes(damage)
    assert key not in nights.sets()
    [said] = nights.damages()
    assert said.startswith(f"{path}: version set {key} cannot be read (")
    assert said in everything(settings, nights)


def damaged(data: Any) -> Iterator[Any]:
    """The same JSON with each of its parts gone, or another thing."""
    parts: Iterator[Any] = iter(data.items() if isinstance(data, dict) else enumerate(data))
    for name, value in parts:
        for other in OTHER:
            copy = json.loads(json.dumps(data))
            copy[name] = other
            yield copy
        copy = json.loads(json.dumps(data))
        del copy[name]
        yield copy
        if isinstance(value, dict | list):
            for part in damaged(value):
                copy = json.loads(json.dumps(data))
                copy[name] = part
                yield copy


def test_no_damage_to_a_part_of_the_store_ends_in_a_stack_trace(settings: Settings, nights: Nights) -> None:
    [key] = [key for key, stored in nights.sets().items() if stored.version_set.moved]
    paths = [nights.folder / "version_sets" / f"{key}.json", nights.folder / "verdicts.jsonl"]
    last, tried = nights.last_nightly(), 0
    for path in paths:
        whole = path.read_text(encoding="utf-8")
        first, *rest = [whole] if path.suffix == ".json" else whole.splitlines()
        data = json.loads(first)
        if "claims" in data:
            data["claims"] = {"1": data["claims"]["1"]}
        for damage in damaged(data):
            path.write_text("\n".join([json.dumps(damage), *rest]), encoding="utf-8")
            try:
                waiting(settings, nights)
                matrix = build_matrix(nights.records(), settings.version_set())
                morning_summary(matrix, now=now(), last=last, next_at=None)
            except Exception as error:
                raise AssertionError(f"{path.name}: {json.dumps(damage)}") from error
            tried += 1
        path.write_text(whole, encoding="utf-8")
    assert tried > 200
