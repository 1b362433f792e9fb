"""The command lines of one lab, with everything they write inside its state folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kai_lab_pipeline.clients.helm import Helm
from kai_lab_pipeline.clients.kubeconfig import Kubeconfig, kubeconfig_files
from kai_lab_pipeline.clients.kubernetes import Cluster
from kai_lab_pipeline.clients.process import Toolbox
from kai_lab_pipeline.clients.tools import Runner
from kai_lab_pipeline.settings import Settings


def lab_toolbox(settings: Settings) -> Toolbox:
    """Runs commands for a lab; their whole output is kept below its state folder until a run names another place."""
    return Toolbox(settings.lab_dir / "running", transcripts=settings.lab_dir / "commands")


def lab_helm(settings: Settings, runner: Runner, cluster: Cluster) -> Helm:
    """Helm for a cluster, with the lab's own folders, mirrors and certificates."""
    return Helm(
        runner,
        kubeconfig=cluster.kubeconfig,
        context=cluster.context,
        home=settings.lab_dir / "helm",
        root=settings.root,
        mirrors=settings.mirrors,
        ca_file=settings.project_file(settings.ca_file) if settings.ca_file else None,
        backend=settings.lab.backend,
    )


def install_deadline_s(settings: Settings, component: str) -> float:
    """Seconds that helm gets for a chart: its hooks (KAI has three) are waited for."""
    return settings.deadlines.kai_release if component == "kai_scheduler" else settings.deadlines.default


def user_kubeconfig(settings: Settings, environ: Mapping[str, str] | None = None) -> Kubeconfig:
    """The person's kubeconfig: the file that the settings name, or what kubectl would take."""
    named = settings.lab.kubeconfig
    file = settings.project_file(str(Path(named).expanduser())) if named else None
    return Kubeconfig(kubeconfig_files(file, environ))
