"""An edit of a name: the object of before must not be judged in place of the one that the project now describes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kai_lab_pipeline.backends.base import StepFacts
from kai_lab_pipeline.clients.manifests import JUDGED, ManifestError, load_manifest
from kai_lab_pipeline.lab.claims.isolation import RUNTIME_CLASS
from kai_lab_pipeline.lab.errors import WrongUse
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.apply import check_manifests, manifest_of
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.steps import apply, install
from kai_lab_pipeline_tests.lab_project import make_project


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_project(tmp_path / "project").settings


def test_what_is_judged_is_what_is_expected() -> None:
    expect = Expectations()
    assert sorted(found for objects in JUDGED.values() for found in objects) == sorted(
        [
            ("Pod", f"{expect.pod_namespace}/{expect.canary_pod}"),
            ("Pod", f"{expect.pod_namespace}/{expect.shared_pod}"),
            ("Pod", f"{expect.pod_namespace}/{expect.whole_pod}"),
            ("Queue", expect.parent_queue),
            ("Queue", expect.queue),
            ("RuntimeClass", RUNTIME_CLASS),
        ]
    )


@pytest.mark.parametrize(
    ("asset", "old", "new", "says"),
    [
        ("whole_gpu_pod", "name: kai-whole-gpu", "name: my-whole-gpu", "no Pod default/kai-whole-gpu"),
        ("shared_gpu_pod", "namespace: default", "namespace: other", "no Pod default/gpu-sharing-with-isolation"),
        ("nvidia_runtime_class", "name: nvidia", "name: other", "no RuntimeClass nvidia"),
        ("queues", "name: default-queue", "name: other", "no Queue default-queue"),
    ],
)
def test_a_manifest_without_what_the_checks_look_for_is_wrong_use(
    settings: Settings, asset: str, old: str, new: str, says: str
) -> None:
    file = settings.project_file(manifest_of(settings, asset))
    file.write_text(file.read_text().replace(old, new))
    for step in (
        lambda: check_manifests(settings, [asset]),
        lambda: apply(cast(Lab, SimpleNamespace(settings=settings)), asset),
    ):
        with pytest.raises(ManifestError, match=says) as caught:
            step()
        assert caught.value.exit_code == 2
        assert caught.value.where == str(file)
    assert load_manifest(settings, manifest_of(settings, asset)), "what is taken away is read all the same"


class Installed:
    """A backend that lists releases, and installs nothing."""

    def __init__(self, *rows: dict[str, str]) -> None:
        self.rows = rows
        self.installed: list[str] = []

    def releases(self) -> tuple[dict[str, str], ...]:
        return self.rows

    def install(self, component: str, *_: Any) -> StepFacts:
        self.installed.append(component)
        return StepFacts("deployed", changed=True)


def row(name: str, namespace: str, chart: str, status: str = "deployed") -> dict[str, str]:
    return {"name": name, "namespace": namespace, "chart": chart, "status": status}


OURS = row("kai-resource-isolator", "kai-resource-isolator", "kai-resource-isolator-1.1.0-chart")
OTHERS = row("kai-scheduler", "kai-scheduler", "kai-scheduler-v0.17.0")


@pytest.mark.parametrize("field", ["release", "namespace"])
def test_a_release_that_is_there_under_another_name_is_not_installed_again(settings: Settings, field: str) -> None:
    charts = settings.charts
    chart = charts.kai_resource_isolator.model_copy(update={field: "iso-two"})
    renamed = settings.model_copy(update={"charts": charts.model_copy(update={"kai_resource_isolator": chart})})
    backend = Installed(OURS, OTHERS)
    lab = SimpleNamespace(settings=renamed, backend=backend, log=print)
    with pytest.raises(WrongUse, match="installed already, under another name") as caught:
        install(cast(Lab, lab), "kai_resource_isolator")
    assert "kai-lab down" in caught.value.next_step
    assert backend.installed == []


def test_what_helm_remembers_of_a_removed_release_is_in_nobodys_way(settings: Settings) -> None:
    backend = Installed(OURS, OTHERS, row("iso-two", "default", "kai-resource-isolator-1.0.0", "uninstalled"))
    install(cast(Lab, SimpleNamespace(settings=settings, backend=backend, log=print)), "kai_resource_isolator")
    assert backend.installed == ["kai_resource_isolator"]
