"""The report as one self-contained HTML page: nothing is loaded, nothing is executed, everything is escaped."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

from kai_lab_pipeline.report.model import Report
from kai_lab_pipeline.report.render_markdown import counts_text, duration_text, time_scale_text

if TYPE_CHECKING:
    from jinja2 import Template

_PAGE = "report.html.j2"
_STYLE = "report.css.j2"


def render_html(report: Report) -> str:
    """One HTML page whose first line names the backend.

    Its content security policy allows the page's own style sheet, by hash, and nothing else.
    """
    from markupsafe import Markup

    page, style = _templates()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    longest = max((step.duration_s or 0.0 for step in report.steps), default=0.0)
    return page.render(
        report=report,
        style=Markup(style),  # ours: the only text on the page that is not escaped
        style_hash=f"sha256-{digest}",
        counts=counts_text(report),
        time_scale=time_scale_text(report),
        evidence_href=quote(report.evidence_folder, safe="/") if report.evidence_folder else None,
        duration=duration_text,
        share=lambda seconds: round(100 * seconds / longest, 1) if seconds and longest else 0,
    )


@lru_cache(maxsize=1)
def _templates() -> tuple[Template, str]:
    """The page's template and its style sheet."""
    # Imported here because the command line builds its help from modules that import this one.
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("kai_lab_pipeline.report", "templates"),
        autoescape=select_autoescape(enabled_extensions=("html.j2",), default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(_PAGE), environment.get_template(_STYLE).render()
