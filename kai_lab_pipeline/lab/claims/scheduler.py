"""Claims 2 and 3: KAI is installed and runs, and the lab's queues are effective for scheduling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from kai_lab_pipeline.lab.claims.reading import (
    GPU_RESOURCE,
    KAI_SCHEDULER,
    Settled,
    arguments_of,
    check,
    containers_of,
    dry_run,
    flag_value,
    is_true,
    objects,
    pod_named,
    pod_state,
    release_deployed,
)
from kai_lab_pipeline.lab.evidence import (
    Evidence,
    K8sObject,
    Observation,
    condition,
    condition_true,
    is_deleted,
    mapping,
    metadata_of,
    name_of,
    parse_time,
    sequence,
    spec_of,
    status_of,
)
from kai_lab_pipeline.lab.spec import Expectations
from kai_lab_pipeline.lab.verdict import Finding, broken, held, not_evaluated

COMPONENTS = (
    "admission",
    "binder",
    "kai-operator",
    "kai-scheduler-default",
    "pod-grouper",
    "podgroup-controller",
    "queue-controller",
)
"""KAI's deployments (v0.16 to v0.18): the chart makes kai-operator, which makes the others after helm returned."""
QUEUE_WEBHOOK = "queue-validation.kai.scheduler"
CANARY_DEADLINE_S = 60
"""Seconds within which a CPU-only pod must be bound; a cycle of the scheduler takes one."""
UNLIMITED = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
CHART_PARENT_QUEUE = "default-parent-queue"


@check
def kai_release_deployed(evidence: Evidence, expect: Expectations) -> Finding:
    return release_deployed(evidence.of("kai_release"), "kai-scheduler", expect.versions.get("kai_scheduler"))


@check
def seven_components_running(evidence: Evidence, expect: Expectations) -> Finding:
    expected = f"Available: {', '.join(COMPONENTS)}"
    deployments = _deployments(evidence.of("kai_release"), expect, expected)
    missing = [name for name in COMPONENTS if name not in deployments]
    down = [name for name in COMPONENTS if name in deployments and not _runs(deployments[name])]
    running = len(COMPONENTS) - len(missing) - len(down)
    observed = f"{running} of {len(COMPONENTS)} run"
    for what, names in (("absent", missing), ("not available", down)):
        if names:
            observed += f"; {what}: {', '.join(names)}"
    if missing:
        return broken(
            expected,
            observed,
            f"KAI's {', '.join(missing)} are not there. A helm install that succeeded proves only kai-operator; "
            "the operator makes the others afterwards.",
        )
    if down:
        return broken(expected, observed, f"KAI's {', '.join(down)} are not available.")
    return held(expected, observed, "All seven components of KAI run.")


def _deployments(seen: Observation, expect: Expectations, expected: str) -> Mapping[str, K8sObject]:
    found = objects(seen, "deployments", expected)
    return {name_of(d): d for d in found if metadata_of(d).get("namespace") == expect.kai_namespace}


def _runs(deployment: K8sObject) -> bool:
    """Available with at least one replica: scaled to zero a Deployment calls itself Available too."""
    replicas = status_of(deployment).get("availableReplicas")
    return condition_true(deployment, "Available") and isinstance(replicas, int) and replicas >= 1


@check
def sharing_enabled(evidence: Evidence, expect: Expectations) -> Finding:
    expected = "admission --gpu-sharing-enabled=true, binder plugin gpusharing on"
    seen = evidence.of("kai_release")
    admission, binder = (_arguments(seen, expect, component, expected) for component in ("admission", "binder"))
    flag = flag_value(admission, "--gpu-sharing-enabled")
    plugin = _binder_plugin(binder, "gpusharing", expected)
    observed = f"admission {_flag_text(flag)}, binder {'default' if plugin is None else _on(plugin)}"
    if not is_true(flag):
        return broken(
            expected,
            observed,
            "KAI's admission refuses GPU sharing: the chart value had no effect (it has no schema, so a mistyped "
            "key is accepted silently).",
        )
    # The binder runs its sharing plugin unless it is told otherwise.
    if plugin is False:
        return broken(expected, observed, "KAI's binder runs without its gpusharing plugin.")
    note = _corroborate(seen, ("admission", "gpuSharing"))
    return held(expected, observed, f"KAI runs with GPU sharing on{note}.")


