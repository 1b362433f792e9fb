"""The three questions: what does a text say, what do objects say, what does a whole bundle say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

from kai_lab_pipeline.lab.diagnosis.bundle import bundle_facts
from kai_lab_pipeline.lab.diagnosis.matcher import diagnose
from kai_lab_pipeline.lab.diagnosis.model import Diagnosis
from kai_lab_pipeline.lab.diagnosis.objects import expanded, facts_of, speaks
from kai_lab_pipeline.lab.diagnosis.relations import relation_facts
from kai_lab_pipeline.lab.diagnosis.text import cleaned, context, json_documents, without_answers
from kai_lab_pipeline.lab.evidence import Evidence
from kai_lab_pipeline.lab.spec import Expectations

MAX_OBJECTS = 50_000
"""Objects looked at in one answer; more are no cluster of a lab."""
_WAITING = re.compile(r"^ {2}\w{1,40}: waiting for [^\n]*$", re.MULTILINE)
"""What kai-lab prints while it waits: mismatches that were usually gone a moment later."""


def diagnose_text(text: str, backend: str = "", command: str = "") -> Diagnosis:
    """What a text gives away: an error, a log, ``kubectl describe``, or JSON of objects, Lists, Status and helm.

    Takes any text and never raises; runs in linear time. With a `backend` the remedies fit it; the `command` line that
    said it gives them its names (release, namespace, cluster, node).
    """
    plain = text.lstrip("\ufeff \t\r\n")
    if plain[:1] in ("{", "["):
        documents = json_documents(plain)
        if documents is not None and any(speaks(obj) for obj in islice(expanded(documents), MAX_OBJECTS)):
            return diagnose_objects(documents, backend)
    text, answers = without_answers(text)
    readable = cleaned(text)
    lines = readable.count("\n") + 1 if readable.strip() else 0
    looked_at = [f"{lines} line{'s' * (lines != 1)} of text"]
    about = {**context(readable), **context(command)}
    settled = _WAITING.sub("", readable)
    facts = [fact for answer in answers for fact in facts_of(answer)]
    looked_at += [fact.line for fact in facts[:3]]
    return diagnose(facts, [(settled if settled.strip() else readable, about)], looked_at, backend)


def diagnose_objects(objects: Iterable[Any], backend: str = "") -> Diagnosis:
    """What decoded JSON or YAML objects (single ones, Lists, watch events, API Status, rows of helm list) give away."""
    found = [obj for obj in islice(expanded(objects), MAX_OBJECTS) if speaks(obj)]
    facts = [*relation_facts(found), *(fact for obj in found for fact in facts_of(obj))]
    counts = Counter(str(obj.get("kind") or "helm release") for obj in found)
    looked_at = [f"{count} {kind}" for kind, count in counts.most_common(8)]
    looked_at += [fact.line for fact in facts[:3]]
    return replace(diagnose(facts, (), looked_at, backend), well=bool(found) and not facts)


def diagnose_evidence(
    evidence: Evidence, expectations: Expectations | None = None, errors: Iterable[str] = ()
) -> Diagnosis:
    """What a bundle gives away: the checks that do not hold, the objects that are not well, and their logs.

    `errors` are the words of steps that could not be done, weighed together with what was seen. Only the newest state
    counts: what has healed since is no cause. Of a healthy bundle it names the lab's expected boundary and nothing
    else.
    """
    facts, texts = bundle_facts(evidence, expectations or Expectations())
    errors = tuple(errors)
    node = {"node": evidence.node} if evidence.node else {}
    for error in errors:
        said, answers = without_answers(error)
        facts += [fact for answer in answers for fact in facts_of(answer)]
        texts.append((readable := cleaned(said), {**node, **context(readable)}))
    looked_at = [
        f"evidence of {', '.join(evidence.observations) or 'no asset'}",
        f"{len(facts)} facts of checks and objects that are not well, {len(texts)} of their logs",
        *evidence.notes[:3],
    ]
    well = bool(evidence.observations) and not (facts or evidence.notes or any(errors))
    found = replace(diagnose(facts, texts, looked_at, evidence.backend), well=well)
    checks = [fact for fact in facts if fact.kind == "check"]
    if checks and not found.causes:
        # A check that does not hold has a cause, even where all else looks like the expected boundary.
        return replace(found, causes=diagnose(checks, backend=evidence.backend).causes)
    return found
