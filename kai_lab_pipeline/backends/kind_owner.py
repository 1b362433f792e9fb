"""Whose kind cluster it is: what the lab noted when it made one, held against the node containers and the mark.

A name proves nothing: a person may delete the lab's cluster and make another one of the same name. The mark on the
cluster itself decides; where the API does not answer, the ids of the node containers do, which no later node has.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from kai_lab_pipeline.backends.owner import lab_id, read_mark
from kai_lab_pipeline.clients.docker import Docker
from kai_lab_pipeline.clients.kind import Kind
from kai_lab_pipeline.clients.kubernetes import ApiError, Cluster
from kai_lab_pipeline.clients.process import write_file
from kai_lab_pipeline.clients.tools import ToolError
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.settings import Settings

MAKING, MADE = "making", "made"
TOUCH_S = 1.0
"""How often the record is touched while kind makes the cluster, seconds."""
_CLOCK = timedelta(seconds=5)
"""How far the daemon's clock and the file system's may be apart, and what a killed kind may still bring about."""


@dataclass(frozen=True)
class Record:
    """What ``kind.json`` in the lab's folder says about the cluster."""

    cluster: str
    state: str
    """``making`` until the cluster is whole, then ``made``."""
    since: str
    """When making began, RFC 3339."""
    daemon: str = ""
    """Id of the docker daemon it was made on; empty where the daemon has none."""
    made_from: str = ""
    """`made_from` of the settings at that time; empty where that is not known."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Container id by node."""
    preloaded: Sequence[str] = ()
    """Archives that were loaded into these nodes, each by a word that changes with the file."""


