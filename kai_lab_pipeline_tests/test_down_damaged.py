"""`kai-lab down --all` where a lab's own record is damaged: its folder tells what it was made with."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kai_lab_pipeline.backends.given import Given
from kai_lab_pipeline.backends.kind import KindBackend
from kai_lab_pipeline.clients.kubeconfig import write_kubeconfig
from kai_lab_pipeline.commands.down import down_command
from kai_lab_pipeline.workbench.state import REMOVED, LabState
from kai_lab_pipeline_tests.stubs.workplace import PROJECT, QuickTools, Workplace, make_workplace

NAME = "kai-hami-test"
DAMAGES = ("", "[]", '{"backend": "cloud"}')


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    """A machine whose project says rehearsal."""
    for made in make_workplace(tmp_path, monkeypatch):
        shutil.copy(PROJECT / "dagster.yaml", made.project)
        monkeypatch.setenv("KAI_LAB_PROJECT", str(made.project))
        monkeypatch.setenv("KAI_LAB_BACKEND", "rehearsal")
        yield made


def lab_folder(place: Workplace, damage: str) -> Path:
    folder = LabState.of(place.settings()).open().folder
    (folder / "lab.json").write_text(damage)
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_kind_lab_loses_its_cluster_and_then_its_folder(place: Workplace, damage: str) -> None:
    lab = KindBackend(place.settings(), pause=lambda seconds: None)
    lab.use(QuickTools(lab.tools.registry, lab.tools.transcripts))
    lab.ensure_cluster(lambda line: None)
    folder = lab_folder(place, damage)
    assert down_command(everything=True) == 0
    assert place.look()["clusters"] == {}
    assert not folder.exists()


def test_a_lab_on_a_context_is_asked_there(place: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    folder = lab_folder(place, "")
    content = {
        "clusters": [{"name": "theirs", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "me", "user": {"token": "not-a-secret"}}],
        "contexts": [{"name": "theirs", "context": {"cluster": "theirs", "user": "me"}}],
        "current-context": "theirs",
    }
    write_kubeconfig(folder / "kubeconfig", content)
    Given(folder / "given.json").write("theirs", "some-uid")
    assert down_command(everything=True) == 3
    said = capsys.readouterr()
    assert "(backend context)" in " ".join((said.out + said.err).split())
    assert (folder / "kubeconfig").exists(), "the way back to what is left"


@pytest.mark.parametrize("context", [f"kind-{NAME}", "theirs"])
def test_a_lab_of_which_nothing_tells_is_left_with_what_to_do(
    place: Workplace, capsys: pytest.CaptureFixture[str], context: str
) -> None:
    """A kubeconfig alone may be that of a person's cluster: whether the lab made it is not guessed."""
    folder = lab_folder(place, "")
    place.change(clusters={NAME: "2026-01-01T00:00:00.0Z"})
    write_kubeconfig(folder / "kubeconfig", {"current-context": context})
    assert down_command(everything=True) == 3
    said = capsys.readouterr()
    words = " ".join((said.out + said.err).split())
    assert "nothing in its folder tells what it was made with" in words
    assert f"rm -r {folder}" in words.replace("\n", "")
    assert (folder / "lab.json").exists()
    assert NAME in place.look()["clusters"]


def test_one_lab_that_is_not_known_keeps_no_other_from_going(place: Workplace) -> None:
    lab = KindBackend(place.settings(lab__name="another"), pause=lambda seconds: None)
    lab.use(QuickTools(lab.tools.registry, lab.tools.transcripts))
    lab.ensure_cluster(lambda line: None)
    LabState.of(place.settings(lab__name="another")).open()
    folder = lab_folder(place, "")
    write_kubeconfig(folder / "kubeconfig", {"current-context": "theirs"})
    assert down_command(everything=True) == 3
    assert place.look()["clusters"] == {}
    assert folder.exists()


def test_a_lab_that_made_nothing_is_forgotten(place: Workplace) -> None:
    """Each backend leaves its note before it makes anything; a cluster of this name is somebody else's."""
    folder = lab_folder(place, "")
    place.change(clusters={NAME: "2026-01-01T00:00:00.0Z"})
    assert down_command(everything=True) == 0
    assert not folder.exists()
    assert NAME in place.look()["clusters"]


def test_what_a_removal_that_was_cut_off_left_is_removed(place: Workplace) -> None:
    left = place.settings().state_root / f"{REMOVED}a1" / NAME / "evidence"
    left.mkdir(parents=True)
    fresh, old = (left.parent.parent.with_name(f"{REMOVED}{name}") for name in ("b2", "c3"))
    for empty in (fresh, old):
        empty.mkdir()
    os.utime(old, (0, 0))
    assert down_command(everything=True) == 0
    assert list(place.settings().state_root.iterdir()) == [fresh], "another tear-down is about to move a lab into it"
    fresh.rmdir()
    assert down_command(everything=True) == 0
    assert not place.settings().state_root.exists()
