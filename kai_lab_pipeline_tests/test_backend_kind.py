"""The kind backend end to end, with stub tools on the PATH that replay what the real ones said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline.assets.cluster import cluster_assets
from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.backends.ahead import PullAhead
from kai_lab_pipeline.backends.image import ImageProvider
from kai_lab_pipeline.backends.kind import KindBackend
from kai_lab_pipeline.backends.node_mirrors import hosts_toml
from kai_lab_pipeline.backends.owner import lab_id
from kai_lab_pipeline.clients.docker import Docker
from kai_lab_pipeline.clients.kind import Kind
from kai_lab_pipeline.clients.mirrors import Mirrors
from kai_lab_pipeline.clients.tools import Log, ToolError, ToolMissing
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.teardown import tear_down
from kai_lab_pipeline_tests.stubs.api import ApiStub, ready, status
from kai_lab_pipeline_tests.stubs.kind_lab import NAME, NODE, Lines, backend, rule
from kai_lab_pipeline_tests.stubs.workplace import (
    PATIENCE_S,
    PROJECT,
    Alive,
    Workplace,
    make_workplace,
    recorded,
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    yield from make_workplace(tmp_path, monkeypatch)


@pytest.fixture
def log() -> Lines:
    return Lines()


# -- the cluster -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_path", [True, False])
def test_a_cluster_is_made_marked_and_adopted_the_next_time(place: Workplace, log: Lines, on_path: bool) -> None:
    lab = backend(place, on_path=on_path)
    facts = lab.ensure_cluster(log)
    assert (facts.made, facts.context) == (True, f"kind-{NAME}")
    assert facts.kubeconfig.stat().st_mode & 0o777 == 0o600
    (create,) = place.calls("kind", "create")
    assert create[3:7] == ["--name", NAME, "--kubeconfig", str(facts.kubeconfig)]
    assert "--retain" in create
    mark = place.api.objects["configmaps", "kube-system", "kai-lab-owner"]
    assert mark["data"]["id"] == lab_id(place.settings().lab_dir)
    assert mark["metadata"]["labels"] == {"app.kubernetes.io/part-of": "kai-lab"}
    again = backend(place).ensure_cluster(log)
    assert (again.made, again.incarnation) == (False, facts.incarnation)
    assert len(place.calls("kind", "create")) == 1
    assert lab.cluster_exists()
    assert "0.33.0" in facts.note


def test_the_image_is_built_while_the_cluster_is_made(place: Workplace, log: Lines) -> None:
    lab = backend(place)
    lab.ensure_cluster(log)
    assert len(place.calls("docker", "build")) == 1
    place.forget_calls()
    facts = lab.provide_image(log)
    assert place.calls("docker", "build") == []
    assert facts.changed
    assert facts.facts["loaded"] == "kind load docker-image"
    assert not lab.provide_image(log).changed


def test_a_new_cluster_pulls_ahead_what_the_last_one_had(place: Workplace, log: Lines) -> None:
    images = ["registry.example/kai/binder:v1", "registry.example/kai/scheduler:v1"]
    lab = backend(place)
    lab.ensure_cluster(log)
    lab.provide_image(log)
    assert place.calls("docker", "exec", NODE, "crictl", "pull") == [], "nothing is known yet"
    there = place.look()["images"]
    place.change(images=there | {NODE: there[NODE] | {name: f"pulled:{name}" for name in images}})
    lab.remove_cluster(log)
    with pytest.MonkeyPatch.context() as patch:
        pulled = threading.Event()  # the image takes as long to build as the pulls take
        pull = Docker.pull_on_node

        def noted(docker: Docker, node: str, image: str) -> None:
            pull(docker, node, image)
            if image == images[-1]:
                pulled.set()

        patch.setattr(Docker, "pull_on_node", noted)
        patch.setattr(ImageProvider, "prepare", lambda *_: pulled.wait(PATIENCE_S))
        backend(place).ensure_cluster(log)
    assert [call[-1] for call in place.calls("docker", "exec", NODE, "crictl", "pull")] == images, "not what was loaded"
    backend(place).remove_cluster(log)
    place.forget_calls()
    backend(place, charts__kai_scheduler__version="v0.18.0").ensure_cluster(log)
    assert place.calls("docker", "exec", NODE, "crictl", "pull") == [], "other versions bring other images"


def test_a_pull_that_does_not_work_is_left_to_the_pods(place: Workplace, log: Lines) -> None:
    lab = backend(place)
    lab.ensure_cluster(log)
    images = ["registry.example/kai/binder:v1", "registry.example/kai/scheduler:v1"]
    place.change(images={NODE: {name: f"pulled:{name}" for name in images}})
    lab.remove_cluster(log)
    place.rules({"match": "crictl pull .*binder", "rc": 1, "err": "unauthorized", "out": ""})
    with pytest.MonkeyPatch.context() as patch:
        done = threading.Event()
        pull = PullAhead.pull

        def noted(ahead: PullAhead, *arguments: Any) -> None:
            pull(ahead, *arguments)
            done.set()

        patch.setattr(PullAhead, "pull", noted)
        patch.setattr(ImageProvider, "prepare", lambda *_: done.wait(PATIENCE_S))
        assert backend(place).ensure_cluster(log).made
    assert images[1] in place.look()["images"][NODE], "one that fails does not hold up the others"
    assert log.has(f"{images[0]} is not pulled ahead: ")


def test_node_image_and_config_come_from_the_settings(place: Workplace, log: Lines) -> None:
    (place.project / "kind.yaml").write_text("kind: Cluster\n")
    backend(place, kind__config="kind.yaml", kind__node_image="kindest/node:v1.34.0").ensure_cluster(log)
    (create,) = place.calls("kind", "create")
    assert create[-4:] == ["--image", "kindest/node:v1.34.0", "--config", str(place.project / "kind.yaml")]


def test_the_load_balancer_of_several_control_planes_is_no_node(place: Workplace, log: Lines) -> None:
    balancer = f"{NAME}-external-load-balancer"
    no_crictl = 'OCI runtime exec failed: exec: "crictl": executable file not found in $PATH: unknown\n'
    place.rules(
        {"match": f"^kind get nodes --name {NAME}", "out": f"{NODE}\n{balancer}\n"},
        {"match": f"^docker exec {balancer}", "rc": 126, "err": no_crictl},
        {"match": rf"^docker inspect --format \S+Id\S+ {balancer}", "out": "ba1a\n"},
    )
    lab = backend(place)
    lab.ensure_cluster(log)
    assert lab.provide_image(log).facts["nodes"] == NODE
    assert set(lab.image_digests()) == {NODE}
    place.change(stopped=[balancer, NAME])
    assert not lab.ensure_cluster(log).made
    assert {call[-1] for call in place.calls("docker", "start")} == {NODE, balancer}


def test_a_name_is_matched_exactly(place: Workplace, log: Lines) -> None:
    place.change(clusters={f"{NAME}2": "2026-01-01T00:00:00.0Z"})
    assert not backend(place).cluster_exists()
    assert backend(place).ensure_cluster(log).made
    assert f"{NAME}2" in place.look()["clusters"]


def test_a_foreign_cluster_is_refused_and_left_alone(place: Workplace, log: Lines) -> None:
    place.change(clusters={NAME: "2026-01-01T00:00:00.0Z"})
    with pytest.raises(LabError, match="this lab did not make") as caught:
        backend(place).ensure_cluster(log)
    assert "carries no lab's mark" in caught.value.seen
    assert f"kind delete cluster --name {NAME}" in caught.value.next_step
    with pytest.raises(LabError, match="this lab did not make"):
        backend(place).remove_cluster(log)
    assert place.calls("kind", "delete") == []
    assert place.api.names("configmaps") == []


def test_a_cluster_of_another_lab_folder_is_refused(place: Workplace, log: Lines) -> None:
    backend(place).ensure_cluster(log)
    with pytest.raises(LabError, match="this lab did not make") as caught:
        backend(place, lab__state_dir="elsewhere").ensure_cluster(log)
    assert "another state folder" in caught.value.seen


def test_a_foreign_stopped_cluster_is_not_started(place: Workplace, log: Lines) -> None:
    place.change(clusters={NAME: "2026-01-01T00:00:00.0Z"}, stopped=[NAME])
    with pytest.raises(LabError, match="this lab did not make"):
        backend(place).ensure_cluster(log)
    assert place.calls("docker", "start") == []


def test_our_own_stopped_cluster_is_started(place: Workplace, log: Lines) -> None:
    backend(place).ensure_cluster(log)
    place.change(stopped=[NAME])
    assert not backend(place).ensure_cluster(log).made
    assert place.calls("docker", "start") == [["docker", "start", NODE]]


def test_an_unhealthy_cluster_of_ours_is_made_anew(
    place: Workplace, log: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend(place).ensure_cluster(log)
    place.api.put("nodes", "", NODE, status=ready("False"))
    monkeypatch.setattr("kai_lab_pipeline.backends.kind.ADOPT_DEADLINE_S", 0.0)
    place.rules({"match": "^kind create", "rc": 1, "err": "ERROR: stop here", "times": 1})
    with pytest.raises(ToolError, match="could not make"):
        backend(place).ensure_cluster(log)
    assert log.has(f"ours and not healthy (not Ready: {NODE})")
    assert len(place.calls("kind", "delete")) == 2


def test_tear_down_is_verified(place: Workplace, log: Lines) -> None:
    lab = backend(place)
    lab.ensure_cluster(log)
    place.rules(rule("^kind delete", "08-delete-exists"))
    with pytest.raises(ToolError, match="is still there"):
        lab.remove_cluster(log)
    place.rules()
    assert lab.remove_cluster(log).changed
    assert not lab.cluster_exists()
    assert not lab.kubeconfig_hint().exists()
    assert not lab.remove_cluster(log).changed
    with pytest.raises(LabError, match="no cluster yet"):
        lab.connect()


# -- whose it is -----------------------------------------------------------------------------------------------------


def at(moment: datetime) -> str:
    """A time as docker writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.1Z")


