"""A chart on this machine: an edit of its folder or archive is another chart, and the same one is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kai_lab_pipeline.assets.group import Group
from kai_lab_pipeline.assets.upstream import upstream_assets
from kai_lab_pipeline.automation.staleness import Sync, sync_states
from kai_lab_pipeline.backends.kind import KindBackend
from kai_lab_pipeline.clients.local_chart import chart_content
from kai_lab_pipeline.definitions import build_definitions
from kai_lab_pipeline.settings import Chart, Settings
from kai_lab_pipeline_tests.lab_project import LabProject, make_project
from kai_lab_pipeline_tests.stubs.workplace import QuickTools, Workplace, make_workplace

OURS = "charts/ours"


def write_chart(root: Path, text: str = "kind: A\n") -> Path:
    folder = root / OURS
    (folder / "templates").mkdir(parents=True, exist_ok=True)
    (folder / "Chart.yaml").write_text("name: nvml-mock\nversion: 0.3.0\n")
    (folder / "templates" / "a.yaml").write_text(text)
    return folder


def chart(reference: str = OURS) -> Chart:
    return Chart(chart=reference, version="0.3.0", release="nvml-mock", namespace="default")


@pytest.fixture
def project(tmp_path: Path) -> LabProject:
    """A project whose mock is a chart folder of its own."""
    made = make_project(tmp_path / "project")
    write_chart(made.folder)
    pinned = made.settings.charts.nvml_mock.chart
    made.edit("lab.toml", f'chart = "{pinned}"', f'chart = "{OURS}"')
    return made


def code_versions(settings: Settings) -> dict[str, str]:
    graph = build_definitions(settings).resolve_asset_graph()
    keys = [key for key in graph.materializable_asset_keys if key.path[0] != "candidate"]
    return {key.to_user_string(): str(graph.get(key).code_version) for key in keys}


def test_the_content_of_a_folder_or_an_archive_is_told_apart(tmp_path: Path) -> None:
    folder = write_chart(tmp_path)
    before = chart_content(tmp_path, chart())
    assert before == chart_content(tmp_path, chart(str(folder)))
    (folder / ".git").mkdir()
    (folder / ".git" / "index").write_text("moves by itself")
    assert chart_content(tmp_path, chart()) == before
    (folder / "templates" / "a.yaml").rename(folder / "templates" / "b.yaml")
    moved = chart_content(tmp_path, chart())
    write_chart(tmp_path, "kind: B\n")
    (tmp_path / "ours.tgz").write_bytes(b"one")
    archived = chart_content(tmp_path, chart("ours.tgz"))
    (tmp_path / "ours.tgz").write_bytes(b"two")
    found = [before, moved, chart_content(tmp_path, chart()), archived, chart_content(tmp_path, chart("ours.tgz"))]
    assert len({*found, chart_content(tmp_path, chart("gone.tgz"))}) == len(found) + 1
    assert chart_content(tmp_path, chart("oci://ghcr.io/nvidia/nvml-mock")) == ""


def test_an_edited_chart_turns_itself_and_its_release_unsynced_and_says_where(project: LabProject) -> None:
    before = code_versions(project.settings)
    with dg.DagsterInstance.ephemeral() as instance:
        dg.materialize(upstream_assets(project.settings, "lab"), instance=instance, selection=KEY)
        assert state(instance, project).sync is Sync.IN_SYNC
        assert data_version(instance) == f"0.3.0-{chart_content(project.folder, chart())}"
        write_chart(project.folder, "kind: B\n")
        after = code_versions(project.settings)
        assert {name for name in before if before[name] != after[name]} == {"charts/nvml_mock", "nvml_mock_release"}
        found = state(instance, project)
        assert found.sync is Sync.UNSYNCED
        assert found.reason == f"charts.nvml_mock in lab.toml, or what is in {OURS}, has changed"


KEY = [dg.AssetKey(["charts", "nvml_mock"])]


def state(instance: dg.DagsterInstance, project: LabProject) -> Any:
    definitions = build_definitions(project.settings)
    return sync_states(instance, definitions, Group("lab", project.settings))["charts/nvml_mock"]


def data_version(instance: dg.DagsterInstance) -> str:
    made = instance.get_latest_materialization_event(KEY[0])
    assert made is not None
    assert made.asset_materialization is not None
    return str((made.asset_materialization.tags or {})["dagster/data_version"])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    yield from make_workplace(tmp_path, monkeypatch)


def test_a_local_chart_is_upgraded_when_it_was_edited_and_only_then(place: Workplace) -> None:
    def quiet(line: str) -> None:
        pass

    lab = KindBackend(place.settings(), pause=lambda seconds: None)
    lab.use(QuickTools(lab.tools.registry, lab.tools.transcripts))
    lab.ensure_cluster(quiet)
    write_chart(place.project)
    assert lab.install("nvml_mock", chart(), quiet).changed
    (call,) = place.calls("helm", "upgrade")
    assert call[call.index("--description") + 1] == f"{OURS} with content {chart_content(place.project, chart())}"
    assert not lab.install("nvml_mock", chart(), quiet).changed
    write_chart(place.project, "kind: B\n")
    assert lab.install("nvml_mock", chart(), quiet).changed
    assert not lab.install("nvml_mock", chart(), quiet).changed
    assert lab.install("nvml_mock", chart().model_copy(update={"values": {"a": 1}}), quiet).changed
    assert len(place.calls("helm", "upgrade")) == 3
