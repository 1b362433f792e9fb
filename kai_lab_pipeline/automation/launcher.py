"""How the UI's and the schedules' runs get a process: one each, also where two daemons share the project's history.

Dagster means one daemon for one history, and does not see to it. Two (`dagster dev` started twice) may take the same
run from the queue: then it is started by both, one of the two processes finds it at work and ends, and Dagster records
the run as failed while the other one still builds the lab.
"""

import fcntl
from pathlib import Path

import dagster as dg
from dagster._core.launcher import LaunchRunContext

LAUNCHED_TAG = "kai_lab/launched"
"""Run tag: the id of the run that was launched. One that is executed again comes with the tag of the first."""


class OneProcessPerRun(dg.DefaultRunLauncher):
    """Dagster's own launcher, that leaves a run alone which another daemon has launched."""

    def launch_run(self, context: LaunchRunContext) -> None:
        """Launch a run unless that was done, and note with the run that it was; one that failed may be tried again."""
        run_id = context.dagster_run.run_id
        with open(Path(self._instance.root_directory) / "launch.lock", "a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            run = self._instance.get_run_by_id(run_id)
            if run is None or run.tags.get(LAUNCHED_TAG) == run_id:
                return
            super().launch_run(context)
            self._instance.add_run_tags(run_id, {LAUNCHED_TAG: run_id})
