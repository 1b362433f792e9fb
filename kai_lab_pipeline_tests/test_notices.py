"""A regression is told once by each channel, by whichever night: the command's or the scheduled one."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kai_lab_pipeline.definitions import build_definitions
from kai_lab_pipeline.lab.spec import CLAIMS
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline.lab.version_matrix import Matrix, build_matrix
from kai_lab_pipeline.lab.version_sets import version_set
from kai_lab_pipeline.settings import Settings, load_settings
from kai_lab_pipeline.workbench.nights import Nights, StoredSet
from kai_lab_pipeline.workbench.notices import COMMAND, WEBHOOK, Notices, send_notices
from kai_lab_pipeline_tests.lab_project import CHECKOUT
from kai_lab_pipeline_tests.test_nights import record


class Address:
    """A webhook on loopback that answers with `status` and keeps what it got."""

    def __init__(self) -> None:
        self.status = 200
        self.got: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook?token=s3cret"


@pytest.fixture
def address() -> Iterator[Address]:
    made = Address()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join(30)


def project(folder: Path, address: Address, *, command_fails: Path | None = None) -> Settings:
    """A project that tells by both channels; its command appends to `told.txt`, and fails while a file is there."""
    folder.mkdir(exist_ok=True)
    shutil.copy(CHECKOUT / "lab.toml", folder)
    shutil.copytree(CHECKOUT / "manifests", folder / "manifests")
    script = "import pathlib, sys; sys.exit(3) if pathlib.Path(sys.argv[1]).exists() else None; "
    script += "f = open(sys.argv[2], 'a'); f.write(sys.stdin.read() + '\\n'); f.close()"
    command = [sys.executable, "-c", script, str(command_fails or folder / "none"), str(folder / "told.txt")]
    toml = folder / "lab.toml"
    said = f"notify_command = {json.dumps(command)}\nnotify_url = {json.dumps(address.url)}\n"
    toml.write_text(toml.read_text(encoding="utf-8").replace("[nightly]\n", f"[nightly]\n{said}"), encoding="utf-8")
    return load_settings(folder, environ={})


def regressed(settings: Settings) -> tuple[Nights, Matrix]:
    """A store in which claim 1 to 8 held with the pinned versions, and one version breaks them."""
    nights = Nights(settings)
    base = StoredSet(version_set(settings.version_set(), {}), {}, {})
    moved = StoredSet(version_set(settings.version_set(), {"kai_scheduler": "v0.18.2"}), {}, {})
    for stored, verdict in ((base, Verdict.HELD), (moved, Verdict.BROKEN)):
        nights.save(stored)
        nights.add_record(record(stored, verdict))
        nights.add_record(record(stored, verdict))
    return nights, build_matrix(nights.records(), settings.version_set())


def lines(settings: Settings) -> list[str]:
    file = settings.root / "told.txt"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def test_each_channel_tells_a_regression_once(tmp_path: Path, address: Address) -> None:
    settings = project(tmp_path / "p", address)
    nights, matrix = regressed(settings)
    wanted = {one.id for one in matrix.regressions()}
    assert wanted
    send_notices(settings, nights, matrix)
    again = send_notices(settings, nights, matrix)
    assert (again.sent, again.failed) == ((), ())
    assert sorted(one["id"] for one in address.got) == sorted(wanted)
    assert len(lines(settings)) == len(wanted)
    assert nights.told(COMMAND) == nights.told(WEBHOOK) == wanted


@pytest.mark.parametrize("failing", [COMMAND, WEBHOOK])
def test_a_failing_channel_is_tried_again_without_the_other_one(tmp_path: Path, address: Address, failing: str) -> None:
    broken = tmp_path / "broken"
    settings = project(tmp_path / "p", address, command_fails=broken)
    nights, matrix = regressed(settings)
    count = len(matrix.regressions())
    if failing == COMMAND:
        broken.touch()
    else:
        address.status = 503
    first = send_notices(settings, nights, matrix)
    assert len(first.failed) == len(first.sent) == count
    assert all(f"could not be told by {failing}, which is tried again" in line for line in first.failed)
    assert "s3cret" not in first.text(), "an address may hold a secret"
    broken.unlink(missing_ok=True)
    address.status = 200
    got, said = len(address.got), len(lines(settings))
    second = send_notices(settings, nights, matrix)
    assert (len(second.sent), second.failed) == (count, ())
    assert len(lines(settings)) - said == (count if failing == COMMAND else 0)
    assert len(address.got) - got == (count if failing == WEBHOOK else 0)


def test_the_asset_that_a_scheduled_night_makes_tells_too(tmp_path: Path, address: Address) -> None:
    settings = project(tmp_path / "p", address)
    _, matrix = regressed(settings)
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        job = build_definitions(settings).resolve_job_def("write_matrix")
        for _ in range(2):
            result = job.execute_in_process(instance=instance, run_config=quiet)
            assert result.success
    assert sorted(one["id"] for one in address.got) == sorted(one.id for one in matrix.regressions())
    shown = result.get_asset_materialization_events()[0].step_materialization_data.materialization.metadata
    assert shown["notices"].value == "nothing to tell", "the second time"


def test_what_may_be_chance_is_told_when_another_attempt_says_the_same(tmp_path: Path, address: Address) -> None:
    settings = project(tmp_path / "p", address)
    nights = Nights(settings)
    base, moved = (
        StoredSet(version_set(settings.version_set(), changes), {}, {})
        for changes in ({}, {"kai_scheduler": "v0.18.2"})
    )
    nights.add_record(record(base))

    def send() -> Notices:
        return send_notices(settings, nights, build_matrix(nights.records(), settings.version_set()))

    nights.add_record(record(moved, Verdict.BROKEN))
    once = send()
    assert (once.sent, once.failed, address.got, lines(settings)) == ((), (), [], [])
    assert "broke in one attempt: told by webhook when it was run again" in once.text()
    nights.add_record(record(moved))
    assert send() == Notices(), "it was chance: nobody is woken for it"
    nights.add_record(record(moved, Verdict.BROKEN))
    nights.add_record(record(moved, Verdict.BROKEN))
    assert len(send().sent) == 2 * len(CLAIMS)


def test_two_that_send_at_the_same_time_do_not_send_twice(tmp_path: Path, address: Address) -> None:
    settings = project(tmp_path / "p", address)
    nights, matrix = regressed(settings)
    threads = [threading.Thread(target=send_notices, args=(settings, Nights(settings), matrix)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(address.got) == len(lines(settings)) == len(matrix.regressions())
    assert nights.told(COMMAND) == nights.told(WEBHOOK)
