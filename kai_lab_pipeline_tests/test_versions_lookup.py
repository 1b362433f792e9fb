"""``kai-lab versions`` against the rehearsal's registry: three different answers, and the exit code."""

from __future__ import annotations

import io
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kai_lab_pipeline.automation.partitions import look, not_looked
from kai_lab_pipeline.clients.discovery import look_up, look_up_git_tags, look_up_manifest
from kai_lab_pipeline.clients.oci import OciClient
from kai_lab_pipeline.commands.versions import discover, print_versions
from kai_lab_pipeline.lab.errors import WrongUse
from kai_lab_pipeline.lab.version_sets import Lane, candidate_sets
from kai_lab_pipeline.rehearsal import profiles
from kai_lab_pipeline.rehearsal.registry import Fault, RehearsalRegistry, lab_registry, mirrors, serve
from kai_lab_pipeline.rehearsal.registry_charts import KAI_REPOSITORY
from kai_lab_pipeline.settings import Settings, load_settings
from kai_lab_pipeline.workbench.nights import Nights

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _no_docker_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HELM_REGISTRY_CONFIG", str(tmp_path / "helm.json"))


@pytest.fixture
def registry() -> RehearsalRegistry:
    return lab_registry()


@pytest.fixture
def url(registry: RehearsalRegistry) -> Iterator[str]:
    with serve(registry) as address:
        yield address


def settings_for(url: str, **overrides: Any) -> Settings:
    paths = {tuple(key.split("__")): value for key, value in overrides.items()}
    return load_settings(ROOT, environ={"KAI_LAB_MIRRORS": json.dumps(mirrors(url))}, overrides=paths)


def printed(settings: Settings, width: int = 200) -> tuple[int, str]:
    out = io.StringIO()
    code = print_versions(settings, False, Console(file=out, width=width))
    return code, out.getvalue()


def test_the_public_json_shape(url: str) -> None:
    answer = discover(settings_for(url))
    assert list(answer) == ["components"]
    assert list(answer["components"]) == ["nvml_mock", "kai_scheduler", "kai_resource_isolator"]
    kai = answer["components"]["kai_scheduler"]
    assert set(kai) == {"pinned", "status", "error", "newer", "excluded", "unknown", "repushed", "undigested"}
    assert (kai["pinned"], kai["status"], kai["error"]) == ("v0.17.0", "ok", None)
    assert kai["newer"] == ["v0.18.2", "v0.19.0"]
    assert kai["unknown"] == ["v0.18.2-hotfix"]
    excluded = {entry["tag"]: entry["reason"] for entry in kai["excluded"]}
    assert set(excluded) == {"0.0.0-d5bc503", "v0.18.2-fips", "v0.19.1-rc1", "v0.20.1", "sha256-" + "5a" * 32 + ".sig"}
    assert excluded["v0.20.1"].startswith("retracted")
    assert answer["components"]["nvml_mock"]["newer"] == ["0.4.0"]
    isolator = answer["components"]["kai_resource_isolator"]
    assert (isolator["newer"], isolator["unknown"]) == ([], [])
    assert {entry["tag"] for entry in isolator["excluded"]} == {"latest", "v1.0.0", "v1.1.0"}


def test_nothing_new_new_but_excluded_and_could_not_look_are_three_answers(
    registry: RehearsalRegistry, url: str
) -> None:
    registry.faults["nvidia/k8s-test-infra/chart/nvml-mock"] = Fault("server_error")
    found = look_up(settings_for(url))
    assert found["kai_resource_isolator"].sentence == "nothing new"
    assert "could not look" in found["nvml_mock"].sentence
    assert "new: v0.18.2, v0.19.0; new but excluded: " in found["kai_scheduler"].sentence
    assert "v0.20.1 (retracted" in found["kai_scheduler"].sentence
    assert "not understood: v0.18.2-hotfix" in found["kai_scheduler"].sentence
    code, text = printed(settings_for(url))
    assert code == 3
    assert "nothing new" in text
    assert "could not look" in text
    assert "HTTP 500" in text


def test_all_well_is_exit_code_0(url: str) -> None:
    code, text = printed(settings_for(url))
    assert code == 0
    assert "v0.18.2" in text
    assert "retracted" in text


