"""The rehearsal's helm: installs the charts it knows into a cluster and keeps releases as helm 3 does.

It talks to the API server from outside, as the real helm does, so hooks run as jobs and what an operator makes of a
release appears after the installation has returned. Texts of errors are those of helm 3.22.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from kai_lab_pipeline.rehearsal import charts, profiles
from kai_lab_pipeline.rehearsal.client import (
    APPLY_PATCH,
    MERGE_PATCH,
    RESOURCES,
    STRATEGIC_PATCH,
    ApiError,
    Object,
    Request,
    Resource,
    SyncApi,
    create_request,
    delete_request,
    patch_request,
    resource_of,
)
from kai_lab_pipeline.rehearsal.components.faults import Faults
from kai_lab_pipeline.rehearsal.profiles import Chart, UnknownVersion

__all__ = [
    "HelmError",
    "UnknownVersion",
    "deployed",
    "install_or_upgrade",
    "list_releases",
    "provide_image",
    "uninstall",
]

_MANAGER = "helm"
_KEEP = "helm.sh/resource-policy"
_POLL_S = 0.01
_PATIENCE_S = 60.0
"""Real seconds for what should take a fraction of one, but may take long on a busy machine."""
_PENDING = ("pending-install", "pending-upgrade", "pending-rollback")


class HelmError(RuntimeError):
    """What helm would have printed on stderr."""


def install_or_upgrade(
    url: str,
    token: str,
    *,
    release: str,
    namespace: str,
    chart: str,
    version: str,
    values: Mapping[str, Any],
    time_scale: float,
    wait_s: float = 300.0,
) -> dict[str, str]:
    """Installs or upgrades a release as ``helm upgrade --install --create-namespace`` does; its row of helm list.

    `values` are dotted keys as of ``--set``; `wait_s` are seconds of a real cluster. Returns before the operands
    exist, as helm does. Raises UnknownVersion when there is no such chart, HelmError in helm's words otherwise.
    """
    with SyncApi(url, token) as api:
        return _Installation(api, release, namespace, chart, version, values, time_scale, wait_s).run()


def deployed(
    url: str, token: str, *, release: str, namespace: str, chart: str, version: str, values: Mapping[str, Any]
) -> dict[str, str] | None:
    """The row of helm list when the release is deployed with this very chart, version and values; else None."""
    with SyncApi(url, token) as api:
        newest = _newest(api, namespace, release)
        if newest is None or newest["status"] != "deployed" or newest["config"] != dict(values):
            return None
        name = chart.rstrip("/").rpartition("/")[2]
        return _row(newest) if (newest["chart"], newest["chart_version"]) == (name, version) else None


def uninstall(url: str, token: str, *, release: str, namespace: str, time_scale: float = 0.01) -> list[str]:
    """Removes a release; what was kept because of its resource policy, as ``[Kind] name``. Raises HelmError."""
    with SyncApi(url, token) as api:
        newest = _newest(api, namespace, release)
        if newest is None:
            raise HelmError(f"Error: uninstall: Release not loaded: {release}: release: not found")
        kept: list[str] = []
        for obj in reversed(newest["objects"]):
            if (obj["metadata"].get("annotations") or {}).get(_KEEP) == "keep":
                kept.append(f"[{obj['kind']}] {obj['metadata']['name']}")
                continue
            _delete(api, obj)
        if newest["chart"] == "kai-scheduler":
            _remove_operands(api, namespace)
        for secret in _secrets(api, namespace, release):
            api.send(delete_request(RESOURCES["secrets"], namespace, secret["metadata"]["name"]))
        return sorted(kept)


def list_releases(url: str, token: str) -> list[dict[str, str]]:
    """The rows of ``helm list -A -a -o json``: the newest revision of every release, by name."""
    with SyncApi(url, token) as api:
        newest: dict[tuple[str, str], Object] = {}
        for secret in api.list(RESOURCES["secrets"], labelSelector="owner=helm"):
            record = _decode(secret)
            key = (record["namespace"], record["name"])
            if key not in newest or record["revision"] > newest[key]["revision"]:
                newest[key] = record
        return [_row(record) for _, record in sorted(newest.items(), key=lambda item: (item[1]["name"], item[0]))]


def provide_image(url: str, token: str, node: str, image: str) -> bool:
    """Puts an image on a node, as loading one into kind does; False when it was there already."""
    from kai_lab_pipeline.rehearsal.components.node import canonical_image

    with SyncApi(url, token) as api:
        found = api.get(RESOURCES["nodes"], None, node)
        if found is None:
            raise HelmError(f'Error: no node "{node}" to load the image "{image}" into')
        images = list(found.get("status", {}).get("images") or [])
        name = canonical_image(image)
        if any(name in (entry.get("names") or []) for entry in images):
            return False
        patch = {"status": {"images": profiles.with_image(images, name)}}
        api.send(
            patch_request(
                RESOURCES["nodes"],
                None,
                node,
                patch,
                "containerd",
                content_type=STRATEGIC_PATCH,
                subresource="status",
            )
        )
        return True


class _Installation:
    """One run of ``helm upgrade --install``."""

    def __init__(
        self,
        api: SyncApi,
        release: str,
        namespace: str,
        chart: str,
        version: str,
        values: Mapping[str, Any],
        time_scale: float,
        wait_s: float,
    ) -> None:
        self.api = api
        self.release = release
        self.namespace = namespace
        self.reference = chart
        self.version = version
        self.values = values
        self.time_scale = time_scale
        self.wait_s = wait_s
        self.faults = _cluster_faults(api)
        self.earlier = _newest(api, namespace, release)
        self.fresh = self.earlier is None or self.earlier["status"] == "uninstalled"

    @property
    def _prefix(self) -> str:
        return "Error: INSTALLATION FAILED: " if self.fresh else "Error: UPGRADE FAILED: "

    def run(self) -> dict[str, str]:
        self._registry_faults()
        chart = profiles.chart(self.reference, self.version)
        self._refuse_when_busy(chart)
        # An upgrade without values keeps those of the release before it.
        given = self.values or (self.earlier["config"] if self.earlier else {})
        values = profiles.merged(chart.values, given)
        objects = self._render(chart, values)
        self._ensure_namespace()
        record = self._record(chart, given, objects)
        if self.earlier and self.earlier["status"] == "failed" and self._never_deployed():
            # helm upgrades a failed first installation in place: the next revision counts as an upgrade.
            self.fresh = False
        self._store(record)
        try:
            self._apply(chart, values, record)
        except ApiError as error:
            self._finish(record, "failed", f'Release "{self.release}" failed: {error}')
            raise HelmError(f"{self._prefix}{error}") from error
        except HelmError as error:
            text = str(error).removeprefix(self._prefix)
            self._finish(record, "failed", f'Release "{self.release}" failed: {text}')
            raise
        self._finish(record, "deployed", "Install complete" if self.fresh else "Upgrade complete")
        return _row(record)

    def _never_deployed(self) -> bool:
        records = (_decode(secret) for secret in _secrets(self.api, self.namespace, self.release))
        return all(record["status"] not in ("deployed", "superseded") for record in records)

    def _named(self, fault: str, default: str = "") -> bool:
        chosen = self.faults.on(fault) and self.faults.text(fault, default)
        return chosen is not False and chosen in ("", self.release)

    def _registry_faults(self) -> None:
        source = self.reference.removeprefix("oci://")
        host, _, path = source.partition("/")
        get = f'failed to perform "FetchReference" on source: GET "https://{host}/v2/{path}/manifests/{self.version}": '
        if self._named("chart_not_found"):
            raise UnknownVersion(self.reference, self.version)
        if self.faults.on("registry_unauthorized"):
            raise HelmError(f"{self._prefix}{get}basic credential not found")
        if self.faults.on("registry_rate_limited"):
            text = "response status code 429: toomanyrequests: You have reached your unauthenticated pull rate limit."
            raise HelmError(f"{self._prefix}{get}{text}")

    def _refuse_when_busy(self, chart: Chart) -> None:
        if self._named("helm_pending") and self.earlier is None:
            self._ensure_namespace()
            record = self._record(chart, {}, [])
            record["status"] = "pending-install"
            self._store(record)
            self.earlier = record
        if self.earlier is not None and self.earlier["status"] in _PENDING:
            raise HelmError("Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress")

    def _render(self, chart: Chart, values: Mapping[str, Any]) -> list[Object]:
        context: dict[str, Any] = {
            "release": self.release,
            "namespace": self.namespace,
            "chart": chart.full_name,
            "app_version": chart.app_version,
            "values": values,
            "is_install": self.fresh,
        }
        if chart.name == "nvml-mock":
            context |= self._mock_context(chart, values)
        elif chart.name == "kai-scheduler":
            context |= {"kai": profiles.KAI[chart.version], "components": ("kai-operator", "binder", "admission")}
        objects = charts.render(chart.template, **context)
        for obj in objects:
            self._own(obj)
        return objects

    def _mock_context(self, chart: Chart, values: Mapping[str, Any]) -> dict[str, Any]:
        mock = profiles.MOCK[chart.version]
        profile, count = values["gpu"].get("profile"), values["gpu"].get("count")
        if count != "" and not isinstance(count, int):
            raise HelmError(
                f"{self._prefix}values don't meet the specifications of the schema(s) in the following chart(s):\n"
                "nvml-mock:\n- at '/gpu/count': 'oneOf' failed, none matched\n"
                "  - at '/gpu/count': got string, want integer\n  - at '/gpu/count': value must be ''\n"
            )
        if profile not in profiles.MOCK_PROFILES:
            raise HelmError(
                f"{self._prefix}execution error at (nvml-mock/templates/service-ibping.yaml:3:11): Unknown GPU profile "
                f'"{profile}": profiles/{profile}.yaml not found in chart. Available profiles: '
                f"{', '.join(profiles.MOCK_PROFILES)}. Or set gpu.customConfig with inline YAML."
            )
        number = count if isinstance(count, int) else mock.counts.get(profile, 8)
        checksum = hashlib.sha256(f"{chart.full_name} {profile} {number}".encode()).hexdigest()
        return {"mock": mock, "gpu_count": number, "checksum": checksum}

    def _own(self, obj: Object) -> None:
        """helm's marks of ownership."""
        meta = obj["metadata"]
        annotations = {
            "meta.helm.sh/release-name": self.release,
            "meta.helm.sh/release-namespace": self.namespace,
        }
        meta["annotations"] = {**(meta.get("annotations") or {}), **annotations}
        meta["labels"] = {**(meta.get("labels") or {}), "app.kubernetes.io/managed-by": "Helm"}

    def _ensure_namespace(self) -> None:
        if self.api.get(RESOURCES["namespaces"], None, self.namespace) is None:
            labels = {"name": self.namespace}
            meta = {"name": self.namespace, "labels": labels}
            self._create_if_absent({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})

    def _apply(self, chart: Chart, values: Mapping[str, Any], record: Object) -> None:
        if chart.name == "kai-scheduler":
            self._install_kai(chart, values, record["objects"])
        elif chart.name == "kai-resource-isolator":
            self._install_isolator(record["objects"])
        else:
            self._write_all(record["objects"])
            self._wait_for_daemonset(record["objects"])

    def _write_all(self, objects: list[Object]) -> None:
        for obj in objects:
            self._write(obj)
        if self.earlier:
            self._prune(objects)

    def _write(self, obj: Object) -> None:
        resource = resource_of(obj)
        meta = obj["metadata"]
        found = self.api.get(resource, meta.get("namespace"), meta["name"])
        if found is None:
            self.api.send(create_request(obj, _MANAGER))
            return
        owner = (found["metadata"].get("annotations") or {}).get("meta.helm.sh/release-name")
        if owner != self.release:
            self._refuse_foreign(obj, found, owner)
        patch = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
        strategic = resource.group in ("", "apps", "admissionregistration.k8s.io") and obj["kind"] != "Namespace"
        kind = STRATEGIC_PATCH if strategic else MERGE_PATCH
        namespace, name = meta.get("namespace"), meta["name"]
        self.api.send(patch_request(resource, namespace, name, patch, _MANAGER, content_type=kind))

    def _refuse_foreign(self, obj: Object, found: Object, owner: str | None) -> None:
        name, kind = obj["metadata"]["name"], obj["kind"]
        where = obj["metadata"].get("namespace", "")
        text = f'Unable to continue with install: {kind} "{name}" in namespace "{where}" exists and cannot be imported '
        text += "into the current release: invalid ownership metadata; "
        if owner is None:
            text += (
                'label validation error: missing key "app.kubernetes.io/managed-by": must be set to "Helm"; '
                'annotation validation error: missing key "meta.helm.sh/release-name": must be set to '
                f'"{self.release}"; annotation validation error: missing key "meta.helm.sh/release-namespace": '
                f'must be set to "{self.namespace}"'
            )
        else:
            text += (
                f'annotation validation error: key "meta.helm.sh/release-name" must equal "{self.release}": '
                f'current value is "{owner}"'
            )
        raise HelmError(f"{self._prefix}{text}")

    def _prune(self, objects: list[Object]) -> None:
        """Removes what the release before had and this one has no longer, unless it is to be kept."""
        present = {_identity(obj) for obj in objects}
        for obj in self.earlier["objects"] if self.earlier else []:
            keep = (obj["metadata"].get("annotations") or {}).get(_KEEP) == "keep"
            if _identity(obj) not in present and not keep:
                _delete(self.api, obj)

    def _create_if_absent(self, obj: Object) -> None:
        try:
            self.api.send(create_request(obj, _MANAGER))
        except ApiError as error:
            if not error.conflict:
                raise

    def _install_kai(self, chart: Chart, values: Mapping[str, Any], objects: list[Object]) -> None:
        kai = profiles.KAI[chart.version]
        when = "install" if self.fresh else "upgrade"
        hooks = (f"pre-{when}", f"post-{when}")
        self._run_hook(values, "crd-upgrader", "upgrader", hooks[0])
        for crd in charts.kai_crds():
            self.api.send(
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
        self._wait_for_crds()
        if not kai.dead_on_arrival:
            self._run_hook(values, "topology-migration", "migration", hooks[0])
        config = self._config(kai, values)
        if not kai.config_hook:
            config["metadata"]["annotations"] = {"helm.sh/hook": "pre-install,pre-upgrade", "helm.sh/hook-weight": "3"}
            self._replace(config)
        self._write_all(objects)
        if kai.config_hook:
            self._run_hook(values, "kai-config-deployer", "deployer", hooks[1], json.dumps(config))

    def _config(self, kai: profiles.KaiVersion, values: Mapping[str, Any]) -> Object:
        sharing, hamicore = profiles.sharing(kai, values)
        context = {"kai": kai, "values": values, "sharing": sharing, "hamicore": hamicore, "namespace": self.namespace}
        return charts.render("kai-config.yaml.j2", **context)[0]

    def _replace(self, obj: Object) -> None:
        _delete(self.api, obj)
        self._create_if_absent(obj)

    def _wait_for_crds(self) -> None:
        """Until every kind of KAI's is served."""
        resources = [resource for resource in RESOURCES.values() if resource.group.endswith((".scheduler", "run.ai"))]
        self._wait(lambda: all(self._served(resource) for resource in resources))

    def _served(self, resource: Resource) -> bool:
        try:
            self.api.send(Request("GET", resource.path(), {"limit": "1"}))
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return True

    def _run_hook(self, values: Mapping[str, Any], name: str, container: str, hook: str, config: str = "") -> None:
        image = f"{values['global']['registry']}/crd-upgrader:{values['global']['tag']}"
        env = [{"name": "KAI_CONFIG", "value": config}] if config else []
        self._run_job(name, container, image, hook, env)

    def _run_job(self, name: str, container: str, image: str, hook: str, env: list[Object]) -> None:
        """Runs a hook's job to its end and removes it, as its delete policy says. Raises HelmError when it fails."""
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "annotations": {
                    "helm.sh/hook": hook,
                    "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
                },
            },
            "spec": {
                "backoffLimit": 6,
                "template": {
                    "spec": {
                        "restartPolicy": "OnFailure",
                        "containers": [
                            {"name": container, "image": image, "imagePullPolicy": "IfNotPresent", "env": env}
                        ],
                    }
                },
            },
        }
        jobs = RESOURCES["jobs"]
        _delete(self.api, job)
        self._wait(lambda: self.api.get(jobs, self.namespace, name) is None)
        self.api.send(create_request(job, _MANAGER))
        if not self._wait(
            lambda: _job_complete(self.api.get(jobs, self.namespace, name)), lambda: self._hopeless(name)
        ):
            lead = f"failed {hook}:" if self.fresh else f"{hook} hooks failed:"
            raise HelmError(f"{self._prefix}{lead} 1 error occurred:\n\t* timed out waiting for the condition\n\n")
        _delete(self.api, job)

    def _hopeless(self, job: str) -> bool:
        """Whether the pod of a job has failed, so that waiting longer than the deadline would change nothing."""
        for pod in self.api.list(RESOURCES["pods"], self.namespace, labelSelector=f"job-name={job}"):
            for status in (pod.get("status") or {}).get("containerStatuses") or []:
                waiting = (status["state"].get("waiting") or {}).get("reason", "ContainerCreating")
                if status.get("restartCount") or waiting != "ContainerCreating":
                    return True
        return False

    def _install_isolator(self, objects: list[Object]) -> None:
        image, account = "docker.io/liangjw/kube-webhook-certgen:v1.1.1", f"{self.release}-admission"
        when = "install" if self.fresh else "upgrade"
        self._run_job(f"{account}-create", "create", image, f"pre-{when}", [])
        certificate, key = _certificate(f"{self.release}-webhook.{self.namespace}.svc")
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {"name": f"{self.release}-webhook-tls", "namespace": self.namespace},
            "data": {"tls.crt": certificate, "tls.key": key, "ca.crt": certificate},
        }
        self._create_if_absent(secret)
        stored = self.api.get(RESOURCES["secrets"], self.namespace, secret["metadata"]["name"])  # type: ignore[index]
        self._write_all(objects)
        self._run_job(f"{account}-patch", "patch", image, f"post-{when}", [])
        bundle = (stored or secret)["data"]["ca.crt"]  # type: ignore[index]
        patch = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
        configuration = RESOURCES["mutatingwebhookconfigurations"]
        self.api.send(
            patch_request(
                configuration,
                None,
                "kai-resource-isolator-mutating",
                patch,
                "kube-webhook-certgen",
                content_type="application/json-patch+json",
            )
        )

    def _wait_for_daemonset(self, objects: list[Object]) -> None:
        """``--wait`` of helm 3: with one node and one pod that may be unavailable, ready means seen."""
        for obj in objects:
            if obj["kind"] == "DaemonSet":
                resource, name = RESOURCES["daemonsets"], obj["metadata"]["name"]

                def seen(resource: Resource = resource, name: str = name) -> bool:
                    found = self.api.get(resource, self.namespace, name) or {}
                    return "observedGeneration" in (found.get("status") or {})

                if not self._wait(seen):
                    raise HelmError(f"{self._prefix}context deadline exceeded")

    def _wait(self, condition: Callable[[], bool], hopeless: Callable[[], bool] = lambda: False) -> bool:
        """Asks until it holds. Gives up at the deadline when it is hopeless by then, else a patience later.

        The deadline is in scaled time; a busy machine is not scaled, so what still moves gets real time.
        """
        start = time.monotonic()
        deadline, end = start + self.wait_s * self.time_scale, start + max(self.wait_s * self.time_scale, _PATIENCE_S)
        while not condition():
            now = time.monotonic()
            if now > end or (now > deadline and hopeless()):
                return False
            time.sleep(_POLL_S)
        return True

    def _record(self, chart: Chart, given: Mapping[str, Any], objects: list[Object]) -> Object:
        stamp = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S}.{time.time_ns() % 10**9:09d} +0000 UTC"
        return {
            "name": self.release,
            "namespace": self.namespace,
            "revision": self.earlier["revision"] + 1 if self.earlier else 1,
            "updated": stamp,
            "status": "pending-install" if self.fresh else "pending-upgrade",
            "chart": chart.name,
            "chart_version": chart.version,
            "app_version": chart.app_version,
            "config": dict(given),
            "objects": objects,
            "description": "Initial install underway" if self.fresh else "Preparing upgrade",
        }

    def _store(self, record: Object) -> None:
        name = f"sh.helm.release.v1.{record['name']}.v{record['revision']}"
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "helm.sh/release.v1",
            "metadata": {"name": name, "namespace": self.namespace, "labels": _labels(record)},
            "data": {"release": _encode(record)},
        }
        self.api.send(create_request(secret, _MANAGER))

    def _finish(self, record: Object, status: str, description: str) -> None:
        record |= {"status": status, "description": description}
        self._restore(record)
        if status == "deployed":
            for secret in _secrets(self.api, self.namespace, self.release):
                old = _decode(secret)
                if old["revision"] < record["revision"] and old["status"] == "deployed":
                    self._restore({**old, "status": "superseded"})

    def _restore(self, record: Object) -> None:
        name = f"sh.helm.release.v1.{record['name']}.v{record['revision']}"
        patch = {"metadata": {"labels": _labels(record)}, "data": {"release": _encode(record)}}
        self.api.send(patch_request(RESOURCES["secrets"], self.namespace, name, patch, _MANAGER))