def made_from(settings: Settings) -> str:
    """A short hash of what a kind cluster is made from: node image, the config's text, mirrors and ca_file.

    A file that is not there counts as empty: who needs it says so.
    """
    kind = settings.kind
    files = [kind.config, settings.ca_file]
    parts = [
        kind.node_image,
        dict(settings.mirrors),
        [_text(settings.project_file(name)) if name else None for name in files],
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


class KindOwner:
    """The record of one lab, and the questions that it answers with docker, kind and the cluster's own mark."""

    def __init__(self, settings: Settings, docker: Docker, kind: Kind, *, scratch: Path | None = None) -> None:
        """`scratch` is where a kubeconfig is looked at; the lab's own folder unless it is named."""
        self._settings = settings
        self._docker = docker
        self._kind = kind
        self._name = settings.lab.name
        self._context = f"kind-{self._name}"
        self._file = settings.lab_dir / "kind.json"
        self._kubeconfig = settings.lab_dir / "kubeconfig"
        self._scratch = scratch or settings.lab_dir

    # -- the record --------------------------------------------------------------------------------------------------

    def record(self) -> Record | None:
        """What this lab noted about a cluster of this name, or None."""
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            known = {name: found[name] for name in Record.__dataclass_fields__ if name in found}
            record = Record(**{"since": "", **known})
        except (OSError, ValueError, TypeError):
            return None
        return record if record.cluster == self._name else None

    def note_making(self) -> None:
        """Note that making begins."""
        now = datetime.now(timezone.utc).isoformat()
        self._write(Record(self._name, MAKING, now, self._docker.daemon().id, made_from(self._settings)))

    def note_nodes(self, state: str = MAKING) -> None:
        """Note the node containers that are there now as those that the lab made."""
        # Without a record nobody knows what an adopted cluster was made from.
        record = self.record() or Record(self._name, state, "")
        self._write(replace(record, state=state, daemon=self._docker.daemon().id, nodes=self._node_ids()))

    def preloaded(self, word: str) -> bool:
        """Whether the archive is noted as loaded into the nodes that are there now."""
        record = self.record()
        return record is not None and word in record.preloaded

    def note_preloaded(self, word: str) -> None:
        """Note that an archive was loaded into the nodes."""
        record = self.record()
        if record is not None:
            self._write(replace(record, preloaded=[*record.preloaded, word]))

    @contextlib.contextmanager
    def touched(self) -> Iterator[None]:
        """Touch the record again and again while kind works: nodes made long after the last touch are not ours."""
        stop = threading.Event()

        def touch() -> None:
            while not stop.wait(TOUCH_S):
                with contextlib.suppress(OSError):
                    os.utime(self._file)

        thread = threading.Thread(target=touch, name="making", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)
        self._kubeconfig.unlink(missing_ok=True)

    def _write(self, record: Record) -> None:
        partial = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        write_file(partial, json.dumps(asdict(record), indent=1))
        os.replace(partial, self._file)

    # -- the nodes ---------------------------------------------------------------------------------------------------

    def made_nodes(self) -> bool:
        """Whether the nodes are the very containers that this lab noted; no, where docker does not know them."""
        record = self.record()
        if record is None or not record.nodes or not all(record.nodes.values()):
            return False
        return record.nodes == self._node_ids()

    def made_otherwise(self) -> bool:
        """Whether the settings that make a cluster have changed since this lab made it."""
        record = self.record()
        return record is not None and record.made_from not in ("", made_from(self._settings))

    def half_made(self) -> bool:
        """Whether the nodes are what a run of this lab left that was cut off while it made them."""
        record = self.record()
        if record is None or record.state != MAKING:
            return False
        if record.nodes:
            return self.made_nodes()
        try:
            since = datetime.fromisoformat(record.since).astimezone(timezone.utc) - _CLOCK
            until = datetime.fromtimestamp(self._file.stat().st_mtime, timezone.utc) + _CLOCK
        except (OSError, ValueError, TypeError):
            return False
        made = [self._docker.created(node) for node in self._kind.containers(self._name)]
        return bool(made) and all(time is not None and since <= time <= until for time in made)

    def _node_ids(self) -> dict[str, str]:
        return {node: self._docker.container_id(node) or "" for node in self._kind.containers(self._name)}

    # -- the mark ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def exported(self) -> Iterator[Cluster]:
        """The cluster of this name as it is now, by a kubeconfig of its own that is gone afterwards.

        The lab's own kubeconfig may be that of a cluster which is no more, and must not become a foreign one's.
        """
        self._scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=self._scratch, prefix=".kubeconfig-") as folder:
            file = Path(folder) / "kubeconfig"
            self._kind.export_kubeconfig(self._name, file)
            yield Cluster(file, self._context)

    def keep(self, cluster: Cluster) -> Cluster:
        """Make an exported kubeconfig, whose cluster was seen to be ours, the lab's own."""
        cluster.kubeconfig.chmod(0o600)
        os.replace(cluster.kubeconfig, self._kubeconfig)
        return Cluster(self._kubeconfig, self._context)

    def refuse_unmarked(self, cluster: Cluster) -> None:
        """Raises LabError unless the cluster carries this lab's mark, ApiError when it does not answer."""
        mark = read_mark(cluster)
        if mark is None:
            raise self.foreign("it carries no lab's mark")
        if not self._is_ours(mark.lab_id):
            raise self.foreign(f"its mark says: lab {mark.lab!r} with another state folder, since {mark.since}")
        if not mark.made:
            raise self.foreign("its mark says that this lab was given it, and did not make it")

    def refuse_foreign(self) -> None:
        """Raises LabError unless the cluster of this name is ours: by its mark, or, unanswering, by its containers."""
        if self.half_made():
            return
        try:
            with self.exported() as cluster:
                self.refuse_unmarked(cluster)
        except (ApiError, ToolError) as error:
            if not self.made_nodes():
                why = f"it does not answer ({error.seen}), and its nodes are not those that this lab made"
                raise self.foreign(why) from error

    def foreign(self, why: str) -> LabError:
        return LabError(
            f"There is a kind cluster {self._name} that this lab did not make",
            where=f"kind get clusters; state folder {self._settings.lab_dir}",
            seen=why,
            next_step="Give the lab another name (lab.name in lab.toml, KAI_LAB_NAME), or, if nobody needs it, remove "
            f"it: kind delete cluster --name {self._name}",
        )

    def _is_ours(self, mark_id: str) -> bool:
        folder = self._settings.lab_dir
        return (folder / "id").is_file() and mark_id == lab_id(folder)

    # -- where it is -------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether kind has a cluster of this name. Raises LabError where it looks elsewhere than where ours is."""
        record = self.record()
        if record is not None and record.daemon:
            daemon = self._docker.daemon().id
            if daemon and daemon != record.daemon and not self.made_nodes():
                raise self._elsewhere(f"the cluster was made on docker daemon {record.daemon}, this is {daemon}")
        if self._name in self._kind.clusters():
            return True
        if self._answers():
            raise self._elsewhere(f"kind lists no {self._name}, and its API server answers with this lab's mark")
        return False

    def _answers(self) -> bool:
        if not self._kubeconfig.is_file():
            return False
        try:
            mark = read_mark(Cluster(self._kubeconfig, self._context))
        except LabError:
            return False
        return mark is not None and self._is_ours(mark.lab_id)

    def _elsewhere(self, why: str) -> LabError:
        return LabError(
            f"docker and kind do not look where the kind cluster {self._name} of this lab is",
            where="docker info; DOCKER_HOST, DOCKER_CONTEXT, KIND_EXPERIMENTAL_PROVIDER",
            seen=why,
            next_step="Point docker back to where it was ('docker context ls' lists the contexts), and run it again. "
            f"If that cluster is gone for good: rm {self._file} {self._kubeconfig}",
        )
