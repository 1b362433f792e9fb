"""The versions of charts and images that the rehearsal knows, and how they differ.

Sources: the lab run with these versions (KAI v0.16.8, v0.17.0, v0.20.1, nvml-mock 0.2.1 and 0.3.0, isolator
1.1.0-chart) and their release notes and source (KAI v0.18, nvml-mock 0.4, isolator 1.0.0-chart). KAI v0.19.0 is made
up: what the lab would meet once the deprecated sharing values are gone. 0.0.0-d5bc503 is the commit that was read,
as good as v0.17.0.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DRIVER_VERSION = "550.163.01"


class UnknownVersion(LookupError):
    """No chart of that name and version, in the words of helm 3.22 and 4.3."""

    def __init__(self, chart: str, version: str) -> None:
        source = chart.removeprefix("oci://")
        super().__init__(f'failed to perform "FetchReference" on source: {source}:{version}: not found')


@dataclass(frozen=True)
class Chart:
    """One version of one chart."""

    name: str
    version: str
    app_version: str
    template: str
    """File below charts/ with the objects a release consists of."""
    values: Mapping[str, Any]
    """The chart's default values, nested as in its values.yaml."""

    @property
    def full_name(self) -> str:
        return f"{self.name}-{self.version}"


@dataclass(frozen=True)
class KaiVersion:
    """How one version of the KAI Scheduler behaves."""

    version: str
    registry: str = "ghcr.io/kai-scheduler/kai-scheduler"
    dead_on_arrival: bool = False
    """v0.20.1 (retracted) waits for a CRD of the GPU operator and never makes its components."""
    config_hook: bool = True
    """The Config is written by a post-install job; before, it was a pre-install hook object."""
    sharing_modes: bool = False
    """From v0.18.0 on: global.gpuSharingMode, sharing on by default."""
    legacy_sharing: bool = True
    """global.gpuSharing and binder.plugins.hamicore.enabled have an effect; False where only the mode is left."""
    false_bound: bool = True
    """A Bound event on every second failed attempt; gone with v0.18."""
    second_generation: bool = True
    """v0.17.0 and newer: PodGrouper arguments, disruption budgets and a memory ratio for the scheduler."""


KAI: Mapping[str, KaiVersion] = {
    "v0.16.8": KaiVersion("v0.16.8", second_generation=False),
    "v0.17.0": KaiVersion("v0.17.0"),
    "v0.18.0": KaiVersion("v0.18.0", sharing_modes=True, false_bound=False),
    "v0.18.2": KaiVersion("v0.18.2", sharing_modes=True, false_bound=False),
    "0.18.5": KaiVersion("0.18.5", sharing_modes=True, false_bound=False),
    "v0.19.0": KaiVersion("v0.19.0", sharing_modes=True, legacy_sharing=False, false_bound=False),
    "0.0.0-d5bc503": KaiVersion("0.0.0-d5bc503"),
    "v0.20.1": KaiVersion(
        "v0.20.1",
        registry="ghcr.io/nvidia/kai-scheduler",
        dead_on_arrival=True,
        config_hook=False,
        second_generation=False,
    ),
}


@dataclass(frozen=True)
class MockVersion:
    """How one version of nvml-mock behaves."""

    version: str
    default_profile: str = "a100"
    labels_node: bool = True
    labels_pci: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    """GPUs per profile where it is not 8."""


MOCK: Mapping[str, MockVersion] = {
    "0.2.1": MockVersion("0.2.1", labels_pci=True, counts={"t4": 4}),
    "0.3.0": MockVersion("0.3.0", counts={"t4": 4}),
    "0.4.0-rc1": MockVersion("0.4.0-rc1", "gb300", labels_node=False, counts={"t4": 4, "gb300": 4}),
    "0.4.0": MockVersion("0.4.0", "gb300", labels_node=False, counts={"t4": 4, "gb300": 4}),
}

MOCK_PROFILES = ("a100", "b200", "gb200", "gb300", "h100", "l40s", "t4")


