"""Backend `context` on somebody else's cluster: what was there before the lab is neither changed nor taken away."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from kai_lab_pipeline.backends.context import ContextBackend
from kai_lab_pipeline.clients.kubeconfig import write_kubeconfig
from kai_lab_pipeline.clients.kubernetes import ApiError, Cluster, NotFound
from kai_lab_pipeline.clients.manifests import ManifestError, lab_queue, load_manifest
from kai_lab_pipeline.commands.down import down_command
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.rehearsal import process
from kai_lab_pipeline.rehearsal.charts import kai_crds
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench import steps
from kai_lab_pipeline.workbench.drift import drift_of
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.teardown import tear_down
from kai_lab_pipeline_tests.stubs.workplace import PATIENCE_S, PROJECT, QuickTools, Workplace, make_workplace

NODE = "gpu-1"
RUNTIME_CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
QUEUE = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "default"}}
PLUGIN = ("daemonsets", "nvidia-device-plugin-mock", "kube-system")
WEBHOOK = "mutatingwebhookconfigurations"
RESERVATIONS = "kai-resource-reservation"


ANYTHING: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ConfigMap": ("v1", "configmaps", {"data": {"a": "b"}}),
    "Secret": ("v1", "secrets", {"stringData": {"a": "b"}}),
    "PersistentVolumeClaim": (
        "v1",
        "persistentvolumeclaims",
        {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}},
    ),
    "Job": (
        "batch/v1",
        "jobs",
        {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]}}}},
    ),
}
"""API version, resource and body of kinds that the lab does not use."""


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[process.ServerHandle]:
    state = tmp_path_factory.mktemp("borrowed")
    yield process.ensure(state, name="borrowed", options={"components": False})
    process.stop(state, forget=True)


@pytest.fixture
def theirs(server: process.ServerHandle) -> Iterator[Somebody]:
    """The cluster through the eyes of somebody else; as it was before, afterwards."""
    context = str(yaml.safe_load(server.kubeconfig.read_text())["current-context"])
    cluster = Somebody(server.kubeconfig, context)
    cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    yield cluster
    gone = [("namespaces", "kai-scheduler", None)]
    labs = [*gone, PLUGIN, ("runtimeclasses", "nvidia", None), ("configmaps", "kai-lab-owner", "kube-system")]
    for resource, name, namespace in [*labs, *reversed(cluster.seen)]:
        cluster.delete(resource, name, namespace=namespace, grace_s=0)


class Somebody(Cluster):
    """Makes objects as kubectl does, and remembers which."""

    def __init__(self, kubeconfig: Path, context: str) -> None:
        super().__init__(kubeconfig, context)
        self.seen: list[tuple[str, str, str | None]] = []

    def create(self, obj: Any, *, dry_run: bool = False) -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kai_lab_pipeline.clients.kubernetes.FIELD_MANAGER", "kubectl-create")
            made = super().create(obj, dry_run=dry_run)
        self.seen.append((self.resource_of(obj), obj["metadata"]["name"], obj["metadata"].get("namespace")))
        return made

    def relabel(self, node: str = NODE, manager: str = "gpu-feature-discovery", **labels: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kai_lab_pipeline.clients.kubernetes.FIELD_MANAGER", manager)
            self.patch("nodes", node, {"metadata": {"labels": labels}})

    def put_anything(self, kind: str, name: str, namespace: str) -> str:
        """An object of a kind that the lab does not use; its resource. It goes with its namespace."""
        api, resource, rest = ANYTHING[kind]
        base = f"/api/{api}" if api == "v1" else f"/apis/{api}"
        body = {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **rest}
        path, query = f"{base}/namespaces/{namespace}/{resource}", [("fieldManager", "kubectl-create")]
        self._call("POST", path, query=query, body=body, what=f"create {kind}")
        return resource

    def anything(self, resource: str, name: str, namespace: str) -> dict[str, Any]:
        api = next(api for api, plural, _ in ANYTHING.values() if plural == resource)
        return self._call("GET", f"/apis/{api}/namespaces/{namespace}/{resource}/{name}", what=f"read {name}")

    def wait_served(self, resource: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with suppress(NotFound):
                self.objects(resource)
                return
        pytest.fail(f"{resource} is not served")

    def advertise(self, node: str = NODE, *, mocked: bool = True) -> None:
        """GPUs on the node: real ones, or shown by the mock."""
        self._call(
            "PATCH",
            f"/api/v1/nodes/{node}/status",
            body={"status": {"allocatable": {"nvidia.com/gpu": "8"}}},
            content_type="application/merge-patch+json",
            what="patch the node's status",
        )
        if mocked:
            self.create(daemonset("nvml-mock"))


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: process.ServerHandle, theirs: Somebody
) -> Iterator[Workplace]:
    for workplace in make_workplace(tmp_path, monkeypatch):
        content = yaml.safe_load(server.kubeconfig.read_text())
        write_kubeconfig(workplace.home / ".kube" / "config", content | {"current-context": "another"})
        shutil.copy(PROJECT / "dagster.yaml", workplace.project)
        monkeypatch.setenv("KAI_LAB_PROJECT", str(workplace.project))
        monkeypatch.setenv("KAI_LAB_BACKEND", "context")
        monkeypatch.setenv("DAGSTER_HOME", "")  # commands set it for their process
        yield workplace


def lab_on(place: Workplace, context: str | None) -> Lab:
    return lab_of(place.settings(lab__backend="context", lab__context=context))


def lab_of(settings: Settings) -> Lab:
    lab = Lab(settings, "test", quiet)
    backend = ContextBackend(settings, pause=lambda seconds: None)
    backend.use(QuickTools(backend.tools.registry, backend.tools.transcripts))
    lab.backend = backend
    return lab


@pytest.fixture
def lab(place: Workplace, theirs: Somebody) -> Lab:
    return lab_on(place, theirs.context)


def install_kai(lab: Lab, theirs: Somebody) -> None:
    """KAI on its way: helm has made its namespace."""
    lab.backend.install("kai_scheduler", lab.settings.charts.kai_scheduler, quiet)
    theirs.create(namespace(lab.settings.charts.kai_scheduler.namespace))


def namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def daemonset(name: str, namespace: str = "kube-system") -> dict[str, Any]:
    container = {"name": "c", "image": "busybox"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
        },
    }


def pod(name: str, namespace: str = "default") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [{"name": "c", "image": "busybox"}]},
    }


def state_of(cluster: Cluster, resource: str, name: str, namespace: str | None = None) -> Any:
    """Who an object is and what was last done to it."""
    found = cluster.find(resource, name, namespace=namespace)
    return found and (found["metadata"]["uid"], found["metadata"]["resourceVersion"])


# -- what was there before -------------------------------------------------------------------------------------------


def test_a_runtime_class_that_is_as_the_lab_wants_it_serves_and_stays(lab: Lab, theirs: Somebody) -> None:
    theirs.create(RUNTIME_CLASS | {"handler": "runc"})
    before = state_of(theirs, "runtimeclasses", "nvidia")
    lab.backend.ensure_cluster(quiet)
    facts = steps.apply(lab, "nvidia_runtime_class")
    assert not facts.changed
    assert "was there before the lab" in facts.summary
    torn = tear_down(lab)
    assert "runtimeclasses/nvidia was not made by this lab and stays" in torn.done
    assert torn.leftovers == []
    assert state_of(theirs, "runtimeclasses", "nvidia") == before, "not even its managed fields changed"


def test_one_with_another_handler_stops_the_step_and_stays(lab: Lab, theirs: Somebody) -> None:
    theirs.create(RUNTIME_CLASS | {"handler": "nvidia"})
    before = state_of(theirs, "runtimeclasses", "nvidia")
    lab.backend.ensure_cluster(quiet)
    with pytest.raises(LabError, match="runtimeclasses/nvidia is on the cluster already") as caught:
        steps.apply(lab, "nvidia_runtime_class")
    assert "written by kubectl-create" in caught.value.seen
    assert f" --context {theirs.context} delete runtimeclasses nvidia" in caught.value.next_step
    assert state_of(theirs, "runtimeclasses", "nvidia") == before


@pytest.mark.parametrize("asset", ["device_plugin", "shared_gpu_pod"])
def test_an_object_that_came_after_the_lab_is_no_more_the_labs(lab: Lab, theirs: Somebody, asset: str) -> None:
    lab.backend.ensure_cluster(quiet)
    obj = steps.objects_of(lab, asset)[0]
    meta = obj["metadata"]
    named = {"metadata": {"name": meta["name"], "namespace": meta["namespace"]}}
    theirs.create((daemonset("x") if obj["kind"] == "DaemonSet" else pod("x")) | named)
    resource = theirs.resource_of(obj)
    before = state_of(theirs, resource, meta["name"], meta["namespace"])
    with pytest.raises(LabError, match="the lab did not make it"):
        steps.apply(lab, asset)
    torn = tear_down(lab)
    assert f"{resource}/{meta['name']} was not made by this lab and stays" in torn.done
    assert state_of(theirs, resource, meta["name"], meta["namespace"]) == before


def test_a_canary_of_somebody_else_is_not_taken_away(lab: Lab, theirs: Somebody) -> None:
    theirs.create(pod("kai-lab-canary"))
    lab.backend.ensure_cluster(quiet)
    with pytest.raises(LabError, match="pods/kai-lab-canary is on the cluster already"), lab.observer() as observer:
        observer.observe("kai_release")
    assert theirs.find("pods", "kai-lab-canary", namespace="default") is not None


def test_what_the_lab_made_is_replaced_and_removed(lab: Lab, theirs: Somebody) -> None:
    lab.backend.ensure_cluster(quiet)
    assert steps.apply(lab, "nvidia_runtime_class").changed
    assert steps.apply(lab, "device_plugin").changed
    assert "unchanged" in steps.apply(lab, "device_plugin").summary
    torn = tear_down(lab)
    assert torn.leftovers == []
    assert theirs.find("runtimeclasses", "nvidia") is None
    assert theirs.find(PLUGIN[0], PLUGIN[1], namespace=PLUGIN[2]) is None
    assert theirs.find("configmaps", "kai-lab-owner", namespace="kube-system") is None
    assert not lab.backend.cluster_exists()
    assert tear_down(lab).done == ["the cluster is gone already"]


def test_labels_of_the_node_are_written_only_where_there_were_none(lab: Lab, theirs: Somebody) -> None:
    theirs.advertise()
    theirs.relabel(**{"nvidia.com/gpu.count": "8", "zone": "a"})
    lab.backend.ensure_cluster(quiet)
    assert lab.backend.was_there("labels", NODE, "nvidia.com/gpu.count")
    assert steps.label_nodes(lab).changed
    torn = tear_down(lab)
    assert f"labels nvidia.com/gpu.memory, nvidia.com/gpu.product removed from node {NODE}" in torn.done
    labels = theirs.get("nodes", NODE)["metadata"]["labels"]
    assert {key: labels[key] for key in ("nvidia.com/gpu.count", "zone")} == {"nvidia.com/gpu.count": "8", "zone": "a"}
    assert "nvidia.com/gpu.memory" not in labels


def test_a_label_of_others_that_says_something_else_stops_the_step(lab: Lab, theirs: Somebody) -> None:
    theirs.advertise()
    theirs.relabel(**{"nvidia.com/gpu.memory": "81559"})
    lab.backend.ensure_cluster(quiet)
    with pytest.raises(LabError, match="is not the lab's, and says something else") as caught:
        steps.label_nodes(lab)
    by = "written by gpu-feature-discovery"
    assert caught.value.seen == f"nvidia.com/gpu.memory=81559, {by}; the lab's profile says 40960"
    assert theirs.get("nodes", NODE)["metadata"]["labels"]["nvidia.com/gpu.memory"] == "81559"


def test_labels_of_a_node_that_joins_later_are_whose_that_wrote_them(lab: Lab, theirs: Somebody) -> None:
    lab.backend.ensure_cluster(quiet)
    theirs.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-2"}})
    discovered = {"nvidia.com/gpu.memory": "81920", "nvidia.com/gpu.present": "true"}
    theirs.relabel("gpu-2", **discovered)
    theirs.advertise("gpu-2")
    with pytest.raises(LabError, match=r"label nvidia\.com/gpu\.memory of node gpu-2 is not the lab's"):
        steps.label_nodes(lab)
    lab.backend.install("nvml_mock", lab.settings.charts.nvml_mock, quiet)
    theirs.relabel(manager="kubectl-label", **{"nvidia.com/gpu.present": "true"})
    assert tear_down(lab).leftovers == []
    assert theirs.get("nodes", "gpu-2")["metadata"]["labels"] == discovered
    assert "nvidia.com/gpu.present" not in (theirs.get("nodes", NODE)["metadata"].get("labels") or {}), "the mock's"


def test_a_label_that_a_person_wrote_stays_where_the_lab_has_no_mock(lab: Lab, theirs: Somebody) -> None:
    lab.backend.ensure_cluster(quiet)
    theirs.relabel(manager="kubectl-label", **{"nvidia.com/gpu.present": "true"})
    assert tear_down(lab).leftovers == []
    assert theirs.get("nodes", NODE)["metadata"]["labels"] == {"nvidia.com/gpu.present": "true"}


# -- namespaces and webhooks -----------------------------------------------------------------------------------------


def test_a_namespace_with_work_of_others_is_left_and_told(lab: Lab, theirs: Somebody) -> None:
    lab.backend.ensure_cluster(quiet)
    install_kai(lab, theirs)
    theirs.create(pod("somebodys", "kai-scheduler"))
    torn = tear_down(lab)
    (left,) = torn.leftovers
    assert left.what == "namespaces/kai-scheduler, in which others have pods/somebodys"
    assert left.command.endswith("delete namespaces kai-scheduler")
    assert lab.backend.cluster_exists(), "the mark stays until nothing is left"
    theirs.delete("pods", "somebodys", namespace="kai-scheduler", grace_s=0)
    assert tear_down(lab).leftovers == []
    assert theirs.find("namespaces", "kai-scheduler") is None
    assert not lab.backend.cluster_exists()


def of_kai(obj: dict[str, Any], name: str, namespace: str | None = "kai-scheduler", **more: Any) -> dict[str, Any]:
    """An object as KAI's operator makes it."""
    labels = {"app": name, "app.kubernetes.io/managed-by": "kai-operator"}
    meta: dict[str, Any] = {"name": name, "labels": labels} | more | ({"namespace": namespace} if namespace else {})
    return obj | {"metadata": meta}