def test_the_registry_is_down(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(lab_registry()) as url:
        pass
    assert print_versions(settings_for(url), True) == 3
    answer = json.loads(capsys.readouterr().out)
    for component in answer["components"].values():
        assert component["status"] == "lookup_failed"
        assert "no connection" in component["error"]
        assert component["newer"] == []


def test_an_empty_registry_is_nothing_new_and_says_that_the_pin_is_gone(registry: RehearsalRegistry, url: str) -> None:
    registry.faults["*"] = Fault("empty")
    code, text = printed(settings_for(url))
    assert code == 0
    assert text.count("nothing new") == 3
    assert "the pinned v0.17.0 is not at" in text
    assert "not there any more" in look_up(settings_for(url))["kai_scheduler"].sentence


def test_a_pinned_older_version_makes_the_pinned_one_of_today_new(url: str) -> None:
    found = look_up(settings_for(url, charts__kai_scheduler__version="v0.16.8"))
    assert found["kai_scheduler"].newer == ("v0.17.0", "v0.18.2", "v0.19.0")


def test_a_local_chart_has_no_registry(url: str) -> None:
    settings = settings_for(url, charts__kai_scheduler__chart="./charts/kai-scheduler")
    assert discover(settings)["components"]["kai_scheduler"] == {
        "pinned": "v0.17.0",
        "status": "ok",
        "error": None,
        "newer": [],
        "excluded": [],
        "unknown": [],
        "repushed": [],
        "undigested": [],
    }
    assert "no registry to ask" in printed(settings)[1]


def test_ten_thousand_tags_do_not_flood_the_table(registry: RehearsalRegistry, url: str) -> None:
    registry.faults[KAI_REPOSITORY] = Fault("many_tags")
    code, text = printed(settings_for(url))
    assert code == 0
    assert "more, v0.99.92" in text
    assert len(text) < 20_000


def test_tags_cannot_control_the_terminal(registry: RehearsalRegistry, url: str) -> None:
    registry.push_image(KAI_REPOSITORY, "\x1b[2Jv1.0.0[bold]")
    text = printed(settings_for(url))[1]
    assert "\x1b" not in text
    assert "v1.0.0[bold]" in text


def test_wrong_settings_are_wrong_use_and_no_failed_lookup(url: str) -> None:
    settings = settings_for(url, charts__kai_scheduler__chart="oci://ghcr.io")
    with pytest.raises(WrongUse, match="chart reference"):
        discover(settings)


def test_registries_are_asked_at_the_same_time(url: str) -> None:
    everybody = threading.Barrier(3)

    def together(settings: Settings) -> OciClient:
        everybody.wait(timeout=10)
        return OciClient.from_settings(settings)

    assert all(lookup.error is None for lookup in look_up(settings_for(url), client=together).values())


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True)


def test_git_tags_of_a_checkout(url: str, tmp_path: Path) -> None:
    assert look_up_git_tags(settings_for(url)) is None
    checkout = tmp_path / "k8s-test-infra"
    checkout.mkdir()
    git(checkout, "init")
    git(checkout, "commit", "--allow-empty", "-m", "x")
    for tag in ("v0.2.1", "v0.3.0", "v0.4.0", "v0.4.1-rc1", "odd"):
        git(checkout, "tag", tag)
    answer = discover(settings_for(url, image__nvml_mock__checkout=str(checkout)))
    assert answer["git"]["newer"] == ["v0.4.0"]
    assert answer["git"]["unknown"] == ["odd"]
    assert answer["git"]["pinned"] == "v0.3.0"


MANIFEST = "tests/e2e/device-plugin-mock.yaml"


def release(checkout: Path, tag: str, manifest: str | None) -> None:
    """A release of k8s-test-infra with this manifest; None takes it away."""
    file = checkout / MANIFEST
    if manifest is None:
        file.unlink()
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(manifest)
    git(checkout, "add", "-A")
    git(checkout, "commit", "--allow-empty", "-m", tag)
    git(checkout, "tag", "-a", tag, "-m", tag)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "k8s-test-infra"
    folder.mkdir()
    git(folder, "init")
    release(folder, "v0.2.1", "plugin: v0.17\n")
    release(folder, "v0.3.0", "plugin: v0.18.2\n")
    return folder


