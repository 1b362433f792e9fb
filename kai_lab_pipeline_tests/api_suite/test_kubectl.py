from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from kai_lab_pipeline_tests.api_suite.support import Api, config_map, deployment, pod

KUBECTL = shutil.which("kubectl")

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]

Kubectl = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(kubeconfig: Path, namespace: str, tmp_path: Path) -> Kubectl:
    def call(*arguments: str, stdin: object = None, fails: bool = False) -> subprocess.CompletedProcess[str]:
        command = [str(KUBECTL), "--kubeconfig", str(kubeconfig), "--cache-dir", str(tmp_path), "-n", namespace]
        text = yaml.safe_dump(stdin) if stdin is not None else None
        done = subprocess.run(
            [*command, *arguments], input=text, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done

    return call


def test_get_and_wide(run: Kubectl, api: Api, pods: str) -> None:
    api.post(pods, pod("p", schedulerName="nobody"))
    head, row = run("get", "pods").stdout.splitlines()
    assert head.split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["p", "0/1", "Pending", "0"]
    wide = run("get", "po", "-o", "wide").stdout.splitlines()[0]
    assert "NOMINATED NODE" in wide
    assert run("get", "pod", "p", "-o", "jsonpath={.metadata.name}").stdout == "p"


def test_apply_from_the_client(run: Kubectl) -> None:
    assert "configmap/a created" in run("apply", "-f", "-", stdin=config_map("a", k="1")).stdout
    assert "configmap/a configured" in run("apply", "-f", "-", stdin=config_map("a", k="2")).stdout
    assert "configmap/a unchanged" in run("apply", "-f", "-", stdin=config_map("a", k="2")).stdout


def test_apply_removes_what_is_no_longer_there(run: Kubectl, api: Api, namespace: str) -> None:
    body = deployment("d")
    containers = body["spec"]["template"]["spec"]["containers"]
    containers.append({"name": "side", "image": "s:1"})
    run("apply", "-f", "-", stdin=body)
    containers.pop()
    run("apply", "-f", "-", stdin=body)
    live = api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/d")
    assert [c["name"] for c in live["spec"]["template"]["spec"]["containers"]] == ["c"]


def test_apply_on_the_server_and_its_conflicts(run: Kubectl) -> None:
    run("apply", "--server-side", "--field-manager=alpha", "-f", "-", stdin=config_map("a", k="1"))
    said = run(
        "apply", "--server-side", "--field-manager=beta", "-f", "-", stdin=config_map("a", k="2"), fails=True
    ).stderr
    assert 'Apply failed with 1 conflict: conflict with "alpha": .data.k' in said
    arguments = ("apply", "--server-side", "--force-conflicts", "--field-manager=beta", "-f", "-")
    assert "serverside-applied" in run(*arguments, stdin=config_map("a", k="2")).stdout


def test_unknown_fields_are_refused(run: Kubectl) -> None:
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"contaners": []}}
    said = run("apply", "-f", "-", stdin=body, fails=True).stderr
    assert 'strict decoding error: unknown field "spec.contaners"' in said


def test_dry_run_on_the_server(run: Kubectl, api: Api, configmaps: str) -> None:
    said = run("apply", "--dry-run=server", "-f", "-", stdin=config_map("a")).stdout
    assert "configmap/a created (server dry run)" in said
    assert not api.exists(f"{configmaps}/a")


def test_label_and_annotate(run: Kubectl, api: Api, configmaps: str) -> None:
    api.post(configmaps, config_map("a", k="1"))
    run("label", "cm", "a", "nvidia.com/gpu.memory=40960")
    run("annotate", "cm", "a", "x=y")
    metadata = api.get(f"{configmaps}/a")["metadata"]
    assert metadata["labels"] == {"nvidia.com/gpu.memory": "40960"}
    assert metadata["annotations"] == {"x": "y"}
    assert "kubectl-label" in {entry["manager"] for entry in metadata["managedFields"]}


def test_wait(run: Kubectl, api: Api, pods: str) -> None:
    api.post(pods, pod("p", schedulerName="nobody"))
    condition = {"type": "Ready", "status": "True"}
    api.patch(f"{pods}/p/status", {"status": {"phase": "Running", "conditions": [condition]}})
    assert "condition met" in run("wait", "pod/p", "--for=condition=ready", "--timeout=20s").stdout
    run("wait", "pod/p", "--for=jsonpath={.status.phase}=Running", "--timeout=20s")
    run("delete", "pod", "p", "--now")
    run("wait", "pod/p", "--for=delete", "--timeout=20s")


