from __future__ import annotations

import os
from pathlib import Path

import pytest

from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline.report import render_html, render_json, render_junit, render_markdown, write_report
from kai_lab_pipeline_tests.report_samples import report


def _contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_the_four_files_hold_the_four_formats(tmp_path: Path) -> None:
    made = report()
    files = write_report(made, tmp_path / "a" / "b")
    assert _contents(tmp_path / "a" / "b") == {
        "report.md": render_markdown(made),
        "report.html": render_html(made),
        "report.json": render_json(made),
        "junit.xml": render_junit(made),
    }
    assert files.html == tmp_path / "a" / "b" / "report.html"
    assert files.html.stat().st_mode & 0o044


def test_a_second_report_takes_the_place_of_the_first(tmp_path: Path) -> None:
    write_report(report(), tmp_path)
    broken = report({"queues.queues_exist": Verdict.BROKEN})
    write_report(broken, tmp_path)
    assert _contents(tmp_path)["report.md"] == render_markdown(broken)
    assert len(_contents(tmp_path)) == 4


def test_a_full_disk_leaves_the_earlier_report_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(report(), tmp_path)
    before = _contents(tmp_path)
    calls: list[int] = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LabError, match="No space left on device") as caught:
        write_report(report({"queues.queues_exist": Verdict.BROKEN}), tmp_path)
    assert caught.value.exit_code == 3
    assert str(tmp_path) in str(caught.value)
    assert _contents(tmp_path) == before


def test_a_folder_that_cannot_be_made_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(WrongUse, match="--report-dir") as caught:
        write_report(report(), tmp_path / "file" / "reports")
    assert caught.value.exit_code == 2


def test_a_renderer_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(AttributeError):
        write_report(None, tmp_path / "r")  # type: ignore[arg-type]
    assert not (tmp_path / "r").exists()
