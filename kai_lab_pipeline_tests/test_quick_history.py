"""The history stays open while a process works with it: nothing waits for the disk, and nothing is lost."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from kai_lab_pipeline.automation.quick_history import quick_history


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "history.db"
    with contextlib.closing(sqlite3.connect(path)) as made:
        made.execute("PRAGMA journal_mode=WAL")
        made.execute("CREATE TABLE events (name TEXT)")
    return path


def write(database: Path, name: str) -> int:
    """Write as Dagster does, with its own connection; returns how that waits for the disk (2: at each commit)."""
    engine = create_engine(f"sqlite:///{database}", poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO events VALUES (:name)"), {"name": name})
        return int(connection.execute(text("PRAGMA synchronous")).scalar_one())


def test_the_log_is_written_back_once_and_not_at_each_event(database: Path) -> None:
    log = database.with_name("history.db-wal")
    assert write(database, "before") == 2
    assert not log.exists(), "the last connection that closes writes the log back"
    with quick_history(), quick_history():
        assert [write(database, name) for name in ("a", "b")] == [1, 1]
        assert log.stat().st_size > 0
    assert not log.exists()
    assert write(database, "after") == 2
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert [row[0] for row in connection.execute("SELECT name FROM events")] == ["before", "a", "b", "after"]


def test_a_database_without_such_a_log_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE events (name TEXT)")
    with quick_history():
        write(path, "a")
        path.rename(tmp_path / "moved.db")
    assert [found.name for found in tmp_path.iterdir()] == ["moved.db"]


INTERRUPTED = """
import sqlite3
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool
from kai_lab_pipeline.automation.quick_history import quick_history

class Closing(sqlite3.Connection):
    def close(self):
        super().close()
        raise KeyboardInterrupt

with quick_history():
    engine = create_engine("sqlite://", poolclass=NullPool, connect_args={"factory": Closing})
    try:
        engine.connect().close()
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_an_interrupt_while_a_connection_is_closed_shows_no_stack_trace() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
