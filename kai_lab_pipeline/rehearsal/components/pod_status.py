"""What the kubelet knows of a pod, and how it reports that as the pod's status."""

from __future__ import annotations

from dataclasses import dataclass, field

from kai_lab_pipeline.rehearsal import profiles
from kai_lab_pipeline.rehearsal.client import Object
from kai_lab_pipeline.rehearsal.components.node import NODE_IP, canonical_image
from kai_lab_pipeline.rehearsal.components.runtime import now


@dataclass
class ContainerState:
    """What the kubelet knows of one container."""

    spec: Object
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last: Object = field(default_factory=dict)
    container_id: str = ""
    restarts: int = 0
    ready: bool = False
    started: bool = False

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def attempt(self) -> int:
        """Number of the newest attempt that was started: names its log file."""
        return self.restarts


@dataclass
class PodState:
    """A pod with its sandbox and containers."""

    containers: list[ContainerState]
    generation: int = 1
    ip: str | None = None
    sandbox: bool = False
    start_time: str = field(default_factory=now)
    phase: str = "Pending"
    times: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Status and time of the last change of each condition."""
    explained: set[str] = field(default_factory=set)
    """Conditions that were reported with a reason."""

    def adopt(self, status: Object) -> None:
        """Takes over what an earlier run of this kubelet reported: running containers still run."""
        self.start_time = status.get("startTime") or self.start_time
        self.ip = status.get("podIP")
        self.sandbox = self.ip is not None
        self.phase = status.get("phase") or "Pending"
        for condition in status.get("conditions") or []:
            self.times[condition["type"]] = (condition["status"], condition.get("lastTransitionTime") or now())
            if condition.get("reason"):
                self.explained.add(condition["type"])
        known = {entry["name"]: entry for entry in status.get("containerStatuses") or []}
        for container in self.containers:
            entry = known.get(container.name)
            if entry is not None:
                container.state = entry.get("state") or container.state
                container.last = entry.get("lastState") or {}
                container.restarts = int(entry.get("restartCount") or 0)
                container.container_id = entry.get("containerID") or ""
                container.ready = bool(entry.get("ready"))
                container.started = bool(entry.get("started"))

    def status(self) -> Object:
        """The pod's status as the kubelet sees it now."""
        status: Object = {
            "phase": self.phase,
            "conditions": self._conditions(),
            "containerStatuses": [_container_status(c) for c in self.containers],
            "hostIP": NODE_IP,
            "hostIPs": [{"ip": NODE_IP}],
            "observedGeneration": self.generation,
            "startTime": self.start_time,
        }
        if self.ip and self.phase in ("Pending", "Running"):
            status |= {"podIP": self.ip, "podIPs": [{"ip": self.ip}]}
        return status

    def _conditions(self) -> list[Object]:
        unready = [c.name for c in self.containers if not c.ready]
        done = self.phase == "Succeeded"
        conditions = [
            self._condition("PodReadyToStartContainers", self.sandbox and self.phase in ("Pending", "Running")),
            self._condition("Initialized", True, "PodCompleted" if done else None),
        ]
        for kind in ("Ready", "ContainersReady"):
            condition = self._condition(kind, not unready, "PodCompleted" if done else None)
            if unready and not done:
                condition |= {
                    "reason": "ContainersNotReady",
                    "message": f"containers with unready status: [{' '.join(unready)}]",
                }
                self.explained.add(kind)
            conditions.append(condition)
        conditions.append(self._condition("PodScheduled", True))
        return conditions

    def _condition(self, kind: str, value: bool, reason: str | None = None) -> Object:
        text = "True" if value else "False"
        known = self.times.get(kind)
        if known is None or known[0] != text:
            known = self.times[kind] = (text, now())
        condition: Object = {
            "type": kind,
            "status": text,
            "lastProbeTime": None,
            "lastTransitionTime": known[1],
            "observedGeneration": self.generation,
        }
        if reason is not None:
            condition["reason"] = reason
        elif kind in self.explained:
            # A strategic merge keeps what it does not name: a condition that holds again must drop its old reason.
            condition |= {"reason": None, "message": None}
        return condition


def _container_status(container: ContainerState) -> Object:
    spec = container.spec
    image = str(spec["image"])
    status: Object = {
        "name": container.name,
        "image": canonical_image(image) if container.container_id else image,
        "imageID": profiles.image_id(image) if container.container_id else "",
        "lastState": container.last,
        "ready": container.ready,
        "restartCount": container.restarts,
        "started": container.started,
        "state": container.state,
    }
    mounts = [
        {key: mount[key] for key in ("mountPath", "name", "readOnly") if key in mount}
        | ({"recursiveReadOnly": "Disabled"} if mount.get("readOnly") else {})
        for mount in spec.get("volumeMounts") or []
    ]
    if mounts:
        status["volumeMounts"] = mounts
    if container.container_id:
        resources = spec.get("resources") or {}
        status |= {"containerID": container.container_id, "resources": resources}
        if resources.get("requests"):
            status["allocatedResources"] = resources["requests"]
    return status
