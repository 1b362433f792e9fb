"""Settings of a lab: lab.toml, overridden by KAI_LAB_* variables, overridden by options of the command line.

Everything wrong in them is one `SettingsError` that names the file (or variable), the key and what is allowed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from kai_lab_pipeline.lab.scenarios import SCENARIOS
from kai_lab_pipeline.lab.spec import CHECKS, RELEASED, VALUES_HAVE_EFFECT, Expectations
from kai_lab_pipeline.lab.verdict import Excuse
from kai_lab_pipeline.lab.versions import normalized

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SETTINGS_FILE = "lab.toml"
BACKENDS = ("rehearsal", "kind", "context")
BackendName = Literal["rehearsal", "kind", "context"]
ClusterName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$")]
Scalar = bool | int | float | str


class SettingsError(Exception):
    """A setting that cannot be used. The text says where, which key, what was found and what is allowed."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LabSection(_Section):
    name: ClusterName = "kai-hami-test"
    backend: BackendName = "rehearsal"
    context: str | None = None
    """Kubeconfig context of backend ``context``; never guessed from the current one."""
    kubeconfig: str | None = None
    """Kubeconfig file in which `context` is looked up; None means KUBECONFIG or the user's default."""
    state_dir: str = ".lab"


class Profile(_Section):
    """The card that every node shows."""

    name: str = "a100"
    gpu_count: int = Field(default=8, ge=1, le=1024)
    gpu_memory_mib: int = Field(default=40960, ge=100, lt=1048576)
    """Memory per card, MiB."""
    gpu_product: str = "NVIDIA-A100-SXM4-40GB"


class Chart(_Section):
    """One chart release. `chart` is an oci:// reference, or a local folder or archive."""

    chart: str
    version: str
    release: ClusterName
    namespace: ClusterName
    values: dict[str, Scalar] = {}
    """Dotted value keys, as helm's --set takes them."""


class Charts(_Section):
    nvml_mock: Chart
    kai_scheduler: Chart
    kai_resource_isolator: Chart

    def by_component(self) -> dict[str, Chart]:
        return {name: getattr(self, name) for name in type(self).model_fields}


class Manifest(_Section):
    file: str
    """Path below the project, or an absolute path."""
    version: str
    source: str = ""
    git_ref: str = "v0.3.0"
    """The release that `file` was made from: what is newer in a checkout is told by `kai-lab versions`."""
    path: str = "tests/e2e/device-plugin-mock.yaml"
    """Where upstream keeps it in that release."""
    checkout: str | None = None
    """A checkout to look for newer ones in; where none is named, that of the nvml-mock image."""


class Manifests(_Section):
    device_plugin: Manifest = Manifest(file="manifests/device-plugin.yaml", version="v0.18.2")


class ImageBuild(_Section):
    """The nvml-mock image that the lab builds itself."""

    name: str = "nvml-mock:local"
    git_ref: str = "v0.3.0"
    source: str = "https://github.com/NVIDIA/k8s-test-infra.git"
    dockerfile: str = "deployments/nvml-mock/Dockerfile"
    checkout: str | None = None
    """A checkout to build from, instead of cloning `source` at `git_ref`."""
    archive: str | None = None
    """An image archive (docker save) to load, instead of building."""


class Images(_Section):
    nvml_mock: ImageBuild = ImageBuild()


class BoundarySection(_Section):
    crossing: str | None = None


class RehearsalSection(_Section):
    time_scale: float = Field(default=0.01, gt=0, le=1)
    """Seconds of the rehearsal per second of a real cluster."""
    idle_stop_s: float = Field(default=1800, ge=10)
    """The server stops by itself when nothing asked it anything for this long, seconds."""
    patience_s: float = Field(default=5, gt=0)
    """Least wait of an asset on the rehearsal, seconds: scaled deadlines are shorter than a busy machine's pauses."""
    scenario: str | None = None
    """A named fault to rehearse; see `kai-lab scenarios`."""
    faults: dict[str, Scalar] = {}
    """Faults to rehearse by name, besides the scenario's."""


