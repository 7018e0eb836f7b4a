from __future__ import annotations

import datetime as dt
import json
import random
from collections import defaultdict

import pytest

from processor.errors import ConfigurationError, Stop
from processor.record import Record
from processor.wire.partition_marks import first_version
from spark_integration.foundation.settings import topic_settings
from tests.spark.merge_histories import NAME, NOW_MS, random_history, worker

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.sql import functions as F  # noqa: N812

from spark_integration.merge.batch.merge_batch import merge_batch

pytestmark = pytest.mark.spark

AS_OF = dt.datetime.fromtimestamp(NOW_MS / 1000 + 10_000, dt.UTC)
AS_OF_MS = NOW_MS + 10_000_000
DDL = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, partition int, offset bigint, "
    "timestamp timestamp"
)


def _history(spark, records: list[tuple[int, Record]]):
    """Records with their partition, in the columns of Spark's Kafka source and in random order."""
    rows = [
        (r.key, r.value, r.headers, partition, r.offset, dt.datetime.fromtimestamp(r.timestamp_ms / 1000, dt.UTC))
        for partition, r in records
    ]
    random.Random(0).shuffle(rows)
    return spark.createDataFrame(rows, DDL)


def _rows(frame) -> list[tuple]:
    return [
        (row.partition, _bytes(row.key), _bytes(row.value), [(name, _bytes(value)) for name, value in row.headers])
        for row in frame.select("partition", "key", "value", "headers").toLocalIterator()
    ]


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _marks(frame) -> dict[int, dict[bytes, bytes]]:
    marks: dict[int, dict[bytes, bytes]] = defaultdict(dict)
    for row in frame.collect():
        marks[row.partition][bytes(row.name)] = bytes(row.mark)
    return marks


def _numbered(key: str, value: str, client: str, sequence: int, offset: int, **headers: str) -> Record:
    given = {"client": client, "sequence": str(sequence), **headers}
    return Record(key.encode(), value.encode(), [(n, v.encode()) for n, v in given.items()], offset, NOW_MS)


@pytest.mark.parametrize("seed", [1])
@pytest.mark.long
def test_merge_is_a_worker(spark, seed) -> None:
    """Random histories with repeated records give the same SOW, deltas, dead letters and marks as a worker."""
    print("seed", seed)
    rng = random.Random(seed)
    topic = {"expiration": "20s", "null_policy": "remove", "partitions": 8, "foreign_partition": "accept"}
    histories = {partition: random_history(rng, 250, clients="abc", conditional=0.05) for partition in range(8)}
    given = [(partition, record) for partition, history in histories.items() for record in history]
    duplicates = 0
    with merge_batch(spark, NAME, config=topic, history=_history(spark, given), deltas=True, as_of=AS_OF) as merged:
        sow, deltas, dlq = (_rows(merged.of(role)) for role in ("sow", "delta", "dlq"))
        marks = _marks(merged.marks)
    for partition, history in histories.items():
        expected = worker(topic_settings(NAME, topic), partition, history, AS_OF_MS)
        assert {key: row for p, key, *row in sow if p == partition} == {k: list(v) for k, v in expected.sow.items()}
        assert sorted((tuple(r) for p, *r in dlq if p == partition), key=repr) == expected.dlq
        found = defaultdict(list)
        for p, key, value, headers in deltas:
            if p == partition:
                found[key].append((value, headers))
        assert found == expected.deltas
        assert marks[partition] == expected.marks
        duplicates += expected.events.get("duplicate", 0)
    assert merged.counts["duplicate"] == duplicates > 0
    assert merged.counts["records"] == len(given)
    assert merged.counts["merged"] + merged.counts["duplicate"] + merged.counts["rejected"] == len(given)
    assert merged.counts["rejected"] == sum(merged.rejected_for.values()) == len(dlq) > 0


