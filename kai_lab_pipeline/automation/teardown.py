"""The job `tear_down`."""

import dagster as dg

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.step import LabResource, failure, lab_of
from kai_lab_pipeline.assets.versions import mark_gone
from kai_lab_pipeline.automation.jobs import LAB_TAG
from kai_lab_pipeline.lab.errors import LabError
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
        mark_gone(context.instance, group, "torn down")

    @dg.job(
        name="tear_down",
        description="Take the lab away and verify that nothing is left.",
        tags={LAB_TAG: group.settings.lab.name},
    )
    def job() -> None:
        remove_lab()

    return job
