"""The Dagster floor: the lab's graph with the same assets and checks, all of them empty.

Run as a program it materialises that graph once, the way `kai-lab run` materialises the lab.
"""

import sys
from collections.abc import Iterator
from typing import Any

import dagster as dg

from kai_lab_pipeline.lab.spec import ASSETS, CHECKS, UPSTREAM


def _asset(name: str, needs: list[str]) -> dg.AssetsDefinition:
    @dg.asset(key=name.split("/"), deps=[dg.AssetKey(need.split("/")) for need in needs])
    def empty() -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(metadata={"backend": "none"})

    return empty


def _checks(asset: str, names: list[str]) -> dg.AssetChecksDefinition:
    specs = [dg.AssetCheckSpec(name, asset=dg.AssetKey([asset])) for name in names]

    @dg.multi_asset_check(name=f"{asset}_checks", specs=specs, can_subset=True)
    def empty(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        for key in context.selected_asset_check_keys:
            yield dg.AssetCheckResult(passed=True, asset_key=key.asset_key, check_name=key.name)

    return empty


def floor_job() -> dg.JobDefinition:
    pinned = sorted({need for needs in UPSTREAM.values() for need in needs if "/" in need})
    assets = [_asset(name, []) for name in pinned] + [_asset(name, list(UPSTREAM[name])) for name in ASSETS]
    checks = [_checks(asset, [check.name for check in specs]) for asset, specs in CHECKS.items()]
    checks.append(_checks("boundary_report", ["every_claim_judged"]))
    job = dg.define_asset_job("floor", selection=dg.AssetSelection.all())
    definitions = dg.Definitions(assets=assets, asset_checks=checks, jobs=[job], executor=dg.in_process_executor)
    return definitions.resolve_job_def("floor")


if __name__ == "__main__":
    with dg.DagsterInstance.get() as instance:
        result = dg.execute_job(
            dg.reconstructable(floor_job),
            instance=instance,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )
    sys.exit(0 if result.success else 1)