def binder(**more: Any) -> dict[str, Any]:
    return of_kai(daemonset("binder") | {"kind": "Deployment"}, "binder", **more)


def reservation(name: str) -> dict[str, Any]:
    return of_kai(pod(name), name, RESERVATIONS, labels={"app": RESERVATIONS})


@pytest.mark.parametrize("renamed", [False, True], ids=["as installed", "renamed in lab.toml since"])
def test_what_the_labs_kai_made_goes_from_namespaces_that_were_there(
    place: Workplace, lab: Lab, theirs: Somebody, renamed: bool
) -> None:
    """Those stay, with all that others have in them, be it of a KAI of before."""
    for name in ("kai-scheduler", RESERVATIONS):
        theirs.create(namespace(name))
    others = [pod("somebodys", RESERVATIONS), reservation("gpu-reservation-early"), daemonset("dns", "kai-scheduler")]
    for obj in others:
        theirs.create(obj)
    theirs.put_anything("Secret", "pull-secret", "kai-scheduler")
    lab.backend.ensure_cluster(quiet)
    lab.backend.install("kai_scheduler", lab.settings.charts.kai_scheduler, quiet)
    config = {"apiVersion": "kai.scheduler/v1", "kind": "Config", "name": "kai-config", "uid": theirs.incarnation()}
    owned = {"name": "kai-queue-validation-v2", "ownerReferences": [config]}
    kais = [
        binder(),
        reservation("gpu-reservation-0123456789abcdef"),
        {**namespace("x"), "kind": "ConfigMap"} | {"metadata": binder()["metadata"]},
        webhook("kai-queue-validation-v2", "queue-controller") | {"metadata": owned},
    ]
    for obj in kais:
        theirs.create(obj)
    theirs.put_anything("Secret", "queue-webhook-tls-secret", "kai-scheduler")
    if renamed:
        file = place.project / "lab.toml"
        file.write_text(file.read_text().replace('release = "kai-scheduler"', 'release = "renamed"'))
        lab = lab_on(place, None)
    assert tear_down(lab).leftovers == []
    assert [obj["metadata"]["name"] for obj in kais if there(theirs, obj)] == []
    assert all(there(theirs, obj) for obj in others)
    assert theirs.find("secrets", "pull-secret", namespace="kai-scheduler") is not None
    assert theirs.find("secrets", "queue-webhook-tls-secret", namespace="kai-scheduler") is None
    assert theirs.find("namespaces", RESERVATIONS) is not None
    assert not lab.backend.cluster_exists()


