"""The records of each topic role, as the writers of this checkout make them from a fixed history."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from processor.builtin.conflate import Conflate
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.client.publish.deleting import Selection, deletes
from processor.client.publish.outbox import Outbox, PublishOptions
from processor.codec.json import JsonCodec
from processor.config import Config, ConflatedConfig, QueueConfig, TopicConfig
from processor.record import Record
from processor.store.marks import POSITION_NAME
from processor.testing import ProcessorTestDriver
from processor.wire.control import Failure, Fence, Key, Notice, Order
from processor.wire.forwarding import forwarded_header
from processor.wire.partition_marks import InputPosition
from processor.wire.publisher_headers import (
    ack_type_header,
    healed_key_header,
    replay_headers,
    sequence_headers,
)
from processor.wire.topic_description import describe
from tests.builtin.view.chain import AggregateChain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.record import Headers

NOW_MS: Final = 1_700_000_000_000
"""The time of every record."""
KEY: Final = "/id"
"""The key field of the records."""
ORDERS: Final = TopicConfig(partitions=1, expiration="1h", source_header=True)
"""The settings of the published topic."""
COPY: Final = ConflatedConfig(underlying="orders", interval="1s")
"""The settings of the conflated topic."""
VIEW: Final[dict[str, Any]] = {
    "group_by": ["/customer"],
    "fields": {"/orders": "COUNT(*)", "/qty": "SUM(/qty)"},
    "as_of": True,
}
"""The settings of the view, but its underlying topic."""
CONFIG: Final = Config.model_validate({
    "application_id": "desk",
    "topics": {
        "orders": {"key": [KEY], "partitions": 4},
        "trades": {
            "key": "explicit", "message_type": "avro", "partitions": 2, "kafka_topics": {"publish": "acme.trades"},
            "schema": {"text": '{"type":"record","name":"Trade","fields":[{"name":"px","type":"double"}]}'},
        },
        "fills": {"message_type": "nvfix", "separator": "|", "key": [KEY, "/leg"], "foreign_partition": "accept"},
    },
    "conflated": {"orders_5s": {"underlying": "orders", "interval": "5s"}},
    "views": {"by_customer": {"underlying": "orders", **VIEW}},
})  # fmt: skip
"""The settings that the topic directory describes."""


def published() -> list[Record]:
    """Return an input topic: commands as the client writes them, and those that a worker and the tools send."""
    outbox = Outbox("orders", ORDERS, JsonCodec())
    made = [
        outbox.record("publish", {"id": 7, "customer": "acme", "qty": 3, "px": {"bid": 1.5, "ask": 2}}, None, None),
        outbox.record("delta_publish", {"id": 7, "qty": 4, "note": None}, None, {"traceparent": "00-a-b-01"}),
        outbox.record("delta_publish", {"id": 7}, None, {"remove": '["/px/ask"]'}),
        outbox.record(
            "delta_publish", {"id": 7, "qty": 18446744073709551616}, None, None, correlation_id="abc=", expiration=60
        ),
        outbox.record("publish", {"id": 8, "customer": "acme", "qty": 1}, None, None, expiration=0.5, command_id="c1"),
        _acked(outbox.record("delta_publish", {"id": "é", "tags": [1, {"a": None}]}, None, None, command_id="c2"), 1),
        _acked(outbox.record("delta_publish", {"id": 9, "qty": 2}, None, None, expect_version=0), 2),
        _acked(outbox.record("delta_publish", {"id": 9, "qty": 3}, None, None, expect_version=7), 3),
        _acked(outbox.record("delta_publish", {"id": 9, "qty": 3}, None, None), 2),
        (b"10", b"{not json", [("trace", b"t")]),
        (None, b'{"id":11,"qty":5}', None),
        (b"12", b'{"id":12}', [("no_conflate", b"true"), forwarded_header("orders.publish", 3, 41)]),
        (b"12", b'{"id":12,"qty":6}', replay_headers([("trace", b"t")], "orders.publish/0/9")),
        outbox.delete("8", None, None),
        (b"12", None, [healed_key_header("orders.publish"), ("expect_version", b"24")]),
        *[one.record for one in deletes(Selection(filter="/qty = 2"), outbox, lambda: 1, PublishOptions())],
    ]
    return [Record(key, value, headers, at, NOW_MS) for at, (key, value, headers) in enumerate(made)]


def merged(records: Iterable[Record] | None = None) -> dict[str, list[Record]]:
    """Return the outputs of a delta merge and a queue over it, by role, for an input topic; None: `published`."""
    driver = merge_driver()
    for record in published() if records is None else records:
        driver.append_input(record.key, record.value, record.headers)
    driver.feed()
    driver.commit()
    driver.advance_time(2_000)
    driver.commit()
    outputs = {role: driver.read_output(role) for role in ("sow", "delta", "ack", "dlq", "mark")}
    position = InputPosition("desk", "KyVL8zLdTQa1Xz0v1cVw3A", driver.committed_offset, "seen 4800")
    end = len(outputs["mark"])
    outputs["mark"].append(Record(POSITION_NAME, bytes(position), None, end, NOW_MS))
    return outputs | {"to_ship.queue": driver.read_output("to_ship.queue"), "publish": driver.input}


def merge_driver() -> ProcessorTestDriver:
    """Return a delta merge with the settings of the golden topic, and without records."""
    queue = QueueConfig(underlying="orders", filter="/qty > 2")
    return ProcessorTestDriver(
        DeltaMerge, ORDERS, name="orders", topic=ORDERS, queues={"to_ship": queue}, now_ms=NOW_MS
    )


def conflated(sow: Iterable[Record]) -> dict[str, list[Record]]:
    """Return the outputs of a conflated topic over SOW records, by role."""
    driver = ProcessorTestDriver(Conflate, COPY, name="orders_5s", topic=ORDERS, underlying="orders", now_ms=NOW_MS)
    for record in sow:
        driver.append_input(record.key, record.value, record.headers)
    driver.feed()
    driver.advance_time(1_000)
    driver.commit()
    return {role: driver.read_output(role) for role in ("sow", "delta")}


def viewed() -> dict[str, list[Record]]:
    """Return the outputs of a view's second stage, and the internal topic between its stages, by role."""
    chain = AggregateChain(VIEW, inputs=1, partitions=1)
    chain.put(0, "7", {"id": 7, "customer": "acme", "qty": 3})
    chain.put(0, "8", {"id": 8, "customer": "acme", "qty": 0.5})
    chain.run()
    chain.put(0, "8", {"id": 8, "customer": None, "qty": "2"})
    chain.put(0, "7", None)
    chain.run()
    split, aggregate = chain.splits[0], chain.aggregates[0]
    outputs = {role: aggregate.read_output(role) for role in ("sow", "delta", "mark")}
    return outputs | {"parts": split.read_output("parts@0"), "split.sow": split.read_output("sow")}


