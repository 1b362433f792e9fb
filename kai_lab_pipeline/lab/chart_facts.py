"""What the comparison of charts reads out of values trees and rendered objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from kai_lab_pipeline.lab.evidence import K8sObject, mapping, metadata_of, name_of, sequence, spec_of

FLAGS = ("--gpu-sharing-enabled", "--hami-core-enabled", "--gpu-fraction-runtime-class-name", "--plugins", "--profile")
"""Container arguments that the lab's checks, or the mock's profile, depend on (KAI v0.17, nvml-mock)."""
CONFIG_FIELDS = (
    "admission.gpuSharing",
    "admission.gpuFractionRuntimeClassName",
    "binder.plugins.hamicore.enabled",
    "binder.resourceReservation.runtimeClassName",
)
"""Fields of KAI's Config below spec, from which its operator makes those arguments (KAI v0.17)."""
_NOISE = ("helm.sh/chart", "app.kubernetes.io/version")
_NOISY = re.compile(r"checksum|\brevision\b", re.I)
_CONFIG = re.compile(r"""kind["']?:\s*["']?Config\b""")
_HIDDEN = "(not compared)"


class Identity(NamedTuple):
    """What makes two rendered objects the same one; the API version may move."""

    group: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class Found(NamedTuple):
    """What stands at a path of a values tree."""

    found: bool
    value: Any = None
    open: bool = False
    """Not there, but below an empty tree or null, which charts use for what a person may fill in."""


def identity_of(obj: K8sObject) -> Identity:
    group, slash, _ = str(obj.get("apiVersion", "")).partition("/")
    namespace = str(metadata_of(obj).get("namespace") or "")
    return Identity(group if slash else "", str(obj.get("kind", "")), namespace, name_of(obj))


def split_key(key: str) -> tuple[str, ...]:
    """A key as ``helm --set`` writes it: dots separate, a backslash keeps a dot, ``[0]`` is a list's place."""
    parts = [part.replace("\\.", ".") for part in re.split(r"(?<!\\)\.", key)]
    return tuple(piece for part in parts for piece in re.sub(r"\[(\d+)\]", r"\0\1", part).split("\0") if piece)


def lookup(tree: Any, path: Iterable[str]) -> Found:
    """Walk a values tree along a path."""
    at = tree
    for part in path:
        if isinstance(at, Mapping) and part in at:
            at = at[part]
        elif isinstance(at, list) and part.isdecimal() and int(part) < len(at):
            at = at[int(part)]
        else:
            return Found(False, open=at is not tree and (at is None or at == {} or at == []))
    return Found(True, at)


def reads_value(templates: str, path: tuple[str, ...], *, whole: bool = False) -> bool:
    """Whether template text mentions a value by its last two names: ``global.x``, or ``global "x"`` as in hasKey.

    With `whole` a mention of something below it does not count (``with .Values.x`` does, ``.Values.x.y`` does not).
    A reading of text, so it can be mistaken where templates walk values by variables.
    """
    parent, last = (path[-2] if len(path) > 1 else "Values"), path[-1]
    end = r"(?![\w-]|\.\w)" if whole else r"(?![\w-])"
    return re.search(rf'(?<![\w-]){re.escape(parent)}[ ."]{{1,3}}{re.escape(last)}{end}', templates) is not None


def value_keys(tree: Mapping[str, Any]) -> dict[str, str]:
    """Dotted keys of all leaves and their values as JSON; empty trees and lists are leaves."""
    return dict(_leaves(tree, ""))


def _leaves(value: Any, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, nested in value.items():
            name = str(key).replace(".", "\\.")
            yield from _leaves(nested, f"{at}.{name}" if at else name)
    elif at:
        yield at, json.dumps(value, default=str)


def crd_versions(objects: Iterable[K8sObject]) -> dict[str, str]:
    """Served versions by CRD, the stored one marked with a star."""
    found = {}
    for obj in objects:
        if obj.get("kind") == "CustomResourceDefinition":
            versions = [mapping(one) for one in sequence(spec_of(obj).get("versions"))]
            found[name_of(obj)] = ", ".join(
                f"{one.get('name')}{'*' if one.get('storage') else ''}" for one in versions if one.get("served", True)
            )
    return found


def containers_of(obj: K8sObject) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Containers of a workload with a readable name: ``Deployment binder/binder``."""
    spec = spec_of(obj)
    if obj.get("kind") == "CronJob":
        spec = mapping(mapping(spec.get("jobTemplate")).get("spec"))
    pod = spec if obj.get("kind") == "Pod" else mapping(mapping(spec.get("template")).get("spec"))
    for section in ("initContainers", "containers"):
        for container in sequence(pod.get(section)):
            one = mapping(container)
            yield f"{obj.get('kind')} {name_of(obj)}/{one.get('name')}", one


def images_of(objects: Iterable[K8sObject]) -> dict[str, str]:
    return {
        name: str(container["image"])
        for obj in objects
        for name, container in containers_of(obj)
        if container.get("image")
    }


def effects_of(objects: Iterable[K8sObject]) -> dict[str, str]:
    """The settings that decide whether the lab's values took effect, wherever a chart carries them."""
    found: dict[str, str] = {}
    for obj in objects:
        for name, container in containers_of(obj):
            for flag, value in _flags(container):
                found[f"{name} {flag}"] = value
        for config in _configs(obj):
            for path in CONFIG_FIELDS:
                at = lookup(spec_of(config), path.split("."))
                if at.found:
                    found[f"Config {name_of(config)} {path}"] = json.dumps(at.value, default=str)
    return found


def _flags(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    words = [str(one) for one in (*sequence(container.get("command")), *sequence(container.get("args")))]
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in FLAGS:
            following = words[place + 1] if place + 1 < len(words) else ""
            yield flag, value if equals else "true" if following.startswith("--") or not following else following


def _configs(obj: K8sObject) -> Iterator[K8sObject]:
    """KAI's Config objects: rendered as such, or as text that a hook applies, in a ConfigMap or a container."""
    if _is_config(obj):
        yield obj
    texts: list[Any] = list(mapping(obj.get("data")).values()) if obj.get("kind") == "ConfigMap" else []
    for _, container in containers_of(obj):
        texts += [mapping(one).get("value") for one in sequence(container.get("env"))]
        texts += sequence(container.get("args"))
    for text in texts:
        if isinstance(text, str) and _CONFIG.search(text):
            yield from _documents(text)


def _documents(text: str) -> Iterator[K8sObject]:
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError:
        return
    yield from (one for one in documents if isinstance(one, Mapping) and _is_config(one))


def _is_config(obj: K8sObject) -> bool:
    return obj.get("kind") == "Config" and str(obj.get("apiVersion", "")).startswith("kai.scheduler/")


def quiet(value: Any) -> Any:
    """An object without what differs in every version or every rendering: chart labels, checksums, certificates.

    Data of Secrets is never shown.
    """
    if isinstance(value, Mapping):
        secret = value.get("kind") == "Secret"
        return {
            key: _HIDDEN if key == "caBundle" or (secret and key in ("data", "stringData")) else quiet(nested)
            for key, nested in value.items()
            if key not in _NOISE and not _NOISY.search(str(key))
        }
    return [quiet(one) for one in value] if isinstance(value, list | tuple) else value
