"""Versions of the lab's parts that differ, as the real ones do."""

from __future__ import annotations

from pathlib import Path

from kai_lab_pipeline_tests.rehearsal_lab import NODE, Lab, condition, gpus, labels, running, shared_pod

SHARED = "gpu-sharing-with-isolation"


def deployments(lab: Lab) -> set[str]:
    return {obj["metadata"]["name"] for obj in lab.all("deployments", "kai-scheduler")}


def test_kai_0_20_1_never_comes_up_although_helm_is_content(tmp_path: Path) -> None:
    with running(tmp_path) as lab:
        lab.labelled_gpus()
        assert lab.kai("v0.20.1")["status"] == "deployed"
        found = lab.wait_for(
            "deployments", "kai-scheduler-default", lambda obj: condition(obj, "ReplicaFailure"), "scheduler refused"
        )
        assert 'serviceaccount "scheduler" not found' in condition(found, "ReplicaFailure")["message"]
        lab.wait_for(
            "deployments", "kai-operator", lambda obj: condition(obj, "Available").get("status") == "True", "operator"
        )
        assert deployments(lab) == {"kai-operator", "kai-scheduler-default"}
        lab.apply("queues.yaml")
        lab.isolation()
        lab.apply("shared-gpu-pod.yaml")
        pod = lab.get("pods", SHARED, "default")
        assert pod is not None
        assert "runtimeClassName" not in pod["spec"]
        assert "/usr/local/vgpu" in {mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
        text = lab.log_of("kai-scheduler", "kai-operator", "operator")
        assert 'no matches for kind \\"ClusterPolicy\\" in version \\"nvidia.com/v1\\"' in text
        config = lab.get("configs", "kai-config")
        assert config is not None
        assert "conditions" not in config.get("status", {})


def test_kai_0_16_8_gives_the_same_boundary(tmp_path: Path) -> None:
    with running(tmp_path) as lab:
        lab.labelled_gpus()
        lab.kai("v0.16.8")
        lab.kai_ready()
        lab.apply("queues.yaml")
        lab.isolation(version="1.0.0-chart")
        lab.apply("shared-gpu-pod.yaml")
        lab.wait_event("BindingError", SHARED)
        pod = lab.get("pods", SHARED, "default")
        assert pod is not None
        mounts = {mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
        assert "/etc/ld.so.preload" in mounts
        assert "/usr/local/vgpu/containers" not in mounts
        assert any("allocated: <0.51>" in line for line in lab.accounting())


def test_kai_0_18_shares_by_default_and_tells_no_false_bound(tmp_path: Path) -> None:
    with running(tmp_path) as lab:
        lab.labelled_gpus()
        lab.install("kai-scheduler", "oci://host/kai-scheduler", "v0.18.2", {"global.gpuSharingMode": "HamiCore"})
        lab.kai_ready()
        lab.apply("queues.yaml")
        lab.isolation()
        lab.shared_pod("p", "20480")
        for _ in range(2):
            lab.wait_event("BindingError", "p")

        def two_failures(events: list[dict[str, object]]) -> bool:
            return sum(e["reason"] == "BindingError" for e in events) >= 2

        lab.wait("events", two_failures, "two failed attempts")
        assert not [e for e in lab.all("events", "default") if e["reason"] == "Bound"]


def test_an_upgrade_keeps_pods_and_queues(tmp_path: Path) -> None:
    with running(tmp_path) as lab:
        lab.labelled_gpus()
        lab.kai("v0.16.8")
        lab.kai_ready()
        lab.apply("queues.yaml")
        lab.create(shared_pod("keeps", {}, **{"nvidia.com/gpu": "1"}))
        before = lab.wait_phase("keeps", "Running")
        assert lab.kai("v0.17.0")["revision"] == "2"

        def rolled(found: list[dict[str, object]]) -> bool:
            images = [
                obj["spec"]["template"]["spec"]["containers"][0]["image"]  # type: ignore[index]
                for obj in found
                if obj["metadata"]["namespace"] == "kai-scheduler"  # type: ignore[index]
            ]
            done = [condition(obj, "Progressing").get("reason") == "NewReplicaSetAvailable" for obj in found]
            return len(images) == 7 and all(image.endswith(":v0.17.0") for image in images) and all(done)

        lab.wait("deployments", rolled, "all rolled out")
        lab.wait_serving("admission", "queue-controller")
        after = lab.get("pods", "keeps", "default")
        assert after is not None
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["status"]["containerStatuses"][0]["restartCount"] == 0
        queue = lab.get("queues", "default-queue")
        assert queue is not None
        assert queue["spec"]["parentQueue"] == "default"


def test_the_next_mock_shows_four_cards_and_labels_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as lab:
        lab.mock("0.4.0-rc1", **{"gpu.profile": "gb300"})
        lab.wait(
            "pods", lambda pods: any(condition(pod, "Ready").get("status") == "True" for pod in pods), "mock ready"
        )
        node = lab.get("nodes", NODE)
        assert node is not None
        assert "nvidia.com/gpu.present" not in labels(node)
        lab.apply("device-plugin.yaml")
        lab.patch("nodes", NODE, {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}})
        lab.wait_for("nodes", NODE, lambda found: gpus(found) == "4", "four cards")


def test_the_older_mock_sets_a_pci_label_itself(tmp_path: Path) -> None:
    with running(tmp_path) as lab:
        lab.mock("0.2.1")
        key = "feature.node.kubernetes.io/pci-10de.present"
        lab.wait_for("nodes", NODE, lambda node: labels(node).get(key) == "true", "PCI label")
