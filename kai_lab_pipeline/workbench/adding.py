"""Adding a version set that a person names: checked, stored, and never mixed with what the registries list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from kai_lab_pipeline.backends import make_backend
from kai_lab_pipeline.clients.chart_archive import read_chart
from kai_lab_pipeline.clients.oci import OciClient
from kai_lab_pipeline.clients.oci_errors import NotAChart, RegistryNotFound
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.lab.own_builds import IMAGE_VALUES, called, image_values
from kai_lab_pipeline.lab.version_sets import Lane, version_set
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.candidates import candidate_settings
from kai_lab_pipeline.workbench.chart_comparison import with_registry
from kai_lab_pipeline.workbench.nights import Nights, StoredSet
from kai_lab_pipeline.workbench.set_digests import look_at, seen_in

MANIFESTS = ("device_plugin",)
"""Components that are a manifest: their chart is the manifest's file."""


def add_version_set(
    settings: Settings,
    versions: Mapping[str, str],
    charts: Mapping[str, str] | None = None,
    images: Mapping[str, str] | None = None,
    lanes: Iterable[Lane] = (Lane.FRESH,),
) -> list[StoredSet]:
    """Check a version set, store it in each lane, and return what is stored.

    `versions` by component may be anything that a chart's version can be, also a commit build. `charts` are folders,
    archives or references in place of the pinned one (of the device plugin: a manifest's file); the version of a local
    chart is its own. `images` are ``repository:tag`` or a tag. Raises WrongUse for what cannot be built, LabError where
    nobody could look.
    """
    charts, images = dict(charts or {}), dict(images or {})
    _known(settings, (*versions, *charts, *images))
    chosen = {one: _version(settings, one, versions, charts) for one in (*versions, *charts, *images)}
    values = {component: _image_values(component, image) for component, image in images.items()}
    names = {
        one: called(version, chart=charts.get(one, ""), image=images.get(one, "")) for one, version in chosen.items()
    }
    try:
        sets = [version_set(settings.version_set(), names, lane) for lane in lanes]
    except ValueError as error:
        raise WrongUse(f"This version set cannot be built: {error}") from error
    if not any(found.moved for found in sets):
        raise WrongUse(
            "Nothing moves in this version set: these are the versions that lab.toml pins",
            next_step="Name another version, a chart or an image; the pinned set is judged in every project anyway.",
        )
    own = {one: chosen[one] for one in (*charts, *images)}
    stored = [StoredSet(found, charts, {}, own_versions=own, values=values) for found in sets]
    digests = _looked_at(settings, stored[0])
    nights = Nights(settings)
    return [nights.keep(replace(one, digests=digests)) for one in stored]


def _known(settings: Settings, components: Iterable[str]) -> None:
    unknown = sorted(set(components) - set(settings.version_set()))
    if unknown:
        known = ", ".join(settings.version_set())
        raise WrongUse(f"This version set cannot be built: no component is named {', '.join(unknown)}; known: {known}")


def _version(settings: Settings, component: str, versions: Mapping[str, str], charts: Mapping[str, str]) -> str:
    """The version of a component's chart: as named, as the local chart itself says, else the pinned one."""
    named, chart = versions.get(component, "").strip(), charts.get(component, "")
    if component in versions and not named:
        raise WrongUse(f"This version set cannot be built: no version is given for {component}")
    if component in MANIFESTS:
        return _manifest_version(settings, component, named, chart)
    if chart and not chart.startswith("oci://"):
        own = read_chart(_local(settings, component, chart)).version
        if named and named != own:
            raise WrongUse(
                f"The chart {chart} is {own}, and {named} is asked for",
                where=f"version set of {component}",
                next_step="Leave the version out, or name the chart's own.",
            )
        return own
    return named or settings.version_set()[component]


def _manifest_version(settings: Settings, component: str, version: str, file: str) -> str:
    if not version or not file:
        raise WrongUse(
            f"{component} is a manifest: its version and its file are needed",
            next_step=f"Name both, e.g. kai-lab nightly --add {component}=v0.19.0 --chart {component}=FILE.",
        )
    _local(settings, component, file)
    return version


def _local(settings: Settings, component: str, name: str) -> Path:
    path = settings.project_file(name)
    if not path.exists():
        raise WrongUse(
            f"The chart {name} is not there" if component not in MANIFESTS else f"The manifest {name} is not there",
            where=str(path),
            next_step="Name what is there: a path below the project, an absolute one, or an oci:// reference.",
        )
    return path


def _image_values(component: str, image: str) -> dict[str, str]:
    if component not in IMAGE_VALUES:
        raise WrongUse(f"{component} has no image that a value names; known: {', '.join(IMAGE_VALUES)}")
    try:
        return image_values(component, image)
    except ValueError as error:
        raise WrongUse(f"This version set cannot be built: {error}") from error


def _looked_at(settings: Settings, stored: StoredSet) -> dict[str, str]:
    """What the set's charts hold, those on this machine too; raises WrongUse for a chart that is not there, LabError
    where nobody answers."""
    candidate = candidate_settings(settings, stored)
    charts = candidate.charts.by_component()
    with with_registry(settings) as asked, OciClient.from_settings(asked) as client:
        for component in stored.version_set.moved:
            chart = charts.get(component)
            if chart is None or not chart.chart.startswith("oci://"):
                continue
            try:
                client.chart_metadata(chart.chart, chart.version)
            except (RegistryNotFound, NotAChart) as error:
                raise WrongUse(
                    f"There is no chart {chart.version} of {component}",
                    where=chart.chart,
                    seen=error.what,
                    next_step="kai-lab versions lists what there is; a local chart or another reference can be named.",
                ) from error
        digests = look_at(asked, {}, [stored])
    _rehearsable(candidate, stored)
    return seen_in(settings, stored, digests)


def _rehearsable(candidate: Settings, stored: StoredSet) -> None:
    """The rehearsal knows its charts by name and version: say at once that it cannot install another one."""
    if candidate.lab.backend != "rehearsal":
        return
    backend = make_backend(candidate)
    for component in stored.version_set.moved:
        chart = candidate.charts.by_component().get(component)
        if chart is None:
            continue
        try:
            backend.render(chart, candidate.project_file(chart.chart))
        except LabError as error:
            raise WrongUse(error.what, where=f"{component} {chart.version}", seen=error.seen) from error
