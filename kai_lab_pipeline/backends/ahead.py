"""Images that the lab's charts bring, pulled by the nodes while they get ready and the lab's own image is built.

A new kind cluster has none of them, and KAI's alone take longer to come than all that is done before KAI. Which they
are no chart tells (KAI's operator makes the workloads): so a lab remembers what its nodes had when they were removed.
It is a head start and nothing more: what is not there in time the kubelet pulls, and tells.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

from kai_lab_pipeline.backends.base import Log
from kai_lab_pipeline.clients.docker import Docker
from kai_lab_pipeline.clients.tools import ToolError
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.settings import Settings


class PullAhead:
    """The images of one lab's version set."""

    def __init__(self, settings: Settings, docker: Docker) -> None:
        self._file = settings.lab_dir / "images.json"
        self._versions = dict(settings.version_set())
        self._own = settings.image.nvml_mock.name
        self._docker = docker

    def remember(self, nodes: tuple[str, ...], log: Log) -> None:
        """Note what the nodes pulled, before they are removed: not what was loaded, nor what the lab builds itself."""
        try:
            found = {
                image.tag
                for node in nodes
                for image in self._docker.node_images(node)
                if image.tag and image.pulled and not image.is_called(self._own)
            }
            if found:
                content = {"versions": self._versions, "images": sorted(found)}
                self._file.write_text(json.dumps(content, indent=1), encoding="utf-8")
        except (LabError, OSError) as error:
            log(f"the nodes' images could not be noted, the next cluster pulls them later: {error}")

    def known(self) -> tuple[str, ...]:
        """Images that an earlier cluster of these very versions had; none where it is not known."""
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
            return tuple(map(str, content["images"])) if content["versions"] == self._versions else ()
        except (OSError, ValueError, KeyError, TypeError):
            return ()

    def pull(self, nodes: Callable[[], tuple[str, ...]], stop: threading.Event, log: Log) -> None:
        """Let each node pull what it does not have, one image after the other, until `stop`. Raises nothing."""
        images = self.known()
        try:
            for node in nodes() if images else ():
                there = self._docker.node_images(node)
                for image in images:
                    if stop.is_set():
                        return
                    if not any(known.is_called(image) for known in there):
                        self._pull(node, image, stop, log)
        except (LabError, OSError) as error:
            if not stop.is_set():
                log(f"images are not pulled ahead, the pods will pull them: {getattr(error, 'what', error)}")

    def _pull(self, node: str, image: str, stop: threading.Event, log: Log) -> None:
        try:
            self._docker.pull_on_node(node, image)
        except ToolError as error:
            if not stop.is_set():
                log(f"{image} is not pulled ahead: {error.cause or error.tail}")
