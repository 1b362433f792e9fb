"""Every known fault is recognised by its real words, comes first, and its answer names real things."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from kai_lab_pipeline.clients.tools import Outcome, ToolError
from kai_lab_pipeline.lab.diagnosis import Nature, diagnose_evidence, diagnose_objects, diagnose_text
from kai_lab_pipeline.lab.diagnosis.catalogue import FAULTS
from kai_lab_pipeline.lab.diagnosis.matcher import diagnose
from kai_lab_pipeline.lab.diagnosis.model import LAB_NAMES, Fact, filled
from kai_lab_pipeline.lab.evidence import Evidence
from kai_lab_pipeline_tests.fault_samples import diagnosis_of, recorded, samples

KIND_STEP = re.compile(
    r"docker (?:exec|start|ps|logs|info|system|image|pull|save|events)|kind (?:load|export|get|delete|create)|"
    r"kind\.\w|test-control-plane"
)
"""Steps that need docker's node on this machine, or the settings of backend kind."""
BY_ID = {fault.id: fault for fault in FAULTS}
STRUCTURAL = {
    "name", "namespace", "pod", "node", "queue", "deployment", "daemonset", "object_kind", "container", "image",
    "field", "release", "revision", "workload", "crossing",
}  # fmt: skip
"""Names that facts bring along, whatever a pattern finds."""


@pytest.mark.parametrize(("recording", "fault", "text"), recorded(), ids=lambda value: str(value)[:60])
def test_a_recorded_text_leads_to_its_fault(recording: str, fault: str, text: str) -> None:
    found = diagnose_text(text)
    assert (found.best.id if found.best else "-") == fault, recording


@pytest.mark.parametrize(("fault", "sample"), samples(), ids=lambda value: str(value)[:60])
def test_the_right_fault_comes_first_for_every_sample(fault: str, sample: Any) -> None:
    found = diagnosis_of(sample)
    assert [cause.id for cause in found.all][:1] == [fault]
    assert found.all[0].evidence


@pytest.mark.parametrize(
    ("fault", "sample"), [row for row in samples() if isinstance(row[1], str)], ids=lambda value: str(value)[:60]
)
def test_a_sample_is_still_first_between_lines_of_a_healthy_log(fault: str, sample: str) -> None:
    healthy = "\n".join(f"2026-11-30T00:00:{second:02d}Z INFO reconciled default-queue" for second in range(40))
    found = diagnose_text(f"{healthy}\n{sample}\n{healthy}")
    assert [cause.id for cause in found.all][:1] == [fault]


def test_every_fault_has_real_words_somewhere() -> None:
    covered = {fault for _, fault, _ in recorded()} | {fault for fault, _ in samples()}
    # What a whole bundle has to show is tested on bundles.
    assert set(BY_ID) - covered == {"boundary.crossing-broken"}
    assert covered - set(BY_ID) == {"-"}


