"""The page that shows `kai-lab explain` at work: real words in, real output out.

``python -m kai_lab_pipeline_tests.explain_page docs/explain.md`` writes it anew; a test compares it.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
from pathlib import Path

from kai_lab_pipeline.commands.explain import explain_bytes, show

INPUTS = (
    "Error: INSTALLATION FAILED: cannot re-use a name that is still in use",
    "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress",
    'Error: failed to perform "FetchReference" on source: ghcr.io/kai-scheduler/kai-scheduler/kai-scheduler:0.17.0: '
    "not found",
    "Error: toomanyrequests: You have reached your unauthenticated pull rate limit.",
    'ERROR: failed to create cluster: node(s) already exist for a cluster with the name "kai-hami-test"',
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
    "E1130 main.go:10] failed to create fsnotify watcher: too many open files",
    "Error from server (InternalError): Internal error occurred: failed calling webhook "
    '"queue-validation.kai.scheduler": failed to call webhook: Post "https://queue-controller.kai-scheduler.svc:443/validate-scheduling-run-ai-v2-queue'
    '?timeout=10s": dial tcp 10.96.128.139:443: connect: connection refused',
    'Error from server (Forbidden): pods "gpu-sharing-with-isolation" is forbidden: pod rejected: '
    'RuntimeClass "nvidia" not found',
    'admission webhook "admission.kai-scheduler.svc" denied the request: attempting to create a pod '
    "default/gpu-sharing-with-isolation with gpu sharing request, while GPU sharing is disabled",
    "Warning  Unschedulable  kai-scheduler  no nodes with enough resources were found: 1 node(s) didn't have enough "
    "resources: GPU memory.",
    "QueueDoesNotExist: Queue 'research' does not exist.",
    "error starting plugins: error getting plugins: nvml init failed: ERROR_LIBRARY_NOT_FOUND",
    "Error while running the app: unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND",
    "sqlite3.OperationalError: database is locked",
    "all is well, and this is no error",
)
_HEAD = """\
# `kai-lab explain`

Give it what you have: an error text, a log, the output of `kubectl describe`, objects with `-o json` or `-o yaml`, a
message of helm, kind or docker, a failed Dagster step, or the folder of an evidence bundle; from a file or through a
pipe. It answers with the cause, the lines that gave it away, what to do with the real names filled in, whether a retry
helps, and where more is written ([known issues](known-issues.md)). `--json` gives the same for programs. Of an input
above 5 MB the last 5 MB are read.

    kubectl describe pod gpu-sharing-with-isolation | kai-lab explain
    kubectl get pods,events -A -o json | kai-lab explain --json
    kai-lab explain .lab/kai-hami-test/evidence/RUN

Each of these is run by a test:
"""


def render_page() -> str:
    """The page as Markdown, with what explain prints for every input."""
    return _HEAD + "".join(_example(text) for text in INPUTS)


def _example(text: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        show(explain_bytes(text.encode()), "stdin")
    return f"\n```console\n$ printf '%s' {shlex.quote(text)} | kai-lab explain\n{printed.getvalue()}```\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render_page(), encoding="utf-8")
