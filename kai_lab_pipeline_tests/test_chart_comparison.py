"""A candidate's charts before any cluster is touched: rendered, compared, and the check of the lab's own values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kai_lab_pipeline.definitions import build_definitions
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline.lab.version_sets import version_set
from kai_lab_pipeline.rehearsal.registry import Fault, RehearsalRegistry
from kai_lab_pipeline.rehearsal.registry_charts import KAI_REPOSITORY
from kai_lab_pipeline.settings import Settings, SettingsError, load_settings
from kai_lab_pipeline.workbench.candidates import candidate_settings
from kai_lab_pipeline.workbench.chart_comparison import compare_chart, compare_the_rest, values_results
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.nights import Nights, StoredSet
from kai_lab_pipeline_tests.lab_project import make_project

PROJECT = Path(__file__).resolve().parent.parent


@pytest.fixture
def settings(registry_settings: Settings) -> Settings:
    return registry_settings


def candidate(settings: Settings, run_id: str = "run-1", **changes: str) -> Lab:
    stored = StoredSet(version_set(settings.version_set(), changes), {}, {})
    Nights(settings).save(stored)
    return Lab(candidate_settings(settings, stored), run_id, lambda line: None, (), stored, settings)


def test_a_renamed_value_is_a_broken_check_before_there_is_a_cluster(settings: Settings) -> None:
    lab = candidate(settings, kai_scheduler="v0.19.0")
    found = compare_chart(lab, "kai_scheduler")
    assert not lab.backend.cluster_exists()
    assert found.verdict == "broken"
    assert "global.gpuSharing no longer exists in kai-scheduler v0.19.0" in found.message
    assert "The nearest key there is global.gpuSharingMode." in found.message
    assert "binder.plugins.hamicore.enabled" in found.observed
    for line in (
        "~ Config kai-config binder.plugins.hamicore.enabled: true -> false",
        "~ bindrequests.scheduling.run.ai: v1alpha2* -> v1alpha2, v1alpha3*",
        "~ Deployment kai-operator/operator: ghcr.io/kai-scheduler/kai-scheduler/operator:v0.17.0 -> "
        "ghcr.io/kai-scheduler/kai-scheduler/operator:v0.19.0",
    ):
        assert line in found.text
    by_asset = {result.asset: result for result in values_results(lab)}
    assert by_asset["kai_release"].verdict is Verdict.BROKEN
    assert by_asset["nvml_mock_release"].verdict is Verdict.HELD
    assert "pinned" in by_asset["nvml_mock_release"].finding.message
    assert Nights(settings).load(lab.state.name).diff == found.text


@pytest.mark.parametrize(
    "changes", [{"kai_scheduler": "v0.18.2"}, {"nvml_mock": "0.4.0"}, {"kai_resource_isolator": "1.0.0-chart"}]
)
def test_versions_that_still_read_our_values_hold(settings: Settings, changes: dict[str, str]) -> None:
    lab = candidate(settings, **changes)
    [component] = changes
    found = compare_chart(lab, component)
    assert found.verdict == "held", found.message
    assert "Not rendered" not in found.text


def test_a_registry_that_does_not_answer_is_not_evaluated(settings: Settings, registry: RehearsalRegistry) -> None:
    registry.faults[KAI_REPOSITORY] = Fault("server_error")
    lab = candidate(settings, kai_scheduler="v0.18.2")
    compare_the_rest(lab, look=True)
    [kai] = [result for result in values_results(lab) if result.asset == "kai_release"]
    assert kai.verdict is Verdict.NOT_EVALUATED
    assert "The charts were not compared" in kai.finding.message
    assert list(Nights(settings).load(lab.state.name).uncompared) == [lab.run_id], "another night may compare them"


@pytest.mark.parametrize("fault", ["not_found", "tampered"])
def test_a_chart_that_is_not_there_is_not_asked_for_night_after_night(
    settings: Settings, registry: RehearsalRegistry, fault: str
) -> None:
    registry.faults[KAI_REPOSITORY] = Fault(fault)
    lab = candidate(settings, kai_scheduler="v0.18.2")
    assert compare_chart(lab, "kai_scheduler").verdict == "not_evaluated"
    assert bool(Nights(settings).load(lab.state.name).uncompared) is (fault == "tampered")


def test_what_another_run_compared_is_not_this_runs_verdict(settings: Settings) -> None:
    compare_chart(candidate(settings, kai_scheduler="v0.18.2"), "kai_scheduler")
    later = candidate(settings, "run-2", kai_scheduler="v0.18.2")
    compare_the_rest(later, look=False)
    assert {result.asset for result in values_results(later) if result.verdict is Verdict.NOT_EVALUATED} == {
        "kai_release"
    }


def test_without_helm_the_rendering_is_not_evaluated_and_the_values_are(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    on_kind = settings.model_copy(update={"lab": settings.lab.model_copy(update={"backend": "kind"})})
    found = compare_chart(candidate(on_kind, kai_scheduler="v0.19.0"), "kai_scheduler")
    assert found.verdict == "broken"
    assert "Not rendered (helm" in found.text
    assert "not_evaluated" in found.text
    assert "Images:" not in found.text


def test_on_kind_helm_renders_both_charts(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline: it is given the archives that were fetched, and no address of a cluster or a registry."""
    helm = tmp_path / "bin" / "helm"
    helm.parent.mkdir()
    helm.write_text(
        """#!/bin/sh
echo "$@" >> "${0%/*}/calls"
case "$*" in *v0.19.0*) tag=v0.19.0;; *) tag=v0.17.0;; esac
echo "{kind: Deployment, apiVersion: apps/v1, metadata: {name: kai-operator}, spec: {template: {spec: "
echo "  {containers: [{name: operator, image: \"r/operator:$tag\"}]}}}}"
"""
    )
    helm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helm.parent}:/usr/bin:/bin")
    on_kind = settings.model_copy(update={"lab": settings.lab.model_copy(update={"backend": "kind"})})
    found = compare_chart(candidate(on_kind, kai_scheduler="v0.19.0"), "kai_scheduler")
    assert "~ Deployment kai-operator/operator: r/operator:v0.17.0 -> r/operator:v0.19.0" in found.text
    assert found.verdict == "broken"
    calls = (helm.parent / "calls").read_text().splitlines()
    assert [call.split()[2].rpartition("/")[2] for call in calls] == [
        "kai-scheduler-v0.17.0.tgz",
        "kai-scheduler-v0.19.0.tgz",
    ]
    assert all("oci://" not in call and "--kube" not in call for call in calls)


