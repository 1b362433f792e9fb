"""`python -m kai_lab_pipeline_tests.soak [SEEDS] [FIRST]`: as many kills as asked for, and a line for each.

After every kill a whole run has to end as the undisturbed one did. Exit code 1 with the seed where it does not.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from kai_lab_pipeline_tests.lab_project import project
from kai_lab_pipeline_tests.soak.kills import (
    Undone,
    drawn,
    kept,
    kill_server,
    left_running,
    strike,
    verdicts,
    whole_run,
)


def main(count: int, first: int) -> int:
    with tempfile.TemporaryDirectory() as folder, project(Path(folder) / "project", KAI_LAB_PATIENCE_S="30") as made:
        undisturbed = verdicts(whole_run(made))
        for seed in range(first, first + count):
            started, before, kill = time.monotonic(), kept(made), drawn(seed)
            code, text = strike(made, kill)
            running = left_running(made)
            if kill.how == "disk full":
                kill_server(made)
            try:
                found = verdicts(whole_run(made))
            except Undone as error:
                print(f"seed {seed}: {kill}: {error}\n{text}")
                return 1
            now = kept(made)
            lost = [name for name, digest in before.items() if now.get(name) != digest]
            print(
                f"seed {seed}: {kill}: exit code {code}, made up for in {time.monotonic() - started:.1f} s", flush=True
            )
            if found != undisturbed or running or lost or "Traceback" in text:
                changed = {
                    name: (undisturbed[name], verdict)
                    for name, verdict in found.items()
                    if undisturbed[name] != verdict
                }
                print(f"  other verdicts {changed}, still running {running}, lost {lost}\n{text}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 25, int(sys.argv[2]) if len(sys.argv) > 2 else 100))