def record_file(place: Workplace) -> Path:
    return place.settings().lab_dir / "kind.json"


@pytest.fixture
def theirs(place: Workplace) -> Iterator[ApiStub]:
    """The API server of the cluster that a person makes by `made_by_a_person`."""
    api = ApiStub()
    yield api
    api.close()


def made_by_a_person(place: Workplace, api: ApiStub) -> None:
    """The lab's cluster is deleted with kind, and another one of its name is made: other node, other port, no mark."""
    place.api.answers["/api/v1/namespaces/kube-system/configmaps/kai-lab-owner"] = (503, status(503, "", "gone"))
    (place.state / "server").write_text(api.url)
    place.change(clusters={NAME: at(datetime.now(timezone.utc) + timedelta(hours=5))}, images={})
    place.forget_calls()


STARTING = (503, status(503, "ServiceUnavailable", "the server is starting"))


def test_of_a_cluster_that_somebody_deleted_no_keys_are_left(place: Workplace) -> None:
    opened = Lab(place.settings(), "down", lambda _: None)
    opened.backend = backend(place)
    opened.backend.ensure_cluster(lambda _: None)
    assert opened.backend.kubeconfig_hint().is_file()
    place.change(clusters={})
    place.api.new_cluster()
    assert tear_down(opened).done == ["the cluster is gone already"]
    assert not opened.backend.kubeconfig_hint().exists()
    assert not (place.settings().lab_dir / "kind.json").exists()