def test_what_a_later_kai_of_others_made_stays(lab: Lab, theirs: Somebody) -> None:
    """Also the namespace of its reservation pods, though that came with the lab."""
    lab.backend.ensure_cluster(quiet)
    install_kai(lab, theirs)
    for name in (RESERVATIONS, "their-kai"):
        theirs.create(namespace(name))
    operators = {"labels": {"app.kubernetes.io/managed-by": "kai-operator"}}
    both = webhook("of-two", "admission")
    both["webhooks"] += webhook("other", "admission", "their-kai")["webhooks"]
    kais = [
        binder(namespace="their-kai"),
        of_kai(binder(), "kai-operator", "their-kai"),
        reservation("gpu-reservation-0123456789abcdef"),
        webhook("theirs", "admission", "their-kai"),
        both,
    ]
    ours = [binder(), webhook("ours", "admission")]
    for obj in (*kais, *ours):
        theirs.create(obj | {"metadata": operators | obj["metadata"]})
    assert tear_down(lab).leftovers == []
    assert [obj["metadata"]["name"] for obj in kais if not there(theirs, obj)] == []
    assert [obj["metadata"]["name"] for obj in ours if there(theirs, obj)] == []
    assert theirs.get("namespaces", RESERVATIONS)["metadata"].get("deletionTimestamp") is None
    assert theirs.find("namespaces", "kai-scheduler") is None
    assert not lab.backend.cluster_exists()


