"""The state folder of one lab: which backend it has, who writes to it, and where evidence and reports lie.

A lab is one folder with one backend, fixed when it is made, so that a simulated green never survives a switch.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kai_lab_pipeline.clients.files import write_atomic
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.settings import Settings

FORMAT = 1
LIVING = "living"
"""File with the incarnation on which the pinned lab was built for an upgrade to meet."""
REMOVED = ".removed-"
"""How folders begin in which a lab's folder is being removed."""
GONE = "gone.json"
"""File with when what was taken away: what was seen of it before is no evidence of what is there."""
NATURE = "nature.json"
"""File with how NVML gets into pods on the lab's cluster, for when that is gone."""


@dataclass(frozen=True)
class LabState:
    """Paths of a lab's state folder; nothing is made until `open` is called."""

    name: str
    backend: str
    folder: Path

    @classmethod
    def of(cls, settings: Settings) -> LabState:
        return cls(settings.lab.name, settings.lab.backend, settings.lab_dir)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def evidence(self) -> Path:
        """One evidence bundle per run, by run id."""
        return self.folder / "evidence"

    @property
    def reports(self) -> Path:
        """One report folder per run, by run id."""
        return self.folder / "reports"

    @property
    def steps(self) -> Path:
        """One folder of step records per run, by run id."""
        return self.folder / "steps"

    @property
    def latest_report(self) -> Path:
        return self.folder / "report"

    def bundle_dir(self, run_id: str) -> Path:
        return self.evidence / run_id

    def recorded(self) -> dict[str, Any] | None:
        """What lab.json says, or None when the lab was never made."""
        try:
            found = json.loads((self.folder / "lab.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise LabError(
                "The lab's own record cannot be read",
                where=str(self.folder / "lab.json"),
                seen=str(error),
                next_step="Run 'kai-lab down --all' to begin anew.",
            ) from error
        return dict(found) if isinstance(found, dict) else {}

    def check_backend(self) -> None:
        """Refuse a lab that was made with another backend. Raises WrongUse."""
        found = self.recorded()
        if found is not None and found.get("backend") != self.backend:
            raise WrongUse(
                f"The lab {self.name!r} was made with backend {found.get('backend')!r}; "
                f"another backend ({self.backend!r}) needs another lab",
                where=str(self.folder),
                next_step="Remove this lab first with 'kai-lab down --all', or leave it and name another one with "
                "KAI_LAB_NAME.",
            )

    def open(self) -> LabState:
        """Make the folder, or check that it is this backend's. Raises WrongUse, LabError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.check_backend()
            if self.recorded() is None:
                record = {"format": FORMAT, "name": self.name, "backend": self.backend, "made_at": now_text()}
                write_atomic(self.folder / "lab.json", json.dumps(record, indent=1))
            check_writable(self.folder)
        except OSError as error:
            raise WrongUse(
                "The lab's state folder cannot be written",
                where=str(self.folder),
                seen=error.strerror or str(error),
                next_step="Make it writable, free some space, or set KAI_LAB_STATE_DIR to another folder.",
            ) from error
        return self

    def note_gone(self, assets: Iterable[str]) -> None:
        """Note that these assets were taken away now: what was seen of them before says nothing about the lab."""
        write_atomic(self.folder / GONE, json.dumps({**self.gone(), **dict.fromkeys(assets, now_text())}))

    def gone(self) -> dict[str, str]:
        """When each asset that was ever taken away was (last); a note that cannot be read is none."""
        try:
            return {str(asset): str(when) for asset, when in dict(json.loads((self.folder / GONE).read_text())).items()}
        except (OSError, ValueError, TypeError):
            return {}

    def forget_cluster(self) -> None:
        """Keep what runs have seen and told, and nothing that says which cluster it was: made again, it may be on
        another backend."""
        for name in ("lab.json", LIVING, NATURE):
            (self.folder / name).unlink(missing_ok=True)


def now() -> datetime:
    return datetime.now(timezone.utc)


def now_text() -> str:
    return now().isoformat(timespec="milliseconds").replace("+00:00", "Z")


def check_writable(folder: Path) -> None:
    """Raises OSError when no file can be made in a folder."""
    probe = folder / ".writable"
    probe.touch()
    probe.unlink(missing_ok=True)  # steps of a run do this at the same time


class WriteLock:
    """One writer per lab: an flock that a crash frees, shared by the steps of one run and refused to any other.

    The file names the owner, so that whoever is refused reads who holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "write.lock"
        self._guard = folder / "write.lock.guard"
        self._held: int | None = None
        self._owner = ""
        self._taken_by = 0

    def acquire(self, owner: str, purpose: str) -> int:
        """Hold the lab for `owner` (a run id) until `release` or the end of this process.

        Returns the process that took it for this owner first. Raises WrongUse when another owner holds it.
        """
        with self._guarded():
            if self._held is not None and self._owner != owner:
                self.release()
            if self._held is not None:
                return self._taken_by
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError as error:
                raise WrongUse(
                    "The lab was taken away at this very moment",
                    where=str(self._path.parent),
                    next_step="Run it again: the lab is made anew.",
                ) from error
            try:
                self._taken_by = self._take(descriptor, owner, purpose)
            except BaseException:
                os.close(descriptor)
                raise
            self._held, self._owner = descriptor, owner
            return self._taken_by

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """One process at a time: a look at the lock is a short hold on it, by which nobody else may be refused."""
        with open(self._guard, "a", encoding="utf-8") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            yield

    def _take(self, descriptor: int, owner: str, purpose: str) -> int:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            holder = self._read(descriptor)
            if holder.get("owner") != owner:
                raise _refused(holder, self._path) from None
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            return int(holder["pid"])
        os.ftruncate(descriptor, 0)
        record = {"owner": owner, "purpose": purpose, "pid": os.getpid(), "since": now_text()}
        os.pwrite(descriptor, json.dumps(record).encode(), 0)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return os.getpid()

    @staticmethod
    def _read(descriptor: int) -> dict[str, Any]:
        try:
            found = json.loads(os.pread(descriptor, 4096, 0))
        except ValueError:
            return {}
        return dict(found) if isinstance(found, dict) else {}

    def holder(self) -> dict[str, Any] | None:
        """Who holds the lab now (owner, purpose, pid, since), or None when it is free or held by this object."""
        if self._held is not None or not self._path.exists():
            return None
        with suppress(FileNotFoundError), self._guarded(), open(self._path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return self._read(file.fileno())
        return None

    def check_free(self) -> None:
        """Raises WrongUse, naming who holds the lab, when another writer is at work on it."""
        holder = self.holder()
        if holder is not None:
            raise _refused(holder, self._path)

    def move_away(self) -> Path:
        """Move the folder of a held lab aside, to be removed, and release the lab; returns where the folder is now.

        Nobody becomes its writer in between: whoever comes next makes the lab, and its lock, anew.
        """
        folder = self._path.parent
        aside = Path(tempfile.mkdtemp(prefix=REMOVED, dir=folder.parent)) / folder.name
        with self._guarded():
            folder.rename(aside)
            self.release()
        return aside.parent

    def release(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held, self._owner = None, ""


def _refused(holder: dict[str, Any], path: Path) -> WrongUse:
    return WrongUse(
        "Another writer is at work on this lab",
        where=str(path),
        seen=f"{holder.get('purpose', 'a run')} since {holder.get('since', '?')}, pid {holder.get('pid', '?')}",
        next_step="Wait until it has ended (kai-lab status shows who holds a lab), or work on another lab meanwhile "
        "(KAI_LAB_NAME).",
    )
