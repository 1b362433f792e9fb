"""`kai-lab versions`: on the rehearsal its own registry is asked, elsewhere the real ones or their mirrors."""

from __future__ import annotations

from kai_lab_pipeline import versions_cli
from kai_lab_pipeline.commands.common import settings_with
from kai_lab_pipeline.workbench.candidates import with_registry


def versions_command(*, as_json: bool) -> int:
    """Print the versions; returns the exit code. Raises LabError, SettingsError."""
    with with_registry(settings_with({})) as settings:
        return versions_cli.versions_command(settings, as_json)
