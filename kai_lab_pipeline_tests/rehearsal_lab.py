"""A lab on the rehearsal for tests: the lab's steps, and waiting by watching instead of by sleeping."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from kai_lab_pipeline.lab.evidence import ContainerLog, Evidence, Observation
from kai_lab_pipeline.lab.spec import ASSETS
from kai_lab_pipeline.rehearsal import helm, process
from kai_lab_pipeline.rehearsal.client import (
    APPLY_PATCH,
    RESOURCES,
    ApiError,
    Object,
    Request,
    SyncApi,
    create_request,
    delete_request,
    patch_request,
    resource_of,
)

MANIFESTS = Path(__file__).parents[1] / "manifests"
NODE = "kai-hami-test-control-plane"
SCALE = 0.01
PATIENCE_S = 60.0
"""Real seconds: far beyond what any step needs on a busy machine."""
KAI = "oci://ghcr.io/kai-scheduler/kai-scheduler/kai-scheduler"
MOCK = "oci://ghcr.io/nvidia/k8s-test-infra/chart/nvml-mock"
ISOLATOR = "oci://docker.io/projecthami/kai-resource-isolator"
VERSIONS = {
    "kubernetes": "v1.34.0",
    "kai_scheduler": "v0.17.0",
    "nvml_mock": "0.3.0",
    "device_plugin": "v0.18.2",
    "kai_resource_isolator": "1.1.0-chart",
}
COMPONENTS = (
    "admission",
    "binder",
    "kai-operator",
    "kai-scheduler-default",
    "pod-grouper",
    "podgroup-controller",
    "queue-controller",
)


class Lab:
    """One rehearsed cluster and what a person does to it."""

    def __init__(self, handle: process.ServerHandle) -> None:
        self.url, self.token = handle.url, handle.token
        self.api = SyncApi(handle.url, handle.token)

    # --- asking and waiting -------------------------------------------------------------------------------------

    def get(self, plural: str, name: str, namespace: str | None = None) -> Object | None:
        return self.api.get(RESOURCES[plural], namespace, name)

    def all(self, plural: str, namespace: str | None = None, **params: str) -> list[Object]:
        return self.api.list(RESOURCES[plural], namespace, **params)

    def wait(self, plural: str, condition: Callable[[list[Object]], Any], what: str) -> Any:
        """Watches a resource type until the condition on its objects gives something true; that."""
        deadline = time.monotonic() + PATIENCE_S
        last: list[Object] = []
        while time.monotonic() < deadline:
            listing = self.api.send(Request("GET", RESOURCES[plural].path(), {}))
            objects = {item["metadata"].get("uid"): item for item in listing.get("items") or []}
            found = condition(list(objects.values()))
            if found:
                return found
            for event in self._watch(plural, listing["metadata"]["resourceVersion"], deadline):
                item = event["object"]
                if event["type"] == "DELETED":
                    objects.pop(item["metadata"].get("uid"), None)
                elif event["type"] in ("ADDED", "MODIFIED"):
                    objects[item["metadata"].get("uid")] = item
                last = list(objects.values())
                found = condition(last)
                if found:
                    return found
        pytest.fail(f"{what}: not within {PATIENCE_S:g} s; last seen: {json.dumps(last)[:2000]}")

    def version(self, plural: str) -> str:
        """The version from which changes can be asked for."""
        return str(self.api.send(Request("GET", RESOURCES[plural].path(), {}))["metadata"]["resourceVersion"])

    def since(self, plural: str, version: str, last: Callable[[Object], bool]) -> list[Object]:
        """Every state that objects of a type were in after `version`, up to the first that `last` holds of."""
        states = []
        for event in self._watch(plural, version, time.monotonic() + PATIENCE_S):
            assert event["type"] != "ERROR", event["object"]
            states.append(event["object"])
            if last(event["object"]):
                return states
        pytest.fail(f"{plural}: the last state did not come within {PATIENCE_S:g} s")

    def _watch(self, plural: str, version: str, deadline: float) -> Iterator[Object]:
        left = max(deadline - time.monotonic(), 0.1)
        params = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(int(left) + 1)}
        headers = {"Authorization": f"Bearer {self.token}"}
        url = f"{self.url}{RESOURCES[plural].path()}"
        with httpx.stream("GET", url, params=params, headers=headers, timeout=httpx.Timeout(5, read=left)) as answer:
            try:
                for line in answer.iter_lines():
                    if line:
                        yield json.loads(line)
            except httpx.ReadTimeout:
                return

    def wait_for(self, plural: str, name: str, condition: Callable[[Object], Any], what: str) -> Any:
        """Waits until the object of that name fulfils the condition; the object."""

        def check(objects: list[Object]) -> Object | None:
            for obj in objects:
                if obj["metadata"]["name"] == name and condition(obj):
                    return obj
            return None

        return self.wait(plural, check, what)

    def wait_phase(self, pod: str, phase: str) -> Object:
        found: Object = self.wait_for(
            "pods", pod, lambda obj: obj.get("status", {}).get("phase") == phase, f"pod {pod} {phase}"
        )
        return found

    def wait_event(self, reason: str, about: str = "", text: str = "") -> Object:
        def check(events: list[Object]) -> Object | None:
            for event in events:
                same = event["reason"] == reason and event["involvedObject"]["name"].startswith(about)
                if same and text in (event.get("message") or ""):
                    return event
            return None

        found: Object = self.wait("events", check, f"event {reason} about {about or 'anything'}")
        return found

    def log(self, namespace: str, pod: str, container: str, **query: str) -> str:
        """The text of a container's log. Raises ApiError where there is none."""
        path = RESOURCES["pods"].path(namespace, pod, "log")
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = httpx.get(f"{self.url}{path}", params={"container": container, **query}, headers=headers, timeout=10)
        if answer.status_code >= 400:
            body = answer.json()
            raise ApiError(answer.status_code, body.get("reason", ""), body.get("message", ""))
        return answer.text

    def log_of(self, namespace: str, app: str, container: str) -> str:
        pods = self.all("pods", namespace, labelSelector=f"app={app}")
        return self.log(namespace, pods[0]["metadata"]["name"], container)

    def scheduler_lines(self) -> list[str]:
        """The scheduler's division lines, oldest first."""
        text = self.log_of("kai-scheduler", "kai-scheduler-default", "kai-scheduler-default")
        return [line for line in text.splitlines() if "Resource division result for queue <default-queue>" in line]

    def logs(self) -> tuple[ContainerLog, ...]:
        """Every container's log, with that of the attempt before where there is one."""
        found: list[ContainerLog] = []
        for pod in self.all("pods"):
            meta = pod["metadata"]
            for container in pod["spec"]["containers"]:
                where = (meta["namespace"], meta["name"], container["name"])
                texts = [self._log_or_none(*where, previous=previous) for previous in ("false", "true")]
                if texts[0] is not None or texts[1] is not None:
                    found.append(ContainerLog(*where, text=texts[0] or "", previous=texts[1]))
        return tuple(found)

    def _log_or_none(self, namespace: str, pod: str, container: str, previous: str) -> str | None:
        try:
            return self.log(namespace, pod, container, previous=previous)
        except ApiError:
            return None

    def evidence(self, resources: Iterable[str], *, crossing: str | None = None) -> Evidence:
        """What is to be seen now, as the evidence of every asset."""
        lists: dict[str, tuple[Object, ...]] = {}
        for name in resources:
            kind = RESOURCES[name]
            objects = self.all(name)
            lists[name] = tuple({"apiVersion": kind.api_version, "kind": kind.kind, **obj} for obj in objects)
        queue = {
            "apiVersion": "scheduling.run.ai/v2",
            "kind": "Queue",
            "metadata": {"name": "kai-lab-probe"},
            "spec": {"parentQueue": "default", "resources": {"gpu": {"quota": -1, "limit": -1}}},
        }
        probe = shared_pod("kai-lab-probe", {"gpu-memory": "20480"})
        seen = Observation(
            resources=lists,
            helm=tuple(helm.list_releases(self.url, self.token)),
            dryrun={"queue": self._dry_run(queue), "shared_pod": self._dry_run(probe)},
            logs=self.logs(),
        )
        return Evidence(
            backend="rehearsal",
            versions=VERSIONS,
            node=NODE,
            captured_at=datetime.now(timezone.utc),
            crossing=crossing,
            time_scale=SCALE,
            observations=dict.fromkeys(ASSETS, seen),
        )

    def _dry_run(self, obj: Object) -> Object:
        try:
            return self.create(obj, dry_run=True)
        except ApiError as error:
            return {"kind": "Status", "code": error.code, "reason": error.reason, "message": error.message}

    def accounting(self) -> list[str]:
        """The GPU parts of the scheduler's newest lines: for one cycle after a failed bind a pod counts as waiting."""
        return [line.partition("GPU: ")[2].partition(" CPU")[0] for line in self.scheduler_lines()[-5:]]

    # --- changing -----------------------------------------------------------------------------------------------

    def create(self, obj: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        return self.api.send(create_request(obj, "test", dry_run=dry_run))

    def patch(self, plural: str, name: str, patch: Any, namespace: str | None = None) -> Object:
        return self.api.send(patch_request(RESOURCES[plural], namespace, name, patch, "test"))

    def delete(self, plural: str, name: str, namespace: str | None = None) -> None:
        self.api.send(delete_request(RESOURCES[plural], namespace, name))

    def apply(self, file: str) -> None:
        for obj in yaml.safe_load_all((MANIFESTS / file).read_text()):
            meta = obj["metadata"]
            self.api.send(
                patch_request(
                    resource_of(obj),
                    meta.get("namespace"),
                    meta["name"],
                    obj,
                    "kai-lab",
                    content_type=APPLY_PATCH,
                    force=True,
                )
            )

    def install(self, release: str, chart: str, version: str, values: Mapping[str, Any], **more: Any) -> dict[str, str]:
        namespace = more.pop("namespace", release)
        return helm.install_or_upgrade(
            self.url,
            self.token,
            release=release,
            namespace=namespace,
            chart=chart,
            version=version,
            values=values,
            time_scale=SCALE,
            **more,
        )

    # --- the lab's steps ----------------------------------------------------------------------------------------

    def cluster(self) -> None:
        self.wait_for("nodes", NODE, node_ready, "node ready")

    def mock(self, version: str = "0.3.0", **values: Any) -> dict[str, str]:
        self.cluster()
        helm.provide_image(self.url, self.token, NODE, "nvml-mock:local")
        given = {"gpu.profile": "a100", "image.repository": "nvml-mock", "image.tag": "local", **values}
        return self.install("nvml-mock", MOCK, version, given, namespace="default")

    def labelled_gpus(self, count: int = 8) -> None:
        self.mock()
        self.wait_for("nodes", NODE, lambda node: labels(node).get("nvidia.com/gpu.present") == "true", "GPU label")
        self.apply("device-plugin.yaml")
        self.wait_for("nodes", NODE, lambda node: gpus(node) == str(count), f"{count} GPUs")
        self.label(memory="40960")

    def label(self, *, memory: str | None) -> None:
        """The lab's own labels; None takes the memory away."""
        own = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
        self.patch("nodes", NODE, {"metadata": {"labels": {**own, "nvidia.com/gpu.memory": memory}}})

    def kai(self, version: str = "v0.17.0", **values: Any) -> dict[str, str]:
        given = {"global.gpuSharing": True, "binder.plugins.hamicore.enabled": True, **values}
        return self.install("kai-scheduler", KAI, version, given)

    def kai_ready(self) -> None:
        self.wait("deployments", lambda found: set(COMPONENTS) <= available(found), "seven deployments available")
        self.wait_serving("queue-controller", "admission")

    def wait_serving(self, *services: str) -> None:
        def serving(found: list[Object]) -> bool:
            notes = {obj["metadata"]["name"]: obj["metadata"].get("annotations") or {} for obj in found}
            marks = [notes.get(name, {}).get("rehearsal.kai-lab/forward-to", "") for name in services]
            return all(mark.startswith("http") for mark in marks)

        self.wait("services", serving, f"{services} serving")

    def scheduling(self, **values: Any) -> None:
        """Everything up to the queues."""
        self.labelled_gpus()
        self.kai(**values)
        self.kai_ready()
        self.apply("queues.yaml")

    def isolation(self, handler: str = "runc", version: str = "1.1.0-chart") -> None:
        meta = {"name": "nvidia"}
        self.create({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": meta, "handler": handler})
        self.install("kai-resource-isolator", ISOLATOR, version, {"monitor.enabled": True})
        self.wait_serving("kai-resource-isolator-webhook")

    def shared_pod(self, name: str, memory: str) -> Object:
        return self.create(shared_pod(name, {"gpu-memory": memory}))


def shared_pod(name: str, annotations: Mapping[str, str], **limits: str) -> Object:
    container: Object = {"name": "app", "image": "busybox:1.37", "command": ["sleep", "3600"]}
    if limits:
        container["resources"] = {"limits": dict(limits)}
    meta = {"name": name, "namespace": "default", "annotations": dict(annotations)}
    spec = {"schedulerName": "kai-scheduler", "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def labels(obj: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = obj["metadata"].get("labels") or {}
    return found


def gpus(node: Object) -> str | None:
    amount: str | None = node["status"]["allocatable"].get("nvidia.com/gpu")
    return amount


def condition(obj: Object, kind: str) -> Mapping[str, Any]:
    for entry in (obj.get("status") or {}).get("conditions") or []:
        if entry["type"] == kind:
            found: Mapping[str, Any] = entry
            return found
    return {}


def node_ready(node: Object) -> bool:
    return bool(condition(node, "Ready").get("status") == "True")


def available(deployments: list[Object]) -> set[str]:
    return {obj["metadata"]["name"] for obj in deployments if condition(obj, "Available").get("status") == "True"}


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[Lab]:
    """A rehearsal in a folder of its own, gone afterwards."""
    handle = process.ensure(
        folder, name="kai-hami-test", options={"name": "kai-hami-test", "time_scale": SCALE, **options}, idle_stop_s=300
    )
    lab = Lab(handle)
    try:
        with lab.api:
            yield lab
    finally:
        process.stop(folder, forget=True)