def there(cluster: Cluster, obj: dict[str, Any]) -> bool:
    meta = obj["metadata"]
    return cluster.find(Cluster.resource_of(obj), meta["name"], namespace=meta.get("namespace")) is not None


def test_what_kai_made_and_does_not_go_is_told_until_it_is_gone(
    lab: Lab, theirs: Somebody, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kai_lab_pipeline.backends.kai_made.GONE_DEADLINE_S", 0.1)
    theirs.create(namespace("kai-scheduler"))
    lab.state.open()
    lab.backend.ensure_cluster(quiet)
    lab.backend.install("kai_scheduler", lab.settings.charts.kai_scheduler, quiet)
    theirs.create(binder(finalizers=["example.com/held"]))
    for _ in range(2):
        assert down_command(everything=False) == 3
        said = " ".join(capsys.readouterr().out.split())
        assert "nothing is left" not in said
        assert "1 things are left" in said
        assert "left: deployments/binder (deletionTimestamp " in said
        assert said.count("delete deployments binder -n kai-scheduler") == 1
        assert lab.backend.cluster_exists(), "the mark stays until nothing is left"
    theirs.patch("deployments", "binder", {"metadata": {"finalizers": None}}, namespace="kai-scheduler")
    assert theirs.find("deployments", "binder", namespace="kai-scheduler") is None
    theirs.create(binder())
    assert down_command(everything=False) == 0
    assert "nothing is left" in capsys.readouterr().out
    assert theirs.find("deployments", "binder", namespace="kai-scheduler") is not None, "that of a KAI of others"
    assert not lab.backend.cluster_exists()


def test_a_webhook_that_serves_somebody_stays_and_a_dead_one_goes(lab: Lab, theirs: Somebody) -> None:
    lab.backend.ensure_cluster(quiet)
    theirs.create(namespace("kai-scheduler"))
    port = {"port": 443}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "guard", "namespace": "kai-scheduler"}}
    theirs.create(service | {"spec": {"ports": [port]}})
    for name, serves in (("guard", "guard"), ("stale", "gone")):
        theirs.create(webhook(name, serves))
    lab.backend.install("kai_scheduler", lab.settings.charts.kai_scheduler, quiet)
    assert theirs.find(WEBHOOK, "guard") is not None
    assert theirs.find(WEBHOOK, "stale") is None