def _cluster_faults(api: SyncApi) -> Faults:
    """The faults that the simulated cluster was started with: it writes them on its node."""
    from kai_lab_pipeline.rehearsal.components.node import FAULTS_ANNOTATION

    for node in api.list(RESOURCES["nodes"]):
        text = (node["metadata"].get("annotations") or {}).get(FAULTS_ANNOTATION)
        if text:
            return Faults.parse(json.loads(text))
    return Faults()


def _identity(obj: Mapping[str, Any]) -> tuple[str, str, str]:
    return obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _delete(api: SyncApi, obj: Mapping[str, Any]) -> None:
    meta = obj["metadata"]
    try:
        api.send(delete_request(resource_of(obj), meta.get("namespace"), meta["name"]))
    except ApiError as error:
        if not error.not_found:
            raise


def _remove_operands(api: SyncApi, namespace: str) -> None:
    """KAI's post-delete hook: the Config, and with it everything that it owns."""
    config = {"apiVersion": "kai.scheduler/v1", "kind": "Config", "metadata": {"name": "kai-config"}}
    _delete(api, config)
    for plural in ("deployments", "services", "configmaps"):
        for obj in api.list(RESOURCES[plural], namespace, labelSelector="app.kubernetes.io/managed-by=kai-operator"):
            obj.setdefault("apiVersion", RESOURCES[plural].api_version)
            obj.setdefault("kind", RESOURCES[plural].kind)
            _delete(api, obj)


