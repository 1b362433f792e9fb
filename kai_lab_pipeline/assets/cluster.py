"""Step 1 of the lab: the cluster."""

from typing import Any

import dagster as dg

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.step import Step, lab_asset
from kai_lab_pipeline.backends.base import StepFacts


def cluster_assets(group: Group) -> list[dg.AssetsDefinition]:
    settings = group.settings

    @lab_asset(group, "cluster", kinds={"kubernetes"}, built_from=[settings.lab.backend, settings.kind.model_dump()])
    def cluster(step: Step) -> dg.MaterializeResult[Any]:
        """A Kubernetes cluster for the lab alone.

        By hand: `kind create cluster --name kai-hami-test`. The embedded rehearsal starts an API server of its own
        instead, with simulated components behind it; a named context is used as it is. The data version holds the
        cluster's incarnation: a rebuilt cluster makes everything that was on it unsynced.
        """
        facts = step.lab.backend.ensure_cluster(step.log)
        step.tell(StepFacts("made the cluster" if facts.made else "adopted the cluster", changed=facts.made))
        step.metadata["kubeconfig"] = dg.MetadataValue.path(str(facts.kubeconfig))
        step.metadata["context"] = facts.context
        step.metadata["incarnation"] = facts.incarnation
        if facts.note:
            step.metadata["note"] = facts.note
        return step.seen(version_of=facts.incarnation)

    return [cluster]
