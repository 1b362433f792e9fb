"""A mock image that was made anew reaches the pods that run the one before, and nothing is restarted without need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kai_lab_pipeline.backends.kind import KindBackend
from kai_lab_pipeline.clients.docker import NodeImage
from kai_lab_pipeline.workbench import steps
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline_tests.stubs.workplace import QuickTools, Workplace, make_workplace

NODE = "kai-hami-test-control-plane"
OLD, NEW = f"sha256:{'0' * 64}", f"sha256:{'1' * 64}"
LABELS = {"app.kubernetes.io/instance": "nvml-mock", "app.kubernetes.io/name": "nvml-mock"}
OWNER = [{"kind": "DaemonSet", "name": "nvml-mock"}]


def quiet(line: str) -> None:
    pass


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    yield from make_workplace(tmp_path, monkeypatch)


@pytest.fixture
def lab(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab on kind whose mock is installed and in order, from an image built of a checkout."""
    (place.project / "checkout" / "deployments" / "nvml-mock").mkdir(parents=True)
    (place.project / "checkout" / "deployments" / "nvml-mock" / "Dockerfile").write_text("FROM scratch\n")
    made = Lab(place.settings(image__nvml_mock__checkout="checkout"), "test", quiet)
    backend = KindBackend(made.settings, pause=lambda seconds: None)
    backend.use(QuickTools(backend.tools.registry, backend.tools.transcripts))
    made.backend = backend
    backend.ensure_cluster(quiet)
    steps.STEPS["nvml_mock_image"](made)
    monkeypatch.setattr(made, "settle", lambda *_, **__: SimpleNamespace(mismatches=[]))
    assert steps.install(made, "nvml_mock").changed
    return made


def mock_pod(place: Workplace, image_id: str, name: str = "nvml-mock-x", **more: Any) -> None:
    meta = {"labels": LABELS, "ownerReferences": OWNER} | more
    spec = {"nodeName": NODE, "containers": [{"name": "nvml-mock", "image": "nvml-mock:local"}]}
    status = {"containerStatuses": [{"name": "nvml-mock", "imageID": image_id}]}
    place.api.put("pods", "default", name, metadata=meta, spec=spec, status=status)


def build_anew(lab: Lab, place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkout was edited: the next build gives another image, of the same name."""
    monkeypatch.setattr("kai_lab_pipeline_tests.stubs.tool.Tools.built", lambda *_: NEW)
    assert steps.STEPS["nvml_mock_image"](lab).changed
    images = place.look()["images"][NODE]
    assert images["nvml-mock:local"] == NEW


def test_pods_of_the_image_before_are_restarted_and_the_step_says_so(
    lab: Lab, place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock_pod(place, OLD)
    build_anew(lab, place, monkeypatch)
    facts = steps.install(lab, "nvml_mock")
    assert facts.changed
    assert facts.summary.endswith(
        "already deployed with these values: nvml-mock-0.3.0, revision 1; "
        "restarted nvml-mock-x: nvml-mock:local was made anew"
    )
    assert place.api.names("pods") == []
    assert len(place.calls("helm", "upgrade")) == 1
    mock_pod(place, NEW)
    assert not steps.install(lab, "nvml_mock").changed
    assert place.api.names("pods") == ["nvml-mock-x"]


@pytest.mark.parametrize("image_id", [NEW, f"docker.io/library/nvml-mock@{NEW}", "", "nvml-mock:local"])
def test_nothing_is_restarted_where_the_ids_agree_or_are_not_known(
    lab: Lab, place: Workplace, monkeypatch: pytest.MonkeyPatch, image_id: str
) -> None:
    mock_pod(place, image_id)
    build_anew(lab, place, monkeypatch)
    assert not steps.install(lab, "nvml_mock").changed
    assert place.api.names("pods") == ["nvml-mock-x"]


def test_a_node_that_does_not_tell_its_images_and_what_is_not_the_mock_s_are_left_alone(
    lab: Lab, place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_anew(lab, place, monkeypatch)
    mock_pod(place, OLD, "by-hand", ownerReferences=[])
    mock_pod(place, OLD, "of-another-release", labels=LABELS | {"app.kubernetes.io/instance": "theirs"})
    mock_pod(place, OLD, "going", deletionTimestamp="2026-11-30T00:00:00Z")
    assert not steps.install(lab, "nvml_mock").changed
    place.change(images={"local": place.look()["images"]["local"]})
    mock_pod(place, OLD)
    assert not steps.install(lab, "nvml_mock").changed
    assert place.api.names("pods") == ["by-hand", "going", "nvml-mock-x", "of-another-release"]


def test_an_image_is_known_by_its_id_and_by_the_digests_of_its_names() -> None:
    imported = "docker.io/library/import-2026-11-30@sha256:cfa7"
    image = NodeImage("sha256:8b4a", ("docker.io/library/nvml-mock:local", imported))
    assert image.digests == {"sha256:8b4a", "sha256:cfa7"}
    assert not image.pulled
    assert NodeImage("x", ("docker.io/library/busybox:latest", "docker.io/library/busybox@sha256:92d3")).pulled
