"""What commands share: settings into the environment, consoles, and the end of a command."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kai_lab_pipeline.lab.diagnosis.plain import plain_line
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.settings import PROJECT_VARIABLE, Settings, SettingsError, find_project, load_settings

if TYPE_CHECKING:
    from dagster import DagsterInstance, DagsterRun
    from rich.console import Console

OK, BROKEN, WRONG_USE, INFRASTRUCTURE = 0, 1, 2, 3


def settings_with(options: Mapping[str, str | None]) -> Settings:
    """Settings with options of the command line on top.

    Options become the KAI_LAB_* variables they stand for, so that every process of the run sees the same lab.
    """
    for variable, value in options.items():
        if value is not None:
            os.environ[variable] = value
    root = find_project()
    os.environ[PROJECT_VARIABLE] = str(root)
    return load_settings(root)


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def told(text: object) -> str:
    """Other people's words for a line of the console: they neither steer the terminal nor read as rich's markup."""
    from rich.markup import escape

    return escape(plain_line(str(text)))


def told_lines(text: str) -> str:
    """The same of a text of several lines, such as an error with where it happened and what to do next."""
    return "\n".join(map(told, text.split("\n")))


def say_error(error: LabError | SettingsError) -> int:
    """Print an error as a person reads it; returns the exit code."""
    text = error.text() if isinstance(error, LabError) else str(error)
    first, newline, rest = text.partition("\n")
    console(stderr=True).print(f"[bold red]{told(first)}[/]{newline}{told_lines(rest)}", soft_wrap=True)
    return error.exit_code if isinstance(error, LabError) else WRONG_USE


@contextmanager
def dagster_instance(settings: Settings) -> Iterator[DagsterInstance]:
    """The project's durable Dagster instance; its home is made and configured when it is not there.

    Raises LabError when the history cannot be written or read, such as on a full disk.
    """
    prepare_dagster_home(settings)
    import dagster as dg
    from sqlalchemy.exc import DBAPIError

    from kai_lab_pipeline.automation.quick_history import quick_history

    try:
        with quick_history(), dg.DagsterInstance.get() as instance:
            yield instance
    except DBAPIError as error:
        raise LabError(
            "Dagster's history cannot be written or read",
            where=str(settings.dagster_home),
            seen=str(error.orig),
            next_step=f"{_remedy(error.orig)}, then run it again: it goes on from what is there.",
        ) from None


def _remedy(error: object) -> str:
    if "locked" in str(error):
        return "Another process was halted while it wrote there: let it go on (fg, or kill -CONT) or end it"
    return "Free some space or mend the folder's permissions"


@contextmanager
def instance_for_runs(settings: Settings) -> Iterator[tuple[DagsterInstance, list[DagsterRun]]]:
    """The same for a command that starts runs: what a kill cut off before is closed first, and handed over to tell.

    Raises LabError.
    """
    from kai_lab_pipeline.automation.unfinished import close_unfinished

    with dagster_instance(settings) as instance:
        yield instance, close_unfinished(instance)


def prepare_dagster_home(settings: Settings) -> Path:
    """DAGSTER_HOME inside the project, with the project's dagster.yaml; set for this process and its children.

    Raises LabError, and SettingsError for what would keep Dagster from loading the project.
    """
    from kai_lab_pipeline.automation.nightly import check_cron

    check_cron(settings)
    home = settings.dagster_home
    try:
        home.mkdir(exist_ok=True)
        wanted = (settings.root / "dagster.yaml").read_text(encoding="utf-8")
        there = home / "dagster.yaml"
        if not there.exists() or there.read_text(encoding="utf-8") != wanted:
            there.write_text(wanted, encoding="utf-8")
    except OSError as error:
        raise LabError(
            "Dagster's home cannot be prepared",
            where=str(home),
            seen=error.strerror or str(error),
            next_step="Make the project's folder writable, or free some space.",
        ) from error
    os.environ["DAGSTER_HOME"] = str(home.resolve())
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")
    return home
