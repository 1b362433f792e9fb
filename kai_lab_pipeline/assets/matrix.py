"""The version matrix: which version broke which claim, over all nights."""

from typing import Any

import dagster as dg

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.step import LabResource
from kai_lab_pipeline.report.matrix import render_matrix_markdown
from kai_lab_pipeline.workbench.candidates import write_matrix_now


def version_matrix_asset(candidate: Group) -> dg.AssetsDefinition:
    """One asset that fans in the reports of all version sets."""

    @dg.asset(
        group_name=candidate.name,
        deps=[candidate.key("boundary_report")],
        kinds={"markdown"},
        description=(
            "Version sets by claims: what holds since when, the last good and first bad version, and which component's "
            "step broke it, with links to the evidence and the difference of the charts. Made from the durable store "
            "of verdicts, so it outlives clusters, partitions and a lost history."
        ),
    )
    def version_matrix(lab: LabResource) -> dg.MaterializeResult[Any]:
        matrix, summary, files = write_matrix_now(lab.settings())
        return dg.MaterializeResult(
            metadata={
                "summary": dg.MetadataValue.md(summary.text().replace("\n", "  \n")),
                "matrix": dg.MetadataValue.md(render_matrix_markdown(matrix, summary)),
                "html": dg.MetadataValue.path(str(files.html)),
                "json": dg.MetadataValue.path(str(files.json)),
                "regressions": len(matrix.regressions()),
                "version_sets": len(matrix.rows),
            }
        )

    return version_matrix
