"""Which observation counts as the newest one of an asset: only what was seen of what is there now."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from kai_lab_pipeline.clients.bundle import write_observation
from kai_lab_pipeline.lab.evidence import Observation
from kai_lab_pipeline.workbench import state as states
from kai_lab_pipeline.workbench.newest import newest
from kai_lab_pipeline.workbench.state import LabState

EIGHT = datetime(2026, 3, 1, 8, tzinfo=timezone.utc)


class Seen:
    """The state folder of a lab that some runs have looked at."""

    def __init__(self, folder: Path) -> None:
        self.state = LabState("lab", "rehearsal", folder)

    def see(self, run_id: str, minutes: int, *assets: str, cluster: str | None = "first") -> None:
        for asset in assets:
            seen = Observation(run_id=run_id, observed_at=EIGHT + timedelta(minutes=minutes), cluster=cluster)
            write_observation(self.state.bundle_dir(run_id), asset, seen)

    def found(self) -> dict[str, str]:
        return {asset: bundle.name for asset, bundle in newest(self.state).bundles.items()}


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    return Seen(tmp_path)


def test_each_asset_has_its_newest_look(seen: Seen) -> None:
    seen.see("one", 1, "cluster", "queues")
    seen.see("two", 2, "queues")
    half = seen.state.bundle_dir("killed") / "cluster"
    half.mkdir(parents=True)
    (half / "observed.json").write_text('{"run_id": "killed", "obser')
    assert seen.found() == {"cluster": "one", "queues": "two"}
    assert newest(seen.state).notes == ()


def test_what_was_seen_of_a_cluster_that_another_one_replaced_is_left_out(seen: Seen) -> None:
    seen.see("one", 1, "cluster", "kai_release", "queues")
    seen.see("older", 0, "labelled_node", cluster=None)
    seen.see("two", 2, "cluster", cluster="second")
    assert seen.found() == {"cluster": "two", "labelled_node": "older"}
    assert newest(seen.state).notes == (
        "Left out, because another cluster is there now: what was seen of kai_release, queues.",
    )


def test_what_was_taken_away_is_left_out_until_it_is_seen_again(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    seen.see("one", 1, "cluster", "kai_release", "queues")
    monkeypatch.setattr(states, "now", lambda: EIGHT + timedelta(minutes=2))
    seen.state.note_gone(["kai_release"])
    assert seen.found() == {"cluster": "one", "queues": "one"}
    seen.state.note_gone(["queues"])
    assert newest(seen.state).notes == (
        "Left out, because it was taken away at 2026-03-01T08:02:00+00:00: "
        "what was seen of kai_release, queues before.",
    )
    seen.see("two", 3, "queues")
    assert seen.found() == {"cluster": "one", "queues": "two"}
