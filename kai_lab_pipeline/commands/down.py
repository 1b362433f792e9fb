"""`kai-lab down`: take away what was made, and verify that nothing is left."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from kai_lab_pipeline.commands.common import INFRASTRUCTURE, OK, console, dagster_instance, say_error, settings_with
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.settings import BACKENDS, Settings
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.nights import Nights
from kai_lab_pipeline.workbench.state import REMOVED, LabState, WriteLock
from kai_lab_pipeline.workbench.teardown import Torn, tear_down

BEING_FILLED_S = 60.0
"""Longest time for which another tear-down may have made a folder and not moved a lab into it, seconds."""
TRACES = {"kind": "kind.json", "rehearsal": "rehearsal", "context": "given.json"}
"""What each backend writes into the lab's folder before it makes or takes a cluster."""


def down_command(*, everything: bool) -> int:
    """Tear down this lab, or with `everything` each lab of the project and its state folder; returns the exit code.

    What the nights know of stays: their store, and the reports that its matrix links to.
    """
    settings = settings_with({})
    labs = _all_labs(settings) if everything else [_where_it_is(settings)]
    if not everything:
        LabState.of(settings).check_backend()
    out, code = console(), OK
    nights = Nights(settings)
    judged = {record.key for record in nights.records()} if everything else set()
    for lab_settings in labs:
        if isinstance(lab_settings, LabError):
            code = max(code, say_error(lab_settings))
            continue
        state = LabState.of(lab_settings)
        if state.recorded() is None and not everything:
            out.print(f"Lab {state.name}: nothing was made, nothing is left.")
            continue
        try:
            torn = _down(lab_settings, forget=everything, linked=state.name in judged)
        except LabError as error:
            code = max(code, say_error(error))
            continue
        for line in torn.done:
            out.print(f"  {line}", markup=False)
        for leftover in torn.leftovers:
            out.print(f"  left: {leftover.what}; remove it with: {leftover.command}", markup=False)
        for item in torn.kept:
            out.print(f"  stays, as helm wants it: {item.what}; remove it with: {item.command}", markup=False)
        said = "nothing is left" if not torn.leftovers else f"{len(torn.leftovers)} things are left"
        said += f" but the {len(torn.kept)} things that helm keeps" if torn.kept and not torn.leftovers else ""
        out.print(f"Lab {state.name}: {said}.")
        if torn.leftovers:
            code = INFRASTRUCTURE
    if everything:
        _sweep(settings, nights.sets().keys() - judged)
    return code


def _sweep(settings: Settings, keys: Collection[str]) -> None:
    """Remove what version sets left whose cluster is gone and that no verdict tells of: nothing links to it.

    With it what is left of folders whose removal was cut off.
    """
    for folder in (settings.state_root / key for key in keys):
        if folder.is_dir() and not (folder / "lab.json").exists():
            lock = WriteLock(folder)
            with suppress(WrongUse):  # a run is at work on it
                lock.acquire("sweep", "removing what a version set left")
                lock.move_away()
    for folder in settings.state_root.glob(f"{REMOVED}*"):
        with suppress(FileNotFoundError):  # another tear-down is removing it as well
            if any(folder.iterdir()) or time.time() - folder.stat().st_mtime > BEING_FILLED_S:
                shutil.rmtree(folder)
    with suppress(OSError):  # other labs may be in it
        settings.state_root.rmdir()


def _where_it_is(settings: Settings) -> Settings:
    """A lab on a kubeconfig context is taken down where it is, also when the settings name another context by now."""
    if settings.lab.backend != "context" or not (settings.lab_dir / "kubeconfig").is_file():
        return settings
    return settings.model_copy(update={"lab": settings.lab.model_copy(update={"context": None})})


def _down(settings: Settings, *, forget: bool, linked: bool) -> Torn:
    lab = Lab(settings, f"down-{uuid.uuid4().hex[:8]}", lambda _: None)
    lab.hold("tearing the lab down")
    torn = Torn()
    try:
        try:
            tear_down(lab, torn)
        finally:
            if torn.gone and lab.state.recorded() is not None:
                lab.state.note_gone(torn.gone)
                _tell_dagster(settings, torn.gone)
        if forget and linked and not torn.leftovers:
            lab.state.forget_cluster()
        elif forget and not torn.leftovers:
            lab.remove_folder()
    finally:
        lab.release()
    return torn


def _tell_dagster(settings: Settings, gone: Collection[str]) -> None:
    """The UI must not go on showing green what is gone."""
    from kai_lab_pipeline.assets.group import Group
    from kai_lab_pipeline.assets.versions import mark_gone

    with dagster_instance(settings) as instance:
        mark_gone(instance, Group("lab", settings), "torn down", gone)


def _all_labs(settings: Settings) -> list[Settings | LabError]:
    """Settings for each lab that has a state folder here, whatever its name and backend, or why one is not known."""
    found: list[Settings | LabError] = []
    for record in sorted(settings.state_root.glob("*/lab.json")):
        try:
            backend = _backend_of(record)
        except LabError as error:
            found.append(error)
            continue
        section = settings.lab.model_copy(update={"name": record.parent.name, "backend": backend})
        found.append(_where_it_is(settings.model_copy(update={"lab": section})))
    return found


def _backend_of(record: Path) -> str:
    """The backend a lab was made with. A damaged record is given up: tearing down must work when little else does.

    What the backend itself left in the folder tells then; each leaves its note before it makes anything, so a folder
    without one, and without a kubeconfig, is that of a lab that made nothing. Raises LabError where a kubeconfig alone
    is left: taken for another backend's, a lab would lose its folder and leave its cluster.
    """
    try:
        backend = dict(json.loads(record.read_text(encoding="utf-8"))).get("backend")
    except (OSError, ValueError, TypeError):
        backend = None
    if backend in BACKENDS:
        return str(backend)
    folder = record.parent
    found = next((name for name, trace in TRACES.items() if (folder / trace).exists()), None)
    if found is None and not (folder / "kubeconfig").exists():
        found = "rehearsal"
    if found is None:
        raise LabError(
            f"The record of lab {folder.name} is damaged, and nothing in its folder tells what it was made with",
            where=str(record),
            seen=f"in the folder: {', '.join(sorted(path.name for path in folder.iterdir()))}",
            next_step=f"Look whether 'kind get clusters' or the context in its kubeconfig still has something of lab "
            f"{folder.name}, and remove that by hand. When nothing of it is left: rm -r {folder}",
        )
    record.unlink(missing_ok=True)
    return found
