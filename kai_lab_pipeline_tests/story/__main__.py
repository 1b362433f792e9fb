"""`python -m kai_lab_pipeline_tests.story`: play the story and write docs/rematerialise.md anew."""

from __future__ import annotations

import tempfile
from pathlib import Path

from kai_lab_pipeline_tests.lab_project import CHECKOUT
from kai_lab_pipeline_tests.living_lab import living_lab
from kai_lab_pipeline_tests.story.telling import PATIENCE_S, page, play


def main() -> None:
    told = []
    with tempfile.TemporaryDirectory() as folder, living_lab(Path(folder) / "project", patience_s=PATIENCE_S) as lab:
        for row in play(lab):
            print(" | ".join(row.cells()), flush=True)
            told.append(row)
    (CHECKOUT / "docs" / "rematerialise.md").write_text(page(told), encoding="utf-8")


if __name__ == "__main__":
    main()
