"""Where NVML is brought into pods the boundary must be crossed: the shared pod runs, with the right limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from kai_lab_pipeline_tests.lab_project import TEST_S, project

pytestmark = [pytest.mark.xdist_group("e2e-crossed"), pytest.mark.timeout(TEST_S)]

CROSSING = "NVIDIA container runtime in cdi mode, RuntimeClass handler nvidia, binder.runtimeClassName=nvidia"


def test_a_crossed_boundary_is_what_that_lab_must_give(tmp_path: Path) -> None:
    with project(tmp_path / "crossed", KAI_LAB_CROSSING=CROSSING) as lab:
        said = lab.run("run", "--json")
        assert said.code == 0, said.text
        assert said.json["boundary"] == "crossed"
        assert said.json["counts"] == {"held": 8, "broken": 0, "not_reachable": 0, "not_evaluated": 0}
        checks = {f"{c['asset']}.{c['check']}": c for claim in said.json["claims"] for c in claim["checks"]}
        assert {check["verdict"] for check in checks.values()} == {"held"}, "nothing is out of reach any more"
        assert "20889m" in checks["shared_gpu_pod.memory_limit_value"]["observed"]
        assert "nvidia" in checks["nvidia_runtime_class.runtime_class_handler"]["observed"]
        with lab.cluster() as living:
            pod = living.get("pods", "gpu-sharing-with-isolation", "default")
            assert pod is not None
            assert pod["status"]["phase"] == "Running"
            assert pod["spec"]["nodeName"] == "kai-hami-test-control-plane"
        report = (lab.report_dir / "report.md").read_text(encoding="utf-8")
        assert "crossed" in report
        judged = lab.call("judge", str(lab.newest_bundle()), "--json")
        assert judged.json["boundary"] == "crossed", "the bundle itself says that it was crossed on purpose"
