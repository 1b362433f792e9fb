"""Half-broken evidence never raises: the readers find something to say of any shape of JSON."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from kai_lab_pipeline.clients.bundle import read_bundle, write_bundle_json, write_observation
from kai_lab_pipeline.lab.evidence import Evidence, Observation
from kai_lab_pipeline_tests.damages import judged, recorded
from kai_lab_pipeline_tests.damages.draft import CROSSED, LAB

JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    "",
    "x",
    "٣",
    [],
    [None],
    [[]],
    {},
    {"a": None},
    "\x1b[0m",
    2**70,
    "9" * 30,
)
READ = ("pods", "nodes", "events", "deployments", "daemonsets", "queues", "configmaps", "runtimeclasses")


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from _places(inner, (*path, key))


def _broken(evidence: Evidence, dice: random.Random) -> Evidence:
    """A copy in which a few places of what the claims read hold something else."""
    observations = {}
    for asset, seen in evidence.observations.items():
        resources = {name: copy.deepcopy(list(items)) for name, items in seen.resources.items() if name in READ}
        dryruns = copy.deepcopy(dict(seen.dryrun))
        for root in (*resources.values(), list(dryruns.values())):
            places = list(_places(root)) if len(json.dumps(root)) < 60_000 else []
            for path in dice.sample(places, min(len(places), 25)):
                inner: Any = root
                try:
                    for step in path[:-1]:
                        inner = inner[step]
                    inner[path[-1]] = dice.choice(JUNK)
                except (KeyError, IndexError, TypeError):
                    continue  # an earlier change took this place away
        kept = {name: tuple(i for i in items if isinstance(i, dict)) for name, items in resources.items()}
        observations[asset] = Observation(kept, seen.helm, dryruns, seen.logs)
    return Evidence(evidence.backend, evidence.versions, None, evidence.captured_at, observations=observations)


def _small(evidence: Evidence) -> Evidence:
    """The evidence with only the objects that claims look at, so that the dice hit what matters."""
    observations = {}
    for asset, seen in evidence.observations.items():
        pods = {p["metadata"]["uid"] for p in seen.objects("pods") or () if "gpu" in p["metadata"]["name"]}
        resources = {
            name: tuple(
                item
                for item in items
                if name != "events" or (item["involvedObject"].get("uid") in pods and item["source"])
            )[:12]
            for name, items in seen.resources.items()
        }
        observations[asset] = Observation(resources, seen.helm, seen.dryrun, seen.logs)
    return Evidence(evidence.backend, evidence.versions, None, evidence.captured_at, observations=observations)


@pytest.mark.parametrize("recording", [LAB, CROSSED])
@pytest.mark.parametrize("seed", range(6))
def test_any_shape_is_judged(recording: str, seed: int) -> None:
    evidence = _small(recorded(recording))
    dice = random.Random(seed)
    for _ in range(5):
        judgement = judged(_broken(evidence, dice))
        assert len(judgement.checks) == 36
        assert all(check.finding.message for check in judgement.checks)
        json.dumps(judgement.to_json())


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_every_list_of_junk_is_judged(junk: Any) -> None:
    obj = {"metadata": junk, "spec": junk, "status": junk, "webhooks": junk, "handler": junk, "involvedObject": junk}
    lists = {
        name: (obj, {"metadata": {"name": junk, "labels": junk, "annotations": junk}, "spec": obj}) for name in READ
    }
    seen = Observation(lists, ({"name": junk, "chart": junk, "status": junk},), {"queue": obj, "shared_pod": obj})
    base = recorded(LAB)
    judgement = judged(Evidence(versions=base.versions, observations=dict.fromkeys(base.observations, seen)))
    assert len(judgement.checks) == 36


@pytest.mark.parametrize("seed", range(6))
def test_cut_files_are_read(tmp_path: Any, seed: int) -> None:
    base, dice = recorded(LAB), random.Random(seed)
    write_bundle_json(tmp_path, backend="recorded", versions=base.versions)
    for asset in ("cluster", "queues", "nvidia_runtime_class", "labelled_node"):
        seen = base.of(asset)
        small = {name: items for name, items in seen.resources.items() if name in ("nodes", "queues", "runtimeclasses")}
        write_observation(tmp_path, asset, Observation(small, seen.helm))
    for path in sorted(tmp_path.glob("*/*.json")):
        content = bytearray(path.read_bytes())
        for _ in range(3):
            content[dice.randrange(len(content))] = dice.randrange(256)
        path.write_bytes(content[: dice.randrange(len(content))] if dice.random() < 0.5 else content)
    evidence = read_bundle(tmp_path)
    assert len(judged(evidence).checks) == 36
    assert all("\n" not in note for note in evidence.notes)
