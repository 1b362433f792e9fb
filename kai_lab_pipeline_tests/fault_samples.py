"""Real words of faults: recorded texts of helm, kind, docker, kubectl and the API, and samples of every other fault."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import yaml

from kai_lab_pipeline.lab.diagnosis import Diagnosis, diagnose_objects, diagnose_text
from kai_lab_pipeline.lab.diagnosis.matcher import diagnose
from kai_lab_pipeline.lab.diagnosis.model import Fact

DATA = Path(__file__).parent / "data"
FAULT_DATA = DATA / "faults"


def recorded() -> list[tuple[str, str, str]]:
    """Recording, fault that has to come first (``-`` for none), and the recorded text."""
    rows = []
    for name in ("helm", "api", "kind"):
        with (FAULT_DATA / f"{name}.tsv").open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            next(reader)
            rows += [(recording, fault, json.loads(text)) for recording, fault, text in reader]
    return rows


def samples() -> list[tuple[str, Any]]:
    """Fault that has to come first, and its words: a text, an object, or a check's finding."""
    content = yaml.safe_load((FAULT_DATA / "samples.yaml").read_text(encoding="utf-8"))
    return [(fault, sample) for fault, entries in content.items() for sample in entries]


def diagnosis_of(sample: Any) -> Diagnosis:
    if isinstance(sample, str):
        return diagnose_text(sample)
    if "check" in sample:
        return diagnose([Fact("check", sample["message"], sample["message"], {"check": sample["check"]})])
    return diagnose_objects([sample])
