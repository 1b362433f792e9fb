"""All known faults, by component: what is searched, and what the page of known issues lists."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.knowledge import (
    api,
    chart,
    connection,
    docker,
    gpus,
    helm,
    host,
    images,
    isolator,
    kai,
    kai_admission,
    kai_queues,
    kind,
    kubectl,
    pods,
    product,
    registry,
    reservation,
    webhooks,
)
from kai_lab_pipeline.lab.diagnosis.model import Fault

FAULTS: tuple[Fault, ...] = (
    *reservation.FAULTS,
    *kai_queues.FAULTS,
    *kai.FAULTS,
    *kai_admission.FAULTS,
    *webhooks.FAULTS,
    *isolator.FAULTS,
    *gpus.FAULTS,
    *images.FAULTS,
    *pods.FAULTS,
    *kubectl.FAULTS,
    *api.FAULTS,
    *connection.FAULTS,
    *helm.FAULTS,
    *chart.FAULTS,
    *registry.FAULTS,
    *kind.FAULTS,
    *docker.FAULTS,
    *host.FAULTS,
    *product.FAULTS,
)
"""In the order of the page of known issues."""
