"""Random and half-broken lab.toml and environment: valid settings or one sentence about them, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kai_lab_pipeline.settings import _VARIABLES, SettingsError, load_settings
from kai_lab_pipeline_tests.lab_project import CHECKOUT

TOML = (CHECKOUT / "lab.toml").read_text(encoding="utf-8")
VALUES = (
    *(
        "",
        " ",
        "x",
        "0",
        "-1",
        "1e999",
        "nan",
        "true",
        "none",
        "null",
        "[]",
        "{}",
        "[1]",
        "kind",
        "context",
        "rehearsal",
    ),
    *('{"docker.io": 1}', '{"": ""}', '{"a": {"b": []}}', '{"docker.io": "http://127.0.0.1:5000"}', "[" * 3000),
    *("../..", "/", "~", "a" * 5000, "ä\u202e\x1b[0m", "\ud800", "v0.17.0", "9" * 400, "1.1.0-chart", "time-slicing"),
)
LITERALS = (
    *("0", "-1", "1e999", "nan", "-inf", "true", '""', '"x"', "[]", "{}", "[[1]]", "{a = 1}", "2027-01-31", "07:32:00"),
    *(
        "2027-01-31T00:00:00Z",
        "9" * 30,
        '"' + "y" * 3000 + '"',
        "'''\n'''",
        '["a", 1]',
        '"\\u0000"',
        "0x7fffffffffffffffff",
        "[" * 3000,
    ),
)


def broken_toml(dice: random.Random) -> bytes:
    """The shipped file with some lines changed, doubled, dropped or moved, some values replaced, or bytes damaged."""
    lines = TOML.splitlines()
    for _ in range(dice.randint(1, 6)):
        at = dice.randrange(len(lines))
        key, equals, _ = lines[at].partition("=")
        lines[at] = {
            0: f"{key}= {dice.choice(LITERALS)}" if equals else f"{dice.choice('abc')} = {dice.choice(LITERALS)}",
            1: lines[at] + "\n" + lines[dice.randrange(len(lines))],
            2: "",
            3: f"[{dice.choice(('rehearsal.faults', 'lab', 'mirrors', 'x.y', 'charts.kai_scheduler.values'))}]",
            4: lines[at][: dice.randint(0, len(lines[at]))],
            5: f"[[excuses]]\n{key or 'check'} = {dice.choice(LITERALS)}",
        }[dice.randrange(6)]
    data = bytearray("\n".join(lines).encode())
    for _ in range(dice.choice((0, 0, 0, 3))):
        data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data)


@pytest.mark.parametrize("seed", range(12))
def test_any_settings_are_valid_or_one_sentence_says_what_is_wrong(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    refused = 0
    for _ in range(40):
        (tmp_path / "lab.toml").write_bytes(broken_toml(dice) if dice.random() < 0.7 else TOML.encode())
        environ = {name: dice.choice(VALUES) for name in _VARIABLES if dice.random() < 0.1}
        if dice.random() < 0.05:
            environ[f"KAI_LAB_{dice.choice(('X', 'BACKEND_', 'É'))}"] = "1"
        try:
            settings = load_settings(tmp_path, environ=environ)
            # What is valid can be used: these are asked in every run.
            settings.expectations()
            settings.excuses_on(settings.version_set())
            assert settings.deadline_s("kai_release") > 0
        except SettingsError as error:
            refused += 1
            said = str(error)
            assert said.strip()
            assert "Traceback" not in said
            assert any(name in said for name in (str(tmp_path / "lab.toml"), *environ)), said
    assert 0 < refused < 40