@pytest.mark.parametrize("answers", [True, False])
def test_a_cluster_that_a_person_made_in_place_of_ours_is_not_torn_down(
    place: Workplace, log: Lines, theirs: ApiStub, answers: bool
) -> None:
    backend(place).ensure_cluster(log)
    made_by_a_person(place, theirs)
    if not answers:
        theirs.answers["/api/v1/namespaces/kube-system/configmaps/kai-lab-owner"] = STARTING
    with pytest.raises(LabError, match="this lab did not make") as caught:
        backend(place).remove_cluster(log)
    assert ("carries no lab's mark" if answers else "not those that this lab made") in caught.value.seen
    assert place.calls("kind", "delete") == []


def test_a_cluster_that_a_person_made_in_place_of_ours_is_not_healed(
    place: Workplace, log: Lines, theirs: ApiStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend(place).ensure_cluster(log)
    made_by_a_person(place, theirs)
    theirs.answers["/version"] = STARTING
    monkeypatch.setattr("kai_lab_pipeline.backends.kind.ADOPT_DEADLINE_S", 0.0)
    with pytest.raises(LabError, match="this lab did not make") as caught:
        backend(place).ensure_cluster(log)
    assert caught.value.seen == "the server is starting"
    assert place.calls("kind", "delete") == []


def test_nodes_that_docker_does_not_know_are_not_known_again_by_their_name(
    place: Workplace, log: Lines, theirs: ApiStub
) -> None:
    place.rules({"match": r"^docker inspect --format \{\{.Id}}", "rc": 1, "err": f"Error: No such object: {NODE}\n"})
    backend(place).ensure_cluster(log)
    made_by_a_person(place, theirs)
    theirs.answers["/api/v1/namespaces/kube-system/configmaps/kai-lab-owner"] = STARTING
    with pytest.raises(LabError, match="this lab did not make"):
        backend(place).remove_cluster(log)
    assert place.calls("kind", "delete") == []


def test_our_own_cluster_is_torn_down_where_it_does_not_answer(place: Workplace, log: Lines) -> None:
    backend(place).ensure_cluster(log)
    place.api.answers["/api/v1/namespaces/kube-system/configmaps/kai-lab-owner"] = STARTING
    assert backend(place).remove_cluster(log).changed
    assert place.look()["clusters"] == {}


def test_our_own_cluster_is_known_by_its_mark_where_the_record_is_lost(place: Workplace, log: Lines) -> None:
    backend(place).ensure_cluster(log)
    record_file(place).unlink()
    assert backend(place).remove_cluster(log).changed


def test_nothing_is_installed_on_a_cluster_that_was_refused(place: Workplace, log: Lines) -> None:
    place.change(clusters={NAME: "2026-01-01T00:00:00.0Z"})
    lab = backend(place)
    with pytest.raises(LabError, match="this lab did not make"):
        lab.ensure_cluster(log)
    assert not lab.kubeconfig_hint().exists(), "the way to a foreign cluster is not kept"
    with pytest.raises(LabError, match="no cluster yet"):
        lab.install("nvml_mock", place.settings().charts.nvml_mock, log)
    assert place.calls("helm", "upgrade") == []


def test_nothing_is_installed_by_a_kubeconfig_whose_cluster_is_not_ours(place: Workplace, log: Lines) -> None:
    backend(place).ensure_cluster(log)
    place.api.new_cluster()
    with pytest.raises(LabError, match="carries no lab's mark"):
        backend(place).install("nvml_mock", place.settings().charts.nvml_mock, log)
    assert place.calls("helm", "upgrade") == []


def test_a_cluster_that_the_lab_was_given_is_not_deleted(place: Workplace, log: Lines) -> None:
    backend(place).ensure_cluster(log)
    record_file(place).unlink()
    place.api.objects["configmaps", "kube-system", "kai-lab-owner"]["data"]["made"] = "false"
    with pytest.raises(LabError, match="this lab did not make"):
        backend(place).remove_cluster(log)
    assert place.calls("kind", "delete") == []


def cut_off(place: Workplace, log: Lines, *, began: datetime, last: datetime) -> None:
    """What a run leaves that was killed while kind made the cluster: began then, and touched its record then."""
    backend(place).ensure_cluster(log)
    record = json.loads(record_file(place).read_text())
    record_file(place).write_text(json.dumps(record | {"state": "making", "since": began.isoformat(), "nodes": {}}))
    os.utime(record_file(place), (last.timestamp(), last.timestamp()))
    place.api.new_cluster()


BEGAN = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
LAST = BEGAN + timedelta(seconds=40)


@pytest.mark.parametrize("made", [BEGAN, LAST])
def test_a_run_that_was_cut_off_while_making_is_healed(place: Workplace, log: Lines, made: datetime) -> None:
    cut_off(place, log, began=BEGAN, last=LAST)
    place.change(clusters={NAME: at(made)})
    assert backend(place).ensure_cluster(log).made
    assert log.has("cut off while it made")
    assert len(place.calls("kind", "delete")) == 1


@pytest.mark.parametrize("made", [BEGAN - timedelta(seconds=10), LAST + timedelta(seconds=10)])
def test_a_cluster_that_a_person_made_after_a_run_was_cut_off_stays(
    place: Workplace, log: Lines, made: datetime
) -> None:
    cut_off(place, log, began=BEGAN, last=LAST)
    place.change(clusters={NAME: at(made)})
    with pytest.raises(LabError, match="this lab did not make"):
        backend(place).ensure_cluster(log)
    with pytest.raises(LabError, match="this lab did not make"):
        backend(place).remove_cluster(log)
    assert place.calls("kind", "delete") == []


def test_the_record_is_touched_while_kind_makes_the_cluster(
    place: Workplace, log: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched = threading.Event()
    create = Kind.create

    def slowly(kind: Kind, *arguments: Any, **options: Any) -> None:
        assert json.loads(record_file(place).read_text())["state"] == "making"
        assert touched.wait(PATIENCE_S), "nobody touched the record"
        create(kind, *arguments, **options)

    monkeypatch.setattr(Kind, "create", slowly)
    monkeypatch.setattr("kai_lab_pipeline.backends.kind_owner.TOUCH_S", 0.001)
    monkeypatch.setattr("kai_lab_pipeline.backends.kind_owner.os.utime", lambda file: touched.set())
    assert backend(place).ensure_cluster(log).made
    assert json.loads(record_file(place).read_text())["state"] == "made"


def test_another_docker_daemon_is_not_an_absent_cluster(place: Workplace, log: Lines) -> None:
    lab = backend(place)
    lab.ensure_cluster(log)
    place.change(daemon="ANOTHER", clusters={})
    place.api.new_cluster()  # it does not answer with our mark either
    for ask in (lab.cluster_exists, lambda: lab.remove_cluster(log), lambda: lab.ensure_cluster(log)):
        with pytest.raises(LabError, match="do not look where") as caught:
            ask()
        assert "made on docker daemon OLDU:CUP2, this is ANOTHER" in caught.value.seen
    assert record_file(place).exists()
    assert len(place.calls("kind", "create")) == 1


def test_a_daemon_with_a_new_id_and_our_containers_is_the_same(place: Workplace, log: Lines) -> None:
    backend(place).ensure_cluster(log)
    place.change(daemon="UPGRADED")
    assert not backend(place).ensure_cluster(log).made
    assert json.loads(record_file(place).read_text())["daemon"] == "UPGRADED"


def test_a_cluster_that_answers_is_not_gone_because_kind_does_not_see_it(place: Workplace, log: Lines) -> None:
    lab = backend(place)
    lab.ensure_cluster(log)
    place.change(clusters={})
    with pytest.raises(LabError, match="do not look where") as caught:
        lab.remove_cluster(log)
    assert "answers with this lab's mark" in caught.value.seen
    assert lab.kubeconfig_hint().exists()
    place.api.new_cluster()
    assert not lab.remove_cluster(log).changed
    assert not record_file(place).exists()


def test_a_cluster_of_other_settings_is_made_anew(place: Workplace, log: Lines) -> None:
    config = place.project / "kind.yaml"
    config.write_text("kind: Cluster\n")
    settings: dict[str, Any] = {"kind__config": "kind.yaml", "kind__node_image": "kindest/node:v1.34.0"}
    assert backend(place, **settings).ensure_cluster(log).made
    assert not backend(place, **settings).ensure_cluster(log).made
    settings["kind__node_image"] = "kindest/node:v1.33.0"
    assert backend(place, **settings).ensure_cluster(log).made
    assert log.has("its node image, kind config, mirrors or ca_file changed: making it anew")
    config.write_text("kind: Cluster\nname: other\n")
    assert backend(place, **settings).ensure_cluster(log).made
    settings["mirrors"] = {"docker.io": "http://127.0.0.1:5000"}
    assert backend(place, **settings).ensure_cluster(log).made
    assert not backend(place, **settings).ensure_cluster(log).made
    assert len(place.calls("kind", "create")) == 4


def test_what_a_cluster_is_made_from_is_the_assets_code_version(place: Workplace) -> None:
    config = place.project / "kind.yaml"

    def version(**more: Any) -> str | None:
        (cluster,) = cluster_assets(Group("lab", place.settings(kind__config="kind.yaml", **more)))
        return next(iter(cluster.code_versions_by_key.values()))

    config.write_text("kind: Cluster\n")
    first = version()
    assert first == version()
    assert version(mirrors={"docker.io": "http://127.0.0.1:5000"}) != first
    config.write_text("kind: Cluster\nname: other\n")
    assert version() != first


# -- failures of making ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("04-create-image-missing", "pulling it failed"),
        ("07-create-port-taken", "is taken"),
        ("07-create-kubelet-dies", "kubelet in the node never became healthy"),
        ("07-badconfig-bad-patch", "kind config cannot be used"),
    ],
)
def test_a_failed_creation_keeps_the_logs_and_deletes(place: Workplace, log: Lines, case: str, message: str) -> None:
    place.rules(rule("^kind create", case, makes_cluster=[NAME], times=1))
    lab = backend(place)
    with pytest.raises(ToolError, match=message) as caught:
        lab.ensure_cluster(log)
    assert caught.value.exit_code == 3
    (logs,) = (place.settings().lab_dir / "commands").glob("kind-logs-*")
    assert (logs / "kubelet.log").exists()
    assert str(logs) in str(caught.value)
    assert not lab.cluster_exists()
    assert lab.ensure_cluster(log).made  # and the next run goes on