@check
def hamicore_enabled(evidence: Evidence, expect: Expectations) -> Finding:
    expected = "admission --hami-core-enabled=true, binder plugin hamicore on"
    seen = evidence.of("kai_release")
    admission, binder = (_arguments(seen, expect, component, expected) for component in ("admission", "binder"))
    flag = flag_value(admission, "--hami-core-enabled")
    plugin = _binder_plugin(binder, "hamicore", expected)
    observed = f"admission {_flag_text(flag)}, binder {_on(plugin)}"
    if not is_true(flag):
        return broken(expected, observed, "KAI's admission does not wire HAMi-core's memory limit into shared pods.")
    if not plugin:
        return broken(expected, observed, "KAI's binder runs without its hamicore plugin, so no limit is ever written.")
    note = _corroborate(seen, ("binder", "plugins", "hamicore", "enabled"))
    return held(expected, observed, f"Admission and binder run with hamicore on{note}.")


def _arguments(seen: Observation, expect: Expectations, component: str, expected: str) -> tuple[str, ...]:
    deployment = _deployments(seen, expect, expected).get(component)
    if deployment is None:
        message = f"KAI's {component} is not there, so no value takes effect."
        raise Settled(broken(expected, f"{component} absent", message))
    return arguments_of(deployment)


def _binder_plugin(arguments: tuple[str, ...], plugin: str, expected: str) -> bool | None:
    """Whether ``--plugins`` switches a plugin of the binder on or off; None when it says nothing about it."""
    text = flag_value(arguments, "--plugins")
    if text is None:
        return None
    try:
        plugins = mapping(json.loads(text))
    except (ValueError, RecursionError):
        message = f"The binder's --plugins is no JSON: {text[:80]}"
        raise Settled(broken(expected, text[:80], message)) from None
    entry = plugins.get(plugin)
    return None if entry is None else mapping(entry).get("enabled") is True


def _flag_text(value: str | None) -> str:
    return "without the flag" if value is None else value


def _on(value: bool | None) -> str:
    return "on" if value else "off" if value is False else "not named"


def _corroborate(seen: Observation, path: tuple[str, ...]) -> str:
    """What Config kai-config says beside the arguments; it never decides, for it is what the operator was asked."""
    config = seen.find("configs", "kai-config")
    if config is None:
        return ""
    value: Any = spec_of(config)
    for key in path:
        value = mapping(value).get(key)
    if value is True:
        return ", and kai-config agrees"
    return f"; kai-config says {'.'.join(path)}={value}, which the operator has not carried out"


@check
def queue_webhook_serving(evidence: Evidence, expect: Expectations) -> Finding:
    expected = "a dry-run Queue is accepted, and the webhook's caBundle is not empty"
    seen = evidence.of("kai_release")
    answer = dry_run(seen, "queue", expected)
    configurations = objects(seen, "validatingwebhookconfigurations", expected)
    if answer.get("kind") != "Queue":
        said = str(answer.get("message") or answer.get("kind") or "nothing readable")
        return broken(expected, said, f"The API server refused a dry-run of a Queue: {said}")
    hooks = [
        mapping(hook)
        for configuration in configurations
        for hook in sequence(configuration.get("webhooks"))
        if _validates_queues(mapping(hook))
    ]
    if not hooks:
        return broken(
            expected,
            "no queue webhook",
            "The dry-run was accepted because nothing validates queues: KAI's webhook is not registered (yet).",
        )
    for hook in hooks:
        if not mapping(hook.get("clientConfig")).get("caBundle"):
            return broken(
                expected, "caBundle empty", f"Webhook {hook.get('name')} has no caBundle: no call can succeed."
            )
    return held(expected, "Queue accepted, caBundle set", "KAI's queue webhook answers.")


def _validates_queues(hook: Mapping[str, Any]) -> bool:
    if hook.get("name") == QUEUE_WEBHOOK:
        return True
    rules = (mapping(rule) for rule in sequence(hook.get("rules")))
    return any(
        "scheduling.run.ai" in sequence(rule.get("apiGroups")) and "queues" in sequence(rule.get("resources"))
        for rule in rules
    )