def test_ids_and_anchors_are_unique() -> None:
    assert len(BY_ID) == len(FAULTS)
    assert len({fault.anchor for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_says_what_why_and_what_to_do(fault: Any) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z0-9-]+", fault.id)
    assert all((fault.title, fault.component, fault.remedy, fault.signs))
    assert fault.cause[-1] in ".}"
    assert all(link.startswith("https://") for link in fault.links)
    for pattern in (*fault.explains, *fault.explains_all, *fault.explains_missing):
        known = [id_ for id_ in BY_ID if id_ == pattern or (pattern.endswith("*") and id_.startswith(pattern[:-1]))]
        assert known, f"{fault.id} explains {pattern}, which is no fault"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_every_place_in_a_remedy_can_be_filled(fault: Any) -> None:
    given = set(fault.defaults) | set(LAB_NAMES) | STRUCTURAL
    for sign in fault.signs:
        given |= set(sign.pattern.groupindex) if sign.pattern else set()
    wanted = set(re.findall(r"\{([a-z_]+)\}", " ".join((fault.cause, *fault.remedy, *fault.elsewhere))))
    assert wanted <= given


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_remedy_fits_what_the_lab_runs_on(fault: Any) -> None:
    assert fault.remedy_on("kind") == fault.remedy_on("recorded") == fault.remedy_on("") == fault.remedy
    # What docker and kind said themselves shows that they are in use; everywhere else there is no node of kind.
    own = fault.id.startswith(("docker.", "kind."))
    for backend in ("context", "rehearsal"):
        steps = fault.remedy_on(backend)
        assert steps, backend
        of_kind = [step for step in steps if KIND_STEP.search(step)]
        assert own or of_kind == [], backend
        assert own or backend == "context" or not any(step.startswith("helm ") for step in steps), "nobody runs helm"
    if not own:
        assert "kubectl debug node" not in " ".join(fault.remedy_on("rehearsal")), "nobody can enter a simulated node"
    if fault.elsewhere:
        assert fault.remedy_on("context") == fault.elsewhere != fault.remedy


def test_an_api_server_that_does_not_answer_is_looked_for_where_it_is() -> None:
    text = "Error: Kubernetes cluster unreachable: Get https://10.0.0.1:6443: dial tcp 10.0.0.1:6443: connect: "
    text += "connection refused"
    [kind], [context], [rehearsal] = (diagnose_text(text, name).causes for name in ("kind", "context", "rehearsal"))
    assert {kind.id, context.id, rehearsal.id} == {"kubernetes.api-down"}
    assert "kai-lab run --select cluster" in kind.remedy
    assert context.remedy == ("kubectl config view --minify", "kubectl cluster-info", "kai-lab status")
    assert rehearsal.remedy[:2] == ("kai-lab run --select cluster", "kai-lab status")
    assert not KIND_STEP.search(" ".join((*context.remedy, *rehearsal.remedy)))
    outcome = Outcome(("helm", "list"), 1, "", text)
    assert "docker" not in ToolError(outcome, "No list", backend="context").next_step
    assert "docker" in ToolError(outcome, "No list", backend="kind").next_step


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_sign_has_words_to_search_for_or_a_structure(fault: Any) -> None:
    for sign in fault.signs:
        assert sign.needle == sign.needle.lower()
        assert sign.kind or len(sign.needle) >= 4
        if sign.pattern:
            # Only bounded wildcards: a pattern runs on one line, and must not try every split of it.
            assert not re.search(r"(?<!\\)\.[*+]", re.sub(r"\(\?!.*?\)", "", sign.pattern.pattern))


def test_real_names_stand_in_the_remedy() -> None:
    [cause] = diagnose_text('Error: UPGRADE FAILED: "nv10" has no deployed releases').causes
    assert "helm uninstall nv10 -n NAMESPACE" in cause.remedy
    cause = diagnose_objects(
        [
            {
                "kind": "Event",
                "type": "Warning",
                "reason": "Unschedulable",
                "involvedObject": {"kind": "Pod", "namespace": "team-a", "name": "train"},
                "message": "QueueDoesNotExist: Queue 'nope' does not exist.",
            }
        ]
    ).causes[0]
    assert "kubectl get pod -n team-a train -L kai.scheduler/queue" in cause.remedy
    assert "'nope'" in cause.evidence[0]
    assert "nope" in cause.cause


def test_a_command_of_the_text_gives_its_namespace_and_release() -> None:
    text = "$ helm install web ./web -n team-b --wait\nError: INSTALLATION FAILED: context deadline exceeded\n"
    [cause] = diagnose_text(text).causes
    assert any("web" in step and "team-b" in step for step in cause.remedy)


def test_names_from_a_hostile_text_are_quoted_in_commands() -> None:
    assert filled("kubectl get pod {pod}", {"pod": "x; rm -rf ~"}, command=True) == "kubectl get pod 'x; rm -rf ~'"
    assert filled("kubectl get pod {pod}", {}, command=True) == "kubectl get pod <pod>"


def test_what_a_run_waited_for_is_no_cause_when_something_else_failed() -> None:
    waited = "  kai_release: waiting for queue_webhook_serving: dial tcp 10.96.1.1:443: connect: connection refused\n"
    failed = "✗ kai_release: helm could not do it\n    Last seen: Error: UPGRADE FAILED: context deadline exceeded\n"
    assert [cause.id for cause in diagnose_text(waited + failed).all] == ["helm.wait-timeout"]
    assert [cause.id for cause in diagnose_text(waited).all] == ["net.refused"]


def test_the_head_of_kubectl_describe_gives_the_names() -> None:
    text = next(text for recording, _, text in recorded() if recording == "api/pod-oom-describe")
    [cause] = diagnose_text(text).causes
    assert cause.id == "pod.oom"
    assert "kubectl describe pod -n apit oom" in cause.remedy


def test_a_step_error_of_dagster_is_read_to_its_root() -> None:
    text = """dagster._core.errors.DagsterExecutionStepExecutionError: Error occurred while executing op "kai_release":

kai_lab_pipeline.clients.tools.ToolError: helm could not install kai-scheduler
Where: helm upgrade --install kai-scheduler oci://ghcr.io/kai-scheduler/kai-scheduler/kai-scheduler -n kai-scheduler
Last seen: Error: INSTALLATION FAILED: failed post-install: 1 error occurred:
\t* timed out waiting for the condition

Stack Trace:
  File "kai_lab_pipeline/assets/step.py", line 71, in step
    raise dg.Failure(str(error)) from error
"""
    [cause] = diagnose_text(text).causes
    assert cause.id == "helm.hook-failed"
    assert any("helm upgrade --install kai-scheduler" in step and "kai-scheduler" in step for step in cause.remedy)


def test_the_most_specific_sign_of_a_line_wins() -> None:
    line = (
        'Internal error occurred: failed calling webhook "queue-validation.kai.scheduler": failed to call webhook: '
        'Post "https://queue-controller.kai-scheduler.svc:443/x": dial tcp 10.96.1.1:443: connect: connection refused'
    )
    assert [cause.id for cause in diagnose_text(line).all] == ["kai.queue-webhook-down"]


def test_several_causes_are_ranked_best_first() -> None:
    found = diagnose_text("write /x: no space left on device\nError: INSTALLATION FAILED: context deadline exceeded")
    assert {cause.id for cause in found.causes} == {"docker.no-space", "helm.wait-timeout"}
    specificities = [cause.specificity for cause in found.causes]
    assert specificities == sorted(specificities, reverse=True)


def test_a_symptom_is_dropped_only_for_the_same_pod() -> None:
    def container(pod: str, reason: str) -> Fact:
        return Fact("container", "", f"Pod {pod}: {reason}", {"reason": reason}, {"namespace": "n", "pod": pod})

    same = diagnose([container("a", "OOMKilled"), container("a", "CrashLoopBackOff")])
    assert [cause.id for cause in same.causes] == ["pod.oom"]
    other = diagnose([container("a", "OOMKilled"), container("b", "CrashLoopBackOff")])
    assert [cause.id for cause in other.causes] == ["pod.oom", "pod.crash-loop"]


@pytest.mark.parametrize("check", ["hamicore_enabled", "sharing_enabled"])
@pytest.mark.parametrize(
    ("version", "installed", "value"),
    [
        ("v0.16.8", "v0.16.8", "binder.plugins.hamicore.enabled=true"),
        ("v0.17.0", "v0.17.0", "binder.plugins.hamicore.enabled=true"),
        ("v0.18.2", "v0.18.2", "global.gpuSharingMode=HamiCore"),
        ("0.18.5", "0.18.5", "global.gpuSharingMode=HamiCore"),
        ("v0.19.0", "v0.19.0", "global.gpuSharingMode=HamiCore"),
        ("v0.21.0-rc.1", "v0.21.0-rc.1", "global.gpuSharingMode=HamiCore"),
        ("v1.0.0", "v1.0.0", "global.gpuSharingMode=HamiCore"),
        ("v0.20.1", "v0.17.0", "binder.plugins.hamicore.enabled=true"),  # the withdrawn one is not to be kept
    ],
)
def test_a_remedy_for_a_value_of_kai_keeps_the_version_that_is_installed(
    check: str, version: str, installed: str, value: str
) -> None:
    message = f"It is off. (observed off; nvml_mock 0.3.0, kai_scheduler {version}, device_plugin v0.18.2)"
    [cause] = diagnose([Fact("check", message, message, {"check": f"kai_release.{check}"})]).causes
    [upgrade] = [step for step in cause.remedy if step.startswith("helm upgrade")]
    assert f"--version {installed} " in upgrade
    assert value in upgrade.split()
    assert upgrade.count("--set") == (1 if "gpuSharingMode" in value else 2)


def test_an_unknown_text_says_so_and_what_was_looked_at() -> None:
    found = diagnose_text("all is quiet\nnothing to see\n")
    assert not found.known
    assert found.to_json() == {"known": False, "causes": []}
    assert found.looked_at == ("3 lines of text",)


def test_healthy_objects_say_nothing() -> None:
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": {"note": "CrashLoopBackOff OOMKilled"}},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {"name": "c", "ready": True, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
            ],
        },
    }
    assert not diagnose_objects([{"kind": "List", "items": [pod]}]).known


