"""The controllers' machinery: caches, work queues, events and what a busy server does to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from kai_lab_pipeline.rehearsal.client import RESOURCES, Api, ApiError, Object, Resource, error_of
from kai_lab_pipeline.rehearsal.components.events import Recorder
from kai_lab_pipeline.rehearsal.components.informers import Informer, Key
from kai_lab_pipeline.rehearsal.components.runtime import Controller, Sim, SimOptions, WorkQueue

POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "default", "uid": "u", "resourceVersion": "5"},
}


class FakeApi(Api):
    """Keeps what it is asked to write."""

    def __init__(self) -> None:
        self.component = "test"
        self.created: list[Object] = []
        self.patched: list[Any] = []
        self.forgetful = False

    def acting_as(self, component: str) -> Api:
        return self

    async def create(self, obj: Any) -> Object:
        self.created.append(obj)
        return dict(obj)

    async def patch(self, resource: Resource, namespace: str | None, name: str, patch: Any, **more: Any) -> Object:
        if self.forgetful:
            raise ApiError(404, "NotFound", "gone")
        self.patched.append(patch)
        return {}


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 20))


def test_a_repeated_event_is_counted_and_not_written_again() -> None:
    api = FakeApi()
    recorder = Recorder(api)

    async def work() -> None:
        for _ in range(3):
            await recorder.record(POD, "Warning", "BackOff", "again", "kubelet", host="node", container="c")

    run(work)
    assert len(api.created) == 1
    assert api.created[0]["involvedObject"]["fieldPath"] == "spec.containers{c}"
    assert api.created[0]["source"] == {"component": "kubelet", "host": "node"}
    assert [patch["count"] for patch in api.patched] == [2, 3]


def test_an_event_that_the_server_forgot_is_written_anew() -> None:
    api = FakeApi()
    recorder = Recorder(api)
    api.forgetful = True

    async def work() -> None:
        for _ in range(2):
            await recorder.record(POD, "Warning", "BackOff", "again", "kubelet")

    run(work)
    assert [event["count"] for event in api.created] == [1, 1]


def test_a_flood_of_similar_events_is_combined() -> None:
    api = FakeApi()
    recorder = Recorder(api)

    async def work() -> None:
        for number in range(15):
            await recorder.record(POD, "Warning", "BindingError", f"group {number}", "binder")

    run(work)
    messages = [event["message"] for event in api.created]
    assert messages[-1] == "(combined from similar events): group 10"
    assert len(messages) == 11
    assert api.patched[-1]["count"] == 5


def test_the_cache_never_goes_back() -> None:
    informer = Informer(FakeApi(), RESOURCES["pods"])
    seen: list[str] = []
    informer.on_change(lambda old, new: seen.append(new["metadata"]["resourceVersion"] if new else "gone"))
    informer.learn(POD)
    informer.learn({**POD, "metadata": {**POD["metadata"], "resourceVersion": "4"}})
    informer.learn({**POD, "metadata": {**POD["metadata"], "resourceVersion": "6"}})
    assert seen == ["5", "6"]
    informer.forget("default", "p", "another uid")
    assert informer.get("default", "p") is not None
    informer.forget("default", "p", "u")
    informer.learn({**POD, "metadata": {**POD["metadata"], "resourceVersion": "6"}})
    assert seen == ["5", "6", "gone"]
    assert informer.get("default", "p") is None


def test_a_key_is_worked_on_once_at_a_time_and_again_if_it_changed_meanwhile() -> None:
    async def work() -> None:
        queue = WorkQueue()
        queue.add(("", "a"))
        queue.add(("", "a"))
        queue.add(("", "b"))
        first = await queue.take()
        assert first == ("", "a")
        queue.add(first)
        assert await queue.take() == ("", "b")
        queue.done(first)
        assert await queue.take() == first
        queue.done(first)
        queue.add(("", "late"), after_s=0.001)
        assert await queue.take() == ("", "late")

    run(work)


class Waiting(Controller):
    """Works in a pod, and on each key until it is told to end."""

    name = "waiting"
    lives_in = ("default", {"app": "waiting"})

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self.begun: asyncio.Queue[Key] = asyncio.Queue()
        self.may_end = asyncio.Event()
        self.finished: list[Key] = []

    def wake_all(self) -> None:
        self.queue.add(("", "work"))

    async def reconcile(self, key: Key) -> None:
        self.begun.put_nowait(key)
        await self.may_end.wait()
        self.finished.append(key)


def test_what_a_controller_was_at_ends_with_its_pod_and_begins_anew_with_the_next(tmp_path: Path) -> None:
    async def work() -> None:
        sim = Sim(FakeApi(), tmp_path, SimOptions())
        controller = Waiting(sim)
        controller.start()
        pods = sim.of("pods")
        pods.learn(_running("1"))
        assert await controller.begun.get() == ("", "work")
        pods.forget("default", "waiting-1", "uid-1")
        controller.may_end.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert controller.finished == [], "a process that is gone finishes nothing"
        pods.learn(_running("2"))
        assert await controller.begun.get() == ("", "work")
        await sim.stop()
        assert controller.finished == [("", "work")]

    run(work)


def _running(number: str) -> Object:
    return {
        **POD,
        "metadata": {
            "name": f"waiting-{number}",
            "namespace": "default",
            "uid": f"uid-{number}",
            "labels": {"app": "waiting"},
            "resourceVersion": number,
        },
        "status": {"containerStatuses": [{"state": {"running": {}}}]},
    }


def test_an_error_body_that_is_no_status_is_quoted() -> None:
    error = error_of(502, b"<html>bad gateway</html>")
    assert (error.code, str(error)) == (502, "<html>bad gateway</html>")
    status = error_of(404, b'{"kind":"Status","reason":"NotFound","message":"pods \\"x\\" not found"}')
    assert status.not_found
    assert str(status) == 'pods "x" not found'
