"""Header names that are not UTF-8: a batch merge on Spark, a streaming one and a worker treat each record alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.kafka.clients.log_reader import LogReader, Position
from processor.kafka.message import records
from processor.testing import ProcessorTestDriver
from spark_integration import merge_batch, read_sow
from tests.endtoend.raw_batch import RawWriter, raw_batch, raw_record
from tests.endtoend.world import World

if TYPE_CHECKING:
    from processor.record import Record
    from tests.endtoend.raw_batch import RawHeader

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    # The first start fetches the connector.
]

HEADERS: list[list[RawHeader]] = [
    [],
    [(b"\xff\xfe", b"1")],
    [(b"trace", b"\xff\x00"), (b"\xc0\x80", None)],
    [(b"\xed\xa0\x80", b""), (b"command", b"publish")],
    [("\ufffd".encode(), b"1")],
    [(b"trace", b"\xff\x00"), ("é".encode(), None)],
    [(b"command\0x", b"sow_delete")],
    [(b"trace\0\xff", b"1")],
    [(b"", b"no name")],
]


def test_a_batch_merge_rejects_and_merges_the_records_that_a_worker_does(spark, bootstrap, tmp_path, unique) -> None:
    """Java reads U+FFFD in place of bytes that are not UTF-8, and NUL within a name; librdkafka reads neither."""
    world = World(bootstrap, tmp_path, unique, partitions=1)
    topic, options = f"{unique}.publish", {"kafka.bootstrap.servers": bootstrap}
    try:
        encoded = [
            raw_record(number, b"%d" % number, b'{"id":%d}' % number, headers) for number, headers in enumerate(HEADERS)
        ]
        batch = raw_batch(b"".join(encoded), len(encoded))
        version: list[RawHeader] = [(b"version", b"3"), (b"\xff", b"")]
        with RawWriter(bootstrap, topic) as writer, RawWriter(bootstrap, f"{unique}.sow") as sow:
            assert writer.send(0, batch)[0] == 0
            assert sow.send(0, raw_batch(raw_record(0, b"foreign", b'{"id":"foreign"}', version), 1))[0] == 0
        assert [row["id"] for row in read_sow(spark, unique, "id STRING", options=options).collect()] == ["foreign"]

        driver = ProcessorTestDriver(DeltaMerge, TopicConfig(), name=unique, topic=TopicConfig())
        driver.pipe_batch([(record.key, record.value, record.headers) for record in read(bootstrap, topic)])
        driver.commit()
        expected = {record.key: (record.value, dict(record.headers or ())) for record in driver.read_output("sow")}
        rejected = [record.key for record in driver.read_output("dlq")]
        with merge_batch(spark, unique, config=world.file, options=options) as merged:
            rows = {bytes(row["key"]): row for row in merged.records.collect() if bytes(row["key"]) != b"foreign"}
            assert merged.rejected_for == {"bad_header": len(rejected)}
        assert rejected == [b"1", b"2", b"3", b"4"]
        assert rows.keys() == expected.keys() == {b"0", b"5", b"7", b"8"}
        for key, (value, headers) in expected.items():
            found = {header["key"]: header["value"] and bytes(header["value"]) for header in rows[key]["headers"]}
            assert (bytes(rows[key]["value"]), found) == (value, headers)
    finally:
        world.close()


def read(bootstrap: str, topic: str) -> list[Record]:
    """The records of a topic of one partition, as workers read them."""
    reader = LogReader({"bootstrap.servers": bootstrap}, group=topic)
    try:
        reader.add([Position(topic, 0, 0)])
        messages = []
        while len(messages) < len(HEADERS):
            messages += reader.read(100, 0.1).messages
        return records(messages)
    finally:
        reader.close()
