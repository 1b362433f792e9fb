"""The lab's report: built once from verdicts, evidence and context, shown as Markdown, HTML, JSON and JUnit XML."""

from kai_lab_pipeline.report.build import build_report
from kai_lab_pipeline.report.context import AssetRun, Cause, ClusterAccess, ReportContext
from kai_lab_pipeline.report.model import Report
from kai_lab_pipeline.report.render_html import render_html
from kai_lab_pipeline.report.render_json import render_json
from kai_lab_pipeline.report.render_junit import render_junit
from kai_lab_pipeline.report.render_markdown import render_markdown
from kai_lab_pipeline.report.write import ReportFiles, write_report

__all__ = [
    "AssetRun",
    "Cause",
    "ClusterAccess",
    "Report",
    "ReportContext",
    "ReportFiles",
    "build_report",
    "render_html",
    "render_json",
    "render_junit",
    "render_markdown",
    "write_report",
]
