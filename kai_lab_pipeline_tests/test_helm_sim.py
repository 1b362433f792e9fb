"""The rehearsal's helm: what it says when something is wrong, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kai_lab_pipeline.rehearsal import helm, releases
from kai_lab_pipeline_tests.rehearsal_lab import KAI, Lab, running

pytestmark = pytest.mark.xdist_group("helm-sim")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running(tmp_path_factory.mktemp("helm")) as made:
        made.cluster()
        yield made


def rows(lab: Lab, name: str) -> list[tuple[str, str]]:
    found = helm.list_releases(lab.url, lab.token)
    return [(row["revision"], row["status"]) for row in found if row["name"] == name]


def test_an_unknown_chart_version(lab: Lab) -> None:
    with pytest.raises(helm.UnknownVersion) as caught:
        lab.kai("v0.17.9")
    assert str(caught.value) == (
        'failed to perform "FetchReference" on source: '
        "ghcr.io/kai-scheduler/kai-scheduler/kai-scheduler:v0.17.9: not found"
    )
    assert rows(lab, "kai-scheduler") == []


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"gpu.profile": "a1000"}, 'Unknown GPU profile "a1000": profiles/a1000.yaml not found in chart.'),
        ({"gpu.count": "eight"}, "at '/gpu/count': got string, want integer"),
    ],
)
def test_values_the_mock_refuses(lab: Lab, values: dict[str, str], text: str) -> None:
    with pytest.raises(helm.HelmError, match="Error: INSTALLATION FAILED: ") as caught:
        lab.install("other", "oci://host/nvml-mock", "0.3.0", values, namespace="default")
    assert text in str(caught.value)


def test_a_value_of_the_wrong_type_fails_in_the_hook_and_is_mended_by_the_right_one(lab: Lab) -> None:
    values = {"global.gpuSharing": True, "binder.plugins.hamicore.enabled": "yes"}
    with pytest.raises(helm.HelmError) as caught:
        lab.install("kai-scheduler", KAI, "v0.17.0", values, wait_s=30)
    assert str(caught.value).startswith(
        "Error: INSTALLATION FAILED: failed post-install: 1 error occurred:\n\t* timed out waiting for the condition"
    )
    assert rows(lab, "kai-scheduler") == [("1", "failed")]
    assert lab.all("configs") == []
    said = ".spec.binder.plugins.hamicore.enabled: expected boolean, got &{yes}"

    def told(pods: object) -> bool:
        return any(said in log.text + (log.previous or "") for log in lab.logs() if log.container == "deployer")

    assert lab.wait("pods", told, "the hook's reason in its log")
    assert lab.kai()["revision"] == "2"
    assert rows(lab, "kai-scheduler") == [("2", "deployed")]


def test_an_upgrade_without_values_keeps_the_old_ones(lab: Lab) -> None:
    lab.kai()
    lab.install("kai-scheduler", KAI, "v0.17.0", {})
    config = lab.get("configs", "kai-config")
    assert config is not None
    assert config["spec"]["admission"]["gpuSharing"] is True
    assert config["spec"]["binder"]["plugins"]["hamicore"]["enabled"] is True


def test_what_belongs_to_another_release_is_not_taken(lab: Lab) -> None:
    lab.kai()
    with pytest.raises(helm.HelmError) as caught:
        lab.install("kai-two", KAI, "v0.17.0", {}, namespace="two")
    assert "exists and cannot be imported into the current release: invalid ownership metadata" in str(caught.value)
    assert 'must equal "kai-two": current value is "kai-scheduler"' in str(caught.value)
    assert rows(lab, "kai-two") == [("1", "failed")]


def test_releases_are_secrets_as_helm_keeps_them(lab: Lab) -> None:
    lab.mock()
    secrets = lab.all("secrets", "default", labelSelector="owner=helm,name=nvml-mock")
    assert [secret["metadata"]["name"] for secret in secrets] == ["sh.helm.release.v1.nvml-mock.v1"]
    assert secrets[0]["type"] == "helm.sh/release.v1"
    assert secrets[0]["metadata"]["labels"]["status"] == "deployed"


def test_an_image_is_provided_once(lab: Lab) -> None:
    node = lab.all("nodes")[0]["metadata"]["name"]
    assert helm.provide_image(lab.url, lab.token, node, "other:local")
    assert not helm.provide_image(lab.url, lab.token, node, "other:local")
    with pytest.raises(helm.HelmError, match='no node "nowhere"'):
        helm.provide_image(lab.url, lab.token, "nowhere", "other:local")


def test_a_release_that_another_helm_left_half_done(tmp_path: Path) -> None:
    with running(tmp_path, faults={"helm_pending": "nvml-mock"}) as lab:
        with pytest.raises(helm.HelmError) as caught:
            lab.mock()
        assert str(caught.value) == (
            "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress"
        )
        assert rows(lab, "nvml-mock") == [("1", "pending-install")]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"registry_unauthorized": True}, 'manifests/0.3.0": basic credential not found'),
        ({"registry_rate_limited": True}, "response status code 429: toomanyrequests"),
    ],
)
def test_a_registry_that_does_not_give_the_chart(tmp_path: Path, fault: dict[str, bool], text: str) -> None:
    with running(tmp_path, faults=fault) as lab:
        with pytest.raises(helm.HelmError) as caught:
            lab.mock()
        assert text in str(caught.value)
        assert rows(lab, "nvml-mock") == []


def test_a_killed_first_installation_is_healed_by_taking_it_away(tmp_path: Path) -> None:
    with running(tmp_path, faults={"helm_pending": True}) as lab:
        lab.cluster()
        with pytest.raises(helm.HelmError, match="another operation"):
            lab.kai()
        assert rows(lab, "kai-scheduler") == [("1", "pending-install")]
        name = {"release": "kai-scheduler", "namespace": "kai-scheduler"}
        assert helm.heal(lab.url, lab.token, **name) == "pending-install"
        assert rows(lab, "kai-scheduler") == []
        assert helm.heal(lab.url, lab.token, **name) == ""


def test_a_killed_upgrade_is_healed_by_going_back_one_revision(lab: Lab) -> None:
    lab.kai()
    before = rows(lab, "kai-scheduler")
    newest = releases.newest(lab.api, "kai-scheduler", "kai-scheduler")
    assert newest is not None
    releases.store(lab.api, {**newest, "revision": newest["revision"] + 1, "status": "pending-upgrade"})
    assert rows(lab, "kai-scheduler")[0][1] == "pending-upgrade"
    found = helm.heal(lab.url, lab.token, release="kai-scheduler", namespace="kai-scheduler")
    assert (found, rows(lab, "kai-scheduler")) == ("pending-upgrade", before)
