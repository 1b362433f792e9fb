"""Steps 2 and 3 of the lab: fake GPUs, the device plugin, and the labels that KAI reads."""

from typing import Any

import dagster as dg

from kai_lab_pipeline.assets.apply import apply_manifest
from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.releases import chart_as_built, install_release
from kai_lab_pipeline.assets.step import Step, lab_asset
from kai_lab_pipeline.backends.base import StepFacts
from kai_lab_pipeline.workbench.apply import manifest_text
from kai_lab_pipeline.workbench.steps import gpu_labels, label_nodes


def gpu_assets(group: Group) -> list[dg.AssetsDefinition]:
    settings = group.settings

    @lab_asset(group, "nvml_mock_image", kinds={"docker"}, built_from=settings.image.nvml_mock.model_dump())
    def nvml_mock_image(step: Step) -> dg.MaterializeResult[Any]:
        """The nvml-mock image, built from a pinned git ref and present on the node.

        By hand: `docker build -t nvml-mock:local ...`, then `kind load docker-image nvml-mock:local`.
        The rehearsal builds nothing: it only names the image on its node.
        """
        facts = step.tell(step.lab.backend.provide_image(step.log))
        incarnation = step.lab.backend.connect().incarnation()
        return step.done(version_of=[incarnation, settings.image.nvml_mock.name, image_version(facts)])

    @lab_asset(group, "nvml_mock_release", kinds={"helm"}, built_from=chart_as_built(settings, "nvml_mock"))
    def nvml_mock_release(step: Step) -> dg.MaterializeResult[Any]:
        """nvml-mock: a fake libnvidia-ml and fake devices, so that the node shows eight A100 cards.

        By hand: `helm install nvml-mock ... --set image.repository=nvml-mock --set image.tag=local --wait`. Helm's
        `--wait` proves little here (the DaemonSet has no readiness probe): the node label nvidia.com/gpu.present=true,
        written by the mock's own script a moment later, is what is waited for.
        """
        return install_release(step, "nvml_mock")

    @lab_asset(group, "device_plugin", kinds={"kubernetes"}, built_from=manifest_text(settings, "device_plugin"))
    def device_plugin(step: Step) -> dg.MaterializeResult[Any]:
        """NVIDIA's device plugin, pointed at the mock's driver root: the node advertises `nvidia.com/gpu: 8`.

        By hand: `kubectl apply -f device-plugin.yaml`, then read `.status.allocatable` until it says 8. A Ready pod is
        not enough: the kubelet publishes the resource some seconds later. 80 would mean that something else (time
        slicing, HAMi's own plugin) already cuts the cards.
        """
        return apply_manifest(step)

    @lab_asset(group, "labelled_node", kinds={"kubernetes"}, built_from=settings.profile.model_dump())
    def labelled_node(step: Step) -> dg.MaterializeResult[Any]:
        """The node with memory (MiB), product and count of its cards as labels, before KAI is installed.

        By hand: `kubectl label node ... nvidia.com/gpu.memory=40960 nvidia.com/gpu.product=... nvidia.com/gpu.count=8`.
        KAI turns a `gpu-memory` request into a fraction with this label. A late label heals by itself in KAI v0.17.0;
        the lab keeps the order all the same.
        """
        step.tell(label_nodes(step.lab))
        return step.seen(version_of=[step.lab.backend.connect().incarnation(), gpu_labels(step.lab)])

    return [nvml_mock_image, nvml_mock_release, device_plugin, labelled_node]


def image_version(facts: StepFacts) -> list[str | None]:
    """What downstream depends on: the image itself, and not how it came to the node this time."""
    return [facts.facts.get(key) for key in ("image_id", "archive_digest")]
