"""The story of docs/rematerialise.md, played again: what is written there is what happens."""

from __future__ import annotations

import pytest

from kai_lab_pipeline_tests.lab_project import CHECKOUT
from kai_lab_pipeline_tests.living_lab import living_lab
from kai_lab_pipeline_tests.story.changes import CHANGES
from kai_lab_pipeline_tests.story.telling import PATIENCE_S, play, table, without_seconds


@pytest.mark.timeout(900)
@pytest.mark.xdist_group("story")
def test_the_page_tells_what_happens(tmp_path_factory: pytest.TempPathFactory) -> None:
    with living_lab(tmp_path_factory.mktemp("story"), patience_s=PATIENCE_S) as lab:
        told = list(play(lab))
    assert len(told) == len(CHANGES) >= 10
    written = (CHECKOUT / "docs" / "rematerialise.md").read_text(encoding="utf-8")
    assert without_seconds(table(told)) == without_seconds(written)
