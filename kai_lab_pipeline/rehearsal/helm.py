"""The rehearsal's helm: installs the charts it knows into a cluster and keeps releases as helm 3 does.

It talks to the API server from outside, as the real helm does, so hooks run as jobs and what an operator makes of a
release appears after the installation has returned. Texts of errors are those of helm 3.22.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from kai_lab_pipeline.lab.errors import is_about_the_request
from kai_lab_pipeline.rehearsal import chart_steps, profiles, releases
from kai_lab_pipeline.rehearsal.client import (
    MERGE_PATCH,
    RESOURCES,
    STRATEGIC_PATCH,
    ApiError,
    Object,
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
    "heal",
    "install_or_upgrade",
    "list_releases",
    "manifest",
    "provide_image",
    "template",
    "uninstall",
]

_KEEP = "helm.sh/resource-policy"
_POLL_S = 0.01
_PATIENCE_S = 60.0
"""Real seconds for what should take a fraction of one, but may take long on a busy machine."""


class HelmError(RuntimeError):
    """What helm would have printed on stderr; `finding` where the chart or one of its objects is the reason."""

    def __init__(self, text: str, *, finding: bool = False) -> None:
        self.finding = finding
        super().__init__(text)


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
        newest = releases.newest(api, namespace, release)
        if newest is None or newest["status"] != "deployed" or newest["config"] != dict(values):
            return None
        name = chart.rstrip("/").rpartition("/")[2]
        return releases.row(newest) if (newest["chart"], newest["chart_version"]) == (name, version) else None


def uninstall(url: str, token: str, *, release: str, namespace: str, time_scale: float = 0.01) -> list[str]:
    """Removes a release; what was kept because of its resource policy, as ``[Kind] name``. Raises HelmError."""
    with SyncApi(url, token) as api:
        newest = releases.newest(api, namespace, release)
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
        releases.forget(api, namespace, release)
        return sorted(kept)


class _Rendering:
    """A run of ``helm template``: a first installation that talks to no cluster."""

    fresh = True

    def __init__(self, release: str, namespace: str) -> None:
        self.release = release
        self.namespace = namespace

    def refusal(self, text: str) -> HelmError:
        return HelmError(f"Error: {text}", finding=True)


def template(*, release: str, namespace: str, chart: str, version: str, values: Mapping[str, Any]) -> list[Object]:
    """What an installation would make, its hooks included, as ``helm template`` prints it; asks no cluster.

    Raises UnknownVersion when there is no such chart, HelmError for values that it refuses.
    """
    known = profiles.chart(chart, version)
    run = _Rendering(release, namespace)
    merged = profiles.merged(known.values, values)
    return [*chart_steps.objects_of(run, known, merged), *chart_steps.applied_by_hooks(run, known, merged)]


def heal(url: str, token: str, *, release: str, namespace: str) -> str:
    """Brings a release that a killed helm left pending into a state that can be upgraded; what was found, or ''.

    As a person does it: a first installation is uninstalled, an upgrade is taken back to the revision before it.
    """
    with SyncApi(url, token) as api:
        newest = releases.newest(api, namespace, release)
        status = "" if newest is None else str(newest["status"])
        if newest is None or status not in (*releases.PENDING, "uninstalling"):
            return ""
        if newest["revision"] > 1 and status in ("pending-upgrade", "pending-rollback"):
            releases.drop(api, newest)
            return status
    uninstall(url, token, release=release, namespace=namespace)
    return status


def list_releases(url: str, token: str) -> list[dict[str, str]]:
    """The rows of ``helm list -A -a -o json``: the newest revision of every release, by name."""
    with SyncApi(url, token) as api:
        return [releases.row(record) for record in releases.all_newest(api)]


def manifest(url: str, token: str, *, release: str, namespace: str) -> list[Object]:
    """The objects of ``helm get manifest``; none where there is no such release."""
    with SyncApi(url, token) as api:
        newest = releases.newest(api, namespace, release)
        return list(newest["objects"]) if newest else []


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
        self.earlier = releases.newest(api, namespace, release)
        self.fresh = self.earlier is None or self.earlier["status"] == "uninstalled"

    @property
    def prefix(self) -> str:
        return "Error: INSTALLATION FAILED: " if self.fresh else "Error: UPGRADE FAILED: "

    def run(self) -> dict[str, str]:
        self._registry_faults()
        chart = profiles.chart(self.reference, self.version)
        self._refuse_when_busy(chart)
        # An upgrade without values keeps those of the release before it.
        given = self.values or (self.earlier["config"] if self.earlier else {})
        values = profiles.merged(chart.values, given)
        objects = chart_steps.objects_of(self, chart, values)
        self._ensure_namespace()
        record = self._record(chart, given, objects)
        releases.store(self.api, record)
        try:
            self._apply(chart, values, record)
        except ApiError as error:
            self._finish(record, "failed", f'Release "{self.release}" failed: {error}')
            raise HelmError(f"{self.prefix}{error}", finding=is_about_the_request(error.code)) from error
        except HelmError as error:
            text = str(error).removeprefix(self.prefix)
            self._finish(record, "failed", f'Release "{self.release}" failed: {text}')
            raise
        self._finish(record, "deployed", "Install complete" if self.fresh else "Upgrade complete")
        return releases.row(record)

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
            raise HelmError(f"{self.prefix}{get}basic credential not found")
        if self.faults.on("registry_rate_limited"):
            text = "response status code 429: toomanyrequests: You have reached your unauthenticated pull rate limit."
            raise HelmError(f"{self.prefix}{get}{text}")

    def _refuse_when_busy(self, chart: Chart) -> None:
        if self._named("helm_pending") and self.earlier is None:
            self._ensure_namespace()
            record = self._record(chart, {}, [])
            record["status"] = "pending-install"
            releases.store(self.api, record)
            self.earlier = record
        if self.earlier is not None and self.earlier["status"] in releases.PENDING:
            raise HelmError("Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress")

    def _ensure_namespace(self) -> None:
        if self.api.get(RESOURCES["namespaces"], None, self.namespace) is None:
            labels = {"name": self.namespace}
            meta = {"name": self.namespace, "labels": labels}
            self.create_if_absent({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})

    def _apply(self, chart: Chart, values: Mapping[str, Any], record: Object) -> None:
        if chart.name == "kai-scheduler":
            chart_steps.install_kai(self, chart, values, record["objects"])
        elif chart.name == "kai-resource-isolator":
            chart_steps.install_isolator(self, record["objects"])
        else:
            self.write_all(record["objects"])
            self._wait_for_daemonset(record["objects"])

    def write_all(self, objects: list[Object]) -> None:
        for obj in objects:
            self._write(obj)
        if self.earlier:
            self._prune(objects)

    def _write(self, obj: Object) -> None:
        resource = resource_of(obj)
        meta = obj["metadata"]
        found = self.api.get(resource, meta.get("namespace"), meta["name"])
        if found is None:
            self.api.send(create_request(obj, releases.MANAGER))
            return
        owner = (found["metadata"].get("annotations") or {}).get("meta.helm.sh/release-name")
        if owner != self.release:
            self._refuse_foreign(obj, found, owner)
        patch = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
        strategic = resource.group in ("", "apps", "admissionregistration.k8s.io") and obj["kind"] != "Namespace"
        kind = STRATEGIC_PATCH if strategic else MERGE_PATCH
        namespace, name = meta.get("namespace"), meta["name"]
        self.api.send(patch_request(resource, namespace, name, patch, releases.MANAGER, content_type=kind))

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
        raise self.refusal(text)

    def _prune(self, objects: list[Object]) -> None:
        """Removes what the release before had and this one has no longer, unless it is to be kept."""
        present = {_identity(obj) for obj in objects}
        for obj in self.earlier["objects"] if self.earlier else []:
            keep = (obj["metadata"].get("annotations") or {}).get(_KEEP) == "keep"
            if _identity(obj) not in present and not keep:
                _delete(self.api, obj)

    def refusal(self, text: str) -> HelmError:
        return HelmError(f"{self.prefix}{text}", finding=True)

    def delete(self, obj: Object) -> None:
        _delete(self.api, obj)

    def create_if_absent(self, obj: Object) -> None:
        try:
            self.api.send(create_request(obj, releases.MANAGER))
        except ApiError as error:
            if not error.conflict:
                raise

    def run_job(self, name: str, container: str, image: str, hook: str, env: list[Object]) -> None:
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
        self.wait(lambda: self.api.get(jobs, self.namespace, name) is None)
        self.api.send(create_request(job, releases.MANAGER))
        if not self.wait(lambda: _job_complete(self.api.get(jobs, self.namespace, name)), lambda: self._hopeless(name)):
            lead = f"failed {hook}:" if self.fresh else f"{hook} hooks failed:"
            raise self.refusal(f"{lead} 1 error occurred:\n\t* timed out waiting for the condition\n\n")
        _delete(self.api, job)

    def _hopeless(self, job: str) -> bool:
        """Whether the pod of a job has failed, so that waiting longer than the deadline would change nothing."""
        for pod in self.api.list(RESOURCES["pods"], self.namespace, labelSelector=f"job-name={job}"):
            for status in (pod.get("status") or {}).get("containerStatuses") or []:
                waiting = (status["state"].get("waiting") or {}).get("reason", "ContainerCreating")
                if status.get("restartCount") or waiting != "ContainerCreating":
                    return True
        return False

    def _wait_for_daemonset(self, objects: list[Object]) -> None:
        """``--wait`` of helm 3: with one node and one pod that may be unavailable, ready means seen."""
        for obj in objects:
            if obj["kind"] == "DaemonSet":
                resource, name = RESOURCES["daemonsets"], obj["metadata"]["name"]

                def seen(resource: Resource = resource, name: str = name) -> bool:
                    found = self.api.get(resource, self.namespace, name) or {}
                    return "observedGeneration" in (found.get("status") or {})

                if not self.wait(seen):
                    raise HelmError(f"{self.prefix}context deadline exceeded")

    def wait(self, condition: Callable[[], bool], hopeless: Callable[[], bool] = lambda: False) -> bool:
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

    def _finish(self, record: Object, status: str, description: str) -> None:
        record |= {"status": status, "description": description}
        releases.update(self.api, record)
        if status == "deployed":
            for old in releases.revisions(self.api, self.namespace, self.release)[:-1]:
                if old["status"] == "deployed":
                    releases.update(self.api, {**old, "status": "superseded"})


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
