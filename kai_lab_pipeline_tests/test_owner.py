"""The mark of a cluster: the lab that writes it first has the cluster, also when two ask at the same moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline.backends import context
from kai_lab_pipeline.backends.context import ContextBackend
from kai_lab_pipeline.backends.owner import NAME, NAMESPACE, Mark, new_mark, read_mark, write_mark
from kai_lab_pipeline.clients.kubeconfig import write_kubeconfig
from kai_lab_pipeline.clients.kubernetes import Cluster, Conflict
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline_tests.stubs.workplace import QuickTools, Workplace, make_workplace


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    yield from make_workplace(tmp_path, monkeypatch)


@pytest.fixture
def cluster(place: Workplace) -> Cluster:
    file = place.home / ".kube" / "config"
    content: dict[str, Any] = {
        "clusters": [{"name": "lab", "cluster": {"server": place.api.url}}],
        "users": [{"name": "me", "user": {"token": "not-a-secret"}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
    }
    write_kubeconfig(file, content)
    return Cluster(file, "lab")


def mark_of(place: Workplace, lab: str) -> Mark:
    return new_mark(lab, place.project / lab, made=False, found=frozenset({"queues//default"}))


def test_the_first_mark_stays_and_the_second_lab_is_told_of_it(place: Workplace, cluster: Cluster) -> None:
    first, second = mark_of(place, "first"), mark_of(place, "second")
    assert write_mark(cluster, first) == first
    assert write_mark(cluster, second) == first
    assert write_mark(cluster, first) == first
    assert read_mark(cluster) == first


def test_a_mark_that_comes_and_goes_in_between_is_a_conflict(place: Workplace, cluster: Cluster) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    place.api.answers[path] = (409, {"kind": "Status", "code": 409, "reason": "AlreadyExists", "message": "there"})
    with pytest.raises(Conflict):
        write_mark(cluster, mark_of(place, "first"))


@pytest.mark.parametrize("ours", [True, False])
def test_a_lab_that_saw_no_mark_does_not_take_over_the_one_written_since(
    place: Workplace, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    settings = place.settings(lab__backend="context", lab__context="lab")
    backend = ContextBackend(settings, pause=lambda seconds: None)
    backend.use(QuickTools(backend.tools.registry, backend.tools.transcripts))
    folder = settings.lab_dir if ours else place.project / "elsewhere"
    there = write_mark(cluster, new_mark("the first", folder, made=False))
    monkeypatch.setattr(context, "read_mark", lambda _: None)
    if ours:
        assert backend.ensure_cluster(lambda line: None).context == "lab"
    else:
        with pytest.raises(LabError, match="used by lab 'the first' with another state folder"):
            backend.ensure_cluster(lambda line: None)
        assert not backend.cluster_exists(), "nothing of this lab points to it"
    assert read_mark(cluster) == there
    assert place.api.names("configmaps") == [NAME]