class KindSection(_Section):
    node_image: str | None = None
    config: str | None = None
    """A kind config file; None makes a single control-plane node."""
    preload: tuple[str, ...] = ()
    """Image archives to load into the node before anything is installed."""


class Deadlines(_Section):
    """How long an asset waits for what it expects, in seconds of a real cluster."""

    default: float = Field(default=180, gt=0)
    cluster: float = Field(default=300, gt=0)
    kai_release: float = Field(default=300, gt=0)
    reservation_boundary: float = Field(default=150, gt=0)


class NightlySection(_Section):
    """Nights against new chart versions."""

    cron: str = "0 2 * * *"
    cap: int = Field(default=12, ge=1)
    """Most version sets that one night takes on."""
    context: str | None = None
    """Kubeconfig context of backend ``context`` for candidates alone; the lab's own is never used for them."""
    keep_failed: bool = False
    """Keep the cluster of a candidate whose verdict is broken, to look at it."""
    keep_days: int = Field(default=60, ge=1)
    """A version set without a new verdict for this many days is retired; its verdicts stay."""
    notify_command: tuple[str, ...] = ()
    """Run once per regression, with its text on standard input."""
    notify_url: str | None = None
    """Gets a POST with a JSON body once per regression."""


class ExcuseEntry(_Section):
    """A check that is allowed to break, until a date, for a reason."""

    check: str
    reason: str = Field(min_length=1)
    until: date
    versions: dict[str, str] = {}
    """Only where the version set has these versions; empty means everywhere."""

    @field_validator("check")
    @classmethod
    def _known(cls, value: str) -> str:
        asset, _, check = value.partition(".")
        on_release = {VALUES_HAVE_EFFECT} if asset in RELEASED.values() else set()
        if check not in {spec.name for spec in CHECKS.get(asset, ())} | on_release:
            raise ValueError(f"no check is named {value!r}; write asset.check as in 'kai-lab judge --json'")
        return value


class Settings(_Section):
    lab: LabSection = LabSection()
    profile: Profile = Profile()
    charts: Charts
    manifests: Manifests = Manifests()
    image: Images = Images()
    boundary: BoundarySection = BoundarySection()
    rehearsal: RehearsalSection = RehearsalSection()
    kind: KindSection = KindSection()
    deadlines: Deadlines = Deadlines()
    nightly: NightlySection = NightlySection()
    mirrors: dict[str, str] = {}
    """Registry host -> mirror, e.g. {"docker.io": "http://127.0.0.1:5000"}."""
    ca_file: str | None = None
    """Certificates (PEM) trusted for mirrors and registries, besides the system's."""
    excuses: tuple[ExcuseEntry, ...] = ()
    root: Path = Field(default=Path("."), exclude=True)
    """The project's folder: where lab.toml was found."""

    @property
    def state_root(self) -> Path:
        """The folder that holds one folder per lab."""
        return (self.root / self.lab.state_dir).resolve()

    @property
    def lab_dir(self) -> Path:
        return self.state_root / self.lab.name

    @property
    def dagster_home(self) -> Path:
        return self.root / ".dagster_home"

    def deadline_s(self, asset: str) -> float:
        """How long an asset waits for what it expects, in seconds of this backend."""
        real = float(getattr(self.deadlines, asset, self.deadlines.default))
        if self.lab.backend != "rehearsal":
            return real
        return max(real * self.rehearsal.time_scale, self.rehearsal.patience_s)

    def project_file(self, name: str) -> Path:
        """A file named in the settings: relative names are below the project's folder."""
        return (self.root / name).resolve()

    def version_set(self) -> dict[str, str]:
        """Versions this lab pins, by component."""
        versions = {name: chart.version for name, chart in self.charts.by_component().items()}
        return versions | {"device_plugin": self.manifests.device_plugin.version}

    def expectations(self) -> Expectations:
        """What the claims are judged against in this lab."""
        own_cluster = self.lab.backend in ("kind", "rehearsal")
        return Expectations(
            gpu_count=self.profile.gpu_count,
            gpu_memory_mib=self.profile.gpu_memory_mib,
            gpu_product=self.profile.gpu_product,
            node_names=(f"{self.lab.name}-control-plane",) if own_cluster and self.kind.config is None else None,
            versions=self.version_set(),
            crossing=self.boundary.crossing,
            kai_namespace=self.charts.kai_scheduler.namespace,
            isolator_namespace=self.charts.kai_resource_isolator.namespace,
        )

    def excuses_on(self, versions: Mapping[str, str]) -> dict[str, Excuse]:
        """Excuses that apply to a version set, by ``asset.check``; whether one has expired is the judge's matter."""
        return {
            entry.check: Excuse(entry.reason, entry.until.isoformat())
            for entry in self.excuses
            if all(
                normalized(versions.get(name, "")) == normalized(version) for name, version in entry.versions.items()
            )
        }


