"""The project's manifests: files of Kubernetes objects, as the lab applies them."""

from __future__ import annotations

from typing import Any

import yaml

from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.settings import Settings

CANARY = "manifests/canary-pod.yaml"
QUEUES = "manifests/queues.yaml"
RUNTIME_CLASS = "manifests/runtime-class.yaml"
SHARED_POD = "manifests/shared-gpu-pod.yaml"
WHOLE_POD = "manifests/whole-gpu-pod.yaml"
"""The device plugin's manifest is named in lab.toml."""


_NAMESPACED = frozenset({"Pod", "DaemonSet", "Deployment", "Service", "ConfigMap"})


class ManifestError(LabError):
    """A manifest file that cannot be used: wrong use, nothing was touched."""

    exit_code = 2


def load_manifest(settings: Settings, name: str) -> list[dict[str, Any]]:
    """The objects of a manifest file of the project; without a namespace they go to ``default``, as with kubectl.

    Raises ManifestError that names the file, and the line where it is not YAML or the document that is no object.
    """
    path = settings.project_file(name)
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ManifestError("A manifest cannot be read", where=str(path), seen=str(error.strerror)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ManifestError("A manifest is not YAML", where=str(path), seen=str(error)) from error
    objects = [document for document in documents if document is not None]
    for index, document in enumerate(objects):
        if not _is_object(document):
            raise ManifestError(
                "A manifest holds something that is no Kubernetes object",
                where=f"{path}, document {index + 1}",
                seen=str(document)[:200],
                next_step="Every document needs apiVersion, kind and metadata.name.",
            )
    if not objects:
        raise ManifestError("A manifest is empty", where=str(path))
    for document in objects:
        if document["kind"] in _NAMESPACED:
            document["metadata"].setdefault("namespace", "default")
    return objects


def lab_queue(settings: Settings) -> dict[str, Any]:
    """The queue that the lab's pods name. Raises ManifestError when the manifest has none of that name."""
    for queue in load_manifest(settings, QUEUES):
        if queue["metadata"]["name"] == "default-queue":
            return queue
    raise ManifestError(
        "The manifest of the queues has no queue 'default-queue'",
        where=str(settings.project_file(QUEUES)),
        next_step="The lab's pods are accounted to it (label kai.scheduler/queue): put it back.",
    )


def _is_object(document: Any) -> bool:
    if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
        return False
    words = (document.get("apiVersion"), document.get("kind"), document["metadata"].get("name"))
    return all(isinstance(word, str) and word for word in words)
