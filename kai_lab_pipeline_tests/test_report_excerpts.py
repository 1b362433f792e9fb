from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline.lab.evidence import ContainerLog, Evidence, Observation
from kai_lab_pipeline.lab.spec import CHECKS, Expectations
from kai_lab_pipeline.report.commands import commands
from kai_lab_pipeline.report.context import ClusterAccess
from kai_lab_pipeline.report.excerpts import MAX_LINES, excerpt
from kai_lab_pipeline_tests.report_samples import UID, evidence, shared_pod

ROOT = Path(__file__).resolve().parent.parent
EVERY_CHECK = [f"{asset}.{check.name}" for asset, checks in CHECKS.items() for check in checks]
ACCESS = ClusterAccess(kubeconfig=".lab/kai-hami-test/kubeconfig")


def _seen(asset: str, **fields: Any) -> Evidence:
    return Evidence(observations={asset: Observation(**fields)})


def _log(text: str, previous: str | None = None, namespace: str = "kai-scheduler") -> ContainerLog:
    return ContainerLog(namespace, "pod", "container", text, previous)


# excerpts


@pytest.mark.parametrize("name", EVERY_CHECK)
def test_nothing_captured_gives_no_lines(name: str) -> None:
    shown = excerpt(name, Evidence())
    assert shown == (("bundle.json crossing=(not set up)",) if name.endswith("boundary_outcome") else ())


@pytest.mark.parametrize("name", EVERY_CHECK)
@pytest.mark.parametrize("junk", [None, 7, "text", ["list"], {"items": 3}])
def test_half_broken_objects_raise_nothing(name: str, junk: Any) -> None:
    odd = {"metadata": junk, "spec": junk, "status": junk, "data": junk, "webhooks": [junk], "involvedObject": junk}
    kinds = ("nodes", "pods", "deployments", "daemonsets", "queues", "events", "configmaps", "runtimeclasses")
    resources = {kind: (odd, shared_pod(), {"metadata": {"name": "queue-webhook"}}) for kind in kinds}
    seen = _seen(
        name.partition(".")[0],
        resources={**resources, "validatingwebhookconfigurations": (odd,)},
        helm=(odd,),
        dryrun={"queue": odd, "shared_pod": odd},
    )
    assert len(excerpt(name, seen)) <= MAX_LINES


def test_an_unknown_check_has_no_excerpt() -> None:
    assert excerpt("queues.nobody_knows", evidence()) == ()


def test_the_newest_accounting_line_of_the_queue_is_shown_without_colours_cpu_and_memory() -> None:
    line = (
        "{time} \x1b[34mINFO\x1b[0m [x] Resource division result for queue <{queue}>: GPU: requested: <{gpu}> "
        "CPU (cores): deserved: <0> memory (GB): deserved: <0>\n"
    )
    old = line.format(time="2026-11-30T01:10:00Z", queue="default-queue", gpu="1")
    new = line.format(time="2026-11-30T01:10:02Z", queue="default-queue", gpu="1.51")
    other = line.format(time="2026-11-30T01:10:03Z", queue="default", gpu="7")
    for logs in (
        (_log(old + new + other),),
        (_log(new + other), _log(old)),
        (_log(old), _log(new)),
        (_log(new, previous=old),),
    ):
        shown = excerpt("shared_gpu_pod.fraction_accounted", _seen("shared_gpu_pod", logs=logs))
        expected = "Resource division result for queue <default-queue>: GPU: requested: <1.51>"
        assert shown == (f"2026-11-30T01:10:02Z {expected}",)


def test_only_events_of_this_very_pod_count() -> None:
    def event(uid: str, message: str) -> dict[str, Any]:
        return {"involvedObject": {"uid": uid}, "reason": "BindingError", "type": "Warning", "message": message}

    seen = _seen(
        "reservation_boundary",
        resources={"pods": (shared_pod(),), "events": (event("older", "not mine"), event(UID, "failed to reserve"))},
    )
    shown = excerpt("reservation_boundary.binding_result", seen)
    assert len(shown) == 1
    assert shown[0].endswith("BindingError from ? (x1): failed to reserve")


