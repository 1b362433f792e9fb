"""Backends: where the lab's cluster comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kai_lab_pipeline.settings import Settings

if TYPE_CHECKING:
    from kai_lab_pipeline.backends.base import Backend


def make_backend(settings: Settings) -> Backend:
    """The backend that the settings name; nothing is started or touched."""
    # Imported here: each backend brings its own clients, and only one is needed.
    if settings.lab.backend == "rehearsal":
        from kai_lab_pipeline.backends.rehearsal import RehearsalBackend

        return RehearsalBackend(settings)
    if settings.lab.backend == "kind":
        from kai_lab_pipeline.backends.kind import KindBackend

        return KindBackend(settings)
    from kai_lab_pipeline.backends.context import ContextBackend

    return ContextBackend(settings)
