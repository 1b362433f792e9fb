from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline_tests.api_suite.support import Api, config_map, pod, refusal, until
from kai_lab_pipeline_tests.api_suite.webhook_server import WebhookServer, allow, certificate, deny, mutate

GROUP = "/apis/admissionregistration.k8s.io/v1"
LABEL = {"op": "add", "path": "/metadata/labels/by", "value": "webhook"}
LABELS = {"there": "before"}
"""A label cannot be added by JSON patch where there is none yet."""

Register = Callable[..., None]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return certificate(tmp_path_factory.mktemp("webhook"))


@pytest.fixture
def hooks(bundle: tuple[Path, str]) -> Iterator[WebhookServer]:
    with WebhookServer(bundle[0]).running() as server:
        yield server


@pytest.fixture
def register(api: Api, namespace: str, hooks: WebhookServer, bundle: tuple[Path, str]) -> Iterator[Register]:
    """Registers a webhook for the test's own namespace, and waits until the server calls it."""
    made: list[str] = []

    def make(kind: str, name: str, handler: Any = allow, *, path: str = "", **more: Any) -> None:
        hooks.handlers[name] = handler
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps", "pods"]}
        webhook = {
            "name": f"{name}.suite.io",
            "clientConfig": {"url": path or f"https://127.0.0.1:{hooks.port}/{name}", "caBundle": bundle[1]},
            "rules": [rule],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 5,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            **more,
        }
        plural = f"{kind.lower()}webhookconfigurations"
        api.post(
            f"{GROUP}/{plural}",
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": f"{kind}WebhookConfiguration",
                "metadata": {"name": f"{name}.{namespace}"},
                "webhooks": [webhook],
            },
        )
        made.append(f"{GROUP}/{plural}/{name}.{namespace}")

    yield make
    for path in made:
        api.delete(path)


def called(api: Api, configmaps: str, hooks: WebhookServer, name: str) -> None:
    """A real server learns of a new webhook a moment after it is stored."""

    def seen() -> bool:
        api.http.post(configmaps, json=config_map("warm-up", LABELS), params={"dryRun": "All"})
        return any(asked == name for asked, _ in hooks.asked)

    until(seen, f"webhook {name} to be called")
    hooks.asked.clear()


def test_configurations_are_defaulted(api: Api, register: Register, namespace: str) -> None:
    register("Mutating", "m")
    webhook = api.get(f"{GROUP}/mutatingwebhookconfigurations/m.{namespace}")["webhooks"][0]
    assert (webhook["failurePolicy"], webhook["matchPolicy"], webhook["reinvocationPolicy"]) == (
        "Fail",
        "Equivalent",
        "Never",
    )
    assert webhook["rules"][0]["scope"] == "*"


def test_mutations_are_stored(api: Api, configmaps: str, hooks: WebhookServer, register: Register) -> None:
    register("Mutating", "m", mutate(LABEL))
    called(api, configmaps, hooks, "m")
    assert api.post(configmaps, config_map("a", LABELS))["metadata"]["labels"] == {**LABELS, "by": "webhook"}
    name, request = hooks.asked[-1]
    assert (name, request["operation"], request["name"], request["dryRun"]) == ("m", "CREATE", "a", False)
    assert request["kind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
    assert request["object"]["metadata"]["name"] == "a"


def test_dry_runs_go_through_webhooks(api: Api, configmaps: str, hooks: WebhookServer, register: Register) -> None:
    register("Mutating", "m", mutate(LABEL))
    called(api, configmaps, hooks, "m")
    made = api.post(configmaps, config_map("a", LABELS), dryRun="All")
    assert made["metadata"]["labels"] == {**LABELS, "by": "webhook"}
    assert hooks.asked[-1][1]["dryRun"] is True


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, (400, "")),
        ({"code": 403}, (403, "")),
        ({"code": 403, "reason": "Forbidden"}, (403, "Forbidden")),
        ({"code": 200, "reason": "Gone"}, (400, "Gone")),
    ],
)
def test_denials(
    api: Api,
    configmaps: str,
    hooks: WebhookServer,
    register: Register,
    status: dict[str, Any],
    expected: tuple[int, str],
) -> None:
    register("Validating", "v", deny("bad thing", **status))
    called(api, configmaps, hooks, "v")
    answer = refusal(api.http.post(configmaps, json=config_map("a")))
    assert answer == (*expected, 'admission webhook "v.suite.io" denied the request: bad thing')
    assert not api.exists(f"{configmaps}/a")


def test_warnings_reach_the_client(api: Api, configmaps: str, hooks: WebhookServer, register: Register) -> None:
    register("Validating", "v", lambda review: {"allowed": True, "warnings": ["mind the gap"]})
    called(api, configmaps, hooks, "v")
    answer = api.http.post(configmaps, json=config_map("a"))
    assert answer.headers["warning"] == '299 - "mind the gap"'


def test_conditions_and_selectors_narrow(api: Api, pods: str, hooks: WebhookServer, register: Register) -> None:
    condition = {"name": "by-scheduler", "expression": "object.spec.schedulerName == 'kai-scheduler'"}
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    selector = {"matchExpressions": [{"key": "skip", "operator": "NotIn", "values": ["yes"]}]}
    register("Mutating", "m", mutate(LABEL), matchConditions=[condition], rules=rules, objectSelector=selector)

    def labels(name: str, scheduler: str, **given: str) -> dict[str, str]:
        made = api.post(pods, pod(name, {"app": "x", **given}, schedulerName=scheduler), dryRun="All")
        found: dict[str, str] = made["metadata"]["labels"]
        return found

    until(lambda: labels("warm-up", "kai-scheduler").get("by") == "webhook", "the webhook to be called")
    assert "by" not in labels("a", "default-scheduler")
    assert "by" not in labels("b", "kai-scheduler", skip="yes")
    assert labels("c", "kai-scheduler")["by"] == "webhook"


