"""`kai-lab nightly`: look for new versions, build and judge a lab for each, clean up, and say what changed."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kai_lab_pipeline.commands.common import INFRASTRUCTURE, OK, console, dagster_instance, settings_with
from kai_lab_pipeline.lab.attribution import subjects
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.lab.morning import Nightly, Summary
from kai_lab_pipeline.lab.version_matrix import Matrix
from kai_lab_pipeline.lab.version_sets import Lane, version_set
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.candidates import candidate_settings, remove_candidate, write_matrix_now
from kai_lab_pipeline.workbench.chart_comparison import with_registry
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.nights import Nights, StoredSet
from kai_lab_pipeline.workbench.state import WriteLock, now

if TYPE_CHECKING:
    import dagster as dg

NOTIFY_TIMEOUT_S = 20.0


def nightly_command(*, add: Sequence[str], chart: Sequence[str], as_json: bool) -> int:
    """Run a night now; returns the exit code. Raises LabError, SettingsError.

    0: nothing new, or all that is new holds. 1: a claim broke with some version. 3: a registry could not be asked, or
    something could not be judged; the same version sets are tried the next time.
    """
    settings = settings_with({})
    nights = Nights(settings)
    nights.folder.mkdir(parents=True, exist_ok=True)
    lock = WriteLock(nights.folder)
    lock.acquire(uuid.uuid4().hex, "a nightly")
    try:
        return _night(settings, nights, _added(settings, add, chart), as_json=as_json)
    finally:
        lock.release()


def _night(settings: Settings, nights: Nights, added: StoredSet | None, *, as_json: bool) -> int:
    from kai_lab_pipeline.automation.partitions import keep_sets, sets_found, waiting
    from kai_lab_pipeline.clients.discovery import look_up

    out = console(stderr=as_json)
    with with_registry(settings) as asked:
        found = look_up(asked, with_digests=True)
    for component, lookup in found.items():
        out.print(f"{component} {lookup.pinned}: {lookup.sentence}", markup=False)
    keep_sets(nights, [*sets_found(settings, found), *([added] if added else [])])
    keys = [found.version_set.key for found in waiting(settings, nights)]
    failed = tuple(f"{name}: {lookup.sentence}" for name, lookup in found.items() if lookup.error is not None)
    nightly = Nightly(now(), tuple(keys), failed)
    nights.add_nightly(nightly)
    matrix, summary = _run_all(settings, nights, keys, out)
    _notify(settings, nights, matrix, out)
    _say(settings, nights, matrix, summary, out, as_json=as_json)
    if not keys:
        return INFRASTRUCTURE if failed else OK
    code = matrix.exit_code(keys)
    return INFRASTRUCTURE if failed and code == OK else code


def _run_all(settings: Settings, nights: Nights, keys: Sequence[str], out: Any) -> tuple[Matrix, Summary]:
    from kai_lab_pipeline.automation.partitions import waiting
    from kai_lab_pipeline.lab.due import Reason

    with dagster_instance(settings) as instance:
        if keys:
            instance.add_dynamic_partitions("version_sets", list(keys))
        for number, key in enumerate(keys, 1):
            out.print(f"[{number}/{len(keys)}] {key}: {nights.load(key).version_set.description}", markup=False)
            _run_one(settings, nights, instance, key, out)
        for found in waiting(settings, nights):
            if found.reason is Reason.RERUN and found.version_set.key in keys:
                out.print(f"{found.version_set.key}: {found.sentence}", markup=False)
                _run_one(settings, nights, instance, found.version_set.key, out)
        matrix, summary, _ = write_matrix_now(settings)
        _materialise_matrix(instance)
    return matrix, summary


def candidate_lab_job() -> Any:
    """The job `candidate_lab`, for Dagster to build again in each process of a run."""
    from kai_lab_pipeline.definitions import defs

    return defs.resolve_job_def("candidate_lab")


def _run_one(settings: Settings, nights: Nights, instance: dg.DagsterInstance, key: str, out: Any) -> None:
    import dagster as dg

    stored = nights.load(key)
    before = len(nights.records())
    try:
        result = dg.execute_job(
            dg.reconstructable(candidate_lab_job),
            instance=instance,
            tags={"dagster/partition": key, "kai_lab/lab": key},
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            raise_on_error=False,
        )
        run_id = result.run_id
    finally:
        _clean_up(settings, stored, key, out)
    records = nights.records()[before:]
    if not records:
        out.print(f"  no verdict: run {run_id[:8]} ended before its report; it is tried again", markup=False)
        return
    latest = records[-1]
    broken = [str(claim) for claim, found in latest.claims.items() if found.verdict == "broken"]
    said = f"claims {', '.join(broken)} broken" if broken else latest.infrastructure or "every claim held"
    if latest.values is not None and latest.values.verdict == "broken":
        said += f"; {latest.values.message}"
    out.print(f"  {said.splitlines()[0]}; boundary {latest.boundary}", markup=False)


def _clean_up(settings: Settings, stored: StoredSet, key: str, out: Any) -> None:
    """The cluster of a candidate is gone after its run, however that ended."""
    lab = Lab(candidate_settings(settings, stored), "clean-up", lambda _: None, candidate=stored, project=settings)
    try:
        if lab.state.folder.is_dir() and lab.backend.cluster_exists() and not settings.nightly.keep_failed:
            remove_candidate(lab, broken=False)
    except LabError as error:
        out.print(f"  {key}: {error.text()}", markup=False)
    finally:
        lab.release()


def _materialise_matrix(instance: dg.DagsterInstance) -> None:
    from kai_lab_pipeline.definitions import defs

    defs.resolve_job_def("write_matrix").execute_in_process(
        instance=instance,
        raise_on_error=False,
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
    )


def _added(settings: Settings, add: Sequence[str], chart: Sequence[str]) -> StoredSet | None:
    """A version set that a person names: ``component=version``, and for its chart ``component=reference``."""
    changes, charts = _pairs(add, "--add"), _pairs(chart, "--chart")
    if not changes:
        if charts:
            raise WrongUse("--chart names a chart for a component that --add does not name")
        return None
    try:
        wanted = version_set(settings.version_set(), changes, Lane.FRESH)
    except ValueError as error:
        raise WrongUse(f"This version set cannot be built: {error}") from error
    return replace(StoredSet(wanted, charts, {}), charts=charts)


def _pairs(options: Sequence[str], option: str) -> dict[str, str]:
    pairs = {}
    for text in options:
        component, separator, value = text.partition("=")
        if not separator or not value:
            raise WrongUse(f"{option} needs component=value, got {text!r}")
        pairs[component] = value
    return pairs


def _notify(settings: Settings, nights: Nights, matrix: Matrix, out: Any) -> None:
    """Send each regression once, to the command and the address that lab.toml names."""
    told = nights.told()
    for regression in matrix.regressions():
        if regression.id in told or not (settings.nightly.notify_command or settings.nightly.notify_url):
            continue
        cell = regression.cell
        text = f"{regression.row.version_set.key}, {subjects([cell])}: {cell.sentence} {cell.message}".rstrip()
        try:
            _send(settings, regression.id, text)
        except (LabError, OSError, subprocess.SubprocessError) as error:
            out.print(f"The notice could not be sent and is tried again the next night: {error}", markup=False)
        else:
            nights.tell(regression.id)


def _send(settings: Settings, identity: str, text: str) -> None:
    if settings.nightly.notify_command:
        subprocess.run(
            list(settings.nightly.notify_command), input=text, text=True, timeout=NOTIFY_TIMEOUT_S, check=True
        )
    if settings.nightly.notify_url:
        import httpx

        try:
            answer = httpx.post(
                settings.nightly.notify_url, json={"id": identity, "text": text}, timeout=NOTIFY_TIMEOUT_S
            )
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise LabError("The notice's address did not take it", seen=type(error).__name__) from error


def _say(settings: Settings, nights: Nights, matrix: Matrix, summary: Summary, out: Any, *, as_json: bool) -> None:
    from kai_lab_pipeline.report.matrix import render_matrix_json

    if as_json:
        print(json.dumps(json.loads(render_matrix_json(matrix, summary)), indent=1))
        return
    out.print(summary.text(), markup=False)
    out.print(f"Matrix: {nights.folder / 'matrix' / 'matrix.html'}", markup=False)
