"""Steps 6 to 8 of the lab: a whole card, half a card, and the boundary."""

from typing import Any

import dagster as dg

from kai_lab_pipeline.assets.apply import apply_manifest
from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.step import Step, lab_asset
from kai_lab_pipeline.backends.base import StepFacts
from kai_lab_pipeline.workbench.apply import manifest_text


def workload_assets(group: Group) -> list[dg.AssetsDefinition]:
    settings = group.settings

    @lab_asset(group, "whole_gpu_pod", kinds={"kubernetes"}, built_from=manifest_text(settings, "whole_gpu_pod"))
    def whole_gpu_pod(step: Step) -> dg.MaterializeResult[Any]:
        """A pod with a whole card (`nvidia.com/gpu: 1`): it runs, for it needs no reservation pod.

        By hand: `kubectl apply -f whole-gpu-pod.yaml` and watch it become Running. It stays: step 7 counts it.
        """
        return apply_manifest(step)

    @lab_asset(group, "shared_gpu_pod", kinds={"kubernetes"}, built_from=manifest_text(settings, "shared_gpu_pod"))
    def shared_gpu_pod(step: Step) -> dg.MaterializeResult[Any]:
        """A pod with 20480 MiB of a card: KAI accounts 0.51 of it, HAMi-core is injected.

        By hand: `kubectl apply -f shared-gpu-pod.yaml`, then the scheduler's newest "Resource division result" line of
        default-queue: 1.51 = the whole pod's 1 + 0.51. KAI floors the label to a multiple of 100 MiB (40900) and rounds
        the fraction up to two decimals, so half of 40960 is 0.51. 1.51 proves scheduling, not running.
        """
        return apply_manifest(step)

    @lab_asset(group, "reservation_boundary", kinds={"kubernetes"}, built_from=settings.boundary.crossing)
    def reservation_boundary(step: Step) -> dg.MaterializeResult[Any]:
        """Where the fake GPUs end: the reservation pod cannot load NVML, so the shared pod stays Pending.

        By hand: `kubectl describe pod gpu-sharing-with-isolation` (a BindingError from the binder, 40 s after the pod
        at the earliest) and the log of a pod in kai-resource-reservation: `ERROR_LIBRARY_NOT_FOUND`. This failure, and
        nothing else, is what is expected; any other one is told apart and is red.
        """
        step.tell(StepFacts("looked at the shared pod, its events and the reservation pods", changed=False))
        seen = step.lab.backend.connect().incarnation()
        return step.seen(version_of=[seen, settings.boundary.crossing])

    return [whole_gpu_pod, shared_gpu_pod, reservation_boundary]