def test_a_cluster_made_by_somebody_in_the_meantime_stays(place: Workplace, log: Lines) -> None:
    place.rules(rule("^kind create", "10-create-exists", makes_cluster=[NAME]))
    with pytest.raises(ToolError, match="already a kind cluster"):
        backend(place).ensure_cluster(log)
    assert place.calls("kind", "delete") == []
    with pytest.raises(LabError, match="this lab did not make"):
        backend(place).ensure_cluster(log)


def test_nodes_that_never_get_ready_end_with_the_last_mismatch(place: Workplace, log: Lines) -> None:
    place.api.put("nodes", "", NODE, status=ready("Unknown"))
    with pytest.raises(LabError, match="a node is not Ready") as caught:
        backend(place, deadlines__cluster=0.01).ensure_cluster(log)
    assert caught.value.seen == f"not Ready: {NODE}"
    assert "kubelet" not in place.look()["clusters"]
    assert place.look()["clusters"] == {}


@pytest.mark.parametrize(
    ("tool", "message"), [("docker", "docker is not on the PATH"), ("kind", "kind is not on the PATH")]
)
def test_a_missing_tool_is_named(place: Workplace, log: Lines, tool: str, message: str) -> None:
    place.remove_tool(tool)
    with pytest.raises(ToolMissing, match=message) as caught:
        backend(place, on_path=True).ensure_cluster(log)
    assert "Install" in caught.value.next_step
    assert caught.value.exit_code == 3


