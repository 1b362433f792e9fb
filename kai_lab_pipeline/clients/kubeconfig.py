"""Kubeconfig files: find one context by name, and write a file that holds nothing else.

The rules are kubectl's: KUBECONFIG may list several files, the first that names a thing wins, relative paths are
relative to the file they stand in. The current context is never used.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kai_lab_pipeline.clients.tools import Runner
from kai_lab_pipeline.lab.errors import LabError, WrongUse

_FILES = {
    "certificate-authority": "certificate-authority-data",
    "client-certificate": "client-certificate-data",
    "client-key": "client-key-data",
}
_FOR_PLUGINS = "client.authentication.k8s.io/exec"


@dataclass(frozen=True)
class Named:
    """An entry of a kubeconfig and the file it stands in."""

    body: Mapping[str, Any]
    file: Path


def kubeconfig_files(named: Path | None, environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """The file named in the settings, or those of KUBECONFIG, or ``~/.kube/config``."""
    environ = os.environ if environ is None else environ
    if named:
        return (named,)
    listed = [part for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    home = Path(environ.get("HOME") or Path.home())
    return tuple(Path(part).expanduser() for part in listed) or (home / ".kube" / "config",)


class Kubeconfig:
    """Several kubeconfig files as kubectl merges them; files that are not there are skipped."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Raises LabError for a file that is no kubeconfig."""
        self.files = tuple(file for file in files if file.is_file())
        self._asked = tuple(files)
        self._documents = [(file, _load(file)) for file in self.files]

    def contexts(self) -> tuple[str, ...]:
        names = (entry.get("name") for _, document in self._documents for entry in _entries(document, "contexts"))
        return tuple(dict.fromkeys(str(name) for name in names if name))

    @property
    def current(self) -> str | None:
        """The current context, which the lab does not use."""
        return next((str(doc["current-context"]) for _, doc in self._documents if doc.get("current-context")), None)

    def minimal(self, context: str) -> dict[str, Any]:
        """A kubeconfig with one context, certificate files embedded; raises WrongUse when it is not there."""
        found = self._find("contexts", context)
        if found is None:
            files = ", ".join(map(str, self.files)) or f"none of {', '.join(map(str, self._asked))} is there"
            raise WrongUse(
                f"There is no kubeconfig context {context!r}",
                where=files,
                seen=f"contexts: {', '.join(self.contexts()) or 'none'}",
                next_step="Name one of them in lab.context (KAI_LAB_CONTEXT), or another file in lab.kubeconfig "
                "(KAI_LAB_KUBECONFIG).",
            )
        body = dict(found.body.get("context") or {})
        cluster = self._part("clusters", "cluster", str(body.get("cluster", "")), context)
        # kubectl takes a context without a user as well: kubectl proxy asks for none.
        name = str(body.get("user") or "")
        users = [{"name": name, "user": self._part("users", "user", name, context)}] if name else []
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": body["cluster"], "cluster": cluster}],
            "users": users,
            "contexts": [{"name": context, "context": body}],
            "current-context": context,
        }

    def user(self, context: str) -> Mapping[str, Any]:
        """What a context's user says of itself; empty where there is none."""
        found = self._find("contexts", context)
        named = found and self._find("users", str((found.body.get("context") or {}).get("user") or ""))
        return dict((named and named.body.get("user")) or {})

    def where(self, context: str) -> str:
        """A context and the file it stands in, as errors name them."""
        found = self._find("contexts", context)
        return f"context {context} of {found.file if found else ', '.join(map(str, self._asked))}"

    def _find(self, section: str, name: str) -> Named | None:
        for file, document in self._documents:
            for entry in _entries(document, section):
                if entry.get("name") == name:
                    return Named(entry, file)
        return None

    def _part(self, section: str, key: str, name: str, context: str) -> dict[str, Any]:
        found = self._find(section, name)
        if found is None:
            raise WrongUse(
                f"The context {context!r} names the {key} {name!r}, and there is none",
                where=", ".join(map(str, self.files)),
                next_step="Correct the kubeconfig; 'kubectl config view' shows it.",
            )
        return _self_contained(dict(found.body.get(key) or {}), found.file)