def test_pods_and_queues_of_other_names_can_be_asked_for() -> None:
    pod = shared_pod()
    pod["metadata"]["name"] = "mine"
    seen = _seen("shared_gpu_pod", resources={"pods": (pod,)})
    name = "shared_gpu_pod.runtime_class_injected"
    assert excerpt(name, seen) == ()
    assert "runtimeClassName=nvidia" in excerpt(name, seen, Expectations(shared_pod="mine"))[0]


def test_a_release_that_is_not_there_is_said() -> None:
    rows = ({"name": "nvml-mock", "namespace": "default", "status": "failed", "chart": "nvml-mock-0.3.0"},)
    for asset, text in (
        ("nvml_mock_release", "helm default/nvml-mock status=failed chart=nvml-mock-0.3.0"),
        ("kai_release", "helm list has no release kai-scheduler"),
    ):
        assert excerpt(f"{asset}.release_deployed", _seen(asset, helm=rows)) == (text,)


def test_a_refused_dry_run_shows_the_servers_words() -> None:
    status = {"kind": "Status", "code": 500, "reason": "InternalError", "message": "failed calling webhook"}
    shown = excerpt("kai_release.queue_webhook_serving", _seen("kai_release", dryrun={"queue": status}))
    assert shown == ("dry-run answered Status 500 InternalError: failed calling webhook",)


def test_lines_and_their_number_are_bounded() -> None:
    log = _log(f"unable to initialize NVML {'x' * 1_000_000}", namespace="kai-resource-reservation")
    shown = excerpt("reservation_boundary.reservation_nvml", _seen("reservation_boundary", logs=(log,)))
    assert len(shown) == 1
    assert len(shown[0]) < 600
    nodes = tuple({"metadata": {"name": f"n{number}"}} for number in range(50))
    many = excerpt("cluster.node_ready", _seen("cluster", resources={"nodes": nodes}))
    assert len(many) == MAX_LINES
    assert many[-1] == "…"


# commands


@pytest.mark.parametrize("name", EVERY_CHECK)
def test_every_check_can_be_seen_by_hand_on_the_labs_own_cluster(name: str) -> None:
    lines = commands(name, ACCESS, "node-1")
    assert lines
    for line in lines:
        words = shlex.split(line)
        assert "{" not in "".join(word for word in words if "jsonpath" not in word)
        tools = [word for word in words if word in ("kubectl", "helm")]
        assert tools
        assert words.count("--kubeconfig") == len(tools)
        for word in words:
            if word.startswith("manifests/"):
                assert (ROOT / word).is_file(), f"{line} names a file that is not there"


def test_every_excerpt_and_command_belongs_to_a_check() -> None:
    from kai_lab_pipeline.report import commands as commands_module
    from kai_lab_pipeline.report import excerpts as excerpts_module

    names = {name for full in EVERY_CHECK for name in (full, full.partition(".")[2])}
    assert set(excerpts_module._EXCERPTS) <= names
    assert set(commands_module._TEMPLATES) <= names


def test_names_from_a_cluster_are_quoted() -> None:
    (line,) = commands("device_plugin.eight_whole_gpus", ACCESS, "n; rm -rf /")
    assert shlex.split(line)[3:6] == ["get", "node", "n; rm -rf /"]


def test_without_a_node_name_the_first_node_is_asked() -> None:
    (line,) = commands("device_plugin.eight_whole_gpus", ACCESS)
    assert '"$(kubectl --kubeconfig .lab/kai-hami-test/kubeconfig get nodes -o name | head -1)"' in line


def test_where_there_is_no_helm_the_evidence_file_is_shown() -> None:
    (line,) = commands("kai_release.release_deployed", ACCESS, helm_listing="../evidence/{asset}/helm.json")
    assert line.startswith("cat ../evidence/kai_release/helm.json")