@check
def scheduler_alive(evidence: Evidence, expect: Expectations) -> Finding:
    expected = f"CPU-only pod {expect.canary_pod} bound by {KAI_SCHEDULER} within {CANARY_DEADLINE_S} s"
    seen = evidence.of("kai_release")
    absent = not_evaluated(expected, f"No canary pod {expect.canary_pod} was captured.", observed="no canary")
    pod = pod_named(seen, expect.canary_pod, expect.pod_namespace, expected, absent=absent)
    scheduler = spec_of(pod).get("schedulerName")
    observed = pod_state(pod)
    if scheduler != KAI_SCHEDULER:
        return broken(expected, f"schedulerName {scheduler}", "The canary was not KAI's to bind: it proves nothing.")
    if any(GPU_RESOURCE in mapping(mapping(c.get("resources")).get("limits")) for c in containers_of(pod)):
        return broken(expected, "asks a GPU", "The canary asks for a GPU: it tests more than the scheduler's life.")
    if not spec_of(pod).get("nodeName"):
        why = mapping(condition(pod, "PodScheduled")).get("message") or "no word from the scheduler"
        return broken(expected, observed, f"KAI did not bind the canary: {why}")
    took = _seconds_to_schedule(pod)
    if took is not None and took > CANARY_DEADLINE_S:
        return broken(expected, f"{observed} after {took:.0f} s", f"KAI took {took:.0f} s to bind a CPU-only pod.")
    after = "" if took is None else f" after {took:.0f} s"
    return held(expected, f"{observed}{after}", f"KAI bound the canary{after}.")


def _seconds_to_schedule(pod: K8sObject) -> float | None:
    created = parse_time(metadata_of(pod).get("creationTimestamp"))
    scheduled = parse_time(mapping(condition(pod, "PodScheduled")).get("lastTransitionTime"))
    if created is None or scheduled is None or not condition_true(pod, "PodScheduled"):
        return None
    return max(scheduled - created, timedelta()).total_seconds()


def _queues(evidence: Evidence, expected: str) -> Mapping[str, K8sObject]:
    found = objects(evidence.of("queues"), "queues", expected)
    return {name_of(queue): queue for queue in found if not is_deleted(queue)}


@check
def queues_exist(evidence: Evidence, expect: Expectations) -> Finding:
    wanted = (expect.parent_queue, expect.queue, CHART_PARENT_QUEUE)
    expected = f"queues {', '.join(wanted)}"
    queues = _queues(evidence, expected)
    observed = ", ".join(sorted(queues)) or "no queue"
    missing = [name for name in wanted if name not in queues]
    if missing:
        return broken(expected, observed, f"Queue {', '.join(missing)} is missing.")
    return held(expected, observed, "The three queues are there.")


@check
def default_queue_is_leaf_of_default(evidence: Evidence, expect: Expectations) -> Finding:
    expected = f"{expect.queue} is a leaf under {expect.parent_queue}, which exists"
    queues = _queues(evidence, expected)
    queue = queues.get(expect.queue)
    if queue is None:
        return broken(expected, "absent", f"Queue {expect.queue} is missing.")
    parent = spec_of(queue).get("parentQueue")
    children = {name for name, other in queues.items() if spec_of(other).get("parentQueue") == expect.queue}
    children.update(str(child) for child in sequence(status_of(queue).get("childQueues")))
    observed = f"parent {parent or 'none'}, children {', '.join(sorted(children)) or 'none'}"
    if parent != expect.parent_queue:
        return broken(expected, observed, f"{expect.queue} hangs under {parent or 'nothing'}: the lab's apply is lost.")
    if expect.parent_queue not in queues:
        return broken(expected, observed, f"{expect.queue} is an orphan: KAI drops it with parent {parent} missing.")
    if children:
        return broken(expected, observed, f"{expect.queue} has children: KAI schedules pods from leaf queues only.")
    return held(expected, observed, f"{expect.queue} is a leaf under {expect.parent_queue}.")


@check
def queues_unlimited(evidence: Evidence, expect: Expectations) -> Finding:
    wanted = (expect.parent_queue, expect.queue)
    expected = f"cpu, memory, gpu of {' and '.join(wanted)}: quota -1, limit -1, overQuotaWeight 1"
    queues = _queues(evidence, expected)
    wrong = []
    for name in wanted:
        if name not in queues:
            wrong.append(f"{name} absent")
            continue
        resources = mapping(spec_of(queues[name]).get("resources"))
        for resource in ("cpu", "memory", "gpu"):
            given = mapping(resources.get(resource))
            wrong += [
                f"{name} {resource} {key} {given.get(key, 'unset')}"
                for key, value in UNLIMITED.items()
                if isinstance(given.get(key), bool) or given.get(key) != value
            ]
    if wrong:
        return broken(expected, "; ".join(wrong), f"The queues are not unlimited: {'; '.join(wrong)}.")
    return held(expected, "unlimited", "Both queues are unlimited in cpu, memory and gpu.")
