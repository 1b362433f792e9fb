"""What every asset of the lab does around its own step: hold the lab, look upstream, wait, keep evidence, tell."""

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

from kai_lab_pipeline.assets.group import Group, digest
from kai_lab_pipeline.assets.versions import BACKEND, LAB, carried_versions
from kai_lab_pipeline.backends.base import Log, StepFacts
from kai_lab_pipeline.lab.diagnosis import Diagnosis
from kai_lab_pipeline.lab.diagnosis.words import SHOWN, in_words
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.lab.evidence import Observation
from kai_lab_pipeline.lab.spec import CHECKS, UPSTREAM
from kai_lab_pipeline.lab.verdict import CheckResult, Verdict
from kai_lab_pipeline.report.text import markdown, markdown_code
from kai_lab_pipeline.settings import Settings, load_settings
from kai_lab_pipeline.workbench.candidates import candidate_settings
from kai_lab_pipeline.workbench.diagnosing import GATHER_S, diagnose_asset, within
from kai_lab_pipeline.workbench.lab import Lab
from kai_lab_pipeline.workbench.mendable import MENDABLE, as_lab_error
from kai_lab_pipeline.workbench.nights import Nights
from kai_lab_pipeline.workbench.settle import Settled

TABLE = dg.TableSchema(
    columns=[dg.TableColumn(name) for name in ("check", "verdict", "expected", "observed", "message")]
)


STEP_VERSION = "1"
"""Raised when what a step does changes: all its materialisations then count as outdated."""


class LabResource(dg.ConfigurableResource[Any]):
    """Opens the lab of a run. It has no state of its own: what a run needs is read from the project and the cluster."""

    project: str = ""
    """The project's folder; found as the command line finds it where a run's own config leaves it out."""
    scenario: str | None = None
    """A scenario to rehearse in this run (see `kai-lab scenarios`), in place of the project's."""

    def settings(self) -> Settings:
        root = Path(self.project) if self.project else None
        return load_settings(root, overrides={("rehearsal", "scenario"): self.scenario})


