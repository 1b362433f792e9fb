"""Bundles on disk: tolerant reading, atomic writing, clear refusals."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

import pytest

from kai_lab_pipeline.clients import bundle
from kai_lab_pipeline.clients.bundle import (
    BundleError,
    merge,
    read_bundle,
    read_bundles,
    write_bundle_json,
    write_observation,
)
from kai_lab_pipeline.lab.evidence import ContainerLog, Evidence, Observation
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline_tests.damages import judged, recorded
from kai_lab_pipeline_tests.damages.draft import LAB, RECORDINGS

AT = datetime(2026, 11, 30, 1, 2, 3, 456789, tzinfo=timezone.utc)


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDINGS / LAB / "bundle", tmp_path / "bundle"))


def _verdict(evidence: Evidence, name: str) -> Verdict:
    return next(check.verdict for check in judged(evidence).checks if check.name == name)


def test_reads_header_lists_helm_dryruns_and_logs(lab: Path) -> None:
    evidence = read_bundle(lab)
    assert evidence.backend == "recorded"
    assert evidence.versions["kai_scheduler"] == "v0.17.0"
    assert evidence.node == "kai-hami-test-control-plane"
    assert evidence.captured_at == datetime(2026, 11, 30, 1, 12, 30, tzinfo=timezone.utc)
    assert evidence.crossing is None
    assert evidence.notes == ()
    seen = evidence.of("kai_release")
    assert seen.find("deployments", "binder", "kai-scheduler") is not None
    assert seen.dryrun["queue"]["kind"] == "Queue"
    assert [row["name"] for row in seen.helm or ()] == ["kai-scheduler", "nvml-mock"]
    assert any(log.container == "webhook" for log in evidence.of("isolator_release").logs)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    original = recorded(LAB)
    for asset, seen in original.observations.items():
        write_observation(tmp_path / "b", asset, seen)
    write_bundle_json(
        tmp_path / "b",
        backend="recorded",
        versions=original.versions,
        node=original.node,
        captured_at=original.captured_at,
    )
    assert read_bundle(tmp_path / "b") == original


def test_all_optional_facts_are_written_and_read(tmp_path: Path) -> None:
    write_bundle_json(
        tmp_path,
        backend="rehearsal",
        versions={"nvml_mock": "0.3.0"},
        captured_at=AT,
        crossing="toolkit",
        time_scale=0.01,
        profile={"gpu_count": 4},
    )
    log = ContainerLog("ns", "pod", "c", "now é", "before")
    seen = Observation(resources={"pods": ()}, logs=(log,), run_id="r1", observed_at=AT)
    write_observation(tmp_path, "cluster", seen)
    evidence = read_bundle(tmp_path)
    assert (evidence.crossing, evidence.time_scale, evidence.profile) == ("toolkit", 0.01, {"gpu_count": 4})
    assert evidence.captured_at == AT
    assert evidence.of("cluster") == seen


def test_a_second_observation_replaces_the_first_whole(tmp_path: Path) -> None:
    write_observation(tmp_path, "cluster", Observation(resources={"pods": (), "nodes": ()}))
    write_observation(tmp_path, "cluster", Observation(resources={"nodes": ()}))
    assert sorted(path.name for path in (tmp_path / "cluster").iterdir()) == ["nodes.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["cluster"]


def test_a_failed_write_leaves_the_old_observation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_observation(tmp_path, "cluster", Observation(resources={"nodes": ({"kind": "Node"},)}))
    dump = bundle._dump_list

    def disk_full(items: Sequence[Mapping[str, object]]) -> str:
        if "events" in str(items):
            raise OSError(28, "No space left on device")
        return dump(items)

    monkeypatch.setattr(bundle, "_dump_list", disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_observation(tmp_path, "cluster", Observation(resources={"nodes": (), "x": ({"a": "events"},)}))
    assert [path.name for path in tmp_path.iterdir()] == ["cluster"]
    assert json.loads((tmp_path / "cluster" / "nodes.json").read_text())["items"] == [{"kind": "Node"}]


def test_a_failed_header_leaves_the_old_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bundle_json(tmp_path, backend="kind", versions={})

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_bundle_json(tmp_path, backend="context", versions={})
    assert [path.name for path in tmp_path.iterdir()] == ["bundle.json"]
    assert read_bundle(tmp_path).backend == "kind"


@pytest.mark.parametrize(
    "seen",
    [
        Observation(resources={"secrets": ()}),
        Observation(resources={"Secrets": ()}),
        Observation(resources={"things": ({"kind": "Secret"},)}),
    ],
)
def test_secrets_are_never_written(tmp_path: Path, seen: Observation) -> None:
    with pytest.raises(ValueError, match="Secrets"):
        write_observation(tmp_path, "cluster", seen)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "seen",
    [
        Observation(resources={"../nodes": ()}),
        Observation(dryrun={"a/b": {}}),
        Observation(logs=(ContainerLog("..", "p", "c", ""),)),
        Observation(logs=(ContainerLog("ns", "p", "", ""),)),
    ],
)
def test_names_never_leave_the_bundle(tmp_path: Path, seen: Observation) -> None:
    with pytest.raises(ValueError, match="file name"):
        write_observation(tmp_path, "cluster", seen)
    assert list(tmp_path.iterdir()) == []


def test_unknown_asset_and_backend_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no asset of the lab"):
        write_observation(tmp_path, "clusters", Observation())
    with pytest.raises(ValueError, match="expected one of kind"):
        write_bundle_json(tmp_path, backend="minikube", versions={})


def test_secrets_are_never_read(lab: Path) -> None:
    shutil.copy(lab / "cluster" / "nodes.json", lab / "cluster" / "secrets.json")
    assert "secrets" not in read_bundle(lab).of("cluster").resources


def _file_in_place_of(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("x")


def _folder_in_place_of_header(folder: Path) -> None:
    (folder / "bundle.json").unlink()
    (folder / "bundle.json").mkdir()


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda folder: shutil.rmtree(folder), "no such folder"),
        (_file_in_place_of, "not a folder"),
        (lambda folder: (folder / "bundle.json").unlink(), "bundle.json is missing"),
        (lambda folder: (folder / "bundle.json").write_text("{"), "not JSON"),
        (lambda folder: (folder / "bundle.json").write_bytes(b"\xff\xfe\x00"), "not JSON"),
        (lambda folder: (folder / "bundle.json").write_text("[" * 100_000), "not JSON"),
        (lambda folder: (folder / "bundle.json").write_text("[]"), "a list"),
        (lambda folder: (folder / "bundle.json").write_text("{}"), "format is None"),
        (lambda folder: (folder / "bundle.json").write_text('{"format": 2}'), "format is 2"),
        (lambda folder: (folder / "bundle.json").write_text('{"format": true}'), "format is True"),
        (_folder_in_place_of_header, "cannot be read"),
    ],
)
def test_what_is_no_bundle_is_said_clearly(lab: Path, break_it: Callable[[Path], object], says: str) -> None:
    break_it(lab)
    with pytest.raises(BundleError) as error:
        read_bundle(lab)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert str(lab) in str(error.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b'{"kind": "List", "items": [', "not JSON"),
        (b"\x00\x01\x02", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "holds a list"),
        (b"null", "null"),
        (b'{"kind": "Status"}', "holds a Status"),
        (b'{"items": {}}', "holds an object"),
        (b'{"items": [1, {"kind": "Node"}]}', "1 of 2 entries"),
    ],
)
def test_a_half_broken_file_is_a_note(lab: Path, content: bytes, says: str) -> None:
    (lab / "cluster" / "nodes.json").write_bytes(content)
    evidence = read_bundle(lab)
    assert [says in note and "cluster/nodes.json" in note for note in evidence.notes] == [True]
    assert _verdict(evidence, "cluster.node_ready") in (Verdict.NOT_EVALUATED, Verdict.BROKEN)
    assert _verdict(evidence, "labelled_node.gpu_memory_label") is Verdict.HELD


def test_other_encodings_of_json_are_read(lab: Path) -> None:
    path = lab / "cluster" / "nodes.json"
    text = path.read_text()
    for encoding in ("utf-16", "utf-8-sig", "utf-32"):
        path.write_bytes(text.encode(encoding))
        assert read_bundle(lab).notes == ()


def test_broken_neighbours_are_notes(lab: Path) -> None:
    (lab / "clusters").mkdir()
    (lab / "kai_release" / "helm.json").write_text("{}")
    (lab / "kai_release" / "dryrun" / "queue.json").write_text("[]")
    (lab / "isolator_release" / "dryrun" / "shared_pod.json").write_text("{")
    (lab / "bundle.json").write_text('{"format": 1, "backend": 7, "time_scale": -1, "versions": [], "captured_at": 5}')
    evidence = read_bundle(lab)
    told = "\n".join(evidence.notes)
    for where in (
        "clusters",
        "kai_release/helm.json",
        "dryrun/queue.json",
        "dryrun/shared_pod.json",
        "backend",
        "time_scale",
    ):
        assert where in told
    assert (evidence.backend, evidence.time_scale, evidence.versions) == ("unknown", 1.0, {})
    assert _verdict(evidence, "kai_release.queue_webhook_serving") is Verdict.NOT_EVALUATED


def test_an_empty_bundle_judges_nothing_held(tmp_path: Path) -> None:
    write_bundle_json(tmp_path, backend="recorded", versions={})
    evidence = read_bundle(tmp_path)
    assert len(evidence.notes) == 1
    judgement = judged(evidence)
    assert {check.verdict for check in judgement.checks} == {Verdict.NOT_EVALUATED}
    assert judgement.exit_code() == 3


def test_logs_in_odd_bytes_are_read(lab: Path) -> None:
    folder = lab / "cluster" / "logs" / "ns" / "pod"
    folder.mkdir(parents=True)
    (folder / "c.log").write_bytes(b"\xffline\r\n")
    (folder / "c.previous.log").write_bytes(b"before")
    (log,) = read_bundle(lab).of("cluster").logs
    assert (log.container, log.previous) == ("c", "before")
    assert log.text.endswith("line\n") or log.text.endswith("line\r\n")


def test_merge_takes_the_newest_of_each_asset(tmp_path: Path) -> None:
    old = Evidence(
        backend="kind",
        captured_at=AT,
        observations={"cluster": Observation(run_id="old"), "queues": Observation(run_id="old")},
        notes=("old note", "both"),
    )
    new = Evidence(backend="kind", node="n", observations={"cluster": Observation(run_id="new")}, notes=("both",))
    merged = merge([new, old])
    assert (merged.of("cluster").run_id, merged.of("queues").run_id) == ("new", "old")
    assert merged.node == "n"
    assert merged.of("queues").observed_at == AT, "an older observation keeps the time at which it was made"
    assert merged.notes == ("both", "old note")
    with pytest.raises(ValueError, match="no evidence"):
        merge([])


def test_bundles_of_several_runs_are_read_together(tmp_path: Path) -> None:
    for number, asset in enumerate(("cluster", "queues")):
        write_bundle_json(tmp_path / str(number), backend="kind", versions={}, captured_at=AT)
        write_observation(tmp_path / str(number), asset, Observation(resources={"nodes": ()}))
    assert set(read_bundles([tmp_path / "1", tmp_path / "0"]).observations) == {"cluster", "queues"}
    with pytest.raises(BundleError):
        read_bundles([tmp_path / "1", tmp_path / "absent"])
