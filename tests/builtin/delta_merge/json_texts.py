"""Random JSON texts, ordinary and adversarial: usual ones of publishers, and legal ones that are rare."""

from __future__ import annotations

import json
import random
import struct
from typing import Any, NamedTuple

NAMES = ("a", "b", "c", "ab", "abc", "id", "", "é", "a b", 'a"', "a\\", "{", "id2", "i", "\n")
"""Of members: prefixes of each other, ones that are escaped, the key's own further down."""

KEYS = (
    b"7", b"k", b"true", b"null", b"1.5", b"", b"-1", b"-0", b"0", b"07", "é€😀".encode(), b'a"b', b"a\\n", b"\n",
    b"{}", b"18446744073709551615", b"18446744073709551616", b"-9223372036854775808", b"1e3", b"\xff", b"7 ",
)  # fmt: skip
"""Of records: those that a value may be mistaken for, and that are written otherwise than they are."""

_SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\n": "\\n", "\t": "\\t", "\b": "\\b"}
_ALPHABET = (
    "a",
    "n",
    " ",
    '"',
    "\\",
    "/",
    "\n",
    "\x00",
    "\x1f",
    "\x7f",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "é",
    "€",
    "😀",
    "\u2028",
)
_NUMBERS = (
    "-0", "-0.0", "0.0", "1e5", "1E5", "1e-7", "1.0", "1.00", "10e-1", "1", "-1", "1e15", "1e16", "1e22", "1e23", "0.1",
    "9007199254740993", "9007199254740993.0", "18446744073709551615", "18446744073709551616", "-9223372036854775809",
    "0.1234567890123456789", "1e400", "5e-324", "1e-400", "100000000000000000000000000000", "1.7976931348623157e308",
)  # fmt: skip
_BAD = ('"\\ud800"', "nul", "01", "1.", "+1", "'a'", '"\x01"', "[1,]", "{,}", "NaN", "-", '"\\x"', '"', "[[")


class Raw(NamedTuple):
    """A value as it is written."""

    text: str


class Members(NamedTuple):
    """An object: its members in their order, some perhaps twice."""

    pairs: list[tuple[str, Any]]


def value(rng: random.Random, depth: int = 0) -> Any:
    """Any value: objects and arrays down to a few levels."""
    chance = rng.random()
    if depth < 4 and chance < 0.22:
        return members(rng, depth + 1)
    if depth < 4 and chance < 0.34:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if chance < 0.46:
        return None
    if chance < 0.52:
        return rng.random() < 0.5
    if chance < 0.62:
        return rng.choice((0, 1, 2, -1, 10**17, 2**64 - 1, -(2**63), rng.getrandbits(rng.randrange(1, 70))))
    if chance < 0.72:
        return Raw(rng.choice(_NUMBERS))
    if chance < 0.82:
        return number(rng)
    return "".join(rng.choices(_ALPHABET, k=rng.randrange(5)))


def number(rng: random.Random) -> float:
    """A double of any size, or one of few digits."""
    if rng.random() < 0.5:
        return rng.choice(
            (rng.random(), rng.uniform(-1e6, 1e6), round(rng.uniform(-99, 99), 2), float(rng.randrange(9)))
        )
    found: float = struct.unpack("d", rng.randbytes(8))[0]
    return found if found - found == 0 else 0.5


def members(rng: random.Random, depth: int = 0) -> Members:
    """Any object."""
    return Members([(rng.choice(NAMES), value(rng, depth)) for _ in range(rng.choice((0, 1, 1, 2, 3, 6)))])


def of_parsed(rng: random.Random, parsed: Any) -> Any:
    """The same value with the members of its objects in another order."""
    if isinstance(parsed, dict):
        pairs = [(name, of_parsed(rng, member)) for name, member in parsed.items()]
        if rng.random() < 0.5:
            rng.shuffle(pairs)
        return Members(pairs)
    if isinstance(parsed, list):
        return [of_parsed(rng, element) for element in parsed]
    return parsed


def spelled(rng: random.Random, found: Any) -> bytes:
    """Return a value as text, in a random one of the spellings that JSON allows."""
    text = rng.choice((_Compact, _Compact, _Spaced, _Odd))(rng).text(found)
    if rng.random() < 0.01:
        place = rng.randrange(len(text) + 1)
        text = text[:place] + rng.choice(_BAD) + text[place:]
    return text.encode("utf-8", "surrogatepass")


class _Compact:
    """As most writers spell."""

    comma, colon = ",", ":"

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def text(self, found: Any) -> str:
        if isinstance(found, Raw):
            return found.text
        if isinstance(found, Members):
            pairs = (self.string(name) + self.between(self.colon) + self.text(member) for name, member in found.pairs)
            return "{" + self.between(self.comma).join(pairs) + "}"
        if isinstance(found, list):
            return "[" + self.between(self.comma).join(map(self.text, found)) + "]"
        if isinstance(found, str):
            return self.string(found)
        if isinstance(found, float):
            return self.float(found)
        if isinstance(found, int) and not isinstance(found, bool):
            return str(found)
        return {True: "true", False: "false", None: "null"}[found]

    def between(self, mark: str) -> str:
        return mark

    def string(self, found: str) -> str:
        return '"' + "".join(self.character(character) for character in found) + '"'

    def character(self, found: str) -> str:
        return _SHORT.get(found, found) if found == "\x7f" or found >= " " else f"\\u{ord(found):04x}"

    def float(self, found: float) -> str:
        return repr(found)


class _Spaced(_Compact):
    """As Python's own module does."""

    comma, colon = ", ", ": "


class _Odd(_Compact):
    """Objects written with odd white space and escapes."""

    def between(self, mark: str) -> str:
        return self.rng.choice(("", " ", "\n", "\t\r")) + mark + self.rng.choice(("", "", "  "))

    def character(self, found: str) -> str:
        if self.rng.random() < 0.3:
            units = found.encode("utf-16-be")
            return "".join(f"\\u{units[at]:02x}{units[at + 1]:02X}" for at in range(0, len(units), 2))
        return super().character(found)

    def float(self, found: float) -> str:
        return self.rng.choice(("{!r}", "{!r}", "{:.15g}", "{:.16e}", "{:.17g}", "{:.16E}")).format(found)


def delta(rng: random.Random, key: bytes, record: bytes | None) -> bytes:
    """Return any delta: it often has its key, and repeats values of the record."""
    found = members(rng)
    pairs = found.pairs
    if record is not None and rng.random() < 0.6:
        parsed = json.loads(record)
        again = of_parsed(rng, parsed)
        pairs += rng.sample(again.pairs, rng.randrange(len(again.pairs) + 1))
        pairs = [pair for pair in pairs if pair[0] != "id"]
    if rng.random() < 0.9:
        pairs.insert(rng.choice((0, len(pairs), rng.randrange(len(pairs) + 1))), ("id", _said(rng, key)))
    return spelled(rng, Members(pairs))


def _said(rng: random.Random, key: bytes) -> Any:
    """Return a random spelling of a key, right or wrong."""
    text = key.decode(errors="replace")
    if rng.random() < 0.85:
        return text
    return rng.choice([Raw(text or "0"), Raw(text or '""'), value(rng)])
