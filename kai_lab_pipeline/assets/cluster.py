"""Step 1 of the lab: the cluster."""

from typing import Any

import dagster as dg

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.step import Step, lab_asset
from kai_lab_pipeline.assets.versions import last_made_here, mark_gone, materialised_in
from kai_lab_pipeline.backends.base import StepFacts
from kai_lab_pipeline.backends.kind_owner import made_from
from kai_lab_pipeline.backends.rehearsal import rehearsed
from kai_lab_pipeline.workbench.candidates import begin_anew
from kai_lab_pipeline.workbench.lab import descendants


def cluster_assets(group: Group) -> list[dg.AssetsDefinition]:
    settings = group.settings
    backend = settings.lab.backend
    built_from = [backend, settings.kind.model_dump(), made_from(settings) if backend == "kind" else None]
    if backend == "rehearsal":
        built_from.append(rehearsed(settings))

    @lab_asset(group, "cluster", kinds={"kubernetes"}, built_from=built_from)
    def cluster(step: Step) -> dg.MaterializeResult[Any]:
        """A Kubernetes cluster for the lab alone.

        By hand: `kind create cluster --name kai-hami-test`. The embedded rehearsal starts an API server of its own
        instead, with simulated components behind it; a named context is used as it is. The data version holds the
        cluster's incarnation: a rebuilt cluster makes everything that was on it unsynced. For a version set nothing of
        an earlier attempt is used again.
        """
        left = "" if step.lab.candidate is None else begin_anew(step.lab)
        if left:
            step.log(f"of an earlier attempt: {left}")
        facts = step.lab.backend.ensure_cluster(step.log)
        step.tell(StepFacts("made the cluster" if facts.made else "adopted the cluster", changed=facts.made))
        step.metadata["kubeconfig"] = dg.MetadataValue.path(str(facts.kubeconfig))
        step.metadata["context"] = facts.context
        step.metadata["incarnation"] = facts.incarnation
        _tell_rebuilt(step, facts.incarnation)
        if facts.note:
            step.metadata["note"] = facts.note
        return step.seen(version_of=facts.incarnation)

    return [cluster]


def _tell_rebuilt(step: Step, incarnation: str) -> None:
    """What stood on another incarnation of the cluster is no longer there: it must not look as if it were."""
    instance = step.context.instance
    if step.group.partitions is not None:
        return
    before = materialised_in(last_made_here(instance, step.group, "cluster"))
    known = None if before is None else before.metadata.get("incarnation")
    if known is None or known.value == incarnation:
        return
    lost = mark_gone(instance, step.group, "the cluster was rebuilt", descendants("cluster"))
    if lost:
        step.log(f"the cluster was rebuilt; no longer there: {', '.join(lost)}")
