"""The charts of the rehearsal's registry, as data: small charts of our own that differ as the real versions do.

They model what a version asks of the lab (value keys, CRD versions, images, container arguments), so that discovery
and the comparison of charts have something true to find. Versions and values are those of `profiles`, which also say
what a version does in the rehearsal's cluster.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from kai_lab_pipeline.rehearsal import profiles

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


_SWITCHES = (
    "  admission:\n    gpuSharing: {{ .Values.global.gpuSharing }}\n"
    "  binder:\n    plugins:\n      hamicore:\n        enabled: {{ .Values.binder.plugins.hamicore.enabled }}\n"
)
_MODE = (
    '  admission:\n    gpuSharing: {{ ne .Values.global.gpuSharingMode "Disabled" }}\n'
    '  binder:\n    plugins:\n      hamicore:\n        enabled: {{ eq .Values.global.gpuSharingMode "HamiCore" }}\n'
)
_NO_PLUGINS = "  admission:\n    gpuSharing: {{ .Values.global.gpuSharing }}\n"


def _kai(version: str, tag: str | None = None) -> ChartSource:
    """A KAI chart; with `tag` a build of that version under another name (FIPS, release candidate, commit)."""
    known = profiles.KAI[version]
    spec = _NO_PLUGINS if known.dead_on_arrival else _SWITCHES if known.legacy_sharing else _MODE
    image = "{{ .Values.global.registry }}/operator:{{ .Values.global.tag }}"
    crds = dict(_KAI_CRDS)
    if known.sharing_modes:
        crds["bindrequests.scheduling.run.ai"] = ("v1alpha2", "v1alpha3")
    return _source(
        KAI_REPOSITORY,
        version,
        {
            "operator.yaml": _workload("Deployment", "kai-operator", image, ("--leader-elect=false",)),
            "config.yaml": "apiVersion: kai.scheduler/v1\nkind: Config\nmetadata:\n  name: kai-config\nspec:\n" + spec,
        },
        crds,
        tag,
    )


def _nvml_mock(version: str) -> ChartSource:
    image = "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
    args = ("--profile={{ .Values.gpu.profile }}", f"--label-node={str(profiles.MOCK[version].labels_node).lower()}")
    return _source(NVML_MOCK_REPOSITORY, version, {"daemonset.yaml": _workload("DaemonSet", "nvml-mock", image, args)})


def _isolator(version: str) -> ChartSource:
    image = "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
    full = profiles.ISOLATOR[version].full_injection
    volumes = ("vgpu", "containers", "vgpulock") if full else ("vgpu",)
    args = tuple(f"--volume={name}" for name in volumes)
    selector = {"nvidia.com/gpu.present": "true"}
    monitor = _workload("DaemonSet", "kai-resource-isolator-monitor", image, selector=selector)
    return _source(
        ISOLATOR_REPOSITORY,
        version,
        {
            "webhook.yaml": _workload("Deployment", "kai-resource-isolator-webhook", image, args),
            "libsync.yaml": _workload("DaemonSet", "kai-resource-isolator-libsync", image),
            "monitor.yaml": "{{- if .Values.monitor.enabled }}\n" + monitor + "{{- end }}\n",
        },
    )


def _source(
    repository: str,
    version: str,
    templates: Mapping[str, str],
    crds: Mapping[str, tuple[str, ...]] | None = None,
    tag: str | None = None,
) -> ChartSource:
    known = profiles.chart(repository, version)
    return ChartSource(known.name, tag or version, known.app_version, known.values, templates, crds or {})


CHARTS: Mapping[str, tuple[ChartSource, ...]] = {
    KAI_REPOSITORY: (
        *(_kai(version) for version in ("v0.16.8", "v0.17.0", "v0.18.2", "v0.19.0", "v0.20.1", "0.0.0-d5bc503")),
        _kai("v0.18.2", "v0.18.2-fips"),
        _kai("v0.19.0", "v0.19.1-rc1"),
    ),
    NVML_MOCK_REPOSITORY: tuple(_nvml_mock(version) for version in ("0.2.1", "0.3.0", "0.4.0-rc1", "0.4.0")),
    ISOLATOR_REPOSITORY: tuple(_isolator(version) for version in ("1.0.0-chart", "1.1.0-chart")),
}
"""Charts by repository."""

IMAGES: Mapping[str, tuple[str, ...]] = {
    KAI_REPOSITORY: ("sha256-" + "5a" * 32 + ".sig",),
    ISOLATOR_REPOSITORY: ("v1.0.0", "v1.1.0", "latest"),
}
"""Tags beside the charts that are no charts."""

FURTHER_TAGS: Mapping[str, Mapping[str, str]] = {KAI_REPOSITORY: {"0.18.2": "v0.18.2", "v0.18.2-hotfix": "v0.18.2"}}
"""Tags that name a chart a second time: another spelling, and one that fits no rule. Tag -> chart version."""
