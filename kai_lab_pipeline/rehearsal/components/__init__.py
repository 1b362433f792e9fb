"""The simulated components of a lab: node, controllers, KAI, isolator. Ordinary clients of the Kubernetes API.

They follow what the real components were measured to do (KAI Scheduler v0.17.0, nvml-mock 0.3.0, device plugin
v0.18.2, the isolator 1.1.0); versions that differ are in `profiles`, faults to rehearse in `faults`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kai_lab_pipeline.rehearsal.client import Api
from kai_lab_pipeline.rehearsal.components.faults import FAULTS
from kai_lab_pipeline.rehearsal.components.runtime import Sim, SimOptions

__all__ = ["FAULTS", "SimOptions", "run_components"]


async def run_components(url: str, token: str, state_dir: Path, options: Mapping[str, Any]) -> None:
    """Runs all simulated components against the API at `url` until cancelled.

    Options: name, node_name, time_scale (seconds here per second of a real cluster), crossing, faults (name ->
    parameter), kube_controllers, webhook_url_mode, profile (gpu_count, gpu_memory_mib in MiB, gpu_product).
    Raises ValueError for options that make no sense and whatever ended a component.
    """
    # Imported here: the modules of single components import this package's helpers.
    from kai_lab_pipeline.rehearsal.components.assembly import assemble

    parsed = SimOptions.parse(options)
    state_dir.mkdir(parents=True, exist_ok=True)
    api = Api.connect(url, token, "rehearsal")
    sim = Sim(api, state_dir, parsed)
    try:
        await assemble(sim)
        await asyncio.shield(sim.failed)
    finally:
        await sim.stop()
        await api.close()
