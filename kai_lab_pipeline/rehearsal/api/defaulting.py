"""Defaults of built-in kinds, as kube-apiserver v1.34 fills them in, and what its admission adds to pods."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from typing import Any

from kai_lab_pipeline.rehearsal.api.errors import Obj

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def random_suffix(length: int = 5) -> str:
    """Letters and digits of generated names: no vowels, so no words."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _fill(target: Obj, **defaults: Any) -> None:
    for key, value in defaults.items():
        if target.get(key) is None:
            target[key] = value


def _pull_policy(image: str) -> str:
    name = image.rpartition("/")[2]
    untagged = ":" not in name and "@" not in name
    return "Always" if untagged or name.endswith(":latest") else "IfNotPresent"


def _probe(probe: Obj) -> None:
    _fill(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
    if "httpGet" in probe:
        _fill(probe["httpGet"], path="/", scheme="HTTP")


def _container(container: Obj) -> None:
    if container.get("image"):
        _fill(container, imagePullPolicy=_pull_policy(container["image"]))
    _fill(container, resources={}, terminationMessagePath="/dev/termination-log", terminationMessagePolicy="File")
    resources = container["resources"]
    if resources.get("limits"):
        requests = resources.setdefault("requests", {})
        for name, amount in resources["limits"].items():
            requests.setdefault(name, amount)
    for kind in ("limits", "requests"):
        if isinstance(resources.get(kind), dict):
            resources[kind] = {name: str(amount) for name, amount in resources[kind].items()}
    for port in container.get("ports") or ():
        _fill(port, protocol="TCP")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(probe):
            _probe(container[probe])
    for env in container.get("env") or ():
        if "fieldRef" in (env.get("valueFrom") or {}):
            _fill(env["valueFrom"]["fieldRef"], apiVersion="v1")
        if not env.get("value"):
            env.pop("value", None)


def _volume(volume: Obj) -> None:
    if not set(volume) - {"name"}:
        volume["emptyDir"] = {}
    for kind in ("configMap", "secret", "projected", "downwardAPI"):
        if isinstance(volume.get(kind), dict):
            _fill(volume[kind], defaultMode=420)
    if isinstance(volume.get("hostPath"), dict):
        _fill(volume["hostPath"], type="")


def _pod_spec(spec: Obj) -> None:
    _fill(
        spec,
        restartPolicy="Always",
        terminationGracePeriodSeconds=30,
        dnsPolicy="ClusterFirst",
        securityContext={},
        schedulerName="default-scheduler",
    )
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind) or ():
            _container(container)
    for volume in spec.get("volumes") or ():
        _volume(volume)


def _pod(pod: Obj) -> None:
    _pod_spec(pod["spec"])
    _fill(pod["spec"], enableServiceLinks=True)


def _template(obj: Obj) -> Obj:
    spec: Obj = obj.setdefault("spec", {})
    template = spec.get("template")
    if isinstance(template, dict):
        template.setdefault("metadata", {})
        _pod_spec(template.setdefault("spec", {}))
    return spec


def _deployment(obj: Obj) -> None:
    spec = _template(obj)
    _fill(spec, replicas=1, progressDeadlineSeconds=600, revisionHistoryLimit=10, strategy={})
    _fill(spec["strategy"], type="RollingUpdate")
    if spec["strategy"]["type"] == "RollingUpdate":
        _fill(spec["strategy"], rollingUpdate={})
        _fill(spec["strategy"]["rollingUpdate"], maxSurge="25%", maxUnavailable="25%")


def _daemonset(obj: Obj) -> None:
    spec = _template(obj)
    _fill(spec, revisionHistoryLimit=10, updateStrategy={})
    _fill(spec["updateStrategy"], type="RollingUpdate")
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        _fill(spec["updateStrategy"], rollingUpdate={})
        _fill(spec["updateStrategy"]["rollingUpdate"], maxSurge=0, maxUnavailable=1)
    _fill(obj["metadata"].setdefault("annotations", {}), **{"deprecated.daemonset.template.generation": "1"})


def _replicaset(obj: Obj) -> None:
    _fill(_template(obj), replicas=1)


def _statefulset(obj: Obj) -> None:
    _fill(
        _template(obj),
        replicas=1,
        podManagementPolicy="OrderedReady",
        revisionHistoryLimit=10,
        updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
    )


