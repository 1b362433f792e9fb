"""Damages to claims 2 and 3: KAI's release, its components and arguments, the queues."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from kai_lab_pipeline_tests.damages.draft import (
    COMPLETE,
    DROP,
    Damage,
    Draft,
    Edit,
    change,
    clone,
    damage,
    dryrun,
    helm,
    never_observed,
    no_helm,
    remove,
    status_condition,
    uncaptured,
    version,
)

RELEASE, SEVEN, SHARING, HAMICORE, WEBHOOK, ALIVE = (
    f"kai_release.{name}"
    for name in (
        "release_deployed",
        "seven_components_running",
        "sharing_enabled",
        "hamicore_enabled",
        "queue_webhook_serving",
        "scheduler_alive",
    )
)
EXIST, LEAF, UNLIMITED = (
    f"queues.{name}" for name in ("queues_exist", "default_queue_is_leaf_of_default", "queues_unlimited")
)
COMPONENTS = (
    "admission",
    "binder",
    "kai-operator",
    "kai-scheduler-default",
    "pod-grouper",
    "podgroup-controller",
    "queue-controller",
)
WEBHOOKS = "validatingwebhookconfigurations"
QUEUE_WEBHOOK = "kai-queue-validation-v2"
CANARY = "kai-lab-canary"
DELETED = "2026-11-30T01:00:00Z"


def _args(component: str, rewrite: Callable[[list[str]], list[str]]) -> Edit:
    def edit(draft: Draft) -> None:
        pod = draft.one("kai_release", "deployments", component)["spec"]["template"]["spec"]
        pod["containers"][0]["args"] = rewrite(pod["containers"][0]["args"])

    return edit


def _flag(component: str, old: str, new: str | None) -> Edit:
    def rewrite(args: list[str]) -> list[str]:
        assert old in args
        return [new if word == old else word for word in args if word != old or new is not None]  # type: ignore[misc]

    return _args(component, rewrite)


def _plugins(rewrite: Callable[[dict[str, Any]], object]) -> Edit:
    def edit(args: list[str]) -> list[str]:
        where = args.index("--plugins") + 1
        plugins = json.loads(args[where])
        rewrite(plugins)
        return [*args[:where], json.dumps(plugins), *args[where + 1 :]]

    return _args("binder", edit)


def _first_webhook(path: tuple[str | int, ...], value: Any) -> Edit:
    return change("kai_release", WEBHOOKS, QUEUE_WEBHOOK, ("webhooks", 0, *path), value)


def _canary(path: tuple[str | int, ...], value: Any) -> Edit:
    return change("kai_release", "pods", CANARY, path, value)


RELEASE_SIDE: tuple[Damage, ...] = (
    damage("KAI failed", helm("kai_release", "kai-scheduler", {"status": "failed"}), RELEASE),
    damage("KAI being uninstalled", helm("kai_release", "kai-scheduler", {"status": "uninstalling"}), RELEASE),
    damage("no word on KAI's status", helm("kai_release", "kai-scheduler", {"status": ""}), RELEASE),
    damage("newer KAI chart", helm("kai_release", "kai-scheduler", {"chart": "kai-scheduler-v0.17.1"}), RELEASE),
    damage("no KAI release", helm("kai_release", "kai-scheduler", DROP), RELEASE),
    damage("KAI release not captured", no_helm("kai_release"), RELEASE),
    damage("another KAI version wanted", version("kai_scheduler", "v0.18.0"), RELEASE),
    *(
        damage(
            f"no {name}",
            remove("kai_release", "deployments", name),
            SEVEN,
            *((SHARING, HAMICORE) if name in ("admission", "binder") else ()),
        )
        for name in COMPONENTS
    ),
    *(
        damage(f"{name} unavailable", status_condition("kai_release", "deployments", name, "Available", "False"), SEVEN)
        for name in COMPONENTS
    ),
    damage(
        "operator scaled to zero calls itself available",
        change("kai_release", "deployments", "kai-operator", ("status", "availableReplicas"), DROP),
        SEVEN,
    ),
    damage(
        "binder scaled to zero calls itself available",
        change("kai_release", "deployments", "binder", ("status", "availableReplicas"), 0),
        SEVEN,
    ),
    damage(
        "scheduler in another namespace",
        change("kai_release", "deployments", "kai-scheduler-default", ("metadata", "namespace"), "kai"),
        SEVEN,
    ),
    damage(
        "KAI never observed",
        never_observed("kai_release"),
        RELEASE,
        SEVEN,
        SHARING,
        HAMICORE,
        WEBHOOK,
        ALIVE,
        on=COMPLETE,
    ),
    damage("deployments not captured", uncaptured("kai_release", "deployments"), SEVEN, SHARING, HAMICORE),
)

ARGUMENTS: tuple[Damage, ...] = (
    damage("sharing off", _flag("admission", "--gpu-sharing-enabled=true", "--gpu-sharing-enabled=false"), SHARING),
    damage("sharing not passed", _flag("admission", "--gpu-sharing-enabled=true", None), SHARING),
    damage("sharing yes", _flag("admission", "--gpu-sharing-enabled=true", "--gpu-sharing-enabled=yes"), SHARING),
    damage("mistyped flag", _flag("admission", "--gpu-sharing-enabled=true", "--gpusharing-enabled=true"), SHARING),
    damage("the last flag counts", _args("admission", lambda a: [*a, "--gpu-sharing-enabled=false"]), SHARING),
    damage("the flag's word apart", _args("admission", lambda a: [*a, "--gpu-sharing-enabled", "false"]), SHARING),
    damage("binder without sharing", _plugins(lambda p: p["gpusharing"].update(enabled=False)), SHARING),
    damage("plugins no JSON", _args("binder", lambda a: [*a, "--plugins={"]), SHARING, HAMICORE),
    damage("hamicore off", _flag("admission", "--hami-core-enabled=true", "--hami-core-enabled=false"), HAMICORE),
    damage("hamicore not passed", _flag("admission", "--hami-core-enabled=true", None), HAMICORE),
    damage("binder's hamicore off", _plugins(lambda p: p["hamicore"].update(enabled=False)), HAMICORE),
    damage("binder's hamicore a text", _plugins(lambda p: p["hamicore"].update(enabled="true")), HAMICORE),
    damage("binder knows no hamicore", _plugins(lambda p: p.pop("hamicore")), HAMICORE),
    damage("binder without plugins", _args("binder", lambda a: a[: a.index("--plugins")]), HAMICORE),
)

SERVING: tuple[Damage, ...] = (
    damage("caBundle empty", _first_webhook(("clientConfig", "caBundle"), ""), WEBHOOK, on=COMPLETE),
    damage("caBundle absent", _first_webhook(("clientConfig", "caBundle"), DROP), WEBHOOK, on=COMPLETE),
    damage("no queue webhook", remove("kai_release", WEBHOOKS, QUEUE_WEBHOOK), WEBHOOK, on=COMPLETE),
    damage("webhooks not captured", uncaptured("kai_release", WEBHOOKS), WEBHOOK, on=COMPLETE),
    damage(
        "dry-run of a queue refused",
        dryrun(
            "kai_release",
            "queue",
            lambda _: {"kind": "Status", "code": 500, "message": "failed calling webhook: connection refused"},
        ),
        WEBHOOK,
        on=COMPLETE,
    ),
    damage(
        "another kind answered", dryrun("kai_release", "queue", lambda a: a.update(kind="Pod")), WEBHOOK, on=COMPLETE
    ),
    damage("no dry-run of a queue", dryrun("kai_release", "queue", lambda _: DROP), WEBHOOK, on=COMPLETE),
    damage("canary not bound", _canary(("spec", "nodeName"), DROP), ALIVE, on=COMPLETE),
    damage("canary bound to nothing", _canary(("spec", "nodeName"), ""), ALIVE, on=COMPLETE),
    damage("no canary", remove("kai_release", "pods", CANARY), ALIVE, on=COMPLETE),
    damage("another scheduler's canary", _canary(("spec", "schedulerName"), "default-scheduler"), ALIVE, on=COMPLETE),
    damage("canary of another namespace", _canary(("metadata", "namespace"), "kai"), ALIVE, on=COMPLETE),
    damage(
        "canary bound too late", _canary(("metadata", "creationTimestamp"), "2026-11-30T01:00:00Z"), ALIVE, on=COMPLETE
    ),
    damage(
        "canary asks a GPU",
        _canary(("spec", "containers", 0, "resources"), {"limits": {"nvidia.com/gpu": "1"}}),
        ALIVE,
        on=COMPLETE,
    ),
    damage("canary's pods not captured", uncaptured("kai_release", "pods"), ALIVE, on=COMPLETE),
)


def _queue(name: str, path: tuple[str | int, ...], value: Any) -> Edit:
    return change("queues", "queues", name, path, value)


def _quota(name: str, resource: str, key: str, value: Any) -> Damage:
    edit = _queue(name, ("spec", "resources", resource, key), value)
    return damage(f"{name} {resource} {key} {'unset' if value is DROP else repr(value)}", edit, UNLIMITED)


QUEUES: tuple[Damage, ...] = (
    damage("no default", remove("queues", "queues", "default"), EXIST, LEAF, UNLIMITED),
    damage("no default-queue", remove("queues", "queues", "default-queue"), EXIST, LEAF, UNLIMITED),
    damage("no default-parent-queue", remove("queues", "queues", "default-parent-queue"), EXIST),
    damage(
        "default-queue being deleted",
        _queue("default-queue", ("metadata", "deletionTimestamp"), DELETED),
        EXIST,
        LEAF,
        UNLIMITED,
    ),
    damage(
        "default-parent-queue being deleted",
        _queue("default-parent-queue", ("metadata", "deletionTimestamp"), DELETED),
        EXIST,
    ),
    damage("the chart's parent again", _queue("default-queue", ("spec", "parentQueue"), "default-parent-queue"), LEAF),
    damage("no parent", _queue("default-queue", ("spec", "parentQueue"), DROP), LEAF),
    damage("its own parent", _queue("default-queue", ("spec", "parentQueue"), "default-queue"), LEAF),
    damage(
        "a queue below default-queue",
        clone(
            "queues",
            "queues",
            "default-queue",
            {("metadata", "name"): "team", ("spec", "parentQueue"): "default-queue"},
        ),
        LEAF,
    ),
    damage("children of default-queue", _queue("default-queue", ("status",), {"childQueues": ["team"]}), LEAF),
    _quota("default-queue", "gpu", "quota", 0),
    _quota("default-queue", "gpu", "limit", 8),
    _quota("default-queue", "gpu", "overQuotaWeight", 0),
    _quota("default-queue", "gpu", "overQuotaWeight", DROP),
    _quota("default-queue", "gpu", "quota", "-1"),
    _quota("default-queue", "cpu", "limit", 2000),
    _quota("default-queue", "memory", "quota", DROP),
    _quota("default", "gpu", "limit", 0),
    _quota("default", "cpu", "quota", -2),
    _quota("default", "memory", "overQuotaWeight", True),
    damage("default without gpu", _queue("default", ("spec", "resources", "gpu"), DROP), UNLIMITED),
    damage("default-queue without resources", _queue("default-queue", ("spec", "resources"), DROP), UNLIMITED),
    damage("queues not captured", uncaptured("queues", "queues"), EXIST, LEAF, UNLIMITED),
    damage("queues never observed", never_observed("queues"), EXIST, LEAF, UNLIMITED),
)

DAMAGES = RELEASE_SIDE + ARGUMENTS + SERVING + QUEUES
