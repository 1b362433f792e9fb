"""Which resources the server knows: the built-in ones, and those that CustomResourceDefinitions add."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kai_lab_pipeline.rehearsal.api.errors import Obj

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True)
class Resource:
    """One resource in one version. `storage` names where its objects live: versions of one kind share it."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()
    has_generation: bool = False
    storage: str = ""
    storage_version: str = ""
    list_kind: str = ""
    custom: bool = False
    schema: Obj | None = field(default=None, compare=False)
    columns: tuple[Obj, ...] = field(default=(), compare=False)

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources


def _builtin(
    group: str,
    version: str,
    kind: str,
    plural: str,
    *,
    short: str = "",
    namespaced: bool = True,
    categories: str = "",
    sub: str = "",
    generation: bool = False,
    storage: str = "",
) -> Resource:
    return Resource(
        group=group,
        version=version,
        kind=kind,
        plural=plural,
        singular=kind.lower(),
        namespaced=namespaced,
        short_names=tuple(short.split()),
        categories=tuple(categories.split()),
        subresources=frozenset(sub.split()),
        has_generation=generation,
        storage=storage or (f"{plural}.{group}" if group else plural),
        storage_version=version,
        list_kind=f"{kind}List",
    )


def _builtins() -> Iterator[Resource]:
    def core(kind: str, plural: str, **more: Any) -> Resource:
        return _builtin("", "v1", kind, plural, **more)

    yield core("ConfigMap", "configmaps", short="cm")
    yield core("Endpoints", "endpoints", short="ep")
    yield core("Event", "events", short="ev")
    yield core("LimitRange", "limitranges", short="limits")
    yield core("Namespace", "namespaces", short="ns", namespaced=False, sub="status finalize")
    yield core("Node", "nodes", short="no", namespaced=False, sub="status")
    yield core("PersistentVolumeClaim", "persistentvolumeclaims", short="pvc", sub="status")
    yield core("PersistentVolume", "persistentvolumes", short="pv", namespaced=False, sub="status")
    yield core("Pod", "pods", short="po", categories="all", sub="status binding eviction log", generation=True)
    yield core("PodTemplate", "podtemplates")
    yield core("ReplicationController", "replicationcontrollers", short="rc", categories="all", sub="status scale")
    yield core("ResourceQuota", "resourcequotas", short="quota", sub="status")
    yield core("Secret", "secrets")
    yield core("ServiceAccount", "serviceaccounts", short="sa")
    yield core("Service", "services", short="svc", categories="all", sub="status")

    workload: dict[str, Any] = {"categories": "all", "generation": True}
    yield _builtin("apps", "v1", "ControllerRevision", "controllerrevisions")
    yield _builtin("apps", "v1", "DaemonSet", "daemonsets", short="ds", sub="status", **workload)
    yield _builtin("apps", "v1", "Deployment", "deployments", short="deploy", sub="status scale", **workload)
    yield _builtin("apps", "v1", "ReplicaSet", "replicasets", short="rs", sub="status scale", **workload)
    yield _builtin("apps", "v1", "StatefulSet", "statefulsets", short="sts", sub="status scale", **workload)
    yield _builtin("batch", "v1", "CronJob", "cronjobs", short="cj", sub="status", **workload)
    yield _builtin("batch", "v1", "Job", "jobs", sub="status", **workload)
    hpa = "HorizontalPodAutoscaler"
    yield _builtin("autoscaling", "v2", hpa, "horizontalpodautoscalers", short="hpa", sub="status", categories="all")

    g = "admissionregistration.k8s.io"
    cluster: dict[str, Any] = {"namespaced": False}
    kept: dict[str, Any] = {"namespaced": False, "generation": True, "categories": "api-extensions"}
    yield _builtin(g, "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", **kept)
    yield _builtin(g, "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", **kept)
    yield _builtin(g, "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", sub="status", **kept)
    yield _builtin(g, "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", **kept)
    yield _builtin(
        "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions",
        short="crd crds", sub="status", **kept,
    )  # fmt: skip
    yield _builtin("coordination.k8s.io", "v1", "Lease", "leases")
    yield _builtin("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", generation=True)
    yield _builtin("events.k8s.io", "v1", "Event", "events", short="ev", storage="events")
    yield _builtin("networking.k8s.io", "v1", "IngressClass", "ingressclasses", **cluster)
    yield _builtin("networking.k8s.io", "v1", "Ingress", "ingresses", short="ing", sub="status", generation=True)
    yield _builtin("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", short="netpol", generation=True)
    yield _builtin("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", **cluster)
    pdb = "PodDisruptionBudget"
    yield _builtin("policy", "v1", pdb, "poddisruptionbudgets", short="pdb", sub="status", generation=True)

    g = "rbac.authorization.k8s.io"
    yield _builtin(g, "v1", "ClusterRoleBinding", "clusterrolebindings", **cluster)
    yield _builtin(g, "v1", "ClusterRole", "clusterroles", **cluster)
    yield _builtin(g, "v1", "RoleBinding", "rolebindings")
    yield _builtin(g, "v1", "Role", "roles")

    g = "resource.k8s.io"
    yield _builtin(g, "v1", "DeviceClass", "deviceclasses", generation=True, **cluster)
    yield _builtin(g, "v1", "ResourceClaim", "resourceclaims", sub="status")
    yield _builtin(g, "v1", "ResourceClaimTemplate", "resourceclaimtemplates")
    yield _builtin(g, "v1", "ResourceSlice", "resourceslices", generation=True, **cluster)
    g = "scheduling.k8s.io"
    yield _builtin(g, "v1", "PriorityClass", "priorityclasses", short="pc", generation=True, **cluster)

    g = "storage.k8s.io"
    yield _builtin(g, "v1", "CSIDriver", "csidrivers", **cluster)
    yield _builtin(g, "v1", "CSINode", "csinodes", **cluster)
    yield _builtin(g, "v1", "CSIStorageCapacity", "csistoragecapacities")
    yield _builtin(g, "v1", "StorageClass", "storageclasses", short="sc", **cluster)
    yield _builtin(g, "v1", "VolumeAttachment", "volumeattachments", sub="status", **cluster)


