"""The charts as the rehearsal knows them: templates of the objects that a release or an operator makes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jinja2
import yaml

Object = dict[str, Any]


@functools.lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    # YAML for the API server, not HTML for a browser: escaping would corrupt it.
    return jinja2.Environment(
        loader=loader, undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True
    )


def render(template: str, **context: Any) -> list[Object]:
    """The objects of a template, in its order. Raises jinja2.UndefinedError for a name the context lacks."""
    text = _environment().get_template(template).render(**context)
    return [document for document in yaml.load_all(text, Loader=_Loader) if document]


def kai_crds() -> list[Object]:
    return [document for document in yaml.load_all(_read("kai-crds.yaml"), Loader=_Loader) if document]


def _read(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
