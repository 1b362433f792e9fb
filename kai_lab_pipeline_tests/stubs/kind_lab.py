"""A kind backend on a workplace's stub tools, and what its tests look at."""

from __future__ import annotations

from typing import Any

from kai_lab_pipeline.backends.kind import KindBackend
from kai_lab_pipeline_tests.stubs.workplace import QuickTools, Workplace, recorded

NAME = "kai-hami-test"
NODE = f"{NAME}-control-plane"
WORDS = recorded("kind-and-docker")


class Lines(list[str]):
    """A log that can be searched."""

    def __call__(self, line: str) -> None:
        self.append(line)

    def has(self, words: str) -> bool:
        return any(words in line for line in self)


def backend(place: Workplace, *, on_path: bool = False, **overrides: Any) -> KindBackend:
    """The backend; `on_path` runs the stubs as processes of their own, as the real tools are."""
    settings = place.settings(**overrides)
    lab = KindBackend(settings, pause=lambda seconds: None)
    if not on_path:
        lab.use(QuickTools(lab.tools.registry, lab.tools.transcripts))
    return lab


def rule(match: str, case: str, **more: Any) -> dict[str, Any]:
    """An answer of a recorded case of kind or docker, with our cluster's name."""
    words = WORDS[case]
    err = words["err"].replace("kai-kind-test", NAME).replace("kai-dies", NAME).replace("kai-port", NAME)
    return {"match": match, "rc": words["rc"], "out": words["out"], "err": err, **more}
