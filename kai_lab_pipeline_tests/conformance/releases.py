"""Chart releases with each major of the real helm, on the real API server and from the real registry.

What the lab does with releases must come out the same, whichever helm a person has; words that differ are matched by
the same known faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kai_lab_pipeline.backends.base import StepFacts
from kai_lab_pipeline.backends.releases import Releases
from kai_lab_pipeline.clients.helm import Helm
from kai_lab_pipeline.clients.kubernetes import Cluster
from kai_lab_pipeline.clients.process import Toolbox
from kai_lab_pipeline.clients.tools import Outcome, ToolError
from kai_lab_pipeline.settings import Chart
from kai_lab_pipeline_tests.conformance.control_plane import CONTEXT, ControlPlane

_DEADLINE_S = 60.0

_REFUSED = "refused: "
_TO_BE_REFUSED = frozenset({"a version that is not there", "a chart that is not there"})

Told = Mapping[str, str]
"""What was done -> what came of it."""


def told_by(helm: Path, plane: ControlPlane, chart: Chart, mirrors: Mapping[str, str], folder: Path) -> Told:
    """Take a release through its life with this helm, and say what came of each step. Raises LabError."""
    with _releases(helm, plane, mirrors, folder) as (releases, client):
        changed = chart.model_copy(update={"values": {**chart.values, "lane.changed": True}})
        steps: dict[str, Callable[[], Any]] = {
            "install": lambda: _facts(_install(releases, chart)),
            "the row": lambda: _row(client, chart),
            "install the same": lambda: _facts(_install(releases, chart)),
            "install with another value": lambda: _facts(_install(releases, changed)),
            "values": lambda: client.values(chart.release, chart.namespace),
            "install with the first values": lambda: _facts(_install(releases, chart)),
            "values are reset": lambda: client.values(chart.release, chart.namespace),
            "repair": lambda: _facts(_install(releases, chart, repair=True)),
            "history": lambda: [
                (row["revision"], row["status"]) for row in client.history(chart.release, chart.namespace)
            ],
            "roll back": lambda: client.rollback(chart.release, "1", chart.namespace, log=_quiet).exit_code,
            "a version that is not there": lambda: _install(releases, chart.model_copy(update={"version": "9.9.9"})),
            "a chart that is not there": lambda: _install(releases, _elsewhere(chart)),
            "uninstall": lambda: _facts(releases.uninstall(chart, _quiet)),
            "uninstall again": lambda: _facts(releases.uninstall(chart, _quiet)),
            "no row": lambda: _row(client, chart),
            "install a local chart": lambda: _facts(_install(releases, _local(folder, "1"))),
            "install the same local chart": lambda: _facts(_install(releases, _local(folder, "1"))),
            "install the local chart edited": lambda: _facts(_install(releases, _local(folder, "2"))),
            "what its revisions say": lambda: [row["description"] for row in client.history("local", "local")],
            "uninstall the local chart": lambda: _facts(releases.uninstall(_local(folder, "2"), _quiet)),
        }
        return {name: _come_of(step) for name, step in steps.items()}


def differences(told: Mapping[str, Told]) -> list[str]:
    """One line per step that came out differently with the helms of these names, or not as it has to with both."""
    (first, ours), *others = told.items()
    return [
        f"{step}: {ours[step]} with {first}, {theirs[step]} with {name}"
        for name, theirs in others
        for step in ours
        if ours[step] != theirs[step] or ours[step].startswith(_REFUSED) != (step in _TO_BE_REFUSED)
    ]


@contextmanager
def _releases(
    helm: Path, plane: ControlPlane, mirrors: Mapping[str, str], folder: Path
) -> Iterator[tuple[Releases, Helm]]:
    tools = Toolbox(folder / "running", transcripts=folder / "commands")

    def run(command: Sequence[str], **options: Any) -> Outcome:
        return tools.run([str(helm), *command[1:]], **options)

    client = Helm(run, kubeconfig=plane.kubeconfig, context=CONTEXT, home=folder / "helm", root=folder, mirrors=mirrors)
    try:
        yield Releases(client, Cluster(plane.kubeconfig, CONTEXT)), client
    finally:
        tools.end_all()


def _install(releases: Releases, chart: Chart, *, repair: bool = False) -> StepFacts:
    return releases.install(chart, _quiet, deadline_s=_DEADLINE_S, repair=repair)


def _facts(facts: StepFacts) -> str:
    told = {key: value for key, value in facts.facts.items() if key != "helm_seconds"}
    return f"{facts.summary}; changed {facts.changed}, {facts.attempts} attempts, {sorted(told.items())}"


def _row(client: Helm, chart: Chart) -> Any:
    row = client.find(chart.release, chart.namespace)
    return row and {name: row[name] for name in ("name", "namespace", "revision", "status", "chart", "app_version")}


def _elsewhere(chart: Chart) -> Chart:
    return chart.model_copy(update={"chart": f"{chart.chart}-of-nobody"})


def _local(folder: Path, content: str) -> Chart:
    """A chart folder of this machine with that content."""
    templates = folder / "ours" / "templates"
    templates.mkdir(parents=True, exist_ok=True)
    (templates.parent / "Chart.yaml").write_text("apiVersion: v2\nname: ours\nversion: 0.1.0\n", encoding="utf-8")
    config = f'apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: ours}}\ndata: {{content: "{content}"}}\n'
    (templates / "config.yaml").write_text(config, encoding="utf-8")
    return Chart(chart="ours", version="0.1.0", release="local", namespace="local")


def _come_of(step: Callable[[], Any]) -> str:
    try:
        return str(step())
    except ToolError as error:
        return f"{_REFUSED}{error.what} [{error.fault or error.cause}]"


def _quiet(line: str) -> None:
    """What helm says while it works is kept in its transcripts."""
