"""Diagnosis: what a text, some objects or a bundle say went wrong, why, and what to do. Pure data in, data out.

Faults are data in `knowledge`, one module per component; `matcher` finds them by structure where there is one and by
words otherwise.
"""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.api import diagnose_evidence, diagnose_objects, diagnose_text
from kai_lab_pipeline.lab.diagnosis.model import Cause, Diagnosis, Fault, Nature

__all__ = ["Cause", "Diagnosis", "Fault", "Nature", "diagnose_evidence", "diagnose_objects", "diagnose_text"]