def webhook(name: str, service: str, namespace: str = "kai-scheduler") -> dict[str, Any]:
    hook = {
        "name": f"{name}.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "clientConfig": {"service": {"name": service, "namespace": namespace}},
        "rules": [{"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}],
    }
    api = "admissionregistration.k8s.io/v1"
    return {
        "apiVersion": api,
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [hook],
    }


@pytest.mark.parametrize("kind", ["ConfigMap", "Secret", "PersistentVolumeClaim", "Job"])
def test_a_namespace_with_anything_of_others_is_left(lab: Lab, theirs: Somebody, kind: str) -> None:
    lab.backend.ensure_cluster(quiet)
    install_kai(lab, theirs)
    resource = theirs.put_anything(kind, "precious", "kai-scheduler")
    (left,) = tear_down(lab).leftovers
    assert left.what == f"namespaces/kai-scheduler, in which others have {resource}/precious"
    assert theirs.find("namespaces", "kai-scheduler") is not None


def test_a_child_is_its_owners(lab: Lab, theirs: Somebody) -> None:
    """A pod of somebody's Job has an owner as KAI's own pods have, and is no more the lab's for that."""
    lab.backend.ensure_cluster(quiet)
    install_kai(lab, theirs)
    theirs.put_anything("Job", "precious", "kai-scheduler")
    job = theirs.anything("jobs", "precious", "kai-scheduler")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "precious", "uid": job["metadata"]["uid"]}
    kais = owner | {"apiVersion": "kai.scheduler/v1", "kind": "Config", "name": "kai-config", "uid": "no-more"}
    for name, of in (("childs", owner), ("kais", kais)):
        child = pod(name, "kai-scheduler")
        theirs.create(child | {"metadata": child["metadata"] | {"ownerReferences": [of]}})
    (left,) = tear_down(lab).leftovers
    assert "jobs/precious" in left.what
    assert "pods/childs" in left.what
    assert "pods/kais" not in left.what


def test_webhooks_that_were_there_before_stay_even_if_they_are_dead(lab: Lab, theirs: Somebody) -> None:
    theirs.create(webhook("early", "not-yet-there"))
    lab.backend.ensure_cluster(quiet)
    lab.backend.install("kai_scheduler", lab.settings.charts.kai_scheduler, quiet)
    assert theirs.find(WEBHOOK, "early") is not None


def test_what_was_removed_is_told_though_something_is_left(lab: Lab, theirs: Somebody) -> None:
    lab.backend.ensure_cluster(quiet)
    steps.apply(lab, "nvidia_runtime_class")
    install_kai(lab, theirs)
    theirs.put_anything("Secret", "precious", "kai-scheduler")
    torn = tear_down(lab)
    assert torn.leftovers != []
    assert {"nvidia_runtime_class", "labelled_node", "kai_release"} <= torn.gone
    assert "cluster" not in torn.gone


def test_a_release_is_removed_by_the_name_it_was_installed_with(place: Workplace, lab: Lab) -> None:
    lab.backend.ensure_cluster(quiet)
    lab.backend.install("nvml_mock", lab.settings.charts.nvml_mock, quiet)
    file = place.project / "lab.toml"
    file.write_text(file.read_text().replace('release = "nvml-mock"', 'release = "renamed"'))
    torn = tear_down(lab_on(place, None))
    assert torn.leftovers == []
    assert place.look()["releases"] == {}


def test_a_namespace_that_lab_toml_names_later_was_there_before(place: Workplace, lab: Lab, theirs: Somebody) -> None:
    """The lab's own goes, whatever lab.toml calls it by now; a person's stays, also when KAI is installed into it."""
    theirs.create(namespace("team-a"))
    lab.backend.ensure_cluster(quiet)
    install_kai(lab, theirs)
    file = place.project / "lab.toml"
    file.write_text(file.read_text().replace('namespace = "kai-scheduler"', 'namespace = "team-a"'))
    again = lab_on(place, theirs.context)
    again.backend.install("kai_scheduler", again.settings.charts.kai_scheduler, quiet)
    torn = tear_down(again)
    assert torn.leftovers == []
    assert place.look()["releases"] == {}
    assert theirs.find("namespaces", "team-a") is not None
    assert theirs.find("namespaces", "kai-scheduler") is None


def test_an_object_goes_by_the_name_it_was_made_with(place: Workplace, lab: Lab, theirs: Somebody) -> None:
    lab.backend.ensure_cluster(quiet)
    assert steps.apply(lab, "device_plugin").changed
    file = lab.settings.project_file(lab.settings.manifests.device_plugin.file)
    file.write_text(file.read_text().replace("nvidia-device-plugin-mock", "renamed"))
    assert tear_down(lab_on(place, None)).leftovers == []
    assert theirs.find(PLUGIN[0], PLUGIN[1], namespace=PLUGIN[2]) is None


# -- whose queues ----------------------------------------------------------------------------------------------------


@pytest.fixture
def with_kai_crds(theirs: Somebody) -> Iterator[None]:
    names = [theirs.create(crd)["metadata"]["name"] for crd in kai_crds()]
    theirs.wait_served("queues")
    yield
    for name in ("default-queue", "default"):
        theirs.delete("queues", name)
    for name in names:
        theirs.delete("customresourcedefinitions", name)


@pytest.mark.usefixtures("with_kai_crds")
def test_queues_that_were_there_before_are_not_changed(lab: Lab, theirs: Somebody) -> None:
    amount = {"quota": 2, "limit": 4, "overQuotaWeight": 1}
    spec = {"resources": {"gpu": amount, "cpu": amount, "memory": amount}}
    theirs.create(
        {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "default"}, "spec": spec}
    )
    before = state_of(theirs, "queues", "default")
    lab.backend.ensure_cluster(quiet)
    with pytest.raises(LabError, match="queues/default is on the cluster already"):
        steps.apply(lab, "queues")
    torn = tear_down(lab)
    assert "queues/default was not made by this lab and stays" in torn.done
    assert state_of(theirs, "queues", "default") == before
    assert [item.what for item in torn.kept if "queues" in item.what] == [
        "CRD queues.scheduling.run.ai, with its objects"
    ]


