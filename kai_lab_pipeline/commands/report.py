"""`kai-lab report`: judge the newest evidence again and write the report, without touching the cluster."""

from __future__ import annotations

import uuid

from kai_lab_pipeline.commands.common import INFRASTRUCTURE, console, settings_with
from kai_lab_pipeline.commands.judge import show
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.reporting import report_lab
from kai_lab_pipeline.workbench.state import LabState


def report_command(*, as_json: bool) -> int:
    settings = settings_with({})
    LabState.of(settings).open()
    lab = Lab(settings, f"report-{uuid.uuid4().hex[:8]}", lambda _: None)
    reported = report_lab(lab)
    show(reported.judgement, reported.diagnosis, as_json=as_json)
    if not as_json:
        said = f"Report: {lab.state.latest_report / 'report.html'}"
        console().print(said, style="bold", markup=False, soft_wrap=True)
    return reported.judgement.exit_code() if reported.evidence.observations else INFRASTRUCTURE
