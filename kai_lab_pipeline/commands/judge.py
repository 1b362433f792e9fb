"""`kai-lab judge`: judge an evidence bundle, whoever made it, without any cluster."""

from __future__ import annotations

import json
from pathlib import Path

from kai_lab_pipeline.clients.bundle import read_bundle
from kai_lab_pipeline.commands.claims_table import claims_json, print_claims
from kai_lab_pipeline.commands.common import console, told
from kai_lab_pipeline.lab.diagnosis import Diagnosis, diagnose_evidence
from kai_lab_pipeline.lab.judge import expectations_for, judge
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.lab.verdict import Excuse, Judgement
from kai_lab_pipeline.settings import SettingsError, load_settings
from kai_lab_pipeline.workbench.state import now


def judge_command(bundle: Path, *, as_json: bool) -> int:
    """Print the claims of a bundle, and what is known of why one is red; returns the exit code.

    Raises LabError, SettingsError.
    """
    evidence = read_bundle(bundle)
    base, excuses = _project_expectations(evidence.versions)
    judgement = judge(evidence, expectations_for(evidence, base), excuses=excuses, today=now().date())
    diagnosis = Diagnosis() if judgement.all_is_well else diagnose_evidence(evidence, base)
    show(judgement, diagnosis, as_json=as_json)
    return judgement.exit_code()


def show(judgement: Judgement, diagnosis: Diagnosis, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(claims_json(judgement, diagnosis), indent=1))
        return
    out = console()
    for note in judgement.notes:
        out.print(f"[yellow]note[/] {told(note)}", soft_wrap=True)
    print_claims(out, judgement, diagnosis)


def _project_expectations(versions: object) -> tuple[Expectations, dict[str, Excuse]]:
    """The profile and excuses of the project we are in; outside of any, the lab's own."""
    try:
        settings = load_settings()
    except SettingsError as error:
        if str(error).startswith("No lab.toml"):
            return Expectations(), {}
        raise
    found = dict(versions) if isinstance(versions, dict) else {}
    return settings.expectations(), settings.excuses_on(found)
