"""Puts the components of one simulated cluster together and starts them."""

from __future__ import annotations

from kai_lab_pipeline.rehearsal.components.daemonsets import DaemonSetController
from kai_lab_pipeline.rehearsal.components.default_scheduler import DefaultScheduler
from kai_lab_pipeline.rehearsal.components.jobs import JobController
from kai_lab_pipeline.rehearsal.components.kai_binder import Binder
from kai_lab_pipeline.rehearsal.components.kai_groups import PodGroupController, PodGrouper, QueueController
from kai_lab_pipeline.rehearsal.components.kai_operator import Operator
from kai_lab_pipeline.rehearsal.components.kai_scheduler import Scheduler
from kai_lab_pipeline.rehearsal.components.kubelet import Kubelet
from kai_lab_pipeline.rehearsal.components.kubelet_server import KubeletApp
from kai_lab_pipeline.rehearsal.components.namespaces import NamespaceDefaults
from kai_lab_pipeline.rehearsal.components.node import Node
from kai_lab_pipeline.rehearsal.components.runtime import Controller, Sim
from kai_lab_pipeline.rehearsal.components.serving import LocalServer
from kai_lab_pipeline.rehearsal.components.webhooks import Endpoints, WebhookApp
from kai_lab_pipeline.rehearsal.components.workloads import DeploymentController, ReplicaSetController

_CACHED = (
    "nodes",
    "namespaces",
    "pods",
    "configmaps",
    "secrets",
    "serviceaccounts",
    "services",
    "runtimeclasses",
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
)


async def assemble(sim: Sim) -> None:
    """Starts everything; returns when all of it runs."""
    node = Node(sim)
    kubelet = Kubelet(sim, node)
    certificates = sim.state_dir / "certificates"
    ports = sim.state_dir / "ports"
    kubelet_server = LocalServer(KubeletApp(kubelet), ports / "kubelet", certificates=certificates)
    tls = certificates if sim.options.webhook_url_mode else None
    webhook_server = LocalServer(WebhookApp(sim), ports / "webhooks", certificates=tls)
    controllers: list[Controller] = [
        DefaultScheduler(sim),
        Endpoints(sim, webhook_server),
        Operator(sim),
        PodGrouper(sim),
        PodGroupController(sim),
        QueueController(sim),
        Scheduler(sim),
        Binder(sim),
    ]
    if sim.options.kube_controllers:
        controllers += [
            DeploymentController(sim),
            ReplicaSetController(sim),
            DaemonSetController(sim),
            JobController(sim),
            NamespaceDefaults(sim),
        ]
    for plural in _CACHED:
        sim.of(plural)
    sim.spawn(kubelet_server.serve(), "kubelet server")
    sim.spawn(webhook_server.serve(), "webhook server")
    await sim.informers.start()
    await node.register(kubelet_server.port)
    kubelet.start()
    for controller in controllers:
        controller.start()
