"""A step in a process of its own ends with the process that started it.

Killed, that one can tell nobody. A step that went on would keep the lab from the next run, and build on under its feet.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading

GRACE_S = 30.0
"""Seconds that the step gets to end what it is at, before its process is ended."""

_watching = threading.Lock()


def end_with(pid: int) -> None:
    """Have this process terminated when the process `pid` is gone, where that is the one that started it for a step."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid != pid or not _watching.acquire(blocking=False):
        return

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)  # ends a step as a cancelled one: its commands are ended as well
        threading.Event().wait(GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
