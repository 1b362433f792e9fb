"""Step 4 of the lab: KAI Scheduler and its queues."""

from typing import Any

import dagster as dg

from kai_lab_pipeline.assets.apply import apply_manifest
from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.releases import chart_as_built, install_release
from kai_lab_pipeline.assets.step import Step, lab_asset
from kai_lab_pipeline.clients.manifests import CANARY
from kai_lab_pipeline.workbench.apply import file_text, manifest_text


def scheduler_assets(group: Group) -> list[dg.AssetsDefinition]:
    settings = group.settings

    @lab_asset(
        group,
        "kai_release",
        kinds={"helm"},
        built_from=[*chart_as_built(settings, "kai_scheduler"), file_text(settings, CANARY)],
    )
    def kai_release(step: Step) -> dg.MaterializeResult[Any]:
        """KAI Scheduler with GPU sharing and the hamicore plugin.

        By hand: `helm install kai-scheduler ...` with global.gpuSharing and binder.plugins.hamicore.enabled true.
        Helm returns before the operator has made the other six deployments, and `kubectl wait deploy --all` may see the
        operator alone: the seven components are waited for by name, the flags are judged by their effect, and a canary
        pod shows that the scheduler takes a pod to a node.
        """
        return install_release(step, "kai_scheduler")

    @lab_asset(group, "queues", kinds={"kubernetes"}, built_from=manifest_text(settings, "queues"))
    def queues(step: Step) -> dg.MaterializeResult[Any]:
        """The queues `default` and, below it, `default-queue`, both unlimited.

        By hand: `kubectl apply -f queues.yaml`. The chart has already made default-queue under default-parent-queue;
        applying moves it. While the queue webhook does not serve yet, the write is refused with "connection refused"
        and tried again; a denial is not.
        """
        return apply_manifest(step)

    return [kai_release, queues]
