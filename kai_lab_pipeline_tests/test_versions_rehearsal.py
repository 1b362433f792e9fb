"""The KAI version of the rehearsal that no longer reads the old sharing values does what its chart says."""

from __future__ import annotations

from pathlib import Path

from kai_lab_pipeline.rehearsal import profiles
from kai_lab_pipeline_tests.rehearsal_lab import running

OLD_VALUES = {"global.gpuSharing": True, "binder.plugins.hamicore.enabled": True}


def test_the_old_values_have_no_effect_and_the_new_one_has() -> None:
    kai = profiles.KAI["v0.19.0"]
    chart = profiles.chart("oci://host/kai-scheduler", "v0.19.0")
    assert profiles.sharing(kai, profiles.merged(chart.values, OLD_VALUES)) == (True, False)
    assert profiles.sharing(kai, profiles.merged(chart.values, {"global.gpuSharingMode": "HamiCore"})) == (True, True)
    older = profiles.chart("oci://host/kai-scheduler", "v0.18.2")
    assert profiles.sharing(profiles.KAI["v0.18.2"], profiles.merged(older.values, OLD_VALUES)) == (True, True)


def test_kai_runs_without_the_plugin_and_helm_is_content(tmp_path: Path) -> None:
    with running(tmp_path) as lab:
        lab.labelled_gpus()
        row = lab.install("kai-scheduler", "oci://host/kai-scheduler", "v0.19.0", OLD_VALUES)
        assert row["status"] == "deployed"
        lab.kai_ready()
        admission = lab.get("deployments", "admission", "kai-scheduler")
        assert admission is not None
        args = admission["spec"]["template"]["spec"]["containers"][0]["args"]
        assert "--gpu-sharing-enabled=true" in args
        assert "--hami-core-enabled=true" not in args
