"""The lab's steps themselves, without Dagster: what each asset does before it looks at the result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from kai_lab_pipeline.backends.base import StepFacts
from kai_lab_pipeline.backends.releases import chart_name, is_release_of, kubectl_of
from kai_lab_pipeline.clients.docker import full_name
from kai_lab_pipeline.clients.kubernetes import FIELD_MANAGER, label_writers
from kai_lab_pipeline.clients.manifests import judged_manifest, load_manifest
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.lab.spec import RELEASED
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline.settings import Chart
from kai_lab_pipeline.workbench.apply import POD_END_S, manifest_of
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.patience import wait_gone
from kai_lab_pipeline.workbench.release_changes import ReleaseChange, changes_of_release, put_back

GPU_RESOURCE = "nvidia.com/gpu"
MOCK_LABEL = "gpu_present_label"
"""The check on the label that nvml-mock writes on its node."""
REPAIR_PATIENCE_S = 15.0
"""How long a release that is as wanted gets to be in order before it is applied again, seconds of a real cluster."""


def gpu_labels(lab: Lab) -> dict[str, str]:
    """The labels that KAI reads, from the profile: memory in MiB, product, count."""
    profile = lab.settings.profile
    return {
        "nvidia.com/gpu.memory": str(profile.gpu_memory_mib),
        "nvidia.com/gpu.product": profile.gpu_product,
        "nvidia.com/gpu.count": str(profile.gpu_count),
    }


def label_nodes(lab: Lab) -> StepFacts:
    """Label the nodes that advertise GPUs; a node that has the labels already is left alone.

    Raises LabError where a label of others says something else, on a node that was there before the lab or came later:
    GPU feature discovery owns it.
    """
    cluster = lab.backend.connect()
    wanted = gpu_labels(lab)
    changed = []
    nodes = [node for node in cluster.objects("nodes") if GPU_RESOURCE in (node["status"].get("allocatable") or {})]
    for node in nodes:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
        differs = {key: value for key, value in wanted.items() if labels.get(key) != value}
        for key, value in differs.items():
            others = frozenset() if lab.backend.makes_cluster else label_writers(node, key) - {FIELD_MANAGER}
            if others or lab.backend.was_there("labels", name, key):
                by = f", written by {', '.join(sorted(others))}" if others else ""
                raise LabError(
                    f"The label {key} of node {name} is not the lab's, and says something else",
                    where=f"node {name}",
                    seen=f"{key}={labels.get(key)}{by}; the lab's profile says {value}",
                    next_step="It is left as it is. Set the profile in lab.toml to what the node's GPUs are; where "
                    f"somebody changed what the lab had written: {kubectl_of(cluster)} label node {name} {key}-",
                )
        if differs:
            cluster.patch("nodes", name, {"metadata": {"labels": differs}})
            changed.append(name)
    if changed:
        return StepFacts(f"labelled {', '.join(changed)}")
    unchanged = "the labels were there already" if nodes else f"no node advertises {GPU_RESOURCE}: none is labelled"
    return StepFacts(unchanged, changed=False)


def install(lab: Lab, component: str) -> StepFacts:
    """Install or upgrade a component's chart release; one that is as wanted and in order is left alone.

    Helm compares releases, not what is on the cluster: where the release is the same, and its checks are broken or
    somebody changed by hand what it consists of, it is applied again, and what helm leaves of the change is put back.
    Raises LabError.
    """
    chart = lab.settings.charts.by_component()[component]
    _refuse_second(lab, component, chart)
    facts = lab.backend.install(component, chart, lab.log)
    if component == "nvml_mock" and not facts.skipped:
        facts = _on_its_image(lab, chart, facts)
    if facts.changed or facts.skipped:
        return facts
    asset = RELEASED[component]
    patience_s = max(REPAIR_PATIENCE_S * lab.backend.time_scale, 2.0)
    found = lab.settle(asset, deadline_s=min(patience_s, lab.settings.deadline_s(asset))).mismatches
    broken = [result.check for result in found if result.verdict is Verdict.BROKEN]
    changes = changes_of_release(lab, lab.backend.connect(), component, chart)
    if not broken and not changes:
        return facts
    repaired = facts
    if changes or set(broken) != {MOCK_LABEL}:
        repaired = _applied_again(lab, component, chart, broken, changes)
    return _label_again(lab, chart, repaired) if MOCK_LABEL in broken else repaired


def _applied_again(
    lab: Lab, component: str, chart: Chart, broken: Collection[str], changes: Collection[ReleaseChange]
) -> StepFacts:
    repaired = lab.backend.install(component, chart, lab.log, repair=True)
    why = [f"{check} was broken" for check in broken]
    why += [f"{name} was changed by hand" for name in dict.fromkeys(change.where() for change in changes)]
    summary = f"{repaired.summary}, applied again because {', '.join(why)}"
    left = put_back(lab.backend.connect(), changes, lab.log)
    return replace(repaired, summary=f"{summary}; put back {', '.join(left)}" if left else summary)


def _label_again(lab: Lab, chart: Chart, facts: StepFacts) -> StepFacts:
    """Restart the mock's pods: they label their node once, when they start, and helm sees no reason to (0.3.0)."""
    names = [str(pod["metadata"]["name"]) for pod in _mock_pods(lab, chart)]
    _restart(lab, chart, names, "its node has not got the mock's label")
    if not names:
        return facts
    said = f"{facts.summary}; restarted {', '.join(names)} because {MOCK_LABEL} was broken"
    return replace(facts, summary=said, changed=True)


