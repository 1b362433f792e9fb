"""One thing broken by hand in a living lab: exactly the checks that it concerns turn red, and making it again heals it.

The checks are executed alone, through Dagster, against the living cluster; nothing is built meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from kai_lab_pipeline.lab.judge import PINNED_GATES
from kai_lab_pipeline.lab.spec import CHECKS
from kai_lab_pipeline.workbench.lab import descendants
from kai_lab_pipeline_tests.lab_project import TEST_S, LabProject, make_project
from kai_lab_pipeline_tests.rehearsal_lab import NODE
from kai_lab_pipeline_tests.rehearsal_lab import Lab as LivingCluster

pytestmark = [pytest.mark.xdist_group("e2e-broken"), pytest.mark.timeout(TEST_S)]

BETWEEN_ATTEMPTS = {"reservation_boundary.reservation_nvml", "reservation_boundary.boundary_outcome"}
"""Not evaluated while no reservation pod is there: its log is read from the living pod alone."""


def every(*assets: str) -> set[str]:
    return {f"{asset}.{check.name}" for asset in assets for check in CHECKS[asset]}


@dataclass(frozen=True)
class Fault:
    """What a person does, what it must turn red, and the asset to make again."""

    name: str
    done: Callable[[LivingCluster], object]
    broken: set[str]
    heals: str
    unseen: frozenset[str] = frozenset()
    """Checks that cannot be evaluated any more: what they read is gone with it."""
    by_moment: frozenset[str] = frozenset()
    """Checks that it may turn red as well, depending on the moment in which it is done."""


def scale(living: LivingCluster, name: str, namespace: str) -> None:
    """`kubectl scale --replicas=0`, and its pods gone."""
    living.patch("deployments", name, {"spec": {"replicas": 0}}, namespace)
    living.wait(
        "pods",
        lambda pods: not any(p["metadata"]["name"].startswith(f"{name}-") for p in pods),
        f"pods of {name} gone",
    )


def stop_operator_and_binder(living: LivingCluster) -> None:
    scale(living, "kai-operator", "kai-scheduler")  # first, for it would bring the binder back
    scale(living, "binder", "kai-scheduler")


def take_the_cards_away(living: LivingCluster) -> None:
    living.delete("daemonsets", "nvidia-device-plugin-mock", "kube-system")
    # The binding under way when the cards went has to fail first; only then the scheduler finds that nothing fits.
    living.wait_event("Unschedulable", "gpu-sharing-with-isolation", "GPUs")


FAULTS = (
    Fault(
        # KAI drops default-queue with its parent, so nothing is scheduled in it; what was accounted last stays, be it
        # in an attempt to bind the shared pod or between two of them.
        "queue deleted",
        lambda living: living.delete("queues", "default"),
        {*every("queues"), "kai_release.scheduler_alive"},
        "queues",
        by_moment=frozenset({"shared_gpu_pod.fraction_accounted"}),
    ),
    Fault(
        # KAI accounts by the label as it is (0.69 of a card now), so its sum still agrees with its own rule.
        "memory label set to 30000",
        lambda living: living.patch("nodes", NODE, {"metadata": {"labels": {"nvidia.com/gpu.memory": "30000"}}}),
        {"labelled_node.gpu_memory_label"},
        "labelled_node",
    ),
    Fault(
        "operator stopped",
        lambda living: scale(living, "kai-operator", "kai-scheduler"),
        {"kai_release.seven_components_running"},
        "kai_release",
    ),
    Fault(
        # The scheduler decides, the binder binds: without it the canary gets no node.
        "operator and binder stopped",
        stop_operator_and_binder,
        {"kai_release.seven_components_running", "kai_release.scheduler_alive"},
        "kai_release",
    ),
    Fault(
        # KAI's admission names the class on sharing pods, which are refused without it; living pods keep running.
        "RuntimeClass deleted",
        lambda living: living.delete("runtimeclasses", "nvidia"),
        {"nvidia_runtime_class.runtime_class_handler", "isolator_release.webhook_mutates"},
        "nvidia_runtime_class",
    ),
    Fault(
        # Its failure policy is Ignore: a dry-run pod comes back unchanged and without an error.
        "isolator's webhook stopped",
        lambda living: scale(living, "kai-resource-isolator-webhook", "kai-resource-isolator"),
        {"isolator_release.isolator_pods_running", "isolator_release.webhook_mutates"},
        "isolator_release",
        frozenset({"isolator_release.webhook_annotation_keys"}),
    ),
    Fault(
        # A node with less than no card left fits no pod at all, not even one that asks for none; the shared pod is
        # no longer allocated anything.
        "device plugin deleted",
        take_the_cards_away,
        {*every("device_plugin"), "kai_release.scheduler_alive", "shared_gpu_pod.fraction_accounted"},
        "device_plugin",
    ),
    Fault(
        "shared pod deleted",
        lambda living: living.delete("pods", "gpu-sharing-with-isolation", "default"),
        every("shared_gpu_pod", "reservation_boundary"),
        "shared_gpu_pod",
    ),
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProject]:
    made = make_project(tmp_path_factory.mktemp("broken"))
    try:
        built = made.materialise()
        assert built.red == {}
        yield made
    finally:
        made.end()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_what_is_broken_by_hand_turns_exactly_its_checks_red(lab: LabProject, fault: Fault) -> None:
    with lab.cluster() as living:
        fault.done(living)
    seen = lab.check()
    healed = lab.materialise(f"{fault.heals}+")
    assert seen.of("broken") - fault.by_moment == fault.broken
    assert seen.of("not_evaluated") - BETWEEN_ATTEMPTS == fault.unseen
    assert set(seen.verdicts) == every(*CHECKS), "all checks were executed"
    assert not seen.materialised
    assert seen.success == fault.broken.isdisjoint(PINNED_GATES), "a red gate makes a red run"
    assert healed.red == {}
    assert healed.materialised == {fault.heals, *descendants(fault.heals)}
    # That the rest is green again as well shows in the next test: it finds its own checks broken and no other.


def test_the_command_line_says_the_same_and_heals_it(lab: LabProject) -> None:
    with lab.cluster() as living:
        living.patch("nodes", NODE, {"metadata": {"labels": {"nvidia.com/gpu.product": "NVIDIA-H100"}}})
    said = lab.call("check", "--json")
    assert said.code == 1, said.text
    verdicts = {f"{c['asset']}.{c['check']}": c["verdict"] for claim in said.json["claims"] for c in claim["checks"]}
    assert {name for name, found in verdicts.items() if found == "broken"} == {"labelled_node.gpu_product_label"}
    alone = lab.call("check", "labelled_node.gpu_product_label")
    assert alone.code == 1, alone.text
    assert "observed NVIDIA-H100" in alone.out.replace("\n", " ")
    assert lab.call("check", "labelled_node.gpu_memory_label").code == 0
    healed = lab.run("run", "--select", "labelled_node")
    assert healed.code == 0, healed.text
    assert lab.call("check", "labelled_node").code == 0


def test_checks_that_could_not_be_executed_say_why_first(lab: LabProject) -> None:
    lab.edit("manifests/canary-pod.yaml", "kind: Pod", "kind: [")
    try:
        said = lab.call("check", "kai_release.scheduler_alive", "cluster.node_ready")
        as_json = lab.call("check", "kai_release.scheduler_alive", "--json")
    finally:
        lab.edit("manifests/canary-pod.yaml", "kind: [", "kind: Pod")
    assert said.code == as_json.code == 2, said.text
    head = said.out[: said.out.index("The lab's claims")].splitlines()
    assert head[0].startswith("✗ kai_release: Cause: One of the lab's manifests cannot be used.")
    assert any(line.strip().startswith("Do: ") for line in head)
    assert any("A manifest is not YAML" in line for line in head)
    assert any("canary-pod.yaml" in line for line in head)
    assert said.out.count("✗ ") == 1
    assert "✗ kai_release: " in as_json.err
    assert as_json.json["counts"]["not_evaluated"] == 1
