"""What a pod needs before its containers can start: volumes, settings, images."""

from __future__ import annotations

from kai_lab_pipeline.rehearsal import profiles
from kai_lab_pipeline.rehearsal.client import Object
from kai_lab_pipeline.rehearsal.components.faults import Faults
from kai_lab_pipeline.rehearsal.components.node import canonical_image
from kai_lab_pipeline.rehearsal.components.runtime import Sim


def missing_volume(sim: Sim, pod: Object) -> str | None:
    """Why a volume of the pod cannot be mounted, in the kubelet's words; None when all can."""
    for volume in pod["spec"].get("volumes") or []:
        for source, plural, field_name in (
            ("configMap", "configmaps", "name"),
            ("secret", "secrets", "secretName"),
        ):
            wanted = volume.get(source)
            if not wanted or wanted.get("optional"):
                continue
            if sim.of(plural).get(pod["metadata"]["namespace"], wanted.get(field_name, "")) is None:
                kind = "configmap" if source == "configMap" else "secret"
                return (
                    f'MountVolume.SetUp failed for volume "{volume["name"]}" : '
                    f'{kind} "{wanted.get(field_name)}" not found'
                )
    return None


def missing_setting(sim: Sim, namespace: str, spec: Object) -> str | None:
    """Which setting that the container takes from a ConfigMap is not there; None when all are."""
    maps = sim.of("configmaps")
    for env in spec.get("env") or []:
        ref = (env.get("valueFrom") or {}).get("configMapKeyRef")
        if ref and not ref.get("optional"):
            found = maps.get(namespace, ref["name"])
            if found is None:
                return f'configmap "{ref["name"]}" not found'
            if ref["key"] not in (found.get("data") or {}):
                return f"couldn't find key {ref['key']} in ConfigMap {namespace}/{ref['name']}"
    for source in spec.get("envFrom") or []:
        ref = source.get("configMapRef")
        if ref and not ref.get("optional") and maps.get(namespace, ref["name"]) is None:
            return f'configmap "{ref["name"]}" not found'
    return None


def withheld(faults: Faults, image: str) -> bool:
    """Whether a fault says of an image that it is neither in a registry nor on the node."""
    full = canonical_image(image)
    missing = faults.on("image_missing") and faults.text("image_missing", "nvml-mock") in full
    return missing or (faults.on("reservation_image_pull") and "/resourcereservation" in full)


def pull_problem(faults: Faults, image: str, *, present: bool) -> str | None:
    """Why a pull fails, in containerd's words; None when it succeeds."""
    full = canonical_image(image)
    host, _, rest = full.partition("/")
    repository, _, tag = rest.rpartition(":")
    resolve = f'failed to pull and unpack image "{full}": failed to resolve reference "{full}": '
    if withheld(faults, image) or not profiles.image_exists(full):
        return f"rpc error: code = NotFound desc = {resolve}{full}: not found"
    if not present and faults.on("registry_unauthorized"):
        return (
            f"{resolve}failed to authorize: failed to fetch anonymous token: unexpected status from GET request to "
            f"https://{host}/token?scope=repository%3A{repository}%3Apull&service={host}: 401 Unauthorized"
        )
    if not present and faults.on("registry_rate_limited"):
        return (
            f"{resolve}unexpected status from HEAD request to https://{host}/v2/{repository}/manifests/{tag}: "
            "429 Too Many Requests - toomanyrequests: You have reached your pull rate limit"
        )
    return None
