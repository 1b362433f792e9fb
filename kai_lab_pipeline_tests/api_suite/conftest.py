"""The suite needs a kubeconfig only: `API_SUITE_KUBECONFIG` names a real server's, else the rehearsal serves."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kai_lab_pipeline_tests.api_suite.support import Api, until


@pytest.fixture(scope="session")
def kubeconfig(request: pytest.FixtureRequest) -> Path:
    real = os.environ.get("API_SUITE_KUBECONFIG")
    if real:
        return Path(real)
    path: Path = request.getfixturevalue("rehearsal_server").kubeconfig
    return path


@pytest.fixture(scope="session")
def api(kubeconfig: Path) -> Iterator[Api]:
    client = Api(kubeconfig)
    yield client
    client.close()


@pytest.fixture
def unique() -> str:
    """A name no other test has, so that tests can share a server."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def namespace(api: Api, unique: str) -> Iterator[str]:
    """A namespace of the test's own. Its content goes with it; nobody waits for that.

    It is handed out when the controllers have put in what every namespace holds: made later, these objects would go
    through a test's own webhooks and into its watches.
    """
    api.post("/api/v1/namespaces", {"metadata": {"name": unique}})
    for held in ("serviceaccounts/default", "configmaps/kube-root-ca.crt"):
        until(partial(api.exists, f"/api/v1/namespaces/{unique}/{held}"), f"{held} in the new namespace")
    yield unique
    api.http.delete(f"/api/v1/namespaces/{unique}")


@pytest.fixture
def configmaps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"
