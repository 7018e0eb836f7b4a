r"""The setting `sasl.jaas.config` of Java's Kafka clients: one login module with its options.

Its form is `class required name="value" …;`, where a backslash quotes as in a Java string; Kafka's own reader is
`org.apache.kafka.common.security.JaasConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_VALUE: Final = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s;\"'=]+"
_MODULE: Final = re.compile(
    rf"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)((?:\s+[\w.$-]+\s*=\s*(?:{_VALUE}))*)\s*;\s*",
    re.DOTALL | re.IGNORECASE,
)
_OPTION: Final = re.compile(rf"\s+([\w.$-]+)\s*=\s*({_VALUE})", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "b": "\b", "a": "\a", "v": "\v"}
_QUOTES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})


class LoginModule(NamedTuple):
    """A login module of Java; its text holds secrets."""

    name: str
    """The full name of its class."""
    options: Mapping[str, str]
    """Its options, such as `username`."""

    @classmethod
    def parse(cls, text: str) -> LoginModule | None:
        """Read the setting; None where it is something else than one login module."""
        match = _MODULE.fullmatch(text)
        if match is None:
            return None
        return cls(match[1], {name: _unquoted(value) for name, value in _OPTION.findall(match[2])})

    def text(self) -> str:
        """The value of the setting."""
        options = "".join(f' {name}="{value.translate(_QUOTES)}"' for name, value in self.options.items())
        return f"{self.name} required{options};"


def _unquoted(value: str) -> str:
    if value[0] not in "\"'":
        return value
    return _ESCAPED.sub(lambda match: _character(match[1]), value[1:-1])


def _character(escape: str) -> str:
    return chr(int(escape, 8)) if escape.isdigit() and max(escape) < "8" else _ESCAPES.get(escape, escape)
