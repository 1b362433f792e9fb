"""``python -m kai_lab_pipeline_tests.conformance``: the API suite and the graph, on the rehearsal and for real.

Exit codes: 0 when both agree (or, without ``--required``, when the lane cannot run here), 1 where they differ,
3 where something could not be built or started.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline_tests.conformance import chart_rendering, graph, objects, releases, suite
from kai_lab_pipeline_tests.conformance.control_plane import CONTEXT, ControlPlane, control_plane
from kai_lab_pipeline_tests.conformance.registry import ChartFailed, push_charts, registry, rendered_charts
from kai_lab_pipeline_tests.conformance.services import ServiceFailed
from kai_lab_pipeline_tests.conformance.toolchain import (
    Binaries,
    BuildFailed,
    LaneUnavailable,
    binaries,
    kubernetes_version,
)

_PROBLEMS = (LabError, BuildFailed, ServiceFailed, ChartFailed, suite.SuiteFailed, graph.GraphFailed)


def say(text: str) -> None:
    print(f"conformance: {text}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kai_lab_pipeline_tests.conformance", description=__doc__)
    parser.add_argument("--required", action="store_true", help="fail where the lane cannot run, instead of skipping")
    parts = ("build", "charts", "suite", "objects", "releases", "graph")
    parser.add_argument("--only", choices=parts, help="one part of the lane")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    try:
        programs = binaries(say)
        if options.only == "build":
            say(f"built: {', '.join(str(path) for path in vars(programs).values())}")
            return 0
        code = _run(programs, options.only)
    except LaneUnavailable as error:
        say(f"{'cannot run' if options.required else 'skipped'}: {error}")
        return 3 if options.required else 0
    except _PROBLEMS as error:
        say(str(error))
        return 3
    say(f"{'the servers agree' if code == 0 else 'the servers differ'}, {time.monotonic() - started:.0f} s")
    return code


def _run(programs: Binaries, only: str | None) -> int:
    with tempfile.TemporaryDirectory(prefix="kai-lab-conformance-") as name:
        folder = Path(name)
        found = _compare_charts(programs, folder) if only in (None, "charts") else []
        if only == "charts":
            return _told(found)
        with control_plane(programs, folder / "control-plane") as plane:
            say(f"kube-apiserver {kubernetes_version()} is ready at {plane.url}")
            if only in (None, "suite"):
                found += _compare_suite(plane, folder)
            if only in (None, "objects"):
                found += _compare_objects(programs, plane, folder)
            if only in (None, "releases"):
                found += _compare_helms(programs, plane, folder)
            if only in (None, "graph"):
                found += _compare_graph(programs, plane, folder)
    return _told(found)


def _told(found: list[str]) -> int:
    for line in found:
        say(f"DIFFERENT {line}")
    return 1 if found else 0


def _compare_charts(programs: Binaries, folder: Path) -> list[str]:
    [kai] = [chart for chart in graph.charts() if chart.release == "kai-scheduler"]
    found = []
    for helm in (programs.helm, programs.helm4):
        found += chart_rendering.differences(helm, kai, folder / f"charts-compared-{helm.parent.name}")
    say(
        f"two charts by the real helm:   {'compared as they should be' if not found else 'not compared as they should'}"
    )
    return found


def _compare_suite(plane: ControlPlane, folder: Path) -> list[str]:
    ours = suite.run_suite("rehearsal", None, folder)
    theirs = suite.run_suite("kube-apiserver", plane.kubeconfig, folder)
    say(f"API suite on the rehearsal:    {suite.counted(ours)}")
    say(f"API suite on kube-apiserver:   {suite.counted(theirs)}")
    return suite.differences(ours, theirs)


def _compare_objects(programs: Binaries, plane: ControlPlane, folder: Path) -> list[str]:
    rendered = rendered_charts(programs.helm, graph.charts(), folder / "rendered")
    lab = objects.lab_objects(graph.PROJECT / "manifests", rendered)
    alike, found = objects.compare(plane.kubeconfig, lab, folder)
    say(f"the lab's objects:             {alike} of {len(lab)} alike on both")
    if not lab:
        found.append("the lab's manifests and charts have no object")
    return found


def _compare_helms(programs: Binaries, plane: ControlPlane, folder: Path) -> list[str]:
    told = {}
    chart = graph.charts()[0]
    with registry(folder / "helms") as address:
        push_charts(programs.helm, address, [chart], folder / "helms")
        mirrors = json.loads(graph.mirrors(address))
        for name, helm in (("helm 3", programs.helm), ("helm 4", programs.helm4)):
            told[name] = releases.told_by(helm, plane, chart, mirrors, folder / name)
    found = releases.differences(told)
    alike = len(told["helm 3"]) - len(found)
    say(f"a release's life:              {alike} of {len(told['helm 3'])} steps alike with helm 3 and helm 4")
    return found


def _compare_graph(programs: Binaries, plane: ControlPlane, folder: Path) -> list[str]:
    project = graph.make_project(folder / "project")
    ours = graph.run_graph(project, "rehearsal", {"KAI_LAB_NAME": "rehearsed"})
    with registry(folder / "registry") as address, graph.simulated_node(plane, folder):
        push_charts(programs.helm, address, graph.charts(), folder / "registry")
        say(f"the lab's charts are at {address}")
        theirs = graph.run_graph(
            project,
            "context",
            {
                "KAI_LAB_NAME": graph.LAB,
                "KAI_LAB_CONTEXT": CONTEXT,
                "KAI_LAB_KUBECONFIG": str(plane.kubeconfig),
                "KAI_LAB_MIRRORS": graph.mirrors(address),
            },
            tools=programs.helm.parent,
        )
    say(f"graph on the rehearsal:        {graph.counted(ours)}")
    say(f"graph on kube-apiserver:       {graph.counted(theirs)}")
    return graph.differences(ours, theirs)


if __name__ == "__main__":
    sys.exit(main())