def test_a_dead_daemon_is_said_before_anything_is_made(place: Workplace, log: Lines) -> None:
    place.rules(rule("^docker info", "02-docker-info-dead"))
    with pytest.raises(ToolError, match="No docker daemon answers"):
        backend(place, on_path=True).ensure_cluster(log)
    assert place.calls("kind", "create") == []


def test_an_old_kind_is_refused(place: Workplace, log: Lines) -> None:
    place.rules({"match": "^kind version", "out": "kind v0.17.0 go1.19.2 linux/amd64\n"})
    with pytest.raises(LabError, match=r"kind 0\.17\.0 is too old"):
        backend(place).ensure_cluster(log)


def test_a_config_that_is_not_there_is_wrong_use(place: Workplace, log: Lines) -> None:
    backend(place).ensure_cluster(log)
    with pytest.raises(WrongUse, match=r"kind\.config names nope\.yaml"):
        backend(place, kind__config="nope.yaml").ensure_cluster(log)
    assert place.calls("kind", "delete") == [], "a healthy cluster is not given up for a typing error"


def preloads(place: Workplace) -> list[str]:
    return [Path(call[3]).name for call in place.calls("kind", "load", "image-archive")]


def test_preloads_are_loaded_right_after_the_cluster_and_once(place: Workplace, log: Lines) -> None:
    for name in ("a.tar", "b.tar"):
        (place.project / name).write_text("{}")
    backend(place, kind__preload=["a.tar"]).ensure_cluster(log)
    backend(place, kind__preload=["a.tar"]).ensure_cluster(log)
    assert preloads(place) == ["a.tar"]
    backend(place, kind__preload=["a.tar", "b.tar"]).ensure_cluster(log)
    assert preloads(place) == ["a.tar", "b.tar"], "an adopted cluster gets what was added"
    (place.project / "a.tar").write_text('{"another:1": "sha256:1"}')
    assert not backend(place, kind__preload=["a.tar", "b.tar"]).ensure_cluster(log).made
    assert preloads(place) == ["a.tar", "b.tar", "a.tar"], "and what is another file by now"
    backend(place).remove_cluster(log)
    backend(place, kind__preload=["a.tar"]).ensure_cluster(log)
    assert preloads(place)[3:] == ["a.tar"], "a new cluster has nothing"


def test_a_run_that_was_cut_off_while_it_preloaded_is_made_up_for(place: Workplace, log: Lines) -> None:
    for name in ("a.tar", "b.tar"):
        (place.project / name).write_text("{}")
    load = Kind.load_archive

    def cut_off_at_b(kind: Kind, cluster: str, archive: Path, *, log: Log) -> None:
        if archive.name == "b.tar":
            raise KeyboardInterrupt
        load(kind, cluster, archive, log=log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kind, "load_archive", cut_off_at_b)
        with pytest.raises(KeyboardInterrupt):
            backend(place, kind__preload=["a.tar", "b.tar"]).ensure_cluster(log)
    assert not backend(place, kind__preload=["a.tar", "b.tar"]).ensure_cluster(log).made
    assert preloads(place) == ["a.tar", "b.tar"]


