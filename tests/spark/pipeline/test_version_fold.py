from __future__ import annotations

import json
import random

import pytest

from processor.errors import Stop

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

import pyarrow as pa

from spark_integration.foundation.arrow_records import headers_column
from spark_integration.foundation.settings import topic_settings
from spark_integration.tables.version_fold import VersionFold


def _delta(key, offset, at, body, **headers):
    named = [(name, str(value).encode()) for name, value in headers.items()]
    return key, True, 0, offset, at, None if body is None else json.dumps(body).encode(), None, named


def _open(key, offset, at, record, version):
    return key, False, 0, offset, at, json.dumps(record).encode(), version, []


def _versions(rows, size=1000):
    fold = VersionFold(topic_settings("orders", None))
    names = ["key", "is_delta", "partition", "offset", "at_us", "value", "version"]
    types = [pa.string(), pa.bool_(), pa.int32(), pa.int64(), pa.int64(), pa.binary(), pa.int64()]
    ends = ["source", "gone_version", "gone_source", "gone_offset"]
    batches = []
    for begin in range(0, len(rows), size):
        part = rows[begin : begin + size]
        columns = list(zip(*(row[:8] for row in part), strict=True))
        arrays = [pa.array(column, kind) for column, kind in zip(columns[:7], types, strict=True)]
        state = [row[8] if len(row) > 8 else {} for row in part]
        arrays += [pa.array([one.get(name) for one in state], pa.int64()) for name in ends]
        batches.append(pa.RecordBatch.from_arrays([*arrays, headers_column(columns[7])], [*names, *ends, "headers"]))
    return [row for batch in fold(iter(batches)) for row in batch.to_pylist()]


def _fold(rows, size=1000):
    return [(row["key"], json.loads(row["value"]), row["version"], row["from_us"], row["to_us"], row["offset"],
             row["end_offset"], row["was_open"]) for row in _versions(rows, size)]  # fmt: skip


def _table(deltas, cut):
    """The rows of a table to which deltas are added in batches of `cut`."""
    rows, states = {}, {}
    for begin in range(0, len(deltas), cut):
        batch = deltas[begin : begin + cut]
        touched = [states[key] for key in {delta[0] for delta in batch} & states.keys()]
        for row in _versions(sorted([*touched, *batch], key=lambda one: (one[0], one[1])), size=2):
            rows[row["key"], row["offset"]] = (row["value"], row["version"], row["from_us"], row["to_us"])
            if row["is_state"]:
                value = row["value"].encode() if row["to_us"] is None else None
                states[row["key"]] = (row["key"], False, row["partition"], row["offset"], row["from_us"], value,
                                      row["version"], [], row)  # fmt: skip
    return rows


def test_each_delta_ends_the_version_before_it() -> None:
    """A key's versions follow each other without gap; a delete ends the last one, and an insert begins again."""
    rows = [
        _delta("1", 0, 10, {"id": 1, "a": {"x": 1}, "b": 2}, kind="insert", version=1),
        _delta("1", 3, 20, {"id": 1, "a": {"y": None}}, version=2, removed='["/b"]'),
        _delta("1", 5, 30, {"id": 1}, version=3, kind="delete"),
        _delta("1", 9, 40, {"id": 1, "b": 1}, kind="insert", version=1),
        _delta("2", 4, 25, {"id": 2}, kind="insert", version=1),
    ]
    assert _fold(rows) == [
        ("1", {"id": 1, "a": {"x": 1}, "b": 2}, 1, 10, 20, 0, 3, False),
        ("1", {"id": 1, "a": {"x": 1, "y": None}}, 2, 20, 30, 3, 5, False),
        ("1", {"id": 1, "b": 1}, 1, 40, None, 9, None, False),
        ("2", {"id": 2}, 1, 25, None, 4, None, False),
    ]


def test_an_open_version_is_written_again_only_when_it_ends() -> None:
    """A key whose deltas are repeats writes no row; one with a new delta writes the end and the next version."""
    rows = [
        _open("1", 7, 10, {"id": 1, "n": 1}, 4),
        _delta("1", 8, 11, {"id": 1, "n": 9}, version=4),
        _open("2", 2, 10, {"id": 2, "n": 1}, 1),
        _delta("2", 9, 12, {"id": 2, "n": 2}, version=2),
    ]
    assert _fold(rows) == [
        ("2", {"id": 2, "n": 1}, 1, 10, 12, 2, 9, True),
        ("2", {"id": 2, "n": 2}, 2, 12, None, 9, None, False),
    ]


