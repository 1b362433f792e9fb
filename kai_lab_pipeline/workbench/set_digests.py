"""What the charts of version sets hold now, against what is known of them: a chart pushed again is news."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kai_lab_pipeline.clients.digests import ChartAt, Digests, digests_of
from kai_lab_pipeline.clients.discovery import Lookup
from kai_lab_pipeline.lab.versions import repushed
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.nights import Nights, StoredSet


def charts_of(settings: Settings, stored: StoredSet) -> dict[str, ChartAt]:
    """Where the chart of each component of a version set is; of the device plugin only a manifest of the set's own."""
    pinned = {component: chart.chart for component, chart in settings.charts.by_component().items()}
    versions = {**stored.version_set.versions, **stored.own_versions}
    return {
        component: ChartAt(reference, versions[component])
        for component, reference in {**pinned, **stored.charts}.items()
        if component in versions
    }


def look_at(settings: Settings, found: Mapping[str, Lookup], sets: Iterable[StoredSet]) -> Digests:
    """Ask what the charts of version sets hold now, but not where a lookup has just failed."""
    silent = {lookup.source for lookup in found.values() if lookup.error is not None}
    return digests_of(settings, (chart for one in sets for chart in charts_of(settings, one).values()), silent=silent)


def seen_in(settings: Settings, stored: StoredSet, digests: Digests) -> dict[str, str]:
    """Digest by component of a version set, where it is known now."""
    charts = charts_of(settings, stored)
    return {component: digests.known[chart] for component, chart in charts.items() if chart in digests.known}


def with_content(
    settings: Settings, nights: Nights, found: Mapping[str, Lookup], digests: Digests
) -> dict[str, Lookup]:
    """The lookups with what was pushed again since its verdict, or since it was first seen; before it is stored."""
    here = [record for record in nights.records() if record.backend == settings.lab.backend]
    judged = {record.key: record for record in here if record.judged}
    news: dict[str, set[str]] = {}
    own: dict[ChartAt, str] = {}
    for key, stored in nights.sets().items():
        own |= {chart: component for component, chart in charts_of(settings, stored).items()}
        known = {**stored.first_digests, **judged[key].digests} if key in judged else stored.digests
        for component in repushed(known, seen_in(settings, stored, digests)):
            news.setdefault(component, set()).add(stored.version_set.versions[component])
    return {
        component: replace(
            lookup,
            repushed=tuple(sorted(news.get(component, ()))),
            undigested={
                chart.version: reason
                for chart, reason in digests.unknown.items()
                if chart.reference == lookup.source or own.get(chart) == component
            },
        )
        for component, lookup in found.items()
    }