@dataclass(frozen=True)
class IsolatorVersion:
    """How one version of the isolator behaves."""

    version: str
    app_version: str
    full_injection: bool
    """containers and vgpulock volumes and the environment; 1.0.x injects one volume and two mounts."""


ISOLATOR: Mapping[str, IsolatorVersion] = {
    "1.0.0-chart": IsolatorVersion("1.0.0-chart", "1.0.0", full_injection=False),
    "1.1.0-chart": IsolatorVersion("1.1.0-chart", "1.1.0", full_injection=True),
}


def _kai_values(kai: KaiVersion) -> dict[str, Any]:
    values: dict[str, Any] = {
        "global": {"registry": kai.registry, "tag": kai.version, "gpuSharing": False},
        "admission": {"gpuFractionRuntimeClassName": "nvidia"},
        "binder": {"runtimeClassName": "", "plugins": {"hamicore": {"enabled": False}}},
        "defaultQueue": {"createDefaultQueue": True, "name": "default-queue", "parentName": "default-parent-queue"},
    }
    if kai.sharing_modes:
        values["global"]["gpuSharing"] = None
        values["global"]["gpuSharingMode"] = ""
    if not kai.legacy_sharing:
        del values["global"]["gpuSharing"]
        del values["binder"]["plugins"]["hamicore"]
    if kai.dead_on_arrival:
        values["binder"] = {}
    return values


def _mock_values(mock: MockVersion) -> dict[str, Any]:
    return {
        "gpu": {"profile": mock.default_profile, "count": ""},
        "image": {"repository": "ghcr.io/nvidia/nvml-mock", "tag": mock.version, "pullPolicy": "IfNotPresent"},
        "nri": {"enabled": False},
    }


def _isolator_values(isolator: IsolatorVersion) -> dict[str, Any]:
    repository = "docker.io/projecthami/kai-resource-isolator"
    return {"image": {"repository": repository, "tag": f"v{isolator.app_version}"}, "monitor": {"enabled": False}}


def chart(reference: str, version: str) -> Chart:
    """The chart behind a reference (``oci://host/path/name``). Raises UnknownVersion."""
    name = reference.rstrip("/").rsplit("/", 1)[-1]
    if name == "kai-scheduler" and version in KAI:
        return Chart(name, version, version, "kai-scheduler.yaml.j2", _kai_values(KAI[version]))
    if name == "nvml-mock" and version in MOCK:
        return Chart(name, version, DRIVER_VERSION, "nvml-mock.yaml.j2", _mock_values(MOCK[version]))
    if name == "kai-resource-isolator" and version in ISOLATOR:
        isolator = ISOLATOR[version]
        return Chart(name, version, isolator.app_version, "kai-resource-isolator.yaml.j2", _isolator_values(isolator))
    raise UnknownVersion(reference, version)


