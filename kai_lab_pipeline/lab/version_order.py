"""Which versions of a component follow one another, so that a step between them can be blamed."""

from __future__ import annotations

from functools import lru_cache

from kai_lab_pipeline.lab.own_builds import is_own_build
from kai_lab_pipeline.lab.versions import (
    RULES,
    TagKind,
    VersionKey,
    component_rules,
    component_suffix,
    tag_kind,
    version_key,
)

_RELEASES = frozenset({TagKind.STABLE, TagKind.PRE_RELEASE, TagKind.FIPS})


@lru_cache(maxsize=4096)
def place_in_line(component: str, version: str, pinned: str) -> VersionKey | None:
    """Where a version stands among the older and newer ones of its component; None for one that stands aside.

    Releases and pre-releases have a place. Commit builds, builds of one's own, retracted versions and what is no
    version at all have none: semver may rank them, but says nothing about what was made from what.
    """
    if is_own_build(version):
        return None
    if component in RULES and tag_kind(component_rules(component, pinned), version)[0] not in _RELEASES:
        return None
    return version_key(version, component_suffix(component))
