from __future__ import annotations

import random

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.errors import ConfigurationError
from processor.record import Record
from processor.store.marks import TransactionalMarks
from processor.testing import ProcessorTestDriver

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'sowstream[spark]'")

import pyarrow as pa

from spark_integration.foundation.arrow_records import headers_column, headers_of, outgoing, records
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.partition_merge import KeyedState, PartitionMerge

NOW_MS = 1_700_000_000_000
NAMES = ["client", "trace", "x"]


def _history(rng: random.Random, count: int) -> list[Record]:
    """Publishes, deltas, deletes and invalid commands of a few clients, which repeat themselves."""
    sequences = dict.fromkeys("abc", 0)
    history: list[Record] = []
    for offset in range(count):
        client = rng.choice("abc")
        sequences[client] += rng.choice([1, 1, 1, 0, -1, 3])
        headers = [("client", client.encode()), ("sequence", b"%d" % max(0, sequences[client]))]
        if rng.random() < 0.3:
            headers.append(("command", rng.choice([b"publish", b"sow_delete", b"delta_publish", b"nonsense"])))
        key = rng.randrange(5)
        value = rng.choice([b'{"id":%d,"a":%d}', b'{"id":%d,"b":{"c":%d}}', b'{"id":9%d,"a":%d}', b'{"id":%d,%d'])
        body = None if rng.random() < 0.1 else value % (key, rng.randrange(4))
        history.append(Record(b"%d" % key, body, headers if rng.random() < 0.7 else None, offset, NOW_MS))
    return history


@pytest.mark.parametrize("seed", range(20))
def test_a_partition_merge_does_as_a_worker_does(seed) -> None:
    """In the order of offsets and with marks, a partition merge outputs the records that a worker commits."""
    print("seed", seed)
    rng = random.Random(seed)
    history = _history(rng, 200)
    driver = ProcessorTestDriver(DeltaMerge, TopicConfig(), name="orders", now_ms=NOW_MS)
    driver.pipe_batch([(record.key, record.value, record.headers) for record in history])
    driver.commit()
    merge = PartitionMerge(topic_settings("orders", None), 0, KeyedState(), TransactionalMarks())
    sent = {"sow": [], "delta": [], "dlq": []}
    rest = history
    while rest:
        size = rng.randrange(1, 50)
        merge.process(rest[:size], NOW_MS)
        for role, forwarded in merge.take().items():
            sent[role] += forwarded
        rest = rest[size:]
    for role, forwarded in sent.items():
        assert forwarded == [(r.key, r.value, r.headers or []) for r in driver.read_output(role)], role
    assert merge.events == driver.events
    assert sum(merge.rejected.values()) == len(sent["dlq"])
    assert sent["dlq"]
    assert merge.events["duplicate"]


def test_a_batch_that_raises_is_merged_one_record_at_a_time() -> None:
    """An unexpected error rejects only its record, and earlier records of the batch are not output twice."""

    def clock(record):
        if record.value == b'{"id":2}':
            raise ZeroDivisionError("ours")
        return NOW_MS

    merge = PartitionMerge(topic_settings("orders", None), 3, KeyedState(), TransactionalMarks(), clock=clock)
    merge.process([Record(b"%d" % i, b'{"id":%d}' % i, None, i, NOW_MS) for i in (1, 2, 3)], NOW_MS)
    sent = merge.take()
    assert [key for key, _, _ in sent["sow"]] == [b"1", b"3"]
    assert [(key, dict(headers)["dlq_reason"]) for key, _, headers in sent["dlq"]] == [(b"2", b"plugin_failed")]
    assert dict(sent["dlq"][0][2])["source"] == b"orders.publish/3/2"
    assert merge.rejected == {"plugin_failed": 1}
    assert merge.take() == {}


def test_a_partition_merge_without_marks_accepts_sequences_in_any_order() -> None:
    """Without marks, sequences of a client may be in any order, and their headers are passed on."""
    merge = PartitionMerge(topic_settings("orders", None), 0, KeyedState(), None)
    batch = [
        Record(b"1", b'{"id":1,"n":%d}' % number, [("client", b"a"), ("sequence", b"%d" % number)], i, NOW_MS)
        for i, number in enumerate([5, 2, 9])
    ]
    merge.process(batch, NOW_MS)
    assert [dict(headers)["sequence"] for _, _, headers in merge.take()["sow"]] == [b"5", b"2", b"9"]