def test_the_device_plugins_manifest_has_a_lookup_of_its_own(url: str, checkout: Path) -> None:
    settings = settings_for(url, manifests__device_plugin__checkout=str(checkout))
    assert "git" not in discover(settings), "the image is not built from it"
    found = look_up_manifest(settings)
    assert found is not None
    assert found.sentence == "nothing new"
    release(checkout, "v0.3.1", "plugin: v0.18.2\n")
    release(checkout, "v0.4.0-rc1", "plugin: v0.19.0\n")
    release(checkout, "v0.4.0", "plugin: v0.19.0\n")
    release(checkout, "v0.5.0", None)
    answer = discover(settings)["manifests"]["device_plugin"]
    assert (answer["pinned"], answer["status"], answer["newer"]) == ("v0.3.0", "ok", ["v0.4.0"])
    assert {one["tag"]: one["reason"] for one in answer["excluded"]} == {
        "v0.3.1": "its device-plugin-mock.yaml is the one of v0.3.0",
        "v0.4.0-rc1": "a pre-release; the release itself is waited for",
        "v0.5.0": f"has no {MANIFEST}",
    }
    assert answer["source"].endswith(MANIFEST)
    found = look_up_manifest(settings)
    assert found is not None
    assert found.sentence.startswith("new: v0.4.0; new but excluded: ")
    assert "v0.3.1 (its device-plugin-mock.yaml is the one of v0.3.0)" in found.sentence
    code, text = printed(settings)
    assert code == 0
    assert "device_plugin (git)" in text


def test_the_images_checkout_is_looked_into_for_the_manifest_too(url: str, checkout: Path) -> None:
    release(checkout, "v0.4.0", "plugin: v0.19.0\n")
    answer = discover(settings_for(url, image__nvml_mock__checkout=str(checkout)))
    assert (answer["git"]["newer"], answer["manifests"]["device_plugin"]["newer"]) == (["v0.4.0"], ["v0.4.0"])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("checkout", "absent", "checkout's tags could not be read"),
        ("path", "no/such.yaml", "No release in the checkout has no/such.yaml"),
    ],
)
def test_a_manifest_that_nobody_could_look_for_is_a_failed_lookup(
    url: str, checkout: Path, key: str, value: str, words: str
) -> None:
    named = {"manifests__device_plugin__checkout": str(checkout), f"manifests__device_plugin__{key}": value}
    code, text = printed(settings_for(url, **named))
    assert code == 3
    assert "device_plugin (git): could not look" in text
    assert words in " ".join(text.split())


def test_a_pinned_release_that_is_not_in_the_checkout_is_told(url: str, checkout: Path) -> None:
    git(checkout, "tag", "-d", "v0.3.0")
    release(checkout, "v0.4.0", "plugin: v0.19.0\n")
    found = look_up_manifest(settings_for(url, manifests__device_plugin__checkout=str(checkout)))
    assert found is not None
    assert found.sentence == "new: v0.4.0; the pinned v0.3.0 is not there any more"


def test_a_night_tells_what_the_checkouts_have_and_makes_no_version_set_of_it(
    url: str, checkout: Path, tmp_path: Path
) -> None:
    release(checkout, "v0.4.0", "plugin: v0.19.0\n")
    labs = str(tmp_path / "labs")
    settings = settings_for(url, manifests__device_plugin__checkout=str(checkout), lab__state_dir=labs)
    nights = Nights(settings)
    found = look(settings, nights)
    assert found["device_plugin (git)"].sentence == "new: v0.4.0"
    assert not_looked(found) == ()
    moved = {component for stored in nights.sets().values() for component in stored.version_set.moved}
    assert moved == {"kai_scheduler", "nvml_mock"}
    gone = settings_for(url, manifests__device_plugin__checkout="absent", lab__state_dir=labs)
    [sentence] = not_looked(look(gone, nights))
    assert sentence.startswith("device_plugin (git): could not look")


def test_a_checkout_that_is_none_is_a_failed_lookup(url: str, tmp_path: Path) -> None:
    code, text = printed(settings_for(url, image__nvml_mock__checkout=str(tmp_path / "absent")))
    assert code == 3
    assert "checkout's tags could not be read" in text


def test_a_night_begins_with_at_least_five_version_sets(url: str) -> None:
    settings = settings_for(url)
    newer = {component: lookup.newer for component, lookup in look_up(settings).items()}
    sets = candidate_sets(settings.version_set(), newer)
    fresh = {one.moved: one for one in sets if one.lane is Lane.FRESH}
    assert len(sets) == 8
    assert fresh["nvml_mock", "kai_scheduler"].versions == settings.version_set() | {
        "nvml_mock": "0.4.0",
        "kai_scheduler": "v0.19.0",
    }
    for one in sets:
        for component, chart in settings.charts.by_component().items():
            assert profiles.chart(chart.chart, one.versions[component])
