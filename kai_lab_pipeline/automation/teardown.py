"""The job `tear_down`."""

import dagster as dg

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.step import LabResource, failure, lab_of, told
from kai_lab_pipeline.assets.versions import LAB_TAG, mark_gone
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.workbench.teardown import Torn, tear_down


def tear_down_job(group: Group) -> dg.JobDefinition:
    """Remove what the lab made and verify it; afterwards its assets are shown as no longer there."""

    @dg.op(
        name="remove_lab",
        description="Remove what the lab made, in an order that works, and look whether it is gone.",
        pool=group.pool,
    )
    def remove_lab(context: dg.OpExecutionContext, lab: LabResource) -> None:
        with told():
            opened = lab_of(context, lab, group)
            opened.hold(f"tearing the lab down in run {context.run.run_id[:8]}")
            torn = Torn()
            try:
                tear_down(opened, torn)
            finally:
                opened.state.note_gone(torn.gone)
                mark_gone(context.instance, group, "torn down", torn.gone)
        for line in torn.done:
            context.log.info(line)
        for item in torn.kept:
            context.log.info(f"stays, as helm wants it: {item.what}; remove it with: {item.command}")
        if torn.leftovers:
            left = "\n".join(f"{leftover.what}: {leftover.command}" for leftover in torn.leftovers)
            raise failure(LabError("Something is left of the lab", where=opened.state.name, next_step=left))

    @dg.job(
        name="tear_down",
        description="Take the lab away and verify that nothing is left.",
        tags={LAB_TAG: group.settings.lab.name},
    )
    def job() -> None:
        remove_lab()

    return job