@pytest.mark.long
def test_number_of_a_rejected_record_may_be_used_again(spark) -> None:
    """A corrected record with the sequence of a rejected one is no duplicate, and is not lost."""
    history = [
        _numbered("1", '{"id":1,"a":1}', "ann", 1, 0),
        _numbered("1", '{"id":2,"a":2}', "ann", 5, 1),  # Not of this key: rejected.
        _numbered("1", '{"id":1,"a":3}', "ann", 5, 2),
        _numbered("1", '{"id":1,"a":4}', "ann", 5, 3),  # Now it is a repeat.
        _numbered("2", '{"id":2,"a":5}', "ann", 4, 4),
        _numbered("2", '{"id":2,"a":6}', "ben", 9, 5, command="nonsense"),
        _numbered("2", '{"id":2,"a":7}', "ben", 2, 6),
    ]
    given = _history(spark, [(0, record) for record in history])
    with merge_batch(spark, NAME, history=given, as_of=AS_OF) as merged:
        records = {bytes(row.key): bytes(row.value) for row in merged.records.collect()}
        assert _marks(merged.marks) == {0: {b"sequence//ann": b"5", b"sequence//ben": b"2 refused=9"}}
    assert records == {b"1": b'{"id":1,"a":3}', b"2": b'{"id":2,"a":7}'}
    assert merged.counts["duplicate"] == 2
    assert merged.rejected_for == {"key_mismatch": 1, "unknown_command": 1}


def test_number_of_a_refused_command_may_be_used_again(spark) -> None:
    """A command that expects another version raises no mark, as in a worker: its number is free for another one."""
    history = [
        _numbered("1", '{"id":1,"a":1}', "ann", 1, 0),
        _numbered("1", '{"id":1,"a":2}', "ann", 5, 1, expect_version="7"),  # Refused.
        _numbered("2", '{"id":2,"a":3}', "ann", 5, 2),
        _numbered("2", '{"id":2,"a":4}', "ann", 5, 3),  # Now it is a repeat.
        _numbered("1", '{"id":1,"a":5}', "ann", 6, 4, expect_version="1"),
    ]
    with merge_batch(spark, NAME, history=_history(spark, [(0, record) for record in history]), as_of=AS_OF) as merged:
        records = {bytes(row.key): bytes(row.value) for row in merged.records.collect()}
        assert _marks(merged.marks) == {0: {b"sequence//ann": b"6"}}
    assert records == {b"1": b'{"id":1,"a":5}', b"2": b'{"id":2,"a":3}'}
    assert (merged.counts["duplicate"], merged.counts["conflict"]) == (1, 1)


@pytest.mark.long
def test_records_without_a_key(spark) -> None:
    """Records without a key are an error with the choices, left out, or merged last by the key in their body."""
    settings = {"partitions": 2}
    history = [
        (0, Record(None, b'{"id":1,"a":1}', None, 0, NOW_MS)),
        (0, Record(None, b'{"a":2}', None, 1, NOW_MS)),
        (1, Record(b"1", b'{"id":1,"a":3,"b":4}', None, 7, NOW_MS)),
    ]
    given = _history(spark, history)
    with pytest.raises(ConfigurationError, match=r"2 records have no Kafka key.*keyless='skip'.*keyless='merge'"):
        merge_batch(spark, NAME, config=settings, history=given)
    with merge_batch(spark, NAME, config=settings, history=given, keyless="skip") as skipped:
        assert [value for _, _, value, _ in _rows(skipped.records)] == [b'{"id":1,"a":3,"b":4}']
    assert skipped.counts == {"records": 3, "keyless": 2, "merged": 1}
    with merge_batch(spark, NAME, config=settings, history=given, keyless="merge") as merged:
        ((partition, key, value, headers),) = _rows(merged.records)
        assert [(p, dict(h)["dlq_reason"]) for p, _, _, h in _rows(merged.rejected)] == [(0, b"missing_key")]
    version = b"%d" % (first_version(0, 7) + 1)
    assert (partition, key, value, headers) == (1, b"1", b'{"id":1,"a":1,"b":4}', [("version", version)])