@dataclass
class Step:
    """One asset's step in one run."""

    lab: Lab
    asset: str
    group: Group
    context: dg.AssetExecutionContext
    started: float = field(default_factory=time.monotonic)
    metadata: dict[str, Any] = field(default_factory=dict)
    verdicts: dict[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        return self.lab.settings

    @property
    def seconds(self) -> float:
        """How long the step has taken so far."""
        return time.monotonic() - self.started

    def log(self, text: str) -> None:
        self.context.log.info(text)

    def tell(self, facts: StepFacts) -> StepFacts:
        """Show what a backend did, in the run's log and in the asset's metadata."""
        self.log(facts.summary if facts.changed else f"unchanged: {facts.summary}")
        self.metadata["step"] = facts.summary
        self.metadata["changed"] = facts.changed
        if facts.attempts > 1:
            self.metadata["attempts"] = facts.attempts
        self.metadata.update(facts.facts)
        return facts

    def seen(self, *, version_of: Any, broken: Iterable[str] = ()) -> dg.MaterializeResult[Any]:
        """Wait for what the asset's checks expect, keep what was seen, good or bad, and materialise with it.

        What stands on something broken upstream, or on what `broken` names (``asset.check``), is waited for shortly.
        """
        hopeless = self.lab.hopeless(self.asset, broken) if self.group.goes_on else {}
        for check, reason in hopeless.items():
            self.log(f"waiting shortly for {check}: {reason} is broken, and without it this is not expected to hold")
        settled = self.lab.look(self.asset, hopeless=hopeless)
        self._say(settled)
        self.verdicts = {result.check: str(result.verdict) for result in settled.results}
        self.metadata["waited_s"] = round(settled.waited_s, 2)
        self.metadata["checks"] = results_table(settled.results)
        self.metadata["evidence"] = dg.MetadataValue.path(str(self.lab.bundle_dir / self.asset))
        return self.done(version_of=version_of)

    def skip(self, reason: str) -> dg.MaterializeResult[Any]:
        """Materialise without the step, which makes no sense on this cluster; what its checks can still see is seen."""
        self.tell(StepFacts(f"skipped: {reason}", changed=False, skipped=True))
        version = ["skipped", self.lab.backend.connect().incarnation()]
        return self.seen(version_of=version) if self.asset in CHECKS else self.done(version_of=version)

    def done(self, *, version_of: Any) -> dg.MaterializeResult[Any]:
        """Materialise; `version_of` is what downstream depends on, hashed into the data version with the verdicts."""
        self.metadata[BACKEND] = self.lab.backend.name
        self.metadata[LAB] = self.lab.state.name
        self.metadata["seconds"] = round(self.seconds, 2)
        stands_on = carried_versions(self.context, self.group, self.asset)
        version = dg.DataVersion(digest(version_of, self.verdicts, stands_on))
        return dg.MaterializeResult(metadata=self.metadata, data_version=version)

    def _say(self, settled: Settled) -> None:
        for result in settled.mismatches:
            self.context.log.warning(
                f"{result.check} is {result.verdict} after {settled.waited_s:.1f} s: "
                f"expected {result.finding.expected}; observed {result.finding.observed}. {result.finding.message}"
            )


def lab_of(context: Any, resource: LabResource, group: Group) -> Lab:
    """The lab that a step works on. Raises LabError, SettingsError."""
    partition = None if group.partitions is None else context.partition_key
    return lab_of_run(resource, group, context.run.run_id, partition, context.log.info)


def lab_of_run(resource: LabResource, group: Group, run_id: str, partition: str | None, log: Log) -> Lab:
    """The lab that a run works on: the pinned one, or the candidate of the run's partition.

    Raises LabError, SettingsError.
    """
    project = resource.settings()
    settings, candidate = project, None
    if partition is not None:
        candidate = Nights(project).load(partition)
        settings = candidate_settings(project, candidate)
    return Lab(settings, run_id, log, group.gates, candidate, project)


Body = Callable[[Step], dg.MaterializeResult[Any]]
"""What an asset does: its docstring is what the UI teaches about the step."""


def lab_asset(
    group: Group, name: str, *, kinds: set[str], built_from: Any = None
) -> Callable[[Body], dg.AssetsDefinition]:
    """Decorator that makes an asset of the lab from the step's body.

    `built_from` is what the step is made of (manifest text, chart values): its hash is the code version, so that an
    edit turns exactly this asset unsynced.
    """

    def decorate(body: Body) -> dg.AssetsDefinition:
        @dg.asset(
            name=name,
            key_prefix=list(group.prefix) or None,
            group_name=group.name,
            partitions_def=group.partitions,
            deps=[group.key(upstream) for upstream in UPSTREAM[name]],
            code_version=digest(STEP_VERSION, built_from),
            description=inspect.getdoc(body),
            kinds=kinds,
            pool=group.pool,
        )
        def asset(context: dg.AssetExecutionContext, lab: LabResource) -> dg.MaterializeResult[Any]:
            with told():
                return _run(context, lab, group, name, body)

        return asset

    return decorate


def _run(
    context: dg.AssetExecutionContext, resource: LabResource, group: Group, asset: str, body: Body
) -> dg.MaterializeResult[Any]:
    """Hold the lab, check live what the asset is built on, do the step; on failure keep what was seen until then."""
    lab = lab_of(context, resource, group)
    lab.hold(f"materialising {asset} in run {context.run.run_id[:8]}")
    step = Step(lab, asset, group, context)
    try:
        if asset != "boundary_report":  # made from the evidence there is, whatever stands or fell
            if group.goes_on:
                lab.require_infrastructure(asset)
            lab.require_upstream(asset, gates_only=group.gates)
        skipped = lab.skipped.get(asset) if asset != "cluster" else None
        result = body(step) if skipped is None else step.skip(skipped)
    except LabError as error:
        diagnosis = _looked_into(step, error)
        step.metadata["backend"] = lab.backend.name
        lab.record_step(asset, seconds=step.seconds, error=error)
        if not group.goes_on:
            raise failure(error, step.metadata, diagnosis) from None
        context.log.error(failure_text(error, diagnosis, step.metadata))
        return dg.MaterializeResult(metadata={**step.metadata, "could not be done": error.text()})
    lab.record_step(asset, seconds=step.seconds)
    return result


@contextmanager
def told(why: Callable[[LabError], Diagnosis] | None = None) -> Iterator[None]:
    """What a person can mend (the settings, a file, the cluster) as a failure with its sentence, without a trace.

    `why` looks for what lies behind the error.
    """
    try:
        yield
    except MENDABLE as error:
        known = as_lab_error(error)
        diagnosis = why(known) if why is not None else Diagnosis()
        raise failure(known, diagnosis_metadata(diagnosis), diagnosis) from None


def _looked_into(step: Step, error: LabError) -> Diagnosis:
    """Why a step could not be done, from its error and from what is there; never hides the error, never takes long."""
    lab, asset = step.lab, step.asset

    def look() -> Observation:
        with lab.observer() as observer:
            return observer.observe(asset, refused=True)

    # What infrastructure or a broken gate kept from being done must stay "not evaluated": its absence would read as
    # broken.
    seen = within(GATHER_S, look) if asset in CHECKS and error.finding else None
    if seen is not None:
        with suppress(LabError, OSError):
            step.metadata["evidence"] = dg.MetadataValue.path(str(lab.keep(asset, seen)))
    diagnosis = diagnose_asset(lab, asset, [error.text()])
    step.metadata.update(diagnosis_metadata(diagnosis))
    return diagnosis


def diagnosis_metadata(diagnosis: Diagnosis) -> dict[str, Any]:
    """The causes with their remedies, as the UI shows them; empty where none is known."""
    if not diagnosis.causes:
        return {}
    parts = []
    for cause in diagnosis.causes[:SHOWN]:
        steps = "".join(f"\n- {markdown_code(step)}" for step in cause.remedy)
        lines = "".join(f"\n> {markdown(line)}\n" for line in cause.evidence)
        parts.append(f"**{markdown(cause.cause)}**\n{steps}\n{lines}\n{cause.known_issue}")
    return {"diagnosis": dg.MetadataValue.md("\n\n".join(parts))}


def failure_text(error: LabError, diagnosis: Diagnosis, metadata: Mapping[str, Any]) -> str:
    """A failure for a person: the diagnosis first, then the error with what was last seen, then the evidence."""
    kept = metadata.get("evidence")
    lines = [*in_words(diagnosis.causes), error.text()]
    if kept is not None:
        lines.append(f"Evidence: {kept.value}")
    return "\n".join(lines)


def failure(
    error: LabError, metadata: Mapping[str, Any] | None = None, diagnosis: Diagnosis | None = None
) -> dg.Failure:
    """An error as Dagster shows it: what is known of it first, no stack trace, no second attempt."""
    return dg.Failure(
        description=failure_text(error, diagnosis or Diagnosis(), metadata or {}),
        metadata={**(metadata or {}), "exit_code": error.exit_code, "transient": error.transient},
        allow_retries=False,
    )


def results_table(results: Sequence[CheckResult]) -> dg.TableMetadataValue:
    """Check results as a table with expected and observed side by side."""
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    "check": result.check,
                    "verdict": str(result.verdict),
                    "expected": result.finding.expected,
                    "observed": result.finding.observed,
                    "message": result.finding.message,
                }
            )
            for result in results
        ],
        schema=TABLE,
    )


def passes(result: CheckResult) -> bool:
    """Whether a verdict counts as passed in the UI: held, or honestly not reachable on this backend."""
    return result.verdict in (Verdict.HELD, Verdict.NOT_REACHABLE)
