"""The report for CI systems: JUnit XML, one suite per claim and one case per check."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree as ET

from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline.report.model import CheckRow, ClaimRow, Report

_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>'


def render_junit(report: Report) -> str:
    """JUnit XML whose first line names the backend.

    A broken check is a failure. An excused one, one beyond the boundary, and one not evaluated are skipped, each with a
    message that tells which of the three it is: none of them may look like a pass or like a fault of the lab.
    """
    root = ET.Element("testsuites", {"name": f"{report.origin.label}, lab {report.lab}", **_totals(report.checks)})
    for claim in report.claims:
        root.append(_suite(report, claim))
    ET.indent(root, " ")
    return _DECLARATION + ET.tostring(root, encoding="unicode") + "\n"


def _totals(checks: tuple[CheckRow, ...]) -> Mapping[str, str]:
    failures = sum(_fails(check) for check in checks)
    skipped = sum(not _fails(check) and check.verdict is not Verdict.HELD for check in checks)
    return {"tests": str(len(checks)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}


def _fails(check: CheckRow) -> bool:
    return check.verdict is Verdict.BROKEN and check.excused is None


def _suite(report: Report, claim: ClaimRow) -> ET.Element:
    suite = ET.Element(
        "testsuite",
        {
            "name": f"claim {claim.id}: {claim.statement}",
            **_totals(claim.checks),
            "timestamp": report.generated_at.isoformat(timespec="seconds"),
        },
    )
    properties = ET.SubElement(suite, "properties")
    values = [
        ("backend", report.origin.backend),
        ("simulated", str(report.origin.simulated).lower()),
        ("boundary", report.boundary.value),
        *((f"version.{name}", version) for name, version in report.versions),
    ]
    for name, value in values:
        ET.SubElement(properties, "property", {"name": name, "value": value})
    for check in claim.checks:
        suite.append(_case(check))
    return suite


def _case(check: CheckRow) -> ET.Element:
    case = ET.Element("testcase", {"classname": check.asset, "name": check.check})
    if _fails(check):
        failure = ET.SubElement(case, "failure", {"type": "broken", "message": check.message})
        failure.text = _details(check)
    elif check.verdict is not Verdict.HELD:
        reason = check.label
        if check.excused is not None:
            reason = f"{check.label} until {check.excused.until} ({check.excused.reason})"
        ET.SubElement(case, "skipped", {"message": f"{reason}: {check.message}"})
    if check.excerpt:
        ET.SubElement(case, "system-out").text = "\n".join(check.excerpt)
    return case


def _details(check: CheckRow) -> str:
    by_hand = "\n".join(check.commands)
    return f"expected: {check.expected}\nobserved: {check.observed}\nby hand:\n{by_hand}"