_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "KAI_LAB_NAME": ("lab", "name"),
    "KAI_LAB_BACKEND": ("lab", "backend"),
    "KAI_LAB_CONTEXT": ("lab", "context"),
    "KAI_LAB_KUBECONFIG": ("lab", "kubeconfig"),
    "KAI_LAB_STATE_DIR": ("lab", "state_dir"),
    "KAI_LAB_MIRRORS": ("mirrors",),
    "KAI_LAB_CA_FILE": ("ca_file",),
    "KAI_LAB_CROSSING": ("boundary", "crossing"),
    "KAI_LAB_SCENARIO": ("rehearsal", "scenario"),
    "KAI_LAB_PATIENCE_S": ("rehearsal", "patience_s"),
    "KAI_LAB_TIME_SCALE": ("rehearsal", "time_scale"),
    "KAI_LAB_NODE_IMAGE": ("kind", "node_image"),
    "KAI_LAB_KIND_CONFIG": ("kind", "config"),
    "KAI_LAB_IMAGE_CHECKOUT": ("image", "nvml_mock", "checkout"),
    "KAI_LAB_MANIFEST_CHECKOUT": ("manifests", "device_plugin", "checkout"),
    "KAI_LAB_IMAGE_ARCHIVE": ("image", "nvml_mock", "archive"),
    "KAI_LAB_KAI_SCHEDULER_VERSION": ("charts", "kai_scheduler", "version"),
    "KAI_LAB_NVML_MOCK_VERSION": ("charts", "nvml_mock", "version"),
    "KAI_LAB_KAI_RESOURCE_ISOLATOR_VERSION": ("charts", "kai_resource_isolator", "version"),
}
"""Environment variables and the setting each one overrides."""
PROJECT_VARIABLE = "KAI_LAB_PROJECT"
"""The project's folder, where it is neither the current folder nor above it."""
INTERNAL_VARIABLES = frozenset({PROJECT_VARIABLE, "KAI_LAB_PORT"})
_LOOKS_SECRET = re.compile(r"//[^/@\s]+@")


def find_project(start: Path | None = None) -> Path:
    """The folder with lab.toml: named by KAI_LAB_PROJECT, or `start` (default: here) or above, or this checkout.

    Raises SettingsError when there is none.
    """
    named = os.environ.get(PROJECT_VARIABLE)
    if named:
        root = Path(named)
        if not (root / SETTINGS_FILE).is_file():
            raise SettingsError(f"{PROJECT_VARIABLE} names {root}, and no {SETTINGS_FILE} is there.")
        return root.resolve()
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / SETTINGS_FILE).is_file():
            return folder
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / SETTINGS_FILE).is_file():
        return checkout
    raise SettingsError(
        f"No {SETTINGS_FILE} in {here} or above it. Go to the project's folder, or set {PROJECT_VARIABLE}."
    )


