"""Live progress of a run in the terminal, read from its event log, whichever process does the step."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kai_lab_pipeline.commands.common import told
from kai_lab_pipeline.lab.errors import LabError, WrongUse

if TYPE_CHECKING:
    from dagster import DagsterInstance, EventLogEntry
    from dagster._core.execution.plan.objects import StepFailureData
    from rich.console import Console

LOOK_EVERY_S = 0.5


class Follower:
    """Prints a line per asset as it is made and checked, and what is being waited for meanwhile."""

    def __init__(self, instance: DagsterInstance, tags: Mapping[str, str], out: Console, *, expected: int) -> None:
        self._instance = instance
        self._tags = dict(tags)
        self._out = out
        self._run_id: str | None = None
        self._cursor: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follow-run", daemon=True)
        self._status: Any = None
        self._made: dict[str, str] = {}
        self._checks: dict[str, list[bool]] = {}
        self._gate_failed = False
        self.first_error: LabError | None = None
        """The first step that failed, with its exit code."""
        self.interrupted = False
        """Somebody ended the run: Ctrl-C, or a signal to its process."""

    def __enter__(self) -> Follower:
        if self._out.is_terminal:
            self._status = self._out.status("starting")
            self._status.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=5)
        self._look()
        if self._status is not None:
            self._status.stop()

    def _follow(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self._look()

    def _look(self) -> None:
        import dagster as dg

        if self._run_id is None:
            runs = self._instance.get_run_records(dg.RunsFilter(tags=self._tags), limit=1)
            if not runs:
                return
            self._run_id = runs[0].dagster_run.run_id
        while True:
            found = self._instance.get_records_for_run(self._run_id, self._cursor, limit=500)
            for record in found.records:
                self._show(record.event_log_entry)
            self._cursor = found.cursor
            if not found.has_more:
                return

    def _show(self, entry: EventLogEntry) -> None:
        event = entry.dagster_event
        if event is None:
            self._say(entry)
            return
        kind = event.event_type_value
        step = entry.step_key or ""
        if kind == "ASSET_MATERIALIZATION":
            data = event.step_materialization_data.materialization
            name = data.asset_key.to_user_string()
            seconds = data.metadata.get("seconds")
            took = f"{seconds.value:6.1f} s" if seconds is not None else " " * 8
            self._made[name] = took
            if "/" in name:
                return
            if name in ("nvml_mock_image", "boundary_report"):
                self._line("[green]✓[/]", name, took, "")
        elif kind == "ASSET_CHECK_EVALUATION":
            evaluation = event.asset_check_evaluation_data
            self._checks.setdefault(evaluation.asset_key.to_user_string(), []).append(evaluation.passed)
        elif kind in ("STEP_SUCCESS", "STEP_FAILURE"):
            self._step_ended(step, entry, failed=kind == "STEP_FAILURE")
        elif kind == "PIPELINE_FAILURE":
            self._run_failed(entry)
        elif kind == "STEP_START" and self._status is not None:
            self._status.update(asset_of(step))

    def _step_ended(self, step: str, entry: EventLogEntry, *, failed: bool) -> None:
        name = asset_of(step)
        if step.endswith("_checks"):
            results = self._checks.get(name, [])
            good = all(results) and not (failed and not results)
            mark = "[green]✓[/]" if good else "[bold red]✗[/]"
            self._line(mark, name, self._made.get(name, " " * 8), f"{sum(results)}/{len(results)} checks")
        if failed:
            self._failed(name, entry, is_check=step.endswith("_checks"))

    def _failed(self, name: str, entry: EventLogEntry, *, is_check: bool) -> None:
        data = entry.get_dagster_event().step_failure_data
        if is_interrupt(data):
            self.interrupted = True
            self._out.print(f"[bold red]✗[/] {name}: interrupted")
            return
        if data.user_failure_data is None and is_check and self._checks.get(name):
            self._gate_failed = True
            return  # a blocking check that failed: its line says so
        error = step_error(name, data)
        if self.first_error is None:
            self.first_error = error
        print_failure(self._out, name, error)

    def _run_failed(self, entry: EventLogEntry) -> None:
        """A run that failed without any of its steps: Dagster could not carry it out, and its word is all there is."""
        error = entry.get_dagster_event().job_failure_data.error
        if self.first_error is not None or self._gate_failed or self.interrupted or error is None:
            return
        said = "\n".join(cause.message.strip() for cause in (error, error.cause) if cause is not None)
        self.first_error = LabError(
            "The run could not be carried out", seen=said, next_step="Run it again: it goes on from what is there."
        )
        for line in self.first_error.text().splitlines():
            self._out.print(f"[bold red]✗[/] {told(line)}", soft_wrap=True)

    def _say(self, entry: EventLogEntry) -> None:
        text = entry.user_message
        if not entry.step_key or not text.startswith(("waiting for", "apply ", "create ")):
            return
        if self._status is not None:
            self._status.update(f"{asset_of(entry.step_key)}: {told(text)}")
        else:
            self._out.print(f"  [dim]{asset_of(entry.step_key)}: {told(text)}[/]", soft_wrap=True)

    def _line(self, mark: str, name: str, took: str, checks: str) -> None:
        self._out.print(f"{mark} {name:<22}{took}  {checks}")


def step_error(name: str, data: StepFailureData) -> LabError:
    """What a failed step said, as the error that it was."""
    failure = data.user_failure_data
    if failure is None:
        said = str(data.error.message if data.error else "no message").strip()
        return LabError(f"{name} stopped: {said}")
    code = failure.metadata.get("exit_code") if failure.metadata else None
    said = str(failure.description)
    return WrongUse(said) if code is not None and code.value == WrongUse.exit_code else LabError(said)


def print_failure(out: Console, name: str, error: LabError) -> None:
    """Print a failed step: its first line beside the name, the rest below."""
    first, _, rest = error.text().partition("\n")
    out.print(f"[bold red]✗[/] {name}: {told(first)}", soft_wrap=True)
    for line in rest.splitlines():
        out.print(f"    {told(line)}", soft_wrap=True)


def asset_of(step: str) -> str:
    return step.removeprefix("lab_").removesuffix("_checks").replace("__", "/")


def is_interrupt(data: Any) -> bool:
    """Whether a step failed because somebody pressed Ctrl-C, or ended the process in order."""
    return data.error is not None and data.error.cls_name in ("DagsterExecutionInterruptedError", "KeyboardInterrupt")
