"""Evidence bundles on disk: folders that anyone can make with kubectl and read with an editor.

Reading is tolerant: a file that is missing or half-broken is a note and counts as not captured. Writing is atomic:
an asset's folder appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kai_lab_pipeline.clients.files import write_atomic
from kai_lab_pipeline.lab.errors import WrongUse
from kai_lab_pipeline.lab.evidence import ContainerLog, Evidence, K8sObject, Observation, mapping, parse_time
from kai_lab_pipeline.lab.spec import ASSETS

FORMAT = 1
BACKENDS = ("kind", "context", "rehearsal", "recorded")
FORBIDDEN_RESOURCES = frozenset({"secrets", "secret"})
"""Never read and never written: a bundle is shown to others."""

COMMANDS = "commands"
"""Folder of what docker, kind and helm printed in the run; for people, no check reads it."""

_HEADER = "bundle.json"
_HELM = "helm.json"
_OBSERVED = "observed.json"
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_PREVIOUS = ".previous.log"
_LOG = ".log"
_UNREADABLE: Any = object()


class BundleError(WrongUse):
    """A folder is no evidence bundle; the message says what is wrong and what is expected."""


def read_bundle(folder: Path) -> Evidence:
    """Read a bundle.

    Raises BundleError when the folder is absent, has no readable bundle.json, or is of another format. Everything
    else that cannot be read is left out and named in ``Evidence.notes``.
    """
    header = _read_header(folder)
    notes: list[str] = []
    observations = {}
    for path in sorted(_entries(folder, notes)):
        if not path.is_dir() or path.name.startswith(".") or path.name == COMMANDS:
            continue
        if path.name in ASSETS:
            observations[path.name] = _read_observation(path, notes)
        else:
            notes.append(f"{path.name}: no asset of the lab has this name; the folder was ignored.")
    if not observations:
        notes.append(f"No folder of an asset is in the bundle; expected some of {', '.join(ASSETS[:3])}, ...")
    return Evidence(
        backend=_text(header, "backend", notes) or "unknown",
        versions={str(key): str(value) for key, value in mapping(header.get("versions")).items()},
        node=_text(header, "node", notes),
        captured_at=parse_time(header.get("captured_at")),
        crossing=_text(header, "crossing", notes),
        skipped={str(asset): str(reason) for asset, reason in mapping(header.get("skipped")).items()},
        time_scale=_time_scale(header, notes),
        profile=mapping(header.get("profile")),
        observations=observations,
        notes=tuple(notes),
    )


def read_observation(folder: Path, asset: str) -> Observation | None:
    """What a bundle holds of one asset, without reading the rest; None when it was not observed."""
    path = folder / asset
    return _read_observation(path, []) if path.is_dir() else None


def node_of(folder: Path) -> str | None:
    """The node that a bundle's header names; None where it has none, or cannot be read."""
    try:
        header = json.loads((folder / _HEADER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    node = header.get("node") if isinstance(header, dict) else None
    return node if isinstance(node, str) else None


def write_bundle_json(
    folder: Path,
    *,
    backend: str,
    versions: Mapping[str, str],
    node: str | None = None,
    captured_at: datetime | None = None,
    crossing: str | None = None,
    skipped: Mapping[str, str] | None = None,
    time_scale: float | None = None,
    profile: Mapping[str, Any] | None = None,
) -> Path:
    """Write the bundle's header (made when absent, replaced in one step when there) and return its path.

    `time_scale` is seconds here per second of a real cluster; `profile` the card shown (gpu_count, gpu_memory_mib,
    gpu_product). Raises ValueError for an unknown backend, OSError when the disk refuses.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r}: expected one of {', '.join(BACKENDS)}")
    header: dict[str, Any] = {"format": FORMAT, "backend": backend, "versions": dict(versions)}
    optional = {
        "node": node,
        "captured_at": _rfc3339(captured_at or datetime.now(timezone.utc)),
        "crossing": crossing,
        "skipped": dict(skipped) if skipped else None,
        "time_scale": time_scale,
        "profile": dict(profile) if profile else None,
    }
    header.update({key: value for key, value in optional.items() if value is not None})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _HEADER
    write_atomic(path, _dump(header))
    return path


def write_observation(bundle: Path, asset: str, seen: Observation) -> Path:
    """Write what was seen of one asset, in place of what an earlier observation left there; returns its folder.

    Raises ValueError for an unknown asset, a name that is no plain file name, or Secrets; OSError when the disk
    refuses. In every such case the folder of the earlier observation is untouched.
    """
    if asset not in ASSETS:
        raise ValueError(f"{asset!r} is no asset of the lab: expected one of {', '.join(ASSETS)}")
    bundle.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{asset}.", dir=bundle))
    try:
        os.chmod(staging, 0o755)
        for path, content in _files(seen):
            target = staging / path
            target.parent.mkdir(parents=True, exist_ok=True)
            # A cluster can send half a character (a lone surrogate), which no encoding can write.
            target.write_text(content, encoding="utf-8", errors="replace")
        return _swap_in(staging, bundle / asset)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def merge(evidences: Sequence[Evidence]) -> Evidence:
    """One evidence with the newest observation of each asset; `evidences` come newest first.

    The header is the newest one's. An observation without its own time gets that of its bundle, so that ages
    stay right. Raises ValueError for an empty sequence.
    """
    if not evidences:
        raise ValueError("no evidence to merge")
    observations: dict[str, Observation] = {}
    for evidence in evidences:
        for asset, seen in evidence.observations.items():
            if asset not in observations:
                observations[asset] = replace(seen, observed_at=seen.observed_at or evidence.captured_at)
    notes = tuple(dict.fromkeys(note for evidence in evidences for note in evidence.notes))
    return replace(evidences[0], observations=observations, notes=notes)


def read_bundles(folders: Sequence[Path]) -> Evidence:
    """Merge the bundles of several runs, newest first; raises BundleError for a folder that is none."""
    return merge([read_bundle(folder) for folder in folders])


def _read_header(folder: Path) -> Mapping[str, Any]:
    expected = f"expected a folder with {_HEADER} and one folder per asset (see the README on evidence bundles)"
    if not folder.exists():
        raise BundleError(f"{folder}: there is no such folder; {expected}")
    if not folder.is_dir():
        raise BundleError(f"{folder}: not a folder; {expected}")
    path = folder / _HEADER
    try:
        header = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BundleError(f"{folder}: not an evidence bundle, {_HEADER} is missing; {expected}") from None
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror or error}; {expected}") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path}: not JSON: {error}; {expected}") from None
    if not isinstance(header, Mapping):
        raise BundleError(f"{path}: holds {_kind(header)}, expected a JSON object with format, backend, versions")
    if header.get("format") != FORMAT or isinstance(header.get("format"), bool):
        raise BundleError(f"{path}: format is {header.get('format')!r}, this version reads format {FORMAT}")
    return header


def _text(header: Mapping[str, Any], key: str, notes: list[str]) -> str | None:
    value = header.get(key)
    if value is None or (isinstance(value, str) and value):
        return value
    notes.append(f"{_HEADER}: {key} is {value!r}, expected a text; it was ignored.")
    return None


def _time_scale(header: Mapping[str, Any], notes: list[str]) -> float:
    value = header.get("time_scale", 1.0)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf"):
        return float(value)
    notes.append(f"{_HEADER}: time_scale is {value!r}, expected a positive number; 1 was taken.")
    return 1.0


def _entries(folder: Path, notes: list[str]) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        notes.append(f"{folder.name}: cannot be listed: {error.strerror or error}.")
        return []


def _read_observation(folder: Path, notes: list[str]) -> Observation:
    resources: dict[str, tuple[K8sObject, ...]] = {}
    helm: tuple[Mapping[str, Any], ...] | None = None
    observed: Mapping[str, Any] = {}
    for path in sorted(_entries(folder, notes)):
        where = f"{folder.name}/{path.name}"
        if path.suffix != ".json" or path.stem in FORBIDDEN_RESOURCES or path.is_dir():
            continue
        content = _load(path, where, notes)
        if path.name == _OBSERVED:
            observed = mapping(content)
        elif path.name == _HELM:
            helm = _rows(content, where, notes)
        elif (items := _items(content, where, notes)) is not None:
            resources[path.stem] = items
    return Observation(
        resources=resources,
        helm=helm,
        dryrun=_read_dryruns(folder, notes),
        logs=tuple(_read_logs(folder, notes)),
        run_id=str(observed["run_id"]) if observed.get("run_id") else None,
        observed_at=parse_time(observed.get("observed_at")),
        cluster=str(observed["cluster"]) if observed.get("cluster") else None,
    )


def _load(path: Path, where: str, notes: list[str]) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        notes.append(f"{where}: cannot be read: {error.strerror or error}; counts as not captured.")
    except (ValueError, RecursionError) as error:
        notes.append(f"{where}: not JSON ({error}); counts as not captured.")
    return _UNREADABLE


def _items(content: Any, where: str, notes: list[str]) -> tuple[K8sObject, ...] | None:
    if content is _UNREADABLE:
        return None
    items = mapping(content).get("items")
    if not isinstance(items, list):
        notes.append(f"{where}: holds {_kind(content)}, expected the List of kubectl -o json; counts as not captured.")
        return None
    return _mappings(items, where, notes)


def _rows(content: Any, where: str, notes: list[str]) -> tuple[Mapping[str, Any], ...] | None:
    if content is _UNREADABLE:
        return None
    if not isinstance(content, list):
        notes.append(f"{where}: holds {_kind(content)}, expected the list of helm list -o json; not captured.")
        return None
    return _mappings(content, where, notes)


def _mappings(items: list[Any], where: str, notes: list[str]) -> tuple[Mapping[str, Any], ...]:
    good = tuple(item for item in items if isinstance(item, Mapping))
    if len(good) < len(items):
        notes.append(f"{where}: {len(items) - len(good)} of {len(items)} entries are no objects and were left out.")
    return good


def _kind(content: Any) -> str:
    if isinstance(content, Mapping):
        return f"a {content['kind']}" if isinstance(content.get("kind"), str) else "an object"
    return {list: "a list", str: "a text", type(None): "null"}.get(type(content), type(content).__name__)


def _read_dryruns(folder: Path, notes: list[str]) -> Mapping[str, K8sObject]:
    answers = {}
    for path in sorted((folder / "dryrun").glob("*.json")):
        where = f"{folder.name}/dryrun/{path.name}"
        content = _load(path, where, notes)
        if isinstance(content, Mapping):
            answers[path.stem] = content
        elif content is not _UNREADABLE:
            notes.append(f"{where}: holds {_kind(content)}, expected an object or Status; counts as not captured.")
    return answers


def _read_logs(folder: Path, notes: list[str]) -> Iterator[ContainerLog]:
    """Logs by namespace, pod and container; a previous attempt's log stands beside the running one's."""
    texts: dict[tuple[str, str, str], dict[bool, str]] = {}
    for path in sorted((folder / "logs").glob(f"*/*/*{_LOG}")):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            where = path.relative_to(folder.parent).as_posix()
            notes.append(f"{where}: cannot be read: {error.strerror or error}; counts as not captured.")
            continue
        previous = path.name.endswith(_PREVIOUS)
        container = path.name.removesuffix(_PREVIOUS if previous else _LOG)
        texts.setdefault((path.parts[-3], path.parts[-2], container), {})[previous] = text
    for (namespace, pod, container), attempts in texts.items():
        yield ContainerLog(namespace, pod, container, attempts.get(False, ""), attempts.get(True))


def _files(seen: Observation) -> Iterator[tuple[Path, str]]:
    for resource, items in seen.resources.items():
        if resource.lower() in FORBIDDEN_RESOURCES or any(item.get("kind") == "Secret" for item in items):
            raise ValueError("Secrets are never written into an evidence bundle")
        yield Path(f"{_safe(resource)}.json"), _dump_list(items)
    if seen.helm is not None:
        yield Path(_HELM), _dump(list(seen.helm))
    for name, answer in seen.dryrun.items():
        yield Path("dryrun", f"{_safe(name)}.json"), _dump(answer)
    for log in seen.logs:
        folder = Path("logs", _safe(log.namespace), _safe(log.pod))
        yield folder / f"{_safe(log.container)}{_LOG}", log.text
        if log.previous is not None:
            yield folder / f"{_safe(log.container)}{_PREVIOUS}", log.previous
    observed = {
        "run_id": seen.run_id,
        "observed_at": _rfc3339(seen.observed_at) if seen.observed_at else None,
        "cluster": seen.cluster,
    }
    if any(observed.values()):
        yield Path(_OBSERVED), _dump({key: value for key, value in observed.items() if value})


def _safe(name: str) -> str:
    if not _SAFE_NAME.match(name):
        raise ValueError(f"{name!r} cannot be a file name in a bundle")
    return name


def _dump(content: Any) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _dump_list(items: Sequence[K8sObject]) -> str:
    """A List with one object a line: still for an editor and grep, and twenty times faster to write than indented."""
    lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in items)
    return f'{{"apiVersion": "v1", "kind": "List", "metadata": {{"resourceVersion": ""}}, "items": [\n{lines}\n]}}\n'


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def _swap_in(staging: Path, target: Path) -> Path:
    """Put a finished folder in the place of another; a reader sees the old one, for an instant none, or the new one."""
    retired: Path | None = None
    if target.exists():
        retired = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
        os.rename(target, retired / target.name)
    os.rename(staging, target)
    if retired is not None:
        shutil.rmtree(retired, ignore_errors=True)
    return target
