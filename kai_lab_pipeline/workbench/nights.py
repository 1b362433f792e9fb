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

from kai_lab_pipeline.clients.files import write_atomic
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.lab.morning import Nightly
from kai_lab_pipeline.lab.verdict import Finding, Verdict
from kai_lab_pipeline.lab.verdict_record import VerdictRecord
from kai_lab_pipeline.lab.version_sets import VersionSet, texts
from kai_lab_pipeline.lab.versions import repushed
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.journal import UNREADABLE, Journal

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

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Comparison:
        lost = bool(data.get("lost", False))
        return cls(**texts({name: value for name, value in data.items() if name != "lost"}), lost=lost)

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
            texts(data.get("charts", {})),
            texts(data.get("digests", {})),
            {component: Comparison.from_json(found) for component, found in data.get("comparisons", {}).items()},
            texts(data.get("own_versions", {})),
            {component: texts(values) for component, values in data.get("values", {}).items()},
            texts(data.get("first_digests", {})),
        )


class Nights:
    """The durable store of a project's nights."""

    def __init__(self, settings: Settings) -> None:
        self.folder = settings.state_root / FOLDER
        self._components = settings.version_set().keys()
        self._verdicts = Journal(self.folder / "verdicts.jsonl")
        self._nightlies = Journal(self.folder / "nightlies.jsonl")
        self._told = Journal(self.folder / "told.jsonl")

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

    def see(self, key: str, digests: Mapping[str, str]) -> None:
        """Keep what the charts of a stored version set hold now; nothing where it was forgotten meanwhile."""
        with self._changing_sets():
            before = self._readable(key)
            if before is not None and (found := before.with_digests(digests)) != before:
                self.save(found)

    def save(self, stored: StoredSet) -> None:
        """Write a version set; one that is there is replaced."""
        sets = self.folder / "version_sets"
        sets.mkdir(parents=True, exist_ok=True)
        write_atomic(sets / f"{stored.version_set.key}.json", json.dumps(stored.to_json(), indent=1))

    def load(self, key: str) -> StoredSet:
        """The version set of a partition key. Raises WrongUse for a key that nobody stored."""
        path = self.folder / "version_sets" / f"{key}.json"
        try:
            stored = StoredSet.from_json(json.loads(path.read_text(encoding="utf-8")))
            if stored.version_set.key != key:
                raise ValueError(f"it holds version set {stored.version_set.key!r}")
            self._check_components(stored.version_set.versions)
            return stored
        except FileNotFoundError:
            raise WrongUse(
                f"No version set is stored for partition {key!r}",
                where=str(path),
                next_step="Add it with: kai-lab nightly --add kai_scheduler=v0.18.3 (any component=version).",
            ) from None
        except (OSError, *UNREADABLE) as error:
            raise LabError("A version set cannot be read", where=str(path), seen=str(error)) from error

    def add_comparison(self, key: str, component: str, comparison: Comparison) -> None:
        """Keep how a component's chart differs; steps of one run may do so at the same time. Raises LabError."""
        with self._changing_sets():
            stored = self.load(key)
            self.save(replace(stored, comparisons={**stored.comparisons, component: comparison}))

    def sets(self) -> dict[str, StoredSet]:
        """All stored version sets that can be read, by key."""
        found = {key: self._readable(key) for key in self._keys()}
        return {key: stored for key, stored in found.items() if stored is not None}

    def _keys(self) -> list[str]:
        return sorted(path.stem for path in (self.folder / "version_sets").glob("*.json"))

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
        """Take a version set out of the store; its verdicts stay."""
        with self._changing_sets():
            (self.folder / "version_sets" / f"{key}.json").unlink(missing_ok=True)

    # -- verdicts --------------------------------------------------------------------------------------------------

    def add_record(self, record: VerdictRecord) -> None:
        self._verdicts.append(record.to_json())

    def records(self) -> list[VerdictRecord]:
        """All verdicts that can be read, in the order in which they were written."""
        return self._verdicts.read(self._verdict)[0]

    def _verdict(self, data: Mapping[str, Any]) -> VerdictRecord:
        record = VerdictRecord.from_json(data)
        self._check_components(record.versions)
        return record

    def _check_components(self, versions: Mapping[str, str]) -> None:
        """Raises ValueError where versions are not those of the lab's components: nothing can be told from them."""
        if versions.keys() != self._components:
            raise ValueError(
                f"versions of {', '.join(versions) or 'nothing'}, and not of {', '.join(self._components)}"
            )

    # -- nightlies and notices -------------------------------------------------------------------------------------

    def add_nightly(self, nightly: Nightly) -> None:
        self._nightlies.append(nightly.to_json())

    def last_nightly(self) -> Nightly | None:
        found, _ = self._nightlies.read(Nightly.from_json)
        return found[-1] if found else None

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Hold the right to send notices; whoever else sends waits until this is over."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "telling.lock", "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def told(self, channel: str) -> set[str]:
        """Ids of regressions that a notice went out for by this channel."""
        return {identity for identity, by in self._told.read(_notice)[0] if by in ("", channel)}

    def tell(self, identity: str, channel: str) -> None:
        """Note that a regression was told by a channel."""
        self._told.append({"id": identity, "channel": channel})

    # -- damage ----------------------------------------------------------------------------------------------------

    def damages(self) -> tuple[str, ...]:
        """A sentence for each file of the store that cannot be read, or not all of it. Raises OSError."""
        return (
            *(said for said in map(self._damage_of_set, self._keys()) if said),
            *self._verdicts.damage(self._verdict),
            *self._nightlies.damage(Nightly.from_json),
            *self._told.damage(_notice),
        )

    def _damage_of_set(self, key: str) -> str:
        try:
            self.load(key)
        except LabError as error:
            return f"{error.where}: version set {key} cannot be read ({error.seen}). Add it again, or delete the file."
        return ""


def _notice(data: Mapping[str, Any]) -> tuple[str, str]:
    """Id and channel of a notice; notices of an older version went out by all channels."""
    return str(data["id"]), str(data.get("channel", ""))
