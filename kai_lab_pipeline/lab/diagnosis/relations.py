"""What objects say about each other or by their labels alone: things no status ever tells.

Used where a person hands in objects. A bundle is judged by the lab's checks in place of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kai_lab_pipeline.lab.claims.reading import GPU_RESOURCE, MEMORY_LABEL
from kai_lab_pipeline.lab.diagnosis.model import Fact
from kai_lab_pipeline.lab.diagnosis.objects import names_of
from kai_lab_pipeline.lab.evidence import K8sObject, annotations_of, labels_of, mapping, name_of, spec_of, status_of
from kai_lab_pipeline.lab.gpu import BYTES_FROM, FRACTION_ANNOTATION, MEMORY_ANNOTATION

QUEUE_LABELS = ("kai.scheduler/queue", "runai/queue")
_LEAST_MIB = 100
_MISSPELT = (MEMORY_LABEL, "nvidia.com/gpu-memory", "gpu.memory", "kai.scheduler/gpu-memory")


def relation_facts(objects: Sequence[K8sObject]) -> Iterator[Fact]:
    """Facts about GPU labels of nodes, sharing annotations of pods, and queues with those who name them."""
    queues = {name_of(obj): obj for obj in objects if obj.get("kind") == "Queue"}
    for obj in objects:
        if obj.get("kind") == "Node":
            yield from _node_facts(obj)
        elif obj.get("kind") == "Pod":
            yield from _annotation_facts(obj)
            yield from _pod_queue_facts(obj, queues)
        elif obj.get("kind") == "Queue":
            yield from _queue_facts(obj, queues)


def _fact(kind: str, obj: K8sObject, message: str, names: Mapping[str, str] | None = None, **attributes: str) -> Fact:
    line = f"{obj.get('kind')} {name_of(obj)}: {message}"
    return Fact(kind, message, line, attributes, {**names_of(obj), **(names or {})})


def _node_facts(node: K8sObject) -> Iterator[Fact]:
    allocatable = mapping(status_of(node).get("allocatable")).get(GPU_RESOURCE)
    if allocatable is None and GPU_RESOURCE not in mapping(status_of(node).get("capacity")):
        return
    text = str(labels_of(node).get(MEMORY_LABEL, ""))
    if not text:
        yield _fact("label", node, f"has {allocatable} GPUs and no label {MEMORY_LABEL}", state="memory")
    elif not (text.isascii() and text.isdigit()):
        yield _fact("label", node, f"{MEMORY_LABEL} is {text!r}: a plain number of MiB is wanted", state="memory")
    elif not _LEAST_MIB <= int(text[:20]) < BYTES_FROM:
        yield _fact("label", node, f"{MEMORY_LABEL} is {text[:20]}, which is no card's memory in MiB", state="memory")


def _annotation_facts(pod: K8sObject) -> Iterator[Fact]:
    annotations = annotations_of(pod)
    wrong = [key for key in _MISSPELT if key in annotations]
    if wrong and not any(key in annotations for key in (MEMORY_ANNOTATION, FRACTION_ANNOTATION)):
        yield _fact("label", pod, f"has annotation {wrong[0]}, which KAI does not read", state="annotation")


def _queue_of(pod: K8sObject) -> str:
    return str(next((labels_of(pod)[key] for key in QUEUE_LABELS if key in labels_of(pod)), ""))


def _pod_queue_facts(pod: K8sObject, queues: Mapping[str, K8sObject]) -> Iterator[Fact]:
    queue = _queue_of(pod)
    if not queues or not queue:
        return
    if queue not in queues:
        yield _fact("relation", pod, f"names queue {queue}, which is not there", {"queue": queue}, state="no_queue")
    elif any(spec_of(other).get("parentQueue") == queue for other in queues.values()):
        message = f"names queue {queue}, which has children: pods belong in a leaf queue"
        yield _fact("relation", pod, message, {"queue": queue}, state="not_leaf")


def _queue_facts(queue: K8sObject, queues: Mapping[str, K8sObject]) -> Iterator[Fact]:
    parent = str(spec_of(queue).get("parentQueue") or "")
    if len(queues) > 1 and parent and parent not in queues:
        yield _fact("relation", queue, f"hangs under queue {parent}, which is not there", state="orphan")
