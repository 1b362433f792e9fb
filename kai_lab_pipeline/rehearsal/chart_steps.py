"""What single charts need beyond the writing of their objects: checks of values, jobs, certificates."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kai_lab_pipeline.rehearsal import charts, profiles
from kai_lab_pipeline.rehearsal.client import (
    APPLY_PATCH,
    JSON_PATCH,
    RESOURCES,
    ApiError,
    Object,
    Request,
    Resource,
    SyncApi,
    patch_request,
    resource_of,
)
from kai_lab_pipeline.rehearsal.components.certificates import self_signed
from kai_lab_pipeline.rehearsal.profiles import Chart

_KAI_RESOURCES = tuple(r for r in RESOURCES.values() if r.group in ("kai.scheduler", "scheduling.run.ai"))


class Rendering(Protocol):
    """What the writing of a chart's objects needs to know of a run of helm."""

    release: str
    namespace: str
    fresh: bool

    def refusal(self, text: str) -> Exception: ...


class Run(Rendering, Protocol):
    """One run of helm on a cluster, as a chart's own steps use it."""

    api: SyncApi

    def write_all(self, objects: list[Object]) -> None: ...

    def create_if_absent(self, obj: Object) -> None: ...

    def delete(self, obj: Object) -> None: ...

    def run_job(self, name: str, container: str, image: str, hook: str, env: list[Object]) -> None: ...

    def wait(self, condition: Callable[[], bool]) -> bool: ...


def objects_of(run: Rendering, chart: Chart, values: Mapping[str, Any]) -> list[Object]:
    """The objects of a release with helm's marks of ownership. Raises HelmError for values that the chart refuses."""
    context: dict[str, Any] = {
        "release": run.release,
        "namespace": run.namespace,
        "chart": chart.full_name,
        "app_version": chart.app_version,
        "values": values,
        "is_install": run.fresh,
    }
    if chart.name == "nvml-mock":
        context |= _mock_context(run, chart, values)
    elif chart.name == "kai-scheduler":
        context |= {"kai": profiles.KAI[chart.version], "components": ("kai-operator", "binder", "admission")}
    objects = charts.render(chart.template, **context)
    for obj in objects:
        meta = obj["metadata"]
        marks = {"meta.helm.sh/release-name": run.release, "meta.helm.sh/release-namespace": run.namespace}
        meta["annotations"] = {**(meta.get("annotations") or {}), **marks}
        meta["labels"] = {**(meta.get("labels") or {}), "app.kubernetes.io/managed-by": "Helm"}
    return objects


def applied_by_hooks(run: Rendering, chart: Chart, values: Mapping[str, Any]) -> list[Object]:
    """What a release's hooks apply beside its objects: KAI's Config."""
    return [_config(run, profiles.KAI[chart.version], values)] if chart.name == "kai-scheduler" else []


def _mock_context(run: Rendering, chart: Chart, values: Mapping[str, Any]) -> dict[str, Any]:
    """What the mock's templates need. Raises HelmError for values that its schema or templates refuse."""
    mock = profiles.MOCK[chart.version]
    profile, count = values["gpu"].get("profile"), values["gpu"].get("count")
    if count != "" and not isinstance(count, int):
        raise run.refusal(
            "values don't meet the specifications of the schema(s) in the following chart(s):\n"
            "nvml-mock:\n- at '/gpu/count': 'oneOf' failed, none matched\n"
            "  - at '/gpu/count': got string, want integer\n  - at '/gpu/count': value must be ''\n"
        )
    if profile not in profiles.MOCK_PROFILES:
        raise run.refusal(
            f"execution error at (nvml-mock/templates/service-ibping.yaml:3:11): Unknown GPU profile "
            f'"{profile}": profiles/{profile}.yaml not found in chart. Available profiles: '
            f"{', '.join(profiles.MOCK_PROFILES)}. Or set gpu.customConfig with inline YAML."
        )
    number = count if isinstance(count, int) else mock.counts.get(profile, 8)
    checksum = hashlib.sha256(f"{chart.full_name} {profile} {number}".encode()).hexdigest()
    return {"mock": mock, "gpu_count": number, "checksum": checksum}


