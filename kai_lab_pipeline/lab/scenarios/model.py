"""What a scenario is: one fault to rehearse, what a person sees of it, and what the lab has to make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scenario:
    """One fault that people meet, as the rehearsal shows it."""

    name: str
    title: str
    rehearses: str
    """The fault as people meet it, with the component and its versions."""
    sees: str
    """What a person sees who does the lab by hand."""
    why: str
    """Why exactly these checks turn red."""
    cause: str
    """Id of the fault in `lab.diagnosis` that has to be named first, and alone."""
    red: tuple[str, ...] = ()
    """Checks (``asset.check``) that are broken."""
    stops: str = ""
    """The asset whose step cannot be done at all; empty where every step can."""
    faults: Mapping[str, Any] = field(default_factory=dict)
    """Faults of the simulated components, by name."""
    settings: Mapping[tuple[str, ...], Any] = field(default_factory=dict)
    """Settings of lab.toml, by path, in place of the project's own."""
