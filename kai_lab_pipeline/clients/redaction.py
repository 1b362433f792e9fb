"""Secrets taken out of commands, output and errors before anybody sees them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_NAME = (
    r"(?:password|passwd|passphrase|token|secret|api[-_]?key|client-key-data|"
    r"(?:(?:secret|access|private)[-_]?){1,2}key)"
)
_IS = r"\\?['\"]?\s*[:=]\s*"
_WORD = r"(?:'[^']*'|\"(?:\\.|[^\"\\])*\"|\S)+"
"""One word of a shell, with what is quoted in it; a quote without its end is a character like others."""
_SECRETS = (
    re.compile(rf"(?i)(--?(?:{_NAME}|registry-token|kube-token)[= ]){_WORD}"),
    re.compile(r"(?i)(\bauthorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic)?\s*)[^\s'\",]+"),
    re.compile(rf'(?i)({_NAME}{_IS}\\")(?:(?!\\").)+'),
    re.compile(rf'(?i)({_NAME}{_IS}")(?:\\.|[^"\\\n])+'),
    re.compile(rf"(?i)({_NAME}{_IS}')[^'\n]+"),
    re.compile(rf"(?i)({_NAME}{_IS})(?:\\[^'\"]|[^\s'\",\\])+"),
    re.compile(r"(?i)(['\"]auth\\?['\"]\s*:\s*\\?['\"])[\w+/=-]+"),
    re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{8,}"),
    re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)[\s\S]*?(?=-----END|\Z)"),
    re.compile(r"(://)[^/@\s:]*(?::[^/@\s]*)?(?=@)"),
)
_SECRET_VALUE = re.compile(rf"(?is)^(.*{_NAME}=).+")
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_KEY_LINES = 400
"""Most lines of a private key (RSA of 16384 bits has about 200); after them a text goes on without its end."""


def redact(text: str) -> str:
    """`text` without passwords, tokens, private keys, authorization headers and credentials in addresses."""
    for pattern in _SECRETS:
        text = pattern.sub(r"\1***", text)
    return text


def command_line(arguments: Sequence[str]) -> str:
    """A command as a person would type it, without secrets."""
    return redact(shlex.join(_SECRET_VALUE.sub(r"\1***", argument) for argument in arguments))


class Lines:
    """Takes secrets out of a stream line by line; a private key is left out from its first line to its last."""

    def __init__(self) -> None:
        self._hidden = 0
        """Lines of a private key that may still come."""

    def redact(self, line: str) -> str:
        """The line as it may be shown; empty where nothing of it may."""
        if self._hidden:
            if "-----END" not in line:
                self._hidden -= 1
                return ""
            self._hidden, line = 0, line[line.index("-----END") :]
        begins = [found.end() for found in _KEY_BEGINS.finditer(line)]
        if begins and "-----END" not in line[begins[-1] :]:
            self._hidden = _KEY_LINES
        return redact(line)
