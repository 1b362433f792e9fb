"""A candidate: a lab of its own for another version set, its verdict, and its end."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime

from kai_lab_pipeline.clients.files import write_atomic
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.lab.morning import Summary, morning_summary
from kai_lab_pipeline.lab.verdict import Judgement
from kai_lab_pipeline.lab.verdict_record import VerdictRecord, record_of
from kai_lab_pipeline.lab.version_matrix import Matrix, build_matrix
from kai_lab_pipeline.report.matrix import MatrixFiles, write_matrix
from kai_lab_pipeline.settings import SETTINGS_FILE, Settings
from kai_lab_pipeline.workbench.chart_comparison import compare_the_rest, values_results
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.nights import Nights, StoredSet
from kai_lab_pipeline.workbench.state import LIVING, now
from kai_lab_pipeline.workbench.steps import build_living_lab
from kai_lab_pipeline.workbench.teardown import tear_down


def candidate_settings(settings: Settings, stored: StoredSet) -> Settings:
    """The project's settings with the versions of a candidate, and a lab name of its own. Raises WrongUse."""
    version_set = stored.version_set
    own_cluster(settings)
    versions = {**version_set.versions, **stored.own_versions}
    charts = {
        component: chart.model_copy(
            update={
                "version": versions.get(component, chart.version),
                "chart": stored.charts.get(component, chart.chart),
                "values": {**chart.values, **stored.values.get(component, {})},
            }
        )
        for component, chart in settings.charts.by_component().items()
    }
    image, manifest = settings.image.nvml_mock, settings.manifests.device_plugin
    if "nvml_mock" in version_set.moved:
        image = image.model_copy(update={"git_ref": f"v{versions['nvml_mock'].removeprefix('v')}"})
    if "device_plugin" in version_set.moved:
        file = stored.charts.get("device_plugin", manifest.file)
        manifest = manifest.model_copy(update={"version": versions["device_plugin"], "file": file})
    return settings.model_copy(
        update={
            "lab": settings.lab.model_copy(update={"name": version_set.key, "context": settings.nightly.context}),
            "charts": settings.charts.model_copy(update=charts),
            "image": settings.image.model_copy(update={"nvml_mock": image}),
            "manifests": settings.manifests.model_copy(update={"device_plugin": manifest}),
        }
    )


def own_cluster(settings: Settings) -> None:
    """Raises WrongUse where candidates have no cluster of their own: on backend ``context`` the person names it."""
    context = settings.nightly.context
    if settings.lab.backend != "context" or (context and context != settings.lab.context):
        return
    raise WrongUse(
        "Candidates need a cluster of their own, and backend 'context' makes none",
        where=str(settings.root / SETTINGS_FILE),
        seen=f"nightly.context is {context!r}, the lab's own context is {settings.lab.context!r}",
        next_step="Name a context whose cluster only candidates use as nightly.context, or use another backend for "
        "them (KAI_LAB_BACKEND=kind).",
    )


def begin_anew(lab: Lab) -> str:
    """Remove what an earlier run of a candidate left, and say what was done: each attempt stands on a cluster anew.

    A kept cluster of a broken attempt would make the next one no second opinion, and an upgrade meet itself.
    Raises LabError.
    """
    if not lab.backend.cluster_exists():
        return ""
    said = _removed(lab)
    (lab.state.folder / LIVING).unlink(missing_ok=True)
    return said


def before_upgrade(lab: Lab) -> None:
    """Build the pinned lab on the candidate's cluster, once, for the upgrade to meet it alive. Raises LabError."""
    marker = lab.state.folder / LIVING
    incarnation = lab.backend.connect().incarnation()
    if marker.exists() and marker.read_text(encoding="utf-8") == incarnation:
        return
    lab.log("building the pinned lab first, for the upgrade to meet it alive")
    project = lab.project_settings
    pinned = lab.settings.model_copy(
        update={"charts": project.charts, "image": project.image, "manifests": project.manifests}
    )
    build_living_lab(Lab(pinned, lab.run_id, lab.log, lab.gates))
    write_atomic(marker, incarnation)