def test_due_records_expire() -> None:
    """Due records expire in the order of their times, with the next version."""
    settings = topic_settings("orders", {"expiration": "5s"})
    merge = PartitionMerge(settings, 0, KeyedState(), None)
    merge.process([Record(b"2", b'{"id":2}', None, 0, NOW_MS)], NOW_MS + 1)
    merge.process([Record(b"1", b'{"id":1}', None, 1, NOW_MS)], NOW_MS)
    merge.process([Record(b"3", b'{"id":3}', None, 2, NOW_MS)], NOW_MS + 2)
    merge.take()
    merge.expire(NOW_MS + 5001)
    assert [(key, value, dict(headers)["version"]) for key, value, headers in merge.take()["sow"]] == [
        (b"1", None, b"4"),
        (b"2", None, b"2"),
    ]


@pytest.mark.parametrize("seed", range(10))
def test_headers_come_back_from_arrow(seed) -> None:
    """Headers of any number, with null values and repeated names, are unchanged by a column and any slice of it."""
    print("seed", seed)
    rng = random.Random(seed)
    rows = [
        [(rng.choice(NAMES), rng.choice([None, b"", b"v"])) for _ in range(rng.choice([0, 0, 1, 3]))] for _ in range(30)
    ]
    column = headers_column(rows)
    assert headers_of(column) == [row or None for row in rows]
    begin, end = sorted(rng.sample(range(31), 2))
    assert headers_of(column[begin:end]) == [row or None for row in rows[begin:end]]


def test_records_of_a_batch() -> None:
    """Records are read from the columns by name; a null list of headers is None."""
    batch = pa.RecordBatch.from_pydict(
        {
            "offset": [7, 8],
            "timestamp_ms": [1, 2],
            "key": [b"a", None],
            "value": [None, b"{}"],
            "headers": pa.array([None, [{"key": "k", "value": b"v"}]], headers_column([]).type),
        }
    )
    assert records(batch) == [Record(b"a", None, None, 7, 1), Record(None, b"{}", [("k", b"v")], 8, 2)]


def test_an_outgoing_batch_has_sparks_columns() -> None:
    """Each output record is one row, with topic and partition."""
    batch = outgoing("orders.sow", 3, [(b"1", None, [("version", b"2")]), (b"2", b"{}", [])])
    assert batch.to_pylist() == [
        {"topic": "orders.sow", "partition": 3, "key": b"1", "value": None}
        | {"headers": [{"key": "version", "value": b"2"}]},
        {"topic": "orders.sow", "partition": 3, "key": b"2", "value": b"{}", "headers": []},
    ]


def test_a_delete_by_filter_is_rejected() -> None:
    """A delete by filter is rejected and its publisher gets an ack, the records stay, and other commands are merged."""
    merge = PartitionMerge(topic_settings("orders", None), 0, KeyedState(), TransactionalMarks())
    asks = [("command", b"sow_delete"), ("filter", b"/a = 1"), ("ack_type", b"stats")]
    values = ((b"1", b'{"id":1,"a":1}', None), (None, None, asks), (b"2", b'{"id":2,"a":1}', None))
    merge.process([Record(*value, offset, NOW_MS) for offset, value in enumerate(values)], NOW_MS)
    sent = merge.take()
    assert [key for key, _, _ in sent["sow"]] == [b"1", b"2"]
    assert merge.rejected == {"bad_header": 1}
    ((_, ack, _),) = sent["ack"]
    assert b"a merge on Spark sees one key at a time" in ack


def test_a_topic_without_records_has_nothing_to_merge() -> None:
    """A topic without records is refused by functions that need records, and can be published to."""
    with pytest.raises(ConfigurationError, match=r"ticks keeps no records \(sow: false\)"):
        topic_settings("ticks", {"sow": False})
    assert not topic_settings("ticks", {"sow": False}, needs_sow=False).topic.sow


def test_a_header_name_ends_at_its_first_nul() -> None:
    """As librdkafka reads it, and so a worker."""
    column = headers_column([[("command\0x", b"1"), ("a", None)], [], [("\0", b"2")]])
    assert headers_of(column) == [[("command", b"1"), ("a", None)], None, [("", b"2")]]
