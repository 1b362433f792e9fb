"""A version matrix as nights on the rehearsal leave it, from records, for its page to be looked at."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

from kai_lab_pipeline.lab.morning import Nightly, morning_summary
from kai_lab_pipeline.lab.spec import CLAIMS
from kai_lab_pipeline.lab.verdict import Boundary, Verdict
from kai_lab_pipeline.lab.verdict_record import ClaimVerdict, VerdictRecord
from kai_lab_pipeline.lab.version_matrix import build_matrix
from kai_lab_pipeline.lab.version_sets import Lane, VersionSet, version_set
from kai_lab_pipeline.report.matrix import write_matrix

PINNED = {
    "kai_scheduler": "v0.17.0",
    "nvml_mock": "0.3.0",
    "kai_resource_isolator": "1.1.0-chart",
    "device_plugin": "v0.18.2",
}
AT = datetime(2026, 11, 30, 2, 0, tzinfo=timezone.utc)


def _record(found: VersionSet, broken: tuple[int, ...], at: datetime, *, lost: str = "") -> VerdictRecord:
    claims = {
        claim.id: ClaimVerdict(Verdict.BROKEN, checks=("kai_release.hamicore_enabled",), message="hamicore is off.")
        if claim.id in broken
        else ClaimVerdict(Verdict.HELD)
        for claim in CLAIMS
    }
    return VerdictRecord(
        key=found.key,
        versions=found.versions,
        lane=found.lane,
        backend="rehearsal",
        at=at,
        run_id=f"run-{found.key}",
        claims={} if lost else claims,
        boundary=Boundary.NOT_EVALUATED if lost else Boundary.EXPECTED,
        evidence=f"{found.key}/reports/run/report.html",
        infrastructure=lost,
    )


def write_sample(folder: Path) -> Path:
    """Write the matrix of two nights; returns its HTML page."""
    sets = [
        (version_set(PINNED, {}), (), ""),
        (version_set(PINNED, {"kai_scheduler": "v0.18.2"}), (), ""),
        (version_set(PINNED, {"kai_scheduler": "v0.18.2"}, Lane.UPGRADE), (), ""),
        (version_set(PINNED, {"kai_scheduler": "v0.19.0"}), (2, 7), ""),
        (version_set(PINNED, {"kai_scheduler": "v0.19.0"}, Lane.UPGRADE), (2, 7), ""),
        (version_set(PINNED, {"nvml_mock": "0.4.0"}), (1, 4, 5, 6, 8), ""),
        (version_set(PINNED, {"nvml_mock": "0.4.0"}, Lane.UPGRADE), (), "the registry did not answer"),
    ]
    records = [
        _record(found, broken, AT + timedelta(days=night, minutes=number), lost=lost)
        for night in range(2)
        for number, (found, broken, lost) in enumerate(sets)
    ]
    matrix = build_matrix(records, PINNED)
    last = Nightly(AT + timedelta(days=1), tuple(found.key for found, _, _ in sets))
    summary = morning_summary(matrix, now=AT + timedelta(days=1, hours=6), last=last, next_at=AT + timedelta(days=2))
    return write_matrix(matrix, summary, folder).html
