"""The end of the lab: eight claims, judged, with the evidence for each."""

from typing import Any

import dagster as dg

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.step import Step, lab_asset
from kai_lab_pipeline.report import render_markdown
from kai_lab_pipeline.workbench.candidates import conclude, remove_candidate
from kai_lab_pipeline.workbench.reporting import report_lab


def report_assets(group: Group) -> list[dg.AssetsDefinition]:
    @lab_asset(group, "boundary_report", kinds={"markdown"})
    def boundary_report(step: Step) -> dg.MaterializeResult[Any]:
        """The report: what the lab's eight claims came to on this backend, and exactly where GPU sharing stops.

        Judged from the newest evidence of each asset, with its run and age. Written as Markdown, one HTML page,
        JSON and JUnit XML.
        """
        reported = report_lab(step.lab)
        judgement = reported.judgement
        counts = judgement.counts()
        step.metadata["report"] = dg.MetadataValue.md(render_markdown(reported.report))
        step.metadata["boundary"] = str(judgement.boundary)
        step.metadata["html"] = dg.MetadataValue.path(str(reported.files.html))
        step.metadata["json"] = dg.MetadataValue.path(str(reported.files.json))
        step.metadata["junit"] = dg.MetadataValue.path(str(reported.files.junit))
        step.metadata.update({f"claims_{name}": count for name, count in counts.items()})
        step.log(f"report: {reported.files.html}")
        if step.lab.candidate is not None:
            record = conclude(step.lab, judgement)
            broken = judgement.exit_code() == 1
            step.metadata["version set"] = step.lab.candidate.version_set.description
            step.metadata["verdicts"] = dg.MetadataValue.json(record.to_json())
            step.metadata["cluster"] = remove_candidate(step.lab, broken=broken)
        return step.done(version_of=[claim.verdict for claim in judgement.claims])

    return [boundary_report]
