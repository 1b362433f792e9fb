"""KAI's operator: makes the scheduler of each SchedulingShard and, from the Config, all other services."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Mapping
from typing import Any

from kai_lab_pipeline.rehearsal import charts, profiles
from kai_lab_pipeline.rehearsal.client import STRATEGIC_PATCH, Object, resource_of
from kai_lab_pipeline.rehearsal.components.certificates import self_signed
from kai_lab_pipeline.rehearsal.components.informers import Key, key_of
from kai_lab_pipeline.rehearsal.components.runtime import Controller, Sim, now

USUAL_NAMESPACE = "kai-scheduler"
CONFIG = "kai-config"
SCHEDULER = "kai-scheduler-default"
_SECRETS = {
    "admission": "kai-admission-webhook-tls-secret",
    "queue-controller": "queue-webhook-tls-secret",
    "podgroup-controller": "podgroup-webhook-tls-secret",
}
_CONFIG_OPERANDS_S = 1.0
"""The Config's operands follow the shard's by about a second (measured)."""


def kai_namespace(sim: Sim) -> str:
    """Where KAI's components are: the Config names the namespace of the release."""
    config = sim.of("configs").get("", CONFIG)
    return USUAL_NAMESPACE if config is None else str(config["spec"].get("namespace") or USUAL_NAMESPACE)


class KaiController(Controller):
    """A controller inside one of KAI's own pods."""

    app = ""

    @property
    def namespace(self) -> str:
        return kai_namespace(self.sim)

    @property
    def lives_in(self) -> tuple[str, Mapping[str, str]]:
        return self.namespace, {"app": self.app}


