"""The sensor that has a running UI read an edited project again, so that "Unsynced" is about the files as they are.

Dagster reads definitions once and takes an edit for none until somebody presses "Reload definitions".
"""

import json
import os
import threading
import urllib.request
from collections.abc import Callable

import dagster as dg

from kai_lab_pipeline.assets.group import digest
from kai_lab_pipeline.automation.unfinished import close_unfinished
from kai_lab_pipeline.backends.kind_owner import made_from
from kai_lab_pipeline.clients.local_chart import chart_content
from kai_lab_pipeline.clients.manifests import CANARY
from kai_lab_pipeline.settings import Settings, load_settings
from kai_lab_pipeline.workbench.apply import MANIFESTS, file_text
from kai_lab_pipeline.workbench.mendable import MENDABLE, as_lab_error

LOOK_S = 5
"""Seconds between two looks at the project's files."""
LOCATION = "kai_lab_pipeline"
PORT = "KAI_LAB_PORT"
"""Environment variable in which `kai-lab dev` names the port of its UI."""
_AT_WORK = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
_RELOAD = "mutation($name: String!) { reloadRepositoryLocation(repositoryLocationName: $name) { __typename } }"
_ANSWER_S = 120.0


def described(settings: Settings) -> str:
    """A digest of all that the definitions are read from: the settings, manifests, charts and files of this machine."""
    files = [*MANIFESTS.values(), CANARY, settings.manifests.device_plugin.file]
    charts = settings.charts.by_component().values()
    return digest(
        settings.model_dump_json(),
        [file_text(settings, name) for name in files],
        [chart_content(settings.root, chart) for chart in charts],
        made_from(settings),
    )


def reload_on_edit_sensor(settings: Settings, build: Callable[[Settings], dg.Definitions]) -> dg.SensorDefinition:
    """Asks the UI of `kai-lab dev` to read the definitions again when the files they were read from have changed.

    `build` makes definitions of settings: an edit of which none can be made is told, and the ones there are stay.
    """
    read = described(settings)

    @dg.sensor(
        name="reload_on_edit",
        description="An edit of lab.toml, a manifest or a local chart shows as Unsynced within seconds.",
        minimum_interval_seconds=LOOK_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def reload_on_edit(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        try:
            edited = load_settings(settings.root)
            if described(edited) == read:
                return dg.SkipReason("the project is as it was read")
            build(edited)
        except MENDABLE as error:
            return dg.SkipReason(f"the project was edited, and cannot be read: {as_lab_error(error).text()}")
        port = os.environ.get(PORT)
        if port is None:
            return dg.SkipReason(
                'the project was edited, and this UI is not of kai-lab dev: press "Reload definitions"'
            )
        close_unfinished(context.instance)
        if context.instance.get_runs_count(dg.RunsFilter(statuses=_AT_WORK)):
            return dg.SkipReason("the project was edited: it is read again when the run that is at work has ended")
        # Not waited for: with the new definitions the process that answers this tick ends.
        threading.Thread(target=_ask, args=(port,), name="reload-definitions", daemon=True).start()
        return dg.SkipReason("the project was edited: the definitions are read again")

    return reload_on_edit


def _ask(port: str) -> None:
    body = json.dumps({"query": _RELOAD, "variables": {"name": LOCATION}}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/graphql", body, headers={"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy can reach this machine's loopback
    try:
        with opener.open(request, timeout=_ANSWER_S) as answer:
            answer.read()
    except OSError:
        return  # the UI is ending, or not up yet: the next tick sees the same edit
