"""Wiring only: which assets, checks, jobs and sensors Dagster loads."""

from __future__ import annotations

import dagster as dg

from kai_lab_pipeline.assets import lab_assets
from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.matrix import version_matrix_asset
from kai_lab_pipeline.assets.step import LabResource
from kai_lab_pipeline.assets.upstream import upstream_assets
from kai_lab_pipeline.automation.adding import add_version_set_job
from kai_lab_pipeline.automation.after_candidate import after_candidate_sensor
from kai_lab_pipeline.automation.drift import drift_schedule
from kai_lab_pipeline.automation.executor import lab_executor
from kai_lab_pipeline.automation.jobs import lab_jobs
from kai_lab_pipeline.automation.nightly import (
    candidate_job,
    matrix_job,
    new_chart_versions_sensor,
    nightly_schedule,
)
from kai_lab_pipeline.automation.partitions import CANDIDATE_GATES, VERSION_SETS
from kai_lab_pipeline.automation.reload import reload_on_edit_sensor
from kai_lab_pipeline.automation.sensors import report_of_a_red_run
from kai_lab_pipeline.automation.teardown import tear_down_job
from kai_lab_pipeline.checks import lab_checks
from kai_lab_pipeline.settings import Settings, load_settings


def build_definitions(settings: Settings) -> dg.Definitions:
    """The project's definitions for these settings; nothing is started, read from a cluster or fetched."""
    lab = Group("lab", settings)
    candidate = Group("candidate", settings, ("candidate",), VERSION_SETS, CANDIDATE_GATES, goes_on=True)
    night, matrix = candidate_job(candidate), matrix_job()
    resource = LabResource(project=str(settings.root))
    return dg.Definitions(
        assets=[
            *upstream_assets(settings, "lab"),
            *lab_assets(lab),
            *lab_assets(candidate),
            version_matrix_asset(candidate),
        ],
        asset_checks=[*lab_checks(lab), *lab_checks(candidate)],
        jobs=[*lab_jobs(settings.lab.name), tear_down_job(lab), night, matrix, add_version_set_job(settings)],
        sensors=[
            report_of_a_red_run,
            new_chart_versions_sensor(settings),
            after_candidate_sensor(settings, night, matrix),
            reload_on_edit_sensor(settings, build_definitions),
        ],
        schedules=[nightly_schedule(settings, night), drift_schedule()],
        executor=lab_executor(settings, (lab, candidate)),
        resources={"lab": resource},
    )


defs = build_definitions(load_settings())
