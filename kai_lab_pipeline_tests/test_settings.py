"""Settings: what is wrong is named with its file or variable, its key, and what is allowed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from kai_lab_pipeline.settings import SettingsError, find_project, load_settings

PROJECT = Path(__file__).resolve().parent.parent


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(PROJECT / "lab.toml", tmp_path)
    return tmp_path


def test_the_shipped_settings_are_the_lab(project: Path) -> None:
    settings = load_settings(project, environ={})
    assert settings.lab.backend == "rehearsal"
    assert settings.version_set() == {
        "kai_scheduler": "v0.17.0",
        "nvml_mock": "0.3.0",
        "kai_resource_isolator": "1.1.0-chart",
        "device_plugin": "v0.18.2",
    }
    assert settings.expectations().node_names == ("kai-hami-test-control-plane",)


def test_the_shipped_file_shows_every_setting_with_a_value_that_is_allowed(project: Path) -> None:
    file = project / "lab.toml"
    shown = re.sub(r'^# (?=\[|"?[\w.]+"? = )', "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    file.write_text(shown, encoding="utf-8")
    settings = load_settings(project, environ={})
    assert list(unset(settings)) == []


def unset(section: BaseModel, path: str = "") -> Iterator[str]:
    """Keys of the settings that the file says nothing about."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        for one in value if isinstance(value, tuple) else (value,):
            if name not in section.model_fields_set:
                yield f"{path}{name}"
            elif isinstance(one, BaseModel):
                yield from unset(one, f"{path}{name}.")


def test_variables_go_over_the_file_and_options_over_variables(project: Path) -> None:
    environ = {"KAI_LAB_BACKEND": "kind", "KAI_LAB_MIRRORS": '{"docker.io": "http://127.0.0.1:5000"}'}
    settings = load_settings(project, environ=environ)
    assert settings.lab.backend == "kind"
    assert settings.mirrors == {"docker.io": "http://127.0.0.1:5000"}
    assert load_settings(project, environ=environ, overrides={("lab", "backend"): "context"}).lab.backend == "context"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ('backend = "rehearsal"', ["lab.backend", "'rehearsal', 'kind' or 'context'", "'minikube'"]),
        ("gpu_count = 8", ["profile.gpu_count", "greater than or equal to 1"]),
        ('version = "0.3.0"', ["charts.nvml_mock.verison", "unknown key", "version"]),
    ],
)
def test_a_wrong_value_or_key_in_the_file_is_named(project: Path, change: str, says: list[str]) -> None:
    wrong = {"backend": 'backend = "minikube"', "gpu_count": "gpu_count = 0", "version": 'verison = "0.3.0"'}
    file = project / "lab.toml"
    file.write_text(file.read_text().replace(change, wrong[change.split(" ")[0]], 1))
    with pytest.raises(SettingsError) as caught:
        load_settings(project, environ={})
    for part in [str(file), *says]:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"KAI_LAB_BACKEND": "minikube"}, "KAI_LAB_BACKEND: lab.backend"),
        ({"KAI_LAB_BACKNED": "kind"}, "KAI_LAB_BACKNED is not a setting"),
        ({"KAI_LAB_MIRRORS": "docker.io=x"}, "KAI_LAB_MIRRORS is not JSON"),
        ({"KAI_LAB_MIRRORS": "[]"}, "must be a JSON object"),
        ({"KAI_LAB_NAME": "Not A Name"}, "KAI_LAB_NAME: lab.name"),
    ],
)
def test_a_wrong_variable_is_named(project: Path, environ: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        load_settings(project, environ=environ)


@pytest.mark.parametrize("content", [b"[lab\n", b"\xff\xfe\x00", b"lab = 3\n"])
def test_a_file_that_is_no_toml_or_has_no_sections_is_one_clear_message(project: Path, content: bytes) -> None:
    (project / "lab.toml").write_bytes(content)
    with pytest.raises(SettingsError, match=r"lab\.toml"):
        load_settings(project, environ={"KAI_LAB_NAME": "x"})


def test_a_password_in_a_mirror_is_not_repeated_in_an_error(project: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(project, environ={"KAI_LAB_TIME_SCALE": "https://me:secret@mirror.invalid"})
    assert "secret" not in str(caught.value)


def test_the_project_is_found_from_below_and_named_by_its_variable(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.delenv("KAI_LAB_PROJECT", raising=False)
    below = project / "docs" / "deep"
    below.mkdir(parents=True)
    assert find_project(below) == project
    empty = tmp_path_factory.mktemp("empty")
    monkeypatch.setenv("KAI_LAB_PROJECT", str(empty))
    with pytest.raises(SettingsError, match="KAI_LAB_PROJECT names"):
        find_project(below)


def test_excuses_apply_to_their_versions_and_name_known_checks(project: Path) -> None:
    file = project / "lab.toml"
    entry = '\n[[excuses]]\ncheck = "whole_gpu_pod.whole_gpu_running"\nreason = "known"\nuntil = 2027-01-01\n'
    file.write_text(file.read_text() + entry + 'versions = {kai_scheduler = "v0.20.1"}\n')
    settings = load_settings(project, environ={})
    assert settings.excuses_on({"kai_scheduler": "v0.17.0"}) == {}
    assert settings.excuses_on({"kai_scheduler": "0.20.1"}) == settings.excuses_on({"kai_scheduler": "v0.20.1"})
    assert settings.excuses_on({"kai_scheduler": "v0.20.1"})["whole_gpu_pod.whole_gpu_running"].until == "2027-01-01"
    file.write_text(file.read_text().replace("whole_gpu_running", "whole_gpu_runs"))
    with pytest.raises(SettingsError, match="no check is named"):
        load_settings(project, environ={})
