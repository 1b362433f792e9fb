"""Runs one command and ends its whole process group when the process that asked for it is gone.

Started by `clients.process` as a script (``python -I -S watchdog.py FD COMMAND...``): it leads its own session, so the
group holds the command and everything that the command starts. FD is the reading end of a pipe whose other end only the
asking process holds: when that process dies, however it dies, the pipe closes. Only the standard library and few
modules of it, because it is started for every command.
"""

import os
import signal
import sys
from _thread import start_new_thread

GRACE_S = 5.0
"""Seconds between the polite signal and the one that cannot be caught."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a command that could not be started, as shells give them."""


def _end_group_when_orphaned(lifeline: int, orphaned: "list[bool]") -> None:
    while True:
        if not os.read(lifeline, 1):
            break
    orphaned.append(True)
    os.killpg(0, signal.SIGTERM)
    signal.alarm(int(GRACE_S))


def main(arguments: "list[str]") -> int:
    lifeline, command = int(arguments[0]), arguments[1:]
    # Handlers, not SIG_IGN: what is ignored stays ignored in the command, what is handled does not.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    child = os.fork()
    if child == 0:
        os.close(lifeline)
        try:
            os.execvp(command[0], command)
        except FileNotFoundError:
            os._exit(NOT_FOUND)
        except OSError:
            os._exit(NOT_EXECUTABLE)
    # The command has its copies; holding ours would keep its readers waiting when it closed its own.
    for stream in (0, 1, 2):
        os.close(stream)
    orphaned: list[bool] = []
    start_new_thread(_end_group_when_orphaned, (lifeline, orphaned))
    _, status = os.waitpid(child, 0)
    if orphaned:
        os.killpg(0, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
