"""What a tag is, which versions are newer, and the version sets made of them."""

from __future__ import annotations

import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kai_lab_pipeline.lab.version_sets import KEY_LENGTH, Lane, VersionSet, candidate_sets, sort_key, version_set
from kai_lab_pipeline.lab.versions import (
    RULES,
    TagKind,
    classify,
    component_rules,
    helm_version,
    normalized,
    repushed,
    tag_kind,
    version_key,
)

PINNED = {
    "nvml_mock": "0.3.0",
    "kai_scheduler": "v0.17.0",
    "kai_resource_isolator": "1.1.0-chart",
    "device_plugin": "v0.18.2",
}
KIND_OF_TAG = [
    ("kai_scheduler", "v0.17.0", TagKind.STABLE),
    ("kai_scheduler", "0.18.5", TagKind.STABLE),
    ("kai_scheduler", "v0.18.0_build.5", TagKind.STABLE),
    ("kai_scheduler", "v0.18.0-rc1", TagKind.PRE_RELEASE),
    ("kai_scheduler", "v0.18.0-rc.12", TagKind.PRE_RELEASE),
    ("kai_scheduler", "v0.18.0-alpha.1", TagKind.PRE_RELEASE),
    ("kai_scheduler", "v0.18.3-fips", TagKind.FIPS),
    ("kai_scheduler", "v0.18.3-rc1-fips", TagKind.FIPS),
    ("kai_scheduler", "0.0.0-d5bc503", TagKind.COMMIT),
    ("kai_scheduler", "v0.18.3-12-gd5bc503", TagKind.COMMIT),
    ("kai_scheduler", "v0.20.0", TagKind.RETRACTED),
    ("kai_scheduler", "v0.20.1", TagKind.RETRACTED),
    ("kai_scheduler", "0.20.1", TagKind.RETRACTED),
    ("kai_scheduler", "v0.21.0", TagKind.STABLE),
    ("kai_scheduler", "latest", TagKind.IMAGE),
    ("kai_scheduler", "sha256-" + "a" * 64 + ".sig", TagKind.SIGNATURE),
    ("kai_scheduler", "v0.18", TagKind.UNKNOWN),
    ("kai_scheduler", "v0.18.0-hotfix", TagKind.UNKNOWN),
    ("kai_scheduler", "", TagKind.UNKNOWN),
    ("kai_scheduler", "v0.17.0\n", TagKind.UNKNOWN),
    ("kai_scheduler", "v٠.١٧.٠", TagKind.UNKNOWN),
    ("kai_scheduler", "v99999999999999999999.0.0", TagKind.UNKNOWN),
    ("nvml_mock", "0.4.0", TagKind.STABLE),
    ("nvml_mock", "0.4.0-rc1", TagKind.PRE_RELEASE),
    ("nvml_mock", "0.20.1", TagKind.STABLE),
    ("kai_resource_isolator", "1.1.0-chart", TagKind.STABLE),
    ("kai_resource_isolator", "v1.1.0", TagKind.IMAGE),
    ("kai_resource_isolator", "v1.2.0-rc1", TagKind.IMAGE),
    ("kai_resource_isolator", "latest", TagKind.IMAGE),
    ("kai_resource_isolator", "1.2.0-rc1-chart", TagKind.PRE_RELEASE),
    ("kai_resource_isolator", "1.2.0-chart-rc1", TagKind.PRE_RELEASE),
    ("kai_resource_isolator", "1.2.0", TagKind.UNKNOWN),
]


@pytest.mark.parametrize(("component", "tag", "kind"), KIND_OF_TAG)
def test_kind_of_a_tag(component: str, tag: str, kind: TagKind) -> None:
    found, reason = tag_kind(RULES[component], tag)
    assert found is kind
    assert bool(reason) is (kind is not TagKind.STABLE)


ASCENDING = [
    "0.0.0-d5bc503",
    "v0.9.0",
    "v0.16.8",
    "v0.17.0-alpha",
    "v0.17.0-alpha.1",
    "v0.17.0-alpha.beta",
    "v0.17.0-rc.2",
    "v0.17.0-rc.11",
    "v0.17.0",
    "v0.17.0+build.9",
    "0.17.0_build.10",
    "0.18.5",
    "v1.9.0",
    "v1.10.0",
]


def test_versions_are_ordered_by_precedence() -> None:
    shuffled = ASCENDING[:]
    random.Random(7).shuffle(shuffled)
    assert sorted(shuffled, key=lambda tag: version_key(tag) or ()) == ASCENDING


def test_spellings_of_one_version_are_equal() -> None:
    assert version_key("v0.17.0") == version_key("0.17.0")
    assert version_key("0.18.0_a.1") == version_key("v0.18.0+a.1")
    assert helm_version("0.18.0_a.1") == "0.18.0+a.1"
    assert normalized("vanilla") == "vanilla"
    assert version_key("vanilla") is None


