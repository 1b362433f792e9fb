"""The server as a process: started once, found, healed, stopped, and back with its state."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import stat
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kai_lab_pipeline.rehearsal import __main__ as server
from kai_lab_pipeline.rehearsal import process, state
from kai_lab_pipeline_tests.api_suite.support import Api, config_map, until

OPTIONS = {"components": False}
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    process.stop(tmp_path / "state", forget=True)


def start(folder: Path, **more: float) -> process.ServerHandle:
    return process.ensure(folder, name="t", options=OPTIONS, **more)


def running(pid: int) -> bool:
    return state.process_start(pid) is not None


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: not running(pid), "the killed process to end")


def test_started_once_then_found(folder: Path) -> None:
    first = start(folder)
    assert first.started
    again = start(folder)
    assert (again.started, again.pid, again.url) == (False, first.pid, first.url)
    assert process.find(folder) == again


def test_two_at_once_start_one(folder: Path) -> None:
    handles: list[process.ServerHandle] = []
    threads = [threading.Thread(target=lambda: handles.append(start(folder))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(handle.started for handle in handles) == [False, False, False, True]
    assert len({handle.pid for handle in handles}) == 1


def test_files_are_private_and_the_context_is_named(folder: Path) -> None:
    handle = start(folder)
    for name in (state.SERVER, state.KUBECONFIG, state.KEY, state.LOG):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    config = yaml.safe_load(handle.kubeconfig.read_text())
    assert config["current-context"] == "kai-lab-rehearsal-t"
    assert config["clusters"][0]["cluster"]["server"].startswith("https://127.0.0.1:")
    assert handle.token not in (folder / state.LOG).read_text()


def test_stop_and_forget(folder: Path) -> None:
    handle = start(folder)
    assert process.stop(folder) is True
    assert not running(handle.pid)
    assert process.find(folder) is None
    assert process.stop(folder) is False
    assert (folder / state.STORE).exists()
    process.stop(folder, forget=True)
    assert list(folder.iterdir()) == []


def test_stopping_is_quick_in_spite_of_open_watches(folder: Path) -> None:
    api = Api(start(folder).kubeconfig)
    with api.watch(CONFIGMAPS, timeoutSeconds="60") as events:
        next(events)
        began = time.monotonic()
        assert process.stop(folder)
        assert time.monotonic() - began < process.STOP_S
    api.close()


def test_killed_it_comes_back_with_its_state_and_ports(folder: Path) -> None:
    first = start(folder)
    api = Api(first.kubeconfig)
    made = api.post(CONFIGMAPS, config_map("kept", k="1"))
    api.delete(f"{CONFIGMAPS}/kube-root-ca.crt")
    version = api.get(CONFIGMAPS)["metadata"]["resourceVersion"]
    api.close()
    kill(first.pid)
    assert process.find(folder) is None
    second = start(folder)
    assert second.started
    assert (second.url, second.token) == (first.url, first.token)
    api = Api(second.kubeconfig)
    assert api.get(f"{CONFIGMAPS}/kept") == made
    assert not api.exists(f"{CONFIGMAPS}/kube-root-ca.crt")
    assert api.get(CONFIGMAPS)["metadata"]["resourceVersion"] == version
    assert int(api.post(CONFIGMAPS, config_map("next"))["metadata"]["resourceVersion"]) > int(version)
    # a watch from before the restart either continues without loss or is told to list anew
    with api.watch(CONFIGMAPS, resourceVersion=version) as events:
        event = next(events)
    assert event["type"] == "ERROR" or event["object"]["metadata"]["name"] == "next"
    stale = str(int(made["metadata"]["resourceVersion"]) - 1)
    with api.watch(CONFIGMAPS, resourceVersion=stale) as events:
        event = next(events)
    api.close()
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert event["object"]["message"].startswith(f"too old resource version: {stale} (")


def test_half_finished_deletions_go_on_after_a_restart(folder: Path) -> None:
    handle = start(folder)
    api = Api(handle.kubeconfig)
    api.post("/api/v1/namespaces", {"metadata": {"name": "gone"}})
    body = config_map("hold")
    body["metadata"]["finalizers"] = ["x.io/hold"]
    api.post("/api/v1/namespaces/gone/configmaps", body)
    api.delete("/api/v1/namespaces/gone")
    api.close()
    kill(handle.pid)
    api = Api(start(folder).kubeconfig)
    api.patch("/api/v1/namespaces/gone/configmaps/hold", {"metadata": {"finalizers": None}})
    api.gone("/api/v1/namespaces/gone")
    api.close()


def test_other_options_restart_it_with_its_state(folder: Path) -> None:
    first = start(folder)
    api = Api(first.kubeconfig)
    api.post(CONFIGMAPS, config_map("kept"))
    api.close()
    second = process.ensure(folder, name="t", options={**OPTIONS, "time_scale": 0.5})
    assert second.started
    assert second.pid != first.pid
    assert not running(first.pid)
    assert json.loads((folder / state.OPTIONS).read_text())["time_scale"] == 0.5
    api = Api(second.kubeconfig)
    assert api.exists(f"{CONFIGMAPS}/kept")
    api.close()


def test_another_program_with_its_pid_is_left_alone(folder: Path) -> None:
    handle = start(folder)
    kill(handle.pid)
    record = json.loads((folder / state.SERVER).read_text())
    record["pid"] = os.getpid()
    (folder / state.SERVER).write_text(json.dumps(record))
    assert process.find(folder) is None
    assert process.stop(folder) is False
    assert start(folder).started


@pytest.mark.parametrize("text", ["", "[]", "not json", '{"pid": "x"}'])
def test_a_broken_record_is_healed(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / state.SERVER).write_text(text)
    assert process.find(folder) is None
    assert start(folder).started


def test_a_taken_port_gives_another(folder: Path, tmp_path: Path) -> None:
    first = start(folder)
    process.stop(folder)
    other = tmp_path / "other"
    other.mkdir()
    record = json.loads((folder / state.SERVER).read_text())
    (other / state.SERVER).write_text(json.dumps({**record, "pid": 0}))
    squatter = start(other)
    assert squatter.port == first.port
    second = start(folder)
    assert second.port != first.port
    api = Api(second.kubeconfig)
    assert api.get("/version")["major"] == "1"
    api.close()
    process.stop(other, forget=True)


def test_a_damaged_store_is_said(folder: Path) -> None:
    folder.mkdir()
    (folder / state.STORE).write_bytes(b"this is no database, and long enough to be looked at " * 40)
    with pytest.raises(process.RehearsalError) as failed:
        start(folder)
    assert "file is not a database" in failed.value.seen
    assert failed.value.where == str(folder)
    assert failed.value.next


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(process.RehearsalError) as failed:
        start(tmp_path / "file" / "state")
    assert "cannot be written" in str(failed.value)
    assert "KAI_LAB_STATE_DIR" in failed.value.next


def test_it_stops_itself_when_idle(folder: Path) -> None:
    handle = process.ensure(folder, name="t", options=OPTIONS, idle_stop_s=0.3)
    until(lambda: process.find(folder) is None, "the idle server to stop")
    assert "nobody asked" in (folder / state.LOG).read_text()
    assert handle.started


def test_its_components_do_not_keep_it_awake(folder: Path) -> None:
    import httpx

    handle = process.ensure(folder, name="t", options=OPTIONS, idle_stop_s=0.5)
    headers = {"Authorization": f"Bearer {handle.token}", "X-Kai-Lab-Component": "scheduler"}

    def gone() -> bool:
        try:
            httpx.get(f"{handle.url}/version", headers=headers)
        except httpx.TransportError:
            return True
        return False

    until(gone, "the server to stop while a component asks it")


def test_crashed_components_are_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    starts: list[str] = []
    second = asyncio.Event()

    async def run_components(url: str, token: str, state_dir: Path, options: dict[str, Any]) -> None:
        starts.append(url)
        if len(starts) == 1:
            raise ValueError("a component stumbled")
        second.set()
        await asyncio.Event().wait()

    fake: Any = types.ModuleType("components")
    fake.run_components = run_components
    monkeypatch.setitem(sys.modules, "kai_lab_pipeline.rehearsal.components", fake)
    monkeypatch.setattr(server, "_RESTART_S", 0.0)

    async def supervise() -> None:
        task = asyncio.create_task(server._components("http://x", "t", tmp_path, {}))
        await asyncio.wait_for(second.wait(), 10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(supervise())
    assert starts == ["http://x", "http://x"]
    assert "a component stumbled" in caplog.text


def test_a_look_beside_a_tear_down_starts_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / state.STORE).touch()
    lock = os.open(folder / state.LOCK, os.O_RDWR | os.O_CREAT)
    real = fcntl.flock

    def torn_down_meanwhile(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        (folder / state.STORE).unlink()  # whoever holds the lock removes the state, and the lock with it
        (folder / state.LOCK).unlink()
        os.close(lock)
        real(descriptor, how)

    real(lock, fcntl.LOCK_EX)
    monkeypatch.setattr(fcntl, "flock", torn_down_meanwhile)
    assert process.revive(folder, name="lab") is None
    assert list(folder.iterdir()) == [], "neither a server nor a file of one"
    folder.rmdir()
    assert process.revive(folder, name="lab") is None
    assert not folder.exists()


def test_two_never_hold_the_lock_of_one_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    real = fcntl.flock

    def removed_meanwhile(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        process.stop(folder, forget=True)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    with process._locked(folder):
        held = os.open(folder / state.LOCK, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            real(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(held)
