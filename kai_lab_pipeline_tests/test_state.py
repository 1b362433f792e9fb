"""A lab's state folder: one backend, one writer, and a crash that frees it."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import shutil
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline.clients.files import write_atomic
from kai_lab_pipeline.lab.errors import WrongUse
from kai_lab_pipeline.settings import Settings, load_settings
from kai_lab_pipeline.workbench.state import LabState, WriteLock

PROJECT = Path(__file__).resolve().parent.parent


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    shutil.copy(PROJECT / "lab.toml", tmp_path)
    return load_settings(tmp_path, environ={})


def test_a_lab_keeps_the_backend_it_was_made_with(settings: Settings) -> None:
    LabState.of(settings).open()
    other = settings.model_copy(update={"lab": settings.lab.model_copy(update={"backend": "kind"})})
    with pytest.raises(WrongUse, match="made with backend 'rehearsal'; another backend"):
        LabState.of(other).open()
    assert LabState.of(settings).open().recorded() is not None


def test_a_folder_that_cannot_be_written_is_refused_with_the_reason(settings: Settings) -> None:
    settings.state_root.parent.mkdir(parents=True, exist_ok=True)
    settings.state_root.write_text("a file where the folder should be")
    with pytest.raises(WrongUse, match="state folder cannot be written"):
        LabState.of(settings).open()


def _hold(folder: Path, owner: str, pipe: Connection) -> None:
    try:
        WriteLock(folder).acquire(owner, f"test {owner}")
        pipe.send("held")
    except WrongUse as error:
        pipe.send(error.text())
    pipe.recv()  # until told, or killed


def _other_process(folder: Path, owner: str) -> tuple[multiprocessing.process.BaseProcess, Connection, str]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(folder, owner, theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(30), "the other process did not answer"
    return process, ours, ours.recv()


def test_another_run_is_refused_with_who_holds_the_lab_and_a_crash_frees_it(tmp_path: Path) -> None:
    process, pipe, said = _other_process(tmp_path, "run-a")
    try:
        assert said == "held"
        lock = WriteLock(tmp_path)
        with pytest.raises(WrongUse, match=f"test run-a since .*, pid {process.pid}"):
            lock.acquire("run-b", "mine")
        holder = lock.holder()
        assert holder is not None
        assert holder["owner"] == "run-a"
        lock.acquire("run-a", "another step of the same run")
        lock.release()
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join(10)
        lock.acquire("run-b", "mine")
        assert lock.holder() is None
        lock.release()
    finally:
        pipe.close()
        process.kill()
        process.join(10)


def test_a_step_of_one_run_keeps_other_runs_out_while_another_step_of_it_ends(tmp_path: Path) -> None:
    first, second = WriteLock(tmp_path), WriteLock(tmp_path)
    first.acquire("run-a", "step 1")
    second.acquire("run-a", "step 2")
    first.release()
    with pytest.raises(WrongUse):
        WriteLock(tmp_path).acquire("run-b", "another")
    second.release()
    third = WriteLock(tmp_path)
    third.acquire("run-b", "another")
    third.release()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "record.json"
    write_atomic(target, json.dumps({"a": 1}))
    with pytest.raises(UnicodeEncodeError):
        write_atomic(target, "\ud800")
    assert json.loads(target.read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_a_look_at_who_holds_the_lab_gets_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look is a short hold of its own: under the guard, no writer can be refused because of it."""
    first = WriteLock(tmp_path)
    first.acquire("run-a", "a run")
    first.release()
    taken: list[tuple[str, int]] = []
    flock = fcntl.flock

    def noted(file: Any, how: int) -> None:
        taken.append((Path(file.name).name, how))
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", noted)
    assert WriteLock(tmp_path).holder() is None
    assert taken == [("write.lock.guard", fcntl.LOCK_EX), ("write.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)]


def test_a_lab_that_is_removed_is_nobodys_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lab"
    folder.mkdir()
    lock, seen = WriteLock(folder), folder / "evidence"
    seen.touch()
    lock.acquire("down-1", "tearing the lab down")
    released = WriteLock.release

    def looked_at(self: WriteLock) -> None:
        assert not folder.exists(), "it is out of the way before anybody else can hold it"
        released(self)

    monkeypatch.setattr(WriteLock, "release", looked_at)
    aside = lock.move_away()
    assert [path.name for path in (aside / "lab").iterdir() if path.name == "evidence"] == ["evidence"]
    monkeypatch.setattr(WriteLock, "release", released)
    folder.mkdir()
    another = WriteLock(folder)
    another.acquire("run-2", "the next run")
    shutil.rmtree(aside)
    assert folder.is_dir()
    another.release()


def test_a_writer_that_meets_a_removal_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lab"
    folder.mkdir()
    holder = WriteLock(folder)
    holder.acquire("down-1", "tearing the lab down")
    waiting, opened = WriteLock(folder), fcntl.flock

    def after_the_removal(file: Any, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", opened)  # the next one has the guard's file open, and had to wait
        holder.move_away()
        opened(file, how)

    monkeypatch.setattr(fcntl, "flock", after_the_removal)
    with pytest.raises(WrongUse, match="taken away at this very moment"):
        waiting.acquire("run-2", "the next run")


def test_steps_of_a_run_look_at_the_same_time_whether_the_folder_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = LabState("lab", "kind", tmp_path / "lab").open()
    touch = Path.touch

    def touched_and_removed_by_another(path: Path, *arguments: Any, **options: Any) -> None:
        touch(path, *arguments, **options)
        path.unlink()

    monkeypatch.setattr(Path, "touch", touched_and_removed_by_another)
    assert state.open() is state
    assert not (state.folder / ".writable").exists()
