"""What managedFields say of who wrote what, and what is told of a difference."""

from __future__ import annotations

from typing import Any

import pytest

from kai_lab_pipeline.lab.field_owners import (
    ABSENT,
    changed_by_hand,
    differences,
    owner_of,
    restoring,
    told,
    value_at,
    written_by_hand,
)

SPEC = ("f:spec",)
LONG = "x" * 200
ENV = ("f:spec", "f:env", 'k:{"name":"T"}')
AB = ("f:spec", "f:list", 'k:{"name":"b"}')


def entry(manager: str, fields: dict[str, Any], when: str = "2026-01-01T00:00:00Z", **more: str) -> dict[str, Any]:
    return {"manager": manager, "operation": "Update", "time": when, "fieldsV1": {"f:spec": fields}, **more}


def obj(spec: dict[str, Any], *entries: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "Thing", "metadata": {"name": "x", "managedFields": list(entries)}, "spec": spec}


def test_the_newest_owner_of_a_field_is_named() -> None:
    made = obj({}, entry("kai-lab", {"f:a": {}, "f:b": {}}), entry("kubectl-edit", {"f:a": {}}, "2026-01-02T00:00:00Z"))
    assert owner_of(made, (*SPEC, "f:a")) == ("kubectl-edit", "2026-01-02T00:00:00Z")
    assert owner_of(made, (*SPEC, "f:b")) == ("kai-lab", "2026-01-01T00:00:00Z")
    assert owner_of(made, (*SPEC, "f:c")) == ("", "")
    assert owner_of({"metadata": {}}, (*SPEC, "f:a")) == ("", "")


def test_who_owns_a_value_as_a_whole_owns_what_is_in_it() -> None:
    made = obj({}, entry("kubectl-edit", {"f:whole": {}, "f:parts": {".": {}, "f:one": {}}}))
    assert owner_of(made, (*SPEC, "f:whole", "f:disk"))[0] == "kubectl-edit"
    assert owner_of(made, (*SPEC, "f:parts", "f:two"))[0] == ""


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([entry("kubectl-edit", {"f:a": {}})], True),
        ([entry("kube-controller-manager", {"f:a": {}})], False),
        ([entry("kubectl-edit", {"f:a": {}}, subresource="status")], False),
        ([entry("kubectl", {"f:a": {}}, subresource="scale")], True),
        ([entry("kubectl-edit", {"f:a": {}}), entry("deployer", {"f:a": {}}, operation="Apply")], False),
    ],
)
def test_what_a_hand_alone_owns_is_by_hand(entries: list[dict[str, Any]], found: bool) -> None:
    assert bool(written_by_hand(obj({"a": 1}, *entries))) is found
    assert bool(changed_by_hand(obj({"a": 1}, *entries), obj({"a": 2}))) is found
    assert not changed_by_hand(obj({"a": 1}, *entries), obj({"a": 1})), "put right by hand"


def test_a_restart_and_kubectl_s_own_notes_are_no_content() -> None:
    stamp = {"kubectl.kubernetes.io/restartedAt": "now"}
    fields: dict[str, Any] = {"f:metadata": {"f:annotations": {".": {}, "f:kubectl.kubernetes.io/restartedAt": {}}}}
    made = obj({"metadata": {"annotations": stamp}}, entry("kubectl-rollout", fields))
    assert written_by_hand(made) == []


def test_an_added_item_is_one_change_and_goes_as_a_whole() -> None:
    listed: dict[str, Any] = {".": {}, "f:name": {}, "f:image": {}}
    living = obj(
        {"list": [{"name": "a"}, {"name": "b", "image": "i"}]},
        entry("kubectl-edit", {"f:list": {AB[-1]: listed}}),
    )
    made = obj({"list": [{"name": "a"}]})
    (change,) = changed_by_hand(living, made)
    assert (change.path, change.text()) == (AB, "spec.list[name=b] was added")
    assert restoring(living, made, [change.path]) == {"spec": {"list": [{"name": "a"}]}}


def test_what_is_empty_after_a_removal_goes_with_it() -> None:
    living = obj({"a": 1, "more": {"inner": {"b": 2}}})
    path = (*SPEC, "f:more", "f:inner", "f:b")
    assert restoring(living, obj({"a": 1}), [path]) == {"spec": {"more": None}}
    assert restoring(living, obj({"a": 1, "more": {"inner": {"b": 3}}}), [path]) == {
        "spec": {"more": {"inner": {"b": 3}}}
    }
    assert restoring(living, living, [path]) == {}


def test_items_are_compared_by_the_key_of_their_list() -> None:
    fields: dict[str, Any] = {"f:list": {'k:{"name":"a"}': {".": {}, "f:name": {}, "f:v": {}}}}
    living = obj({"list": [{"name": "a", "v": 1}], "plain": [1]}, entry("kai-lab", fields))
    wanted = obj({"list": [{"name": "b"}, {"name": "a", "v": 2}], "plain": [2]})
    assert [change.text() for change in differences(living, wanted)] == [
        "spec.list[name=a].v is 1, not 2",
        "spec.list[name=b] is gone",
        "spec.plain is another than was applied",
    ]


def test_a_port_without_a_protocol_is_of_tcp() -> None:
    living = obj({"ports": [{"port": 80}]})
    assert value_at(living, (*SPEC, "f:ports", 'k:{"port":80,"protocol":"TCP"}')) == {"port": 80}
    assert value_at(living, (*SPEC, "f:ports", 'k:{"port":80,"protocol":"UDP"}')) is ABSENT


@pytest.mark.parametrize(
    ("path", "there", "should", "said"),
    [
        (("f:spec", "f:n"), 1, 2, "spec.n is 1, not 2"),
        (("f:spec", "f:n"), LONG, "short", "spec.n is another than was applied"),
        (("f:spec", "f:n"), {"a": "s3cret"}, {}, "spec.n is another than was applied"),
        ((*ENV, "f:value"), "s3cret", "b", "spec.env[name=T].value is another than was applied"),
        ((*ENV, "f:value"), "s3cret", ABSENT, "spec.env[name=T].value was added"),
        (("f:data", "f:key"), "s3cret", ABSENT, "data.key was added"),
        (("f:metadata", "f:labels", "f:a.b/c"), "d", ABSENT, "metadata.labels.a.b/c was added: d"),
    ],
)  # fmt: skip
def test_a_difference_is_told_without_what_may_be_secret(
    path: tuple[str, ...], there: Any, should: Any, said: str
) -> None:
    assert told(path, there, should) == said