def conclude(lab: Lab, judgement: Judgement) -> VerdictRecord:
    """Keep the verdict of a candidate's run in the durable store. Raises WrongUse for a lab that is no candidate's.

    A value without effect counts beside the claims: it makes the version set broken, and no claim.
    """
    if lab.candidate is None:
        raise WrongUse(f"Lab {lab.state.name!r} is no candidate's")
    stopped = [step for step in lab.steps().values() if step.get("infrastructure")]
    first = min(stopped, key=lambda step: str(step["at"]), default=None)  # later ones were blocked by it
    compare_the_rest(lab, look=not stopped)
    record = record_of(
        judgement,
        lab.candidate.version_set,
        at=now(),
        run_id=lab.run_id,
        crossing=lab.expectations.crossing,
        evidence=f"{lab.state.name}/reports/{lab.run_id}/report.html",
        infrastructure=str(first["error"]) if first else "",
        digests=lab.candidate.digests,
        excuses=lab.excuses,
        values=values_results(lab),
    )
    Nights(lab.project_settings).add_record(record)
    return record


def remove_candidate(lab: Lab, *, broken: bool) -> str:
    """Remove a candidate's cluster, unless broken ones are to be kept; says what was done. Raises LabError."""
    if _is_kept(lab, broken=broken):
        return f"the cluster of {lab.state.name} is kept, as asked: remove it with kai-lab down --all"
    return _removed(lab)


def _is_kept(lab: Lab, *, broken: bool) -> bool:
    return broken and lab.settings.nightly.keep_failed


def _removed(lab: Lab) -> str:
    torn = tear_down(lab)
    if torn.leftovers:
        left = "; ".join(f"{leftover.what} ({leftover.command})" for leftover in torn.leftovers)
        raise LabError(f"The cluster of candidate {lab.state.name} is not gone", seen=left)
    return "; ".join(torn.done)


def clean_up_candidate(project: Settings, stored: StoredSet, *, broken: bool) -> str:
    """Remove the cluster that an ended run of a candidate left, and say what was done; empty when nothing was left.

    With `broken` a cluster is kept where lab.toml asks for that. Raises WrongUse while a run is at work on it, LabError
    when its cluster cannot be asked for or is not gone.
    """
    # An owner of its own: the run that ended may have a process left that still holds the lab.
    owner = f"clean-up-{uuid.uuid4().hex[:8]}"
    lab = Lab(candidate_settings(project, stored), owner, lambda _: None, candidate=stored, project=project)
    if not lab.state.folder.is_dir():
        return ""
    lab.hold("removing what a candidate's run left")
    try:
        there = lab.backend.cluster_exists()
        said = remove_candidate(lab, broken=broken) if there else ""
        if not (there and _is_kept(lab, broken=broken)):
            lab.state.forget_cluster()
        return said
    finally:
        lab.release()


def write_matrix_now(
    settings: Settings, *, next_at: datetime | None, on_since: datetime | None = None
) -> tuple[Matrix, Summary, MatrixFiles]:
    """Make the version matrix and the morning summary from the durable store, and write them.

    `next_at` is when the schedule runs next, with time zone, None while it is off; `on_since` when it was turned on.
    """
    nights = Nights(settings)
    diffs = {key: stored.diff for key, stored in nights.sets().items() if stored.diff}
    matrix = build_matrix(nights.records(), settings.version_set(), diffs, today=now().date())
    summary = morning_summary(matrix, now=now(), last=nights.last_nightly(), next_at=next_at, on_since=on_since)
    summary = replace(summary, details=(*summary.details, *nights.damages()))
    return matrix, summary, write_matrix(matrix, summary, nights.folder / "matrix", evidence_base="../..")
