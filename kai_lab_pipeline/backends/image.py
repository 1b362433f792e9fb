"""The nvml-mock image on the nodes of a kind cluster: from an archive, a checkout or a git ref; loaded, and verified.

The node is asked what it has: `kind load` may exit 0 while the image is not there (multi-platform manifests in Docker's
containerd store), and then an archive of one platform helps.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path

from kai_lab_pipeline.backends.base import Log, StepFacts
from kai_lab_pipeline.clients.docker import Docker
from kai_lab_pipeline.clients.kind import Kind
from kai_lab_pipeline.clients.tools import Hint, Runner, Tool, ToolError
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.settings import Settings

BUILD_DEADLINE_S = 1800.0
CLONE_DEADLINE_S = 300.0
SOURCE_LABEL = "kai-lab.source"
GIT_HINTS = (
    Hint(
        r"remote branch (?P<ref>\S+) not found",
        "there is no branch or tag {ref}",
        "Correct image.nvml_mock.git_ref in lab.toml.",
    ),
    Hint(
        r"repository '[^']*' (?:not found|does not exist)|not appear to be a git repository|could not read username",
        "there is no such repository, or it wants credentials",
        "Correct image.nvml_mock.source in lab.toml, or name a checkout in image.nvml_mock.checkout.",
    ),
)


class ImageProvider:
    """Builds (or takes) the image once, and puts it on every node of a cluster."""

    def __init__(self, settings: Settings, runner: Runner, docker: Docker, kind: Kind) -> None:
        self._settings = settings
        self._image = settings.image.nvml_mock
        self._docker = docker
        self._kind = kind
        # Never a prompt: nobody is there to answer it.
        self._git = Tool(runner, "git", {"GIT_TERMINAL_PROMPT": "0"})
        self._building = threading.Lock()

    def archive(self) -> Path | None:
        """The archive that the settings name; raises WrongUse when it is not there."""
        return self.file(self._image.archive, "image.nvml_mock.archive") if self._image.archive else None

    def file(self, name: str, key: str) -> Path:
        """A file that the settings name under `key`; raises WrongUse when it is not there."""
        path = self._settings.project_file(name)
        if not path.exists():
            raise WrongUse(f"{key} names {name}, and it is not there", where=str(path), next_step=f"Correct {key}.")
        return path

    def prepare(self, log: Log) -> str | None:
        """Have the image in the local docker, without touching a cluster; its id, or None where an archive is used.

        Safe to call while another thread does the same: the second waits and finds it done.
        """
        if self.archive() is not None:
            return None
        with self._building:
            return self._built(log)

    def provide(self, cluster: str, log: Log) -> StepFacts:
        """Put the image on every node of the kind cluster, and see that it is there."""
        nodes = self._kind.nodes(cluster)
        if not nodes:
            raise LabError(
                f"There is no kind cluster {cluster}", next_step="Materialise 'cluster' first, or the whole lab."
            )
        image_id = self.prepare(log)
        archive = self.archive()
        facts = {"image": self._image.name, "nodes": ", ".join(nodes)}
        if archive is not None:
            self._kind.load_archive(cluster, archive, log=log)
            facts["archive"] = archive.name
        else:
            facts["image_id"] = str(image_id)
            if not self._missing(nodes, image_id):
                return StepFacts(f"{self._image.name} is already on {facts['nodes']}", changed=False, facts=facts)
            facts["loaded"] = self._load(cluster, nodes, log)
        missing = self._missing(nodes)
        if missing:
            raise LabError(
                f"{self._image.name} is not on {', '.join(missing)} after it was loaded",
                where=f"docker exec {missing[0]} crictl images",
                seen=f"loaded from {archive}" if archive else "kind load and an archive both ended well",
                next_step="Check that the archive holds this very name (image.nvml_mock.name in lab.toml)."
                if archive
                else "Load it by hand: docker save IMAGE | docker exec -i NODE ctr -n k8s.io images import -",
            )
        return StepFacts(f"{self._image.name} is on {facts['nodes']}", facts=facts)

    def digests(self, cluster: str) -> dict[str, frozenset[str]]:
        """Per node of the kind cluster, the ids and digests of the image of this name that it has now."""
        return {
            node: frozenset().union(
                *(image.digests for image in self._docker.node_images(node) if image.is_called(self._image.name))
            )
            for node in self._kind.nodes(cluster)
        }

    def preload(self, cluster: str, log: Log) -> None:
        """Load the archives that kind.preload names."""
        for name in self._settings.kind.preload:
            log(f"loading {name} into the nodes")
            self._kind.load_archive(cluster, self.file(name, "kind.preload"), log=log)

    def _built(self, log: Log) -> str:
        name = self._image.name
        if self._image.checkout:
            context = self.file(self._image.checkout, "image.nvml_mock.checkout")
        else:
            wanted = f"{self._image.source}@{self._image.git_ref}"
            found = self._docker.image_id(name)
            if found is not None and self._docker.label(name, SOURCE_LABEL) == wanted:
                log(f"{name} was built from {self._image.git_ref} before; using it")
                return found
            context = self._clone(log)
        log(f"building {name} from {context}")
        source = str(context) if self._image.checkout else wanted
        dockerfile = context / self._image.dockerfile
        labels = {SOURCE_LABEL: source}
        return self._docker.build(context, dockerfile, name, labels=labels, deadline_s=BUILD_DEADLINE_S, log=log)

    def _clone(self, log: Log) -> Path:
        """A clone of the source at the git ref below the lab's state folder, made once and whole or not at all."""
        sources = self._settings.state_root / "sources"
        target = sources / f"nvml-mock-{self._image.git_ref.replace('/', '_')}"
        if (target / ".git").exists():
            return target
        sources.mkdir(parents=True, exist_ok=True)
        log(f"cloning {self._image.git_ref} of {self._image.source}")
        with tempfile.TemporaryDirectory(dir=sources) as folder:
            partial = Path(folder) / "clone"
            arguments = ("clone", "--depth", "1", "--branch", self._image.git_ref, "--", self._image.source)
            what = f"git could not clone {self._image.git_ref}"
            self._git.call(*arguments, str(partial), what=what, deadline_s=CLONE_DEADLINE_S, log=log, hints=GIT_HINTS)
            if target.exists():
                shutil.rmtree(target)
            os.rename(partial, target)
        return target

    def _load(self, cluster: str, nodes: tuple[str, ...], log: Log) -> str:
        name = self._image.name
        try:
            self._kind.load_image(cluster, name, log=log)
            if not self._missing(nodes):
                return "kind load docker-image"
            log(f"kind load ended well, and {name} is not on the node; going by an archive")
        except ToolError as error:
            self._docker.daemon()  # kind calls a dead daemon a missing image: then this says the truth
            log(f"kind load did not work ({error.cause or error.tail}); going by an archive")
        with tempfile.TemporaryDirectory(dir=self._settings.lab_dir) as folder:
            archive = Path(folder) / "image.tar"
            self._docker.save([name], archive)
            self._kind.load_archive(cluster, archive, log=log)
        return "docker save and kind load image-archive"

    def _missing(self, nodes: tuple[str, ...], image_id: str | None = None) -> list[str]:
        """Nodes without the image; with an id, also those that have another image of this name."""
        return [
            node
            for node in nodes
            if not any(
                image.is_called(self._image.name) and (image_id is None or image.id == image_id)
                for image in self._docker.node_images(node)
            )
        ]
