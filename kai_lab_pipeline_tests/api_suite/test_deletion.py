from __future__ import annotations

from typing import Any

import pytest

from kai_lab_pipeline_tests.api_suite.support import Api, config_map, pod, refusal, until


def owned(name: str, owner: dict[str, Any], **reference: Any) -> dict[str, Any]:
    body = config_map(name)
    body["metadata"]["ownerReferences"] = [
        {
            "apiVersion": owner.get("apiVersion", "v1"),
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            **reference,
        }
    ]
    return body


def test_deleting_answers_with_details(api: Api, configmaps: str) -> None:
    made = api.post(configmaps, config_map("a"))
    answer = api.delete(f"{configmaps}/a")
    assert answer["status"] == "Success"
    assert answer["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    assert refusal(api.http.delete(f"{configmaps}/a"))[:2] == (404, "NotFound")


def test_preconditions(api: Api, configmaps: str) -> None:
    made = api.post(configmaps, config_map("a"))
    wrong = {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
    answer = api.http.request("DELETE", f"{configmaps}/a", json=wrong)
    assert refusal(answer)[:2] == (409, "Conflict")
    api.delete(f"{configmaps}/a", {"preconditions": {"uid": made["metadata"]["uid"]}})
    assert not api.exists(f"{configmaps}/a")


def test_finalizers_hold_an_object(api: Api, configmaps: str) -> None:
    body = config_map("a")
    body["metadata"]["finalizers"] = ["x.io/f"]
    api.post(configmaps, body)
    api.delete(f"{configmaps}/a")
    assert api.get(f"{configmaps}/a")["metadata"]["deletionTimestamp"]
    api.patch(f"{configmaps}/a", {"metadata": {"finalizers": None}})
    assert not api.exists(f"{configmaps}/a")


def test_collections_go_by_selector(api: Api, configmaps: str) -> None:
    api.post(configmaps, config_map("a", {"d": "1"}))
    api.post(configmaps, config_map("b"))
    api.delete(configmaps, labelSelector="d=1")
    assert not api.exists(f"{configmaps}/a")
    assert api.exists(f"{configmaps}/b")


def test_unscheduled_pods_go_at_once(api: Api, pods: str) -> None:
    api.post(pods, pod("p", schedulerName="nobody"))
    api.delete(f"{pods}/p")
    assert not api.exists(f"{pods}/p")


def test_scheduled_pods_get_their_grace(api: Api, pods: str, unique: str) -> None:
    api.post("/api/v1/nodes", {"metadata": {"name": unique}})
    api.post(pods, pod("p", nodeName=unique, terminationGracePeriodSeconds=17))
    answer = api.delete(f"{pods}/p")
    assert answer["metadata"]["deletionGracePeriodSeconds"] == 17
    assert api.get(f"{pods}/p")["metadata"]["deletionTimestamp"]
    # a kubelet ends it like this, and only this very pod
    api.delete(f"{pods}/p", {"gracePeriodSeconds": 0, "preconditions": {"uid": answer["metadata"]["uid"]}})
    assert not api.exists(f"{pods}/p")
    api.delete(f"/api/v1/nodes/{unique}")


def test_grace_may_be_shortened_not_prolonged(api: Api, pods: str, unique: str) -> None:
    api.post("/api/v1/nodes", {"metadata": {"name": unique}})
    api.post(pods, pod("p", nodeName=unique))
    api.delete(f"{pods}/p")
    assert api.delete(f"{pods}/p", gracePeriodSeconds=5)["metadata"]["deletionGracePeriodSeconds"] == 5
    assert api.delete(f"{pods}/p", gracePeriodSeconds=60)["metadata"]["deletionGracePeriodSeconds"] == 5
    api.delete(f"{pods}/p", gracePeriodSeconds=0)
    api.delete(f"/api/v1/nodes/{unique}")


def test_dependents_follow_their_owner(api: Api, configmaps: str) -> None:
    owner = api.post(configmaps, config_map("owner"))
    middle = api.post(configmaps, owned("middle", owner))
    api.post(configmaps, owned("leaf", middle))
    api.delete(f"{configmaps}/owner")
    api.gone(f"{configmaps}/leaf")
    api.gone(f"{configmaps}/middle")


def test_a_second_owner_keeps_a_dependent(api: Api, configmaps: str) -> None:
    first, second = api.post(configmaps, config_map("first")), api.post(configmaps, config_map("second"))
    body = owned("child", first)
    body["metadata"]["ownerReferences"] += owned("child", second)["metadata"]["ownerReferences"]
    api.post(configmaps, body)
    api.delete(f"{configmaps}/first")

    def owners() -> list[str]:
        return [o["name"] for o in api.get(f"{configmaps}/child")["metadata"]["ownerReferences"]]

    until(lambda: owners() == ["second"], "the reference to the first owner to go")


def test_orphans_stay(api: Api, configmaps: str) -> None:
    owner = api.post(configmaps, config_map("owner"))
    api.post(configmaps, owned("child", owner))
    api.delete(f"{configmaps}/owner", {"propagationPolicy": "Orphan"})
    api.gone(f"{configmaps}/owner")

    def orphaned() -> bool:
        return not api.get(f"{configmaps}/child")["metadata"].get("ownerReferences")

    until(orphaned, "the child to lose its owner")


def test_foreground_deletion_waits_for_dependents(api: Api, configmaps: str) -> None:
    owner = api.post(configmaps, config_map("owner"))
    child = owned("child", owner, blockOwnerDeletion=True)
    child["metadata"]["finalizers"] = ["x.io/hold"]
    api.post(configmaps, child)
    api.delete(f"{configmaps}/owner", {"propagationPolicy": "Foreground"})
    until(lambda: api.get(f"{configmaps}/child")["metadata"].get("deletionTimestamp"), "the child to be deleted")
    assert "foregroundDeletion" in api.get(f"{configmaps}/owner")["metadata"]["finalizers"]
    api.patch(f"{configmaps}/child", {"metadata": {"finalizers": None}})
    api.gone(f"{configmaps}/owner")


def test_objects_of_an_owner_that_is_gone_are_collected(api: Api, configmaps: str) -> None:
    owner = api.post(configmaps, config_map("owner"))
    api.delete(f"{configmaps}/owner")
    api.post(configmaps, owned("late", owner))
    api.gone(f"{configmaps}/late")


def test_namespaces_go_with_their_content(api: Api, unique: str) -> None:
    made = api.post("/api/v1/namespaces", {"metadata": {"name": unique}})
    assert made["status"]["phase"] == "Active"
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": unique}
    api.post(f"/api/v1/namespaces/{unique}/configmaps", config_map("a"))
    api.post(f"/api/v1/namespaces/{unique}/pods", pod("p", schedulerName="nobody"))
    api.delete(f"/api/v1/namespaces/{unique}")
    api.gone(f"/api/v1/namespaces/{unique}")
    assert not api.exists(f"/api/v1/namespaces/{unique}/configmaps/a")


@pytest.fixture
def terminating(api: Api, unique: str) -> str:
    """A namespace held in Terminating by an object with a finalizer."""
    api.post("/api/v1/namespaces", {"metadata": {"name": unique}})
    body = config_map("hold")
    body["metadata"]["finalizers"] = ["x.io/hold"]
    api.post(f"/api/v1/namespaces/{unique}/configmaps", body)
    api.delete(f"/api/v1/namespaces/{unique}")
    return unique


def test_terminating_namespaces_take_nothing_new(api: Api, terminating: str) -> None:
    path = f"/api/v1/namespaces/{terminating}"
    assert api.get(path)["status"]["phase"] == "Terminating"
    answer = api.http.post(f"{path}/pods", json=pod("p1"))
    assert refusal(answer) == (
        403,
        "Forbidden",
        f'pods "p1" is forbidden: unable to create new content in namespace {terminating} because it is being '
        "terminated",
    )
    assert answer.json()["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    again = refusal(api.http.post("/api/v1/namespaces", json={"metadata": {"name": terminating}}))
    assert again == (409, "AlreadyExists", f'object is being deleted: namespaces "{terminating}" already exists')
    api.patch(f"{path}/configmaps/hold", {"metadata": {"finalizers": None}})
    api.gone(path)


def test_default_namespace_stays(api: Api) -> None:
    assert refusal(api.http.delete("/api/v1/namespaces/default"))[:2] == (403, "Forbidden")