def write_kubeconfig(file: Path, content: Mapping[str, Any]) -> None:
    """Write a kubeconfig that only this user can read (0600), whole or not at all."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        yaml.safe_dump(dict(content), out, sort_keys=False)
    os.replace(partial, file)


def own_context(file: Path) -> str | None:
    """The one context of a kubeconfig that the lab wrote for itself; None when it is not there. Raises LabError."""
    return Kubeconfig([file]).current


def check_plugin(content: Mapping[str, Any], runner: Runner) -> None:
    """Run the user's credential plugin once, if there is one; raises LabError with its last words when it fails.

    The Kubernetes client would go on without credentials, and the API server's refusal would hide the cause. What the
    plugin prints on stdout are credentials: it is not shown.
    """
    plugin = content["users"][0]["user"].get("exec") if content["users"] else None
    if not isinstance(plugin, dict) or not plugin.get("command"):
        return
    command = [str(plugin["command"]), *map(str, plugin.get("args") or ())]
    version = str(plugin.get("apiVersion") or "client.authentication.k8s.io/v1")
    spec: dict[str, Any] = {"interactive": False}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = _cluster_info(content["clusters"][0]["cluster"])
    info = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": spec})
    env = {str(item["name"]): str(item["value"]) for item in plugin.get("env") or ()} | {"KUBERNETES_EXEC_INFO": info}
    outcome = runner(command, deadline_s=60, env=env)
    if outcome.exit_code != 0:
        raise LabError(
            f"The kubeconfig's credential plugin {Path(command[0]).name} failed (exit code {outcome.exit_code})",
            where=f"context {content['current-context']}",
            seen="\n".join(outcome.stderr.strip().splitlines()[-5:]) or "no message",
            next_step=str(plugin.get("installHint") or "Log in again, as you do before kubectl, then run it again."),
        )


def _cluster_info(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """What a plugin is told of the cluster: its fields, and the extension that is meant for plugins as ``config``."""
    meant = [item for item in cluster.get("extensions") or () if item.get("name") == _FOR_PLUGINS]
    info = {key: value for key, value in cluster.items() if key != "extensions"}
    return info | ({"config": meant[0].get("extension")} if meant else {})


def _load(file: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise LabError(
            "A kubeconfig cannot be read",
            where=str(file),
            seen=str(error).splitlines()[0],
            next_step=f"Correct it; 'kubectl config view --kubeconfig {file}' says the same.",
        ) from error
    if not isinstance(document, dict | None):
        raise LabError("A kubeconfig is no YAML mapping", where=str(file), next_step="Correct the file.")
    return document or {}


def _entries(document: Mapping[str, Any], section: str) -> list[Mapping[str, Any]]:
    found = document.get(section)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _self_contained(body: dict[str, Any], file: Path) -> dict[str, Any]:
    """A cluster or user whose certificate files are embedded and whose other paths are absolute."""
    for key, data_key in _FILES.items():
        path = body.pop(key, None)
        if path and not body.get(data_key):
            source = (file.parent / str(path)).resolve()
            try:
                body[data_key] = base64.b64encode(source.read_bytes()).decode()
            except OSError as error:
                raise LabError(
                    f"The kubeconfig names a {key} that cannot be read",
                    where=f"{source} (named in {file})",
                    seen=error.strerror or str(error),
                    next_step="Get the cluster's kubeconfig again.",
                ) from error
    if body.get("tokenFile"):
        body["tokenFile"] = str((file.parent / str(body["tokenFile"])).resolve())  # it may be renewed: not embedded
    plugin = body.get("exec")
    if isinstance(plugin, dict) and "/" in str(plugin.get("command", "")):
        body["exec"] = plugin | {"command": str((file.parent / str(plugin["command"])).resolve())}
    return body
