"""What nights leave behind, outside Dagster's own storage: version sets, verdicts, nightlies, and what was told.

Plain files under the state folder, written whole or appended line by line, so that they outlive clusters, partitions
and a lost history.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.lab.morning import Nightly
from kai_lab_pipeline.lab.verdict import Finding, Verdict
from kai_lab_pipeline.lab.verdict_record import VerdictRecord
from kai_lab_pipeline.lab.version_sets import VersionSet
from kai_lab_pipeline.lab.versions import repushed
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.state import write_atomic

FOLDER = "_nightly"
"""No lab can have this name: cluster names begin with a letter or digit."""


@dataclass(frozen=True)
class Comparison:
    """A candidate's chart against the pinned one, and whether the lab's values still mean something in it."""

    run_id: str
    """The run that compared them."""
    text: str
    """The difference for a person; empty when the charts could not be compared."""
    verdict: str
    expected: str
    observed: str
    message: str
    lost: bool = False
    """The charts could not be asked for, which another night may mend."""

    @classmethod
    def of(cls, run_id: str, finding: Finding, text: str = "", *, lost: bool = False) -> Comparison:
        return cls(run_id, text, finding.verdict.value, finding.expected, finding.observed, finding.message, lost)

    @property
    def finding(self) -> Finding:
        return Finding(Verdict(self.verdict), self.expected, self.observed, self.message)


@dataclass(frozen=True)
class StoredSet:
    """A version set with what is known about its charts."""

    version_set: VersionSet
    charts: Mapping[str, str]
    """Chart reference by component where it is not the pinned one's: a local folder, a pull request's chart."""
    digests: Mapping[str, str]
    """Chart digest by component, as last looked up, where somebody could."""
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    """The chart of each component that moves, against the pinned one, as last compared."""
    own_versions: Mapping[str, str] = field(default_factory=dict)
    """Chart version by component where the version set calls a build of somebody's own otherwise."""
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Chart values by component over those of lab.toml: an image of a pull request."""
    first_digests: Mapping[str, str] = field(default_factory=dict)
    """Chart digest by component, as first looked up: what was judged before anybody could look counts as this."""

    def with_digests(self, seen: Mapping[str, str]) -> StoredSet:
        """The set with what its charts hold now. What was not looked up stays; the comparison of another chart goes."""
        changed = repushed(self.digests, seen)
        return replace(
            self,
            digests={**self.digests, **seen},
            first_digests={**seen, **self.digests, **self.first_digests},
            comparisons={name: found for name, found in self.comparisons.items() if name not in changed},
        )

    @property
    def uncompared(self) -> dict[str, str]:
        """Runs that could not ask for a chart to compare, with what they said."""
        return {compared.run_id: compared.message for compared in self.comparisons.values() if compared.lost}

    @property
    def diff(self) -> str:
        """How the charts differ from the pinned ones, as text."""
        return "\n\n".join(compared.text for compared in self.comparisons.values() if compared.text)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.version_set.to_json(),
            "charts": dict(self.charts),
            "digests": dict(self.digests),
            "first_digests": dict(self.first_digests),
            "comparisons": {component: asdict(compared) for component, compared in self.comparisons.items()},
            "own_versions": dict(self.own_versions),
            "values": {component: dict(values) for component, values in self.values.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StoredSet:
        return cls(
            VersionSet.from_json(data),
            dict(data.get("charts", {})),
            dict(data.get("digests", {})),
            {component: Comparison(**compared) for component, compared in data.get("comparisons", {}).items()},
            dict(data.get("own_versions", {})),
            {component: dict(values) for component, values in data.get("values", {}).items()},
            dict(data.get("first_digests", {})),
        )


class Nights:
    """The durable store of a project's nights."""

    def __init__(self, settings: Settings) -> None:
        self.folder = settings.state_root / FOLDER

    # -- version sets ----------------------------------------------------------------------------------------------

    def keep(self, stored: StoredSet) -> StoredSet:
        """Store a version set, and return it as stored: what is known of it already stays, while it is true."""
        with self._changing_sets():
            before = self._readable(stored.version_set.key)
            known = before or replace(stored, digests={})
            found = replace(
                stored, digests=known.digests, first_digests=known.first_digests, comparisons=known.comparisons
            ).with_digests(stored.digests)
            if found != before:
                self.save(found)
        return found

    def save(self, stored: StoredSet) -> None:
        """Write a version set; one that is there is replaced."""
        sets = self.folder / "version_sets"
        sets.mkdir(parents=True, exist_ok=True)
        write_atomic(sets / f"{stored.version_set.key}.json", json.dumps(stored.to_json(), indent=1))

    def load(self, key: str) -> StoredSet:
        """The version set of a partition key. Raises WrongUse for a key that nobody stored."""
        path = self.folder / "version_sets" / f"{key}.json"
        try:
            return StoredSet.from_json(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise WrongUse(
                f"No version set is stored for partition {key!r}",
                where=str(path),
                next_step="Add it with: kai-lab nightly --add kai_scheduler=v0.18.3 (any component=version).",
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LabError("A version set cannot be read", where=str(path), seen=str(error)) from error

    def add_comparison(self, key: str, component: str, comparison: Comparison) -> None:
        """Keep how a component's chart differs; steps of one run may do so at the same time. Raises LabError."""
        with self._changing_sets():
            stored = self.load(key)
            self.save(replace(stored, comparisons={**stored.comparisons, component: comparison}))

    def sets(self) -> dict[str, StoredSet]:
        """All stored version sets that can be read, by key."""
        keys = sorted(path.stem for path in (self.folder / "version_sets").glob("*.json"))
        found = {key: self._readable(key) for key in keys}
        return {key: stored for key, stored in found.items() if stored is not None}

    def _readable(self, key: str) -> StoredSet | None:
        try:
            return self.load(key)
        except LabError:
            return None

    @contextmanager
    def _changing_sets(self) -> Iterator[None]:
        sets = self.folder / "version_sets"
        sets.mkdir(parents=True, exist_ok=True)
        with open(sets / ".lock", "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def forget(self, key: str) -> None:
        (self.folder / "version_sets" / f"{key}.json").unlink(missing_ok=True)

    # -- verdicts --------------------------------------------------------------------------------------------------

    def add_record(self, record: VerdictRecord) -> None:
        self._append("verdicts.jsonl", record.to_json())

    def records(self) -> list[VerdictRecord]:
        """All verdicts, in the order in which they were written."""
        return [VerdictRecord.from_json(data) for data in self._lines("verdicts.jsonl")]

    # -- nightlies and notices -------------------------------------------------------------------------------------

    def add_nightly(self, nightly: Nightly) -> None:
        self._append("nightlies.jsonl", nightly.to_json())

    def last_nightly(self) -> Nightly | None:
        lines = list(self._lines("nightlies.jsonl"))
        return Nightly.from_json(lines[-1]) if lines else None

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Hold the right to send notices; whoever else sends waits until this is over."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "telling.lock", "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def told(self, channel: str) -> set[str]:
        """Ids of regressions that a notice went out for by this channel."""
        return {str(line["id"]) for line in self._lines("told.jsonl") if line.get("channel", channel) == channel}

    def tell(self, identity: str, channel: str) -> None:
        """Note that a regression was told by a channel."""
        self._append("told.jsonl", {"id": identity, "channel": channel})

    # -- files -----------------------------------------------------------------------------------------------------

    def _append(self, name: str, data: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / name, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            # A line that a killed writer left half is closed first, so that it cannot swallow this one.
            file.write(("" if not text or text.endswith("\n") else "\n") + json.dumps(data) + "\n")

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        try:
            text = (self.folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        for line in text.splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue  # half of a line, of a writer that was killed
            if isinstance(found, dict):
                yield found
