"""The nvml-mock image on the nodes of a kind cluster: from an archive, a checkout or a git ref; loaded, and verified.

The node is asked what it has: `kind load` may exit 0 while the image is not there (multi-platform manifests in Docker's
containerd store), and then an archive of one platform helps.

Labs of one state folder share the clones, and all of a machine share the image's name: one at a time clones, builds and
loads, and a name that somebody else gave to another image meanwhile is told.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kai_lab_pipeline.backends.base import Log, StepFacts
from kai_lab_pipeline.clients.docker import Docker
from kai_lab_pipeline.clients.image_archive import image_id_in
from kai_lab_pipeline.clients.kind import Kind
from kai_lab_pipeline.clients.redaction import redact
from kai_lab_pipeline.clients.tools import Hint, Runner, Tool, ToolError, ToolTimeout
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
        self._sources = settings.state_root / "sources"

    def archive(self) -> Path | None:
        """The archive that the settings name; raises WrongUse when it is not there."""
        return self.file(self._image.archive, "image.nvml_mock.archive") if self._image.archive else None

    def file(self, name: str, key: str) -> Path:
        """A file that the settings name under `key`; raises WrongUse when it is not there."""
        path = self._settings.project_file(name)
        if not path.exists():
            raise WrongUse(f"{key} names {name}, and it is not there", where=str(path), next_step=f"Correct {key}.")
        return path

    def prepare(self, log: Log) -> None:
        """Have the image in the local docker before its own step, without touching a cluster.

        Nothing is done where an archive is used, or while another lab is at work on its image: that would hold up the
        cluster, and the image's own step waits.
        """
        if self.archive() is None:
            with self._alone(log, wait=False) as alone:
                if alone:
                    self._built(log)

    def provide(self, cluster: str, log: Log) -> StepFacts:
        """Put the image on every node of the kind cluster, and see that it is there."""
        nodes = self._kind.nodes(cluster)
        if not nodes:
            raise LabError(
                f"There is no kind cluster {cluster}", next_step="Materialise 'cluster' first, or the whole lab."
            )
        archive = self.archive()
        facts = {"image": self._image.name, "nodes": ", ".join(nodes)}
        if archive is not None:
            facts |= {"archive": archive.name, "archive_digest": _digest(archive)}
            held = image_id_in(archive, self._image.name)
            if held is not None and not self._missing(nodes, held):
                return StepFacts(f"{self._image.name} is already on {facts['nodes']}", changed=False, facts=facts)
            self._kind.load_archive(cluster, archive, log=log)
        else:
            with self._alone(log):
                facts["image_id"] = image_id = self._built(log)
                if not self._missing(nodes, image_id):
                    return StepFacts(f"{self._image.name} is already on {facts['nodes']}", changed=False, facts=facts)
                facts["loaded"] = self._load(cluster, nodes, log)
                self._refuse_another(image_id)
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

    def preloads(self) -> dict[str, Path]:
        """The archives that kind.preload names, each by a word that changes with the file: its name, size and time.

        Raises WrongUse where one is not there.
        """
        files = [(name, self.file(name, "kind.preload")) for name in self._settings.kind.preload]
        return {f"{name} {file.stat().st_size} {file.stat().st_mtime_ns}": file for name, file in files}

    @contextlib.contextmanager
    def _alone(self, log: Log, *, wait: bool = True) -> Iterator[bool]:
        """Keep other labs of this state folder from cloning, building and loading; False where another one does.

        With `wait` it is waited for. What a killed one left half done is removed first.
        """
        self._sources.mkdir(parents=True, exist_ok=True)
        with open(self._sources / "lock", "a", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    log("another lab is at work on its image; that of this lab comes in its own step")
                    yield False
                    return
                log("another lab is at work on its image; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            for left in self._sources.glob("partial-*"):
                shutil.rmtree(left, ignore_errors=True)
            yield True

    @contextlib.contextmanager
    def _partial(self) -> Iterator[Path]:
        """A folder for what is no good by halves."""
        with tempfile.TemporaryDirectory(dir=self._sources, prefix="partial-") as folder:
            yield Path(folder)

    def _refuse_another(self, image_id: str) -> None:
        """Raises LabError where the name no longer is that of the image that was built: then another one was loaded.

        The nodes' own ids do not tell: with Docker's containerd store they are of another kind.
        """
        name = self._image.name
        now = self._docker.image_id(name)
        if now != image_id:
            raise LabError(
                f"{name} became another image while it was loaded",
                where=f"docker image inspect {name}",
                seen=f"built {image_id}, the name is now that of {now or 'none'}",
                next_step="Run it again when nobody else builds an image of this name, or name it otherwise "
                "(image.nvml_mock.name and the chart's image.repository and image.tag in lab.toml).",
                transient=True,
            )

    def _built(self, log: Log) -> str:
        name = self._image.name
        if self._image.checkout:
            context = self.file(self._image.checkout, "image.nvml_mock.checkout")
            source = str(context)
        else:
            context, commit = self._clone(log)
            # The image goes where others read its labels; and other credentials give no other commit.
            source = redact(f"{self._image.source}@{self._image.git_ref}#{commit}")
            found = self._docker.image_id(name)
            if found is not None and self._docker.label(name, SOURCE_LABEL) == source:
                log(f"{name} was built from {self._image.git_ref} ({commit[:12]}) before; using it")
                return found
        log(f"building {name} from {context}")
        dockerfile = context / self._image.dockerfile
        labels = {SOURCE_LABEL: source}
        return self._docker.build(context, dockerfile, name, labels=labels, deadline_s=BUILD_DEADLINE_S, log=log)

    def _clone(self, log: Log) -> tuple[Path, str]:
        """A clone of the source at the git ref below the lab's state folder, whole or not at all, and its commit.

        It is made once, and again when the ref is a branch that has moved since; a tag stays what it was.
        """
        image = self._image
        origin = hashlib.sha256(image.source.encode()).hexdigest()[:8]
        target = self._sources / f"nvml-mock-{image.git_ref.replace('/', '_')}-{origin}"
        commit = self._commit(target)
        if commit is not None and not self._moved(target, commit, log):
            return target, commit
        log(redact(f"cloning {image.git_ref} of {image.source}"))
        with self._partial() as folder:
            partial = folder / "clone"
            arguments = ("clone", "--depth", "1", "--branch", image.git_ref, "--", image.source)
            what = f"git could not clone {image.git_ref}"
            cloned = self._git.call(
                *arguments, str(partial), what=what, deadline_s=CLONE_DEADLINE_S, log=log, hints=GIT_HINTS
            )
            commit = self._commit(partial)
            if commit is None:
                raise ToolError(cloned, f"git cloned {image.git_ref}, and the clone has no commit")
            if target.exists():
                shutil.rmtree(target)
            os.rename(partial, target)
        return target, commit

    def _commit(self, clone: Path) -> str | None:
        """The commit of a clone; None where there is none that git can read."""
        if not (clone / ".git").exists():
            return None  # git would look for a repository in the folders above
        outcome = self._git.attempt("-C", str(clone), "rev-parse", "HEAD")
        return outcome.stdout.strip() or None if outcome.exit_code == 0 else None

    def _moved(self, clone: Path, commit: str, log: Log) -> bool:
        """Whether the branch that was cloned is elsewhere at its source by now; no, where that cannot be asked."""
        branch = self._git.attempt("-C", str(clone), "symbolic-ref", "--quiet", "HEAD")  # a tag's clone is on none
        if branch.exit_code != 0:
            return False
        ref = branch.stdout.strip()
        try:
            outcome = self._git.attempt("ls-remote", "--", self._image.source, ref)
            there, said = outcome.stdout.split()[:1] if outcome.exit_code == 0 else [], outcome.last_lines(1)
        except ToolTimeout as error:  # a firewall that drops what it does not let through
            there, said = [], error.what
        if not there:
            log(f"whether {ref} has moved could not be asked; going by {commit[:12]}: {said}")
            return False
        return there != [commit]

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
        with self._partial() as folder:
            archive = folder / "image.tar"
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


def _digest(file: Path) -> str:
    found = hashlib.sha256()
    with open(file, "rb") as content:
        for part in iter(lambda: content.read(1 << 20), b""):
            found.update(part)
    return f"sha256:{found.hexdigest()}"
