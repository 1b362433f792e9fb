"""The graph as the UI shows it: a change of a key, a dependency, a check or a job is seen here first.

When such a change is meant: `python -m kai_lab_pipeline_tests.test_definitions` writes the snapshot anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg

from kai_lab_pipeline.definitions import build_definitions
from kai_lab_pipeline.lab.spec import ASSETS, CHECKS, CLAIMS, UPSTREAM
from kai_lab_pipeline.settings import load_settings

PROJECT = Path(__file__).resolve().parent.parent
SNAPSHOT = Path(__file__).parent / "data" / "graph.json"


def graph() -> dict[str, Any]:
    """The parts of the definitions that people and other programs depend on."""
    definitions = build_definitions(load_settings(PROJECT, environ={}))
    dg.Definitions.validate_loadable(definitions)
    nodes = definitions.resolve_asset_graph()
    repository = definitions.get_repository_def()
    checks = {
        key: spec
        for checks_def in definitions.asset_checks or ()
        if isinstance(checks_def, dg.AssetsDefinition)
        for key, spec in ((spec.key, spec) for spec in checks_def.check_specs)
    }
    return {
        "assets": {
            key.to_user_string(): {
                "group": nodes.get(key).group_name,
                "needs": sorted(parent.to_user_string() for parent in nodes.get(key).parent_keys),
                "checks": {
                    check.name: "gate" if checks[check].blocking else "check"
                    for check in sorted(nodes.get(key).check_keys, key=lambda check: check.name)
                },
                "partitioned": nodes.get(key).partitions_def is not None,
            }
            for key in sorted(nodes.get_all_asset_keys())
        },
        "jobs": sorted(name for name in repository.job_names if not name.startswith("__")),
        "sensors": {sensor.name: sensor.default_status.value for sensor in repository.sensor_defs},
        "schedules": {schedule.name: schedule.default_status.value for schedule in repository.schedule_defs},
    }


def test_the_graph_is_the_one_that_was_agreed() -> None:
    assert graph() == json.loads(SNAPSHOT.read_text(encoding="utf-8"))


def test_the_graph_is_built_from_the_lab_s_own_tables() -> None:
    assets = graph()["assets"]
    assert set(ASSETS) <= set(assets)
    for asset in ASSETS:
        assert assets[asset]["needs"] == sorted(UPSTREAM[asset])
        assert set(assets[asset]["checks"]) >= {check.name for check in CHECKS.get(asset, ())}
        assert assets[asset]["group"] == "lab"


def test_every_check_belongs_to_exactly_one_claim() -> None:
    claimed = [name for claim in CLAIMS for name in claim.checks]
    every = [f"{asset}.{check.name}" for asset, checks in CHECKS.items() for check in checks]
    assert sorted(claimed) == sorted(every)
    assert [claim.id for claim in CLAIMS] == list(range(1, 9))


def test_every_asset_teaches_its_step() -> None:
    definitions = build_definitions(load_settings(PROJECT, environ={}))
    nodes = definitions.resolve_asset_graph()
    for asset in ASSETS:
        description = nodes.get(dg.AssetKey([asset])).description or ""
        assert len(description.split()) > 20, f"{asset} says too little about its step"


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(graph(), indent=1) + "\n", encoding="utf-8")
