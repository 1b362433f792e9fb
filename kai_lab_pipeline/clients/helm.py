"""Helm 3 and 4 as the lab uses them: one explicit kubeconfig and context, exact values, nothing of the user's set-up.

What differs between the majors (measured with 3.22 and 4.3): `list -a` is gone in 4 (it shows all states by itself),
and 4 does not fall back to plain HTTP. `--wait` is not used: in 3 it returns while a DaemonSet has no ready pod, in 4
it gives up on objects that a controller finishes later. Helm waits for its hooks; readiness is judged by the checks.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from kai_lab_pipeline.clients.certificates import with_system
from kai_lab_pipeline.clients.docker_config import docker_config_file
from kai_lab_pipeline.clients.local_chart import chart_content
from kai_lab_pipeline.clients.mirrors import OCI, Mirrors, Source, login_file, write_logins, write_private
from kai_lab_pipeline.clients.tools import Hint, Log, Outcome, Runner, Tool, ToolError, version_of
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.settings import Chart, Scalar

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
KNOWN_BAD: Mapping[tuple[int, int, int], str] = {
    (3, 13, 0): "helm 3.13.0 is refused by public OCI registries (its login handling is broken); use 3.13.1 or newer"
}

MOST_RELEASES = "1000000"
"""How many rows helm is asked for: by itself it prints 256 and says nothing of the rest; 0 would be its own limit."""
FINDINGS = (
    "chart.gpu-profile",
    "chart.kube-version",
    "chart.schema",
    "chart.template",
    "helm.hook-failed",
    "helm.object-missing",
    "helm.owned-by-other",
    "helm.queue-before-kai",
    "helm.rollback-queues",
    "helm.shard-in-progress",
    "kubernetes.crd-changed",
    "kubernetes.forbidden",
    "kubernetes.immutable",
    "kubernetes.invalid",
    "kubernetes.kind-unknown",
    "kubernetes.namespace-terminating",
    "kubernetes.pod-security",
    "kubernetes.quota",
    "kubernetes.rejected",
)
"""Known faults of an installation that speak about the chart, its values and its objects."""
FINDING_FAMILIES = ("gpu", "isolator", "kai", "webhook")
"""Components under test, and the webhooks that they put in the API server's way: all their faults are findings."""


def is_finding(fault: str) -> bool:
    """Whether a known fault (id of `lab.diagnosis`) of an installation says something about what is installed.

    helm itself tells with its exit code only that it failed (3.22, 4.3: always 1), so the fault it named decides.
    """
    return fault in FINDINGS or fault.partition(".")[0] in FINDING_FAMILIES


def value_options(values: Mapping[str, Scalar]) -> list[str]:
    """Values as helm's options, with exactly the types they have in lab.toml.

    >>> value_options({"global.gpuSharing": True, "image.tag": "1"})
    ['--set', 'global.gpuSharing=true', '--set-string', 'image.tag=1']
    """
    options: list[str] = []
    for key, value in values.items():
        if isinstance(value, str):
            text = value.replace("\\", "\\\\").replace(",", "\\,")
            options += ["--set-string", f"{key}={chr(92) + text if text.startswith('{') else text}"]
        elif isinstance(value, float):
            options += ["--set-json", f"{key}={json.dumps(value)}"]  # --set makes a string of 0.5
        else:
            options += ["--set", f"{key}={json.dumps(value)}"]
    return options


_KEY_PART = re.compile(r"\[(\d{1,5})\]|((?:\\.|[^\\.\[])+)")


def nested(values: Mapping[str, Scalar]) -> dict[str, Any]:
    """Dotted value keys as the tree that ``helm get values`` shows.

    ``[0]`` is a place in a list; what stands after a backslash is part of the key.

    >>> nested({"tolerations[0].key": "gpu"})
    {'tolerations': [{'key': 'gpu'}]}
    """
    tree: Any = {}
    for key, value in values.items():
        parts = [int(index) if index else re.sub(r"\\(.)", r"\1", name) for index, name in _KEY_PART.findall(key)]
        tree = _placed(tree, parts, value)
    return tree if isinstance(tree, dict) else {}


def _placed(tree: Any, parts: Sequence[str | int], value: Scalar) -> Any:
    """`tree` with a value under these parts of a key; what is of another kind there is replaced."""
    if not parts:
        return value
    part, *rest = parts
    if isinstance(part, int):
        items = [*tree] if isinstance(tree, list) else []
        items += [None] * (part + 1 - len(items))
        items[part] = _placed(items[part], rest, value)
        return items
    branch = {**tree} if isinstance(tree, dict) else {}
    return branch | {part: _placed(branch.get(part), rest, value)}