def test_a_chart_suffix_is_no_pre_release() -> None:
    assert version_key("1.1.0-chart", "-chart") == version_key("1.1.0")
    plain = version_key("1.1.0-chart")
    assert plain is not None
    assert plain < (version_key("1.1.0") or ())


def test_classify_sorts_kai_tags_out() -> None:
    tags = ["v0.20.1", "v0.18.3", "0.17.0", "v0.17.0", "v0.16.8", "v0.17.2", "v0.18.0-rc1", "v0.18.3-fips"]
    found = classify("kai_scheduler", [*tags, "0.0.0-d5bc503", "0.18.3", "what-is-this", "v0.18.3"], "v0.17.0")
    assert found.newer == ("v0.17.2", "v0.18.3")
    assert found.same == ("v0.17.0", "0.17.0")
    assert found.older == ("v0.16.8",)
    assert found.unknown == ("what-is-this",)
    assert found.spellings == ("0.18.3",)
    assert [entry.tag for entry in found.excluded] == ["0.0.0-d5bc503", "v0.18.0-rc1", "v0.18.3-fips", "v0.20.1"]
    assert "retracted" in found.excluded[-1].reason
    assert [entry.tag for entry in found.newer_but_excluded] == ["v0.18.0-rc1", "v0.18.3-fips", "v0.20.1"]


def test_isolator_charts_live_beside_image_tags() -> None:
    tags = ["latest", "v1.1.0", "v1.10.0", "1.0.0-chart", "1.9.0-chart", "1.10.0-chart", "1.1.0-chart"]
    found = classify("kai_resource_isolator", tags, "1.1.0-chart")
    assert found.newer == ("1.9.0-chart", "1.10.0-chart")
    assert found.older == ("1.0.0-chart",)
    assert {entry.tag for entry in found.excluded} == {"latest", "v1.1.0", "v1.10.0"}


def test_an_isolator_repository_of_charts_alone_has_no_suffix() -> None:
    assert classify("kai_resource_isolator", ["1.0.0", "1.2.0"], "1.0.0").newer == ("1.2.0",)


def test_the_spelling_of_the_pinned_version_is_kept() -> None:
    assert classify("kai_scheduler", ["0.18.5", "v0.18.5"], "0.18.3").newer == ("0.18.5",)
    assert classify("kai_scheduler", ["0.18.5", "v0.18.5"], "v0.17.0").newer == ("v0.18.5",)
    assert classify("kai_scheduler", ["0.18.5"], "v0.17.0").newer == ("0.18.5",)


def test_a_pinned_pre_release_is_found_again_and_its_release_is_newer() -> None:
    found = classify("nvml_mock", ["0.4.0-rc1", "0.4.0", "0.3.0"], "0.4.0-rc1")
    assert (found.same, found.newer, found.older) == (("0.4.0-rc1",), ("0.4.0",), ("0.3.0",))


def test_a_pin_that_is_no_version_leaves_every_stable_tag_newer() -> None:
    found = classify("nvml_mock", ["0.2.1", "0.3.0"], "local")
    assert found.newer == ("0.2.1", "0.3.0")
    assert found.newer_but_excluded == ()


def test_an_empty_registry_has_nothing() -> None:
    found = classify("nvml_mock", [], "0.3.0")
    assert (found.newer, found.excluded, found.unknown, found.same) == ((), (), (), ())


def test_a_component_without_rules_is_named() -> None:
    with pytest.raises(KeyError, match="known: kai_scheduler, nvml_mock, kai_resource_isolator"):
        component_rules("gpu_operator")


TAG = st.text(alphabet="v0123456789.-_rcafipschtg", max_size=24)


@settings(deadline=None)
@given(st.lists(TAG, max_size=40), st.sampled_from(sorted(RULES)))
def test_every_tag_is_in_exactly_one_list(tags: list[str], component: str) -> None:
    found = classify(component, tags, PINNED[component])
    listed = [
        *found.newer,
        *found.spellings,
        *found.same,
        *found.older,
        *found.unknown,
        *(entry.tag for entry in found.excluded),
    ]
    assert sorted(listed) == sorted(set(tags))


def test_ten_thousand_tags_are_sorted_out_quickly() -> None:
    tags = [f"v0.{minor}.{patch}" for minor in range(100) for patch in range(100)]
    random.Random(1).shuffle(tags)
    began = time.process_time()
    found = classify("kai_scheduler", tags, "v0.17.0")
    assert time.process_time() - began < 1.5
    assert len(found.newer) == 10_000 - 1 - 17 * 100 - 100
    assert found.newer[0] == "v0.17.1"
    assert found.newer[-1] == "v0.99.99"


