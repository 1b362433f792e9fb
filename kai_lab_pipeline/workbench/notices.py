"""Notices of regressions to the command and the address that lab.toml names: each once, whoever ran the night."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kai_lab_pipeline.lab.attribution import subjects
from kai_lab_pipeline.lab.due import unconfirmed
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.lab.version_matrix import Matrix, Regression
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.nights import Nights

TIMEOUT_S = 20.0
"""Longest time that a command or an address may take over one notice, seconds."""
COMMAND, WEBHOOK = "command", "webhook"

Channel = Callable[[str, str], None]
"""Sends the id of a regression and its text. Raises LabError."""


@dataclass(frozen=True)
class Notices:
    """What was sent this time, as sentences."""

    sent: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    """Sent again the next time, by this channel alone."""
    kept_back: tuple[str, ...] = ()
    """Broken in one attempt: sent when another one says the same."""

    def text(self) -> str:
        return "\n".join((*self.sent, *self.failed, *self.kept_back)) or "nothing to tell"


def send_notices(settings: Settings, nights: Nights, matrix: Matrix) -> Notices:
    """Send each regression once by each channel that is set up; what a channel did not take is left for the next time.

    One that may still be chance waits until it was run again. Two that send at the same time wait for each other, so
    that none is sent twice.
    """
    channels = _channels(settings)
    sent, failed, kept_back = [], [], []
    shaky = {(row.version_set.key, row.backend): unconfirmed(row, matrix.rows) for row in matrix.rows}
    with nights.telling():
        for name, send in channels.items():
            told = nights.told(name)
            for regression in matrix.regressions():
                row = regression.row
                if regression.id in told:
                    continue
                if regression.cell in shaky[row.version_set.key, row.backend]:
                    kept_back.append(f"{regression.id} broke in one attempt: told by {name} when it was run again")
                    continue
                try:
                    send(regression.id, _text(regression))
                except LabError as error:
                    failed.append(f"{regression.id} could not be told by {name}, which is tried again: {error.text()}")
                else:
                    nights.tell(regression.id, name)
                    sent.append(f"{regression.id} told by {name}")
    return Notices(tuple(sent), tuple(failed), tuple(kept_back))


def _text(regression: Regression) -> str:
    cell = regression.cell
    return f"{regression.row.version_set.key}, {subjects([cell])}: {cell.sentence} {cell.message}".rstrip()


def _channels(settings: Settings) -> Mapping[str, Channel]:
    command, url = settings.nightly.notify_command, settings.nightly.notify_url
    channels: dict[str, Channel] = {}
    if command:
        channels[COMMAND] = lambda _, text: _run(command, text)
    if url:
        channels[WEBHOOK] = lambda identity, text: _post(url, identity, text)
    return channels


def _run(command: tuple[str, ...], text: str) -> None:
    try:
        done = subprocess.run(
            list(command), input=text, text=True, errors="replace", capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        seen = f"not done after {TIMEOUT_S:g} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise LabError("The notice's command could not be run", where=command[0], seen=seen) from error
    if done.returncode != 0:
        seen = done.stderr.strip()[-300:] or f"exit code {done.returncode}"
        raise LabError("The notice's command failed", where=command[0], seen=seen)


def _post(url: str, identity: str, text: str) -> None:
    import httpx

    try:
        httpx.post(url, json={"id": identity, "text": text}, timeout=TIMEOUT_S).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        # Neither the address nor the error's own text, which has it: addresses of webhooks are secrets.
        answer = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None
        seen = f"answered {answer}" if answer else type(error).__name__
        raise LabError("The notice's address did not take it", seen=seen) from None
