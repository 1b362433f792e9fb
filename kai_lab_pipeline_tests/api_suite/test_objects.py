from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from kai_lab_pipeline_tests.api_suite.support import (
    MERGE,
    STRATEGIC,
    Api,
    config_map,
    deployment,
    official,
    pod,
    refusal,
)


def test_created_objects_get_their_identity(api: Api, configmaps: str) -> None:
    made = api.post(configmaps, config_map("a", k="1"))
    metadata = made["metadata"]
    assert metadata["uid"]
    assert metadata["creationTimestamp"].endswith("Z")
    assert metadata["resourceVersion"].isdigit()
    assert api.get(f"{configmaps}/a") == made


def test_typed_client_reads_what_it_wrote(kubeconfig: Path, namespace: str) -> None:
    with official(kubeconfig) as api_client:
        core: Any = client.CoreV1Api(api_client)
        core.create_namespaced_pod(namespace, pod("p"))
        read = core.read_namespaced_pod("p", namespace)
        assert (read.metadata.name, read.spec.restart_policy, read.status.phase) == ("p", "Always", "Pending")
        with pytest.raises(client.ApiException) as refused:
            core.create_namespaced_pod(namespace, pod("p"))
        assert refused.value.status == 409


def test_generated_names_differ(api: Api, configmaps: str) -> None:
    names = {api.post(configmaps, {"metadata": {"generateName": "g-"}})["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("g-") and len(name) == 7 for name in names)


def test_names_are_taken_once(api: Api, configmaps: str) -> None:
    api.post(configmaps, config_map("a"))
    answer = refusal(api.http.post(configmaps, json=config_map("a")))
    assert answer == (409, "AlreadyExists", 'configmaps "a" already exists')


def test_absent_objects_are_not_found(api: Api, configmaps: str) -> None:
    answer = api.http.get(f"{configmaps}/nope")
    assert refusal(answer) == (404, "NotFound", 'configmaps "nope" not found')
    assert answer.json()["details"] == {"name": "nope", "kind": "configmaps"}


def test_group_is_part_of_the_message(api: Api, namespace: str) -> None:
    answer = refusal(api.http.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/nope"))
    assert answer[2] == 'deployments.apps "nope" not found'


def test_namespace_must_exist(api: Api, unique: str) -> None:
    answer = refusal(api.http.post(f"/api/v1/namespaces/{unique}/configmaps", json=config_map("a")))
    assert answer == (404, "NotFound", f'namespaces "{unique}" not found')


def test_namespace_of_object_and_path_must_agree(api: Api, configmaps: str) -> None:
    body = {"metadata": {"name": "a", "namespace": "elsewhere"}}
    code, reason, message = refusal(api.http.post(configmaps, json=body))
    assert (code, reason) == (400, "BadRequest")
    assert "does not match the namespace" in message


@pytest.mark.parametrize("name", ["Bad_Name", "-a", "a..b", "a" * 254])
def test_bad_names_are_invalid(api: Api, configmaps: str, name: str) -> None:
    answer = api.http.post(configmaps, json=config_map(name))
    code, reason, message = refusal(answer)
    assert (code, reason) == (422, "Invalid")
    assert message.startswith(f'ConfigMap "{name}" is invalid: metadata.name: Invalid value: ')
    assert answer.json()["details"]["causes"][0]["field"] == "metadata.name"


def test_bad_label_values_are_invalid(api: Api, configmaps: str) -> None:
    code, _, message = refusal(api.http.post(configmaps, json=config_map("a", {"gpu.memory": "40960 MiB"})))
    assert code == 422
    assert "a valid label must be an empty string or consist of alphanumeric characters" in message


def test_broken_json_is_a_bad_request(api: Api, configmaps: str) -> None:
    headers = {"Content-Type": "application/json"}
    assert refusal(api.http.post(configmaps, content=b"{", headers=headers))[:2] == (400, "BadRequest")


def test_wrong_kind_is_a_bad_request(api: Api, configmaps: str) -> None:
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}
    assert refusal(api.http.post(configmaps, json=body))[:2] == (400, "BadRequest")


def test_unknown_media_types_are_refused(api: Api, configmaps: str) -> None:
    answer = api.http.post(configmaps, content=b"x", headers={"Content-Type": "text/csv"})
    assert refusal(answer)[:2] == (415, "UnsupportedMediaType")


def test_methods_that_make_no_sense(api: Api, configmaps: str) -> None:
    assert refusal(api.http.put(configmaps, json={}))[:2] == (405, "MethodNotAllowed")


def test_yaml_bodies_are_read(api: Api, configmaps: str) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: yaml}\ndata: {a: b}\n"
    answer = api.http.post(configmaps, content=body, headers={"Content-Type": "application/yaml"})
    assert answer.status_code == 201
    assert api.get(f"{configmaps}/yaml")["data"] == {"a": "b"}


def test_replace_needs_the_newest_version(api: Api, configmaps: str) -> None:
    first = api.post(configmaps, config_map("a", k="1"))
    second = api.put(f"{configmaps}/a", {**first, "data": {"k": "2"}})
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    answer = refusal(api.http.put(f"{configmaps}/a", json={**first, "data": {"k": "3"}}))
    assert answer == (
        409,
        "Conflict",
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to '
        "the latest version and try again",
    )


def test_replace_without_a_version_takes_the_newest(api: Api, configmaps: str) -> None:
    api.post(configmaps, config_map("a", k="1"))
    assert api.put(f"{configmaps}/a", config_map("a", k="2"))["data"] == {"k": "2"}


def test_a_write_that_changes_nothing_is_no_new_version(api: Api, configmaps: str) -> None:
    made = api.post(configmaps, config_map("a", k="1"))
    same = api.patch(f"{configmaps}/a", {"data": {"k": "1"}})
    assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_generation_follows_the_spec_only(api: Api, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    assert api.post(path, deployment("d"))["metadata"]["generation"] == 1
    labelled = api.patch(f"{path}/d", {"metadata": {"labels": {"a": "b"}}})
    assert labelled["metadata"]["generation"] == 1
    assert api.patch(f"{path}/d", {"spec": {"replicas": 2}})["metadata"]["generation"] == 2
    status = api.patch(f"{path}/d/status", {"status": {"replicas": 2}})
    assert status["metadata"]["generation"] == 2


def test_status_is_written_through_its_subresource_only(api: Api, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    made = api.post(path, {**deployment("d"), "status": {"replicas": 7}})
    assert "replicas" not in made.get("status", {})
    assert api.patch(f"{path}/d", {"status": {"replicas": 7}}).get("status", {}).get("replicas") != 7
    through = api.patch(f"{path}/d/status", {"status": {"replicas": 7}, "spec": {"replicas": 9}})
    assert through["status"]["replicas"] == 7
    assert through["spec"]["replicas"] == 1


def test_new_workloads_start_with_the_servers_status(api: Api, namespace: str) -> None:
    body = deployment("d")
    path = f"/apis/apps/v1/namespaces/{namespace}"
    assert api.post(f"{path}/deployments", {**body, "status": {"replicas": 7}}, dryRun="All")["status"] == {}
    spec = {key: body["spec"][key] for key in ("selector", "template")}
    made = api.post(f"{path}/daemonsets", {"metadata": {"name": "d"}, "spec": spec}, dryRun="All")
    counts = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
    assert made["status"] == dict.fromkeys(counts, 0)
    assert not [entry for entry in made["metadata"]["managedFields"] if "f:status" in entry["fieldsV1"]]


def test_jobs_carry_the_labels_of_their_pods(api: Api, namespace: str) -> None:
    containers = [{"name": "c", "image": "x"}]
    template = {"spec": {"restartPolicy": "Never", "containers": containers}}
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    made = api.post(path, {"metadata": {"name": "j"}, "spec": {"template": template}}, dryRun="All")
    assert made["metadata"]["labels"] == made["spec"]["template"]["metadata"]["labels"]
    assert made["metadata"]["labels"]["batch.kubernetes.io/controller-uid"] == made["metadata"]["uid"]


def test_what_is_false_or_null_by_default_is_not_shown(api: Api, unique: str) -> None:
    body = {"metadata": {"name": unique}, "value": 5, "globalDefault": False, "description": None}
    made = api.post("/apis/scheduling.k8s.io/v1/priorityclasses", body, dryRun="All")
    assert made.keys() == {"kind", "apiVersion", "metadata", "value", "preemptionPolicy"}


def test_scale(api: Api, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    api.post(path, deployment("d"))
    scale = api.get(f"{path}/d/scale")
    assert (scale["kind"], scale["spec"]["replicas"]) == ("Scale", 1)
    assert api.patch(f"{path}/d/scale", {"spec": {"replicas": 3}})["spec"]["replicas"] == 3
    scale["spec"]["replicas"] = 0
    answer = refusal(api.http.put(f"{path}/d/scale", json=scale))
    assert answer[:2] == (409, "Conflict")
    assert api.get(f"{path}/d")["spec"]["replicas"] == 3


def test_deployment_selector_is_immutable_and_must_match(api: Api, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    api.post(path, deployment("d"))
    answer = api.raw_patch(f"{path}/d", {"spec": {"selector": {"matchLabels": {"x": "y"}}}}, MERGE)
    code, _, message = refusal(answer)
    assert code == 422
    assert "`selector` does not match template `labels`" in message
    assert "field is immutable" in message


def test_dry_run_stores_nothing(api: Api, configmaps: str) -> None:
    made = api.post(configmaps, config_map("dry"), dryRun="All")
    assert made["metadata"]["uid"]
    assert not api.exists(f"{configmaps}/dry")
    api.post(configmaps, config_map("a", k="1"))
    assert api.patch(f"{configmaps}/a", {"data": {"k": "2"}}, dryRun="All")["data"] == {"k": "2"}
    api.delete(f"{configmaps}/a", dryRun="All")
    assert api.get(f"{configmaps}/a")["data"] == {"k": "1"}


def test_empty_maps_and_lists_are_not_kept(api: Api, configmaps: str, pods: str) -> None:
    metadata = {"name": "a", "labels": {}, "annotations": {}, "finalizers": [], "ownerReferences": []}
    made = api.post(configmaps, {"metadata": metadata, "data": {}, "binaryData": None})
    assert made.keys() == {"kind", "apiVersion", "metadata"}
    assert made["metadata"].keys() == {"name", "namespace", "uid", "resourceVersion", "creationTimestamp"}
    container = {"name": "c", "image": "x", "args": [], "env": [], "securityContext": {}}
    spec = api.post(pods, pod("p", containers=[container], volumes=[{"name": "v", "emptyDir": {}}]))["spec"]
    assert not {"args", "env"} & spec["containers"][0].keys()
    assert spec["containers"][0]["securityContext"] == {}
    assert {"name": "v", "emptyDir": {}} in spec["volumes"]


def test_secrets_encode_string_data(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/secrets"
    made = api.post(path, {"metadata": {"name": "s"}, "stringData": {"a": "b"}})
    assert made["data"] == {"a": "Yg=="}
    assert made["type"] == "Opaque"
    assert "stringData" not in made


def test_events_are_one_thing_in_two_groups(api: Api, namespace: str) -> None:
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": namespace},
        "reason": "BindingError",
        "message": "m",
        "type": "Warning",
        "source": {"component": "binder"},
    }
    api.post(f"/api/v1/namespaces/{namespace}/events", event)
    newer = api.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events/e")
    assert (newer["regarding"]["name"], newer["note"], newer["apiVersion"]) == ("p", "m", "events.k8s.io/v1")
    path = f"/api/v1/namespaces/{namespace}/events"
    assert len(api.get(path, fieldSelector="involvedObject.name=p")["items"]) == 1
    assert api.get(path, fieldSelector="involvedObject.name=q")["items"] == []


def test_managed_fields_say_who_changed_what(api: Api, configmaps: str) -> None:
    api.post(configmaps, config_map("a", k="1", j="1"), fieldManager="maker")
    changed = api.patch(f"{configmaps}/a", {"data": {"k": "2"}}, STRATEGIC, fieldManager="changer")
    owners = {entry["manager"]: entry["fieldsV1"].get("f:data", {}) for entry in changed["metadata"]["managedFields"]}
    assert "f:k" in owners["changer"]
    assert "f:k" not in owners["maker"]
    assert "f:j" in owners["maker"]


def test_what_nobody_manages_stays_so_until_it_is_applied(api: Api, configmaps: str) -> None:
    assert "managedFields" not in api.post(configmaps, config_map("a"))["metadata"]
    assert "managedFields" not in api.patch(f"{configmaps}/a", {"data": {"k": "1"}})["metadata"]
    applied = api.apply(f"{configmaps}/a", config_map("a", j="1"), "applier")
    managers = {entry["manager"]: entry["fieldsV1"] for entry in applied["metadata"]["managedFields"]}
    assert managers["applier"] == {"f:data": {"f:j": {}}}
    assert "f:k" in managers["before-first-apply"]["f:data"]


def test_user_agent_names_the_manager_by_default(api: Api, configmaps: str) -> None:
    made = api.post(configmaps, config_map("a", k="1"))
    assert [entry["manager"] for entry in made["metadata"]["managedFields"]] == ["api-suite"]