def control() -> list[Record]:
    """Return the control topic: a record of each kind."""
    process: dict[str, Any] = {"message": "of no use", "host": "a", "pid": 7, "version": "0.1.0"}
    entries = [
        (Key("held", "desk", "orders", "3"),
         Notice(at_ms=NOW_MS, reason="open_transaction", offset=12, since_ms=NOW_MS, tries=2, next_try_ms=NOW_MS,
                order_ms=0, **process)),
        (Key("failed", "desk", "orders", "a-state-0"), Failure(at_ms=NOW_MS, **process)),
        (Key("resume", "desk", "orders", "*"), Order(at_ms=NOW_MS, partition=None, skip_until=None, by="ann@a")),
        (Key("fence", "desk", "orders", "*"),
         Fence(at_ms=NOW_MS, phase="spark", number=1, checkpoint="/c", topic_id="t", offsets={0: 7}, by="ann@a")),
    ]  # fmt: skip
    return _numbered((key.encode(), entry.encode()) for key, entry in entries)


def directory() -> list[Record]:
    """Return the topic directory: a description of each kind of topic."""
    return _numbered((name.encode(), description.to_json()) for name, description in describe(CONFIG).items())


def topics() -> dict[str, list[Record]]:
    """Return every golden topic by the name of its file."""
    merges = merged()
    made = {f"orders.{role}" if "." not in role else role: records for role, records in merges.items()}
    made |= {f"orders_5s.{role}": records for role, records in conflated(merges["sow"]).items()}
    made |= {f"by_customer.{role}": records for role, records in viewed().items()}
    return made | {"_sowstream.control": control(), "_sowstream.topics": directory()}


def _acked(record: tuple[bytes, bytes | None, Headers | None], sequence: int) -> tuple[bytes, bytes | None, Headers]:
    """Return a command with a sequence and acks, as the client sends it."""
    key, value, headers = record
    types = ack_type_header(("processed", "persisted"))
    return key, value, [*(headers or ()), *sequence_headers("desk-1", sequence), types]


def _numbered(records: Iterable[tuple[bytes, bytes | None]]) -> list[Record]:
    make = partial(Record, headers=None, timestamp_ms=NOW_MS)
    return [make(key, value, offset=at) for at, (key, value) in enumerate(records)]
