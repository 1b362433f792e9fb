"""Scenarios at work: each is rehearsed in a lab of its own, and the page about them shows what a run printed.

``python -m kai_lab_pipeline_tests.scenario_runs`` runs all of them from the command line (or those that are named),
keeps what they printed in data/scenarios/, and writes docs/scenarios.md anew; ``--page`` only writes the page.
"""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kai_lab_pipeline.clients.bundle import read_bundle
from kai_lab_pipeline.commands.scenarios import changes
from kai_lab_pipeline.lab.diagnosis import Diagnosis
from kai_lab_pipeline.lab.evidence import Evidence
from kai_lab_pipeline.lab.scenarios import SCENARIOS, Scenario
from kai_lab_pipeline.lab.spec import ASSETS
from kai_lab_pipeline.lab.verdict import Judgement, Verdict
from kai_lab_pipeline.workbench.diagnosing import diagnose_run
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline_tests.lab_project import CHECKOUT, Executed, LabProject, project
from kai_lab_pipeline_tests.masked import masked_text

OUTPUTS = Path(__file__).parent / "data" / "scenarios"
PAGE = CHECKOUT / "docs" / "scenarios.md"
PATIENCE_S = "1"
"""What a red check waits at least, seconds: a fault that is rehearsed does not go away by waiting."""
_TOLD = re.compile(
    r"✗ |Cause: |  (?:Do|More): |It goes away|broken |not_evaluated |    (?:expected|observed) |Claims: "
)
_SECONDS = re.compile(r" +\d+\.\d s")


@dataclass(frozen=True)
class Rehearsed:
    """What the lab made of a scenario."""

    executed: Executed
    judgement: Judgement
    diagnosis: Diagnosis
    failed: tuple[str, ...]
    """Assets whose step could not be done."""
    bundle: Evidence
    """The run's evidence bundle, as it is read from its folder."""

    @property
    def broken(self) -> set[str]:
        return {check.name for check in self.judgement.checks if check.verdict is Verdict.BROKEN}

    @property
    def held(self) -> set[str]:
        return {check.name for check in self.judgement.checks if check.verdict is Verdict.HELD}

    @property
    def causes(self) -> list[str]:
        return [cause.id for cause in self.diagnosis.causes]


def rehearse(folder: Path, scenario: Scenario) -> Rehearsed:
    """Build the lab with this scenario in a folder of its own, in this process, and take it away again."""
    with project(folder, KAI_LAB_SCENARIO=scenario.name, KAI_LAB_PATIENCE_S=PATIENCE_S) as made:
        return told(made, made.materialise())


def told(made: LabProject, executed: Executed) -> Rehearsed:
    """The judgement and the diagnosis of a run."""
    lab = Lab(made.settings, executed.run_id, lambda _: None)
    evidence = lab.of_this_run(lab.newest_evidence(), ASSETS)
    judgement = lab.judge(evidence)
    failed = tuple(name for name, step in lab.steps().items() if step["error"])
    bundle = read_bundle(lab.bundle_dir)
    return Rehearsed(executed, judgement, diagnose_run(lab, evidence, judgement), failed, bundle)


def capture(scenario: Scenario) -> str:
    """What `kai-lab run --scenario` prints of it: the red lines, with times, names and folders masked."""
    with tempfile.TemporaryDirectory(prefix="kai-lab-scenario-") as folder, project(Path(folder) / "lab") as made:
        said = made.run("run", "--scenario", scenario.name, KAI_LAB_PATIENCE_S=PATIENCE_S)
        return readable(said.out.replace(str(made.folder), "PROJECT"))


def readable(output: str) -> str:
    """The lines of a run's output that say what is wrong."""
    kept, told_error = [], False
    for line in output.splitlines():
        told_error = line.startswith("✗ ") or (told_error and line.startswith("    "))
        if told_error or _TOLD.match(line):
            kept.append(masked_text(_SECONDS.sub("", line)).rstrip())
    return "\n".join(kept) + "\n"


def render_page() -> str:
    """docs/scenarios.md, from the scenarios and from what they printed."""
    rows = [f"| [{one.name}](#{one.name}) | {one.title} | {len(one.red) or 'none'} |" for one in SCENARIOS.values()]
    return "\n".join([_HEAD, *rows, "", *(_section(scenario) for scenario in SCENARIOS.values())])


def _section(scenario: Scenario) -> str:
    red = "".join(f"\n- `{check}`" for check in scenario.red) or "\n- none"
    stops = f"\n\nThe step `{scenario.stops}` cannot be done." if scenario.stops else ""
    output = (OUTPUTS / f"{scenario.name}.txt").read_text(encoding="utf-8")
    anchor = scenario.cause.replace(".", "-")
    return f"""\
## {scenario.name}

**{scenario.title}.** {scenario.rehearses}

What a person sees: {scenario.sees}

Red checks:
{red}{stops}

Why these: {scenario.why}

Made of: {"; ".join(changes(scenario))}. Diagnosed as [{scenario.cause}](known-issues.md#{anchor}).

```console
$ kai-lab run --scenario {scenario.name}
{output}```
"""


_HEAD = """\
# Scenarios: learn the lab by breaking it

Each scenario breaks one thing that people have met, in the rehearsal: no cluster is needed, and nothing of it can
harm one. Run it, read what is red and why, and follow the remedy it names.

```sh
.venv/bin/kai-lab scenarios
```

    kai-lab run --scenario time-slicing      # the rehearsed cluster is made anew for it
    export KAI_LAB_SCENARIO=time-slicing     # to stay in it: check, report, status and the UI then mean it as well
    kai-lab run                              # without a scenario: made anew again, and green

In the UI: Launchpad of `build_lab`, run config `{"resources": {"lab": {"config": {"scenario": "time-slicing"}}}}`.
In lab.toml: `scenario = "time-slicing"` under `[rehearsal]`.

This page is written from the scenarios and from what they printed, with times, names and addresses masked. Every
scenario is a test: exactly the checks that stand here are red, and the diagnosis names its cause and no other.

| scenario | what it breaks | red checks |
|---|---|---|"""


def main(names: list[str]) -> int:
    page_only = names == ["--page"]
    OUTPUTS.mkdir(exist_ok=True)
    for scenario in () if page_only else [SCENARIOS[name] for name in names or SCENARIOS]:
        text = capture(scenario)
        (OUTPUTS / f"{scenario.name}.txt").write_text(text, encoding="utf-8")
        print(f"== {scenario.name}\n{text}", flush=True)
    if all((OUTPUTS / f"{name}.txt").is_file() for name in SCENARIOS):
        PAGE.write_text(render_page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
