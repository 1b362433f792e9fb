"""Step 5 of the lab: the RuntimeClass and the isolator that injects HAMi-core."""

from typing import Any

import dagster as dg

from kai_lab_pipeline.assets.apply import apply_manifest
from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.releases import chart_as_built, install_release
from kai_lab_pipeline.assets.step import Step, lab_asset
from kai_lab_pipeline.workbench.apply import manifest_text


def isolation_assets(group: Group) -> list[dg.AssetsDefinition]:
    settings = group.settings

    @lab_asset(
        group,
        "nvidia_runtime_class",
        kinds={"kubernetes"},
        built_from=[manifest_text(settings, "nvidia_runtime_class"), settings.boundary.crossing],
    )
    def nvidia_runtime_class(step: Step) -> dg.MaterializeResult[Any]:
        """RuntimeClass `nvidia`, mapped to runc on a node that has no such runtime.

        By hand: `kubectl apply -f runtime-class.yaml`. KAI's admission sets runtimeClassName nvidia on sharing pods;
        without the class they are refused: `RuntimeClass "nvidia" not found`. Where the boundary is meant to be crossed
        the handler is `nvidia`.
        """
        return apply_manifest(step)

    @lab_asset(group, "isolator_release", kinds={"helm"}, built_from=chart_as_built(settings, "kai_resource_isolator"))
    def isolator_release(step: Step) -> dg.MaterializeResult[Any]:
        """kai-resource-isolator: HAMi-core on the node, and a webhook that injects it into sharing pods.

        By hand: `helm install kai-resource-isolator ... --set monitor.enabled=true --version 1.1.0-chart`. Its webhook
        has failure policy Ignore: while it is not ready, a sharing pod is accepted without injection and without a
        word. So a dry-run of an annotated pod has to come back with the volumes before step 7.
        """
        return install_release(step, "kai_resource_isolator")

    return [nvidia_runtime_class, isolator_release]
