"""The nvml-mock image on a kind cluster's nodes, with stub tools on the PATH that replay what the real ones said."""

from __future__ import annotations

import fcntl
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline.assets.gpus import image_version
from kai_lab_pipeline.clients.docker import Docker
from kai_lab_pipeline.clients.image_archive import image_id_in
from kai_lab_pipeline.clients.kind import Kind
from kai_lab_pipeline.clients.tools import Log, Outcome, ToolError, ToolTimeout
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline_tests.stubs.kind_lab import NAME, NODE, Lines, backend, rule
from kai_lab_pipeline_tests.stubs.workplace import PATIENCE_S, Workplace, make_workplace


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    yield from make_workplace(tmp_path, monkeypatch)


@pytest.fixture
def log() -> Lines:
    return Lines()


def test_an_image_that_is_not_on_the_node_goes_by_an_archive(place: Workplace, log: Lines) -> None:
    lab = backend(place)
    lab.ensure_cluster(log)
    place.rules(rule("^kind load docker-image", "11-load-docker-image-ok"))  # exit 0, and nothing on the node
    assert lab.provide_image(log).facts["loaded"] == "docker save and kind load image-archive"
    assert log.has("is not on the node; going by an archive")


def test_a_load_that_fails_goes_by_an_archive(place: Workplace, log: Lines) -> None:
    lab = backend(place)
    lab.ensure_cluster(log)
    error = "ERROR: failed to load image: ctr: content digest sha256:12: not found\n"
    place.rules({"match": "^kind load docker-image", "rc": 1, "err": error})
    assert "archive" in lab.provide_image(log).facts["loaded"]


def test_a_daemon_that_died_is_not_called_a_missing_image(place: Workplace, log: Lines) -> None:
    lab = backend(place)
    lab.ensure_cluster(log)
    place.rules(
        rule("^kind load docker-image", "02-load-docker-image-dead"), rule("^docker info", "02-docker-info-dead")
    )
    with pytest.raises(ToolError, match="No docker daemon answers"):
        lab.provide_image(log)


def test_an_image_that_never_arrives_is_an_error(place: Workplace, log: Lines) -> None:
    lab = backend(place)
    lab.ensure_cluster(log)
    place.rules(rule("^kind load", "11-load-docker-image-ok"))
    with pytest.raises(LabError, match=r"nvml-mock:local is not on .* after it was loaded"):
        lab.provide_image(log)


def test_an_archive_is_loaded_instead_of_building(place: Workplace, log: Lines) -> None:
    archive = place.project / "image.tar"
    archive.write_text(json.dumps({"nvml-mock:local": "sha256:1"}))
    lab = backend(place, image__nvml_mock__archive="image.tar")
    lab.ensure_cluster(log)
    assert lab.provide_image(log).facts["archive"] == "image.tar"
    assert place.calls("docker", "build") + place.calls("git") == []


def test_an_archive_without_the_image_is_said(place: Workplace, log: Lines) -> None:
    (place.project / "image.tar").write_text(json.dumps({"other:1": "sha256:1"}))
    lab = backend(place, image__nvml_mock__archive="image.tar")
    lab.ensure_cluster(log)
    with pytest.raises(LabError, match="after it was loaded") as caught:
        lab.provide_image(log)
    assert "this very name" in caught.value.next_step


def test_a_checkout_is_built_every_time(place: Workplace, log: Lines) -> None:
    dockerfile = place.project / "src" / "deployments" / "nvml-mock" / "Dockerfile"
    dockerfile.parent.mkdir(parents=True)
    dockerfile.write_text("FROM scratch\n")
    lab = backend(place, image__nvml_mock__checkout="src")
    lab.ensure_cluster(log)
    lab.provide_image(log)
    assert len(place.calls("docker", "build")) == 2
    assert place.calls("git") == []


def test_a_git_ref_that_is_not_there_is_told_by_its_own_step(place: Workplace, log: Lines) -> None:
    error = "fatal: Remote branch v9 not found in upstream origin\n"
    place.rules({"match": "^git clone", "rc": 128, "err": error})
    lab = backend(place, image__nvml_mock__git_ref="v9")
    assert lab.ensure_cluster(log).made  # the cluster is not held up by it
    assert log.has("its own step will try again")
    with pytest.raises(ToolError, match="no branch or tag v9"):
        lab.provide_image(log)


FORK = "https://git.example/fork.git"


def built(place: Workplace) -> int:
    return len(place.calls("docker", "build"))


def test_another_source_of_the_same_ref_is_another_image(place: Workplace, log: Lines) -> None:
    backend(place).ensure_cluster(log)
    fork = backend(place, image__nvml_mock__source=FORK)
    fork.provide_image(log)
    assert [call[-2] for call in place.calls("git", "clone")] == [place.settings().image.nvml_mock.source, FORK]
    contexts = [call[-1] for call in place.calls("docker", "build")]
    assert len(set(contexts)) == 2, "each is built from its own clone"
    fork.provide_image(log)
    assert built(place) == 2