class Operator(KaiController):
    name = "kai-operator"
    app = "kai-operator"

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self.shards = self.watch("schedulingshards", lambda obj: [("SchedulingShard", obj["metadata"]["name"])])
        self.configs = self.watch("configs", self._config_keys)
        self.watch("deployments", self._owner_keys)
        self._rendered: tuple[tuple[str, str], list[Object]] | None = None

    def _config_keys(self, config: Object) -> list[Key]:
        """The Config, and the shards: they wait for it, and helm makes them first."""
        shards = [("SchedulingShard", str(shard["metadata"]["name"])) for shard in self.shards.all()]
        return [("Config", str(config["metadata"]["name"])), *shards]

    def _owner_keys(self, obj: Object) -> list[Key]:
        if obj["metadata"].get("namespace") != self.namespace:
            return []
        references = obj["metadata"].get("ownerReferences") or []
        return [(ref["kind"], ref["name"]) for ref in references if ref["kind"] in ("Config", "SchedulingShard")]

    def wake_all(self) -> None:
        for config in self.configs.all():
            self.queue.add(("Config", config["metadata"]["name"]))
        for shard in self.shards.all():
            self.queue.add(("SchedulingShard", shard["metadata"]["name"]))

    def version(self) -> profiles.KaiVersion:
        """The version of the operator that runs: the image of its pod."""
        pod = self.own_pod()
        return profiles.kai_of_image(pod["spec"]["containers"][0]["image"]) if pod else profiles.KAI["v0.17.0"]

    async def reconcile(self, key: Key) -> None:
        kind, name = key
        if kind == "Config" and not self.version().dead_on_arrival:
            config = self.configs.get("", name)
            if config is not None and not config["metadata"].get("deletionTimestamp"):
                await self._reconcile_config(config)
        elif kind == "SchedulingShard":
            shard, config = self.shards.get("", name), self.configs.get("", CONFIG)
            if shard is not None and config is not None and not self.sim.faults.on("scheduler_missing"):
                await self._reconcile_shard(shard, config)

    async def _reconcile_shard(self, shard: Object, config: Object) -> None:
        kai = self.version()
        image = _image(config["spec"]["scheduler"]["service"]["image"])
        name = f"kai-scheduler-{shard['metadata']['name']}"
        context = {"kai": kai, "namespace": self.namespace, "scheduler": name, "image": image}
        configmap, service, deployment = charts.render("kai-shard.yaml.j2", **context)
        stored = await self._ensure_owned(configmap, shard)
        await self._ensure_owned(service, shard)
        made = await self._ensure_owned(deployment, shard)
        # The operator learns the ConfigMap's version only after its first pass: a second replica set follows the first.
        wanted = {"configMapVersion": stored["metadata"]["resourceVersion"]}
        template = made["spec"]["template"]
        if (template["metadata"].get("annotations") or {}) != wanted:
            made = await self.patch(made, {"spec": {"template": {"metadata": {"annotations": wanted}}}})
        await self._follow(made, deployment)
        available = _available(self.sim.of("deployments").get(*key_of(made)))
        problem = f"SchedulerForShard: Deployment [{name}] is not available\nSchedulerForShard: not available"
        await self._report(shard, available, problem, dead=kai.dead_on_arrival)
        if not kai.dead_on_arrival:
            self.queue.add(("Config", CONFIG))

    def _shards_made(self) -> bool:
        """Whether every shard has its scheduler's deployment in its second and last form."""
        if self.sim.faults.on("scheduler_missing"):
            return True
        for shard in self.shards.all():
            made = self.sim.of("deployments").get(self.namespace, f"kai-scheduler-{shard['metadata']['name']}")
            if made is None or not (made["spec"]["template"]["metadata"].get("annotations") or {}):
                return False
        return True

    async def _reconcile_config(self, config: Object) -> None:
        if not (config.get("status") or {}).get("conditions"):
            if not self._shards_made():
                self.queue.add(("Config", CONFIG), after_s=0.005)
                return
            await self.sim.sleep(_CONFIG_OPERANDS_S)
        objects = self._operands(config)
        for obj in [*objects, *await self._missing_webhooks()]:
            made = await self._ensure_owned(obj, config)
            if obj["kind"] == "Deployment":
                await self._follow(made, obj)
        deployments = [obj for obj in objects if obj["kind"] == "Deployment"]
        missing = [d for d in deployments if not _available(self.sim.of("deployments").get(*key_of(d)))]
        scheduler = self.sim.of("deployments").get(self.namespace, SCHEDULER)
        text = "\n".join(f"Deployment [{obj['metadata']['name']}] is not available" for obj in missing)
        await self._report(config, not missing and _available(scheduler), text or "not available")

    def _operands(self, config: Object) -> list[Object]:
        """What the Config asks for, rendered once per content."""
        kai, spec = self.version(), config["spec"]
        content = (kai.version, json.dumps(spec))
        if self._rendered is None or self._rendered[0] != content:
            self._rendered = (content, self._render_operands(kai, spec))
        return self._rendered[1]

    def _render_operands(self, kai: profiles.KaiVersion, spec: Mapping[str, Any]) -> list[Object]:
        faults = self.sim.faults
        hamicore = bool(spec["binder"].get("plugins", {}).get("hamicore", {}).get("enabled"))
        hamicore = hamicore and not faults.on("hamicore_off")
        sharing = bool(spec["admission"].get("gpuSharing")) and not faults.on("sharing_off")
        images = {part: _image(body["service"]["image"]) for part, body in spec.items() if _has_image(body)}
        return charts.render(
            "kai-operands.yaml.j2",
            namespace=self.namespace,
            images=images,
            stopped="binder" if faults.on("binder_down") else "",
            binder_args=binder_args(spec["binder"], hamicore),
            admission_args=admission_args(spec["admission"], sharing, hamicore),
            grouper_args=grouper_args(kai),
        )

    async def _missing_webhooks(self) -> list[Object]:
        """The webhook configurations, unless all are there; with them the certificates they are served with."""
        watched = (self.sim.of(plural) for plural in _WEBHOOKS)
        present = {obj["metadata"]["name"] for informer in watched for obj in informer.all()}
        if present >= _WEBHOOK_NAMES:
            return []
        bundles: dict[str, str] = {}
        for service, name in _SECRETS.items():
            secret = self.sim.of("secrets").get(self.namespace, name)
            if secret is None:
                certificate, key = (
                    base64.b64encode(part).decode() for part in self_signed(f"{service}.{self.namespace}.svc")
                )
                secret = await self.ensure(
                    {
                        "apiVersion": "v1",
                        "kind": "Secret",
                        "type": "kubernetes.io/tls",
                        "metadata": {"name": name, "namespace": self.namespace},
                        "data": {"tls.crt": certificate, "tls.key": key},
                    }
                )
            bundles[service] = secret["data"]["tls.crt"]
        return charts.render("kai-webhooks.yaml.j2", namespace=self.namespace, bundles=bundles)

    async def _ensure_owned(self, obj: Object, owner: Object) -> Object:
        plural = resource_of(obj).plural
        meta = obj["metadata"]
        known = self.sim.of(plural).get(meta.get("namespace", ""), meta["name"]) if plural in _WATCHED else None
        if known is not None:
            return known
        owned = copy.deepcopy(obj)
        owned["metadata"]["ownerReferences"] = [
            {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "controller": True,
            }
        ]
        return await self.ensure(owned)

    async def _follow(self, made: Object, wanted: Object) -> None:
        """Brings scale, image and arguments of a deployment to what the Config says now."""
        have = made["spec"]["template"]["spec"]["containers"][0]
        want = wanted["spec"]["template"]["spec"]["containers"][0]
        change: Object = {}
        if made["spec"].get("replicas") != wanted["spec"]["replicas"]:
            change["replicas"] = wanted["spec"]["replicas"]
        container = {key: want[key] for key in ("image", "args") if have.get(key) != want[key]}
        if container:
            change["template"] = {"spec": {"containers": [{"name": want["name"], **container}]}}
        if change:
            await self.patch(made, {"spec": change}, content_type=STRATEGIC_PATCH)

    async def _report(self, obj: Object, available: bool, problem: str, *, dead: bool = False) -> None:
        generation = obj["metadata"].get("generation", 1)
        rows = [
            ("Reconciling", "True" if dead else "False", "reconciled", "Reconciliation completed successfully"),
            ("Deployed", "True", "deployed", "Resources deployed"),
            ("Available", "True", "available", "System available")
            if available
            else ("Available", "False", "available", problem),
            ("DependenciesFulfilled", "True", "dependencies_fulfilled", "Dependencies are fulfilled"),
        ]
        if available:
            rows.append(("Ready", "True", "ready", "System is ready"))
        known = {entry["type"]: entry for entry in (obj.get("status") or {}).get("conditions") or []}
        conditions: list[Object] = []
        for kind, status, reason, message in rows:
            old = known.get(kind, {})
            same = old.get("status") == status and old.get("message") == message
            time = old["lastTransitionTime"] if same else now()
            conditions.append(
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "observedGeneration": generation,
                    "lastTransitionTime": time,
                }
            )
        if conditions != (obj.get("status") or {}).get("conditions"):
            await self.patch(obj, {"status": {"conditions": conditions}}, subresource="status")


