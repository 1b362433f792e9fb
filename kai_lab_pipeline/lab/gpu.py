"""KAI's GPU arithmetic, in the IEEE doubles that KAI computes in.

Sources: KAI Scheduler v0.17.0, node_info.go (label to memory), gpu_sharing_node_info.go (fraction),
binder/plugins/hamicore (limit), base_resources.go (number format); confirmed by measurement.
"""

from __future__ import annotations

import math
import re

MEMORY_STEP_MIB = 100
"""KAI floors the memory per GPU to a multiple of this before it divides."""
MISSING_LABEL_MIB = 100
"""Memory KAI assumes for a node without a readable label."""
BYTES_FROM = 1048576
"""A label at or above this is taken for bytes and divided by 2^20."""

_INTEGER = re.compile(r"[+-]?\d+\Z")


def label_memory_mib(label: str | None) -> int | None:
    """Memory per GPU (MiB) that KAI reads from ``nvidia.com/gpu.memory``, before flooring; None when unreadable."""
    if label is None or not _INTEGER.match(label):
        return None
    value = int(label)
    return value // BYTES_FROM if value >= BYTES_FROM else value


def floored_memory_mib(label: str | None) -> int:
    """Memory per GPU (MiB) that KAI divides by: the label floored to a multiple of 100, or 100 when unreadable."""
    value = label_memory_mib(label)
    if value is None:
        return MISSING_LABEL_MIB
    return value - value % MEMORY_STEP_MIB


def fraction_of_memory(request_mib: int, label: str | None) -> float:
    """GPU fraction for a ``gpu-memory`` request (MiB): ceil to two decimals of request / floored memory.

    Raises ZeroDivisionError never: a label below 100 MiB floors to zero and gives infinity, which fits nowhere.
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


def format_quantity(value: float) -> str:
    """A number as KAI's scheduler logs it: -1 is ``Unlimited``, else truncated to three decimals, zeros stripped."""
    if value == -1:
        return "Unlimited"
    text = f"{value:.6f}"[:-3]
    return text.rstrip("0").rstrip(".") if "." in text else text
