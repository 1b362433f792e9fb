"""Reading a chart's archive or folder without helm and without unpacking it: values, CRDs, metadata."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from kai_lab_pipeline.lab.chart_diff import ChartContents
from kai_lab_pipeline.lab.errors import LabError

MAX_FILE = 8 * 1024 * 1024
MAX_FILES = 5000
MAX_UNPACKED = 32 * 1024 * 1024
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_chart(path: Path) -> ChartContents:
    """Read a chart (a .tgz or a folder), its subcharts' values and CRDs; its objects are not rendered.

    Raises LabError for what is no chart or is larger than any chart.
    """
    try:
        files = dict(_folder(path) if path.is_dir() else _archive(path))
        metadata = _mapping(files, "Chart.yaml")
        if metadata is None:
            raise LabError("This is no chart: it has no Chart.yaml.", where=str(path))
        return ChartContents(
            name=str(metadata.get("name", "")),
            version=str(metadata.get("version", "")),
            app_version=str(metadata.get("appVersion", "")),
            kube_version=str(metadata.get("kubeVersion", "")),
            values=_values(files, PurePosixPath(".")),
            crds=tuple(_crds(files)),
            templates="\n".join(text.decode("utf-8", "replace") for path, text in files.items() if _is_template(path)),
        )
    except (OSError, EOFError, tarfile.TarError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise LabError(
            "The chart cannot be read.",
            where=str(path),
            seen=str(error).partition("\n")[0],
            next_step="Name a chart folder or an archive made by `helm package`; a fetched one may be damaged.",
        ) from error


def _wanted(path: PurePosixPath) -> bool:
    if path.suffix not in (".yaml", ".yml", ".tpl"):
        return False
    return path.name in ("Chart.yaml", "values.yaml") or path.parent.name == "crds" or _is_template(path)


def _is_template(path: PurePosixPath) -> bool:
    return "templates" in path.parts[:-1]


def _folder(root: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    for file in sorted(root.rglob("*")):
        path = PurePosixPath(file.relative_to(root).as_posix())
        if _wanted(path) and file.is_file():
            yield path, file.read_bytes()


def _archive(archive: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    with tarfile.open(archive, "r:gz") as tar:
        unpacked = 0
        for count, member in enumerate(tar):
            unpacked += member.size
            # The first folder is the chart's name.
            path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if count > MAX_FILES or unpacked > MAX_UNPACKED or (_wanted(path) and member.size > MAX_FILE):
                raise LabError("The chart is larger than any chart should be.", where=str(archive))
            content = tar.extractfile(member) if member.isfile() and _wanted(path) else None
            if content is not None:
                yield path, content.read()


def _values(files: Mapping[PurePosixPath, bytes], chart: PurePosixPath) -> dict[str, Any]:
    """values.yaml of a chart, over those of its subcharts, which stand below their names as helm takes them."""
    depth = len((chart / "charts").parts)
    subcharts = {
        path.parts[depth] for path in files if len(path.parts) > depth + 1 and chart / "charts" in path.parents
    }
    below = {name: _values(files, chart / "charts" / name) for name in sorted(subcharts)}
    return _merged(below, _mapping(files, str(chart / "values.yaml")) or {})


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        earlier = result.get(key)
        both = isinstance(earlier, Mapping) and isinstance(value, Mapping)
        result[key] = _merged(earlier, value) if both else value  # type: ignore[arg-type]
    return result


def _mapping(files: Mapping[PurePosixPath, bytes], name: str) -> dict[str, Any] | None:
    content = files.get(PurePosixPath(name))
    return None if content is None else next(_documents(content), {})


def _crds(files: Mapping[PurePosixPath, bytes]) -> Iterator[dict[str, Any]]:
    for path, content in files.items():
        if path.parent.name == "crds" and not _is_template(path):
            yield from _documents(content)


def _documents(content: bytes) -> Iterator[dict[str, Any]]:
    for document in yaml.load_all(content.decode("utf-8"), Loader=_Loader):
        if isinstance(document, dict):
            yield document
