"""Making a lab's report from the evidence there is, whether its run ended green or red."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kai_lab_pipeline.lab.diagnosis import Diagnosis
from kai_lab_pipeline.lab.evidence import Evidence
from kai_lab_pipeline.lab.spec import ASSETS
from kai_lab_pipeline.lab.verdict import Judgement
from kai_lab_pipeline.report import (
    AssetRun,
    Cause,
    ClusterAccess,
    ReportContext,
    ReportFiles,
    build_report,
    write_report,
)
from kai_lab_pipeline.report.model import Report
from kai_lab_pipeline.workbench.diagnosing import diagnose_run
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.state import now


@dataclass(frozen=True)
class Reported:
    """A written report, with what it was made from."""

    report: Report
    files: ReportFiles
    judgement: Judgement
    evidence: Evidence
    diagnosis: Diagnosis
    """Empty where all is well."""


def evidence_for_report(lab: Lab) -> Evidence:
    """What a lab's report is made from: the newest of each asset; of a candidate only what this very run saw.

    Each attempt at a version set stands for itself.
    """
    newest = lab.newest_evidence()
    return newest if lab.candidate is None else lab.of_this_run(newest, ASSETS)


def report_lab(lab: Lab, *, notes: Sequence[str] = ()) -> Reported:
    """Judge each asset's newest evidence and write the report of this run, and the copy `report/` of the newest one.

    `notes` are sentences for the top, such as which step ended the run. Raises LabError when the folder cannot be
    written.
    """
    evidence = evidence_for_report(lab)
    judgement = lab.judge(evidence)
    diagnosis = diagnose_run(lab, evidence, judgement)
    steps = lab.steps()
    failed = [f"The step {name} of this run failed: {step['error']}" for name, step in steps.items() if step["error"]]
    runs = {asset: AssetRun(seen.run_id, seen.observed_at) for asset, seen in evidence.observations.items()}
    context = ReportContext(
        generated_at=now(),
        lab=lab.state.name,
        runs=runs,
        durations={name: float(step["seconds"]) for name, step in steps.items()},
        notes=(*notes, *failed),
        causes=tuple(Cause(c.cause, c.remedy, c.evidence, c.transient) for c in diagnosis.causes),
        access=ClusterAccess(kubeconfig=str(lab.backend.kubeconfig_hint())),
        evidence_folder=f"../../evidence/{lab.run_id}",
    )
    report = build_report(judgement, evidence, context, lab.expectations)
    files = write_report(report, lab.state.reports / lab.run_id)
    # The folder that always holds the newest report lies one level higher: its links differ.
    newest = replace(context, evidence_folder=f"../evidence/{lab.run_id}")
    write_report(build_report(judgement, evidence, newest, lab.expectations), lab.state.latest_report)
    return Reported(report, files, judgement, evidence, diagnosis)