def test_a_branch_that_moved_is_cloned_and_built_again(place: Workplace, log: Lines) -> None:
    place.change(branches={"main": "a" * 40})
    lab = backend(place, image__nvml_mock__git_ref="main")
    lab.ensure_cluster(log)
    lab.provide_image(log)
    assert built(place) == 1, "it did not move"
    place.change(branches={"main": "b" * 40})
    lab.provide_image(log)
    assert built(place) == 2
    label = place.look()["labels"]["nvml-mock:local"]["kai-lab.source"]
    assert label == f"{place.settings().image.nvml_mock.source}@main#{'b' * 40}"
    place.rules({"match": "^git ls-remote", "rc": 128, "err": "fatal: unable to access: Could not resolve host\n"})
    place.change(branches={"main": "c" * 40})
    lab.provide_image(log)
    assert built(place) == 2
    assert log.has("whether refs/heads/main has moved could not be asked; going by bbbbbbbbbbbb")


def test_a_source_that_does_not_answer_in_time_is_done_without(place: Workplace, log: Lines) -> None:
    place.change(branches={"main": "a" * 40})
    lab = backend(place, image__nvml_mock__git_ref="main")
    lab.ensure_cluster(log)
    run = lab.tools.run

    def hangs(command: Sequence[str], **options: Any) -> Outcome:
        if "ls-remote" in command:
            raise ToolTimeout("git did not end within 60 s and was stopped", transient=True)
        return run(command, **options)

    lab.tools.run = hangs  # type: ignore[method-assign]
    lab.use(lab.tools)
    assert lab.provide_image(log).changed
    assert log.has("has moved could not be asked; going by aaaaaaaaaaaa: git did not end within 60 s")


def test_credentials_of_the_source_are_not_in_the_image(place: Workplace, log: Lines) -> None:
    source = "https://me:s3cr3t@git.corp/k8s-test-infra.git"
    lab = backend(place, image__nvml_mock__source=source)
    lab.ensure_cluster(log)
    assert place.calls("git", "clone")[0][-2] == source
    assert "s3cr3t" not in str(place.calls("docker", "build"))
    assert "git.corp/k8s-test-infra.git@v0.3.0#" in place.look()["labels"]["nvml-mock:local"]["kai-lab.source"]
    lab.provide_image(log)
    assert built(place) == 1, "it is found again by what is left"


def test_a_tag_is_never_asked_for_again(place: Workplace, log: Lines) -> None:
    lab = backend(place)
    lab.ensure_cluster(log)
    lab.provide_image(log)
    assert place.calls("git", "ls-remote") == []
    assert (len(place.calls("git", "clone")), built(place)) == (1, 1)


def test_the_same_image_provided_again_is_the_same_version(place: Workplace, log: Lines) -> None:
    lab = backend(place)
    lab.ensure_cluster(log)
    first, second = lab.provide_image(log), lab.provide_image(log)
    assert (first.changed, second.changed) == (True, False)
    assert image_version(first) == image_version(second) == [place.look()["images"]["local"]["nvml-mock:local"], None]


def saved(file: Path, name: str, digest: str) -> None:
    """An archive as docker saves it: with a manifest that tells each image's name and config."""
    text = json.dumps([{"Config": f"blobs/sha256/{digest}", "RepoTags": [name], "Layers": []}]).encode()
    entry = tarfile.TarInfo("manifest.json")
    entry.size = len(text)
    with tarfile.open(file, "w") as tar:
        tar.addfile(entry, io.BytesIO(text))


def test_an_archive_whose_image_is_on_the_node_is_not_loaded_again(place: Workplace, log: Lines) -> None:
    archive = place.project / "image.tar"
    saved(archive, "nvml-mock:local", "1" * 64)
    lab = backend(place, image__nvml_mock__archive="image.tar")
    lab.ensure_cluster(log)
    first, second = lab.provide_image(log), lab.provide_image(log)
    assert (first.changed, second.changed) == (True, False)
    assert image_version(first) == image_version(second)
    assert len(place.calls("kind", "load")) == 1
    saved(archive, "nvml-mock:local", "2" * 64)
    assert lab.provide_image(log).changed


@pytest.mark.parametrize("name", ["other:1", "nvml-mock:local"])
def test_the_id_of_an_image_is_read_from_its_archive(tmp_path: Path, name: str) -> None:
    saved(tmp_path / "image.tar", "docker.io/library/nvml-mock:local", "1" * 64)
    expected = f"sha256:{'1' * 64}" if name == "nvml-mock:local" else None
    assert image_id_in(tmp_path / "image.tar", name) == expected
    (tmp_path / "image.tar").write_bytes(b"no archive")
    assert image_id_in(tmp_path / "image.tar", name) is None


def test_an_archive_of_another_content_is_another_version(place: Workplace, log: Lines) -> None:
    archive = place.project / "image.tar"
    lab = backend(place, image__nvml_mock__archive="image.tar")
    archive.write_text(json.dumps({"nvml-mock:local": "sha256:1"}))
    lab.ensure_cluster(log)
    first, same = lab.provide_image(log), lab.provide_image(log)
    archive.write_text(json.dumps({"nvml-mock:local": "sha256:2"}))
    assert image_version(first) == image_version(same)
    assert image_version(lab.provide_image(log)) != image_version(first)


