"""The lane's own logic, without Go and without servers: what it compares, and when it builds anew."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import pytest

from kai_lab_pipeline.clients.tools import Outcome, ToolError
from kai_lab_pipeline.lab.chart_diff import ChartDiff
from kai_lab_pipeline.lab.spec import CHECKS
from kai_lab_pipeline.settings import load_settings
from kai_lab_pipeline_tests.conformance import __main__ as lane
from kai_lab_pipeline_tests.conformance import chart_rendering, graph, objects, releases, suite, toolchain
from kai_lab_pipeline_tests.conformance.registry import CHARTS
from kai_lab_pipeline_tests.conformance.services import ServiceFailed, service


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_build_is_made_anew_when_modules_or_go_change(tmp_path: Path) -> None:
    for name in ("go.mod", "go.sum"):
        shutil.copy(toolchain.MODULES / name, tmp_path)
    first = toolchain.key(tmp_path, "1.26.8")
    assert toolchain.key(tmp_path, "1.26.8") == first
    assert toolchain.key(tmp_path, "1.26.9") != first
    with (tmp_path / "go.sum").open("a") as sums:
        sums.write("\n")
    assert toolchain.key(tmp_path, "1.26.8") != first


def test_the_servers_are_the_version_that_the_rehearsal_speaks() -> None:
    from kai_lab_pipeline.rehearsal.api.discovery import VERSION

    assert toolchain.kubernetes_version() == VERSION["gitVersion"]


@pytest.mark.parametrize(("options", "code", "word"), [([], 0, "skipped"), (["--required"], 3, "cannot run")])
def test_without_go_the_lane_is_skipped_and_says_so(
    options: list[str],
    code: int,
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert lane.main(options) == code
    said = capsys.readouterr().out
    assert said.startswith(f"conformance: {word}: the Go toolchain was not found on PATH; install Go 1.")


def test_an_old_go_is_no_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho go1.21.3\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(toolchain.LaneUnavailable, match=r"is version 1\.21\.3; install Go 1\.\d+"):
        toolchain.binaries(lambda _: None)


def test_a_test_that_differs_or_fails_on_both_servers_is_told() -> None:
    ours = {"test_a::same": "passed", "test_a::ours": "failed", "test_a::both": "failed", "test_a::gone": "passed"}
    theirs = {"test_a::same": "passed", "test_a::ours": "passed", "test_a::both": "failed"}
    assert suite.differences(ours, theirs) == [
        "test_a::both: failed on the rehearsal, failed on kube-apiserver",
        "test_a::gone: passed on the rehearsal, not run on kube-apiserver",
        "test_a::ours: failed on the rehearsal, passed on kube-apiserver",
    ]
    assert suite.counted(ours) == "2 passed, 2 failed"
    skipped = dict.fromkeys(ours, "skipped")
    assert suite.differences(skipped, skipped) == [
        "no test passed on the rehearsal",
        "no test passed on kube-apiserver",
    ]
    assert suite.differences({**skipped, "test_a::same": "passed"}, {**skipped, "test_a::same": "passed"}) == []


def test_outcomes_are_read_from_junit(tmp_path: Path) -> None:
    results = tmp_path / "results.xml"
    results.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="tests.test_a" name="one"/>'
        '<testcase classname="tests.test_a" name="two"><failure/></testcase>'
        '<testcase classname="tests.test_a" name="three"><skipped/></testcase>'
        '<testcase classname="tests.test_a" name="four"><failure/><error/></testcase>'
        "</testsuite></testsuites>"
    )
    outcomes = {"one": "passed", "two": "failed", "three": "skipped", "four": "error"}
    assert suite.outcomes(results) == {f"test_a::{name}": outcome for name, outcome in outcomes.items()}


WELL = {f"{asset}.{check.name}": "held" for asset, checks in CHECKS.items() for check in checks} | {
    "reservation_boundary.shared_pod_state": "not_reachable",
    "boundary": "expected",
    "kai-lab run": "exit code 0",
}


def test_verdicts_that_differ_are_told() -> None:
    def judgement(verdict: str, boundary: str) -> dict[str, object]:
        check = {"asset": "queues", "check": "queues_exist", "verdict": verdict}
        return {"boundary": boundary, "claims": [{"checks": [check]}]}

    found = graph.verdicts(judgement("broken", "crossed"), 1)
    assert found == {"queues.queues_exist": "broken", "boundary": "crossed", "kai-lab run": "exit code 1"}
    assert graph.counted(found) == "1 broken, boundary crossed"
    told = "queues.queues_exist: held on the rehearsal, broken on kube-apiserver"
    assert graph.differences(WELL, {**WELL, "queues.queues_exist": "broken"}) == [told]
    assert graph.differences(WELL, WELL) == []


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (dict.fromkeys(WELL, "not_evaluated"), len(WELL)),
        ({"queues.queues_exist": "broken"}, 1),
        ({"boundary": "not_evaluated"}, 1),
        ({"kai-lab run": "exit code 3"}, 1),
    ],
)
def test_graphs_that_are_unwell_alike_agree_about_nothing(changes: dict[str, str], lines: int) -> None:
    assert len(graph.differences({**WELL, **changes}, {**WELL, **changes})) == lines


def test_a_check_that_neither_graph_judged_is_told() -> None:
    few = {name: verdict for name, verdict in WELL.items() if not name.startswith("queues.")}
    assert len(graph.differences(few, few)) == len(CHECKS["queues"])


def test_steps_that_both_helms_refuse_are_told() -> None:
    def refused(error: ToolError) -> None:
        raise error

    error = ToolError(Outcome(("helm",), 1, "", "x509: certificate signed by unknown authority"), "no install")
    failed = releases._come_of(lambda: refused(error))
    told = {"install": failed, "a version that is not there": failed, "no row": "None"}
    assert releases.differences({"helm 3": told, "helm 4": told}) == [
        f"install: {failed} with helm 3, {failed} with helm 4"
    ]
    missing = {"a version that is not there": "installed"}
    assert len(releases.differences({"helm 3": missing, "helm 4": missing})) == 1


def test_fields_that_differ_are_told() -> None:
    ours = {"spec": {"containers": [{"name": "c", "args": []}], "priority": 0}, "status": {}}
    theirs = {"spec": {"containers": [{"name": "c"}], "priority": 1}, "status": {}}
    assert list(objects.differing(ours, theirs)) == [
        '.spec.containers[0].args: [] on the rehearsal, "(absent)" on kube-apiserver',
        ".spec.priority: 0 on the rehearsal, 1 on kube-apiserver",
    ]
    assert list(objects.differing(ours, ours)) == []


def test_every_chart_of_the_lab_has_a_small_one_that_knows_its_values() -> None:
    import yaml

    settings = load_settings(graph.PROJECT, environ={})
    for chart in settings.charts.by_component().values():
        folder = CHARTS / chart.chart.rsplit("/", 1)[-1]
        assert yaml.safe_load((folder / "Chart.yaml").read_text())["version"] == chart.version
        defaults = yaml.safe_load((folder / "values.yaml").read_text())
        for key in chart.values:
            where = defaults
            for part in key.split("."):
                assert part in where, f"{folder.name} has no value {key}"
                where = where[part]


def test_a_comparison_of_charts_that_says_too_little_is_told() -> None:
    kai = graph.charts()[1]
    silent = ChartDiff(kai.release, kai.version, chart_rendering.NEXT, rendered=True)
    missing = list(chart_rendering._missing(silent, kai))
    assert missing[0].startswith("the renamed value is held")
    assert [line.partition(":")[0] for line in missing[1:]] == [
        "the difference lacks '~ Config kai-config admission.gpuSharing",
        "the difference lacks '/operator",
        "the difference lacks '+ ConfigMap kai-news'",
        "the difference lacks '+ news.kai.scheduler",
    ]


def test_a_service_that_ends_early_shows_its_log(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "print('no such flag'); raise SystemExit(2)"]
    with (
        service("thing", program, tmp_path) as running,
        pytest.raises(ServiceFailed, match=r"thing ended with 2:\n  no such flag"),
    ):
        running.wait_ready(lambda: "not yet", 20)


def test_a_service_ends_with_its_block(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid()) + '.'); time.sleep(600)"
    with service("thing", [sys.executable, "-c", code], tmp_path) as running:
        running.wait_ready(lambda: None if pid_file.exists() and pid_file.read_text().endswith(".") else "no pid", 20)
        pid = int(pid_file.read_text().rstrip("."))
        assert _alive(pid)
    deadline = time.monotonic() + 20
    while _alive(pid) and time.monotonic() < deadline:
        pass
    assert not _alive(pid)
