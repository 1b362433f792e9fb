"""Which logs are kept as evidence: what is in trouble and what its earlier attempt said, and no more than is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from kai_lab_pipeline.backends.base import Backend
from kai_lab_pipeline.clients.kubernetes import ApiError, Cluster
from kai_lab_pipeline.lab.evidence import ContainerLog
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.observe import Observer
from kai_lab_pipeline_tests.lab_project import make_project

RUNNING = {"ready": True, "state": {"running": {}}}
CRASHED = {"ready": False, "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
RECOVERED = {"ready": True, "restartCount": 1, "state": {"running": {}}}
STARTING = {"ready": False, "state": {"waiting": {"reason": "ContainerCreating"}}}
ENDED = {"ready": False, "state": {"terminated": {"exitCode": 0}}}
FAILED = {"ready": False, "state": {"terminated": {"exitCode": 1}}}
MOCK = {"app.kubernetes.io/name": "nvml-mock"}


def pod(
    namespace: str, name: str, labels: dict[str, str] | None = None, **containers: dict[str, Any]
) -> dict[str, Any]:
    """A pod with containers in these conditions; those called init... are init containers."""
    parts: dict[str, list[str]] = {"initContainers": [], "containers": []}
    for container in containers:
        parts["initContainers" if container.startswith("init") else "containers"].append(container)
    statuses = {
        f"{part.removesuffix('s')}Statuses": [{"name": name, "restartCount": 0, **containers[name]} for name in names]
        for part, names in parts.items()
    }
    spec = {part: [{"name": name} for name in names] for part, names in parts.items()}
    meta = {"namespace": namespace, "name": name, "labels": labels or {}}
    return {"metadata": meta, "spec": spec, "status": statuses}


class StandInCluster:
    """Gives pods, and logs of all containers but those that are being created; notes what it is asked for."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = pods
        self.asked: list[str] = []

    def incarnation(self) -> str:
        return "the cluster"

    def objects(self, resource: str, **_: Any) -> list[dict[str, Any]]:
        return list(self.pods) if resource == "pods" else []

    def find(self, *_: Any, **__: Any) -> None:
        return None

    def create(self, obj: dict[str, Any]) -> dict[str, Any]:
        return obj

    def apply(self, obj: dict[str, Any], **_: Any) -> dict[str, Any]:
        return obj

    def delete(self, *_: Any, **__: Any) -> bool:
        return True

    def logs(self, namespace: str, pod: str, container: str, *, previous: bool = False, tail: int | None = None) -> str:
        said = f"{namespace}/{pod}/{container}" + (" before" if previous else "")
        self.asked.append(said)
        if pod.startswith("creating"):
            raise ApiError("no", code=400, reason="BadRequest", message="waiting to start: ContainerCreating")
        return said


class StandInBackend:
    def releases(self) -> list[Any]:
        return []


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_project(tmp_path / "project").settings


def kept(settings: Settings, asset: str, cluster: StandInCluster, *, refused: bool = False) -> tuple[ContainerLog, ...]:
    with Observer(settings, cast(Backend, StandInBackend()), cast(Cluster, cluster), "run") as observer:
        return observer.observe(asset, refused=refused).logs


@pytest.mark.parametrize("asset", ["nvml_mock_release", "device_plugin"])
def test_a_mock_that_crash_loops_leaves_what_it_said_before_it_ended(settings: Settings, asset: str) -> None:
    theirs = pod("default", "their-app", c=CRASHED)
    cluster = StandInCluster(pod("default", "nvml-mock-x", MOCK, **{"nvml-mock": CRASHED}), theirs)
    (log,) = kept(settings, asset, cluster)
    assert log == ContainerLog(
        *("default", "nvml-mock-x", "nvml-mock"),
        "default/nvml-mock-x/nvml-mock",
        "default/nvml-mock-x/nvml-mock before",
    )


def test_a_mock_that_is_well_costs_no_request(settings: Settings) -> None:
    cluster = StandInCluster(pod("default", "nvml-mock-x", MOCK, **{"nvml-mock": RUNNING}))
    assert kept(settings, "nvml_mock_release", cluster) == ()
    assert cluster.asked == []


def test_the_attempt_before_is_kept_of_every_container_that_has_restarted(settings: Settings) -> None:
    space = settings.charts.kai_scheduler.namespace
    cluster = StandInCluster(
        pod(space, "admission", init_certs=FAILED, admission=STARTING),
        pod(space, "creating", c=STARTING),
        pod(space, "binder", init_done=ENDED, binder=RECOVERED),
        pod(space, "kai-operator", operator=RUNNING),
        pod("elsewhere", "x", c=CRASHED),
    )
    logs = {(log.pod, log.container): log.previous for log in kept(settings, "kai_release", cluster)}
    assert logs == {
        ("admission", "init_certs"): None,
        ("admission", "admission"): None,
        ("binder", "binder"): f"{space}/binder/binder before",
        ("kai-operator", "operator"): None,
    }


def test_what_crashes_beside_a_source_is_kept_once(settings: Settings) -> None:
    space = settings.charts.kai_scheduler.namespace
    cluster = StandInCluster(
        pod(space, "binder", {"app": "binder"}, binder=CRASHED),
        pod(space, "admission", {"app": "admission"}, admission=CRASHED),
        pod(space, "kai-operator", {"app": "kai-operator"}, operator=RUNNING),
    )
    logs = kept(settings, "whole_gpu_pod", cluster)
    assert sorted(log.pod for log in logs) == ["admission", "binder"]
    assert all(log.previous for log in logs)
    assert len(cluster.asked) == 4


@pytest.mark.parametrize(
    ("asset", "name"),
    [
        ("whole_gpu_pod", "kai-whole-gpu"),
        ("shared_gpu_pod", "gpu-sharing-with-isolation"),
        ("reservation_boundary", "gpu-sharing-with-isolation"),
    ],
)
def test_a_pod_of_the_lab_that_does_not_come_up_has_its_own_log(settings: Settings, asset: str, name: str) -> None:
    cluster = StandInCluster(pod("default", name, c=CRASHED), pod("default", "their-app", c=CRASHED))
    assert [(log.pod, log.previous) for log in kept(settings, asset, cluster)] == [(name, f"default/{name}/c before")]
    waiting = pod("default", name, c={})
    waiting["status"] = {"phase": "Pending"}
    for well in (pod("default", name, c=RUNNING), waiting):
        cluster = StandInCluster(well)
        assert kept(settings, asset, cluster) == ()
        assert cluster.asked == [], "nothing to be asked for"


@pytest.mark.parametrize(
    ("asset", "serving"),
    [
        ("queues", ["queue-controller"]),
        ("whole_gpu_pod", ["admission", "isolator-webhook"]),
        ("shared_gpu_pod", ["admission", "isolator-webhook"]),
    ],
)
def test_what_refused_an_object_tells_why(settings: Settings, asset: str, serving: list[str]) -> None:
    kai, isolator = settings.charts.kai_scheduler.namespace, settings.charts.kai_resource_isolator.namespace
    names = ("queue-controller", "admission", "podgroup-controller")
    pods = [pod(kai, f"{name}-x", {"app": name}, c=RUNNING) for name in names]
    cluster = StandInCluster(*pods, pod(isolator, "isolator-webhook-x", c=RUNNING))
    logs = kept(settings, asset, cluster, refused=True)
    assert sorted(log.pod.removesuffix("-x") for log in logs) == serving
    assert "admission-x" not in [log.pod for log in kept(settings, asset, cluster)]
