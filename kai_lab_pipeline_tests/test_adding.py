"""Version sets that a person adds, by the command or from the launchpad: checked, stored, kept apart from releases."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kai_lab_pipeline.definitions import build_definitions
from kai_lab_pipeline.lab.errors import LabError, WrongUse
from kai_lab_pipeline.lab.own_builds import called, image_values
from kai_lab_pipeline.lab.version_sets import KEY_LENGTH, Lane, moved_components, version_set
from kai_lab_pipeline.lab.versions import version_key
from kai_lab_pipeline.rehearsal.registry import Fault, RehearsalRegistry
from kai_lab_pipeline.rehearsal.registry_charts import KAI_REPOSITORY
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.adding import add_version_set
from kai_lab_pipeline.workbench.candidates import candidate_settings
from kai_lab_pipeline.workbench.nights import Nights, StoredSet

PROJECT = Path(__file__).resolve().parent.parent


@pytest.fixture
def settings(registry_settings: Settings) -> Settings:
    return registry_settings


def local_chart(settings: Settings, version: str = "v0.18.2") -> str:
    folder = settings.root / "mine" / "kai-scheduler"
    folder.mkdir(parents=True)
    (folder / "Chart.yaml").write_text(f"name: kai-scheduler\nversion: {version}\n")
    return "mine/kai-scheduler"


def test_a_version_and_a_commit_build_are_stored_with_their_digest_in_each_lane(settings: Settings) -> None:
    [release] = add_version_set(settings, {"kai_scheduler": "v0.18.2"})
    assert release.version_set == version_set(settings.version_set(), {"kai_scheduler": "v0.18.2"}), "as discovered"
    builds = add_version_set(settings, {"kai_scheduler": "0.0.0-d5bc503"}, lanes=(Lane.FRESH, Lane.UPGRADE))
    assert [one.version_set.lane for one in builds] == [Lane.FRESH, Lane.UPGRADE]
    for one in (release, *builds):
        assert one.digests["kai_scheduler"].startswith("sha256:")
        assert Nights(settings).load(one.version_set.key) == one


def test_a_local_chart_brings_its_own_version_and_is_not_taken_for_the_release(settings: Settings) -> None:
    chart = local_chart(settings)
    [stored] = add_version_set(settings, {}, {"kai_scheduler": chart})
    name = stored.version_set.versions["kai_scheduler"]
    assert name.startswith("v0.18.2+chart.kai-scheduler.")
    assert stored.version_set.key != version_set(settings.version_set(), {"kai_scheduler": "v0.18.2"}).key
    assert len(stored.version_set.key) <= KEY_LENGTH
    candidate = candidate_settings(settings, stored)
    assert (candidate.charts.kai_scheduler.version, candidate.charts.kai_scheduler.chart) == ("v0.18.2", chart)
    assert candidate.version_set()["kai_scheduler"] == "v0.18.2", "what helm will say"


def test_an_image_of_a_pull_request_is_the_pinned_chart_with_other_values(settings: Settings) -> None:
    [stored] = add_version_set(settings, {}, {}, {"kai_scheduler": "ghcr.io/me/kai:pr-123"})
    assert stored.version_set.moved == ("kai_scheduler",), "it is not the pinned set"
    chart = candidate_settings(settings, stored).charts.kai_scheduler
    assert chart.version == settings.charts.kai_scheduler.version
    assert chart.values == {
        **settings.charts.kai_scheduler.values,
        "global.registry": "ghcr.io/me/kai",
        "global.tag": "pr-123",
    }
    [other] = add_version_set(settings, {}, {}, {"kai_scheduler": "ghcr.io/you/kai:pr-123"})
    assert other.version_set.key != stored.version_set.key


def test_a_manifest_of_the_device_plugin_is_used_and_needs_its_file(settings: Settings) -> None:
    with pytest.raises(WrongUse, match="its version and its file are needed"):
        add_version_set(settings, {"device_plugin": "v0.19.0"})
    shutil.copy(settings.root / "manifests" / "device-plugin.yaml", settings.root / "new.yaml")
    [stored] = add_version_set(settings, {"device_plugin": "v0.19.0"}, {"device_plugin": "new.yaml"})
    manifest = candidate_settings(settings, stored).manifests.device_plugin
    assert (manifest.version, manifest.file) == ("v0.19.0", "new.yaml")


@pytest.mark.parametrize(
    ("versions", "charts", "images", "words"),
    [
        ({}, {}, {}, "Nothing moves"),
        ({"kai_scheduler": "0.17.0"}, {}, {}, "Nothing moves"),
        ({"kia": "v1"}, {}, {}, "no component is named kia; known: "),
        ({}, {"kia": "x"}, {}, "no component is named kia"),
        ({"kai_scheduler": " "}, {}, {}, "no version is given for kai_scheduler"),
        ({"kai_scheduler": "v9.9.9"}, {}, {}, "There is no chart v9.9.9 of kai_scheduler"),
        ({"kai_scheduler": "../../x"}, {}, {}, "There is no chart|tag"),
        ({}, {"kai_scheduler": "absent"}, {}, "The chart absent is not there"),
        ({}, {"kai_scheduler": "oci://ghcr.io/kai-scheduler/kai-scheduler/absent"}, {}, "There is no chart v0.17.0"),
        ({"kai_scheduler": "v0.19.1-rc1"}, {}, {}, "The rehearsal has no such chart"),
        ({"kai_resource_isolator": "v1.1.0"}, {}, {}, "There is no chart v1.1.0"),
        ({}, {}, {"kai_scheduler": "a b"}, "is no image"),
        ({}, {}, {"kai_scheduler": "ghcr.io/x@sha256:" + "a" * 64}, "is no image"),
        ({}, {}, {"device_plugin": "x:1"}, "device_plugin"),
    ],
)
def test_what_cannot_be_built_is_refused_and_nothing_is_stored(
    settings: Settings, versions: dict[str, str], charts: dict[str, str], images: dict[str, str], words: str
) -> None:
    with pytest.raises(WrongUse, match=words):
        add_version_set(settings, versions, charts, images)
    assert Nights(settings).sets() == {}


def test_another_version_than_the_local_charts_is_refused(settings: Settings) -> None:
    chart = local_chart(settings)
    with pytest.raises(WrongUse, match=r"is v0\.18\.2, and v0\.18\.3 is asked for"):
        add_version_set(settings, {"kai_scheduler": "v0.18.3"}, {"kai_scheduler": chart})


def test_a_registry_that_is_down_is_no_wrong_use(settings: Settings, registry: RehearsalRegistry) -> None:
    registry.faults[KAI_REPOSITORY] = Fault("server_error")
    with pytest.raises(LabError) as told:
        add_version_set(settings, {"kai_scheduler": "v0.18.2"})
    assert not isinstance(told.value, WrongUse)


def test_images_are_read_as_people_write_them() -> None:
    assert image_values("nvml_mock", "localhost:5000/nvml:dev") == {
        "image.repository": "localhost:5000/nvml",
        "image.tag": "dev",
    }
    assert image_values("nvml_mock", "nvml-mock:local")["image.repository"] == "nvml-mock"
    with pytest.raises(ValueError, match="no image"):
        image_values("nvml_mock", "localhost:5000/nvml")
    pinned = {"kai_scheduler": "v0.17.0"}
    name = called("v0.17.0", chart="oci://ghcr.io/me/pull_request/kai", image="pr.1")
    assert moved_components(pinned, {"kai_scheduler": name}) == ("kai_scheduler",)
    newer, older = version_key(name), version_key("v0.17.0")
    assert newer is not None
    assert older is not None
    assert newer > older


def launched(settings: Settings, instance: dg.DagsterInstance, config: dict[str, Any] | None) -> Any:
    job = build_definitions(settings).resolve_job_def("add_version_set")
    run_config = None if config is None else {"ops": {"version_set": {"config": config}}}
    return job.execute_in_process(instance=instance, run_config=run_config, raise_on_error=False)


def test_the_job_stores_the_set_and_adds_a_partition_per_lane(settings: Settings) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        config = {"versions": {"kai_scheduler": "v0.18.2"}, "lanes": ["fresh", "upgrade"]}
        for _ in range(2):  # a partition that exists already is no error and no second one
            assert launched(settings, instance, config).success
        keys = instance.get_dynamic_partitions("version_sets")
        assert sorted(keys) == sorted(Nights(settings).sets())
        assert len(keys) == 2
        assert launched(settings, instance, {"charts": {"kai_scheduler": local_chart(settings)}}).success
        assert len(instance.get_dynamic_partitions("version_sets")) == 3


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "Nothing moves in this version set"),
        ({"versions": {"kai_scheduler": "v9.9.9"}}, "There is no chart v9.9.9"),
        ({"versions": {"kai_scheduler": "v0.18.2"}, "lanes": ["sideways"]}, "No lane is named 'sideways'"),
        ({"versions": {"kai_scheduler": "v0.18.2"}, "lanes": []}, "No lane"),
    ],
)
def test_the_job_refuses_in_one_sentence_and_adds_nothing(
    settings: Settings, config: dict[str, Any] | None, words: str
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = launched(settings, instance, config)
        assert not result.success
        [failure] = result.get_step_failure_events()
        assert words in failure.event_specific_data.user_failure_data.description
        assert instance.get_dynamic_partitions("version_sets") == []
    assert Nights(settings).sets() == {}


def test_sets_of_earlier_days_are_still_read(settings: Settings) -> None:
    [stored] = add_version_set(settings, {"kai_scheduler": "v0.18.2"})
    old = {
        key: value for key, value in stored.to_json().items() if key not in ("own_versions", "values", "comparisons")
    }
    assert StoredSet.from_json(old).version_set == stored.version_set
