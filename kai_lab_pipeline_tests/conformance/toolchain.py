"""Builds kube-apiserver, kube-controller-manager, etcd and helm from their Go modules, once per version.

What is built is named by the `go.mod` of `conformance/`, `conformance/helm/` and `conformance/helm4/`; the binaries go
to a cache outside the project, in a folder whose name changes with those files, the flags below and the version of Go.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).resolve().parents[2] / "conformance"
HELMS = ("helm", "helm4")
"""Folders of the modules that are a helm each: version 3 and version 4."""
CACHE_VARIABLE = "CONFORMANCE_CACHE"
"""Without the prefix KAI_LAB_, which is for settings of a lab: kai-lab refuses others with it."""

_FLAGS = ("-mod=readonly", "-trimpath", "-buildvcs=false")
_ENVIRONMENT = {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""}
"""Without cgo the binaries depend on nothing of the machine; settings of the machine must not change the build."""

Say = Callable[[str], None]


class LaneUnavailable(Exception):
    """The lane cannot run here; the text says what is missing and how to get it."""


class BuildFailed(Exception):
    """Go could not build a tool; the text holds its last lines."""


@dataclass(frozen=True)
class Binaries:
    """Paths of the programs of the lane."""

    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    helm: Path
    helm4: Path


def binaries(say: Say) -> Binaries:
    """The programs, built where they are not in the cache yet.

    Raises LaneUnavailable without a fitting Go, BuildFailed when Go refuses.
    """
    go, version = _go()
    servers = _built(go, version, MODULES, say)
    helms = {name: _built(go, version, MODULES / name, say) / "helm" for name in HELMS}
    return Binaries(
        etcd=servers / "server",  # Go names a program after its module: go.etcd.io/etcd/server/v3
        kube_apiserver=servers / "kube-apiserver",
        kube_controller_manager=servers / "kube-controller-manager",
        **helms,
    )


def cache() -> Path:
    """Where built programs are kept: CONFORMANCE_CACHE, else a folder in the user's cache."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kai-lab-conformance"


def kubernetes_version(module: Path = MODULES) -> str:
    """The version of k8s.io/kubernetes that go.mod requires, such as v1.34.0."""
    return _line(r"^\s*k8s\.io/kubernetes (v\S+)", module)


def key(module: Path, go_version: str) -> str:
    """Changes whenever the build could give something else."""
    digest = hashlib.sha256()
    for part in (go_version, *_FLAGS, *_ldflags(module), *(f"{k}={v}" for k, v in sorted(_ENVIRONMENT.items()))):
        digest.update(part.encode() + b"\0")
    for name in ("go.mod", "go.sum"):
        digest.update((module / name).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _go() -> tuple[str, str]:
    """Path and version of the Go toolchain, no older than the modules ask for."""
    needed = max(
        (_line(r"^go (\S+)", module) for module in (MODULES, *(MODULES / name for name in HELMS))), key=_numbers
    )
    go = shutil.which("go")
    if go is None:
        raise LaneUnavailable(f"the Go toolchain was not found on PATH; install Go {needed} or newer")
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    version = answer.stdout.strip().removeprefix("go")
    if answer.returncode or not version:
        raise LaneUnavailable(f"{go} does not run: {answer.stderr.strip() or 'no answer'}; install Go {needed} anew")
    if _numbers(version) < _numbers(needed):
        raise LaneUnavailable(f"{go} is version {version}; install Go {needed} or newer")
    return go, version


def _built(go: str, version: str, module: Path, say: Say) -> Path:
    name = "servers" if module == MODULES else module.name
    folder = cache() / f"{name}-{key(module, version)}"
    if folder.is_dir():
        return folder
    say(
        f"building {', '.join(_tools(module))} with Go {version} into {folder.parent} (minutes; kept for the next time)"
    )
    started = time.monotonic()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{name}-building-") as partial:
        output = Path(partial) / "bin"
        output.mkdir()
        command = [go, "build", *_FLAGS, "-ldflags", " ".join(_ldflags(module)), "-o", f"{output}/", "tool"]
        done = subprocess.run(
            command, cwd=module, env={**os.environ, **_ENVIRONMENT}, stderr=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            last = "\n".join(done.stderr.strip().splitlines()[-20:])
            raise BuildFailed(f"`{' '.join(command)}` in {module} ended with {done.returncode}:\n{last}")
        try:
            output.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another run built the same at the same time
                raise
    say(f"built in {time.monotonic() - started:.0f} s")
    return folder


def _ldflags(module: Path) -> tuple[str, ...]:
    """No debug tables; and the servers say the version they are, which a module's build does not know by itself."""
    stripped = ("-s", "-w")
    if module != MODULES:
        return stripped
    stamp = "k8s.io/component-base/version"
    version = kubernetes_version(module)
    major, minor = version.removeprefix("v").split(".")[:2]
    return (
        *stripped,
        f"-X {stamp}.gitVersion={version}",
        f"-X {stamp}.gitMajor={major}",
        f"-X {stamp}.gitMinor={minor}",
    )


def _tools(module: Path) -> list[str]:
    text = (module / "go.mod").read_text(encoding="utf-8")
    block = re.search(r"^tool \((.*?)^\)", text, re.MULTILINE | re.DOTALL)
    return block.group(1).split() if block else re.findall(r"^tool (\S+)", text, re.MULTILINE)


def _line(pattern: str, module: Path) -> str:
    found = re.search(pattern, (module / "go.mod").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise BuildFailed(f"{module / 'go.mod'} has no line like {pattern}")
    return found.group(1)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("-")[0])[:3])