def _job(obj: Obj) -> None:
    spec = _template(obj)
    _fill(
        spec,
        backoffLimit=6,
        completionMode="NonIndexed",
        completions=1,
        parallelism=1,
        suspend=False,
        manualSelector=False,
        podReplacementPolicy="TerminatingOrFailed",
    )
    if not spec.get("manualSelector"):
        labels = {"batch.kubernetes.io/controller-uid": obj["metadata"].get("uid", "")}
        _fill(spec, selector={"matchLabels": dict(labels)})
        template = spec.setdefault("template", {}).setdefault("metadata", {}).setdefault("labels", {})
        named = {"batch.kubernetes.io/job-name": obj["metadata"].get("name", "")}
        for key, value in {**labels, **named}.items():
            template.setdefault(key, value)
            template.setdefault(key.removeprefix("batch.kubernetes.io/"), value)
        if not obj["metadata"].get("labels"):
            obj["metadata"]["labels"] = dict(template)


def _service(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    _fill(spec, type="ClusterIP", sessionAffinity="None", internalTrafficPolicy="Cluster")
    if spec["type"] in ("NodePort", "LoadBalancer"):
        _fill(spec, externalTrafficPolicy="Cluster")
    if spec["type"] == "ExternalName":
        return
    if not spec.get("clusterIP"):
        digest = secrets.randbelow(65_000) + 256
        spec["clusterIP"] = f"10.96.{digest // 256}.{digest % 256}"
    _fill(spec, clusterIPs=[spec["clusterIP"]], ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack")
    for port in spec.get("ports") or ():
        _fill(port, protocol="TCP", targetPort=port.get("port"))
    obj.setdefault("status", {}).setdefault("loadBalancer", {})


def _namespace(obj: Obj) -> None:
    name = obj["metadata"].get("name")
    if name:
        labels = obj["metadata"]["labels"] = dict(obj["metadata"].get("labels") or {})
        labels["kubernetes.io/metadata.name"] = name
    _fill(obj.setdefault("spec", {}), finalizers=["kubernetes"])
    _fill(obj.setdefault("status", {}), phase="Active")


def _secret(obj: Obj) -> None:
    """`stringData` is write-only: it goes into `data` in base64."""
    _fill(obj, type="Opaque")
    plain = obj.pop("stringData", None)
    if plain:
        data = obj["data"] = dict(obj.get("data") or {})
        data.update({key: base64.b64encode(str(value).encode()).decode() for key, value in plain.items()})


def _event(obj: Obj) -> None:
    _fill(obj, type="Normal", source={}, reportingComponent="", reportingInstance="")
    obj.setdefault("eventTime", None)
    for field in ("firstTimestamp", "lastTimestamp"):
        obj.setdefault(field, None)
    if not obj["reportingComponent"]:
        obj["reportingComponent"] = obj["source"].get("component", "")


def _webhooks(obj: Obj) -> None:
    mutating = obj["kind"].startswith("Mutating")
    for webhook in obj.get("webhooks") or ():
        _fill(
            webhook,
            failurePolicy="Fail",
            matchPolicy="Equivalent",
            namespaceSelector={},
            objectSelector={},
            timeoutSeconds=10,
        )
        if mutating:
            _fill(webhook, reinvocationPolicy="Never")
        for rule in webhook.get("rules") or ():
            _fill(rule, scope="*")
        if "service" in (webhook.get("clientConfig") or {}):
            _fill(webhook["clientConfig"]["service"], port=443)


def _crd(obj: Obj) -> None:
    spec = obj["spec"]
    names = spec["names"]
    _fill(names, singular=names["kind"].lower(), listKind=f"{names['kind']}List")
    _fill(spec, conversion={"strategy": "None"})


def _node(obj: Obj) -> None:
    obj.setdefault("spec", {})
    obj.setdefault("status", {})


def _priority_class(obj: Obj) -> None:
    _fill(obj, preemptionPolicy="PreemptLowerPriority")
    if obj.get("globalDefault") is False:
        del obj["globalDefault"]  # left out when false


_FIRST_STATUS: dict[str, Obj] = {
    "deployments.apps": {},
    "jobs.batch": {},
    "replicasets.apps": {"replicas": 0},
    "daemonsets.apps": dict.fromkeys(
        ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady"), 0
    ),
}

_DEFAULTERS: dict[str, Callable[[Obj], None]] = {
    "pods": _pod,
    "deployments.apps": _deployment,
    "daemonsets.apps": _daemonset,
    "replicasets.apps": _replicaset,
    "statefulsets.apps": _statefulset,
    "jobs.batch": _job,
    "services": _service,
    "namespaces": _namespace,
    "secrets": _secret,
    "events": _event,
    "nodes": _node,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": _webhooks,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": _webhooks,
    "customresourcedefinitions.apiextensions.k8s.io": _crd,
    "priorityclasses.scheduling.k8s.io": _priority_class,
}


def apply_defaults(storage: str, obj: Obj) -> None:
    """Fill in the defaults of a built-in kind, in place."""
    defaulter = _DEFAULTERS.get(storage)
    if defaulter is not None:
        defaulter(obj)


def first_status(storage: str, obj: Obj) -> Obj | None:
    """The status that the server gives a new object of a built-in kind; None where it gives none."""
    if storage == "pods":
        return {"phase": "Pending", "qosClass": qos_class(obj["spec"])}
    status = _FIRST_STATUS.get(storage)
    return None if status is None else dict(status)


def admit_pod(pod: Obj, priorities: dict[str, Obj]) -> str | None:
    """What the in-tree admission plugins add to a new pod, in place: service account token, priority, tolerations.

    `priorities` are the PriorityClasses by name. Returns why the pod is refused, or None.
    """
    spec = pod["spec"]
    _fill(spec, serviceAccountName="default", serviceAccount=spec.get("serviceAccountName") or "default")
    _priority(spec, priorities)
    if spec.get("priorityClassName") and spec.get("priority") is None:
        return f"no PriorityClass with name {spec['priorityClassName']} was found"
    tolerations = list(spec.get("tolerations") or ())
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(_tolerates(t, key) for t in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    spec["tolerations"] = tolerations
    if spec.get("automountServiceAccountToken") is not False:
        _mount_token(spec)
    return None


def _tolerates(toleration: Obj, key: str) -> bool:
    return bool(toleration.get("key", key) == key and toleration.get("effect", "NoExecute") == "NoExecute")


def _priority(spec: Obj, priorities: dict[str, Obj]) -> None:
    builtin = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
    name = spec.get("priorityClassName")
    if not name:
        name = next((n for n, pc in sorted(priorities.items()) if pc.get("globalDefault")), None)
        if name is None:
            _fill(spec, priority=0, preemptionPolicy="PreemptLowerPriority")
            return
        spec["priorityClassName"] = name
    known = priorities.get(name)
    if known is not None:
        spec["priority"] = known.get("value", 0)
        _fill(spec, preemptionPolicy=known.get("preemptionPolicy", "PreemptLowerPriority"))
    elif name in builtin:
        spec["priority"] = builtin[name]
        _fill(spec, preemptionPolicy="PreemptLowerPriority")


def _mount_token(spec: Obj) -> None:
    mount_path = "/var/run/secrets/kubernetes.io/serviceaccount"
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    without = [c for c in containers if all(m["mountPath"] != mount_path for m in c.get("volumeMounts") or ())]
    if not without:
        return
    name = f"kube-api-access-{random_suffix()}"
    token: Obj = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    root_ca = {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    field = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}, "path": "namespace"}
    sources = [token, root_ca, {"downwardAPI": {"items": [field]}}]
    volume = {"name": name, "projected": {"sources": sources, "defaultMode": 420}}
    spec["volumes"] = [*(spec.get("volumes") or ()), volume]
    for container in without:
        mount = {"name": name, "readOnly": True, "mountPath": mount_path}
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]


def qos_class(spec: Obj) -> str:
    """Guaranteed, Burstable or BestEffort, from cpu and memory of all containers."""
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    wanted = [(c.get("resources") or {}) for c in containers]

    def only(amounts: Obj | None) -> Obj:
        return {key: value for key, value in (amounts or {}).items() if key in ("cpu", "memory")}

    if not any(only(r.get("requests")) or only(r.get("limits")) for r in wanted):
        return "BestEffort"
    guaranteed = all(
        len(only(r.get("limits"))) == 2 and only(r.get("requests") or r.get("limits")) == only(r.get("limits"))
        for r in wanted
    )
    return "Guaranteed" if guaranteed else "Burstable"
