"""Which runs of the history are cut off: those whose own process is gone."""

from __future__ import annotations

import dagster as dg

from kai_lab_pipeline.automation.unfinished import PROCESS_TAG, close_unfinished, process_tag

GONE = "1 of a process that is gone"


def test_a_run_is_closed_when_its_own_process_is_gone() -> None:
    with dg.DagsterInstance.ephemeral() as instance:

        def going(process: str | None, first: str | None = None) -> str:
            tags = {} if process is None else {PROCESS_TAG: process}
            run = dg.DagsterRun(
                "build_lab",
                status=dg.DagsterRunStatus.STARTED,
                tags=tags,
                parent_run_id=first,
                root_run_id=first,
            )
            return instance.add_run(run).run_id

        cut_off, mine, of_a_ui = going(GONE), going(process_tag()), going(None)
        again = going(GONE, first=cut_off)
        assert [run.run_id for run in close_unfinished(instance)] == [cut_off]
        left = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
        assert {run.run_id for run in left} == {mine, of_a_ui, again}, (
            "executed again in a UI, with the tags of the first"
        )
