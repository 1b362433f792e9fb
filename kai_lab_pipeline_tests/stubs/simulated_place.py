"""A machine whose stub tools have the rehearsal's cluster behind them: what a whole run on backend kind needs.

Everything between Dagster and the command lines is what runs on a real machine; behind the names that kind and helm
would give, simulated components do the work.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import dagster as dg
from dagster._core.definitions.reconstruct import ReconstructableJob

from kai_lab_pipeline import definitions
from kai_lab_pipeline.backends.kind import KindBackend
from kai_lab_pipeline.backends.rehearsal import RehearsalBackend
from kai_lab_pipeline.rehearsal import process
from kai_lab_pipeline_tests.lab_project import CHECKOUT, FILES, LabProject, Said
from kai_lab_pipeline_tests.stubs.simulated_helm import SERVER
from kai_lab_pipeline_tests.stubs.workplace import Workplace

PATIENCE_S = 60.0


@dataclass
class KindProject(LabProject):
    """A project on backend kind or context, with all that its commands touch."""

    def here(self, *arguments: str, **variables: str) -> Said:
        """`kai-lab` in this process, its steps too: a process per step takes seconds that say nothing about a fault."""
        settings = self.settings
        scale = mock.PropertyMock(return_value=settings.rehearsal.time_scale)
        for cached in (ReconstructableJob.get_definition, ReconstructableJob.get_repository_definition):
            cached.cache_clear()
        with (
            mock.patch.object(definitions, "lab_executor", return_value=dg.in_process_executor),
            mock.patch.object(KindBackend, "time_scale", scale),  # simulated components live faster than real ones
            mock.patch.dict(os.environ, self.environment(**variables), clear=True),
            mock.patch.object(definitions, "defs", definitions.build_definitions(settings)),
        ):
            return self.main_here(*arguments, **variables)


def kind_project(place: Workplace, **variables: str) -> KindProject:
    """The project of this machine's person."""
    for file in FILES:
        (place.project / file).write_bytes((CHECKOUT / file).read_bytes())
    return KindProject(place.project, {"KAI_LAB_BACKEND": "kind", **variables})


class SimulatedCluster:
    """A cluster of simulated components behind this machine's kind and helm; its state is in `folder`."""

    def __init__(self, place: Workplace, folder: Path) -> None:
        self._place = place
        self._settings = place.settings(lab__backend="rehearsal", lab__state_dir=str(folder))
        self._backend = RehearsalBackend(self._settings)
        self.start()
        helm = place.bin / "helm"
        module = "kai_lab_pipeline_tests.stubs.simulated_helm"
        helm.write_text(f'#!/bin/sh\nPYTHONPATH={CHECKOUT} exec {sys.executable} -m {module} helm "$@"\n')

    def start(self) -> None:
        """Start the API server with its components, or start it again where it was killed."""
        facts = self._backend.ensure_cluster(lambda line: None)
        deadline = time.monotonic() + PATIENCE_S
        while not self._backend.connect().objects("nodes"):
            assert time.monotonic() < deadline, "the simulated node did not come"
        self._backend.provide_image(lambda line: None)
        handle = self._handle()
        server = {"url": handle.url, "token": handle.token, "time_scale": self._settings.rehearsal.time_scale}
        (self._place.state / SERVER).write_text(json.dumps(server))
        (self._place.state / "kubeconfig").write_text(facts.kubeconfig.read_text())
        (self._place.state / "context").write_text(facts.context)

    @property
    def pid(self) -> int:
        """Process of the API server."""
        return self._handle().pid

    def close(self) -> None:
        self._backend.remove_cluster(lambda line: None)

    def _handle(self) -> process.ServerHandle:
        handle = process.find(self._settings.lab_dir / "rehearsal")
        assert handle is not None, "the simulated cluster does not run"
        return handle


@contextlib.contextmanager
def simulated_cluster(place: Workplace, folder: Path) -> Iterator[SimulatedCluster]:
    """A simulated cluster that is gone afterwards."""
    cluster = SimulatedCluster(place, folder)
    try:
        yield cluster
    finally:
        cluster.close()
