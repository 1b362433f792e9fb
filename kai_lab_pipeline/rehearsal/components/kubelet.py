"""The kubelet: takes pods that were put on the node through their life, container by container."""

from __future__ import annotations

import asyncio
import logging

import httpx

from kai_lab_pipeline.rehearsal import profiles
from kai_lab_pipeline.rehearsal.client import RESOURCES, STRATEGIC_PATCH, ApiError, Object
from kai_lab_pipeline.rehearsal.components import programs
from kai_lab_pipeline.rehearsal.components.informers import key_of
from kai_lab_pipeline.rehearsal.components.node import Node, gpus_of
from kai_lab_pipeline.rehearsal.components.pod_needs import missing_setting, missing_volume, pull_problem, withheld
from kai_lab_pipeline.rehearsal.components.pod_status import ContainerState, PodState
from kai_lab_pipeline.rehearsal.components.podlogs import ContainerLog
from kai_lab_pipeline.rehearsal.components.runtime import Sim, now

log = logging.getLogger(__name__)

_FIRST_RESTART_S = 1.0
_BACKOFF_S = 10.0
_BACKOFF_LIMIT_S = 300.0
_PULL_BACKOFF_S = 10.0
_IGNORES_TERM_S = 1.0
"""What the kubelet takes beyond the grace period to kill a process that ignores TERM (31 s for 30 s, measured)."""
_CONFIG_RETRY_S = 2.0
_STUMBLED_S = 0.2
"""Real seconds."""


