"""`make bench`: the design's numbers as medians, with the machine and the ratio to the Dagster floor."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kai_lab_pipeline.clients.kubernetes import Cluster
from kai_lab_pipeline.rehearsal import process

PROJECT = Path(__file__).resolve().parents[2]
BUNDLE = PROJECT / "kai_lab_pipeline_tests" / "data" / "recordings" / "real-kai-v0.17.0" / "bundle"
CREATES = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs per figure; the median is printed")
    runs = parser.parse_args().runs
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, {_processor()}")
    print(f"medians of {runs} runs, load {os.getloadavg()[0]:.1f}\n")
    with tempfile.TemporaryDirectory(prefix="kai-lab-bench-") as folder:
        lab = _Project(Path(folder))
        try:
            full, floor = [], []
            _seconds(lambda: lab.kai_lab("run"))  # warm: byte code, discovery, the server's first start
            for _ in range(runs):
                lab.kai_lab("down")
                full.append(_seconds(lambda: lab.kai_lab("run")))
                floor.append(_seconds(lab.floor))
            again = [_seconds(lambda: lab.kai_lab("run", "--select", "queues")) for _ in range(runs)]
            second = [_seconds(lambda: lab.kai_lab("run")) for _ in range(runs)]
            judged = [_seconds(lambda: lab.kai_lab("judge", str(BUNDLE))) for _ in range(runs)]
            helped = [_seconds(lambda: lab.kai_lab("--help")) for _ in range(runs)]
        finally:
            lab.kai_lab("down", "--all")
        ready, creates = zip(*(_server(Path(folder) / f"server-{index}") for index in range(runs)), strict=True)
    ratio = statistics.median(full) / statistics.median(floor)
    _row("full graph on the rehearsal, cluster made anew", full, "s", "under 10")
    _row("the same count of empty assets and checks", floor, "s", "the Dagster floor")
    print(f"{'ratio to the Dagster floor':<52}{ratio:8.2f}    under 2")
    _row("full graph again on the living lab", second, "s", "under 15")
    _row("one asset again (queues)", again, "s", "under 5")
    _row("kai-lab judge of a full bundle", judged, "s", "under 1")
    _row("kai-lab --help", helped, "s", "under 0.3")
    _row("API server ready", list(ready), "s", "under 1")
    _row("creates through the client", list(creates), "/s", "500")


class _Project:
    """A copy of what a lab needs, so that the bench never touches the lab of this checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("lab.toml", "dagster.yaml", "workspace.yaml"):
            shutil.copy(PROJECT / name, root)
        shutil.copytree(PROJECT / "manifests", root / "manifests")
        self._floor_home = root / "floor-home"
        self._floor_home.mkdir()
        shutil.copy(PROJECT / "dagster.yaml", self._floor_home)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("KAI_LAB_")}
        self._env = {**kept, "KAI_LAB_PROJECT": str(root)}

    def kai_lab(self, *arguments: str) -> None:
        self._call([sys.executable, "-m", "kai_lab_pipeline.cli", *arguments], self._env)

    def floor(self) -> None:
        home = {"DAGSTER_HOME": str(self._floor_home)}
        self._call([sys.executable, "-m", "kai_lab_pipeline_tests.bench.floor"], {**self._env, **home})

    def _call(self, command: list[str], env: dict[str, str]) -> None:
        done = subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(
                f"{' '.join(command[1:])} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )


def _server(folder: Path) -> tuple[float, float]:
    started = time.perf_counter()
    handle = process.ensure(folder, name="bench", options={"components": False})
    ready = time.perf_counter() - started
    try:
        cluster = Cluster(handle.kubeconfig, "kai-lab-rehearsal-bench")
        cluster.version()
        started = time.perf_counter()
        for number in range(CREATES):
            cluster.create(
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": f"bench-{number}", "namespace": "default"},
                    "data": {"number": str(number)},
                }
            )
        return ready, CREATES / (time.perf_counter() - started)
    finally:
        process.stop(folder, forget=True)


def _seconds(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _row(what: str, figures: list[float], unit: str, wanted: str) -> None:
    print(f"{what:<52}{statistics.median(figures):8.2f} {unit:<3}{wanted}")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown processor"


if __name__ == "__main__":
    main()
