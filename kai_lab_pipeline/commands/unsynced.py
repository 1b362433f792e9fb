"""`--select unsynced`: what an edit made unsynced, with everything that may follow from it, in one run."""

from __future__ import annotations

from collections.abc import Sequence

from kai_lab_pipeline.commands.common import dagster_instance
from kai_lab_pipeline.lab.spec import ASSETS
from kai_lab_pipeline.settings import Settings

WORD = "unsynced"


def with_unsynced(settings: Settings, select: Sequence[str]) -> list[str]:
    """The names on the command line, with the word `unsynced` replaced by the assets that are not in sync.

    What is only behind such an asset is among them: it is looked at in the same run, and left alone where nothing
    changed for it.
    """
    if WORD not in select:
        return list(select)
    from kai_lab_pipeline.assets.group import Group
    from kai_lab_pipeline.automation.staleness import Sync, sync_states
    from kai_lab_pipeline.definitions import build_definitions

    with dagster_instance(settings) as instance:
        states = sync_states(instance, build_definitions(settings), Group("lab", settings))
    found = [name for name in ASSETS if states[name].sync is not Sync.IN_SYNC]
    return [*(name for name in select if name != WORD), *found]
