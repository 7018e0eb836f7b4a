"""Values of every kind that Python code may publish, and a check of the values that a reader gets for them."""

from __future__ import annotations

import datetime as dt
import enum
import math
import re
from collections import namedtuple
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import bson
import msgpack
from hypothesis import strategies as st


class LikeNumpy(float):
    """A float of another class, like numpy's float64."""


class Label(str):
    """A text of another class than `str`."""

    __slots__ = ()


class Side(enum.Enum):
    """A Python enumeration, which no message type supports."""

    BUY = 1


class Level(enum.IntEnum):
    """An int with a name."""

    HIGH = 7


@dataclass
class Point:
    """A dataclass, which orjson on its own writes as an object."""

    x: int


Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - the kind that others have

TEXTS = st.text(max_size=4) | st.text(st.characters(categories=["Cs", "Lu"]), max_size=2)
ZONES = st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30)), dt.timezone(dt.timedelta(hours=-3))])
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64 - 1, 2**64, 10**40]),
    st.sampled_from([400, 5000]).map(lambda digits: 10**digits),
    st.floats(),
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e300, 0.1, 1e22]),
    st.floats().map(LikeNumpy),
    st.decimals(),
    st.sampled_from([Decimal("sNaN"), Decimal("1E+400"), Decimal("1.10"), Decimal("-0"), Decimal("0.1"), Decimal(7)]),
    TEXTS,
    TEXTS.map(Label),
    st.sampled_from(["5", "1e5", "2024-02-29", "A", "a|b", "\x01", "\x00", "\r\n", "nan"]),
    st.binary(max_size=3),
    st.binary(max_size=3).map(bytearray),
    st.binary(max_size=3).map(memoryview),
    st.datetimes(),
    st.datetimes(timezones=ZONES),
    st.datetimes(timezones=ZONES).map(lambda moment: moment.replace(microsecond=5000)),
    st.dates(),
    st.times(),
    st.just(dt.time(10, tzinfo=dt.UTC)),
    st.just(dt.timedelta(seconds=5)),
    st.uuids(),
    st.sampled_from([Side.BUY, Level.HIGH, Point(1), Pair(1, 2), 1j, object(), Fraction(1, 3), {1}, frozenset("a")]),
    st.builds(msgpack.Timestamp, st.integers(-(2**40), 2**40), st.integers(0, 999_999_999)),
    st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=3)),
    st.integers(-(2**63), 2**63 - 1).map(bson.Int64),
    st.sampled_from(["1.10", "NaN", "-Infinity", "1E+100"]).map(bson.Decimal128),
    st.just(bson.ObjectId(b"0" * 12)),
    st.sampled_from([bson.DatetimeMS(0), bson.DatetimeMS(2**60), bson.Binary(b"x"), bson.Binary(b"x", 5)]),
    st.sampled_from([bson.Binary(b"0" * 16, 4), bson.Regex("^a", 2), re.compile("^a"), bson.MaxKey()]),
)
NAMES = st.one_of(TEXTS, st.sampled_from(["a", "id", "a/b", "~", "$a", "@a", "#text", "55", "1"]), TEXTS.map(Label))
KEYS = st.one_of(NAMES, NAMES, NAMES, st.sampled_from([1, None, b"a", True, (1,), 1.5]))
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=2) | st.lists(inner, max_size=2).map(tuple) | st.dictionaries(KEYS, inner, max_size=2)
    ),
    max_leaves=5,
)


def reads_as(value: Any, back: Any, **rules: bool) -> bool:
    """Return whether the value that a reader got equals the published one, as far as two types can hold the same value.

    Args: value: the published value. back: the value that was read. rules: `texts`: the message type has texts alone;
    `typed`: a schema fixes which kind of number is read; `short`: floats have 32 bits.
    """
    if isinstance(value, dict):
        return (
            isinstance(back, dict)
            and list(map(str, value)) == [name for name in map(str, value) if name in back]
            and all(isinstance(name, str) for name in value)
            and len(value) == len(back)
            and all(reads_as(member, back[name], **rules) for name, member in value.items())
        )
    if isinstance(value, list) or type(value) is tuple:
        if rules.get("texts") and len(value) == 1 and not isinstance(back, list):
            return reads_as(value[0], back, **rules)
        return (
            isinstance(back, list)
            and len(value) == len(back)
            and all(reads_as(item, other, **rules) for item, other in zip(value, back, strict=True))
        )
    if rules.get("texts"):
        return isinstance(back, str) and text_is(value, back)
    if value is None or isinstance(value, bool):
        return back is value
    if isinstance(value, float) and rules.get("short") and math.isfinite(value):
        return isinstance(back, float) and math.isclose(value, back, rel_tol=1e-7, abs_tol=1e-44)
    if isinstance(value, float):
        return isinstance(back, float) and repr(float(value)) == repr(float(back))
    if isinstance(value, int) and isinstance(back, float):
        # By value: 2**63 is a double, and is spelt 9.223372036854776e+18.
        return bool(rules.get("typed")) and back == value
    if isinstance(value, int | Decimal):
        return is_number(back) and exact(back) == exact(value) and not (isinstance(value, int) and back is True)
    if isinstance(value, str):
        return isinstance(back, str) and str.__str__(value) == str.__str__(back)
    if isinstance(value, bytes | bytearray | memoryview):
        return isinstance(back, bytes) and bytes(value) == bytes(back)
    if isinstance(value, dt.datetime):
        return isinstance(back, dt.datetime) and (value.tzinfo is None) is (back.tzinfo is None) and value == back
    return type(back) is type(value) and back == value


def text_is(value: Any, text: str) -> bool:
    """Return whether a text is the spelling of a scalar in a message type that has texts alone."""
    if isinstance(value, str):
        return text == str.__str__(value)
    if isinstance(value, bool):
        return text == str(value).lower()
    return is_number(value) and exact(Decimal(text)) == exact(value)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number; a bool is not."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return False
    return value.is_finite() if isinstance(value, Decimal) else not isinstance(value, float) or math.isfinite(value)


def exact(value: Any) -> Decimal:
    """A number as the exact Decimal of its spelling."""
    return Decimal(repr(float(value))) if isinstance(value, float) else Decimal(value)
