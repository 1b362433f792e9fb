"""The comparison of two versions of a chart as the real helm renders them: what a candidate's asset shows.

The second version is made here from the lane's own chart, with one change of each kind that must be found.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kai_lab_pipeline.clients.chart_archive import read_chart
from kai_lab_pipeline.clients.helm import Helm
from kai_lab_pipeline.clients.process import Toolbox
from kai_lab_pipeline.clients.tools import Outcome
from kai_lab_pipeline.lab.chart_diff import ChartContents, ChartDiff, compare_charts
from kai_lab_pipeline.lab.chart_values import judge_values
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline.settings import Chart
from kai_lab_pipeline_tests.conformance.registry import CHARTS

NEXT = "v0.99.0"
_NEWS = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kai-news}\ndata: {for: {{ .Release.Namespace }}}\n"
_CRD = """apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: news.kai.scheduler}
spec: {group: kai.scheduler, versions: [{name: v1, served: true, storage: true}]}
"""


@dataclass(frozen=True)
class _OneHelm:
    """Runs the helm of this path wherever helm is asked for."""

    helm: Path
    tools: Toolbox

    def __call__(self, command: Sequence[str], **options: Any) -> Outcome:
        return self.tools.run([str(self.helm), *command[1:]], **options)


def differences(helm: Path, chart: Chart, folder: Path) -> list[str]:
    """What the comparison of the lane's KAI chart with a changed one fails to say; empty when it says all of it.

    Raises LabError when helm does not render the charts.
    """
    source = CHARTS / chart.chart.rsplit("/", 1)[-1]
    changed = folder / "changed" / source.name
    shutil.copytree(source, changed)
    _change(changed)
    run = _OneHelm(helm, Toolbox(folder / "running"))
    client = Helm(run, kubeconfig=folder / "no-kubeconfig", context="none", home=folder / "helm", root=folder)
    pinned = _contents(client, chart, source)
    new = _contents(client, chart.model_copy(update={"version": NEXT}), changed)
    same = compare_charts(pinned, pinned, chart.values)
    found = [] if same.empty else [f"a chart differs from itself: {same.text()}"]
    return [*found, *_missing(compare_charts(pinned, new, chart.values), chart)]


def _change(chart: Path) -> None:
    """What a release of a chart may bring: a renamed value, other images, a new object, a new CRD."""
    for file in [path for path in chart.rglob("*") if path.is_file()]:
        text = file.read_text(encoding="utf-8").replace("gpuSharing: false", 'gpuSharingMode: "Disabled"')
        text = text.replace("toJson $global.gpuSharing }}", 'ne $global.gpuSharingMode "Disabled" }}')
        file.write_text(text.replace("v0.17.0", NEXT), encoding="utf-8")
    (chart / "templates" / "news.yaml").write_text(_NEWS, encoding="utf-8")
    (chart / "crds").mkdir()
    (chart / "crds" / "news.yaml").write_text(_CRD, encoding="utf-8")


def _contents(client: Helm, chart: Chart, folder: Path) -> ChartContents:
    return replace(read_chart(folder), objects=tuple(client.template(chart, folder)))


def _missing(diff: ChartDiff, chart: Chart) -> Iterator[str]:
    finding = judge_values(diff, chart.values)
    if finding.verdict is not Verdict.BROKEN or "The nearest key there is global.gpuSharingMode" not in finding.message:
        yield f"the renamed value is {finding.verdict}: {finding.message}"
    text = diff.text()
    for line in (
        "~ Config kai-config admission.gpuSharing: true -> false",
        f"/operator:v0.17.0 -> ghcr.io/kai-scheduler/kai-scheduler/operator:{NEXT}",
        "+ ConfigMap kai-news",
        "+ news.kai.scheduler: v1*",
    ):
        if line not in text:
            yield f"the difference lacks {line!r}:\n{text}"
