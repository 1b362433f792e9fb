"""Where a scenario's planted fault and a damage meet in one fact, and what comes of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kai_lab_pipeline.lab.verdict import Verdict

_RELEASE = "kai_release.release_deployed"
_LABEL = "shared_gpu_pod.label_read_by_kai"
_FRACTION = "shared_gpu_pod.fraction_accounted"
_LIMIT = "shared_gpu_pod.memory_limit_value"
_STATE = "reservation_boundary.shared_pod_state"
_BINDING = "reservation_boundary.binding_result"
_NVML = "reservation_boundary.reservation_nvml"
_OUTCOME = "reservation_boundary.boundary_outcome"
_CROSSING = "a crossing is said to be set up"
_NO_EVENTS = "events not captured at the boundary"
_HELD, _BROKEN = Verdict.HELD, Verdict.BROKEN
_LABEL_KNOWN_WRONG = (
    "no sharing annotation",
    "no shared pod",
    "shared pod in another namespace",
    "still no GPU memory",
    "memory not synced",
    "node without memory label",
    "node's label with unit",
    "late label, healed",
)
_NO_POD_THERE = ("no pod at the boundary", "pod in another namespace", "not a shared pod")
_WITHOUT_POD = {
    # There is no shared pod at all: that is broken, whatever else cannot be read.
    _CROSSING: {_LIMIT: _BROKEN},
    "events not captured with the shared pod": {_LABEL: _BROKEN},
    "nodes not captured with the shared pod": {_LABEL: _BROKEN, _FRACTION: _BROKEN, _LIMIT: _BROKEN},
    "scheduler's log empty": {_FRACTION: _BROKEN},
    "scheduler's log not captured": {_FRACTION: _BROKEN},
}
_FAILS_OTHERWISE = {
    # A reservation pod that failed for another reason is a different outcome, even where the events are not known;
    # and where the facts disagree, they are judged by what the backend must give.
    _NO_EVENTS: {_OUTCOME: _BROKEN},
    _CROSSING: {_STATE: _BROKEN, _BINDING: _BROKEN},
}
_NO_GROUP = {"no group label": {_BINDING: _BROKEN, _OUTCOME: _BROKEN}}
"""Of a pod that runs, a missing group is a contradiction; in the recording the binding is then only not known."""
_BY_SCENARIO: Mapping[str, Mapping[str, Mapping[str, Verdict]]] = {
    # The planted fault is what the damage says is meant, so both together are in order.
    "four-gpus": {"a profile of four cards is meant": {"device_plugin.eight_whole_gpus": _HELD}},
    "isolator-too-old": {"isolator chart 1.0": {"isolator_release.release_deployed": _HELD}},
    # The damage writes v0.17.0 without its v, and another version is installed.
    "kai-withdrawn-version": {"version without v": {_RELEASE: _BROKEN}},
    "kai-without-the-old-values": {"version without v": {_RELEASE: _BROKEN}},
    # Nothing was ever tried: what is not known yet is known to be wrong once the pod or its label is.
    "scheduler-silent": {
        **{name: {_LABEL: _BROKEN} for name in _LABEL_KNOWN_WRONG},
        **{name: {_NVML: _BROKEN} for name in _NO_POD_THERE},
        _CROSSING: {_STATE: _BROKEN},
    },
    "sharing-off": _WITHOUT_POD,
    "sharing-value-misspelt": _WITHOUT_POD,
    "reservation-image-missing": _FAILS_OTHERWISE,
    "reservation-other-nvml-error": _FAILS_OTHERWISE,
    # Half of the crossing is there, and the damage makes the other half up.
    "reservation-sees-all-cards": {
        "runs without a GPU": {_STATE: _HELD},
        "a GPU found": {_NVML: _HELD},
        _NO_EVENTS: {_OUTCOME: _BROKEN},
    },
    "memory-limit-wrong": {
        # The wrong limit makes the outcome a different one, so the facts are judged by what nobody set up.
        "nobody set up the crossing": {_STATE: _BROKEN, _BINDING: _BROKEN, _NVML: _BROKEN},
        **_NO_GROUP,
    },
    "crossed-unasked": _NO_GROUP,
}


def _entries() -> Iterator[tuple[tuple[str, str], Mapping[str, Verdict]]]:
    for scenario, damages in _BY_SCENARIO.items():
        for damage, met in damages.items():
            yield (scenario, damage), met


MET: Mapping[tuple[str, str], Mapping[str, Verdict]] = dict(_entries())
"""Verdicts by scenario and damage, of the checks for which the rule of `in_scenarios` is not enough."""
