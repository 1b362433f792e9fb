"""A running UI is told of an edit, and of one that cannot be read it keeps what it has."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import dagster as dg
import pytest

from kai_lab_pipeline.automation.reload import PORT, reload_on_edit_sensor
from kai_lab_pipeline.automation.unfinished import PROCESS_TAG
from kai_lab_pipeline.definitions import build_definitions
from kai_lab_pipeline_tests.lab_project import LabProject, make_project

PATIENCE_S = 60.0


@pytest.fixture
def project(tmp_path: Path) -> LabProject:
    return make_project(tmp_path / "project")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue[dict[str, Any]]]:
    """What a UI on this machine is asked, in order."""
    questions: Queue[dict[str, Any]] = Queue()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            questions.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv(PORT, str(server.server_port))
        yield questions
        server.shutdown()
        thread.join()


def tick(sensor: dg.SensorDefinition, instance: dg.DagsterInstance) -> str:
    said = sensor(dg.build_sensor_context(instance=instance))
    assert isinstance(said, dg.SkipReason)
    return str(said.skip_message)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("manifests/shared-gpu-pod.yaml", '"20480"', '"10240"'),
        ("manifests/canary-pod.yaml", "kind: Pod", "kind: Pod  # edited"),
        ("lab.toml", '"binder.plugins.hamicore.enabled" = true', '"binder.plugins.hamicore.enabled" = false'),
    ],
)
def test_an_edit_is_read_again(
    project: LabProject, asked: Queue[dict[str, Any]], name: str, old: str, new: str
) -> None:
    sensor = reload_on_edit_sensor(project.settings, build_definitions)
    with dg.DagsterInstance.ephemeral() as instance:
        assert tick(sensor, instance) == "the project is as it was read"
        project.edit(name, old, new)
        run = dg.DagsterRun("build_lab", status=dg.DagsterRunStatus.STARTED)
        instance.add_run(run)
        assert "when the run that is at work has ended" in tick(sensor, instance)
        instance.add_run_tags(run.run_id, {PROCESS_TAG: "1 of a process that is gone"})
        assert tick(sensor, instance).endswith("the definitions are read again"), "nothing is at work any more"
    question = asked.get(timeout=PATIENCE_S)
    assert "reloadRepositoryLocation" in question["query"]
    assert question["variables"] == {"name": "kai_lab_pipeline"}
    assert asked.empty()


def test_an_edit_that_cannot_be_read_leaves_the_definitions_there_are(
    project: LabProject, asked: Queue[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = reload_on_edit_sensor(project.settings, build_definitions)
    with dg.DagsterInstance.ephemeral() as instance:
        project.edit("lab.toml", 'backend = "rehearsal"', 'bakend = "rehearsal"')
        assert "cannot be read" in tick(sensor, instance)
        assert "unknown key lab.bakend" in tick(sensor, instance)
        project.edit("lab.toml", 'bakend = "rehearsal"', 'backend = "rehearsal"  # as before')
        assert tick(sensor, instance) == "the project is as it was read"
        project.edit("manifests/queues.yaml", "kind: Queue", "kind: Queue  # edited")
        monkeypatch.delenv(PORT)
        assert 'press "Reload definitions"' in tick(sensor, instance)
    assert asked.empty()
