"""Print checks x damages: how many damages concern a check, and how many of them it caught."""

from __future__ import annotations

import sys
from collections import Counter

from kai_lab_pipeline.lab.claims import CHECK_FUNCTIONS
from kai_lab_pipeline_tests.damages import DAMAGES, HARMLESS, cases, turned


def main() -> int:
    total: Counter[str] = Counter()
    caught: Counter[str] = Counter()
    wrong = []
    for damage, recording in cases(DAMAGES + HARMLESS):
        found = turned(damage, recording)
        total.update(damage.turns)
        caught.update(found & damage.turns)
        if found != damage.turns:
            wrong.append(f"{recording}: {damage.name}: turned {sorted(found)}, expected {sorted(damage.turns)}")
    width = max(map(len, CHECK_FUNCTIONS))
    print(f"{'check':<{width}}  caught/total")
    for check in CHECK_FUNCTIONS:
        print(f"{check:<{width}}  {caught[check]:>6}/{total[check]}")
    done, spared = sum(1 for _ in cases(DAMAGES)), sum(1 for _ in cases(HARMLESS))
    print(f"\n{len(DAMAGES)} damages done {done} times, {len(HARMLESS)} harmless changes done {spared} times")
    print("\n".join(wrong) if wrong else "every one turned exactly the checks it had to")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
