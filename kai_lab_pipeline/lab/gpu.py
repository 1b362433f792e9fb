"""KAI's GPU arithmetic, in the IEEE doubles that KAI computes in.

Sources: KAI Scheduler v0.17.0, node_info.go (label to memory), gpu_sharing_node_info.go (fraction),
binder/plugins/hamicore (limit), base_resources.go (number format); confirmed by measurement.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

MEMORY_STEP_MIB = 100
"""KAI floors the memory per GPU to a multiple of this before it divides."""
MISSING_LABEL_MIB = 100
"""Memory KAI assumes for a node without a readable label."""
BYTES_FROM = 1048576
"""A label at or above this is taken for bytes and divided by 2^20."""

MEMORY_ANNOTATION = "gpu-memory"
FRACTION_ANNOTATION = "gpu-fraction"
DEVICES_ANNOTATION = "gpu-fraction-num-devices"

_POSITIVE = re.compile(r"[0-9]{1,18}\Z")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}\Z")
_INT64_MAX = 2**63 - 1


def label_memory_mib(label: str | None) -> int | None:
    """Memory per GPU (MiB) that KAI reads from ``nvidia.com/gpu.memory``, before flooring; None when unreadable."""
    if label is None or not _INTEGER.match(label):
        return None
    value = int(label)
    if abs(value) > _INT64_MAX:
        return None
    return value // BYTES_FROM if value >= BYTES_FROM else value


def floored_memory_mib(label: str | None) -> int:
    """Memory per GPU (MiB) that KAI divides by: the label floored to a multiple of 100, or 100 when unreadable."""
    value = label_memory_mib(label)
    if value is None:
        return MISSING_LABEL_MIB
    return value - int(math.fmod(value, MEMORY_STEP_MIB))


def fraction_of_memory(request_mib: int, label: str | None) -> float:
    """GPU fraction for a ``gpu-memory`` request (MiB): ceil to two decimals of request / floored memory.

    A label below 100 MiB floors to zero and gives infinity, which fits nowhere.
    """
    floored = floored_memory_mib(label)
    if floored <= 0:
        return math.inf
    return math.ceil(float(request_mib) / float(floored) * 100.0) / 100.0


def memory_limit_mib(label: str | None, fraction: float) -> int | None:
    """CUDA_DEVICE_MEMORY_LIMIT (MiB) that KAI's hamicore plugin wires: trunc(unfloored label x fraction).

    None when the label is unreadable: the plugin then silently sets no limit.
    """
    raw = label_memory_mib(label)
    if raw is None or not math.isfinite(fraction):
        return None
    return int(float(raw) * fraction)


def requested_fraction(annotations: Mapping[str, Any], label: str | None) -> float | None:
    """GPUs (fraction per device x devices) that KAI allocates for a pod's sharing annotations; None when not shared.

    ``gpu-memory`` is MiB per device, ``gpu-fraction`` a portion per device rounded up to two decimals (measured with
    KAI v0.17.0: "0.505" is accounted as 0.51). A value that KAI's admission would refuse counts as not shared.
    """
    portion = portion_per_device(annotations, label)
    return None if portion is None else portion * devices_of(annotations)


def portion_per_device(annotations: Mapping[str, Any], label: str | None) -> float | None:
    """GPU fraction on each device for a pod's sharing annotations; None when the pod shares nothing."""
    memory, fraction = annotations.get(MEMORY_ANNOTATION), annotations.get(FRACTION_ANNOTATION)
    if memory is not None:
        text = str(memory)
        if _POSITIVE.match(text) and int(text) > 0:
            return fraction_of_memory(int(text), label)
        return None
    if fraction is None:
        return None
    try:
        value = float(str(fraction))
    except ValueError:
        return None
    # round() takes off the last bits of the product: 0.07 x 100 must not be rounded up to 8 hundredths.
    return math.ceil(round(value * 100, 9)) / 100 if 0 < value < 1 else None


def devices_of(annotations: Mapping[str, Any]) -> int:
    """On how many devices a shared pod asks its portion: ``gpu-fraction-num-devices``, 1 when absent or unreadable."""
    text = str(annotations.get(DEVICES_ANNOTATION, "1"))
    return int(text) if _POSITIVE.match(text) and int(text) > 0 else 1


def format_quantity(value: float) -> str:
    """A number as KAI's scheduler logs it: -1 is ``Unlimited``, else truncated to three decimals, zeros stripped."""
    if value == -1:
        return "Unlimited"
    if not math.isfinite(value):
        return str(value)
    text = f"{value:.6f}"[:-3]
    return text.rstrip("0").rstrip(".")