@pytest.mark.usefixtures("with_kai_crds")
def test_queues_that_came_with_the_labs_kai_are_the_labs(lab: Lab, theirs: Somebody) -> None:
    lab.backend.ensure_cluster(quiet)
    theirs.create(QUEUE | {"spec": {}})
    assert steps.apply(lab, "queues").changed
    assert tear_down(lab).leftovers == []
    assert theirs.find("queues", "default") is None


# -- which cluster ---------------------------------------------------------------------------------------------------


def test_a_refused_cluster_is_out_of_reach_of_every_step(place: Workplace, lab: Lab, theirs: Somebody) -> None:
    theirs.create(daemonset("kai-operator", "default") | {"kind": "Deployment"})
    with pytest.raises(LabError, match="not free for the lab"):
        lab.backend.ensure_cluster(quiet)
    assert list(place.settings().lab_dir.glob("kubeconfig*")) == []
    with pytest.raises(LabError, match="has not been given its cluster"):
        steps.apply(lab, "nvidia_runtime_class")
    assert theirs.find("runtimeclasses", "nvidia") is None
    assert not lab.backend.cluster_exists()


def test_without_the_mark_no_step_writes(lab: Lab, theirs: Somebody) -> None:
    lab.backend.ensure_cluster(quiet)
    theirs.delete("configmaps", "kai-lab-owner", namespace="kube-system")
    again = lab_of(lab.settings)
    with pytest.raises(LabError, match="not free for the lab"):
        steps.apply(again, "nvidia_runtime_class")
    assert theirs.find("runtimeclasses", "nvidia") is None
    with pytest.raises(LabError, match="cannot be asked"):
        tear_down(again)