def test_updates_bring_the_old_object(api: Api, configmaps: str, hooks: WebhookServer, register: Register) -> None:
    rules = [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["UPDATE", "DELETE"], "resources": ["*"]}]
    register("Validating", "v", allow, rules=rules)
    api.post(configmaps, config_map("a", k="0"))

    def seen() -> bool:
        count = int(api.get(f"{configmaps}/a")["data"]["k"]) + 1
        api.patch(f"{configmaps}/a", {"data": {"k": str(count)}})
        return bool(hooks.asked)

    until(seen, "the webhook to be called")
    request = next(request for _, request in hooks.asked if request["name"] == "a")
    assert int(request["object"]["data"]["k"]) == int(request["oldObject"]["data"]["k"]) + 1
    hooks.asked.clear()
    api.delete(f"{configmaps}/a")
    asked = [request for _, request in hooks.asked if request["name"] == "a"]  # controllers delete as well
    deleted = next(request for request in asked if request["operation"] == "DELETE")
    assert deleted["object"] is None
    assert deleted["oldObject"]["metadata"]["name"] == "a"


def test_reinvocation_after_others_changed(api: Api, configmaps: str, hooks: WebhookServer, register: Register) -> None:
    register("Mutating", "a-first", mutate(LABEL), reinvocationPolicy="IfNeeded")
    register("Mutating", "b-second", mutate({"op": "add", "path": "/metadata/labels/second", "value": "yes"}))
    called(api, configmaps, hooks, "a-first")
    called(api, configmaps, hooks, "b-second")
    made = api.post(configmaps, config_map("a", LABELS))
    assert made["metadata"]["labels"] == {**LABELS, "by": "webhook", "second": "yes"}
    assert [name for name, _ in hooks.asked] == ["a-first", "b-second", "a-first"]


def failure(api: Api, configmaps: str) -> str:
    """The error text of a failing webhook, once the server knows it."""

    def failed() -> Any:
        answer = api.http.post(configmaps, json=config_map("a"), params={"dryRun": "All"})
        return answer if answer.status_code == 500 else None

    code, reason, message = refusal(until(failed, "the webhook to fail"))
    assert (code, reason) == (500, "InternalError")
    prefix = "Internal error occurred: "
    assert message.startswith(prefix)
    return message.removeprefix(prefix)


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_refused_connections(api: Api, configmaps: str, register: Register) -> None:
    port = unused_port()
    register("Validating", "v", path=f"https://127.0.0.1:{port}/x")
    assert failure(api, configmaps) == (
        f'failed calling webhook "v.suite.io": failed to call webhook: Post "https://127.0.0.1:{port}/x?timeout=5s": '
        f"dial tcp 127.0.0.1:{port}: connect: connection refused"
    )


def test_ignored_failures(api: Api, configmaps: str, register: Register) -> None:
    register("Validating", "v", path=f"https://127.0.0.1:{unused_port()}/x", failurePolicy="Ignore")
    assert api.post(configmaps, config_map("a"))["metadata"]["name"] == "a"


def test_time_outs(api: Api, configmaps: str, hooks: WebhookServer, register: Register) -> None:
    done = threading.Event()

    def slow(review: Any) -> Any:
        done.wait(10)
        return {"allowed": True}

    register("Validating", "v", slow, timeoutSeconds=1)
    text = failure(api, configmaps)
    done.set()
    assert text == (
        f'failed calling webhook "v.suite.io": failed to call webhook: Post "https://127.0.0.1:{hooks.port}/v?'
        'timeout=1s": context deadline exceeded'
    )


def test_error_answers(api: Api, configmaps: str, register: Register) -> None:
    register("Validating", "v", lambda review: 500)
    assert failure(api, configmaps) == (
        'failed calling webhook "v.suite.io": failed to call webhook: '
        'an error on the server ("boom") has prevented the request from succeeding'
    )


def test_garbage_answers(api: Api, configmaps: str, register: Register) -> None:
    register("Validating", "v", lambda review: b'"garbage"')
    assert failure(api, configmaps).startswith(
        'failed calling webhook "v.suite.io": failed to call webhook: couldn\'t get version/kind; json parse error: '
    )


def test_answers_to_another_question(api: Api, configmaps: str, register: Register) -> None:
    register("Validating", "v", lambda review: {"uid": "other", "allowed": True})
    assert failure(api, configmaps).endswith(', got "other"')


def test_unknown_authorities(
    api: Api, configmaps: str, register: Register, tmp_path: Path, hooks: WebhookServer
) -> None:
    _, stranger = certificate(tmp_path)
    config = {"url": f"https://127.0.0.1:{hooks.port}/v", "caBundle": stranger}
    register("Validating", "v", clientConfig=config)
    text = failure(api, configmaps)
    assert "tls: failed to verify certificate: x509: certificate signed by unknown authority" in text


def test_services_must_exist(api: Api, configmaps: str, namespace: str, register: Register) -> None:
    service = {"name": "nosvc", "namespace": namespace, "path": "/x"}
    register("Validating", "v", clientConfig={"service": service})
    assert failure(api, configmaps) == (
        'failed calling webhook "v.suite.io": failed to call webhook: '
        f'Post "https://nosvc.{namespace}.svc:443/x?timeout=5s": service "nosvc" not found'
    )
