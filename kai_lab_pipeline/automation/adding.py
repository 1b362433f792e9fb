"""The job `add_version_set`: what `kai-lab nightly --add` does, from the launchpad."""

from collections.abc import Sequence

import dagster as dg
from pydantic import Field

from kai_lab_pipeline.assets.step import LabResource, failure
from kai_lab_pipeline.automation.partitions import PARTITIONS_NAME
from kai_lab_pipeline.lab.errors import WrongUse
from kai_lab_pipeline.lab.version_sets import Lane
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.adding import add_version_set
from kai_lab_pipeline.workbench.mendable import MENDABLE, as_lab_error

ADD_JOB = "add_version_set"


class VersionSetConfig(dg.Config):
    """A version set by component (kai_scheduler, nvml_mock, kai_resource_isolator, device_plugin)."""

    versions: dict[str, str] = Field(
        default={}, description="Version by component; a commit build such as 0.0.0-d5bc503 is one too."
    )
    charts: dict[str, str] = Field(
        default={},
        description=(
            "Chart by component in place of the pinned one: a folder or .tgz (a path below the project, or an absolute "
            "one), or an oci:// reference; for device_plugin the manifest's file."
        ),
    )
    images: dict[str, str] = Field(
        default={}, description="Image by component, repository:tag or a tag alone, e.g. of a pull request."
    )
    lanes: list[str] = Field(
        default=[Lane.FRESH.value], description="fresh (a fresh install), upgrade (of a living pinned lab), or both."
    )


def add_version_set_job(settings: Settings) -> dg.JobDefinition:
    """Check a version set, store it and add its partition. The launchpad opens with the pinned versions, to be edited:
    launched as they are, they are refused, because nothing moves in them."""

    @dg.op(name="version_set", description="Check the version set, store it, and add its partition per lane.")
    def version_set(context: dg.OpExecutionContext, config: VersionSetConfig, lab: LabResource) -> None:
        try:
            lanes = _lanes(config.lanes)
            stored = add_version_set(lab.settings(), config.versions, config.charts, config.images, lanes)
        except MENDABLE as error:
            raise failure(as_lab_error(error)) from None
        keys = [one.version_set.key for one in stored]
        context.instance.add_dynamic_partitions(PARTITIONS_NAME, keys)
        for one in stored:
            context.log.info(f"added partition {one.version_set.key}: {one.version_set.description}")
        context.log.info(f"materialise the group candidate for {', '.join(keys)}, or leave it to the next nightly")
        context.add_output_metadata({"partitions": ", ".join(keys), "versions": dict(stored[0].version_set.versions)})

    charts = settings.charts.by_component()
    pinned = {component: chart.version for component, chart in charts.items()}
    as_pinned = VersionSetConfig(versions=pinned)

    @dg.job(
        name=ADD_JOB,
        description="Add a version set to be judged: a version, a local chart, an image or a commit build.",
        config=dg.RunConfig(ops={"version_set": as_pinned}),
    )
    def job() -> None:
        version_set()

    return job


def _lanes(names: Sequence[str]) -> list[Lane]:
    known = [lane.value for lane in Lane]
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise WrongUse(f"No lane is named{f' {wrong[0]!r}' if wrong else ''}; known: {', '.join(known)}")
    return [Lane(name) for name in dict.fromkeys(names)]