def test_wait_for_nothing(run: Kubectl) -> None:
    said = run("wait", "--for=condition=ready", "pod", "-l", "name=nope", "--timeout=5s", fails=True).stderr
    assert "no matching resources found" in said


def test_describe_shows_events(run: Kubectl, api: Api, namespace: str, pods: str) -> None:
    made = api.post(pods, pod("p", schedulerName="nobody"))
    about = {"kind": "Pod", "name": "p", "namespace": namespace, "uid": made["metadata"]["uid"]}
    event = {"metadata": {"name": "e"}, "involvedObject": about, "reason": "BindingError", "message": "no luck"}
    api.post(f"/api/v1/namespaces/{namespace}/events", {**event, "type": "Warning", "source": {"component": "binder"}})
    said = run("describe", "pod", "p").stdout
    assert "BindingError" in said
    assert "no luck" in said


def test_logs(run: Kubectl, api: Api, pods: str) -> None:
    api.post(pods, pod("p", schedulerName="nobody"))
    assert run("logs", "p").stdout == ""


def test_scale_and_rollout(run: Kubectl, api: Api, namespace: str) -> None:
    run("apply", "-f", "-", stdin=deployment("d"))
    run("scale", "deploy/d", "--replicas=3")
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/d"
    assert api.get(path)["spec"]["replicas"] == 3
    run("rollout", "restart", "deploy/d")
    annotations = api.get(path)["spec"]["template"]["metadata"]["annotations"]
    assert "kubectl.kubernetes.io/restartedAt" in annotations


def test_create_delete_and_what_is_not_there(run: Kubectl) -> None:
    run("create", "-f", "-", stdin=config_map("a", k="v"))
    said = run("create", "-f", "-", stdin=config_map("a"), fails=True).stderr
    assert 'Error from server (AlreadyExists): error when creating "STDIN": configmaps "a" already exists' in said
    run("delete", "configmap", "a")
    assert 'Error from server (NotFound): configmaps "a" not found' in run("get", "cm", "a", fails=True).stderr
    assert 'the server doesn\'t have a resource type "nopes"' in run("get", "nopes", fails=True).stderr


def test_patch_and_replace(run: Kubectl, api: Api, configmaps: str) -> None:
    made = api.post(configmaps, config_map("a", k="1"))
    run("patch", "cm", "a", "--type=merge", "-p", '{"data":{"k":"2"}}')
    said = run("replace", "-f", "-", stdin={**made, "data": {"k": "3"}}, fails=True).stderr
    assert "the object has been modified" in said


def test_api_resources(run: Kubectl) -> None:
    listed = {line.split()[0] for line in run("api-resources", "--no-headers").stdout.splitlines()}
    assert {"runtimeclasses", "pods", "deployments", "customresourcedefinitions"} <= listed


def test_kinds_that_are_not_there_yet(run: Kubectl) -> None:
    body = {"apiVersion": "nope.run.ai/v2", "kind": "Queue", "metadata": {"name": "q"}}
    said = run("apply", "-f", "-", stdin=body, fails=True).stderr
    assert 'no matches for kind "Queue" in version "nope.run.ai/v2"' in said
    assert "ensure CRDs are installed first" in said


def test_typed_commands(run: Kubectl, api: Api, configmaps: str, namespace: str) -> None:
    """These send protobuf."""
    run("create", "configmap", "a", "--from-literal=k=v", "--from-literal=empty=")
    made = api.get(f"{configmaps}/a")
    assert made["data"] == {"k": "v", "empty": ""}
    assert made["metadata"]["managedFields"][0]["manager"] == "kubectl-create"
    run("create", "secret", "generic", "s", "--from-literal=k=v")
    assert api.get(f"/api/v1/namespaces/{namespace}/secrets/s")["data"] == {"k": "dg=="}
    run("create", "serviceaccount", "sa")
    assert api.exists(f"/api/v1/namespaces/{namespace}/serviceaccounts/sa")
    run("create", "namespace", f"{namespace}-b")
    run("delete", "namespace", f"{namespace}-b")
    assert run("auth", "can-i", "create", "pods").stdout.strip() == "yes"
