"""The small part of CEL that webhooks' matchConditions use: comparisons, `has()`, `in`, `!`, `&&`, `||`."""

from __future__ import annotations

import re
from typing import Any

_TOKEN = re.compile(r"\s*(?:(&&|\|\||==|!=|[!()\[\],])|('[^']*'|\"[^\"]*\")|(-?\d+)|([A-Za-z_][\w.]*))")


class CelError(Exception):
    """An expression this evaluator does not know, or that reads a field which is not there."""


_MISSING = object()


class _Parser:
    def __init__(self, text: str, variables: dict[str, Any]) -> None:
        self._tokens = self._split(text)
        self._at = 0
        self._variables = variables

    def _split(self, text: str) -> list[str]:
        tokens, position = [], 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                raise CelError(f"cannot read the expression at {text[position:]!r}")
            tokens.append(match[0].strip())
            position = match.end()
        return tokens

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, expected: str = "") -> str:
        token = self._peek()
        if not token or (expected and token != expected):
            raise CelError(f"expected {expected or 'a value'}, found {token or 'the end'}")
        self._at += 1
        return token

    def whole(self) -> bool:
        value = self._or()
        if self._peek():
            raise CelError(f"unexpected {self._peek()!r}")
        if not isinstance(value, bool):
            raise CelError("the expression is not a bool")
        return value

    def _or(self) -> Any:
        value = self._and()
        while self._peek() == "||":
            self._take()
            right = self._and()
            value = bool(value) or bool(right)
        return value

    def _and(self) -> Any:
        value = self._comparison()
        while self._peek() == "&&":
            self._take()
            right = self._comparison()
            value = bool(value) and bool(right)
        return value

    def _comparison(self) -> Any:
        left = self._unary()
        operator = self._peek()
        if operator in ("==", "!="):
            self._take()
            return (self._present(left) == self._present(self._unary())) == (operator == "==")
        if operator == "in":
            self._take()
            right = self._present(self._unary())
            return self._present(left) in right
        return left

    def _present(self, value: Any) -> Any:
        if value is _MISSING:
            raise CelError("no such key")
        return value

    def _unary(self) -> Any:
        if self._peek() == "!":
            self._take()
            return not self._unary()
        if self._peek() == "(":
            self._take()
            value = self._or()
            self._take(")")
            return value
        if self._peek() == "[":
            return self._list()
        token = self._take()
        if token == "has":
            self._take("(")
            value = self._path(self._take())
            self._take(")")
            return value is not _MISSING
        if token[0] in "'\"":
            return token[1:-1]
        if token in ("true", "false"):
            return token == "true"
        return int(token) if re.fullmatch(r"-?\d+", token) else self._path(token)

    def _list(self) -> list[Any]:
        items = []
        self._take("[")
        while self._peek() != "]":
            items.append(self._present(self._unary()))
            if self._peek() == ",":
                self._take()
        self._take("]")
        return items

    def _path(self, text: str) -> Any:
        value: Any = self._variables
        for step in text.split("."):
            value = value.get(step, _MISSING) if isinstance(value, dict) else _MISSING
        return value


def evaluate(expression: str, **variables: Any) -> bool:
    """The truth of an expression over `object`, `oldObject` and `request`.

    Raises: CelError for an expression outside the known part of CEL, or one that reads an absent field.
    """
    return _Parser(expression, variables).whole()
