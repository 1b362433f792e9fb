"""The charts of the rehearsal's registry, as data: small charts of our own that differ as the real versions do.

They model what a version asks of the lab (value keys, CRD versions, images, container arguments), so that discovery
and the comparison of charts have something true to find. What a version does in a cluster is the simulated
components' matter.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

KAI_REPOSITORY = "kai-scheduler/kai-scheduler/kai-scheduler"
NVML_MOCK_REPOSITORY = "nvidia/k8s-test-infra/chart/nvml-mock"
ISOLATOR_REPOSITORY = "projecthami/kai-resource-isolator"


@dataclass(frozen=True)
class ChartSource:
    """One chart version before it is packed."""

    name: str
    version: str
    app_version: str
    values: Mapping[str, Any]
    templates: Mapping[str, str]
    """File name below templates/ -> text."""
    crds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """CRD name -> its versions, the last one stored."""

    def metadata(self) -> dict[str, Any]:
        """Chart.yaml."""
        return {
            "apiVersion": "v2",
            "name": self.name,
            "version": self.version,
            "appVersion": self.app_version,
            "description": f"Rehearsal of {self.name}: models what the lab depends on, runs nothing real",
            "type": "application",
        }

    def archive(self) -> bytes:
        """The chart as helm packs it; the same bytes every time, so that its digest means something."""
        files = {"Chart.yaml": _yaml(self.metadata()), "values.yaml": _yaml(self.values)}
        files |= {f"templates/{name}": text for name, text in self.templates.items()}
        files |= {f"crds/{name}.yaml": _yaml(_crd(name, versions)) for name, versions in self.crds.items()}
        packed = io.BytesIO()
        with (
            gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressed,
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
        ):
            for path, text in files.items():
                member = tarfile.TarInfo(f"{self.name}/{path}")
                content = text.encode()
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return packed.getvalue()


def _yaml(value: Any) -> str:
    return str(yaml.safe_dump(value, sort_keys=False))


def _crd(name: str, versions: tuple[str, ...]) -> dict[str, Any]:
    plural, _, group = name.partition(".")
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": group,
            "names": {"kind": _KINDS[plural], "plural": plural},
            "scope": "Cluster" if plural in ("queues", "configs", "schedulingshards") else "Namespaced",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == versions[-1],
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
                for version in versions
            ],
        },
    }


_KINDS = {
    "queues": "Queue",
    "podgroups": "PodGroup",
    "bindrequests": "BindRequest",
    "configs": "Config",
    "schedulingshards": "SchedulingShard",
}
_KAI_CRDS: dict[str, tuple[str, ...]] = {
    "queues.scheduling.run.ai": ("v2",),
    "podgroups.scheduling.run.ai": ("v2alpha2",),
    "bindrequests.scheduling.run.ai": ("v1alpha2",),
    "configs.kai.scheduler": ("v1",),
    "schedulingshards.kai.scheduler": ("v1",),
}


def _workload(
    kind: str, name: str, image: str, args: tuple[str, ...] = (), selector: Mapping[str, str] | None = None
) -> str:
    """A Deployment or DaemonSet template; `image` and `args` may hold template expressions."""
    container: dict[str, Any] = {"name": name, "image": image}
    if args:
        container["args"] = list(args)
    pod: dict[str, Any] = {"containers": [container]}
    if selector:
        pod["nodeSelector"] = dict(selector)
    labels = {"app": name}
    return _yaml(
        {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": "{{ .Release.Namespace }}"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }
    )


def _kai(
    version: str, *, registry: str, values: Mapping[str, Any], config: str, newer_crds: bool = False
) -> ChartSource:
    templates = {
        "operator.yaml": _workload(
            "Deployment",
            "kai-operator",
            "{{ .Values.global.registry }}/operator:{{ .Values.global.tag | default .Chart.AppVersion }}",
            ("--leader-elect=false",),
        ),
    }
    if config:
        templates["config.yaml"] = (
            "apiVersion: kai.scheduler/v1\nkind: Config\nmetadata:\n  name: kai-config\nspec:\n" + config
        )
    crds = dict(_KAI_CRDS)
    if newer_crds:
        crds["bindrequests.scheduling.run.ai"] = ("v1alpha2", "v1alpha3")
    return ChartSource(
        name="kai-scheduler",
        version=version,
        app_version=version,
        values={"global": {"registry": registry, "tag": "", **values["global"]}, **values["rest"]},
        templates=templates,
        crds=crds,
    )


_NEW_HOME = "ghcr.io/kai-scheduler/kai-scheduler"
_SWITCHES = {
    "global": {"gpuSharing": False},
    "rest": {"binder": {"plugins": {"hamicore": {"enabled": False, "priority": 50}}}},
}
_SWITCHED = (
    "  admission:\n    gpuSharing: {{ .Values.global.gpuSharing }}\n"
    "  binder:\n    plugins:\n      hamicore:\n        enabled: {{ .Values.binder.plugins.hamicore.enabled }}\n"
)
_MODE = {"global": {"gpuSharingMode": "NonMemoryEnforced"}, "rest": {"binder": {"podDisruptionBudget": True}}}
_BY_MODE = (
    '  admission:\n    gpuSharing: {{ ne .Values.global.gpuSharingMode "Disabled" }}\n'
    '  binder:\n    plugins:\n      hamicore:\n        enabled: {{ eq .Values.global.gpuSharingMode "HamiCore" }}\n'
)
_ONLY_SHARING = {"global": {"gpuSharing": False}, "rest": {"binder": {"replicas": 1}}}


def _nvml_mock(version: str, *, profile: str, gpus: int, driver_root: str, labels: Mapping[str, Any]) -> ChartSource:
    return ChartSource(
        name="nvml-mock",
        version=version,
        app_version="550.163.01",
        values={
            "gpu": {"profile": profile, "count": gpus},
            "image": {"repository": "ghcr.io/nvidia/nvml-mock", "tag": "", "pullPolicy": "IfNotPresent"},
            "nodeLabels": dict(labels),
        },
        templates={
            "daemonset.yaml": _workload(
                "DaemonSet",
                "nvml-mock",
                "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}",
                ("--profile={{ .Values.gpu.profile }}", f"--driver-root={driver_root}"),
            )
        },
    )


def _isolator(version: str, *, volumes: tuple[str, ...]) -> ChartSource:
    image = "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
    return ChartSource(
        name="kai-resource-isolator",
        version=version,
        app_version=version.removesuffix("-chart"),
        values={
            "image": {"repository": "docker.io/projecthami/kai-resource-isolator", "tag": "latest"},
            "monitor": {"enabled": False},
            "webhook": {"failurePolicy": "Ignore"},
        },
        templates={
            "webhook.yaml": _workload(
                "Deployment", "kai-resource-isolator-webhook", image, tuple(f"--volume={name}" for name in volumes)
            ),
            "libsync.yaml": _workload("DaemonSet", "kai-resource-isolator-libsync", image),
            "monitor.yaml": "{{- if .Values.monitor.enabled }}\n"
            + _workload(
                "DaemonSet", "kai-resource-isolator-monitor", image, selector={"nvidia.com/gpu.present": "true"}
            )
            + "{{- end }}\n",
        },
    )


CHARTS: Mapping[str, tuple[ChartSource, ...]] = {
    KAI_REPOSITORY: (
        _kai("v0.16.8", registry=_NEW_HOME, values=_SWITCHES, config=_SWITCHED),
        _kai("v0.17.0", registry=_NEW_HOME, values=_SWITCHES, config=_SWITCHED),
        _kai("v0.18.3", registry=_NEW_HOME, values=_MODE, config=_BY_MODE, newer_crds=True),
        _kai("v0.20.1", registry="ghcr.io/nvidia/kai-scheduler", values=_ONLY_SHARING, config=""),
        _kai("v0.18.3-fips", registry=_NEW_HOME, values=_MODE, config=_BY_MODE, newer_crds=True),
        _kai("v0.18.4-rc1", registry=_NEW_HOME, values=_MODE, config=_BY_MODE, newer_crds=True),
        _kai("0.0.0-d5bc503", registry=_NEW_HOME, values=_SWITCHES, config=_SWITCHED),
    ),
    NVML_MOCK_REPOSITORY: (
        _nvml_mock(
            "0.2.1", profile="a100", gpus=8, driver_root="/var/lib/nvml-mock", labels={"pciVendorPresent": True}
        ),
        _nvml_mock(
            "0.3.0", profile="a100", gpus=8, driver_root="/var/lib/nvml-mock", labels={"pciVendorPresent": True}
        ),
        _nvml_mock("0.4.0-rc1", profile="gb300", gpus=4, driver_root="/var/lib/nvml-mock", labels={}),
        _nvml_mock("0.4.0", profile="gb300", gpus=4, driver_root="/var/lib/nvml-mock", labels={}),
    ),
    ISOLATOR_REPOSITORY: (
        _isolator("1.0.0-chart", volumes=("vgpu",)),
        _isolator("1.1.0-chart", volumes=("vgpu", "containers", "vgpulock")),
    ),
}
"""Charts by repository. Versions and their differences: measured, or read from the projects' sources."""

IMAGES: Mapping[str, tuple[str, ...]] = {
    KAI_REPOSITORY: ("sha256-" + "5a" * 32 + ".sig",),
    ISOLATOR_REPOSITORY: ("v1.0.0", "v1.1.0", "latest"),
}
"""Tags beside the charts that are no charts."""

ODD_TAGS: Mapping[str, tuple[str, ...]] = {KAI_REPOSITORY: ("v0.18.3-hotfix",)}
"""Chart tags that fit no rule; each is the chart of the first version of its repository."""