@pytest.mark.parametrize(
    "rows",
    [
        [_delta("1", 3, 20, {"id": 1}, version=2)],
        [_open("1", 1, 10, {"id": 1}, 1), _delta("1", 3, 20, {"id": 1}, version=3)],
    ],
)
def test_a_delta_without_its_base_is_an_error(rows) -> None:
    """A gap in the deltas stops the job with the place, as the record cannot be known."""
    with pytest.raises(Stop, match=r"orders: partition 0, offset 3 of its delta topic, key '1': it applies to version"):
        _fold(rows)


def _life(offset, *, begin=100, delete=True, n=1):
    """A record that is inserted and updated, and deleted, by the input records from `begin` on."""
    sources = [f"orders.publish/0/{begin + number}" for number in range(3)]
    deltas = [
        _delta("1", offset, offset, {"id": 1, "n": n}, kind="insert", version=1, source=sources[0]),
        _delta("1", offset + 1, offset + 1, {"id": 1, "n": n + 1}, version=2, source=sources[1]),
        _delta("1", offset + 2, offset + 2, {"id": 1}, version=3, kind="delete", source=sources[2]),
    ]
    return deltas if delete else deltas[:2]


def _without_sources(rows):
    return [(*row[:7], [header for header in row[7] if header[0] != "source"]) for row in rows]


SURE = {
    "an insert and an update": (_life(0, delete=False), _life(10, delete=False), True),
    "a part of them": (_life(0, delete=False), _life(10, delete=False)[:1], True),
    "an update and a delete": (_life(0), _life(10)[1:], False),
}
"""Deltas, some of them again, and whether the record exists then."""
TWO_LIVES = [*_life(0), *_life(10, begin=200, delete=False)]
WITH_SOURCES = SURE | {
    "a delete and an insert": (TWO_LIVES, [*_life(20)[2:], *_life(30, begin=200, delete=False)], True),
    "two lives": (TWO_LIVES, [*_life(20), *_life(30, begin=200, delete=False)], True),
}


@pytest.mark.parametrize("cut", [1, 2, 100])
@pytest.mark.parametrize(
    ("case", "has_sources"), [*((case, False) for case in SURE), *((case, True) for case in WITH_SOURCES)]
)
def test_repeated_deltas_change_nothing(case, has_sources, cut) -> None:
    """Deltas that a merge writes again after its death are no versions, and those that follow them are."""
    first, again, is_open = WITH_SOURCES[case]
    kind, version = ({}, 3) if is_open else ({"kind": "insert"}, 1)
    after = [_delta("1", 50, 50, {"id": 1, "n": 9}, version=version, source="orders.publish/0/900", **kind)]
    if not has_sources:
        first, again, after = map(_without_sources, (first, again, after))
    assert _table([*first, *again, *after], cut) == _table([*first, *after], 100)


@pytest.mark.parametrize("cut", [1, 2, 3, 100])
def test_a_life_that_comes_again_with_its_sources_is_no_new_one(cut) -> None:
    """An insert after a delete is a repeat if its input record is not behind that of the delete."""
    rows = [*_life(0), *_life(10), *_life(20, begin=300)]
    assert _table(rows, cut) == _table([*_life(0), *_life(20, begin=300)], 100)


def test_the_same_life_again_without_sources_is_a_new_one() -> None:
    """Without the header `source` a repeat cannot be told from a record that has been created again."""
    rows = _without_sources([*_life(0), *_life(10)])
    assert len(_table(rows, 2)) == 4


def test_any_cut_into_batches_gives_the_same_versions(random_seed) -> None:
    """Deltas folded in two parts, the second from the open versions of the first, give the versions of one fold."""
    rng = random.Random(random_seed)
    rows, versions = [], {}
    for offset in range(300):
        key = str(rng.randrange(6))
        version = versions.get(key, 0) + 1
        if version > 1 and rng.random() < 0.2:
            rows.append(_delta(key, offset, offset, {"id": key}, version=version, kind="delete"))
            del versions[key]
            continue
        body = {"id": key, rng.choice("abc"): offset}
        more = {"kind": "insert"} if version == 1 else {}
        rows.append(_delta(key, offset, offset, body, version=version, **more))
        versions[key] = version
    ordered = sorted(rows, key=lambda row: row[0])
    wanted = [row[:7] for row in _fold(ordered, size=7)]
    cut = rng.randrange(1, 299)
    first = _fold(sorted(rows[:cut], key=lambda row: row[0]))
    opened = [_open(row[0], row[5], row[3], row[1], row[2]) for row in first if row[4] is None]
    second = _fold(sorted([*opened, *rows[cut:]], key=lambda row: (row[0], row[1])))
    replaced = {row[5] for row in second if row[7]}
    found = [row[:7] for row in first if row[5] not in replaced] + [row[:7] for row in second]
    assert sorted(found, key=str) == sorted(wanted, key=str)
