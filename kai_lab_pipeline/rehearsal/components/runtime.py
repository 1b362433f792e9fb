"""What all simulated components share: options, scaled time, informers, event recorder and the controller loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx

from kai_lab_pipeline.rehearsal.client import MERGE_PATCH, Api, ApiError, Object, resource_of
from kai_lab_pipeline.rehearsal.components.events import Recorder
from kai_lab_pipeline.rehearsal.components.faults import Faults
from kai_lab_pipeline.rehearsal.components.informers import Informer, Informers, Key, key_of
from kai_lab_pipeline.rehearsal.components.podlogs import PodLogs

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SimOptions:
    """How the simulated cluster is to behave."""

    name: str = "kai-hami-test"
    node_name: str = "kai-hami-test-control-plane"
    time_scale: float = 0.01
    """Seconds here per second of a real cluster."""
    crossing: str | None = None
    """How NVML gets into pods; None where it does not."""
    faults: Faults = field(default_factory=Faults)
    kube_controllers: bool = True
    webhook_url_mode: bool = False
    gpu_count: int = 8
    gpu_memory_mib: int = 40960
    gpu_product: str = "NVIDIA-A100-SXM4-40GB"

    @staticmethod
    def parse(options: Mapping[str, Any]) -> SimOptions:
        """Raises ValueError for an unknown fault or a value that cannot be read."""
        name = str(options.get("name") or "kai-hami-test")
        faults = Faults.parse(options.get("faults"))
        crossing = options.get("crossing") or (faults.on("crossed") and "the node's default runtime injects NVML")
        profile = options.get("profile")
        profile = profile if isinstance(profile, Mapping) else {}
        scale = float(options.get("time_scale", 0.01))
        if not 0 < scale <= 100:
            raise ValueError(f"time_scale {scale} is not above 0 and at most 100")
        return SimOptions(
            name=name,
            node_name=str(options.get("node_name") or f"{name}-control-plane"),
            time_scale=scale,
            crossing=(crossing if isinstance(crossing, str) else "the node's default runtime injects NVML")
            if crossing
            else None,
            faults=faults,
            kube_controllers=bool(options.get("kube_controllers", True)),
            webhook_url_mode=bool(options.get("webhook_url_mode", False)),
            gpu_count=int(profile.get("gpu_count", 8)),
            gpu_memory_mib=int(profile.get("gpu_memory_mib", 40960)),
            gpu_product=str(profile.get("gpu_product", "NVIDIA-A100-SXM4-40GB")),
        )


def now() -> str:
    """The time as the API writes it: whole seconds, UTC."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Sim:
    """One simulated cluster: the API, its caches and the scaled clock."""

    def __init__(self, api: Api, state_dir: Path, options: SimOptions) -> None:
        self.api = api
        self.options = options
        self.faults = options.faults
        self.state_dir = state_dir
        self.informers = Informers(api.acting_as("informers"))
        self.logs = PodLogs(state_dir / "pods")
        self.recorder = Recorder(api)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def of(self, plural: str) -> Informer:
        return self.informers.of(plural)

    def seconds(self, real: float) -> float:
        """Seconds here for seconds of a real cluster."""
        return real * self.options.time_scale

    async def sleep(self, real: float) -> None:
        """Sleeps for so many seconds of a real cluster."""
        await asyncio.sleep(self.seconds(real))

    def running_pod(self, namespace: str, app_labels: Mapping[str, str]) -> Object | None:
        """A pod of a component whose container runs: what the component's process is here."""
        for pod in self.of("pods").all(namespace, app_labels):
            if pod["metadata"].get("deletionTimestamp"):
                continue
            statuses = pod.get("status", {}).get("containerStatuses") or []
            if any("running" in status.get("state", {}) for status in statuses):
                return pod
        return None

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Runs work beside everything else; a crash of it ends run_components with its error."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)

    async def stop(self) -> None:
        tasks = [*self._tasks, *self.informers.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class WorkQueue:
    """Keys to look at: each at most once at a time, coalesced while waiting."""

    def __init__(self) -> None:
        self._ready: dict[Key, None] = {}
        self._busy: set[Key] = set()
        self._again: set[Key] = set()
        self._changed = asyncio.Event()
        self._timers: dict[Key, asyncio.TimerHandle] = {}

    def add(self, key: Key, after_s: float = 0.0) -> None:
        if after_s > 0:
            loop = asyncio.get_running_loop()
            timer = self._timers.get(key)
            if timer is not None and timer.when() <= loop.time() + after_s:
                return
            if timer is not None:
                timer.cancel()
            self._timers[key] = loop.call_later(after_s, self._due, key)
        elif key in self._busy:
            self._again.add(key)
        else:
            self._ready[key] = None
            self._changed.set()

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def take(self) -> Key:
        while not self._ready:
            self._changed.clear()
            await self._changed.wait()
        key = next(iter(self._ready))
        del self._ready[key]
        self._busy.add(key)
        return key

    def done(self, key: Key) -> None:
        self._busy.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)


