"""Runs the API suite against the rehearsal's server and against a real one, and finds where they differ."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

KUBECONFIG_VARIABLE = "API_SUITE_KUBECONFIG"
SUITE = Path(__file__).resolve().parents[1] / "api_suite"

Outcomes = Mapping[str, str]
"""Test name -> passed, failed, error or skipped."""


class SuiteFailed(Exception):
    """pytest could not run the suite at all."""


def run_suite(server: str, kubeconfig: Path | None, folder: Path, *, workers: int = 2) -> Outcomes:
    """Outcomes of the suite on the server of a kubeconfig; without one, on a rehearsal of its own.

    pytest's own output goes to the terminal. Raises SuiteFailed where pytest did not get to run tests.
    """
    results = folder / f"api-suite-{re.sub('[^a-z]+', '-', server)}.xml"
    environment = {name: value for name, value in os.environ.items() if name != KUBECONFIG_VARIABLE}
    if kubeconfig is not None:
        environment[KUBECONFIG_VARIABLE] = str(kubeconfig)
    command = [
        sys.executable, "-m", "pytest", str(SUITE), "-q", "-n", str(workers), "--tb=short", "-p", "no:cacheprovider",
        f"--junitxml={results}",
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, cwd=SUITE.parents[1], check=False)
    if done.returncode not in (0, 1) or not results.is_file():
        raise SuiteFailed(f"pytest ended with {done.returncode} on {server}, without results")
    return outcomes(results)


def outcomes(results: Path) -> Outcomes:
    """The outcomes in a JUnit file as pytest writes it."""
    found: dict[str, str] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        children = {child.tag for child in case}
        worst = next((tag for tag in ("error", "failure", "skipped") if tag in children), "passed")
        found[name] = "failed" if worst == "failure" else worst
    return found


def differences(rehearsal: Outcomes, real: Outcomes) -> list[str]:
    """One line per test that did not do the same on both servers, or failed on both; and per server without a pass."""
    servers = (("the rehearsal", rehearsal), ("kube-apiserver", real))
    lines = [f"no test passed on {name}" for name, found in servers if "passed" not in found.values()]
    for name in sorted(rehearsal.keys() | real.keys()):
        ours, theirs = rehearsal.get(name, "not run"), real.get(name, "not run")
        if ours != theirs or ours not in ("passed", "skipped"):
            lines.append(f"{name}: {ours} on the rehearsal, {theirs} on kube-apiserver")
    return lines


def counted(found: Outcomes) -> str:
    """Such as `120 passed, 0 failed, 2 skipped`."""
    count = Counter(found.values())
    text = f"{count['passed']} passed, {count['failed'] + count['error']} failed"
    return text + (f", {count['skipped']} skipped" if count["skipped"] else "")