def test_repushed_tags_are_news_and_others_are_not() -> None:
    assert repushed({"a": "sha256:1", "b": "sha256:2"}, {"a": "sha256:1", "b": "sha256:9", "c": "sha256:3"}) == ("b",)


NEWER = {"kai_scheduler": ("v0.17.2", "v0.18.3"), "nvml_mock": ("0.4.0",), "kai_resource_isolator": ()}


def test_candidates_move_one_component_then_the_newest_of_all() -> None:
    fresh = candidate_sets(PINNED, NEWER, lanes=(Lane.FRESH,))
    assert [found.moved for found in fresh] == [
        ("kai_scheduler",),
        ("kai_scheduler",),
        ("nvml_mock",),
        ("nvml_mock", "kai_scheduler"),
    ]
    assert fresh[-1].versions == PINNED | {"kai_scheduler": "v0.18.3", "nvml_mock": "0.4.0"}
    assert fresh[0].versions == PINNED | {"kai_scheduler": "v0.17.2"}


def test_each_lane_is_a_candidate_of_its_own() -> None:
    both = candidate_sets(PINNED, NEWER)
    assert len(both) == 8
    assert len({found.key for found in both}) == 8
    assert {found.lane for found in both} == {Lane.FRESH, Lane.UPGRADE}


def test_one_component_with_news_gives_no_second_combination() -> None:
    found = candidate_sets(PINNED, {"nvml_mock": ("0.4.0",)}, lanes=(Lane.FRESH,))
    assert [one.moved for one in found] == [("nvml_mock",)]
    assert candidate_sets(PINNED, {"nvml_mock": ()}) == []


def test_spellings_of_one_version_make_one_candidate() -> None:
    found = candidate_sets(PINNED, {"kai_scheduler": ("v0.18.5", "0.18.5", "0.17.0")}, lanes=(Lane.FRESH,))
    assert [normalized(one.versions["kai_scheduler"]) for one in found] == ["0.18.5"]


def test_keys_are_readable_stable_and_name_a_cluster() -> None:
    key = version_set(PINNED, {"kai_scheduler": "v0.18.3"}).key
    assert re.fullmatch(r"kai-0-18-3-[0-9a-f]{5}", key)
    assert version_set(dict(reversed(PINNED.items())), {"kai_scheduler": "0.18.3"}).key == key
    assert re.fullmatch(
        r"kai-0-18-3-up-[0-9a-f]{5}", version_set(PINNED, {"kai_scheduler": "v0.18.3"}, Lane.UPGRADE).key
    )
    assert version_set(PINNED, {}).key.startswith("pinned-")
    assert version_set(PINNED | {"nvml_mock": "0.2.1"}, {"kai_scheduler": "v0.18.3"}).key != key


VERSION = st.text(alphabet="v0123456789.-+_abcXYZ/ é", min_size=1, max_size=60).filter(lambda text: text.strip() != "")


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(PINNED)), VERSION), st.sampled_from(Lane))
def test_any_version_gives_a_valid_key(changes: dict[str, str], lane: Lane) -> None:
    key = version_set(PINNED, changes, lane).key
    assert len(key) <= KEY_LENGTH
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", key)
    assert "--" not in key


def test_versions_that_only_differ_in_signs_have_different_keys() -> None:
    keys = {version_set(PINNED, {"kai_scheduler": version}).key for version in ("v1.0.0-1", "v1.0.0+1", "v1.0.0.1")}
    assert len(keys) == 3


def test_a_version_set_survives_json() -> None:
    found = version_set(PINNED, {"kai_scheduler": "v0.18.0_a"}, Lane.UPGRADE)
    assert VersionSet.from_json(found.to_json()) == found
    assert found.versions["kai_scheduler"] == "v0.18.0+a"
    assert found.description == "kai_scheduler v0.18.0+a (upgrade of a living lab)"


def test_wrong_changes_are_refused_with_the_known_names() -> None:
    with pytest.raises(ValueError, match="no component is named kai; known: nvml_mock"):
        version_set(PINNED, {"kai": "v0.18.3"})
    with pytest.raises(ValueError, match="no version is given for nvml_mock"):
        version_set(PINNED, {"nvml_mock": " "})


def test_sets_are_shown_oldest_first() -> None:
    sets = candidate_sets(PINNED, {"nvml_mock": ("0.9.0", "0.10.0")}, lanes=(Lane.UPGRADE, Lane.FRESH))
    random.Random(3).shuffle(sets)
    ordered = sorted(sets, key=sort_key)
    assert [(one.versions["nvml_mock"], one.lane.value) for one in ordered] == [
        ("0.9.0", "fresh"),
        ("0.9.0", "upgrade"),
        ("0.10.0", "fresh"),
        ("0.10.0", "upgrade"),
    ]
