"""Runs the lab's graph twice, on the rehearsal and on the real API server, and compares what it claims."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kai_lab_pipeline.clients.kubernetes import Cluster
from kai_lab_pipeline.clients.mirrors import registry_of
from kai_lab_pipeline.lab.spec import CHECKS
from kai_lab_pipeline.lab.verdict import Boundary, Verdict
from kai_lab_pipeline.rehearsal.helm import provide_image
from kai_lab_pipeline.settings import Chart, load_settings
from kai_lab_pipeline_tests.conformance import node
from kai_lab_pipeline_tests.conformance.control_plane import CONTEXT, ControlPlane
from kai_lab_pipeline_tests.conformance.services import service

PROJECT = Path(__file__).resolve().parents[2]
LAB = "conformance"
NODE = f"{LAB}-control-plane"
BOUNDARY, RUN = "boundary", "kai-lab run"
"""What is compared beside the checks: how the boundary came out, and how the command that printed it all ended."""
_WELL = frozenset({str(Verdict.HELD), str(Verdict.NOT_REACHABLE)})
_START_S = 60.0
_RUN_S = 900.0

Verdicts = Mapping[str, str]
"""``asset.check``, `BOUNDARY` or `RUN` -> verdict."""


class GraphFailed(Exception):
    """kai-lab did not print claims; the text holds its last lines."""


def make_project(folder: Path) -> Path:
    """A project like this one, whose labs and history are its own."""
    folder.mkdir(parents=True)
    for name in ("lab.toml", "dagster.yaml", "workspace.yaml"):
        shutil.copy(PROJECT / name, folder)
    shutil.copytree(PROJECT / "manifests", folder / "manifests")
    return folder


@contextlib.contextmanager
def simulated_node(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Run the simulated components on a control plane, with the mock's image on their node as a person preloads it."""
    command = [sys.executable, "-m", node.__name__, plane.url, str(folder / "node")]
    environment = {node.TOKEN_VARIABLE: plane.token, "PYTHONPATH": str(PROJECT)}
    with service("node", command, folder, environment) as running:
        cluster = Cluster(plane.kubeconfig, CONTEXT)
        running.wait_ready(lambda: _not_ready(cluster), _START_S)
        provide_image(plane.url, plane.token, NODE, load_settings(PROJECT, environ={}).image.nvml_mock.name)
        yield


def charts() -> list[Chart]:
    """The lab's chart releases, as lab.toml pins them."""
    return [*load_settings(PROJECT, environ={}).charts.by_component().values()]


def mirrors(address: str) -> str:
    """KAI_LAB_MIRRORS that sends every registry of the lab's charts to a plain registry at `address`."""
    return json.dumps({registry_of(chart.chart): f"http://{address}" for chart in charts()})


def run_graph(project: Path, backend: str, settings: Mapping[str, str], *, tools: Path | None = None) -> Verdicts:
    """Materialise the whole lab with ``kai-lab run``, give its verdicts, and take the lab down again.

    `settings` are the lab's, as KAI_LAB_... variables; `tools` is a folder of programs to find before all others.
    Raises GraphFailed where there are no claims to compare.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KAI_LAB_")}
    environment |= {"KAI_LAB_PROJECT": str(project), "PYTHONPATH": str(PROJECT), **settings}
    if tools is not None:
        environment["PATH"] = os.pathsep.join((str(tools), environment.get("PATH", os.defpath)))
    done = _kai_lab(project, environment, "run", "--backend", backend, "--json")
    down = _kai_lab(project, environment | {"KAI_LAB_BACKEND": backend}, "down")
    try:
        found = verdicts(json.loads(done.stdout), done.returncode)
    except ValueError as error:
        raise GraphFailed(f"kai-lab run --backend {backend} ended with {done.returncode} and no claims") from error
    if down.returncode != 0:
        raise GraphFailed(f"kai-lab down ended with {down.returncode}:\n{down.stdout}")
    return found


def _kai_lab(project: Path, environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kai_lab_pipeline.cli", *arguments]
    try:
        return subprocess.run(
            command, env=environment, cwd=project, stdout=subprocess.PIPE, text=True, check=False, timeout=_RUN_S
        )
    except subprocess.TimeoutExpired as error:
        raise GraphFailed(f"kai-lab {' '.join(arguments)} did not end within {_RUN_S:.0f} s") from error


def verdicts(judgement: Mapping[str, Any], exit_code: int) -> Verdicts:
    """The verdict of each check in what ``kai-lab run --json`` printed before it ended."""
    checks = [check for claim in judgement["claims"] for check in claim["checks"]]
    return {f"{check['asset']}.{check['check']}": str(check["verdict"]) for check in checks} | {
        BOUNDARY: str(judgement["boundary"]),
        RUN: f"exit code {exit_code}",
    }


def differences(rehearsal: Verdicts, real: Verdicts) -> list[str]:
    """One line per check of the lab whose verdict depends on the API server below it, or is well on neither.

    Two graphs that could not be run agree about nothing.
    """
    checks = {f"{asset}.{check.name}" for asset, specs in CHECKS.items() for check in specs}
    well = {BOUNDARY: {str(Boundary.EXPECTED)}, RUN: {"exit code 0"}}
    lines = []
    for name in sorted({*checks, *well, *rehearsal, *real}):
        ours, theirs = rehearsal.get(name, "not judged"), real.get(name, "not judged")
        if ours != theirs or ours not in well.get(name, _WELL):
            lines.append(f"{name}: {ours} on the rehearsal, {theirs} on kube-apiserver")
    return lines


def counted(found: Verdicts) -> str:
    """Such as `40 held, 2 not_reachable, boundary expected`."""
    count = Counter(verdict for name, verdict in found.items() if name not in (BOUNDARY, RUN))
    return ", ".join([*(f"{count[verdict]} {verdict}" for verdict in sorted(count)), f"boundary {found[BOUNDARY]}"])


def _not_ready(cluster: Cluster) -> str | None:
    found = cluster.find("nodes", NODE)
    if found is None:
        return f"there is no node {NODE}"
    conditions = (found.get("status") or {}).get("conditions") or ()
    ready = any((entry.get("type"), entry.get("status")) == ("Ready", "True") for entry in conditions)
    return None if ready else f"node {NODE} is not Ready"
