"""JSON (RFC 8259), read and written by hand: every number keeps its value."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from tests.programs.oracle.numbers import real
from tests.programs.oracle.values import Rejected

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS = {"true": True, "false": False, "null": None}


def parse(data: bytes) -> Any:
    """The value of a JSON text; of a member that occurs twice the last one counts (merge.md, rule 11).

    Raises:
        Rejected: `undecodable`.
    """
    try:
        text = data.decode()
        value, at = _value(text, _skip(text, 0))
        if _skip(text, at) != len(text):
            raise ValueError(f"more text at {at}")
    except (ValueError, IndexError) as error:
        raise Rejected("undecodable", str(error)) from None
    return value


def write(value: Any) -> bytes:
    """A compact JSON text."""
    return _text(value).encode()


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(name)}:{_text(member)}" for name, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, str):
        return _quoted(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | Decimal):
        return str(value)
    return repr(value)


def _quoted(text: str) -> str:
    return '"' + "".join(f"\\u{ord(c):04x}" if c < " " or c in '"\\' else c for c in text) + '"'


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _value(text: str, at: int) -> tuple[Any, int]:
    first = text[at]
    if first == "{":
        return _object(text, at)
    if first == "[":
        return _array(text, at)
    if first == '"':
        return _string(text, at)
    for word, value in _WORDS.items():
        if text.startswith(word, at):
            return value, at + len(word)
    match = _NUMBER.match(text, at)
    if match is None:
        raise ValueError(f"no value at {at}")
    is_integer = match[1] is None and match[2] is None
    return (int(match[0]) if is_integer else real(Decimal(match[0]))), match.end()


def _object(text: str, at: int) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    at = _skip(text, at + 1)
    while text[at] != "}":
        if members:
            at = _skip(text, _expect(text, at, ","))
        name, at = _string(text, at)
        members[name], at = _value(text, _skip(text, _expect(text, _skip(text, at), ":")))
        at = _skip(text, at)
    return members, at + 1


def _array(text: str, at: int) -> tuple[list[Any], int]:
    elements: list[Any] = []
    at = _skip(text, at + 1)
    while text[at] != "]":
        if elements:
            at = _skip(text, _expect(text, at, ","))
        element, at = _value(text, at)
        elements.append(element)
        at = _skip(text, at)
    return elements, at + 1


def _string(text: str, at: int) -> tuple[str, int]:
    at = _expect(text, at, '"')
    parts: list[str] = []
    while True:
        match = _PLAIN.match(text, at)
        assert match is not None
        parts.append(match[0])
        at = match.end()
        if text[at] == '"':
            units = "".join(parts)
            # Two escapes may make one character outside of the basic plane.
            return units.encode("utf-16", "surrogatepass").decode("utf-16"), at + 1
        at = _expect(text, at, "\\")
        if text[at] == "u":
            parts.append(chr(int(text[at + 1 : at + 5], 16)))
            at += 5
        else:
            parts.append(_ESCAPES.get(text[at]) or _refuse(at))
            at += 1


def _expect(text: str, at: int, character: str) -> int:
    if text[at] != character:
        raise ValueError(f"{character!r} expected at {at}")
    return at + 1


def _refuse(at: int) -> str:
    raise ValueError(f"no escape at {at}")
