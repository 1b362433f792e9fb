"""Print checks x damages: how many damages concern a check, and how many of them it caught, by where it was done."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from kai_lab_pipeline.lab.claims import CHECK_FUNCTIONS
from kai_lab_pipeline.lab.scenarios import SCENARIOS
from kai_lab_pipeline_tests.damages import (
    DAMAGES,
    HARMLESS,
    REHEARSED,
    cases,
    held,
    rehearsed,
    rehearsed_cases,
    turned,
    turned_in,
)
from kai_lab_pipeline_tests.damages.in_scenarios import IN_SCENARIOS, Done
from kai_lab_pipeline_tests.lab_project import CHECKOUT


class Table:
    """Counts of damages by check, and the damages that turned other checks than they had to."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self.caught: Counter[str] = Counter()
        self.done = 0
        self.wrong: list[str] = []

    def add(self, what: str, found: frozenset[str], expected: frozenset[str]) -> None:
        self.done += 1
        self.total.update(expected)
        self.caught.update(found & expected)
        if found != expected:
            self.wrong.append(f"{what}: turned {sorted(found)}, expected {sorted(expected)}")

    def of(self, check: str) -> str:
        return f"{self.caught[check]}/{self.total[check]}"


def recordings() -> Table:
    table = Table()
    for damage, recording in cases(DAMAGES + HARMLESS):
        table.add(f"{recording}: {damage.name}", turned(damage, recording), damage.turns)
    return table


def rehearsal() -> Table:
    table = Table()
    for recording, crossing in REHEARSED.items():
        with tempfile.TemporaryDirectory(prefix="kai-lab-damages-") as folder:
            evidence = rehearsed(Path(folder) / "lab", crossing)
        before = held(evidence)
        for damage, expected in rehearsed_cases(recording):
            table.add(f"rehearsal as {recording}: {damage.name}", turned_in(damage, evidence, before), expected)
    return table


def scenarios() -> Table:
    """What the tests of the scenarios did to their bundles, each built once: read from pytest's cache."""
    table, folder = Table(), CHECKOUT / ".pytest_cache" / "d" / IN_SCENARIOS
    for name in SCENARIOS:
        file = folder / f"{name}.json"
        if not file.is_file():
            table.wrong.append(f"scenario {name}: its test did not get as far as its damages (run the tests first)")
            continue
        done = Done.read(file)
        table.done += done.applied
        table.total.update(done.total)
        table.caught.update(done.caught)
        table.wrong += done.wrong
    return table


def main() -> int:
    tables = {"recordings": recordings(), "rehearsal": rehearsal(), "scenarios": scenarios()}
    width = max(map(len, CHECK_FUNCTIONS))
    print(f"{'caught/total':<{width}}" + "".join(f"  {name:>12}" for name in tables))
    for check in CHECK_FUNCTIONS:
        print(f"{check:<{width}}" + "".join(f"  {table.of(check):>12}" for table in tables.values()))
    print(f"\n{len(DAMAGES)} damages and {len(HARMLESS)} harmless changes", end="; ")
    print(", ".join(f"done {table.done} times to {name}" for name, table in tables.items()))
    wrong = [line for table in tables.values() for line in table.wrong]
    print("\n".join(wrong) if wrong else "every one turned exactly the checks it had to")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
