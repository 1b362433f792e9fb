"""Remedies as they are told: for this lab's cluster and no other, with names that were seen and no prose for one."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from kai_lab_pipeline.clients.tools import Outcome, ToolError
from kai_lab_pipeline.lab.diagnosis import diagnose_evidence, diagnose_objects, diagnose_text
from kai_lab_pipeline.lab.diagnosis.catalogue import FAULTS
from kai_lab_pipeline.lab.diagnosis.model import CORRECT, Fault, filled, names_for
from kai_lab_pipeline.lab.diagnosis.reach import reaching
from kai_lab_pipeline.lab.evidence import Evidence
from kai_lab_pipeline_tests.damages import recorded
from kai_lab_pipeline_tests.damages.draft import KIND

KUBECTL, HELM = "kubectl --kubeconfig /labs/one/kubeconfig", "helm --kubeconfig /labs/one/kubeconfig"


OF_NO_CLUSTER = ("kubectl config ", "kubectl --kubeconfig", "kubectl version --client")
OF_A_CLUSTER = (
    "helm list",
    "helm upgrade",
    "helm uninstall",
    "helm rollback",
    "helm get",
    "helm status",
    "helm history",
)


@pytest.mark.parametrize("backend", ["kind", "context", "rehearsal"])
def test_every_command_of_a_lab_names_its_cluster(backend: str) -> None:
    """All remedies there are, as one diagnosis: a bare command would act on whatever context is current."""
    found = diagnose_evidence(recorded(KIND))
    [some] = found.expected
    for fault in FAULTS:
        names = names_for(fault, {}, command=True)
        steps = tuple(filled(step, names, command=True) for step in fault.remedy_on(backend))
        told = reaching(replace(found, causes=(replace(some, fault=fault, remedy=steps),)), KUBECTL, HELM)
        for before, after in zip(steps, told.causes[0].remedy, strict=True):
            sentence, colon, command = (
                before.rpartition(": ") if not before.startswith("kubectl ") else ("", "", before)
            )
            if command.startswith("kubectl ") and not command.startswith(OF_NO_CLUSTER):
                assert after.startswith(f"{sentence}{colon}{KUBECTL} "), before
            elif command.removeprefix("or ").startswith(OF_A_CLUSTER):
                assert after.removeprefix(f"{sentence}{colon}").removeprefix("or ").startswith(f"{HELM} "), before
            elif " kubectl " not in command:
                assert after == before


def test_what_a_remedy_says_of_a_command_stays_a_sentence() -> None:
    found = diagnose_text("Error: INSTALLATION FAILED: cannot re-use a name that is still in use")
    told = reaching(found, KUBECTL, HELM)
    assert any(step.startswith(HELM) for step in told.causes[0].remedy)
    assert [step for step in told.causes[0].remedy if step.startswith("With helm 4")] == [
        step for step in found.causes[0].remedy if step.startswith("With helm 4")
    ]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_no_remedy_touches_a_persons_contexts_or_takes_a_lab_s_name(fault: Fault) -> None:
    for step in (*fault.remedy, *fault.elsewhere):
        assert "use-context" not in step
        if "kind create cluster" in step:
            assert "--name try --kubeconfig try.kubeconfig" in step, "a cluster of the lab's name would be no lab's"
        if "kind export kubeconfig" in step or "kind delete cluster" in step:
            assert "--kubeconfig" in step or "if nobody needs it" in step
        assert "docker system prune" not in step, (
            "it removes other people's stopped containers, nodes of kind among them"
        )


def told(command: str, said: str, backend: str = "") -> str:
    return ToolError(Outcome(tuple(shlex.split(command)), 1, stderr=said), "It failed", backend=backend).next_step


def test_a_tool_s_remedy_names_the_release_and_the_cluster_it_was_called_for() -> None:
    pending = "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress\n"
    cluster = "--kubeconfig '/labs/my lab/kubeconfig' --kube-context kind-my-lab"
    steps = told(f"helm upgrade --install kai oci://r/kai --namespace kai-ns {cluster}", pending, "kind").split("; ")
    assert f"helm {cluster} uninstall kai -n kai-ns" in steps
    assert [step for step in steps if step.startswith("helm ")] == [s for s in steps if s.startswith(f"helm {cluster}")]
    unable = "Error: the server is currently unable to handle the request"
    kubectl = f"kubectl {cluster.replace('--kube-context', '--context')}"
    assert f"{kubectl} get apiservices" in told(f"helm list -A {cluster}", unable)


def test_kind_s_remedies_are_about_the_cluster_of_the_lab() -> None:
    taken = 'ERROR: failed to create cluster: node(s) already exist for a cluster with the name "my-lab"\n'
    steps = told("kind create cluster --name my-lab --kubeconfig /labs/my-lab/kubeconfig", taken)
    assert "if nobody needs it: kind delete cluster --name my-lab" in steps
    stopped = "ERROR: failed to detect containerd snapshotter\n"
    assert "docker start my-lab-control-plane" in told("kind load docker-image x:1 --name my-lab", stopped)
    for said in ("The kubelet is not healthy after 4m0s", "ERROR: failed to create cluster: something new"):
        steps = told("kind create cluster --name my-lab --kubeconfig /labs/my-lab/kubeconfig", said)
        assert "kind-logs-" in steps
        assert "kai-hami-test" not in steps


def test_errors_name_the_cluster_in_the_evidence_too() -> None:
    error = (
        "docker could not do it (exit code 1)\nWhere: docker start my-lab-control-plane\nLast seen: failed to detect "
    )
    [cause] = diagnose_evidence(Evidence(), errors=[f"{error}containerd snapshotter"]).causes
    assert "docker start my-lab-control-plane" in cause.remedy
    [cause] = diagnose_evidence(
        Evidence(node="other-control-plane"), errors=["Last seen: failed to detect containerd snapshotter"]
    ).causes
    assert "docker start other-control-plane" in cause.remedy


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_no_command_has_prose_for_a_name(fault: Fault) -> None:
    """Nothing was seen: what is not known stays as <name>."""
    prose = [
        value for value in fault.defaults.values() if " " in value or (value[:1].isupper() and not value.isupper())
    ]
    for step in (*fault.remedy, *fault.elsewhere):
        command = filled(step, names_for(fault, {}, command=True), command=True)
        if command.startswith(("kubectl ", "helm ", "docker ", "kind ", "crictl ")):
            assert not [value for value in prose if value in command]


def test_the_cluster_is_the_one_whose_node_was_seen() -> None:
    waiting = {"reason": "ErrImageNeverPull", "message": 'Container image "nvml-mock:local" is not present'}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "nvml-mock-x", "namespace": "nvml-mock", "uid": "u"},
        "spec": {"nodeName": "other-lab-control-plane", "containers": [{"name": "c", "image": "nvml-mock:local"}]},
        "status": {
            "phase": "Pending",
            "containerStatuses": [
                {
                    "name": "c",
                    "image": "nvml-mock:local",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"waiting": waiting},
                }
            ],
        },
    }
    steps = " ".join(step for cause in diagnose_objects([pod]).causes for step in cause.remedy)
    assert "kai-hami-test" not in steps
    assert "docker exec other-lab-control-plane crictl images" in steps
    assert "--name other-lab" in steps


def test_a_simulated_release_is_mended_in_lab_toml() -> None:
    [off] = [fault for fault in FAULTS if fault.id == "kai.sharing-off"]
    assert CORRECT in off.remedy_on("rehearsal")
    assert not any(step.startswith("helm ") for step in off.remedy_on("rehearsal"))
    assert any(step.startswith("helm upgrade") for step in off.remedy_on("kind"))
