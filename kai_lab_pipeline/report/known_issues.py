"""The page of known issues, generated from what the diagnosis knows, keyed by the text a person would search for.

``python -m kai_lab_pipeline.report.known_issues docs/known-issues.md`` writes it anew.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from kai_lab_pipeline.lab.diagnosis.catalogue import FAULTS
from kai_lab_pipeline.lab.diagnosis.model import Fault, Nature, filled, names_for

_HEAD = """\
# Known issues

What can go wrong in this lab and in its parts, keyed by the words it shows itself with. `kai-lab explain FILE` finds
the right entry in an error text, a log, `kubectl describe`, objects as JSON or YAML, or an evidence bundle, and fills
in the real names.

This page is generated from the knowledge in `kai_lab_pipeline/lab/diagnosis/knowledge`; change it there and run
`python -m kai_lab_pipeline.report.known_issues docs/known-issues.md`.
"""
_NATURES = {
    Nature.EXPECTED: "the lab's expected boundary",
    Nature.HARMLESS: "harmless",
}
_COMMAND = re.compile(
    r"(?:sudo |export |unset |printf |env |KAI_LAB_\w+=\S+ )*"
    r"(?:kubectl|helm|docker|kind|kai-lab|sysctl|systemctl|df|ss|pgrep|dmesg|curl|openssl|getent|make|date|timedatectl|"
    r"free|stat|ls|rm|uname|ip|nvidia-smi|tar|cat|grep|echo|mkdir|tee|usermod|newgrp|python|KUBECONFIG|DOCKER_\w+|"
    r"\.venv/bin/python|printf|env|git|NO_PROXY)\b"
)


def render_known_issues(faults: Iterable[Fault] = FAULTS) -> str:
    """The whole page as Markdown."""
    parts = [_HEAD]
    for component, entries in groupby(_sorted(faults), key=lambda fault: fault.component):
        parts.append(f"\n## {component}\n")
        parts += [_entry(fault) for fault in entries]
    return "".join(parts)


def _sorted(faults: Iterable[Fault]) -> list[Fault]:
    """By component, in the order in which components first appear."""
    known = list(faults)
    order = list(dict.fromkeys(fault.component for fault in known))
    return sorted(known, key=lambda fault: order.index(fault.component))


def _entry(fault: Fault) -> str:
    lines = [f'\n<a id="{fault.anchor}"></a>', f"### {_code(fault.title)}", ""]
    when = "goes away by itself or with a retry" if fault.transient else "stays until something is changed"
    kind = f"; {_NATURES[fault.nature]}" if fault.nature in _NATURES else ""
    lines.append(f"`{fault.id}` · versions: {fault.versions} · {when}{kind}")
    lines += ["", _prose(fault.cause, fault), ""]
    lines += [f"- {_step(step, fault)}" for step in fault.remedy]
    if fault.elsewhere:
        lines += ["", "On a cluster that kind did not make:", ""]
        lines += [f"- {_step(step, fault)}" for step in fault.elsewhere]
    if fault.links:
        lines += ["", f"Seen by others: {', '.join(f'<{link}>' for link in fault.links)}"]
    return "\n".join(lines) + "\n"


def _prose(text: str, fault: Fault) -> str:
    return _escaped(filled(text, names_for(fault, {}, command=False), command=False))


def _step(step: str, fault: Fault) -> str:
    text = filled(step, names_for(fault, {}, command=True), command=False)
    return _code(text) if _COMMAND.match(step) else _escaped(text)


def _code(text: str) -> str:
    """`text` as a code span, whatever backticks are in it."""
    flat = " ".join(text.split())
    fence = "``" if "`" in flat else "`"
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{fence}{pad}{flat}{pad}{fence}"


def _escaped(text: str) -> str:
    return re.sub(r"([<>*_\[\]|])", r"\\\1", text)


def main(arguments: list[str]) -> int:
    """Write the page to the file named; returns the exit code."""
    if len(arguments) != 1:
        print("usage: python -m kai_lab_pipeline.report.known_issues FILE", file=sys.stderr)
        return 2
    Path(arguments[0]).write_text(render_known_issues(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