def load_settings(
    root: Path | None = None,
    *,
    overrides: Mapping[tuple[str, ...], Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Settings of the project at `root` (default: found from here).

    `overrides` are options of the command line by path, e.g. ``{("lab", "backend"): "kind"}``; None is ignored.
    Raises SettingsError.
    """
    root = root or find_project()
    file = root / SETTINGS_FILE
    environ = os.environ if environ is None else environ
    try:
        data: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{file} is not TOML: {error}.") from error
    origin: dict[tuple[str, ...], str] = {}
    for variable, value in sorted(environ.items()):
        if not variable.startswith("KAI_LAB_") or variable in INTERNAL_VARIABLES:
            continue
        if variable not in _VARIABLES:
            raise SettingsError(f"{variable} is not a setting. Known variables: {', '.join(sorted(_VARIABLES))}.")
        path = _VARIABLES[variable]
        _put(data, path, _from_environment(variable, value))
        origin[path] = variable
    for path, value in (overrides or {}).items():
        if value is not None:
            _put(data, path, value)
            origin[path] = f"--{path[-1].replace('_', '-')}"
    _rehearse(data, origin.get(("rehearsal", "scenario"), str(file)))
    try:
        return Settings.model_validate(data | {"root": root})
    except ValidationError as error:
        raise SettingsError(_explain(error, file, origin)) from error


def _rehearse(data: dict[str, Any], where: str) -> None:
    """Put what the chosen scenario breaks over all other settings; faults set by hand stay. Raises SettingsError."""
    section = data.get("rehearsal")
    name = section.get("scenario") if isinstance(section, dict) else None
    if not name or not isinstance(section, dict):
        return
    scenario = SCENARIOS.get(str(name))
    if scenario is None:
        raise SettingsError(f"{where}: no scenario is named {_shown(name)}. Choose from: {', '.join(SCENARIOS)}.")
    lab = data.get("lab")
    backend = lab.get("backend", "rehearsal") if isinstance(lab, dict) else "rehearsal"
    if backend != "rehearsal":
        raise SettingsError(
            f"{where}: scenario {name} can only be rehearsed, and this lab's backend is {_shown(backend)}. "
            "Leave the scenario out, or choose backend 'rehearsal'."
        )
    for path, value in scenario.settings.items():
        _put(data, path, value)
    own = section.get("faults")
    section["faults"] = {**scenario.faults, **(own if isinstance(own, dict) else {})}


def _from_environment(variable: str, value: str) -> Any:
    if variable != "KAI_LAB_MIRRORS":
        return value
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            f'{variable} is not JSON ({error}). Write an object, e.g. {{"docker.io": "http://127.0.0.1:5000"}}.'
        ) from error
    if not isinstance(parsed, dict):
        raise SettingsError(f"{variable} must be a JSON object host -> mirror, got {type(parsed).__name__}.")
    return parsed


def _put(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        nested = data.setdefault(key, {})
        if not isinstance(nested, dict):
            return  # the file's own mistake is reported by the validation
        data = nested
    data[path[-1]] = value


def _explain(error: ValidationError, file: Path, origin: Mapping[tuple[str, ...], str]) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        path = tuple(str(part) for part in problem["loc"])
        key = ".".join(path)
        where = next((name for at, name in origin.items() if at == path[: len(at)]), str(file))
        if problem["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown key {key}. Allowed here: {', '.join(_allowed_keys(path[:-1]))}.")
        else:
            found = "" if problem["type"] == "missing" else f", got {_shown(problem['input'])}"
            lines.append(f"{where}: {key}: {problem['msg']}{found}.")
    return "\n".join(lines)


def _allowed_keys(path: tuple[str, ...]) -> list[str]:
    model: Any = Settings
    for part in path:
        field = model.model_fields.get(part) if hasattr(model, "model_fields") else None
        model = field.annotation if field is not None else None
    if not hasattr(model, "model_fields"):
        return ["see the comments in lab.toml"]
    return sorted(name for name in model.model_fields if name != "root")


def _shown(value: Any) -> str:
    return _LOOKS_SECRET.sub("//***@", repr(value))[:200]