def install_kai(run: Run, chart: Chart, values: Mapping[str, Any], objects: list[Object]) -> None:
    """KAI: CRDs, jobs before, the objects, and the job that writes the Config."""
    kai = profiles.KAI[chart.version]
    when = "install" if run.fresh else "upgrade"
    hooks = (f"pre-{when}", f"post-{when}")
    _run_hook(run, values, "crd-upgrader", "upgrader", hooks[0])
    for crd in charts.kai_crds():
        run.api.send(
            patch_request(
                resource_of(crd),
                None,
                crd["metadata"]["name"],
                crd,
                "crd-upgrader",
                content_type=APPLY_PATCH,
                force=True,
            )
        )
    run.wait(lambda: all(_served(run, resource) for resource in _KAI_RESOURCES))
    if not kai.dead_on_arrival:
        _run_hook(run, values, "topology-migration", "migration", hooks[0])
    config = _config(run, kai, values)
    if not kai.config_hook:
        config["metadata"]["annotations"] = {"helm.sh/hook": "pre-install,pre-upgrade", "helm.sh/hook-weight": "3"}
        run.delete(config)
        run.create_if_absent(config)
    run.write_all(objects)
    if kai.config_hook:
        _run_hook(run, values, "kai-config-deployer", "deployer", hooks[1], json.dumps(config))


def _config(run: Rendering, kai: profiles.KaiVersion, values: Mapping[str, Any]) -> Object:
    sharing, hamicore = profiles.sharing(kai, values)
    context = {"kai": kai, "values": values, "sharing": sharing, "hamicore": hamicore, "namespace": run.namespace}
    return charts.render("kai-config.yaml.j2", **context)[0]


def _served(run: Run, resource: Resource) -> bool:
    try:
        run.api.send(Request("GET", resource.path(), {"limit": "1"}))
    except ApiError as error:
        if error.not_found:
            return False
        raise
    return True


def _run_hook(run: Run, values: Mapping[str, Any], name: str, container: str, hook: str, config: str = "") -> None:
    image = f"{values['global']['registry']}/crd-upgrader:{values['global']['tag']}"
    env = [{"name": "KAI_CONFIG", "value": config}] if config else []
    run.run_job(name, container, image, hook, env)


def install_isolator(run: Run, objects: list[Object]) -> None:
    """The isolator: a certificate before, the objects, and the certificate in the webhook after."""
    image, account = "docker.io/liangjw/kube-webhook-certgen:v1.1.1", f"{run.release}-admission"
    when = "install" if run.fresh else "upgrade"
    run.run_job(f"{account}-create", "create", image, f"pre-{when}", [])
    certificate, key = _certificate(f"{run.release}-webhook.{run.namespace}.svc")
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": f"{run.release}-webhook-tls", "namespace": run.namespace},
        "data": {"tls.crt": certificate, "tls.key": key, "ca.crt": certificate},
    }
    run.create_if_absent(secret)
    stored = run.api.get(RESOURCES["secrets"], run.namespace, secret["metadata"]["name"])  # type: ignore[index]
    run.write_all(objects)
    run.run_job(f"{account}-patch", "patch", image, f"post-{when}", [])
    bundle = (stored or secret)["data"]["ca.crt"]  # type: ignore[index]
    patch = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
    configuration = RESOURCES["mutatingwebhookconfigurations"]
    run.api.send(
        patch_request(
            configuration,
            None,
            "kai-resource-isolator-mutating",
            patch,
            "kube-webhook-certgen",
            content_type=JSON_PATCH,
        )
    )


def _certificate(host: str) -> tuple[str, str]:
    certificate, key = self_signed(host)
    return base64.b64encode(certificate).decode(), base64.b64encode(key).decode()
