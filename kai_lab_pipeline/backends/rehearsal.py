"""The embedded rehearsal: simulated components behind a Kubernetes HTTP API of our own process. No Docker, seconds.

It is a model. Everything it gives is marked ``rehearsal``, and nothing of it passes for a real result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kai_lab_pipeline.backends.base import ClusterFacts, Log, StepFacts
from kai_lab_pipeline.clients.kubernetes import Cluster
from kai_lab_pipeline.lab.errors import LabError, WrongUse, is_about_the_request
from kai_lab_pipeline.rehearsal import helm, process, state
from kai_lab_pipeline.rehearsal.client import ApiError as ClientError
from kai_lab_pipeline.rehearsal.components.faults import Faults
from kai_lab_pipeline.rehearsal.profiles import UnknownVersion
from kai_lab_pipeline.settings import BackendName, Chart, Settings


@contextmanager
def _told() -> Iterator[None]:
    """Errors of the rehearsal's own parts, as errors a person can act on."""
    try:
        yield
    except UnknownVersion as error:
        raise LabError(
            "The rehearsal has no such chart", seen=str(error), next_step="Choose a version that the rehearsal knows."
        ) from error
    except helm.HelmError as error:
        raise LabError(
            "helm could not do it", where="the rehearsal's helm", seen=str(error).strip(), finding=error.finding
        ) from error
    except ClientError as error:
        raise LabError(
            "The rehearsal's API server did not do it", seen=str(error), finding=is_about_the_request(error.code)
        ) from error
    except process.RehearsalError as error:
        raise LabError(error.what, where=error.where, seen=error.seen, next_step=error.next) from error
    except ValueError as error:
        raise WrongUse("The rehearsal cannot be set up like this", seen=str(error)) from error


def rehearsed(settings: Settings) -> dict[str, Any]:
    """What the lab's server is started with that decides how its cluster behaves."""
    return {
        "crossing": settings.boundary.crossing,
        "scenario": settings.rehearsal.scenario or None,
        "faults": dict(settings.rehearsal.faults),
    }