def test_a_preload_that_is_not_there_is_told_before_anything_is_made(place: Workplace, log: Lines) -> None:
    with pytest.raises(WrongUse, match=r"kind\.preload names all\.tar"):
        backend(place, kind__preload=["all.tar"]).ensure_cluster(log)
    assert place.calls("kind", "create") == []


# -- mirrors ---------------------------------------------------------------------------------------------------------


def test_nodes_take_registries_from_the_mirrors(place: Workplace, log: Lines) -> None:
    backend(place, mirrors={"docker.io": "http://127.0.0.1:5000"}).ensure_cluster(log)
    (create,) = place.calls("kind", "create")
    assert "config_path" in Path(create[create.index("--config") + 1]).read_text()
    (written,) = [json.loads(line) for line in (place.state / "written.jsonl").read_text().splitlines()]
    assert written["path"] == "/etc/containerd/certs.d/docker.io/hosts.toml"
    assert '[host."http://172.18.0.1:5000"]' in written["text"]


CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def test_nodes_trust_the_certificates_for_every_registry(place: Workplace, log: Lines) -> None:
    (place.project / "ca.pem").write_text(CERTIFICATE)
    backend(place, ca_file="ca.pem").ensure_cluster(log)
    (create,) = place.calls("kind", "create")
    assert "config_path" in Path(create[create.index("--config") + 1]).read_text()
    written = [json.loads(line) for line in (place.state / "written.jsonl").read_text().splitlines()]
    assert {row["path"]: row["text"] for row in written} == {
        "/etc/containerd/certs.d/_default/ca.crt": CERTIFICATE,
        "/etc/containerd/certs.d/_default/hosts.toml": 'ca = "/etc/containerd/certs.d/_default/ca.crt"\n',
    }
    (place.project / "ca.pem").write_text(CERTIFICATE * 2)
    assert backend(place, ca_file="ca.pem").ensure_cluster(log).made, "the nodes have others"


@pytest.mark.parametrize("content", [None, b"no certificate", b"\x30\x82\xff"])
def test_certificates_that_cannot_be_read_are_told_before_anything_is_touched(
    place: Workplace, log: Lines, content: bytes | None
) -> None:
    backend(place, mirrors={"ghcr.io": "https://mirror.corp"}).ensure_cluster(log)
    if content is not None:
        (place.project / "ca.pem").write_bytes(content)
    with pytest.raises(WrongUse, match=r"ca_file names ca\.pem, and no certificates can be read from it"):
        backend(place, mirrors={"ghcr.io": "https://mirror.corp"}, ca_file="ca.pem").ensure_cluster(log)
    assert len(place.calls("kind", "create")) + len(place.calls("kind", "delete")) == 1


def test_hosts_toml_names_prefix_certificate_and_login() -> None:
    source = Mirrors({"ghcr.io": "https://lab:pw@mirror.corp/ghcr"}).of("ghcr.io")
    text = hosts_toml("ghcr.io", source, None, with_ca=True)
    assert '[host."https://mirror.corp/v2/ghcr"]' in text
    assert "override_path = true" in text
    server, mirror = text.split("[host.", 1)
    for section in (server, mirror):
        assert 'ca = "/etc/containerd/certs.d/_default/ca.crt"' in section, "the registry itself is the way out"
    assert 'Authorization = "Basic bGFiOnB3"' in text


# -- releases --------------------------------------------------------------------------------------------------------


@pytest.fixture
def lab(place: Workplace, log: Lines) -> KindBackend:
    made = backend(place)
    made.ensure_cluster(log)
    place.forget_calls()
    return made


def test_a_chart_is_installed_once_and_left_when_it_is_the_same(place: Workplace, lab: KindBackend, log: Lines) -> None:
    chart = place.settings().charts.kai_scheduler
    first = lab.install("kai_scheduler", chart, log)
    assert first.changed
    assert first.facts["chart_digest"] == "sha256:abc"
    second = lab.install("kai_scheduler", chart, log)
    assert not second.changed
    assert len(place.calls("helm", "upgrade")) == 1
    other = chart.model_copy(update={"values": {"global.gpuSharing": False}})
    assert lab.install("kai_scheduler", other, log).facts["revision"] == "2"
    assert [row["name"] for row in lab.releases()] == ["kai-scheduler"]


