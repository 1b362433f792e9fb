"""Taking the lab's releases off a cluster that stays, with what they made besides: by the cluster's mark alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kai_lab_pipeline.backends.base import Leftover, Log, StepFacts
from kai_lab_pipeline.backends.inventory import Inventory
from kai_lab_pipeline.backends.kai_made import remove_kai_made, standing_kais
from kai_lab_pipeline.backends.owner import Mark, mark_release, mark_remains, read_mark
from kai_lab_pipeline.backends.releases import Releases
from kai_lab_pipeline.clients.kubernetes import Cluster
from kai_lab_pipeline.settings import Chart


@dataclass(frozen=True)
class Removal:
    """What one tear-down does with releases. Methods raise LabError when the cluster or helm cannot be asked."""

    cluster: Cluster
    mark: Mark
    releases: Releases
    log: Log
    pause: Callable[[float], None]

    def release(self, chart: Chart, *, kai: bool, mock: bool) -> StepFacts:
        """Remove a release of the lab, and what KAI or the mock made; what stays of that is in the leftovers.

        Until all that is done, or what stays is noted, the release stays in the mark: a tear-down that is cut off is
        gone on with.
        """
        facts = self.releases.uninstall(chart, self.log)
        if mock:
            Inventory.remove_mock_labels(self.cluster, self.mark)
        left = self._made_by_kai(chart.namespace) if kai else ()
        mark_release(self.cluster, chart.namespace, chart.release, None)
        stay = f"; {len(left)} things that it made are still there" if left else ""
        return replace(facts, summary=facts.summary + stay, leftovers=left)

    def all_releases(self, template: Chart) -> None:
        """Remove what the mark calls the lab's, whatever lab.toml calls it by now.

        The mark also tells of which component each is: helm does not list what was removed by hand, or by a tear-down
        that was cut off, and what that made may be there still.
        """
        for name, component in sorted(self.mark.releases.items()):
            namespace, release = name.split("/", 1)
            self.release(
                template.model_copy(update={"release": release, "namespace": namespace}),
                kai=component == "kai_scheduler",
                mock=component == "nvml_mock",
            )

    def remains(self) -> list[Leftover]:
        """Remove what the lab's KAI made and left behind, now or at an earlier tear-down; what stays of it."""
        mark = read_mark(self.cluster)  # as it is by now
        noted = mark.remains if mark is not None else {}
        return [
            made.left(self.cluster)
            for namespace in sorted(set(noted.values()))
            for made in remove_kai_made(
                self.cluster, namespace, lambda made: made.uid not in noted, self.log, self.pause
            )
        ]

    def _made_by_kai(self, namespace: str) -> tuple[Leftover, ...]:
        found = self.mark.found
        # Reservation pods do not tell which KAI made them: another that stands by now has its own among them.
        spared = {"pods"} if standing_kais(self.cluster, besides={namespace}) else set()
        left = remove_kai_made(
            self.cluster,
            namespace,
            lambda made: made.key in found or made.resource in spared,
            self.log,
            self.pause,
        )
        for made in left:
            mark_remains(self.cluster, made.uid, namespace)
        return tuple(made.left(self.cluster) for made in left)