class RehearsalBackend:
    """Implements `backends.base.Backend` on the rehearsal's own API server."""

    def __init__(self, settings: Settings) -> None:
        """Raises WrongUse for a fault that the rehearsal does not know."""
        self._settings = settings
        with _told():
            Faults.parse(rehearsed(settings)["faults"])
        self._folder = settings.lab_dir / "rehearsal"

    @property
    def name(self) -> BackendName:
        return "rehearsal"

    @property
    def time_scale(self) -> float:
        return self._settings.rehearsal.time_scale

    @property
    def makes_cluster(self) -> bool:
        return True

    def was_there(self, resource: str, namespace: str | None, name: str) -> bool:
        """Nothing was there before a cluster that the lab makes itself."""
        return False

    def note_made(self, resource: str, namespace: str | None, name: str) -> None:
        """The cluster goes as a whole."""

    def keep_output(self, folder: Path) -> None:
        """The rehearsal calls no command lines."""

    def skips(self) -> Mapping[str, str]:
        return {}

    def crossing(self) -> str | None:
        return self._settings.boundary.crossing

    def kubeconfig_hint(self) -> Path:
        return self._folder / "kubeconfig"

    def _options(self) -> dict[str, Any]:
        profile = self._settings.profile
        return {
            "name": self._settings.lab.name,
            "time_scale": self.time_scale,
            **rehearsed(self._settings),
            "profile": {
                "name": profile.name,
                "gpu_count": profile.gpu_count,
                "gpu_memory_mib": profile.gpu_memory_mib,
                "gpu_product": profile.gpu_product,
            },
        }

    def ensure_cluster(self, log: Log) -> ClusterFacts:
        wanted, living = rehearsed(self._settings), self._living_options()
        others = [key for key, value in wanted.items() if (value or None) != (living.get(key) or None)]
        if self.cluster_exists() and others:
            # What was rehearsed before has left its marks, which must not be taken for those of what is now.
            before, after = (options.get("scenario") or "no scenario" for options in (living, wanted))
            said = f"it rehearsed {before}, and now {after}" if before != after else f"another {' and '.join(others)}"
            log(f"the lab is made anew: {said}")
            self.remove_cluster(log)
        kept = self.cluster_exists()  # a server that had stopped goes on with its state: that is the same cluster
        handle = self._ensure()
        cluster = self.connect()
        incarnation = cluster.incarnation()
        log(f"{'started' if handle.started else 'found'} the rehearsal's API server at {handle.url}, pid {handle.pid}")
        return ClusterFacts(
            kubeconfig=handle.kubeconfig,
            context=cluster.context,
            incarnation=incarnation,
            made=not kept,
            note="simulated components behind an API server of our own; not a real cluster",
        )

    def connect(self) -> Cluster:
        handle = self._handle()
        return Cluster(handle.kubeconfig, f"kai-lab-rehearsal-{self._settings.lab.name}")

    def _living_options(self) -> Mapping[str, Any]:
        """What the lab's server was last started with; empty where there is none."""
        return state.read_json(self._folder / state.OPTIONS) or {}

    def living_scenario(self) -> str | None:
        """The scenario that the lab's server rehearses; None for none."""
        return self._living_options().get("scenario")

    def _handle(self) -> process.ServerHandle:
        wanted, there = self._settings.rehearsal.scenario, self.living_scenario()
        if wanted and wanted != there and self.cluster_exists():
            raise WrongUse(
                f"This lab rehearses {there or 'no scenario'}, and scenario {wanted} is asked for",
                where=str(self._folder),
                next_step=f"Begin with the cluster, which is made anew for it: kai-lab run --scenario {wanted}.",
            )
        handle = process.find(self._folder)
        if handle is None:
            # The server stopped (idle, killed, rebooted) and left its state: it goes on where it was.
            idle_stop_s = self._settings.rehearsal.idle_stop_s
            with _told():
                handle = process.revive(self._folder, name=self._settings.lab.name, idle_stop_s=idle_stop_s)
        if handle is None:
            raise LabError(
                "The lab has no cluster",
                where=str(self._folder),
                next_step="Materialise 'cluster' first, or the whole lab with 'kai-lab run'.",
            )
        return handle

    def _ensure(self) -> process.ServerHandle:
        with _told():
            return process.ensure(
                self._folder,
                name=self._settings.lab.name,
                options=self._options(),
                idle_stop_s=self._settings.rehearsal.idle_stop_s,
            )

    def provide_image(self, log: Log) -> StepFacts:
        handle = self._handle()
        image = self._settings.image.nvml_mock.name
        node = f"{self._settings.lab.name}-control-plane"
        with _told():
            changed = helm.provide_image(handle.url, handle.token, node, image)
        return StepFacts(f"image {image} is named on node {node}; nothing was built", changed=bool(changed))

    def image_digests(self) -> Mapping[str, frozenset[str]]:
        """None: the nodes only name the image."""
        return {}

    def install(self, component: str, chart: Chart, log: Log, *, repair: bool = False) -> StepFacts:
        handle = self._handle()
        with _told():
            # The lab has one writer: a helm that is still at work on its release was killed.
            left = helm.heal(handle.url, handle.token, release=chart.release, namespace=chart.namespace)
            there = helm.deployed(
                handle.url,
                handle.token,
                release=chart.release,
                namespace=chart.namespace,
                chart=chart.chart,
                version=chart.version,
                values=dict(chart.values),
            )
        if left:
            log(f"{chart.release} was left {left} by an earlier run; healed it")
        if there is not None and not repair:
            said = f"{there['chart']} is already deployed with these values, revision {there['revision']}"
            return StepFacts(said, changed=False, facts={"chart": there["chart"]})
        with _told():
            row = helm.install_or_upgrade(
                handle.url,
                handle.token,
                release=chart.release,
                namespace=chart.namespace,
                chart=chart.chart,
                version=chart.version,
                values=dict(chart.values),
                time_scale=self.time_scale,
                wait_s=120.0,
            )
        log(f"helm: {row['name']} {row['status']}, {row['chart']}, revision {row['revision']}")
        return StepFacts(f"{row['chart']} {row['status']}, revision {row['revision']}", facts={"chart": row["chart"]})

    def render(self, chart: Chart, archive: Path) -> Sequence[Mapping[str, Any]]:
        """By the rehearsal's helm, which knows its charts by name and version: the archive is not looked into."""
        with _told():
            return helm.template(
                release=chart.release,
                namespace=chart.namespace,
                chart=chart.chart,
                version=chart.version,
                values=dict(chart.values),
            )

    def manifest(self, chart: Chart) -> Sequence[Mapping[str, Any]]:
        handle = self._handle()
        with _told():
            return helm.manifest(handle.url, handle.token, release=chart.release, namespace=chart.namespace)

    def releases(self) -> Sequence[Mapping[str, Any]]:
        handle = self._handle()
        with _told():
            return list(helm.list_releases(handle.url, handle.token))

    def uninstall(self, component: str, chart: Chart, log: Log) -> StepFacts:
        handle = self._handle()
        if not any(row["name"] == chart.release and row["namespace"] == chart.namespace for row in self.releases()):
            return StepFacts(f"release {chart.release} is not there", changed=False)
        with _told():
            kept = helm.uninstall(handle.url, handle.token, release=chart.release, namespace=chart.namespace)
        return StepFacts(f"release {chart.release} uninstalled", facts={"kept": ", ".join(kept)} if kept else {})

    def remove_cluster(self, log: Log) -> StepFacts:
        if not self.cluster_exists():
            return StepFacts("there is no cluster", changed=False)
        with _told():
            process.stop(self._folder, forget=True)
        if process.find(self._folder) is not None:
            raise LabError("The rehearsal's server is still running after it was stopped", where=str(self._folder))
        return StepFacts("the rehearsal's server is stopped and its state is gone")

    def cluster_exists(self) -> bool:
        return (self._folder / "server.json").exists() or (self._folder / "rehearsal.db").exists()