@pytest.mark.long
@pytest.mark.parametrize("deltas", [False, True])
def test_records_that_came_to_another_partition(spark, deltas) -> None:
    """Records in a foreign partition are an error, left out, merged last in their own partition, or rejected."""
    settings = {"partitions": 2}  # Key 1 belongs to partition 1.
    history = [
        (0, Record(b"1", b'{"id":1,"a":1}', None, 0, NOW_MS)),
        (0, Record(b"1", b'{"id":1,"a":2}', None, 1, NOW_MS)),
        (1, Record(b"1", b'{"id":1,"a":3,"b":4}', None, 7, NOW_MS)),
    ]
    given = _history(spark, history)
    with pytest.raises(ConfigurationError, match=r"2 records came to another partition.*keyless='skip'.*'merge'"):
        merge_batch(spark, NAME, config=settings, history=given, deltas=deltas)
    with merge_batch(spark, NAME, config=settings, history=given, keyless="skip", deltas=deltas) as skipped:
        assert [value for _, _, value, _ in _rows(skipped.records)] == [b'{"id":1,"a":3,"b":4}']
    assert skipped.counts == {"records": 3, "foreign": 2, "merged": 1}
    with merge_batch(spark, NAME, config=settings, history=given, keyless="merge", deltas=deltas) as merged:
        version = b"%d" % (first_version(0, 7) + 2)
        assert _rows(merged.records) == [(1, b"1", b'{"id":1,"a":2,"b":4}', [("version", version)])]
    rejecting = settings | {"foreign_partition": "reject"}
    with merge_batch(spark, NAME, config=rejecting, history=given, deltas=deltas) as rejected:
        assert [(row[0], row[2]) for row in _rows(rejected.records)] == [(1, b'{"id":1,"a":3,"b":4}')]
    assert rejected.rejected_for == {"wrong_partition": 2}
    accepting = settings | {"foreign_partition": "accept"}
    with merge_batch(spark, NAME, config=accepting, history=given, deltas=deltas) as accepted:
        assert {(row[0], row[2]) for row in _rows(accepted.records)} == {
            (0, b'{"id":1,"a":2}'), (1, b'{"id":1,"a":3,"b":4}'),
        }  # fmt: skip


@pytest.mark.long
def test_a_key_with_a_record_in_another_partition_stays_there(spark) -> None:
    """A key with a record of the base in another partition than its hash is merged there."""
    base = spark.createDataFrame(
        [(b"1", b'{"id":1,"a":0}', [("version", b"5")], 0)],
        "key binary, value binary, headers array<struct<key: string, value: binary>>, partition int",
    )
    given = _history(spark, [(0, Record(b"1", b'{"id":1,"a":1}', None, 0, NOW_MS))])
    for keyless in ("error", "merge"):
        with merge_batch(spark, NAME, config={"partitions": 2}, history=given, base=base, keyless=keyless) as merged:
            assert _rows(merged.records) == [(0, b"1", b'{"id":1,"a":1}', [("version", b"6")])]


@pytest.mark.long
@pytest.mark.parametrize("keyless", ["error", "skip", "merge"])
def test_a_history_with_a_delete_by_filter_is_refused(spark, keyless) -> None:
    """A history with a delete by filter is refused, as leaving it out would keep records that workers have deleted."""
    asks = [("command", b"sow_delete"), ("filter", b"/a = 1")]
    history = [
        (0, Record(b"1", b'{"id":1,"a":1}', None, 0, NOW_MS)),
        (0, Record(None, None, asks, 1, NOW_MS)),
        (0, Record(b"2", b'{"id":2,"a":1}', None, 2, NOW_MS)),
    ]
    with pytest.raises(ConfigurationError, match=r"the history has 1 deletes by filter"):
        merge_batch(spark, NAME, history=_history(spark, history), keyless=keyless)


def test_rubbish_is_an_error(spark) -> None:
    """More rejected records than `dlq_max_ratio` allows are an error with the most frequent reason."""
    history = _history(spark, [(0, Record(b"1", b"no", None, n, NOW_MS)) for n in range(20)])
    topic = {"dlq_window_records": 10, "dlq_max_ratio": 0.5}
    with pytest.raises(Stop, match="20 of 20 records were rejected, 20 as undecodable"):
        merge_batch(spark, NAME, config=topic, history=history)


