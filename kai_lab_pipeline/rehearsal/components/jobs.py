"""The job controller: runs a pod to its end, again while it fails."""

from __future__ import annotations

from collections.abc import Callable

from kai_lab_pipeline.rehearsal.client import Object
from kai_lab_pipeline.rehearsal.components.informers import Key
from kai_lab_pipeline.rehearsal.components.runtime import Sim, now
from kai_lab_pipeline.rehearsal.components.workloads import WorkloadController, owner_keys


class JobController(WorkloadController):
    name = "job-controller"

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self.jobs = self.watch("jobs")
        self.watch("pods", owner_keys("Job"))

    async def reconcile(self, key: Key) -> None:
        found = self.jobs.get(*key)
        if found is None or found["metadata"].get("deletionTimestamp"):
            return
        status = found.get("status") or {}
        if any(entry["type"] in ("Complete", "Failed") for entry in status.get("conditions") or []):
            return
        pods = self.pods_of(found)
        succeeded = sum((pod.get("status") or {}).get("phase") == "Succeeded" for pod in pods)
        failed = sum((pod.get("status") or {}).get("phase") == "Failed" for pod in pods)
        if succeeded:
            done = {
                "status": "True",
                "reason": "CompletionsReached",
                "message": "Reached expected number of succeeded pods",
                "lastProbeTime": now(),
                "lastTransitionTime": now(),
            }
            conditions = [{"type": kind, **done} for kind in ("SuccessCriteriaMet", "Complete")]
            patch = {"succeeded": 1, "active": None, "ready": 0, "conditions": conditions, "completionTime": now()}
            await self.set_status(found, patch)
            await self.sim.recorder.record(found, "Normal", "Completed", "Job completed", self.name)
            return
        if failed > int(found["spec"].get("backoffLimit", 6)):
            reached = "Job has reached the specified backoff limit"
            condition = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": reached}
            entry = {**condition, "lastProbeTime": now(), "lastTransitionTime": now()}
            await self.set_status(found, {"failed": failed, "active": None, "conditions": [entry]})
            await self.sim.recorder.record(found, "Warning", "BackoffLimitExceeded", reached, self.name)
            return
        if len(pods) == failed:
            await self.make_pod(found, _label_job_pod(found))
        started = status.get("startTime") or now()
        await self.set_status(found, {"active": 1, "ready": 0, "failed": failed or None, "startTime": started})


def _label_job_pod(job: Object) -> Callable[[Object], None]:
    def label(pod: Object) -> None:
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        own = {"batch.kubernetes.io/job-name": name, "job-name": name, "batch.kubernetes.io/controller-uid": uid}
        pod["metadata"]["labels"] |= own
        pod["spec"].setdefault("restartPolicy", "Never")

    return label
