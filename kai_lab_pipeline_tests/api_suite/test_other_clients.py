"""Other Python clients people have; skipped where they are not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline_tests.api_suite.support import Api

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, not ours


def test_kr8s(kubeconfig: Path, namespace: str, api: Api, configmaps: str) -> None:
    kr8s: Any = pytest.importorskip("kr8s")
    objects: Any = pytest.importorskip("kr8s.objects")
    client = kr8s.api(kubeconfig=str(kubeconfig))
    made = objects.ConfigMap({"metadata": {"name": "a", "namespace": namespace}, "data": {"k": "1"}}, api=client)
    made.create()
    made.patch({"data": {"k": "2"}})
    assert [item.name for item in client.get("configmaps", "a", namespace=namespace)] == ["a"]
    assert api.get(f"{configmaps}/a")["data"] == {"k": "2"}
    made.delete()
    api.gone(f"{configmaps}/a")


def test_lightkube(kubeconfig: Path, namespace: str, api: Api, configmaps: str) -> None:
    lightkube: Any = pytest.importorskip("lightkube")
    core: Any = pytest.importorskip("lightkube.resources.core_v1")
    meta: Any = pytest.importorskip("lightkube.models.meta_v1")
    client = lightkube.Client(config=lightkube.KubeConfig.from_file(str(kubeconfig)), field_manager="lightkube")
    client.apply(core.ConfigMap(metadata=meta.ObjectMeta(name="a", namespace=namespace), data={"k": "1"}))
    assert "a" in [item.metadata.name for item in client.list(core.ConfigMap, namespace=namespace)]
    client.delete(core.ConfigMap, "a", namespace=namespace)
    api.gone(f"{configmaps}/a")