def test_table(spark) -> None:
    """The live records are a typed table, with key and version."""
    history = [
        Record(b"1", b'{"id":1,"a":{"b":1.5}}', None, 0, NOW_MS),
        Record(b"1", b'{"id":1,"a":{"c":"x"}}', None, 1, NOW_MS),
        Record(b"2", b'{"id":2}', None, 2, NOW_MS),
        Record(b"2", None, None, 3, NOW_MS),
    ]
    with merge_batch(spark, NAME, history=_history(spark, [(0, record) for record in history])) as merged:
        (row,) = merged.table("id LONG, a STRUCT<b: DOUBLE, c: STRING>").collect()
        assert json.loads(merged.table("id LONG").toJSON().first()) == {
            "id": 1, "_sow": {"sow_key": "1", "version": 2}
        }  # fmt: skip
        assert merged.table("id LONG", metadata="flat").columns == ["id", "sow_key", "version"]
        assert merged.table("version LONG").columns == ["version", "_sow"]
        with pytest.raises(Exception, match=r"partition 0, sow_key 1: does not fit the schema: /a is not struct<b:dec"):
            merged.table("id LONG, a STRUCT<b: DECIMAL(5,0)>").count()
    assert row.asDict(recursive=True) == {"id": 1, "a": {"b": 1.5, "c": "x"}, "_sow": {"sow_key": "1", "version": 2}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keyless": "guess"}, "keyless='guess': say one of error, skip, merge"),
        ({"base": "orders"}, "base='orders': say 'sow'"),
        ({"until": {0: 1}}, "since, until and base='sow' are for the topic itself"),
        ({"as_of": dt.datetime(2026, 1, 1)}, "as_of has no time zone"),  # noqa: DTZ001
        ({"config": {"key": ["/id"], "key_format": "json"}}, "has key_format 'json', which merge_batch does not read"),
    ],
)
def test_contradicting_arguments_are_refused(spark, given, said) -> None:
    """Arguments that contradict each other are refused before anything is read, with an alternative."""
    with pytest.raises(ConfigurationError, match=said):
        merge_batch(spark, NAME, history=_history(spark, []), **given)


def test_history_of_other_columns_is_refused(spark) -> None:
    """A history without a column of Spark's Kafka source is refused with the name of the column."""
    lacks = _history(spark, []).drop("offset")
    with pytest.raises(ConfigurationError, match="column 'offset' of the history is missing, not a whole number"):
        merge_batch(spark, NAME, history=lacks)
    other = _history(spark, []).withColumn("timestamp", F.lit(5))
    with pytest.raises(ConfigurationError, match="column 'timestamp' of the history is int, not a timestamp"):
        merge_batch(spark, NAME, history=other)


def test_a_history_with_sequences_is_read_once(spark) -> None:
    """Repeats within a key are found in the one read, and so are records below their client's mark of another key."""
    records = [
        _numbered("1", '{"id":1,"a":1}', "ann", 1, 0),
        _numbered("1", '{"id":1,"a":2}', "ann", 2, 1),
        _numbered("1", '{"id":1,"a":9}', "ann", 1, 2),  # Sent twice.
        _numbered("2", '{"id":2,"a":3}', "ann", 3, 3),
    ]
    late = [
        _numbered("3", '{"id":3,"a":9}', "ann", 2, 4),  # The first record of its key, and not above 3.
        _numbered("1", '{"id":1,"a":4}', "ann", 4, 5),
        _numbered("4", '{"id":4,"a":5}', "ben", 1, 6),
    ]
    for history, duplicates in ((records, 1), (records + late, 2)):
        read = spark.sparkContext.accumulator(0)

        def count(batches, read=read):
            for batch in batches:
                read.add(batch.num_rows)
                yield batch

        given = _history(spark, [(0, record) for record in history])
        with merge_batch(spark, NAME, history=given.mapInArrow(count, given.schema), as_of=AS_OF) as merged:
            values = {bytes(row.key): bytes(row.value) for row in merged.records.collect()}
            marks = _marks(merged.marks)
        assert read.value == len(history)
        assert merged.counts["duplicate"] == duplicates
        assert values[b"1"] == (b'{"id":1,"a":4}' if late[0] in history else b'{"id":1,"a":2}')
        assert b"3" not in values
    assert marks == {0: {b"sequence//ann": b"4", b"sequence//ben": b"1 once"}}
