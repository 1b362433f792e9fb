"""A lab whose lab.toml names other namespaces for its releases is built, judged, reported and torn down as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kai_lab_pipeline.lab.judge import judge_asset
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline.report.commands import commands
from kai_lab_pipeline.report.context import ClusterAccess
from kai_lab_pipeline_tests.lab_project import TEST_S
from kai_lab_pipeline_tests.living_lab import LivingLab, living_lab

pytestmark = [pytest.mark.xdist_group("other-namespace"), pytest.mark.timeout(TEST_S)]
ISOLATOR, KAI = "gpu-isolation", "gpu-scheduling"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivingLab]:
    with living_lab(tmp_path_factory.mktemp("project"), built=False) as made:
        for usual, other in (("kai-resource-isolator", ISOLATOR), ("kai-scheduler", KAI)):
            named = f'release = "{usual}"\nnamespace = '
            made.edit("lab.toml", f'{named}"{usual}"', f'{named}"{other}"')
        ran = made.remake()
        assert ran.success, ran.said
        yield made


def test_every_claim_holds_with_the_releases_in_other_namespaces(lab: LivingLab) -> None:
    with lab.cluster() as cluster:
        where = {pod["metadata"]["namespace"] for pod in cluster.all("pods")}
        deployments = {each["metadata"]["name"]: each["metadata"]["namespace"] for each in cluster.all("deployments")}
    assert {ISOLATOR, KAI} < where, "the releases are where lab.toml wants them"
    assert not {"kai-resource-isolator", "kai-scheduler"} & where
    assert {deployments[name] for name in ("kai-operator", "admission", "kai-scheduler-default")} == {KAI}
    judgement = lab.judge()
    assert {str(claim.verdict) for claim in judgement.claims} == {"held"}
    evidence = lab.lab().newest_evidence()
    assert {log.namespace for log in evidence.of("isolator_release").logs} == {ISOLATOR}
    assert {log.namespace for log in evidence.of("kai_release").logs} == {KAI}
    assert {name for name, check in lab.drift().items() if not check["passed"]} == set()


def test_what_is_in_the_usual_namespaces_is_not_what_was_asked_for(lab: LivingLab) -> None:
    evidence = lab.lab().newest_evidence()
    usual = Expectations(versions=evidence.versions)
    results = [*judge_asset(evidence, usual, "isolator_release"), *judge_asset(evidence, usual, "kai_release")]
    broken = {result.check for result in results if result.verdict is Verdict.BROKEN}
    assert {"isolator_pods_running", "seven_components_running"} <= broken


def test_the_report_and_its_commands_name_the_namespaces_of_lab_toml(lab: LivingLab) -> None:
    report = (lab.lab_dir / "report" / "report.md").read_text(encoding="utf-8")
    assert f"get pods -n {ISOLATOR}" in report
    assert "-n kai-resource-isolator" not in report
    assert f"get deployments -n {KAI}" in report
    assert f"logs -n {KAI} deployment/kai-scheduler-default" in report
    assert "-n kai-scheduler " not in report
    said = commands("kai_release.seven_components_running", ClusterAccess(), expectations=Expectations())
    assert said[0].endswith("get deployments -n kai-scheduler")


def test_tear_down_takes_them_away_as_well(lab: LivingLab) -> None:
    with lab.cluster() as cluster:
        chart = lab.settings.charts.kai_scheduler
        lab.lab().backend.uninstall("kai_scheduler", chart, lambda _: None)
        assert [each["metadata"]["name"] for each in cluster.all("deployments") if _in_kai(each)] == []


def _in_kai(obj: Mapping[str, Any]) -> bool:
    return bool(obj["metadata"]["namespace"] == KAI)
