"""KAI's admission: what it refuses and what it adds to a pod that shares a GPU.

Source: KAI Scheduler v0.17.0, pkg/binder/plugins/gpusharing/gpu-request/gpu_request_validator.go and
pkg/admission/webhook/v1alpha2 (order of the checks, texts, names); confirmed by measurement.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kai_lab_pipeline.rehearsal.client import Object
from kai_lab_pipeline.rehearsal.components.node import GPU

GPU_MEMORY = "gpu-memory"
GPU_FRACTION = "gpu-fraction"
GPU_DEVICES = "gpu-fraction-num-devices"
FRACTION_CONTAINER = "gpu-fraction-container-name"
MPS = "mps"
CONFIGMAP_ANNOTATION = "runai/shared-gpu-configmap"

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_FLOAT = re.compile(r"\d*\.\d+([eE][+-]?\d+)?\Z|\d+(\.\d*)?[eE][+-]?\d+\Z|\d+\.\Z")


@dataclass(frozen=True)
class AdmissionSettings:
    """How admission runs: read from the arguments of its container, not from what was asked for."""

    sharing: bool = False
    hamicore: bool = False
    runtime_class: str = ""

    @staticmethod
    def of_args(args: list[str]) -> AdmissionSettings:
        runtime_class = ""
        for index, arg in enumerate(args):
            if arg == "--gpu-fraction-runtime-class-name":
                runtime_class = args[index + 1] if index + 1 < len(args) else ""
            elif arg.startswith("--gpu-fraction-runtime-class-name="):
                runtime_class = arg.partition("=")[2]
        return AdmissionSettings(
            "--gpu-sharing-enabled=true" in args, "--hami-core-enabled=true" in args, runtime_class
        )


def _annotations(pod: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    return found


def _whole_gpu(pod: Mapping[str, Any]) -> bool:
    for container in pod["spec"].get("containers") or []:
        resources = container.get("resources") or {}
        if GPU in (resources.get("limits") or {}) or GPU in (resources.get("requests") or {}):
            return True
    return False


def shares_gpu(pod: Mapping[str, Any]) -> bool:
    annotations = _annotations(pod)
    return GPU_MEMORY in annotations or GPU_FRACTION in annotations


def denial(pod: Mapping[str, Any], namespace: str, settings: AdmissionSettings) -> str | None:
    """Why admission refuses the pod; None when it does not."""
    annotations = _annotations(pod)
    memory, fraction = annotations.get(GPU_MEMORY), annotations.get(GPU_FRACTION)
    devices = annotations.get(GPU_DEVICES)
    if shares_gpu(pod) and not settings.sharing:
        name = pod["metadata"].get("name") or pod["metadata"].get("generateName", "")
        return f"attempting to create a pod {namespace}/{name} with gpu sharing request, while GPU sharing is disabled"
    if annotations.get(MPS) == "true" and fraction is None:
        return "MPS is only supported with GPU fraction request"
    if memory is not None and (fraction is not None or _whole_gpu(pod)):
        return "cannot request both GPU and GPU memory"
    if fraction is not None and _whole_gpu(pod):
        return "cannot have both GPU fraction request and whole GPU resource request/limit"
    if devices is not None and memory is None and fraction is None:
        return "cannot request multiple fractional devices without specifying fraction portion or gpu-memory"
    if memory is not None and not (re.fullmatch(r"[0-9]+", memory) and int(memory) > 0):
        return "gpu-memory annotation value must be a positive integer greater than 0"
    if fraction is not None:
        wrong = _wrong_fraction(fraction)
        if wrong is not None:
            return wrong
    if devices is not None and not (re.fullmatch(r"[0-9]+", devices) and int(devices) > 0):
        return "fraction count annotation value must be a positive integer greater than 0"
    if shares_gpu(pod) and _target(pod) is None:
        name = annotations[FRACTION_CONTAINER]
        return f"failed to get fraction container ref: container with name {name} not found for fraction request"
    return None


def _wrong_fraction(text: str) -> str | None:
    limits = "gpu-fraction annotation value must be a positive number smaller than 1.0"
    try:
        value = float(text)
    except ValueError:
        return limits
    if not 0 < value < 1:
        return limits
    if not _FLOAT.match(text):
        return (
            "gpu-fraction annotation value must be a float written with a decimal point or a scientific notation "
            f".given value: {text}"
        )
    return None


def _target(pod: Mapping[str, Any]) -> tuple[str, int] | None:
    """The container that gets the GPU: the named one (init containers first), else the first."""
    wanted = _annotations(pod).get(FRACTION_CONTAINER)
    if wanted is None:
        return ("containers", 0)
    for group in ("initContainers", "containers"):
        for index, container in enumerate(pod["spec"].get(group) or []):
            if container.get("name") == wanted:
                return (group, index)
    return None


def mutated(pod: Object, settings: AdmissionSettings, rng: random.Random) -> Object:
    """The pod as admission changes it: references to the ConfigMaps that the binder makes once it has a card."""
    if not shares_gpu(pod) or not settings.sharing:
        return pod
    target = _target(pod)
    if target is None:
        return pod
    changed = copy.deepcopy(pod)
    annotations = changed["metadata"].setdefault("annotations", {})
    if CONFIGMAP_ANNOTATION not in annotations:
        name = changed["metadata"].get("name") or changed["metadata"].get("generateName", "pod-").rstrip("-")
        letters = "".join(rng.choice(_SUFFIX_LETTERS) for _ in range(7))
        annotations[CONFIGMAP_ANNOTATION] = f"{name}-{letters}-shared-gpu"
    group, index = target
    prefix = f"{annotations[CONFIGMAP_ANNOTATION]}-{'i' if group == 'initContainers' else ''}{index}"
    container = changed["spec"][group][index]
    env = container.setdefault("env", [])
    names = ["NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION"]
    for name in (*names, *(["CUDA_DEVICE_MEMORY_LIMIT"] if settings.hamicore else [])):
        _reference(env, name, prefix, optional=name == "CUDA_DEVICE_MEMORY_LIMIT")
    sources = container.setdefault("envFrom", [])
    extra = {"configMapRef": {"name": f"{prefix}-evar", "optional": False}}
    if extra not in sources:
        sources.append(extra)
    volumes = changed["spec"].setdefault("volumes", [])
    if not any(volume["name"] == f"{prefix}-vol" for volume in volumes):
        volumes.append({"name": f"{prefix}-vol", "configMap": {"name": prefix, "defaultMode": 420}})
    if settings.runtime_class and not changed["spec"].get("runtimeClassName"):
        changed["spec"]["runtimeClassName"] = settings.runtime_class
    return changed


def _reference(env: list[Object], name: str, configmap: str, *, optional: bool) -> None:
    if any(entry["name"] == name for entry in env):
        return
    key: Object = {"name": configmap, "key": name}
    if optional:
        key["optional"] = True
    env.append({"name": name, "valueFrom": {"configMapKeyRef": key}})
