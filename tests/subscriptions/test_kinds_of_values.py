"""All kinds of values in filters, orders and ranges."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import DatetimeMS, Decimal128, Int64
from msgpack import Timestamp

from processor.codec import load_codec
from processor.filter import RecordMetadata, compile_filter
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import MemoryRecords, Topic
from processor.subscriptions.records.memo_index import MemoIndex
from processor.subscriptions.request.filter_index import FilterIndex
from processor.subscriptions.request.record_order import SortOrder

MOMENT = datetime(2024, 2, 29, 12, tzinfo=UTC)
SECOND = int(MOMENT.timestamp())
KINDS = {
    "bson": [MOMENT, MOMENT + timedelta(milliseconds=500), Decimal128("9.5"), Decimal128("10.0"), Int64(10), "10"],
    "msgpack": [Timestamp(SECOND), Timestamp(SECOND, 1), Timestamp(2**60), 9.5, 10, "x"],
}
FILTERS = [
    "/v = '2024-02-29T12:00:00Z'",
    "/v = '2024-02-29T13:30+01:30'",
    "/v = '2024-02-29 12:00:00.500'",
    "/v IN ('2024-02-29T12:00:00.000000001Z', '10')",
    "/v = 10",
    "/v IN (9.50, 1)",
    "/v = '10'",
]


@pytest.mark.parametrize("text", FILTERS)
@pytest.mark.parametrize("message_type", KINDS)
def test_an_index_changes_no_answer(message_type: str, text: str):
    """Index look-ups give the records and subscriptions of a scan."""
    codec = load_codec(message_type)
    values = KINDS[message_type]
    records = [
        Record(b"%d" % n, codec.encode({"id": n, "v": value}), [("version", b"1")], n, 0)
        for n, value in enumerate(values)
    ]
    view = MemoryRecords()
    view.put(0, records)
    lookup = MemoIndex(Topic("t", codec, KeyFields(("/id",))), view)
    selection = compile_filter(text)
    lookup.records(selection)
    lookup.records(selection)
    candidates = lookup.records(selection)
    assert candidates is not None
    scanned = {record.key for record in records if selection.matches(codec.decode_own(record.value or b""))}
    assert {one.key for one in candidates if selection.matches(codec.decode_own(one.value or b""))} == scanned
    index: FilterIndex[str] = FilterIndex()
    index.add(selection, text)
    for value in values:
        assert not selection.matches({"v": value}) or list(index.candidates({"v": value})) == [text]


def ordered(text: str, values: list[Any]) -> list[Any]:
    """The values in the order of records that have them at /t."""
    order = SortOrder(text)
    return sorted(values, key=lambda value: order.key(b"", {"t": value}, RecordMetadata()))


def test_times_and_decimals_are_ordered_by_their_value():
    """Times and decimals are ordered by value: 5 s before 5.5 s, 9.5 before 10.0; in reverse and in expressions too."""
    times = [Timestamp(-1, 999_999_999), Timestamp(5), Timestamp(5, 500_000_000), Timestamp(6), Timestamp(2**60)]
    decimals = [Decimal128("-1"), Decimal128("9.5"), Decimal128("10.0"), Decimal128("1E+3")]
    dates = [DatetimeMS(-(2**60)), MOMENT - timedelta(milliseconds=1), MOMENT, DatetimeMS(2**60)]
    for values in (times, decimals, dates):
        for text in ("/t", "GREATEST(/t, /t)"):
            assert ordered(text, values[::-1]) == values
            assert ordered(f"{text} DESC", values) == values[::-1]


VALUES = [
    None,
    "",
    "abc",
    "abd",
    "b",
    "7",
    "zz",
    True,
    False,
    0,
    1,
    2.5,
    3,
    -4,
    10**17,
    0.1,
    [1, 9],
    ["abc", 2],
    {"x": 1},
]


def texts(rng, count):
    """Random filters by ranges and beginnings."""
    numbers = [-5, -1, 0, 1, 2, 2.5, 3, 7, 100]
    for _ in range(count):
        low, high = rng.choice(numbers), rng.choice(numbers)
        path = rng.choice(["/a", "/b", "/o/p"])
        yield rng.choice(
            [
                f"{path} > {low}",
                f"{low} >= {path}",
                f"{path} BETWEEN {low} AND {high}",
                f"{path} > {low} AND {path} < {high}",
                f"{path} < {low} OR {path} BETWEEN {low} AND {high}",
                f"{path} BEGINS WITH ('ab', 'b')",
                f"{path} LIKE '^abc?'",
                f"{path} LIKE '^ab'",
                f"{path} > {low} AND /b BEGINS WITH ('a')",
                f"NOT {path} > {low}",
            ]
        )


def test_no_match_is_missed(random_seed):
    """For all values, each filter that a record matches is a candidate, also after others were removed."""
    rng = random.Random(random_seed)
    for _ in range(30):
        index = FilterIndex()
        filters = {text: compile_filter(text) for text in dict.fromkeys(texts(rng, 25))}
        for text, compiled in filters.items():
            index.add(compiled, text)
        for text in rng.sample(sorted(filters), len(filters) // 3):
            index.remove(filters.pop(text), text)
        for _ in range(40):
            record = {name: rng.choice(VALUES) for name in "ab" if rng.random() < 0.8}
            if rng.random() < 0.5:
                record["o"] = {"p": rng.choice(VALUES)}
            matching = {text for text, compiled in filters.items() if compiled.matches(record)}
            assert matching <= set(index.candidates(record)), record


@pytest.mark.parametrize("form", ["/px BETWEEN {0} AND {0}.5", "/px >= {0} AND /px < {1}"])
def test_few_of_many_ranges_are_candidates(form):
    """Of a thousand narrow ranges a value has at most a few candidates."""
    index = FilterIndex()
    for number in range(1000):
        text = form.format(number, number + 1)
        index.add(compile_filter(text), text)
    assert len(list(index.candidates({"px": 500.25}))) <= 2
    assert not list(index.candidates({"qty": 1}))
