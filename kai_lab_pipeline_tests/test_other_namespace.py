"""A lab whose lab.toml names other namespaces for its releases is built, judged, reported and torn down as well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kai_lab_pipeline.lab.judge import judge_asset
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline.report.commands import commands
from kai_lab_pipeline.report.context import ClusterAccess
from kai_lab_pipeline_tests.lab_project import TEST_S
from kai_lab_pipeline_tests.living_lab import LivingLab, living_lab

pytestmark = [pytest.mark.xdist_group("other-namespace"), pytest.mark.timeout(TEST_S)]
OTHER = "gpu-isolation"
NAMED = 'release = "kai-resource-isolator"\nnamespace = '


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivingLab]:
    with living_lab(tmp_path_factory.mktemp("project"), built=False) as made:
        made.edit("lab.toml", f'{NAMED}"kai-resource-isolator"', f'{NAMED}"{OTHER}"')
        ran = made.remake()
        assert ran.success, ran.said
        yield made


def test_every_claim_holds_with_the_isolator_in_another_namespace(lab: LivingLab) -> None:
    with lab.cluster() as cluster:
        parts = {pod["metadata"]["namespace"] for pod in cluster.all("pods") if "isolator" in pod["metadata"]["name"]}
    assert parts == {OTHER}, "the release is where lab.toml wants it"
    judgement = lab.judge()
    assert {str(claim.verdict) for claim in judgement.claims} == {"held"}
    evidence = lab.lab().newest_evidence()
    logs = {log.namespace for log in evidence.of("isolator_release").logs}
    assert logs == {OTHER}
    assert {name for name, check in lab.drift().items() if not check["passed"]} == set()


def test_what_is_in_the_default_namespace_is_not_what_was_asked_for(lab: LivingLab) -> None:
    evidence = lab.lab().newest_evidence()
    results = judge_asset(evidence, Expectations(versions=evidence.versions), "isolator_release")
    broken = {result.check for result in results if result.verdict is Verdict.BROKEN}
    assert "isolator_pods_running" in broken


def test_the_report_and_its_commands_name_the_namespaces_of_lab_toml(lab: LivingLab) -> None:
    report = (lab.lab_dir / "report" / "report.md").read_text(encoding="utf-8")
    assert f"get pods -n {OTHER}" in report
    assert "-n kai-resource-isolator" not in report
    said = commands("kai_release.seven_components_running", ClusterAccess(), expectations=lab.settings.expectations())
    assert said[0].endswith("get deployments -n kai-scheduler")
    moved = Expectations(kai_namespace="gpu-scheduling")
    said = commands("shared_gpu_pod.fraction_accounted", ClusterAccess(), expectations=moved)
    assert "logs -n gpu-scheduling deployment/kai-scheduler-default" in said[0]