def test_a_build_that_fails_shows_its_step(place: Workplace, log: Lines) -> None:
    place.rules(rule("^docker build", "05-build-legacy-failstep"))
    lab = backend(place)
    lab.ensure_cluster(log)
    with pytest.raises(ToolError, match="A step of the Dockerfile failed"):
        lab.provide_image(log)
    assert log.has("Running in e325bf57ec36")


# -- labs beside each other ------------------------------------------------------------------------------------------


def test_a_name_that_became_another_image_between_build_and_load_is_told(
    place: Workplace, log: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = backend(place)
    lab.ensure_cluster(log)
    load = Kind.load_image

    def moved(kind: Kind, cluster: str, image: str, *, log: Log) -> None:
        place.change(images=place.look()["images"] | {"local": {image: f"sha256:{'f' * 64}"}})
        load(kind, cluster, image, log=log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kind, "load_image", moved)
        with pytest.raises(LabError, match="nvml-mock:local became another image while it was loaded") as caught:
            lab.provide_image(log)
    assert f"the name is now that of sha256:{'f' * 64}" in caught.value.seen
    monkeypatch.setattr("kai_lab_pipeline_tests.stubs.tool.Tools.built", lambda *_: f"sha256:{'e' * 64}")
    place.change(labels={"nvml-mock:local": {"kai-lab.source": "theirs"}})
    assert lab.provide_image(log).changed, "what was loaded is not taken for the lab's own"
    assert place.look()["images"][NODE]["nvml-mock:local"] == f"sha256:{'e' * 64}"


def test_one_lab_at_a_time_builds_and_loads_and_the_other_one_finds_it_done(
    place: Workplace, log: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = backend(place), backend(place, lab__name="other")
    build, load = Docker.build, Kind.load_image
    looks: list[tuple[int, bool]] = []

    def look() -> None:
        """The other lab makes its cluster: it neither builds nor touches the clone that is built from."""
        (clone,) = (place.settings().state_root / "sources").glob("nvml-mock-*")
        inode, calls = clone.stat().st_ino, len(place.calls("docker", "build"))
        place.api.new_cluster()
        second.ensure_cluster(log)
        looks.append((len(place.calls("docker", "build")) - calls, clone.stat().st_ino == inode))

    def building(docker: Docker, *arguments: Any, **options: Any) -> str:
        look()
        return build(docker, *arguments, **options)

    def loading(kind: Kind, cluster: str, image: str, *, log: Log) -> None:
        place.change(clusters={NAME: place.look()["clusters"][NAME]})
        look()
        load(kind, cluster, image, log=log)

    first.ensure_cluster(log)
    place.change(labels={"nvml-mock:local": {"kai-lab.source": "theirs"}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Docker, "build", building)
        patch.setattr(Kind, "load_image", loading)
        first.provide_image(log)
    assert looks == [(0, True), (0, True)]
    assert log.count("another lab is at work on its image; that of this lab comes in its own step") == 2
    place.forget_calls()
    assert second.provide_image(log).changed
    assert place.calls("docker", "build") + place.calls("git", "clone") == []


def test_a_lab_waits_for_another_one_that_is_at_work_on_its_image(place: Workplace, log: Lines) -> None:
    lab = backend(place)
    lab.ensure_cluster(log)
    told = threading.Event()

    def note(line: str) -> None:
        log(line)
        if line == "another lab is at work on its image; waiting for it":
            told.set()

    with open(place.settings().state_root / "sources" / "lock", "a", encoding="utf-8") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        calls = len(place.calls())
        waiting = threading.Thread(target=lab.provide_image, args=[note])
        waiting.start()
        assert told.wait(PATIENCE_S)
        assert place.calls()[calls:] == [["kind", "get", "nodes", "--name", NAME]]
    waiting.join(PATIENCE_S)
    assert "nvml-mock:local" in place.look()["images"][NODE]


def test_what_a_killed_lab_left_half_done_is_removed(place: Workplace, log: Lines) -> None:
    left = place.settings().state_root / "sources" / "partial-killed"
    left.mkdir(parents=True)
    (left / "image.tar").write_text("half of it")
    lab = backend(place)
    lab.ensure_cluster(log)
    place.rules({"match": "^kind load docker-image", "rc": 1, "err": "ERROR: failed to load image\n"})
    lab.provide_image(log)
    ((*_, archive, _),) = place.calls("docker", "save")
    assert Path(archive).parent.parent == left.parent, "so that it goes too, if this one is killed"
    assert list(left.parent.glob("partial-*")) == []


def test_a_state_folder_that_cannot_be_written_is_told_by_the_images_own_step(place: Workplace, log: Lines) -> None:
    (place.settings().state_root / "sources").parent.mkdir(parents=True)
    (place.settings().state_root / "sources").write_text("a file where the folder goes")
    lab = backend(place)
    assert lab.ensure_cluster(log).made
    assert log.has("the image is not ready, its own step will try again")
    with pytest.raises(OSError, match="sources"):
        lab.provide_image(log)