def test_a_lost_kubeconfig_is_not_a_lost_cluster(place: Workplace, lab: Lab, theirs: Somebody) -> None:
    lab.backend.ensure_cluster(quiet)
    (lab.settings.lab_dir / "kubeconfig").unlink()
    assert lab_on(place, None).backend.cluster_exists()
    assert tear_down(lab_on(place, None)).leftovers == []
    assert theirs.find("configmaps", "kai-lab-owner", namespace="kube-system") is None


def test_another_cluster_at_the_same_address_is_another_one(lab: Lab) -> None:
    lab.backend.ensure_cluster(quiet)
    note = lab.settings.lab_dir / "given.json"
    note.write_text(note.read_text().replace(json.loads(note.read_text())["incarnation"], "of-the-cluster-before"))
    assert not lab.backend.cluster_exists()


def test_a_lab_does_not_leave_its_cluster_behind_for_another(place: Workplace, lab: Lab, theirs: Somebody) -> None:
    lab.backend.ensure_cluster(quiet)
    own = (lab.settings.lab_dir / "kubeconfig").read_text()
    content = yaml.safe_load((place.home / ".kube" / "config").read_text())
    content["contexts"].append({**content["contexts"][0], "name": "b"})
    write_kubeconfig(place.home / ".kube" / "config", content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "incarnation", lambda cluster: "b" if cluster.context == "b" else "a")
        note = lab.settings.lab_dir / "given.json"
        note.write_text(note.read_text().replace(json.loads(note.read_text())["incarnation"], "a"))
        other = lab_on(place, "b")
        with pytest.raises(WrongUse, match=f"on the cluster of context {theirs.context}, and b is another one"):
            other.backend.ensure_cluster(quiet)
        with pytest.raises(WrongUse, match="kai-lab down"):
            steps.apply(other, "nvidia_runtime_class")
        assert (lab.settings.lab_dir / "kubeconfig").read_text() == own
        patch.setenv("KAI_LAB_CONTEXT", "b")
        lab.state.open()
        assert down_command(everything=False) == 0, "the lab is taken down where it is"
    assert theirs.find("configmaps", "kai-lab-owner", namespace="kube-system") is None


def test_a_mock_that_was_taken_away_does_not_make_the_gpus_real(lab: Lab, theirs: Somebody) -> None:
    theirs.advertise()
    lab.backend.ensure_cluster(quiet)
    lab.backend.install("nvml_mock", lab.settings.charts.nvml_mock, quiet)
    theirs.delete("daemonsets", "nvml-mock", namespace="kube-system")
    assert dict(lab.backend.skips()) == {}
    assert lab.backend.crossing() is None


def test_a_step_that_is_skipped_on_real_gpus_has_not_drifted(lab: Lab, theirs: Somebody) -> None:
    theirs.advertise(mocked=False)
    lab.backend.ensure_cluster(quiet)
    assert set(lab.skipped) == {"nvml_mock_image", "nvml_mock_release", "device_plugin"}
    assert [drift for asset in lab.skipped for drift in drift_of(lab, asset)] == []
    assert drift_of(lab, "nvidia_runtime_class"), "what is not skipped is looked at"


