"""Before a cluster is touched: a candidate's charts against the pinned ones, with the values that the lab sets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kai_lab_pipeline.clients.chart_archive import read_chart
from kai_lab_pipeline.clients.oci import OciClient
from kai_lab_pipeline.clients.oci_errors import NotAChart, RegistryError, RegistryNotFound
from kai_lab_pipeline.lab.chart_diff import ChartContents, compare_charts
from kai_lab_pipeline.lab.chart_values import judge_values, not_compared, unmoved
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.lab.spec import RELEASED, VALUES_HAVE_EFFECT
from kai_lab_pipeline.lab.verdict import CheckResult, Finding
from kai_lab_pipeline.settings import Chart, Settings
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.nights import Comparison, Nights


@contextmanager
def with_registry(settings: Settings) -> Iterator[Settings]:
    """Settings whose charts can be asked for: the rehearsal brings a registry of its own on loopback.

    A registry that the person names as a mirror is used as it is, on the rehearsal too.
    """
    if settings.lab.backend != "rehearsal" or settings.mirrors:
        yield settings
        return
    from kai_lab_pipeline.rehearsal.registry import lab_registry, mirrors, serve

    with serve(lab_registry()) as url:
        yield settings.model_copy(update={"mirrors": mirrors(url)})


def compare_chart(lab: Lab, component: str) -> Comparison:
    """Compare a candidate's chart with the pinned one and keep what was found; what could not be asked is kept too."""
    assert lab.candidate is not None
    pinned = lab.project_settings.charts.by_component()[component]
    new = lab.settings.charts.by_component()[component]
    try:
        with (
            with_registry(lab.project_settings) as settings,
            OciClient.from_settings(settings) as client,
            tempfile.TemporaryDirectory(prefix="kai-lab-charts-") as folder,
        ):
            diff = compare_charts(
                _contents(lab, client, pinned, Path(folder) / "pinned"),
                _contents(lab, client, new, Path(folder) / "new"),
                dict(pinned.values),
            )
    except LabError as error:
        # What is not there, or is no chart, will be neither in another night; nor will a local chart mend itself.
        lost = isinstance(error, RegistryError) and not isinstance(error, RegistryNotFound | NotAChart)
        found = Comparison.of(lab.run_id, not_compared(_name(new), new.version, error.what), lost=lost)
    else:
        found = Comparison.of(lab.run_id, judge_values(diff, pinned.values), diff.text())
    Nights(lab.project_settings).add_comparison(lab.candidate.version_set.key, component, found)
    return found


def compared(lab: Lab, component: str) -> Comparison | None:
    """What this run found when it compared the component's charts; None when it has not."""
    if lab.candidate is None:
        return None
    found = Nights(lab.project_settings).load(lab.candidate.version_set.key).comparisons.get(component)
    return found if found is not None and found.run_id == lab.run_id else None


def compare_the_rest(lab: Lab, *, look: bool) -> None:
    """Compare what no step came to, so that a version set is judged by its charts whatever its cluster did.

    Without `look` nothing is asked: where the infrastructure failed, asking once more only costs time.
    """
    for component in RELEASED:
        if look and _moves(lab, component) and compared(lab, component) is None:
            compare_chart(lab, component)


def values_result(lab: Lab, component: str) -> CheckResult:
    """The check `values_have_effect` of a component's release, from what this run compared. Excuses count."""
    found = compared(lab, component)
    result = CheckResult(RELEASED[component], VALUES_HAVE_EFFECT, _finding(lab, component, found))
    return lab.excused(result)


def values_results(lab: Lab) -> tuple[CheckResult, ...]:
    """The check of every release of a candidate."""
    return tuple(values_result(lab, component) for component in RELEASED)


def _finding(lab: Lab, component: str, found: Comparison | None) -> Finding:
    chart = lab.settings.charts.by_component()[component]
    if not _moves(lab, component):
        return unmoved(_name(chart), chart.version)
    return found.finding if found is not None else not_compared(_name(chart), chart.version, "the run ended before it")


def _moves(lab: Lab, component: str) -> bool:
    return lab.candidate is not None and component in lab.candidate.version_set.moved


def _name(chart: Chart) -> str:
    return chart.chart.rstrip("/").rpartition("/")[2]


def _contents(lab: Lab, client: OciClient, chart: Chart, folder: Path) -> ChartContents:
    """What a chart contains, with the objects that the backend's helm renders where there is one."""
    if chart.chart.startswith("oci://"):
        folder.mkdir()
        archive = client.pull_chart(chart.chart, chart.version, folder)
    else:
        archive = lab.settings.project_file(chart.chart)
    contents = read_chart(archive)
    try:
        return replace(contents, objects=tuple(lab.backend.render(chart, archive)))
    except LabError as error:
        return replace(contents, unrendered=error.what.rstrip("."))