def merged(defaults: Mapping[str, Any], dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Default values with dotted keys set as ``helm --set`` does: an unknown key is taken in and has no effect."""
    values = copy.deepcopy(dict(defaults))
    for key, value in dotted.items():
        parts = key.split(".")
        where = values
        for part in parts[:-1]:
            deeper = where.get(part)
            if not isinstance(deeper, dict):
                deeper = where[part] = {}
            where = deeper
        where[parts[-1]] = set_value(value)
    return values


def set_value(value: Any) -> Any:
    """A value as ``helm --set`` reads it: true, false, null and whole numbers have a type, all else is text."""
    if not isinstance(value, str):
        return value
    words: dict[str, Any] = {"true": True, "false": False, "null": None}
    if value in words:
        return words[value]
    return int(value) if value.isdigit() and (value == "0" or not value.startswith("0")) else value


def sharing(kai: KaiVersion, values: Mapping[str, Any]) -> tuple[Any, Any]:
    """What the chart's values mean for GPU sharing and the hamicore plugin: normally two booleans."""
    chosen = values.get("global", {})
    legacy = chosen.get("gpuSharing")
    hamicore = values.get("binder", {}).get("plugins", {}).get("hamicore", {}).get("enabled", False)
    if not kai.sharing_modes:
        return legacy, hamicore
    mode = chosen.get("gpuSharingMode")
    if not mode:
        if legacy is None or not kai.legacy_sharing:
            return True, False
        return legacy, hamicore
    return mode != "Disabled", mode == "HamiCore"


def wrong_config_type(config: Mapping[str, Any]) -> str | None:
    """What a server-side apply of Config says about a value that should be a boolean and is not; None when right."""
    for path in ("admission.gpuSharing", "binder.plugins.hamicore.enabled"):
        where: Any = config.get("spec", {})
        for part in path.split("."):
            where = where.get(part) if isinstance(where, Mapping) else None
        if where is not None and not isinstance(where, bool):
            return f".spec.{path}: expected boolean, got &{{{where}}}"
    return None


_SIZES = {
    "docker.io/library/nvml-mock:local": 176415788,
    "docker.io/liangjw/kube-webhook-certgen:v1.1.1": 144702516,
    "docker.io/projecthami/kai-resource-isolator:v1.1.0": 143934527,
    "nvcr.io/nvidia/k8s-device-plugin:v0.18.2": 106015915,
    "docker.io/library/busybox:latest": 1088627,
    "docker.io/library/busybox:1.37": 1088627,
    "registry.k8s.io/pause:3.10": 768823,
}
_KAI_SIZES = {
    "crd-upgrader": 145706053,
    "resourcereservation": 126669903,
    "scheduler": 85627723,
    "binder": 68690763,
    "admission": 66857803,
    "operator": 60744523,
    "podgroupcontroller": 53146443,
    "podgrouper": 45149003,
    "queuecontroller": 44309323,
    "nodescaleadjuster": 43848523,
    "scalingpod": 1495882,
}
_OTHER_SIZE = 50_000_000
_NOT_PRELOADED = "docker.io/library/nvml-mock:local"


def with_image(images: list[dict[str, Any]], full_name: str) -> list[dict[str, Any]]:
    """A node's images with another one, largest first as a kubelet lists them."""
    more = [*images, {"names": [full_name], "sizeBytes": image_size(full_name)}]
    return sorted(more, key=lambda image: -int(image.get("sizeBytes") or 0))


def node_images() -> list[dict[str, Any]]:
    """Images that are on the node from the start: those of the pinned lab but the mock, which the lab provides."""
    sizes = {name: size for name, size in _SIZES.items() if name != _NOT_PRELOADED}
    kai = KAI["v0.17.0"]
    sizes |= {f"{kai.registry}/{name}:{kai.version}": size for name, size in _KAI_SIZES.items()}
    return [{"names": [name], "sizeBytes": size} for name, size in sorted(sizes.items(), key=lambda item: -item[1])]


def repository(image: str) -> str:
    """An image's name without tag and digest, with a leading slash when it has no registry."""
    name = image.partition("@")[0]
    head, slash, tail = name.rpartition("/")
    return f"{head}{slash or '/'}{tail.partition(':')[0]}"


def image_size(image: str) -> int:
    """Size in bytes."""
    name = repository(image).rsplit("/", 1)[-1]
    for known, size in _SIZES.items():
        if known.endswith(image):
            return size
    return _KAI_SIZES.get(name, _OTHER_SIZE)


def image_id(image: str) -> str:
    return f"sha256:{hashlib.sha256(image.encode()).hexdigest()}"


def image_exists(full_name: str) -> bool:
    """Whether a registry would have the image: all but local builds and unknown versions of KAI."""
    host, _, rest = full_name.partition("/")
    tag = rest.rpartition(":")[2]
    if tag == "local" or host.startswith("localhost"):
        return False
    name = rest.rpartition(":")[0]
    registries = {kai.registry for kai in KAI.values()}
    for registry in registries:
        if f"{host}/{name}".startswith(registry + "/"):
            return tag in KAI and KAI[tag].registry == registry
    return True


def kai_of_image(image: str) -> KaiVersion:
    """The KAI version an image belongs to; the pinned one when its tag is not known."""
    return KAI.get(image.rpartition(":")[2], KAI["v0.17.0"])
