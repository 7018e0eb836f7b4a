"""Grouping values of JSON records, as they are written, with the group that each belongs to."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from processor.codec import load_codec

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUPS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "1": ("1", ("1", "1.0", "1e0", "true", "[1.0, 2]")),
    '"1"': ('"1"', ('"1"', '["1"]')),
    '"1.0"': ('"1.0"', ('"1.0"',)),
    '"true"': ('"true"', ('"true"',)),
    "0": ("0.0", ("0.0", "-0.0", "0e7")),
    '"0"': ('"0"', ('"0"',)),
    "2": ("2.0", ("2.0", "2e0")),
    "100": ("100", ("1e2", "100", "100.0")),
    '"1e2"': ('"1e2"', ('"1e2"',)),
    '"007"': ('"007"', ('"007"',)),
    "0.1": ("0.1", ("0.1", "1e-1", "0.10")),
    "1e-07": ("1e-7", ("1e-7", "0.0000001")),
    "-5": ("-5", ("-5", "-5.0")),
    "9007199254740993": ("9007199254740993", ("9007199254740993",)),
    "9007199254740992": ("9007199254740992", ("9007199254740992", "9007199254740992.0")),
    "18446744073709551616": ("18446744073709551616", ("18446744073709551616",)),
    "100000000000000000000000": ("1e+23", ("100000000000000000000000", "1e23")),
    "0.1234567890123456789012": ("0.1234567890123456789012", ("0.1234567890123456789012",)),
    "tea": ('"tea"', ('"tea"',)),
    "truer": ('"truer"', ('"truer"',)),
    "2024-02-03": ('"2024-02-03"', ('"2024-02-03"',)),
    "ü": ('"ü"', ('"ü"',)),
    '"\\"tea\\""': ('"\\"tea\\""', ('"\\"tea\\""',)),
    "": ("null", ("null", '""', "{}", "[]", '{"a": 1}')),
}
"""By the key of the group: its value in the row, and the values of the records that are in it, as JSON."""


def records(seed: int) -> list[tuple[str, bytes]]:
    """Every value in records of several keys, in an order of their own; some keys change their group on the way.

    Returns:
        The SOW key and the value of each record, in the order of arrival. The last of each key counts.
    """
    rng = random.Random(seed)
    values = [value for _, members in GROUPS.values() for value in members]
    last = [(f"k{number}", value) for number, value in enumerate(values * 2)]
    early = [(key, rng.choice(values)) for key, _ in rng.sample(last, len(last) // 2)]
    rng.shuffle(last)
    return [(key, as_written(f'{{"id":"{key}","g":{value},"qty":1}}')) for key, value in (*early, *last)]


def as_written(record: str) -> bytes:
    """A record as a worker writes it, with a mark where numbers have many digits."""
    json = load_codec("json")
    return json.encode(json.decode(record.encode()))


def expected_rows() -> dict[str, str]:
    """The rows after `records`, by key, as JSON: the grouping value and the number of members."""
    return {key: f'{{"g":{value},"n":{2 * len(members)}}}' for key, (value, members) in GROUPS.items()}