def test_a_release_is_found_behind_more_than_helm_prints_by_itself(
    place: Workplace, lab: KindBackend, log: Lines
) -> None:
    for number in range(300):
        place.release("theirs", f"a{number:03}", "web-1.0.0")
    place.release("kai-scheduler", "kai-schedulerx", "other-1.0.0")
    chart = place.settings().charts.kai_scheduler
    lab.install("kai_scheduler", chart, log)
    assert not lab.install("kai_scheduler", chart, log).changed
    assert "kai-scheduler" in [row["name"] for row in lab.releases()]
    filters = [call[call.index("--filter") + 1] for call in place.calls("helm", "list") if "--filter" in call]
    assert set(filters) == {r"^kai\-scheduler$"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("failed", ["upgrade"]),
        ("pending-install", ["uninstall", "upgrade"]),
        ("uninstalling", ["uninstall", "upgrade"]),
        ("pending-upgrade", ["rollback", "upgrade"]),
        ("pending-rollback", ["rollback", "upgrade"]),
    ],
)
def test_a_release_that_was_cut_off_is_healed_with_a_notice(
    place: Workplace, lab: KindBackend, log: Lines, status: str, expected: list[str]
) -> None:
    history = [
        {"revision": 1, "status": "deployed", "description": "Install complete"},
        {"revision": 2, "status": status, "description": "context canceled"},
    ]
    place.release("kai-scheduler", "kai-scheduler", "kai-scheduler-v0.17.0", status, history=history)
    facts = lab.install("kai_scheduler", place.settings().charts.kai_scheduler, log)
    changing = [call[1] for call in place.calls("helm") if call[1] in ("upgrade", "rollback", "uninstall")]
    assert changing == expected
    assert facts.facts["healed_from"] == f"{status} (context canceled)"
    assert log.has(f"kai-scheduler was left {status} (context canceled) by an earlier run")


def test_a_rollback_that_fails_does_not_stop_the_healing(place: Workplace, lab: KindBackend, log: Lines) -> None:
    history = [{"revision": 1, "status": "superseded"}, {"revision": 2, "status": "pending-upgrade"}]
    place.release("kai-scheduler", "kai-scheduler", "kai-scheduler-v0.17.0", "pending-upgrade", history=history)
    place.rules({"match": "^helm rollback", "rc": 1, "err": 'Error: cannot patch "default-queue" with kind Queue\n'})
    assert lab.install("kai_scheduler", place.settings().charts.kai_scheduler, log).changed
    assert log.has("rollback to revision 1 did not work")


def test_a_webhook_that_does_not_serve_yet_is_retried_and_counted(
    place: Workplace, lab: KindBackend, log: Lines
) -> None:
    error = (
        'Error: INSTALLATION FAILED: Internal error occurred: failed calling webhook "admission.kai-scheduler.svc": '
    )
    error += "failed to call webhook: Post: dial tcp 10.96.0.1:443: connect: connection refused\n"
    place.rules({"match": "^helm upgrade", "rc": 1, "err": error, "times": 2})
    facts = lab.install("kai_resource_isolator", place.settings().charts.kai_resource_isolator, log)
    assert facts.attempts == 3
    assert log.has("attempt 2 follows")


def test_a_hook_that_fails_shows_the_log_of_its_pod(place: Workplace, lab: KindBackend, log: Lines) -> None:
    words = recorded("helm3")["50-hook-fail-hami-yes"]
    hook_log = recorded("helm3")["50-hook-fail-podlog"]["out"]
    spec = {"containers": [{"name": "deployer"}]}
    place.api.put("pods", "kai-scheduler", "kai-config-deployer-x", spec=spec, status={"phase": "Failed"})
    place.api.put("pods", "kai-scheduler", "kai-operator-y", spec=spec, status={"phase": "Running", **ready()})
    place.api.logs["kai-config-deployer-x"] = hook_log
    place.rules({"match": "^helm upgrade", "rc": 1, "err": words["err"]})
    with pytest.raises(ToolError, match="post-install hook of the chart did not end") as caught:
        lab.install("kai_scheduler", place.settings().charts.kai_scheduler, log)
    assert len(place.calls("helm", "upgrade")) == 1
    assert "pod kai-scheduler/kai-config-deployer-x: Failed" in str(caught.value)
    assert "expected boolean, got &{yes}" in str(caught.value)
    assert "kai-operator-y" not in str(caught.value)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("32-oci-404-repo-version", "registry has no"),
        ("37-auth-401-version", "wants a login"),
        ("39-registry-403", "refuses access"),
        ("39-registry-429", "had enough pulls"),
        ("40-api-refused", "does not answer"),
    ],
)
@pytest.mark.parametrize("major", ["helm3", "helm4"])
def test_helm_failures_are_one_clear_message(
    place: Workplace, lab: KindBackend, log: Lines, major: str, case: str, message: str
) -> None:
    words = recorded(major)[case]
    place.rules({"match": "^helm upgrade", "rc": words["rc"], "err": words["err"]})
    with pytest.raises(ToolError, match=message) as caught:
        lab.install("nvml_mock", place.settings().charts.nvml_mock, log)
    assert caught.value.exit_code == 3
    assert caught.value.next_step
    assert len(place.calls("helm", "upgrade")) == 1
    place.rules()
    assert lab.install("nvml_mock", place.settings().charts.nvml_mock, log).changed  # a rerun goes on


def test_helms_word_is_checked(place: Workplace, lab: KindBackend, log: Lines) -> None:
    place.rules({"match": "^helm upgrade", "out": "STATUS: deployed\n"})
    with pytest.raises(LabError, match="helm ended well, and nvml-mock is not there"):
        lab.install("nvml_mock", place.settings().charts.nvml_mock, log)


