"""The project's manifests: files of Kubernetes objects, as the lab applies them."""

from __future__ import annotations

from collections.abc import Mapping
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


JUDGED: Mapping[str, tuple[tuple[str, str], ...]] = {
    CANARY: (("Pod", "default/kai-lab-canary"),),
    QUEUES: (("Queue", "default"), ("Queue", "default-queue")),
    RUNTIME_CLASS: (("RuntimeClass", "nvidia"),),
    SHARED_POD: (("Pod", "default/gpu-sharing-with-isolation"),),
    WHOLE_POD: (("Pod", "default/kai-whole-gpu"),),
}
"""Objects that the checks look for by name, by manifest. Under another name one would be made beside the one of before,
which is then judged in its place."""

_PUT_BACK = "Mend the file, or put back what was there before, then run it again."
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
        raise ManifestError(
            "A manifest cannot be read", where=str(path), seen=str(error.strerror), next_step=_PUT_BACK
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ManifestError("A manifest is not YAML", where=str(path), seen=str(error), next_step=_PUT_BACK) from error
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


def judged_manifest(settings: Settings, name: str) -> list[dict[str, Any]]:
    """The same of a manifest that is to be applied. Raises ManifestError too when it lacks what the checks look for."""
    objects = load_manifest(settings, name)
    there = {(obj["kind"], _full_name(obj)) for obj in objects}
    for kind, wanted in JUDGED.get(name, ()):
        if (kind, wanted) not in there:
            raise ManifestError(
                f"A manifest has no {kind} {wanted}, which the checks look for",
                where=str(settings.project_file(name)),
                seen=", ".join(f"{kind} {found}" for kind, found in sorted(there)),
                next_step="Put its name (and namespace) back: what was made under it is what would be judged.",
            )
    return objects


def _full_name(obj: Mapping[str, Any]) -> str:
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


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