def test_a_local_chart_is_read_below_the_project(settings: Settings, tmp_path: Path) -> None:
    chart = tmp_path / "charts" / "kai-scheduler"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("name: kai-scheduler\nversion: v0.18.2\n")
    (chart / "values.yaml").write_text("global: {gpuSharing: null, tag: x}\n")
    stored = StoredSet(
        version_set(settings.version_set(), {"kai_scheduler": "v0.18.2"}), {"kai_scheduler": "charts/kai-scheduler"}, {}
    )
    Nights(settings).save(stored)
    lab = Lab(candidate_settings(settings, stored), "run", lambda line: None, (), stored, settings)
    found = compare_chart(lab, "kai_scheduler")
    assert found.verdict == "broken"
    assert "binder.plugins.hamicore.enabled no longer exists in kai-scheduler v0.18.2" in found.message


def test_a_dead_value_can_be_excused(settings: Settings, tmp_path: Path) -> None:
    with (tmp_path / "lab.toml").open("a", encoding="utf-8") as file:
        file.write('[[excuses]]\ncheck = "kai_release.values_have_effect"\nreason = "renamed"\nuntil = 2999-01-01\n')
    excusing = load_settings(tmp_path, environ={"KAI_LAB_MIRRORS": json.dumps(dict(settings.mirrors))})
    lab = candidate(excusing, kai_scheduler="v0.19.0")
    compare_chart(lab, "kai_scheduler")
    [kai] = [result for result in values_results(lab) if result.asset == "kai_release"]
    assert (kai.verdict, kai.excused is not None) == (Verdict.BROKEN, True)
    (tmp_path / "lab.toml").write_text(
        (tmp_path / "lab.toml").read_text().replace("kai_release.values", "queues.values"), encoding="utf-8"
    )
    with pytest.raises(SettingsError, match=r"no check is named 'queues\.values_have_effect'"):
        load_settings(tmp_path, environ={})


@pytest.mark.timeout(300)
def test_the_check_stands_on_a_candidates_asset_and_can_be_executed_alone(tmp_path: Path) -> None:
    """Without a cluster and without the asset: charts are all that it needs."""
    project = make_project(tmp_path / "project")
    settings = project.settings
    stored = StoredSet(version_set(settings.version_set(), {"kai_scheduler": "v0.19.0"}), {}, {})
    Nights(settings).save(stored)
    key = dg.AssetCheckKey(dg.AssetKey(["candidate", "kai_release"]), "values_have_effect")
    definitions = build_definitions(settings)
    tags = {"dagster/partition": stored.version_set.key}
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("version_sets", [stored.version_set.key])
        job: Any = dg.define_asset_job("alone", selection=dg.AssetSelection.checks(key))
        result = (
            dg.Definitions.merge(definitions, dg.Definitions(jobs=[job]))
            .resolve_job_def("alone")
            .execute_in_process(instance=instance, tags=tags, raise_on_error=False)
        )
    [evaluation] = result.get_asset_check_evaluations()
    assert not evaluation.passed
    assert "v0.19.0" in (evaluation.description or "")
    assert evaluation.metadata["verdict"].value == "broken"
