"""A real OCI registry (Debian's docker-registry) on the loopback, with the lane's charts pushed by the real helm."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import yaml

from kai_lab_pipeline.clients.helm import value_options
from kai_lab_pipeline.settings import Chart
from kai_lab_pipeline_tests.conformance.services import free_ports, service
from kai_lab_pipeline_tests.conformance.toolchain import MODULES, LaneUnavailable

CHARTS = MODULES / "charts"
_START_S = 30.0


class ChartFailed(Exception):
    """helm could not pack or push a chart; the text holds what it said."""


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Serve an empty registry for the time of the block; gives its address, such as 127.0.0.1:5000.

    Raises LaneUnavailable where docker-registry is not installed, ServiceFailed when it does not come up.
    """
    program = shutil.which("docker-registry")
    if program is None:
        raise LaneUnavailable("docker-registry was not found; on Debian and Ubuntu: apt-get install docker-registry")
    folder.mkdir(parents=True, exist_ok=True)
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    config = folder / "registry.yaml"
    content = {
        "version": 0.1,
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}},
        "http": {"addr": address},
    }
    config.write_text(yaml.safe_dump(content), encoding="utf-8")
    # Variables of this name override its configuration, whoever set them.
    inherited = dict.fromkeys(name for name in os.environ if name.startswith("REGISTRY_"))
    with service("docker-registry", [program, "serve", str(config)], folder, inherited) as running:
        running.wait_ready(lambda: _not_ready(f"http://{address}/v2/"), _START_S)
        yield address


def rendered_charts(helm: Path, charts: list[Chart], folder: Path) -> str:
    """The objects of the lane's charts with the lab's values, as YAML documents. Raises ChartFailed."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = []
    for chart in charts:
        source = CHARTS / chart.chart.rsplit("/", 1)[-1]
        options = [*("--namespace", "default"), *value_options(chart.values)]
        texts.append(_helm(helm, {"HOME": str(folder)}, "template", chart.release, str(source), *options))
    return "\n---\n".join(texts)


def push_charts(helm: Path, address: str, charts: list[Chart], folder: Path) -> None:
    """Pack the lane's charts in the versions that the lab asks for, and push them where it will look for them.

    Raises ChartFailed.
    """
    for chart in charts:
        repository, _, name = chart.chart.removeprefix("oci://").partition("/")[2].rpartition("/")
        source = folder / "charts" / name
        shutil.copytree(CHARTS / name, source)
        if name == "kai-scheduler":
            _add_crds(source)
        environment = {"HOME": str(folder)}
        _helm(helm, environment, "lint", "--quiet", str(source))
        _helm(helm, environment, "package", str(source), "--version", chart.version, "--destination", str(folder))
        archive = folder / f"{name}-{chart.version}.tgz"
        _helm(helm, environment, "push", "--plain-http", str(archive), f"oci://{address}/{repository}")


def _add_crds(chart: Path) -> None:
    """The CRDs are the rehearsal's own, so that both servers are given the same ones."""
    import kai_lab_pipeline.rehearsal.charts as rehearsal_charts

    (chart / "crds").mkdir()
    shutil.copy(Path(rehearsal_charts.__file__).with_name("kai-crds.yaml"), chart / "crds")


def _helm(helm: Path, environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [str(helm), *arguments], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ChartFailed(f"helm {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _not_ready(url: str) -> str | None:
    try:
        answer = httpx.get(url, trust_env=False, timeout=5)
    except httpx.TransportError as error:
        return f"{url}: {error}"
    return None if answer.status_code == 200 else f"{url}: {answer.status_code}"
