"""The job `tear_down`, and how Dagster is told that a lab is no longer there."""

from datetime import datetime, timezone

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.step import LabResource, failure, lab_of
from kai_lab_pipeline.automation.jobs import LAB_TAG
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.lab.spec import CHECKS
from kai_lab_pipeline.workbench.teardown import tear_down


def tear_down_job(group: Group) -> dg.JobDefinition:
    """Remove what the lab made and verify it; afterwards its assets are shown as no longer there."""

    @dg.op(
        name="remove_lab", description="Remove what the lab made, in an order that works, and look whether it is gone."
    )
    def remove_lab(context: dg.OpExecutionContext, lab: LabResource) -> None:
        opened = lab_of(context, lab, group)
        try:
            opened.hold(f"tearing the lab down in run {context.run.run_id[:8]}")
            torn = tear_down(opened)
        except LabError as error:
            raise failure(error) from None
        for line in torn.done:
            context.log.info(line)
        if torn.leftovers:
            left = "\n".join(f"{leftover.what}: {leftover.command}" for leftover in torn.leftovers)
            raise failure(LabError("Something is left of the lab", where=opened.state.name, next_step=left))
        mark_gone(context.instance, group)

    @dg.job(
        name="tear_down",
        description="Take the lab away and verify that nothing is left.",
        tags={LAB_TAG: group.settings.lab.name},
    )
    def job() -> None:
        remove_lab()

    return job


def mark_gone(instance: dg.DagsterInstance, group: Group) -> None:
    """Record that the lab's artifacts are no longer there: the cluster's data version says so, no check stays green."""
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    said = f"torn down at {when}: no longer there"
    if instance.get_latest_materialization_event(group.key("cluster")) is None:
        return
    instance.report_runless_asset_event(
        dg.AssetMaterialization(group.key("cluster"), description=said, tags={DATA_VERSION_TAG: "gone"})
    )
    for asset, checks in CHECKS.items():
        for check in checks:
            instance.report_runless_asset_event(
                dg.AssetCheckEvaluation(
                    asset_key=group.key(asset),
                    check_name=check.name,
                    passed=False,
                    severity=dg.AssetCheckSeverity.WARN,
                    description=said,
                    metadata={"verdict": "not_evaluated"},
                )
            )