def _mock_pods(lab: Lab, chart: Chart) -> list[dict[str, Any]]:
    pods = lab.backend.connect().objects("pods", namespace=chart.namespace)
    return [
        pod for pod in pods if _is_of_daemonset(pod, chart.release) and not pod["metadata"].get("deletionTimestamp")
    ]


def _restart(lab: Lab, chart: Chart, names: Collection[str], why: str) -> None:
    """Delete pods that their DaemonSet makes anew, and wait until they are gone."""
    cluster = lab.backend.connect()
    for name in names:
        lab.log(f"restarting pod {name}: {why}")
        cluster.delete("pods", name, namespace=chart.namespace)
    deadline_s = max(POD_END_S * lab.backend.time_scale, 10.0)
    for name in names:
        wait_gone(cluster, "pods", name, namespace=chart.namespace, deadline_s=deadline_s)


def _refuse_second(lab: Lab, component: str, chart: Chart) -> None:
    """Raises WrongUse where the chart is installed under another name: two of it want the same objects.

    Helm refuses the second one and leaves it failed beside the first, which goes on to be judged.
    """
    for row in lab.backend.releases():
        there = (str(row.get("name")), str(row.get("namespace")))
        gone = str(row.get("status", "")).startswith("uninstall")
        if is_release_of(component, row) and there != (chart.release, chart.namespace) and not gone:
            raise WrongUse(
                f"The chart {chart_name(component)} is installed already, under another name",
                where=f"charts.{component} in lab.toml: release {chart.release} in namespace {chart.namespace}",
                seen=f"release {there[0]} in namespace {there[1]}, {row.get('status')}",
                next_step="Give it the name that is there in lab.toml. To install it under the new one, take the lab "
                "down first, which removes what the lab installed: kai-lab down",
            )


def _on_its_image(lab: Lab, chart: Chart, facts: StepFacts) -> StepFacts:
    """Restart the mock's pods that run another image than their node now has under that name.

    An image that was made anew keeps its name, so neither helm nor the DaemonSet sees a reason to. Nothing is done
    where the digests agree or either is not known.
    """
    image, mine = lab.settings.image.nvml_mock.name, _mock_pods(lab, chart)
    known = lab.backend.image_digests() if mine else {}
    stale = [
        str(pod["metadata"]["name"])
        for pod in mine
        if _runs_another(pod, image, known.get(str(pod["spec"].get("nodeName")), frozenset()))
    ]
    _restart(lab, chart, stale, f"it runs an earlier {image} than its node has now")
    if not stale:
        return facts
    return replace(facts, summary=f"{facts.summary}; restarted {', '.join(stale)}: {image} was made anew", changed=True)


def _is_of_daemonset(pod: Mapping[str, Any], release: str) -> bool:
    meta = pod["metadata"]
    if (meta.get("labels") or {}).get("app.kubernetes.io/instance") != release:
        return False
    return any(owner.get("kind") == "DaemonSet" for owner in meta.get("ownerReferences") or ())


def _runs_another(pod: Mapping[str, Any], image: str, known: Collection[str]) -> bool:
    """Whether a started container of this image runs none of the digests that are known."""
    mine = {item["name"] for item in pod["spec"]["containers"] if full_name(str(item.get("image"))) == full_name(image)}
    run = [
        str(item.get("imageID") or "").rpartition("@")[2]
        for item in (pod.get("status") or {}).get("containerStatuses") or ()
        if item.get("name") in mine
    ]
    return bool(known) and any(digest.startswith("sha256:") and digest not in known for digest in run)


def objects_of(lab: Lab, asset: str) -> list[dict[str, Any]]:
    """The objects of an asset's manifest, with the fields that a setting decides."""
    objects = load_manifest(lab.settings, manifest_of(lab.settings, asset))
    if asset == "nvidia_runtime_class":
        objects[0] = {**objects[0], "handler": lab.expectations.runtime_handler}
    return objects


def apply(lab: Lab, asset: str) -> StepFacts:
    """Apply an asset's manifest. Raises LabError, before anything is touched where it lacks what is judged."""
    judged_manifest(lab.settings, manifest_of(lab.settings, asset))
    return lab.applier(asset).apply(objects_of(lab, asset))


STEPS: Mapping[str, Callable[[Lab], StepFacts]] = {
    "nvml_mock_image": lambda lab: lab.backend.provide_image(lab.log),
    "nvml_mock_release": lambda lab: install(lab, "nvml_mock"),
    "device_plugin": lambda lab: apply(lab, "device_plugin"),
    "labelled_node": label_nodes,
    "kai_release": lambda lab: install(lab, "kai_scheduler"),
    "queues": lambda lab: apply(lab, "queues"),
    "nvidia_runtime_class": lambda lab: apply(lab, "nvidia_runtime_class"),
    "isolator_release": lambda lab: install(lab, "kai_resource_isolator"),
    "whole_gpu_pod": lambda lab: apply(lab, "whole_gpu_pod"),
    "shared_gpu_pod": lambda lab: apply(lab, "shared_gpu_pod"),
}
"""What each asset between the cluster and the boundary does, in the order of the lab."""


def build_living_lab(lab: Lab) -> None:
    """Do all steps with the lab's versions and wait for each: the living lab that an upgrade then meets.

    Nothing of it is kept as evidence; what is not in order shows in the checks after the upgrade. Raises LabError.
    """
    for asset, step in STEPS.items():
        step(lab)
        if asset != "nvml_mock_image":
            lab.settle(asset)