def test_the_boundary_is_expected_and_not_a_fault() -> None:
    found = diagnose_text("Error while running the app: unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND")
    assert not found.causes
    assert [cause.nature for cause in found.expected] == [Nature.EXPECTED]
    assert "expected boundary" in found.expected[0].cause


@pytest.mark.parametrize(
    "wrapped",
    [
        "\x1b[31mError: release: not found\x1b[0m",
        "Error: release: not found\r\n",
        "ошибка: 错误 \u202eError: release: not found\u2069 ✗",
        '{"error": "Error: release: not found", "half',
        '["Error: release: not found"]',
        "\ufeffError: RELEASE: NOT FOUND",
        "\x00\x01\x02Error: release: not found\ud800",
    ],
)
def test_colours_line_ends_letters_and_broken_json_do_not_matter(wrapped: str) -> None:
    found = diagnose_text(wrapped)
    assert found.best is not None
    assert found.best.id == "helm.release-missing"
    assert all(line.isprintable() or "\ud800" in line for line in found.best.evidence)


@pytest.mark.parametrize("text", ["", " \n\t", "{", "[" * 100_000, '{"a":' * 5_000, "null", "{}", "[]", "\x00" * 1000])
def test_nothing_in_means_nothing_known(text: str) -> None:
    assert not diagnose_text(text).known


