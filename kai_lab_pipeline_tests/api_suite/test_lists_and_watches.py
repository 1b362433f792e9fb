from __future__ import annotations

import json

import pytest

from kai_lab_pipeline_tests.api_suite.support import Api, config_map, pod, refusal, take

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


def names(listed: dict[str, object]) -> list[str]:
    items = listed["items"]
    assert isinstance(items, list)
    return [item["metadata"]["name"] for item in items]


def test_lists_carry_kind_and_version(api: Api, configmaps: str) -> None:
    listed = api.get(configmaps)
    assert (listed["kind"], listed["apiVersion"]) == ("ConfigMapList", "v1")
    assert listed["metadata"]["resourceVersion"].isdigit()


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("app=a", ["one"]),
        ("app==a", ["one"]),
        ("app!=a", ["three", "two"]),
        ("app in (a,b),tier", ["two"]),
        ("app notin (a)", ["three", "two"]),
        ("!tier", ["one", "three"]),
        ("tier", ["two"]),
        ("", ["one", "three", "two"]),
    ],
)
def test_label_selectors(api: Api, configmaps: str, selector: str, expected: list[str]) -> None:
    # `suite` leaves out what controllers put into every namespace.
    for name, labels in (("one", {"app": "a"}), ("two", {"app": "b", "tier": "x"}), ("three", {})):
        api.post(configmaps, config_map(name, {**labels, "suite": "yes"}))
    asked = ",".join(part for part in ("suite", selector) if part)
    assert names(api.get(configmaps, labelSelector=asked)) == expected


def test_broken_selectors_are_bad_requests(api: Api, configmaps: str) -> None:
    assert refusal(api.http.get(configmaps, params={"labelSelector": "a=(b"}))[:2] == (400, "BadRequest")
    answer = refusal(api.http.get(configmaps, params={"fieldSelector": "data.k=1"}))
    assert answer[:2] == (400, "BadRequest")
    assert answer[2] == '"data.k" is not a known field selector: only "metadata.name", "metadata.namespace"'
    answer = refusal(api.http.get("/api/v1/nodes", params={"fieldSelector": "spec.x=1"}))
    assert answer == (400, "BadRequest", "field label not supported: spec.x")


def test_field_selectors(api: Api, pods: str) -> None:
    api.post(pods, pod("p1"))
    api.post(pods, pod("p2", schedulerName="other"))
    assert names(api.get(pods, fieldSelector="metadata.name=p2")) == ["p2"]
    assert names(api.get(pods, fieldSelector="spec.schedulerName!=other")) == ["p1"]
    assert names(api.get(pods, fieldSelector="status.phase=Running")) == []
    assert names(api.get(pods, fieldSelector="spec.nodeName=,metadata.name=p1")) == ["p1"]


def test_pages_are_one_consistent_list(api: Api, configmaps: str) -> None:
    for index in range(5):
        api.post(configmaps, config_map(f"c{index}", {"paged": "yes"}))
    first = api.get(configmaps, limit=2, labelSelector="paged=yes")
    api.post(configmaps, config_map("c9", {"paged": "yes"}))
    api.delete(f"{configmaps}/c4")
    found, token = names(first), first["metadata"].get("continue")
    while token:
        page = api.get(configmaps, limit=2, labelSelector="paged=yes", **{"continue": token})
        assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        found += names(page)
        token = page["metadata"].get("continue")
    assert found == ["c0", "c1", "c2", "c3", "c4"]


def test_remaining_items_are_counted(api: Api, configmaps: str) -> None:
    for index in range(3):
        api.post(configmaps, config_map(f"c{index}"))
    total = len(api.get(configmaps)["items"])
    assert api.get(configmaps, limit=1)["metadata"]["remainingItemCount"] == total - 1


def test_watch_from_a_list_shows_what_came_after(api: Api, configmaps: str) -> None:
    api.post(configmaps, config_map("before"))
    version = api.get(configmaps)["metadata"]["resourceVersion"]
    with api.watch(configmaps, resourceVersion=version) as events:
        api.post(configmaps, config_map("w"))
        api.patch(f"{configmaps}/w", {"data": {"a": "1"}})
        api.delete(f"{configmaps}/w")
        assert take(events, 3) == [("ADDED", "w"), ("MODIFIED", "w"), ("DELETED", "w")]


def test_watch_from_nothing_starts_with_what_is_there(api: Api, configmaps: str) -> None:
    api.post(configmaps, config_map("here", {"w": "1"}))
    with api.watch(configmaps, labelSelector="w=1") as events:
        assert take(events, 1) == [("ADDED", "here")]


def test_watch_replays_the_past(api: Api, configmaps: str) -> None:
    version = api.get(configmaps)["metadata"]["resourceVersion"]
    api.post(configmaps, config_map("w"))
    api.delete(f"{configmaps}/w")
    with api.watch(configmaps, resourceVersion=version) as events:
        assert take(events, 2) == [("ADDED", "w"), ("DELETED", "w")]


