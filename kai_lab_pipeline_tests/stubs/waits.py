"""Tells on a FIFO that it lives, with a child of its own, and then waits until it is ended.

The reading end sees the end of the file when the last holder is gone: that is how a test knows, without sleeping, that
nothing was left behind. Arguments: FIFO [ignore-term].
"""

import os
import signal
import sys


def main() -> None:
    alive = os.open(sys.argv[1], os.O_WRONLY)
    if "ignore-term" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.fork()
    os.write(alive, b"up\n")
    print("password=hunter2 waiting", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
