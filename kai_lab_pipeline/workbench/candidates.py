"""A candidate: a lab of its own for another version set, and how its charts differ from the pinned ones."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kai_lab_pipeline.clients.chart_archive import read_chart
from kai_lab_pipeline.clients.oci import OciClient
from kai_lab_pipeline.lab.chart_diff import ChartContents, ChartDiff, compare_charts
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.lab.morning import Summary, morning_summary
from kai_lab_pipeline.lab.verdict import Judgement
from kai_lab_pipeline.lab.verdict_record import VerdictRecord, record_of
from kai_lab_pipeline.lab.version_matrix import Matrix, build_matrix
from kai_lab_pipeline.lab.version_sets import VersionSet
from kai_lab_pipeline.report.matrix import MatrixFiles, write_matrix
from kai_lab_pipeline.settings import Chart, Settings
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.nights import Nights, StoredSet
from kai_lab_pipeline.workbench.state import now, write_atomic
from kai_lab_pipeline.workbench.steps import build_living_lab
from kai_lab_pipeline.workbench.teardown import tear_down


def candidate_settings(settings: Settings, stored: StoredSet) -> Settings:
    """The project's settings with the versions of a candidate, and a lab name of its own. Raises WrongUse."""
    version_set = stored.version_set
    if settings.lab.backend == "context":
        raise WrongUse(
            "A candidate needs a cluster of its own, and backend 'context' gives it none",
            where=f"version set {version_set.key}",
            next_step="Use backend rehearsal or kind for candidates (KAI_LAB_BACKEND=kind).",
        )
    charts = {
        component: chart.model_copy(
            update={
                "version": version_set.versions.get(component, chart.version),
                "chart": stored.charts.get(component, chart.chart),
            }
        )
        for component, chart in settings.charts.by_component().items()
    }
    image = settings.image.nvml_mock
    if "nvml_mock" in version_set.moved:
        image = image.model_copy(update={"git_ref": f"v{version_set.versions['nvml_mock'].removeprefix('v')}"})
    return settings.model_copy(
        update={
            "lab": settings.lab.model_copy(update={"name": version_set.key}),
            "charts": settings.charts.model_copy(update=charts),
            "image": settings.image.model_copy(update={"nvml_mock": image}),
        }
    )


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


def chart_differences(settings: Settings, version_set: VersionSet, charts: Mapping[str, str]) -> dict[str, ChartDiff]:
    """How the chart of each moved component differs from the pinned one. Raises LabError when one cannot be read."""
    found = {}
    with OciClient.from_settings(settings) as client, tempfile.TemporaryDirectory(prefix="kai-lab-charts-") as folder:
        for component in version_set.moved:
            pinned = settings.charts.by_component().get(component)
            if pinned is None:
                continue  # the device plugin is a manifest, not a chart
            version = version_set.versions[component]
            new = pinned.model_copy(update={"version": version, "chart": charts.get(component, pinned.chart)})
            found[component] = compare_charts(
                _contents(client, pinned, Path(folder)), _contents(client, new, Path(folder)), dict(pinned.values)
            )
    return found


def _contents(client: OciClient, chart: Chart, folder: Path) -> ChartContents:
    if not chart.chart.startswith("oci://"):
        return read_chart(Path(chart.chart))
    target = folder / f"{chart.release}-{chart.version}"
    target.mkdir(exist_ok=True)
    return read_chart(client.pull_chart(chart.chart, chart.version, target))


def before_upgrade(lab: Lab) -> None:
    """Build the pinned lab on the candidate's cluster, once, for the upgrade to meet it alive. Raises LabError."""
    marker = lab.state.folder / "living"
    incarnation = lab.backend.connect().incarnation()
    if marker.exists() and marker.read_text(encoding="utf-8") == incarnation:
        return
    lab.log("building the pinned lab first, for the upgrade to meet it alive")
    charts = lab.project_settings.charts
    pinned = lab.settings.model_copy(update={"charts": charts, "image": lab.project_settings.image})
    build_living_lab(Lab(pinned, lab.run_id, lab.log, lab.gates))
    write_atomic(marker, incarnation)


def conclude(lab: Lab, judgement: Judgement) -> VerdictRecord:
    """Keep the verdict of a candidate's run in the durable store. Raises WrongUse for a lab that is no candidate's."""
    if lab.candidate is None:
        raise WrongUse(f"Lab {lab.state.name!r} is no candidate's")
    causes = [str(step["error"]) for step in lab.steps().values() if step.get("infrastructure")]
    record = record_of(
        judgement,
        lab.candidate.version_set,
        at=now(),
        run_id=lab.run_id,
        crossing=lab.expectations.crossing,
        evidence=f"{lab.state.name}/reports/{lab.run_id}/report.html",
        infrastructure=causes[0] if causes else "",
        digests=lab.candidate.digests,
        excuses=lab.excuses,
    )
    Nights(lab.project_settings).add_record(record)
    return record


def remove_candidate(lab: Lab, *, broken: bool) -> str:
    """Remove a candidate's cluster, unless broken ones are to be kept; says what was done. Raises LabError."""
    if broken and lab.settings.nightly.keep_failed:
        return f"the cluster of {lab.state.name} is kept, as asked: remove it with kai-lab down --all"
    torn = tear_down(lab)
    if torn.leftovers:
        left = "; ".join(f"{leftover.what} ({leftover.command})" for leftover in torn.leftovers)
        raise LabError(f"The cluster of candidate {lab.state.name} is not gone", seen=left)
    return "; ".join(torn.done)


def write_matrix_now(settings: Settings) -> tuple[Matrix, Summary, MatrixFiles]:
    """Make the version matrix and the morning summary from the durable store, and write them."""
    nights = Nights(settings)
    diffs = {key: stored.diff for key, stored in nights.sets().items() if stored.diff}
    matrix = build_matrix(nights.records(), settings.version_set(), diffs)
    summary = morning_summary(matrix, now=now(), last=nights.last_nightly(), next_at=nights.next_at())
    return matrix, summary, write_matrix(matrix, summary, nights.folder / "matrix", evidence_base="../..")


def dead_values(differences: Mapping[str, ChartDiff]) -> list[dict[str, Any]]:
    """Values of the lab that have no effect in a candidate's charts."""
    return [
        {"component": component, "key": problem.key, "sentence": problem.sentence}
        for component, diff in differences.items()
        for problem in diff.dead_values
    ]