class Controller:
    """A loop that brings what is to what should be, key by key, whenever something it watches changes."""

    name = ""
    """Name in events, field managers and logs."""

    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.api = sim.api.acting_as(self.name)
        self.queue = WorkQueue()
        self._failures: dict[Key, int] = {}
        self._workers: dict[asyncio.Task[None], Key] = {}

    def watch(self, plural: str, keys: Callable[[Object], list[Key]] | None = None) -> Informer:
        """Looks at the given keys (by default the object's own) whenever an object of that type changes."""
        informer = self.sim.of(plural)
        own: Callable[[Object], list[Key]] = lambda obj: [key_of(obj)]  # noqa: E731
        pick = keys or own

        def changed(old: Object | None, new: Object | None) -> None:
            for key in pick(new or old or {}):
                self.queue.add(key)

        informer.on_change(changed)
        return informer

    def wake_all(self) -> None:
        """Looks at everything again; overridden by controllers that live in a pod."""

    @property
    def lives_in(self) -> tuple[str, Mapping[str, str]] | None:
        """Namespace and labels of the pod this controller runs in, as things are; None for what is always there."""
        return None

    def own_pod(self) -> Object | None:
        if self.lives_in is None:
            return None
        return self.sim.running_pod(*self.lives_in)

    def alive(self) -> bool:
        return self.lives_in is None or self.own_pod() is not None

    def start(self) -> None:
        if self.lives_in is not None:

            def pod_changed(old: Object | None, new: Object | None) -> None:
                namespace, labels = self.lives_in or ("", {})
                meta = (new or old or {})["metadata"]
                if meta.get("namespace") == namespace and all(
                    (meta.get("labels") or {}).get(k) == v for k, v in labels.items()
                ):
                    if not self.alive():
                        self._drop_work()
                    self.wake_all()

            self.sim.of("pods").on_change(pod_changed)
        self.sim.spawn(self._run(), f"controller {self.name}")

    async def _run(self) -> None:
        try:
            while True:
                key = await self.queue.take()
                worker = asyncio.create_task(self._one(key), name=f"{self.name} {key}")
                self._workers[worker] = key
                worker.add_done_callback(self._worker_ended)
        finally:
            self._drop_work()

    def _drop_work(self) -> None:
        """A process that is gone finishes nothing: what it was at in its pod ends with the pod."""
        for worker in tuple(self._workers):
            worker.cancel()

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        self.queue.done(self._workers.pop(worker))

    async def _one(self, key: Key) -> None:
        try:
            if self.alive():
                await self.reconcile(key)
            self._failures.pop(key, None)
        except (ApiError, httpx.TransportError) as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            usual = isinstance(error, ApiError) and (error.conflict or error.not_found)
            log.log(logging.DEBUG if usual else logging.WARNING, "%s %s: %s", self.name, key, error)
            self.queue.add(key, after_s=min(0.01 * 2 ** min(failures, 9), 5.0))
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            log.exception("%s %s: %r", self.name, key, error)
            self.queue.add(key, after_s=min(0.1 * 2 ** min(failures, 9), 30.0))

    async def reconcile(self, key: Key) -> None:
        raise NotImplementedError

    async def ensure(self, obj: Object) -> Object:
        """Creates the object when it is absent; otherwise returns what is there."""
        try:
            return self.sim.informers.learn(await self.api.create(obj))
        except ApiError as error:
            if not error.conflict:
                raise
        found = await self.api.get(resource_of(obj), obj["metadata"].get("namespace"), obj["metadata"]["name"])
        return found if found is not None else await self.ensure(obj)

    async def patch(
        self, obj: Object, patch: Any, *, content_type: str = MERGE_PATCH, subresource: str | None = None
    ) -> Object:
        """Patches the object (merge patch by default) and takes the answer into the cache."""
        meta = obj["metadata"]
        answer = await self.api.patch(
            resource_of(obj),
            meta.get("namespace"),
            meta["name"],
            patch,
            content_type=content_type,
            subresource=subresource,
        )
        return self.sim.informers.learn(answer)