class PodWorker:
    """The life of one pod on the node."""

    def __init__(self, kubelet: Kubelet, pod: Object) -> None:
        self.kubelet = kubelet
        self.sim = kubelet.sim
        self.pod = pod
        self.namespace, self.name = key_of(pod)
        self.uid = str(pod["metadata"]["uid"])
        self.devices: list[int] = []
        containers = [ContainerState(spec) for spec in pod["spec"].get("containers") or []]
        self.state = PodState(containers, generation=int(pod["metadata"].get("generation") or 1))
        self.state.adopt(pod.get("status") or {})
        self._deleting = asyncio.Event()
        self._publishing = asyncio.Lock()

    def update(self, pod: Object) -> None:
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._deleting.set()

    async def run(self) -> None:
        self.update(self.pod)
        deleting = asyncio.create_task(self._deleting.wait())
        living = asyncio.create_task(self._live())
        try:
            await asyncio.wait({deleting, living}, return_when=asyncio.FIRST_COMPLETED)
            if living.done():
                living.result()
                await deleting
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)
            await self._terminate()
        finally:
            for task in (deleting, living):
                task.cancel()
            await asyncio.gather(deleting, living, return_exceptions=True)

    async def _live(self) -> None:
        if self.state.phase in ("Succeeded", "Failed"):
            return
        if not await self._admit():
            return
        await self.publish()
        await self._make_sandbox()
        await self._mount_volumes()
        loops = [asyncio.create_task(self._container_loop(container)) for container in self.state.containers]
        try:
            await asyncio.gather(*loops)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
        codes = [(c.state.get("terminated") or {}).get("exitCode") for c in self.state.containers]
        self.state.phase = "Succeeded" if all(code == 0 for code in codes) else "Failed"
        self.kubelet.node.devices.release(self.uid)
        await self.publish()

    async def _admit(self) -> bool:
        count = gpus_of(self.pod)
        if not count:
            return True
        try:
            self.devices = self.kubelet.node.devices.allocate(self.uid, count)
        except LookupError as error:
            reason = "UnexpectedAdmissionError"
            await self.event("Warning", reason, str(error))
            status = {
                "phase": "Failed",
                "reason": reason,
                "message": f"Pod was rejected: {error}",
                "startTime": self.state.start_time,
                "observedGeneration": self.state.generation,
            }
            await self._patch_status(status)
            return False
        return True

    async def _make_sandbox(self) -> None:
        while not self.state.sandbox:
            handler = self._handler()
            if handler in self.kubelet.handlers:
                await self.sim.sleep(0.3)
                self.state.ip = self.kubelet.next_ip()
                self.state.sandbox = True
            else:
                text = (
                    "Failed to create pod sandbox: rpc error: code = Unknown desc = "
                    f'failed to get sandbox runtime: no runtime for "{handler}" is configured'
                )
                await self.event("Warning", "FailedCreatePodSandBox", text)
                await self.sim.sleep(10)

    def _handler(self) -> str:
        name = self.pod["spec"].get("runtimeClassName")
        if not name:
            return ""
        found = self.sim.of("runtimeclasses").get("", name)
        return str((found or {}).get("handler", name))

    def sees_nvml(self) -> bool:
        """Whether the container runtime puts the NVIDIA library into this pod's containers."""
        return bool(self.sim.options.crossing) and self._handler() in ("", "nvidia")

    async def _mount_volumes(self) -> None:
        while True:
            missing = missing_volume(self.sim, self.pod)
            if missing is None:
                return
            await self.event("Warning", "FailedMount", missing)
            await self.sim.sleep(_CONFIG_RETRY_S)

    async def _container_loop(self, container: ContainerState) -> None:
        if "running" in container.state:
            code = await self._attend(container, resumed=True)
            if not await self._ended(container, code):
                return
        elif "terminated" in container.state and not self._restarts(container.state["terminated"].get("exitCode", 0)):
            return
        backoff = 0.0
        while True:
            await self._image(container)
            await self._settings(container)
            await self._start(container)
            code = await self._attend(container, resumed=False)
            if not await self._ended(container, code):
                return
            if backoff:
                await self._back_off(container, backoff)
            else:
                await self.sim.sleep(_FIRST_RESTART_S)
            backoff = min(backoff * 2 or _BACKOFF_S, _BACKOFF_LIMIT_S)
            container.restarts += 1
            if container.restarts >= 2:
                where = (self.namespace, self.name, self.uid, container.name)
                self.sim.logs.forget_attempt(*where, container.restarts - 2)

    def _restarts(self, code: int) -> bool:
        policy = self.pod["spec"].get("restartPolicy", "Always")
        return policy == "Always" or (policy == "OnFailure" and code != 0)

    async def _image(self, container: ContainerState) -> None:
        image = str(container.spec["image"])
        policy = container.spec.get("imagePullPolicy", "IfNotPresent")
        node = self.kubelet.node
        while True:
            present = node.has_image(image) and not withheld(self.sim.faults, image)
            if present and policy != "Always":
                text = f'Container image "{image}" already present on machine'
                await self.event("Normal", "Pulled", text, container)
                return
            await self.event("Normal", "Pulling", f'Pulling image "{image}"', container)
            problem = pull_problem(self.sim.faults, image, present=present)
            if problem is None:
                await self.sim.sleep(0.1)
                if not present:
                    await node.add_image(image)
                size = profiles.image_size(image)
                took = "20ms (20ms including waiting)"
                text = f'Successfully pulled image "{image}" in {took}. Image size: {size} bytes.'
                await self.event("Normal", "Pulled", text, container)
                return
            await self._pull_failed(container, image, problem)

    async def _pull_failed(self, container: ContainerState, image: str, problem: str) -> None:
        await self.event("Warning", "Failed", f'Failed to pull image "{image}": {problem}', container)
        await self.event("Warning", "Failed", "Error: ErrImagePull", container)
        container.state = {"waiting": {"reason": "ErrImagePull", "message": problem}}
        await self.publish()
        await self.sim.sleep(_PULL_BACKOFF_S / 2)
        await self.event("Normal", "BackOff", f'Back-off pulling image "{image}"', container)
        await self.event("Warning", "Failed", "Error: ImagePullBackOff", container)
        text = f'Back-off pulling image "{image}": ErrImagePull: {problem}'
        container.state = {"waiting": {"reason": "ImagePullBackOff", "message": text}}
        await self.publish()
        await self.kubelet.pull_pause(container, _PULL_BACKOFF_S)

    async def _settings(self, container: ContainerState) -> None:
        while True:
            missing = missing_setting(self.sim, self.namespace, container.spec)
            if missing is None:
                return
            await self.event("Warning", "Failed", f"Error: {missing}", container)
            container.state = {"waiting": {"reason": "CreateContainerConfigError", "message": missing}}
            await self.publish()
            await self.sim.sleep(_CONFIG_RETRY_S)

    async def _start(self, container: ContainerState) -> None:
        container.container_id = f"containerd://{self.kubelet.random_hex(64)}"
        await self.event("Normal", "Created", f"Created container: {container.name}", container)
        await self.event("Normal", "Started", f"Started container {container.name}", container)
        container.state = {"running": {"startedAt": now()}}
        container.started = True
        probed = container.spec.get("readinessProbe")
        container.ready = not probed and programs.becomes_ready(self.sim, self.pod, container.spec)
        self.state.phase = "Running"
        self.log_of(container).write()
        await self.publish()

    def log_of(self, container: ContainerState) -> ContainerLog:
        return self.sim.logs.of(self.namespace, self.name, self.uid, container.name, container.attempt)

    async def _attend(self, container: ContainerState, *, resumed: bool) -> int:
        """Runs the container's program until it ends; meanwhile its readiness probe."""
        probe = asyncio.create_task(self._probe(container))
        context = programs.Context(
            sim=self.sim,
            node=self.kubelet.node,
            pod=self.pod,
            container=container.spec,
            log=self.log_of(container),
            devices=self.devices,
            nvml=self.sees_nvml(),
            resumed=resumed,
        )
        try:
            return await programs.run(context)
        finally:
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)

    async def _probe(self, container: ContainerState) -> None:
        probe = container.spec.get("readinessProbe")
        if not probe or container.ready or not programs.becomes_ready(self.sim, self.pod, container.spec):
            return
        period = float(probe.get("periodSeconds", 10))
        await self.sim.sleep(float(probe.get("initialDelaySeconds", 0)) + 0.6 * period)
        container.ready = True
        await self.publish()

    async def _ended(self, container: ContainerState, code: int) -> bool:
        """Records the end of an attempt; whether another follows."""
        started = (container.state.get("running") or {}).get("startedAt", now())
        terminated = {
            "containerID": container.container_id,
            "exitCode": code,
            "finishedAt": now(),
            "reason": "Completed" if code == 0 else "Error",
            "startedAt": started,
        }
        self.log_of(container).close()
        container.state = {"terminated": terminated}
        container.ready = container.started = False
        again = self._restarts(code)
        if again:
            await self.publish()
            container.last = {"terminated": terminated}
        return again

    async def _back_off(self, container: ContainerState, seconds: float) -> None:
        full = f"{self.name}_{self.namespace}({self.uid})"
        text = f"back-off {int(seconds)}s restarting failed container={container.name} pod={full}"
        container.state = {"waiting": {"reason": "CrashLoopBackOff", "message": text}}
        event = f"Back-off restarting failed container {container.name} in pod {full}"
        await self.event("Warning", "BackOff", event, container)
        await self.publish()
        await self.sim.sleep(seconds)

    async def _terminate(self) -> None:
        """Ends the containers as asked and takes the pod out of the API."""
        grace = float(self.pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        running = [c for c in self.state.containers if "running" in c.state]
        for container in running:
            await self.event("Normal", "Killing", f"Stopping container {container.name}", container)
        if running and grace > 0:
            stubborn = any(programs.ignores_term(c.spec) for c in running)
            await self.sim.sleep(grace + _IGNORES_TERM_S if stubborn else min(grace, 1.0))
        for container in running:
            await programs.stopped(self.sim, self.kubelet.node, self.pod, container.spec)
        self.kubelet.node.devices.release(self.uid)
        await self.kubelet.api.delete(RESOURCES["pods"], self.namespace, self.name, grace_s=0, uid=self.uid)
        self.sim.logs.remove_pod(self.namespace, self.name, self.uid)

    async def event(self, kind: str, reason: str, message: str, container: ContainerState | None = None) -> None:
        await self.sim.recorder.record(
            self.pod,
            kind,
            reason,
            message,
            "kubelet",
            host=self.kubelet.node.name,
            container=container.name if container else None,
        )

    async def publish(self) -> None:
        """Writes the pod's status as the kubelet sees it now."""
        async with self._publishing:
            await self._patch_status(self.state.status())

    async def _patch_status(self, status: Object) -> None:
        try:
            answer = await self.kubelet.api.patch(
                RESOURCES["pods"],
                self.namespace,
                self.name,
                {"metadata": {"uid": self.uid}, "status": status},
                content_type=STRATEGIC_PATCH,
                subresource="status",
            )
        except ApiError as error:
            # The pod is gone, or another of its name has taken its place: nothing to report on.
            if not (error.not_found or error.conflict):
                raise
        else:
            self.sim.informers.learn(answer)


class Kubelet:
    """Watches the pods of the node and gives each a worker."""

    def __init__(self, sim: Sim, node: Node) -> None:
        self.sim = sim
        self.node = node
        self.api = sim.api.acting_as("kubelet")
        self.handlers = {"", "runc"} | ({"nvidia"} if sim.options.crossing else set())
        self._workers: dict[str, PodWorker] = {}
        self._last_ip = 1

    def start(self) -> None:
        pods = self.sim.of("pods")
        uids = {str(pod["metadata"]["uid"]) for pod in pods.all()}
        self.node.devices.keep_only(uids)
        self.sim.logs.keep_only(uids)
        for pod in pods.all():
            ip = (pod.get("status") or {}).get("podIP") or ""
            if ip.startswith("10.244."):
                third, fourth = ip.split(".")[2:]
                self._last_ip = max(self._last_ip, int(third) * 250 + int(fourth))
        pods.on_change(self._changed)
        for pod in pods.all():
            self._changed(None, pod)

    def worker(self, namespace: str, name: str) -> PodWorker | None:
        pod = self.sim.of("pods").get(namespace, name)
        return self._workers.get(str(pod["metadata"]["uid"])) if pod else None

    def _changed(self, old: Object | None, new: Object | None) -> None:
        if old is not None and (new is None or new["metadata"]["uid"] != old["metadata"]["uid"]):
            gone = self._workers.get(str(old["metadata"]["uid"]))
            if gone is not None and not old["metadata"].get("deletionTimestamp"):
                gone.update({**old, "metadata": {**old["metadata"], "deletionTimestamp": now()}})
        if new is None or new["spec"].get("nodeName") != self.node.name:
            return
        uid = str(new["metadata"]["uid"])
        worker = self._workers.get(uid)
        if worker is None:
            worker = self._workers[uid] = PodWorker(self, new)
            self.sim.spawn(self._work(worker), f"pod {worker.namespace}/{worker.name}")
        else:
            worker.update(new)

    async def _work(self, worker: PodWorker) -> None:
        """Runs a worker to the pod's end; one that stumbles over the API server begins anew from what is stored."""
        try:
            while True:
                try:
                    await worker.run()
                    return
                except (ApiError, httpx.TransportError) as error:
                    log.warning("pod %s/%s: %s", worker.namespace, worker.name, error)
                    await asyncio.sleep(_STUMBLED_S)
                pod = self.sim.of("pods").get(worker.namespace, worker.name)
                if pod is None or pod["metadata"]["uid"] != worker.uid:
                    return
                worker = self._workers[worker.uid] = PodWorker(self, pod)
        finally:
            self._workers.pop(worker.uid, None)

    def next_ip(self) -> str:
        self._last_ip = self._last_ip % 60000 + 1
        return f"10.244.{self._last_ip // 250}.{self._last_ip % 250 + 1}"

    def random_hex(self, digits: int) -> str:
        return programs.random_hex(digits)

    async def pull_pause(self, container: ContainerState, seconds: float) -> None:
        """Waits before the next pull, less when the image appears on the node meanwhile."""
        image = str(container.spec["image"])
        for _ in range(10):
            if self.node.has_image(image) and container.spec.get("imagePullPolicy") != "Always":
                return
            await self.sim.sleep(seconds / 10)
