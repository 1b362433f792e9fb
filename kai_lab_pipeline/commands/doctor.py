"""`kai-lab doctor`: what this machine lacks for the lab, before anything is touched."""

from __future__ import annotations

from typing import cast

from kai_lab_pipeline import doctor_cli
from kai_lab_pipeline.commands.common import settings_with
from kai_lab_pipeline.settings import BackendName


def doctor_command(*, backend: str | None, as_json: bool) -> int:
    """Print the findings; returns the exit code. Raises SettingsError."""
    return doctor_cli.doctor_command(settings_with({}), as_json, cast("BackendName | None", backend))
