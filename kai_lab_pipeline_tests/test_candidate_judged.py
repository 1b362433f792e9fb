"""`every_claim_judged` of a candidate counts what its own run judged; earlier attempts say nothing of this one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.automation.partitions import VERSION_SETS
from kai_lab_pipeline.clients import bundle
from kai_lab_pipeline.definitions import build_definitions
from kai_lab_pipeline.lab.spec import CHECKS
from kai_lab_pipeline.lab.version_sets import version_set
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.candidates import candidate_settings
from kai_lab_pipeline.workbench.nights import Nights, StoredSet
from kai_lab_pipeline.workbench.state import LabState, now
from kai_lab_pipeline_tests.damages.draft import KIND, LAB, RECORDINGS
from kai_lab_pipeline_tests.lab_project import make_project

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def seen_before(settings: Settings) -> None:
    """Evidence of a whole lab that an earlier run left."""
    state = LabState.of(settings).open()
    for asset in CHECKS:
        seen = next(
            filter(None, (bundle.read_observation(RECORDINGS / name / "bundle", asset) for name in (LAB, KIND)))
        )
        folder = state.bundle_dir("earlier")
        bundle.write_observation(folder, asset, replace(seen, run_id="earlier", observed_at=now()))


@pytest.mark.parametrize("name", ["lab", "candidate"])
def test_earlier_evaluations_count_for_the_pinned_lab_alone(tmp_path: Path, name: str) -> None:
    settings = make_project(tmp_path / "project").settings
    stored = StoredSet(version_set(settings.version_set(), {"kai_scheduler": "v0.18.2"}), {}, {})
    Nights(settings).save(stored)
    candidate = name == "candidate"
    group = Group(name, settings, ("candidate",) if candidate else (), VERSION_SETS if candidate else None)
    seen_before(candidate_settings(settings, stored) if candidate else settings)
    check = dg.AssetCheckKey(group.key("boundary_report"), "every_claim_judged")
    job = dg.define_asset_job("one_check", selection=dg.AssetSelection.checks(check))
    definitions = dg.Definitions.merge(build_definitions(settings), dg.Definitions(jobs=[job]))
    key = stored.version_set.key
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(VERSION_SETS.name or "", [key])
        result = definitions.resolve_job_def("one_check").execute_in_process(
            instance=instance, tags={"dagster/partition": key} if candidate else {}, run_config=QUIET
        )
    (evaluation,) = result.get_asset_check_evaluations()
    assert evaluation.passed is not candidate
    if candidate:
        assert evaluation.description == "not judged: 1, 2, 3, 4, 5, 6, 7, 8"