def test_webhooks_that_an_earlier_kai_left_are_removed_first(place: Workplace, lab: KindBackend, log: Lines) -> None:
    def hooks(namespace: str) -> list[dict[str, Any]]:
        return [{"name": "x", "clientConfig": {"service": {"namespace": namespace, "name": "admission"}}}]

    place.api.put("mutatingwebhookconfigurations", "", "kai-admission", webhooks=hooks("kai-scheduler"))
    place.api.put("validatingwebhookconfigurations", "", "theirs", webhooks=hooks("other"))
    lab.install("kai_scheduler", place.settings().charts.kai_scheduler, log)
    assert place.api.names("mutatingwebhookconfigurations") == []
    assert place.api.names("validatingwebhookconfigurations") == ["theirs"]
    assert log.has("removing webhook kai-admission")


def test_uninstalling_what_is_not_there_changes_nothing(place: Workplace, lab: KindBackend, log: Lines) -> None:
    chart = place.settings().charts.kai_scheduler
    lab.install("kai_scheduler", chart, log)
    assert lab.uninstall("kai_scheduler", chart, log).changed
    assert not lab.uninstall("kai_scheduler", chart, log).changed


@pytest.mark.parametrize(
    ("text", "attempts"),
    [
        ('failed calling webhook "q": failed to call webhook: Post: no endpoints available for service "q"', 2),
        ('no matches for kind "Queue" in version "scheduling.run.ai/v2" ensure CRDs are installed first', 2),
        ('failed calling webhook "q": tls: failed to verify certificate: x509: certificate has expired', 1),
        ('admission webhook "admission.kai-scheduler.svc" denied the request: GPU sharing is disabled', 1),
        ("context deadline exceeded", 1),
    ],
)
def test_only_what_passes_by_itself_is_repeated(
    place: Workplace, lab: KindBackend, log: Lines, text: str, attempts: int
) -> None:
    place.rules({"match": "^helm upgrade", "rc": 1, "err": f"Error: INSTALLATION FAILED: {text}", "times": 1})
    chart = place.settings().charts.kai_scheduler
    if attempts == 1:
        with pytest.raises(ToolError):
            lab.install("kai_scheduler", chart, log)
    else:
        assert lab.install("kai_scheduler", chart, log).attempts == attempts
    assert len(place.calls("helm", "upgrade")) == attempts


# -- being cancelled or killed ---------------------------------------------------------------------------------------

PHASES = {
    "cluster": ("^kind create", "lab.ensure_cluster(print)"),
    "image": ("^kind load", "lab.ensure_cluster(print); lab.provide_image(print)"),
    "release": ("^helm upgrade", "lab.ensure_cluster(print); lab.install('k', s.charts.kai_scheduler, print)"),
    "tear-down": ("^kind delete", "lab.ensure_cluster(print); lab.remove_cluster(print)"),
}
HALF_DONE: dict[str, dict[str, Any]] = {
    "cluster": {"makes_cluster": [NAME]},
    "release": {
        "makes_release": {
            "kai-scheduler/kai-scheduler": {
                "name": "kai-scheduler",
                "namespace": "kai-scheduler",
                "status": "pending-install",
                "revision": "1",
                "chart": "kai-scheduler-v0.17.0",
            }
        }
    },
}


@pytest.mark.parametrize(("phase", "how"), [*((phase, "kill") for phase in PHASES), ("cluster", "terminate")])
def test_a_run_that_ends_in_the_middle_leaves_no_child_and_the_next_one_heals(
    place: Workplace, log: Lines, tmp_path: Path, phase: str, how: str
) -> None:
    match, code = PHASES[phase]
    alive = Alive(tmp_path / "alive")
    place.rules({"match": match, "alive": str(alive.path), "times": 1, **HALF_DONE.get(phase, {})})
    script = "import sys; from pathlib import Path; from kai_lab_pipeline.settings import load_settings\n"
    script += "from kai_lab_pipeline.backends.kind import KindBackend\n"
    script += "s = load_settings(Path(sys.argv[1]), overrides={('lab', 'backend'): 'kind'})\n"
    script += f"lab = KindBackend(s)\n{code}\n"
    worker = subprocess.Popen(
        [sys.executable, "-c", script, str(place.project)], cwd=PROJECT, stdout=subprocess.DEVNULL
    )
    try:
        alive.wait_up()
        getattr(worker, how)()
        worker.wait(PATIENCE_S)
        alive.wait_gone()
    finally:
        worker.kill()
        worker.wait(PATIENCE_S)
        alive.close()
    lab = backend(place)
    lab.ensure_cluster(log)
    assert lab.provide_image(log).facts["image"] == "nvml-mock:local"
    facts = lab.install("kai_scheduler", place.settings().charts.kai_scheduler, log)
    assert [row["status"] for row in lab.releases()] == ["deployed"]
    assert ("healed_from" in facts.facts) is (phase == "release")
    assert list((place.settings().lab_dir / "running").iterdir()) == []


def test_an_api_server_that_goes_away_is_one_clear_message(place: Workplace, lab: KindBackend, log: Lines) -> None:
    gone = (503, status(503, "ServiceUnavailable", "apiserver not ready"))
    place.api.answers["/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"] = gone
    with pytest.raises(LabError, match="refused to list mutatingwebhookconfigurations") as caught:
        lab.install("kai_scheduler", place.settings().charts.kai_scheduler, log)
    assert caught.value.exit_code == 3
    place.api.answers.clear()
    assert lab.install("kai_scheduler", place.settings().charts.kai_scheduler, log).changed