BUILTIN: tuple[Resource, ...] = tuple(_builtins())

REVIEWS: dict[tuple[str, str], dict[str, str]] = {
    ("authentication.k8s.io", "v1"): {"selfsubjectreviews": "SelfSubjectReview", "tokenreviews": "TokenReview"},
    ("authorization.k8s.io", "v1"): {
        "localsubjectaccessreviews": "LocalSubjectAccessReview",
        "selfsubjectaccessreviews": "SelfSubjectAccessReview",
        "selfsubjectrulesreviews": "SelfSubjectRulesReview",
        "subjectaccessreviews": "SubjectAccessReview",
    },
}
"""Resources that can only be created, are never stored, and answer at once."""


def resources_of_crd(crd: Obj) -> Iterator[Resource]:
    """The served versions of a CustomResourceDefinition as resources."""
    spec = crd["spec"]
    names = spec["names"]
    versions = spec["versions"]
    storage_version = next((v["name"] for v in versions if v.get("storage")), versions[0]["name"])
    for version in versions:
        if not version.get("served", True):
            continue
        yield Resource(
            group=spec["group"],
            version=version["name"],
            kind=names["kind"],
            plural=names["plural"],
            singular=names.get("singular") or names["kind"].lower(),
            namespaced=spec.get("scope") == "Namespaced",
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=frozenset(version.get("subresources") or ()),
            has_generation=True,
            storage=f"{names['plural']}.{spec['group']}",
            storage_version=storage_version,
            list_kind=names.get("listKind") or f"{names['kind']}List",
            custom=True,
            schema=(version.get("schema") or {}).get("openAPIV3Schema"),
            columns=tuple(version.get("additionalPrinterColumns") or ()),
        )


class Registry:
    """All resources by (group, version, plural); changed only when a CustomResourceDefinition changes."""

    def __init__(self) -> None:
        self._by_path: dict[tuple[str, str, str], Resource] = {(r.group, r.version, r.plural): r for r in BUILTIN}
        self._by_crd: dict[str, list[Resource]] = {}
        self.revision = 0

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        return self._by_path.get((group, version, plural))

    def find_kind(self, group: str, version: str, kind: str) -> Resource | None:
        return next((r for r in self if (r.group, r.version, r.kind) == (group, version, kind)), None)

    def set_crd(self, crd: Obj) -> None:
        self.drop_crd(crd["metadata"]["name"])
        added = list(resources_of_crd(crd))
        self._by_crd[crd["metadata"]["name"]] = added
        for resource in added:
            self._by_path[resource.group, resource.version, resource.plural] = resource

    def drop_crd(self, name: str) -> None:
        self.revision += 1
        for resource in self._by_crd.pop(name, ()):
            self._by_path.pop((resource.group, resource.version, resource.plural), None)

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._by_path.values())

    def stored(self) -> Iterable[Resource]:
        """One resource per storage: the storage version where it is served."""
        best: dict[str, Resource] = {}
        for resource in self:
            if resource.storage not in best or (
                resource.version == resource.storage_version and resource.group != "events.k8s.io"
            ):
                best[resource.storage] = resource
        return best.values()

    def groups(self) -> dict[str, list[str]]:
        """Group to its versions, core group first, preferred version first."""
        found: dict[str, list[str]] = {"": ["v1"], "apps": ["v1"]}
        for resource in self:
            versions = found.setdefault(resource.group, [])
            if resource.version not in versions:
                versions.append(resource.version)
        for group, version in REVIEWS:
            found.setdefault(group, [version])
        for versions in found.values():
            versions.sort(key=version_priority)
        return found


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Kubernetes' order of versions: GA before beta before alpha, higher numbers first."""
    rest = version[1:]
    for rank, stage in ((1, "beta"), (2, "alpha")):
        major, found, minor = rest.partition(stage)
        if found and major.isdigit():
            return rank, -int(major), -int(minor or 0), version
    return (0, -int(rest), 0, version) if rest.isdigit() else (3, 0, 0, version)