class Helm:
    """The helm command line for one cluster."""

    def __init__(
        self,
        runner: Runner,
        *,
        kubeconfig: Path,
        context: str,
        home: Path,
        root: Path,
        mirrors: Mapping[str, str] | None = None,
        ca_file: Path | None = None,
        backend: str = "",
    ) -> None:
        """`home` takes helm's own files; `root` is the folder against which local charts are named.

        `backend` is what the cluster is of, for remedies that fit it.
        """
        self.context = context
        self._root = root
        self._mirrors = Mirrors(mirrors or {})
        self._ca_file = ca_file
        self._home = home
        self._target = ("--kubeconfig", str(kubeconfig), "--kube-context", context)
        self._helm = Tool(runner, "helm", self._environment(None, None), backend)
        self._version: tuple[int, int, int] | None = None

    def version(self) -> tuple[int, int, int]:
        """Version of helm; raises LabError for helm 2 and for versions known not to work."""
        if self._version is None:
            outcome = self._helm.attempt("version", deadline_s=30)
            found = version_of(outcome)
            if found is None:
                raise ToolError(outcome, "helm does not tell its version")
            if found[0] not in (3, 4):
                raise LabError(
                    f"helm {_dotted(found)} cannot be used: the lab needs helm 3 or 4",
                    where="helm version",
                    seen=outcome.last_lines(2),
                    next_step="Install helm 3 or 4 and put it first on the PATH: https://helm.sh/docs/intro/install/.",
                )
            if found in KNOWN_BAD:
                raise LabError(KNOWN_BAD[found], where="helm version", next_step="Install a newer helm.")
            self._version = found
        return self._version

    def releases(self) -> list[dict[str, Any]]:
        """All releases in all namespaces and states: rows with name, namespace, status, chart, ..."""
        return self._list("-A")

    def find(self, release: str, namespace: str) -> dict[str, Any] | None:
        """The row of one release, by exact name and namespace, whatever its state."""
        rows = self._list("-n", namespace, "--filter", f"^{re.escape(release)}$")
        return next((row for row in rows if (row.get("name"), row.get("namespace")) == (release, namespace)), None)

    def _list(self, *which: str) -> list[dict[str, Any]]:
        all_states = ("-a",) if self.version()[0] == 3 else ()
        options = (*which, *all_states, "--max", MOST_RELEASES, "-o", "json")
        outcome = self._call("list", *options, what="The helm releases cannot be listed")
        return [dict(row) for row in _parsed(outcome, list)]

    def history(self, release: str, namespace: str) -> list[dict[str, Any]]:
        """Revisions of a release, oldest first; empty when there is none."""
        outcome = self._helm.attempt("history", release, "-n", namespace, "-o", "json", *self._target)
        return [dict(row) for row in _parsed(outcome, list)] if outcome.exit_code == 0 else []

    def values(self, release: str, namespace: str) -> dict[str, Any]:
        """Values that were given to the release's newest revision."""
        outcome = self._call(
            "get", "values", release, "-n", namespace, "-o", "json", what=f"The values of {release} cannot be read"
        )
        return dict(_parsed(outcome, dict))

    def upgrade_install(self, chart: Chart, *, deadline_s: float, log: Log) -> Outcome:
        """Install or upgrade with exactly the values given: what an earlier revision had is dropped."""
        reference, options, tool, hints = self._source(chart)
        command = (
            *("upgrade", "--install", chart.release, reference, *options),
            *("--namespace", chart.namespace, "--create-namespace", "--reset-values"),
            *value_options(chart.values),
            *("--timeout", f"{max(1, int(deadline_s))}s", *self._target),
        )
        what = f"helm could not install {chart.release} {chart.version}"
        try:
            # Longer than helm's own clock, which starts when the chart is pulled.
            return tool.call(*command, what=what, deadline_s=deadline_s + 60, log=log, hints=hints)
        except ToolError as error:
            error.finding = is_finding(error.fault)
            raise

    def description(self, chart: Chart) -> str:
        """What the revision of a local chart says of itself in ``helm history``: which content it was made of."""
        return f"{chart.chart} with content {chart_content(self._root, chart)}"

    def template(self, chart: Chart, archive: Path) -> list[dict[str, Any]]:
        """What an install of a fetched chart would make, its hooks included and its tests not; asks no cluster.

        Raises ToolMissing without helm, ToolError for a chart that refuses the values, LabError for no YAML.
        """
        outcome = self._helm.call(
            *("template", chart.release, str(archive), "--namespace", chart.namespace, "--skip-tests"),
            *value_options(chart.values),
            what=f"helm could not render {chart.release} {chart.version}",
        )
        return _documents(outcome, f"helm rendered no YAML for {chart.release} {chart.version}")

    def manifest(self, release: str, namespace: str) -> list[dict[str, Any]]:
        """What the newest revision of a release has put on the cluster, without its hooks."""
        what = f"The manifest of {release} cannot be read"
        return _documents(self._call("get", "manifest", release, "-n", namespace, what=what), what)

    def rollback(self, release: str, revision: str, namespace: str, *, log: Log) -> Outcome:
        """Go back to a revision; the outcome is returned whatever it is, because healing goes on either way."""
        arguments = ("rollback", release, revision, "-n", namespace, "--timeout", "120s", *self._target)
        return self._helm.attempt(*arguments, deadline_s=180, log=log)

    def uninstall(self, release: str, namespace: str, *, log: Log, deadline_s: float = 180) -> Outcome | None:
        """Remove a release and see that it is gone; None when it was not there."""
        arguments = ("uninstall", release, "-n", namespace, "--timeout", f"{int(deadline_s)}s", *self._target)
        outcome = self._helm.attempt(*arguments, deadline_s=deadline_s + 30, log=log)
        absent = "release: not found" in outcome.text
        what = f"helm could not remove {release}"
        if outcome.exit_code != 0 and not absent:
            raise ToolError(outcome, what)
        if self.find(release, namespace) is not None:
            raise ToolError(outcome, f"{what}: the release is still listed")
        return None if absent else outcome

    def _source(self, chart: Chart) -> tuple[str, list[str], Tool, tuple[Hint, ...]]:
        """What to install from: reference, options, helm with the right logins, and hints that belong to them."""
        if not chart.chart.startswith(OCI):
            return str(self._local(chart)), ["--description", self.description(chart)], self._helm, ()
        reference, source = self._mirrors.chart(chart.chart)
        options = ["--version", chart.version]
        if source.plain_http:
            options.append("--plain-http")
        elif self._ca_file:
            options += ["--ca-file", str(self._trusted(self._ca_file))]
        login = login_file(source.host)
        hints: tuple[Hint, ...] = ()
        if login is not None:
            remedy = f"The login in {login} may have expired: 'helm registry logout {source.host}' and 'docker logout "
            remedy += f"{source.host}', or log in again."
            hints = (Hint(r"status code 40[13]|denied|unauthorized", "the registry refuses this login", remedy),)
        return reference, options, replace(self._helm, env=self._environment(login, source)), hints

    def _trusted(self, ca_file: Path) -> Path:
        """A file of the lab's authority and the system's: helm takes what --ca-file names for all there is."""
        trusted = self._home / "ca.pem"
        write_private(trusted, with_system(ca_file))
        return trusted

    def _local(self, chart: Chart) -> Path:
        path = (self._root / chart.chart).resolve()
        if not path.exists():
            raise WrongUse(
                f"The chart {chart.chart} is not there",
                where=str(path),
                next_step="Name a chart folder, a chart archive (.tgz) or an oci:// reference in lab.toml.",
            )
        if path.is_dir():  # helm ignores --version for what is local
            found = _chart_version(path / "Chart.yaml")
            if found is not None and found != chart.version:
                raise WrongUse(
                    f"The local chart is {found}, and lab.toml pins {chart.version}",
                    where=str(path),
                    next_step=f'Set version = "{found}" for this chart, or check out {chart.version}.',
                )
        return path

    def _environment(self, login: Path | None, source: Source | None) -> dict[str, str | None]:
        """Helm's folders inside the lab's, and none of the user's HELM_ settings; logins only where there is one.

        An expired login for a public registry makes anonymous pulls fail (403), so without a login for this very
        registry helm sees an empty docker config too.
        """
        env: dict[str, str | None] = {name: None for name in os.environ if name.startswith("HELM_")}
        env |= {f"HELM_{kind}_HOME": str(self._home / kind.lower()) for kind in ("CONFIG", "CACHE", "DATA")}
        own = self._home / "registry"
        if source is not None and source.login is not None:
            # A folder per mirror: two releases may be installed at once, and one host may have a login per path.
            own = self._home / "registries" / quote(f"{source.host}/{source.prefix}", safe="")
            write_logins(own / "config.json", {source.host: source.login})
        elif login is not None:
            return env | ({} if login == docker_config_file() else {"HELM_REGISTRY_CONFIG": str(login)})
        return env | {"HELM_REGISTRY_CONFIG": str(own / "config.json"), "DOCKER_CONFIG": str(own)}

    def _call(self, *arguments: str, what: str) -> Outcome:
        return self._helm.call(*arguments, *self._target, what=what)


def _parsed(outcome: Outcome, kind: type) -> Any:
    try:
        parsed = json.loads(outcome.stdout or "null")
    except ValueError as error:
        raise ToolError(outcome, "helm printed no JSON") from error
    return parsed if isinstance(parsed, kind) else kind()


def _documents(outcome: Outcome, what: str) -> list[dict[str, Any]]:
    try:
        documents = list(yaml.load_all(outcome.stdout, Loader=_Loader))
    except yaml.YAMLError as error:
        raise ToolError(outcome, what) from error
    return [document for document in documents if isinstance(document, dict)]


def _chart_version(file: Path) -> str | None:
    try:
        meta = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return None  # helm says what is wrong with it
    return str(meta["version"]) if isinstance(meta, dict) and "version" in meta else None


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
