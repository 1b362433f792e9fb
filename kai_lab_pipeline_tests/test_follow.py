"""What the terminal shows of a run that Dagster itself could not carry out."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
from rich.console import Console

from kai_lab_pipeline.commands.follow import Follower


class _Broken(dg.Executor):
    @property
    def retries(self) -> Any:
        from dagster._core.execution.retries import RetryMode

        return RetryMode.DISABLED

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        raise OSError(28, "No space left on device")


@dg.executor(name="broken")
def broken(_: Any) -> dg.Executor:
    return _Broken()


@dg.op
def step() -> None: ...


@dg.job(executor_def=broken)
def lab() -> None:
    step()


def test_a_run_that_failed_without_a_step_says_why(tmp_path: Path) -> None:
    written = io.StringIO()
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        with Follower(instance, {"run": "this"}, Console(file=written, width=200), expected=1) as follower:
            result = dg.execute_job(dg.reconstructable(lab), instance, tags={"run": "this"}, raise_on_error=False)
        assert not result.success
    assert follower.first_error is not None
    assert follower.first_error.exit_code == 3
    said = written.getvalue()
    assert "The run could not be carried out" in said
    assert "No space left on device" in said
    assert "Next: Run it again" in said
    assert "Traceback" not in said
