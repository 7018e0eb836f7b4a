"""Messages from Kafka with headers that confluent_kafka cannot convert: their bytes come from a writer of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from processor.kafka.admin.admin import Admin
from processor.kafka.clients.group_consumer import GroupConsumer
from processor.kafka.clients.log_reader import LogReader, Position
from processor.kafka.message import columns, records
from processor.topics.family import TopicSpec
from processor.wire.headers import UNREADABLE_NAME
from tests.endtoend.raw_batch import RawWriter, raw_batch, raw_record

if TYPE_CHECKING:
    from processor.record import Headers
    from tests.endtoend.raw_batch import RawHeader

pytestmark = pytest.mark.broker

CASES: list[tuple[list[RawHeader], Headers | None]] = [
    ([], None),
    ([(b"a", b"1"), (b"\xff\xfe", b"2"), (b"b", None)], [("a", b"1"), (UNREADABLE_NAME, b"2"), ("b", None)]),
    ([(b"\xff", None)], [(UNREADABLE_NAME, None)]),
    ([(b"\xff", b"1"), (b"\xfe", b"2")], [(UNREADABLE_NAME, b"1"), (UNREADABLE_NAME, b"2")]),
    ([(b"\xed\xa0\x80", b"")], [(UNREADABLE_NAME, b"")]),
    ([(b"\xc0\x80", b"")], [(UNREADABLE_NAME, b"")]),
    ([(b"\xf5\x80\x80\x80", b"")], [(UNREADABLE_NAME, b"")]),
    ([(b"\xc3", b"cut off")], [(UNREADABLE_NAME, b"cut off")]),
    ([("é".encode(), b"\xff\x00")], [("é", b"\xff\x00")]),
    ([(b"", b"x")], [("", b"x")]),
    ([(b"a\0b", b"x"), (b"\0", b"y"), (b"c\0\xff", b"z")], [("a", b"x"), ("", b"y"), ("c", b"z")]),
    ([(b"a", b"1"), (b"a", None)], [("a", b"1"), ("a", None)]),
    ([(b"h", b"")] * 1000, [("h", b"")] * 1000),
    ([(b"h", b"")] * 999 + [(b"\xff", b"")], [("h", b"")] * 999 + [(UNREADABLE_NAME, b"")]),
]


@pytest.fixture
def topic(bootstrap: str, unique: str) -> str:
    """A topic with a record for each case, several in a batch."""
    Admin({"bootstrap.servers": bootstrap}).create([TopicSpec(unique, "publish", 1, {})])
    encoded = [raw_record(number, b"k", b"%d" % number, headers) for number, (headers, _) in enumerate(CASES)]
    with RawWriter(bootstrap, unique) as writer:
        assert writer.send(0, raw_batch(b"".join(encoded), len(encoded)))[0] == 0
    return unique


class Listener:
    """Begins each partition at its beginning."""

    def __init__(self) -> None:
        self.assigned: list[int] = []

    def on_assigned(self, partitions: list[int]) -> None:
        """Note them."""
        self.assigned += partitions

    def on_revoked(self, partitions: list[int]) -> None:
        """Nothing is to be done."""

    on_lost = on_revoked


def test_a_member_of_a_group_reads_each_record_with_what_can_be_read(bootstrap: str, topic: str) -> None:
    """A name that is not UTF-8 is replaced; values and other headers are kept, and no later call fails."""
    listener = Listener()
    consumer = GroupConsumer(
        {"bootstrap.servers": bootstrap}, group=topic, topic=topic, session_timeout_s=10, listener=listener
    )
    try:
        while not listener.assigned:
            consumer.poll(1, 0.1)
        consumer.begin(0, 0)
        messages = []
        while len(messages) < len(CASES):
            messages += consumer.poll(5, 0.1)
    finally:
        consumer.close()
    for _ in range(2):
        assert [record.headers for record in records(messages)] == [headers for _, headers in CASES]
        assert columns(messages).headers == [tuple(headers or ()) for _, headers in CASES]
    assert [record.value for record in records(messages)] == [b"%d" % number for number in range(len(CASES))]


def test_a_reader_of_a_log_reads_each_record_with_what_can_be_read(bootstrap: str, topic: str) -> None:
    """Restores, snapshots, subscriptions and tools read in this way."""
    reader = LogReader({"bootstrap.servers": bootstrap}, group=topic)
    try:
        reader.add([Position(topic, 0, 0)])
        messages = []
        while len(messages) < len(CASES):
            messages += reader.read(5, 0.1).messages
    finally:
        reader.close()
    assert [record.headers for record in records(messages)] == [headers for _, headers in CASES]
