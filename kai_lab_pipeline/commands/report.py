"""`kai-lab report`: judge the newest evidence again and write the report, without touching the cluster."""

from __future__ import annotations

import uuid

from kai_lab_pipeline.commands.common import console, settings_with
from kai_lab_pipeline.commands.judge import show
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.reporting import report_lab
from kai_lab_pipeline.workbench.state import LabState


def report_command(*, as_json: bool) -> int:
    settings = settings_with({})
    LabState.of(settings).open()
    lab = Lab(settings, f"report-{uuid.uuid4().hex[:8]}", lambda _: None)
    evidence = lab.newest_evidence()
    if not evidence.observations:  # an empty report would take the place of the last one
        raise LabError(
            "There is no evidence to report on",
            where=str(lab.state.evidence),
            seen=" ".join(evidence.notes) or "no run has looked at the lab yet",
            next_step="kai-lab run. What an earlier run saw can be judged as it was: kai-lab judge FOLDER",
        )
    reported = report_lab(lab)
    show(reported.judgement, reported.diagnosis, as_json=as_json)
    if not as_json:
        said = f"Report: {lab.state.latest_report / 'report.html'}"
        console().print(said, style="bold", markup=False, soft_wrap=True)
    return reported.judgement.exit_code()