def _job_complete(job: Object | None) -> bool:
    conditions = (job or {}).get("status", {}).get("conditions") or []
    return any(entry["type"] == "Complete" and entry["status"] == "True" for entry in conditions)


def _secrets(api: SyncApi, namespace: str, release: str) -> list[Object]:
    return api.list(RESOURCES["secrets"], namespace, labelSelector=f"owner=helm,name={release}")


def _newest(api: SyncApi, namespace: str, release: str) -> Object | None:
    records = [_decode(secret) for secret in _secrets(api, namespace, release)]
    return max(records, key=lambda record: int(record["revision"]), default=None)


def _labels(record: Mapping[str, Any]) -> dict[str, str]:
    return {
        "name": record["name"],
        "owner": "helm",
        "status": record["status"],
        "version": str(record["revision"]),
        "modifiedAt": str(int(time.time())),
    }


def _encode(record: Mapping[str, Any]) -> str:
    packed = base64.b64encode(gzip.compress(json.dumps(record).encode(), mtime=0))
    return base64.b64encode(packed).decode()


def _decode(secret: Mapping[str, Any]) -> Object:
    packed = base64.b64decode(base64.b64decode(secret["data"]["release"]))
    record: Object = json.loads(gzip.decompress(packed))
    return record


def _row(record: Mapping[str, Any]) -> dict[str, str]:
    return {
        "name": record["name"],
        "namespace": record["namespace"],
        "revision": str(record["revision"]),
        "updated": record["updated"],
        "status": record["status"],
        "chart": f"{record['chart']}-{record['chart_version']}",
        "app_version": record["app_version"],
    }


def _certificate(host: str) -> tuple[str, str]:
    from kai_lab_pipeline.rehearsal.components.certificates import self_signed

    certificate, key = self_signed(host)
    return base64.b64encode(certificate).decode(), base64.b64encode(key).decode()
