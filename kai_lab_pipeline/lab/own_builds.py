"""Version sets that a person asks for: charts and images that no registry lists as a version.

A build of one's own often carries the version of the release it was made from. So that its verdict is never taken for
that release's, the version set calls it by that version and, as semver's build metadata, what is different about it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

IMAGE_VALUES: Mapping[str, tuple[str, str]] = {
    "kai_scheduler": ("global.registry", "global.tag"),
    "nvml_mock": ("image.repository", "image.tag"),
    "kai_resource_isolator": ("image.repository", "image.tag"),
}
"""Chart values that name a component's image: where it is, and its tag. KAI's charts name the registry of all its
images, the other two one repository (KAI v0.17, nvml-mock 0.3, isolator 1.1)."""
_REPOSITORY = re.compile(r"[\w.-]+(?::[0-9]+)?(?:/[\w.-]+)+|[\w.-]+", re.ASCII)
_SLUG_LENGTH = 24
_OWN = re.compile(r"\+(?:.*\.)?(?:chart|image)\.[0-9A-Za-z-]+\.[0-9a-f]{4}", re.ASCII)


def image_values(component: str, image: str) -> dict[str, str]:
    """Chart values for an image: ``repository:tag``, or a tag alone where the repository stays the chart's.

    Raises ValueError for something else, and KeyError for a component without an image of its own.

    >>> image_values("kai_scheduler", "pr-123")
    {'global.tag': 'pr-123'}
    """
    repository_key, tag_key = IMAGE_VALUES[component]
    repository, colon, tag = image.rpartition(":")
    if "/" in tag or (colon and not _REPOSITORY.fullmatch(repository)) or not re.fullmatch(r"\w[\w.-]{0,127}", tag):
        raise ValueError(f"{image!r} is no image; write repository:tag, or a tag alone (a digest cannot be given)")
    return ({repository_key: repository} if colon else {}) | {tag_key: tag}


def called(version: str, *, chart: str = "", image: str = "") -> str:
    """What a version set calls a build of one's own.

    >>> called("v0.17.0", image="ghcr.io/me/kai:pr-123").startswith("v0.17.0+image.pr-123.")
    True
    """
    parts = [_part(kind, text) for kind, text in (("chart", chart), ("image", image)) if text]
    if not parts:
        return version
    return f"{version}{'.' if '+' in version else '+'}{'.'.join(parts)}"


def is_own_build(version: str) -> bool:
    """Whether a version is what `called` makes.

    >>> is_own_build(called("v0.17.0", chart="../kai"))
    True
    """
    return _OWN.search(version) is not None


def _part(kind: str, text: str) -> str:
    last = re.split(r"[/:]", text.rstrip("/"))[-1].removesuffix(".tgz")
    slug = re.sub(r"[^0-9A-Za-z]+", "-", last).strip("-")[:_SLUG_LENGTH].strip("-")
    return f"{kind}.{slug or 'x'}.{hashlib.sha256(text.encode()).hexdigest()[:4]}"
