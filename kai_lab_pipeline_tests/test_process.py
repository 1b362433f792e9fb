"""Commands end with whoever asked for them, say what they said, and give away no secret."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from kai_lab_pipeline.clients import process
from kai_lab_pipeline.clients.process import Toolbox, start_time
from kai_lab_pipeline.clients.redaction import Lines, command_line, redact
from kai_lab_pipeline.clients.tools import Hint, Outcome, ToolError, ToolMissing, ToolTimeout
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline_tests.stubs.workplace import PATIENCE_S, Alive

WAITS = str(Path(__file__).parent / "stubs" / "waits.py")


@pytest.fixture
def alive(tmp_path: Path) -> Iterator[Alive]:
    fifo = Alive(tmp_path / "alive")
    yield fifo
    fifo.close()


@pytest.fixture
def toolbox(tmp_path: Path) -> Toolbox:
    return Toolbox(tmp_path / "commands", tmp_path / "transcripts")


def test_output_exit_code_and_input_come_back(toolbox: Toolbox) -> None:
    lines: list[str] = []
    script = (
        "import sys; data = sys.stdin.read(); print(len(data)); print('\\x1b[32mred', file=sys.stderr); sys.exit(3)"
    )
    outcome = toolbox.run([sys.executable, "-c", script], deadline_s=PATIENCE_S, stdin=b"x" * 300_000, log=lines.append)
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (3, "300000\n", "red\n")
    assert sorted(lines) == ["300000", "red"]
    assert list(toolbox.registry.iterdir()) == []


def test_environment_is_changed_for_the_command_only(toolbox: Toolbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELM_NAMESPACE", "theirs")
    script = "import os; print(os.environ.get('HELM_NAMESPACE'), os.environ['OURS'])"
    outcome = toolbox.run(
        [sys.executable, "-c", script], deadline_s=PATIENCE_S, env={"HELM_NAMESPACE": None, "OURS": "1"}
    )
    assert outcome.stdout == "None 1\n"
    assert os.environ["HELM_NAMESPACE"] == "theirs"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("helm registry login -u lab --password s3cret x", "s3cret"),
        ("--password=s3cret", "s3cret"),
        ("Authorization: Bearer abc.def-123456", "abc.def"),
        ("{'Authorization': 'Basic dXNlcjpwYXNz'}", "dXNl"),
        ("GET https://user:hunter2@registry.example/v2/", "hunter2"),
        ("git clone https://ghp_token123@example.com/x.git", "ghp_token123"),
        ('"identitytoken": "eyJhbGciOi"', "eyJ"),
        ("client-key-data: LS0tLS1CRUdJTg==", "LS0t"),
        ("got bearer eyJhbGciOiJSUzI1NiIs", "eyJ"),
        ('{"auths": {"r.io": {"auth": "dXNlcjpwdw=="}}}', "dXNl"),
        ("--set-string controller.apiKey=abc123", "abc123"),
        ("AWS_SECRET_ACCESS_KEY=zzz", "zzz"),
        ("--from-literal=secretKey=zzz", "zzz"),
        ("GET https://:tok@host/v2/", "tok"),
        ('"password": "two zebras", "user": "me"', "zebra"),
        ('"password": "a\\"b cc"', "cc"),
        (r'"{\"password\": \"two zebras\"}"', "zebra"),
        ("password: 'two zebras'", "zebra"),
        ("--password 'two zebras'", "zebra"),
        (r"--set-string a.password=x\,yy", "yy"),
        ('--password "s3cret of a line that was cut', "s3cret"),
        ("--registry-token 's3cret", "s3cret"),
        ("--token it's3cret", "s3cret"),
        ("-----BEGIN RSA PRIVATE KEY-----\\nMIIE\\n-----END RSA PRIVATE KEY-----", "MIIE"),
    ],
)
def test_secrets_are_taken_out(text: str, secret: str) -> None:
    assert secret not in redact(text)
    assert "***" in redact(text)


def test_harmless_text_stays() -> None:
    for text in (
        'Get "https://127.0.0.1:6999/version": dial tcp 127.0.0.1:6999: connect: connection refused',
        'secrets "pull" not found; imagePullSecrets: [x]; client-certificate-data: LS0t',
    ):
        assert redact(text) == text


def test_a_value_is_hidden_to_its_end_on_a_command_line() -> None:
    arguments = ["helm", "--set-string", "registry.password=two words, 'quoted'", "--set", "a=1", "--password", "x y"]
    assert command_line(arguments) == "helm --set-string 'registry.password=***' --set a=1 --password ***"


KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEbody1\nMIIEbody2\n-----END RSA PRIVATE KEY-----\n"


def test_a_private_key_is_hidden_in_the_log_too(toolbox: Toolbox) -> None:
    lines: list[str] = []
    script = f"print('before'); print({KEY!r}, end=''); print('after')"
    outcome = toolbox.run([sys.executable, "-c", script], deadline_s=PATIENCE_S, log=lines.append)
    assert lines == ["before", "-----BEGIN RSA PRIVATE KEY-----***", "-----END RSA PRIVATE KEY-----", "after"]
    assert outcome.last_lines(2) == "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----\nafter"
    assert "MIIE" not in Outcome(("x",), 1, KEY.partition("-----END")[0]).last_lines(1)


def test_a_key_without_an_end_hides_no_more_than_a_key() -> None:
    stream = Lines()
    shown = [stream.redact(line) for line in ("#1 -----BEGIN PRIVATE KEY-----", *["x"] * 1000)]
    assert shown[:2] == ["#1 -----BEGIN PRIVATE KEY-----***", ""]
    assert shown[-1] == "x"


def test_transcript_is_whole_and_without_secrets(toolbox: Toolbox) -> None:
    script = "import sys; print('token: abcdefgh'); print('done', file=sys.stderr)"
    toolbox.run([sys.executable, "-c", "print('asked')"], deadline_s=PATIENCE_S)  # a question leaves no file
    toolbox.run([sys.executable, "-c", script, "--password", "hunter2"], deadline_s=PATIENCE_S, log=print)
    assert toolbox.transcripts is not None
    (file,) = toolbox.transcripts.iterdir()
    text = file.read_text()
    assert "done" in text
    assert "exit code 0" in text
    assert "hunter2" not in text
    assert "abcdefgh" not in text


@pytest.mark.parametrize(("tool", "advice"), [("kind", "kind.sigs.k8s.io"), ("no-such-tool", "Install no-such-tool")])
def test_a_missing_tool_says_how_to_get_it(
    toolbox: Toolbox, monkeypatch: pytest.MonkeyPatch, tool: str, advice: str
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ToolMissing, match=f"{tool} is not on the PATH") as caught:
        toolbox.run([tool, "version"], deadline_s=1)
    assert advice in caught.value.next_step
    assert caught.value.exit_code == 3


def test_the_deadline_ends_the_whole_group(toolbox: Toolbox, alive: Alive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    with pytest.raises(ToolTimeout, match="did not end within") as caught:
        toolbox.run([sys.executable, WAITS, str(alive.path), "ignore-term"], deadline_s=1.0)
    alive.wait_gone()
    assert "hunter2" not in caught.value.text()
    assert list(toolbox.registry.iterdir()) == []


class Interrupted(BaseException):
    """Like the exception that a cancelled run raises in its step."""


def test_an_interrupt_ends_the_whole_group(toolbox: Toolbox, alive: Alive) -> None:
    def interrupt(line: str) -> None:
        raise Interrupted(line)

    with pytest.raises(Interrupted):
        toolbox.run([sys.executable, WAITS, str(alive.path)], deadline_s=PATIENCE_S, log=interrupt)
    alive.wait_gone()
    assert toolbox.transcripts is not None
    (file,) = toolbox.transcripts.iterdir()
    assert "interrupted" in file.read_text()


def test_end_all_stops_other_threads_and_refuses_new_commands(toolbox: Toolbox, alive: Alive) -> None:
    errors: list[LabError] = []

    def work() -> None:
        try:
            toolbox.run([sys.executable, WAITS, str(alive.path)], deadline_s=PATIENCE_S)
        except LabError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    alive.wait_up()
    toolbox.end_all()
    thread.join(PATIENCE_S)
    alive.wait_gone()
    assert [error.what for error in errors] == ["Stopped while it was running"]
    with pytest.raises(LabError, match="Stopped before it began"):
        toolbox.run([sys.executable, "-c", ""], deadline_s=1)
    toolbox.reopen()
    assert toolbox.run([sys.executable, "-c", ""], deadline_s=PATIENCE_S).exit_code == 0


def test_end_all_stops_a_command_that_is_just_being_started(
    toolbox: Toolbox, alive: Alive, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[LabError] = []
    registered = Toolbox._registered

    def late(box: Toolbox, process: Any, command: Any, mark: str) -> AbstractContextManager[None]:
        alive.wait_up()
        toolbox.end_all()
        return registered(box, process, command, mark)

    def work() -> None:
        try:
            toolbox.run([sys.executable, WAITS, str(alive.path)], deadline_s=600)
        except LabError as error:
            errors.append(error)

    monkeypatch.setattr(Toolbox, "_registered", late)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert [error.what for error in errors] == ["Stopped while it was running"]
    alive.wait_gone()


def _worker(toolbox: Toolbox, alive: Alive) -> subprocess.Popen[bytes]:
    """Another process that runs the waiting stub."""
    code = "import sys; from pathlib import Path; from kai_lab_pipeline.clients.process import Toolbox; "
    code += "Toolbox(Path(sys.argv[1])).run([sys.executable, *sys.argv[2:]], deadline_s=600)"
    worker = subprocess.Popen([sys.executable, "-c", code, str(toolbox.registry), WAITS, str(alive.path)])
    alive.wait_up()
    return worker


def test_killing_the_parent_leaves_no_child(toolbox: Toolbox, alive: Alive) -> None:
    worker = _worker(toolbox, alive)
    worker.kill()
    worker.wait(PATIENCE_S)
    alive.wait_gone()


def test_a_cancelled_parent_ends_its_command(toolbox: Toolbox, alive: Alive) -> None:
    worker = _worker(toolbox, alive)
    worker.send_signal(signal.SIGTERM)
    worker.wait(PATIENCE_S)
    alive.wait_gone()


def test_what_a_killed_run_left_is_ended_at_the_next_start(toolbox: Toolbox, alive: Alive) -> None:
    worker = _worker(toolbox, alive)
    (file,) = toolbox.registry.glob("*.json")
    leader = json.loads(file.read_text())["pid"]
    worker.send_signal(signal.SIGSTOP)  # so that it cannot clean up when its watchdog goes
    os.kill(leader, signal.SIGKILL)
    worker.kill()
    worker.wait(PATIENCE_S)
    lines: list[str] = []
    assert toolbox.end_leftovers(lines.append) == 1
    alive.wait_gone()
    assert "waits.py" in lines[0]
    assert list(toolbox.registry.iterdir()) == []
    assert toolbox.end_leftovers(lines.append) == 0


def test_a_living_worker_keeps_its_command(toolbox: Toolbox, alive: Alive) -> None:
    worker = _worker(toolbox, alive)
    try:
        assert toolbox.end_leftovers(lambda line: None) == 0
        assert worker.poll() is None
        assert len(list(toolbox.registry.iterdir())) == 1
    finally:
        worker.kill()
        worker.wait(PATIENCE_S)
    alive.wait_gone()


def test_another_programs_pid_is_never_signalled(toolbox: Toolbox, alive: Alive) -> None:
    stranger = subprocess.Popen(
        [sys.executable, WAITS, str(alive.path)], start_new_session=True, stdout=subprocess.DEVNULL
    )
    try:
        alive.wait_up()
        entry = {"pid": stranger.pid, "started": "1", "owner": 2**22 + 1, "owner_started": "1", "mark": "0" * 32}
        toolbox.registry.mkdir()
        (toolbox.registry / "old.json").write_text(json.dumps(entry | {"command": "kind create cluster"}))
        (toolbox.registry / "broken.json").write_text("{")
        assert toolbox.end_leftovers(lambda line: None) == 0
        assert stranger.poll() is None
        assert list(toolbox.registry.iterdir()) == []
    finally:
        os.killpg(stranger.pid, signal.SIGKILL)
        stranger.wait(PATIENCE_S)
    alive.wait_gone()


def test_start_time_tells_processes_apart() -> None:
    assert start_time(os.getpid()) == start_time(os.getpid())
    assert start_time(2**22 + 1) is None


def test_a_full_or_unwritable_state_folder_is_said(tmp_path: Path, alive: Alive) -> None:
    (tmp_path / "file").write_text("")
    toolbox = Toolbox(tmp_path / "file" / "commands")
    with pytest.raises(LabError, match="state folder cannot be written") as caught:
        toolbox.run([sys.executable, WAITS, str(alive.path)], deadline_s=PATIENCE_S)
    assert "lab.state_dir" in caught.value.next_step
    assert caught.value.exit_code == 3


def test_tool_error_names_command_cause_and_remedy() -> None:
    hints = (Hint(r"port (?P<port>\d+) is taken", "port {port} is taken", "free {port}"),)
    error = ToolError(Outcome(("kind", "create", "--token", "abc"), 125, stderr="x\nport 6443 is taken"), "No", hints)
    assert error.text().splitlines() == [
        "No: port 6443 is taken (exit code 125)",
        "Where: kind create --token ***",
        "Last seen: x",
        "port 6443 is taken",
        "Next: free 6443",
    ]
    assert (error.exit_code_of_tool, error.transient, error.exit_code) == (125, False, 3)


def test_tool_error_without_a_known_cause_still_tells_all() -> None:
    error = ToolError(Outcome(("helm", "list"), 7), "No list")
    assert error.what == "No list (exit code 7)"
    assert "nothing but exit code 7" in error.text()
    assert not error.transient
