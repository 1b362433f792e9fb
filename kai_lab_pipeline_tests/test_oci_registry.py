"""The rehearsal's registry on its own: a process that says where it is, faults from the command line, what it holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kai_lab_pipeline.clients.oci import OciClient
from kai_lab_pipeline.clients.oci_errors import RegistryRateLimited
from kai_lab_pipeline.rehearsal import profiles
from kai_lab_pipeline.rehearsal.registry import lab_registry, main, mirrors, serve
from kai_lab_pipeline.rehearsal.registry_charts import CHARTS, ISOLATOR_REPOSITORY, KAI_REPOSITORY
from kai_lab_pipeline.settings import load_settings


def test_it_runs_as_a_process_of_its_own_with_faults(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kai_lab_pipeline.rehearsal.registry", "--fault", f"{KAI_REPOSITORY}=rate_limited"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    ) as own:
        try:
            assert own.stdout is not None
            url = own.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:")
            with OciClient(mirrors=mirrors(url), docker_config=tmp_path / "none.json", attempts=1) as client:
                assert "1.1.0-chart" in client.tags(f"oci://docker.io/{ISOLATOR_REPOSITORY}")
                with pytest.raises(RegistryRateLimited):
                    client.tags(f"oci://ghcr.io/{KAI_REPOSITORY}")
        finally:
            own.terminate()


@pytest.mark.parametrize("fault", ["flood", "a=b=flood"])
def test_a_fault_that_does_not_exist_is_refused(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--fault", fault])
    assert stopped.value.code == 2
    assert "no registry fault is named 'flood'" in capsys.readouterr().err


def test_a_port_that_is_taken_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(lab_registry()) as url, pytest.raises(OSError, match="in use"), serve(lab_registry(), int(url[-5:])):
        pass
    with serve(lab_registry()) as url, pytest.raises(SystemExit):
        main(["--port", url[-5:]])
    assert "cannot be used" in capsys.readouterr().err


def test_archives_are_the_same_every_time() -> None:
    for charts in CHARTS.values():
        for chart in charts:
            assert chart.archive() == chart.archive()
    assert lab_registry().manifests == lab_registry().manifests


def test_the_lab_s_charts_and_versions_are_there_and_known_to_the_rehearsal() -> None:
    root = Path(__file__).parent.parent
    registry = lab_registry()
    for chart in load_settings(root, environ={}).charts.by_component().values():
        repository = chart.chart.removeprefix("oci://").partition("/")[2]
        assert chart.version in registry.manifests[repository]
        assert profiles.chart(chart.chart, chart.version).version == chart.version