def test_versions_of_watch_events_grow(api: Api, configmaps: str) -> None:
    version = int(api.get(configmaps)["metadata"]["resourceVersion"])
    api.post(configmaps, config_map("w"))
    api.delete(f"{configmaps}/w")
    with api.watch(configmaps, resourceVersion=str(version)) as events:
        seen = [int(next(events)["object"]["metadata"]["resourceVersion"]) for _ in range(2)]
    assert version < seen[0] < seen[1]


def test_watch_ends_at_its_timeout(api: Api, configmaps: str) -> None:
    version = api.get(configmaps)["metadata"]["resourceVersion"]
    with api.watch(configmaps, timeoutSeconds="1", resourceVersion=version) as events:
        assert list(events) == []


def test_objects_enter_and_leave_a_selected_watch(api: Api, configmaps: str) -> None:
    version = api.get(configmaps)["metadata"]["resourceVersion"]
    with api.watch(configmaps, resourceVersion=version, labelSelector="in=yes") as events:
        api.post(configmaps, config_map("x"))
        api.patch(f"{configmaps}/x", {"metadata": {"labels": {"in": "yes"}}})
        api.patch(f"{configmaps}/x", {"data": {"a": "1"}})
        api.patch(f"{configmaps}/x", {"metadata": {"labels": {"in": None}}})
        api.delete(f"{configmaps}/x")
        api.post(configmaps, config_map("y", {"in": "yes"}))
        assert take(events, 4) == [("ADDED", "x"), ("MODIFIED", "x"), ("DELETED", "x"), ("ADDED", "y")]


def test_watch_of_one_object(api: Api, configmaps: str) -> None:
    version = api.get(configmaps)["metadata"]["resourceVersion"]
    with api.watch(configmaps, resourceVersion=version, fieldSelector="metadata.name=b") as events:
        api.post(configmaps, config_map("a"))
        api.post(configmaps, config_map("b"))
        assert take(events, 1) == [("ADDED", "b")]


def test_initial_events_end_with_a_bookmark(api: Api, configmaps: str) -> None:
    api.post(configmaps, config_map("a", {"w": "1"}))
    query = {"allowWatchBookmarks": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    with api.watch(configmaps, labelSelector="w=1", **query) as events:
        assert next(events)["type"] == "ADDED"
        bookmark = next(events)
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_exact_lists_of_an_old_version_are_expired(api: Api, configmaps: str) -> None:
    params = {"resourceVersion": "1", "resourceVersionMatch": "Exact"}
    answer = api.http.get(configmaps, params=params)
    assert refusal(answer) == (410, "Expired", "The resourceVersion for the provided list is too old.")


def test_broken_continue_tokens(api: Api, configmaps: str) -> None:
    assert refusal(api.http.get(configmaps, params={"limit": 1, "continue": "nonsense"}))[0] == 400


@pytest.mark.parametrize(
    ("path", "columns"),
    [
        ("/api/v1/pods", ["Name", "Ready", "Status", "Restarts", "Age"]),
        ("/api/v1/nodes", ["Name", "Status", "Roles", "Age", "Version"]),
        ("/apis/apps/v1/deployments", ["Name", "Ready", "Up-to-date", "Available", "Age"]),
        (
            "/apis/apps/v1/daemonsets",
            ["Name", "Desired", "Current", "Ready", "Up-to-date", "Available", "Node Selector", "Age"],
        ),
        ("/api/v1/events", ["Last Seen", "Type", "Reason", "Object", "Message"]),
        ("/api/v1/namespaces", ["Name", "Status", "Age"]),
        ("/api/v1/services", ["Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age"]),
        ("/api/v1/configmaps", ["Name", "Data", "Age"]),
        ("/apis/node.k8s.io/v1/runtimeclasses", ["Name", "Handler", "Age"]),
    ],
)
def test_tables_have_kubectl_columns(api: Api, path: str, columns: list[str]) -> None:
    table = api.http.get(path, headers={"Accept": TABLE}).json()
    assert table["kind"] == "Table"
    assert [c["name"] for c in table["columnDefinitions"] if c["priority"] == 0] == columns


def test_pod_rows(api: Api, pods: str) -> None:
    api.post(pods, pod("p"))
    status = {
        "phase": "Running",
        "containerStatuses": [
            {
                "name": "c",
                "ready": False,
                "restartCount": 3,
                "image": "x",
                "imageID": "",
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            }
        ],
    }
    api.patch(f"{pods}/p/status", {"status": status})
    row = api.http.get(f"{pods}/p", headers={"Accept": TABLE}).json()["rows"][0]
    assert row["cells"][:4] == ["p", "0/1", "CrashLoopBackOff", "3"]
    assert row["object"]["kind"] == "PartialObjectMetadata"


def test_watched_tables(api: Api, configmaps: str) -> None:
    version = api.get(configmaps)["metadata"]["resourceVersion"]
    api.post(configmaps, config_map("t", k="1"))
    params = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "5"}
    with api.http.stream("GET", configmaps, params=params, headers={"Accept": TABLE}) as response:
        event = json.loads(next(response.iter_lines()))
    assert event["object"]["rows"][0]["cells"][:2] == ["t", 1]