@pytest.mark.parametrize("value", [None, 3, "x", [None], {"kind": 3}, {"kind": "Pod"}, {"kind": "Pod", "status": []}])
def test_odd_objects_are_no_trouble(value: Any) -> None:
    assert not diagnose_objects([value]).known


def client_errors() -> list[tuple[str, str]]:
    return [(fault, text) for fault, text in samples() if isinstance(text, str) and "ApiException: (" in text]


@pytest.mark.parametrize(("fault", "text"), client_errors())
def test_an_error_of_the_python_client_is_read_by_the_answer_in_it(fault: str, text: str) -> None:
    trace = f'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n{text}\n'
    for told in (trace, trace.replace("\n", "\r\n"), f"{trace}{trace}", f"{trace}done"):
        assert diagnose_text(told).causes[0].id == fault
    assert [cause.id for cause in diagnose_text(trace).causes] == [fault]
    assert [cause.id for cause in diagnose_evidence(Evidence("kind", {}), errors=[trace]).causes] == [fault]


@pytest.mark.parametrize(("fault", "text"), [entry for entry in client_errors() if "body:" not in entry[1]])
def test_an_error_of_the_python_client_without_an_answer_is_read_by_its_code(fault: str, text: str) -> None:
    for told in (text, json.dumps({"message": text})):
        assert [cause.id for cause in diagnose_text(told).causes] == [fault]


def test_real_names_of_a_python_client_error_stand_in_the_remedy() -> None:
    text = next(text for fault, text in client_errors() if fault == "kubernetes.not-found" and "NotFound" in text)
    (cause,) = diagnose_text(text).causes
    assert cause.cause == "There is no pods p."
    assert cause.evidence == ('Status 404 NotFound: pods "p" not found',)


def test_several_answers_and_a_broken_one_are_each_read() -> None:
    texts = dict(client_errors())
    broken = texts["kubernetes.exists"].rstrip().removesuffix("}")
    found = diagnose_text("\n".join((texts["kubernetes.conflict"], broken, texts["kubernetes.unavailable"])))
    assert {cause.id for cause in found.causes} >= {"kubernetes.exists", "kubernetes.unavailable"}


def test_the_api_servers_limit_is_not_the_registrys() -> None:
    said = "Error from server (TooManyRequests): the server has received too many requests and has asked us to try"
    assert [cause.id for cause in diagnose_text(said).causes] == ["kubernetes.too-many-requests"]
    pulled = "toomanyrequests: You have reached your unauthenticated pull rate limit"
    assert [cause.id for cause in diagnose_text(pulled).causes] == ["registry.rate-limit"]


def test_a_command_killed_in_a_container_is_not_helms() -> None:
    assert [cause.id for cause in diagnose_text("command terminated with exit code 137").causes] == [
        "kubernetes.exec-killed"
    ]
    assert [cause.id for cause in diagnose_text("helm upgrade kai-scheduler: exit code 137").causes] == ["helm.killed"]


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        " ",
        'failed calling webhook "' + "x" * 180 + '" https://a',
        'Get "https://x/v2/' + "a" * 500 + " ",
        "connection refused\n",
        "annotationKeys=gpu-fraction|gpu-memory ",
        "错",
        "\\",
        "\x1b]",
        '{"kind":"Pod"}',
        "HTTP response body: {",
        'HTTP response body: {"kind":"Status"}\n',
        "(404)\nReason: x\nHTTP response headers: HTTP response body: {}",
    ],
)
def test_megabytes_of_anything_are_read_in_linear_time(unit: str) -> None:
    def seconds(size: int) -> float:
        text = (unit * (size // len(unit) + 1))[:size]
        start = time.process_time()
        diagnose_text(text)
        return time.process_time() - start

    small, large = seconds(250_000), seconds(2_000_000)
    # Eight times the text: a quadratic reader would need 64 times the time.
    assert large < 30 * small + 0.5
