"""The simulated components after the process was killed: what ran still runs, what was under way goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from kai_lab_pipeline.rehearsal import process
from kai_lab_pipeline_tests.rehearsal_lab import NODE, SCALE, Lab, gpus, shared_pod

OPTIONS = {"name": "kai-hami-test", "time_scale": SCALE}


def start(folder: Path, **more: object) -> Lab:
    return Lab(process.ensure(folder, name="kai-hami-test", options={**OPTIONS, **more}, idle_stop_s=300))


def test_a_killed_rehearsal_goes_on_where_it_was(tmp_path: Path) -> None:
    try:
        lab = start(tmp_path)
        lab.scheduling()
        lab.isolation()
        lab.create(shared_pod("whole", {}, **{"nvidia.com/gpu": "1"}))
        before = lab.wait_phase("whole", "Running")
        lab.apply("shared-gpu-pod.yaml")
        lab.wait_event("Scheduled", "gpu-sharing-with-isolation")
        lab.api.close()
        found = process.find(tmp_path)
        assert found is not None
        os.kill(found.pid, signal.SIGKILL)
        os.waitpid(found.pid, 0)

        lab = start(tmp_path)
        lab.wait_serving("admission", "queue-controller", "kai-resource-isolator-webhook")
        lab.wait_event("BindingError", "gpu-sharing-with-isolation")
        lab.create(shared_pod("after", {}, **{"nvidia.com/gpu": "1"}))
        lab.wait_phase("after", "Running")
        after = lab.get("pods", "whole", "default")
        assert after is not None
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
        node = lab.get("nodes", NODE)
        assert node is not None
        assert gpus(node) == "8"
        lab.api.close()

        lab = start(tmp_path, faults={"scheduler_silent": True})
        lab.wait_serving("admission")
        lab.create(shared_pod("unseen", {}))
        lab.wait_for(
            "pods", "unseen", lambda pod: "pod-group-name" in pod["metadata"].get("annotations", {}), "grouped"
        )
        assert not [e for e in lab.all("events", "default") if e["involvedObject"]["name"] == "unseen"]
        lab.api.close()
    finally:
        process.stop(tmp_path, forget=True)
