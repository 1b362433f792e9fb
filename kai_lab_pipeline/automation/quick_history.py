"""Dagster's history without its waits for the disk.

Dagster opens and closes a connection for every event. SQLite waits for the disk at each commit, and the last connection
that closes writes the whole log back, which is most of the time of a short run. Here one connection to each database
stays open as long as the process works with it, and the disk is waited for when the log is written back: a killed
process loses nothing, and a machine that loses its power at most the last moments, never the rest.
Source: https://www.sqlite.org/pragma.html#pragma_synchronous and https://www.sqlite.org/wal.html.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

_active = threading.Lock()
# A run that is interrupted while a connection is being closed has closed it all the same: no stack trace for a person.
logging.getLogger("sqlalchemy.pool").addHandler(logging.NullHandler())


@contextmanager
def quick_history() -> Iterator[None]:
    """For all databases that this process opens meanwhile; once is enough."""
    if _active.locked():
        yield
        return
    kept: dict[str, sqlite3.Connection] = {}

    def opened(connection: Any, _: Any) -> None:
        if not isinstance(connection, sqlite3.Connection):
            return
        connection.execute("PRAGMA synchronous=NORMAL")
        file = str(connection.execute("PRAGMA database_list").fetchone()[2])
        # A database that cannot be opened twice is as slow as before; its own connection tells what is wrong.
        with contextlib.suppress(sqlite3.Error):
            if file and file not in kept:
                keeper = sqlite3.connect(file, check_same_thread=False)
                if keeper.execute("PRAGMA journal_mode").fetchone() == ("wal",):
                    keeper.execute("SELECT count(*) FROM sqlite_master").fetchone()
                    kept[file] = keeper
                else:
                    keeper.close()

    with _active:
        event.listen(Engine, "connect", opened)
        try:
            yield
        finally:
            event.remove(Engine, "connect", opened)
            for keeper in kept.values():
                with contextlib.suppress(sqlite3.Error):
                    keeper.close()