_WEBHOOKS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_WEBHOOK_NAMES = frozenset(
    (
        "mutating-kai-admission",
        "validating-kai-admission",
        "kai-queue-validation-v2",
        "kai-podgroup-validation-v2alpha2",
    )
)
_WATCHED = frozenset(("deployments", "services", "configmaps", "secrets", "serviceaccounts", *_WEBHOOKS))


def _has_image(body: Any) -> bool:
    return isinstance(body, Mapping) and isinstance(body.get("service"), Mapping) and "image" in body["service"]


def _image(spec: Mapping[str, str]) -> str:
    return f"{spec['repository']}/{spec['name']}:{spec['tag']}"


def _available(deployment: Object | None) -> bool:
    conditions = ((deployment or {}).get("status") or {}).get("conditions") or []
    return any(entry["type"] == "Available" and entry["status"] == "True" for entry in conditions)


def binder_args(spec: Mapping[str, Any], hamicore: bool) -> list[str]:
    """Arguments of the binder as the operator derives them from the Config."""
    reservation = spec["resourceReservation"]
    plugins: dict[str, Any] = {
        "dynamicresources": {"enabled": True, "priority": 200, "arguments": {"bindTimeoutSeconds": "120"}},
        "gpusharing": {"enabled": True, "priority": 100, "arguments": {"cdiEnabled": "false"}},
        "hamicore": {"enabled": hamicore, "priority": 50},
        "volumebinding": {"enabled": True, "priority": 300, "arguments": {"bindTimeoutSeconds": "120"}},
    }
    security = {
        "capabilities": {"drop": ["all"]},
        "runAsUser": 10000,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
    }
    args = ["--scheduler-name", "kai-scheduler"]
    for flag, value in (
        ("namespace", reservation["namespace"]),
        ("service-account", reservation["serviceAccountName"]),
        ("app-label", reservation["appLabel"]),
        ("pod-image", _image(reservation["image"])),
    ):
        args += [f"--resource-reservation-{flag}", value]
    args += ["--scale-adjust-namespace", "kai-scale-adjust"]
    args += ["--health-probe-bind-address", ":8081", "--metrics-bind-address", ":8080"]
    args += ["--plugins", json.dumps(plugins, separators=(",", ":")), "--qps", "20", "--burst", "100"]
    if reservation.get("runtimeClassName"):
        args.append(f"--runtime-class-name={reservation['runtimeClassName']}")
    return [*args, "--resource-reservation-container-security-context", json.dumps(security, separators=(",", ":"))]


def admission_args(spec: Mapping[str, Any], sharing: bool, hamicore: bool) -> list[str]:
    """Arguments of admission as the operator derives them from the Config."""
    webhook = spec["webhook"]
    args = ["--scheduler-name", "kai-scheduler", "--webhook-addr", str(webhook["targetPort"])]
    args += ["--health-probe-bind-address", f":{webhook['probePort']}"]
    args += ["--metrics-bind-address", f":{webhook['metricsPort']}"]
    args += ["--gpu-sharing-enabled=true"] if sharing else []
    args += ["--hami-core-enabled=true"] if hamicore else []
    if spec.get("gpuFractionRuntimeClassName"):
        args += ["--gpu-fraction-runtime-class-name", spec["gpuFractionRuntimeClassName"]]
    return args


def grouper_args(kai: profiles.KaiVersion) -> list[str]:
    args = ["--scheduler-name", "kai-scheduler", "--queue-label-key", "kai.scheduler/queue"]
    args += ["--nodepool-label-key", "kai.scheduler/node-pool"]
    return [*args, "--generic-karta-fallback=true"] if kai.second_generation else args