# -- a cluster that cannot be asked ----------------------------------------------------------------------------------


def test_not_answering_is_not_being_gone(
    lab: Lab, theirs: Somebody, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`down` says that nothing was removed, exits 3, and keeps the folder: the way back to what is left."""
    lab.state.open()
    lab.backend.ensure_cluster(quiet)
    kubeconfig = lab.settings.lab_dir / "kubeconfig"
    right = kubeconfig.read_text()
    kubeconfig.write_text(right.replace(theirs_server(kubeconfig), "http://127.0.0.1:9"))
    with pytest.raises(LabError, match="not answering is not being gone") as caught:
        tear_down(lab)
    assert caught.value.exit_code == 3
    assert f"rm -r {lab.state.folder}" in caught.value.next_step
    for everything in (False, True):
        assert down_command(everything=everything) == 3
        said = capsys.readouterr()
        assert "nothing is left" not in said.out
        assert "nothing was removed" in " ".join((said.out + said.err).split())
        assert lab.state.recorded() is not None
    kubeconfig.write_text(right)
    assert down_command(everything=True) == 0, "no setting names the context: the lab's own kubeconfig does"
    assert not lab.state.folder.exists()
    assert theirs.find("configmaps", "kai-lab-owner", namespace="kube-system") is None


def test_credentials_that_were_renewed_are_taken_from_the_persons_kubeconfig(
    place: Workplace, lab: Lab, theirs: Somebody
) -> None:
    """The lab's copy is of the day it was made; what is refused is not gone."""
    lab.backend.ensure_cluster(quiet)
    copy, persons = lab.settings.lab_dir / "kubeconfig", place.home / ".kube" / "config"
    valid = persons.read_text()
    expired = yaml.safe_load(copy.read_text())
    expired["users"][0]["user"] = {"token": "expired"}
    write_kubeconfig(copy, expired)
    write_kubeconfig(persons, expired)
    with pytest.raises(LabError, match="cannot be asked") as caught:
        tear_down(lab_on(place, theirs.context))
    assert "401" in caught.value.seen
    assert caught.value.next_step == "Log in again, as you do before kubectl, then run it again."
    persons.write_text(valid)
    assert lab_on(place, theirs.context).backend.connect().version()
    write_kubeconfig(copy, expired)
    assert tear_down(lab_on(place, None)).leftovers == []
    assert theirs.find("configmaps", "kai-lab-owner", namespace="kube-system") is None


def theirs_server(kubeconfig: Path) -> str:
    return str(yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"])


# -- manifests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["apiVersion: v1\nkind: Pod\nmetadata: [name]\n", "apiVersion: v1\nkind: Pod\nmetadata: {name: 7}\n", "- pod\n"],
)
def test_what_is_no_object_is_named(place: Workplace, text: str) -> None:
    settings = place.settings()
    settings.project_file("manifests/whole-gpu-pod.yaml").write_text(text)
    with pytest.raises(ManifestError, match="no Kubernetes object") as caught:
        load_manifest(settings, "manifests/whole-gpu-pod.yaml")
    assert caught.value.where.endswith("whole-gpu-pod.yaml, document 1")


def test_a_pod_without_a_namespace_goes_to_default(place: Workplace) -> None:
    settings = place.settings()
    file = settings.project_file("manifests/whole-gpu-pod.yaml")
    file.write_text(file.read_text().replace("  namespace: default\n", ""))
    assert load_manifest(settings, "manifests/whole-gpu-pod.yaml")[0]["metadata"]["namespace"] == "default"


def test_queues_without_the_labs_own_are_wrong_use(place: Workplace) -> None:
    settings = place.settings()
    file = settings.project_file("manifests/queues.yaml")
    file.write_text(file.read_text().replace("name: default-queue", "name: another"))
    with pytest.raises(ManifestError, match="no queue 'default-queue'") as caught:
        lab_queue(settings)
    assert caught.value.exit_code == 2


def test_the_server_of_these_tests_refuses_nothing_by_chance(theirs: Somebody) -> None:
    """What others make here is theirs by its managed fields, or the tests above would show nothing."""
    theirs.create(RUNTIME_CLASS | {"handler": "runc"})
    managers = {entry["manager"] for entry in theirs.get("runtimeclasses", "nvidia")["metadata"]["managedFields"]}
    assert managers == {"kubectl-create"}
    with suppress(ApiError):
        theirs.apply(RUNTIME_CLASS | {"handler": "runc"}, dry_run=True)
    assert {
        entry["manager"] for entry in theirs.get("runtimeclasses", "nvidia")["metadata"]["managedFields"]
    } == managers
