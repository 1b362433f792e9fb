"""Errors that a person can mend, in the person's words: the settings, a file, the cluster."""

from __future__ import annotations

from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.settings import SettingsError

MENDABLE = (LabError, SettingsError, OSError)
"""What is told as a sentence, wherever it ends a step, a check or a tick; anything else is a fault of this program."""


def as_lab_error(error: LabError | SettingsError | OSError) -> LabError:
    """The error with what to do next; a file that cannot be used, such as on a full disk, is named."""
    if isinstance(error, LabError):
        return error
    if isinstance(error, SettingsError):
        return WrongUse(str(error))
    return LabError(
        "A file of the lab cannot be written or read",
        where=str(error.filename or "the lab's state folder"),
        seen=error.strerror or str(error),
        next_step="Free some space or mend the permissions, then run it again: it goes on from what is there.",
    )
