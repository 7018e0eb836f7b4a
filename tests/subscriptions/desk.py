"""A test desk: an engine, the SOW records that it takes, and its subscribers' messages in short form."""

from __future__ import annotations

import json

from processor.codec.contract import CodecOptions
from processor.codec.json import JsonCodec
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Engine, MemoryRecords, SubscriptionSpec, Topic, parse_options

ORDERS = Topic("orders", JsonCodec(CodecOptions()), KeyFields(("/id",)))
"""A JSON topic with the key field /id."""

CALLS = {
    "sow": {"snapshot": True, "live": False, "delta": False},
    "subscribe": {"snapshot": False, "live": True, "delta": False},
    "sow_and_subscribe": {"snapshot": True, "live": True, "delta": False},
    "delta_subscribe": {"snapshot": False, "live": True, "delta": True},
    "sow_and_delta_subscribe": {"snapshot": True, "live": True, "delta": True},
}
"""The five calls with their parameters."""


class Desk:
    """An engine, the topic that it reads, and one connected subscriber."""

    def __init__(self, topic=ORDERS, view=None, partitions=2, queue_max=10_000):
        self.topic = topic
        self.engine = Engine(topic, MemoryRecords() if view is None else view)
        self.subscriber = self.engine.connect(queue_max)
        self.connection_of = {}
        self.versions = {}
        self.offsets = [100] * partitions
        self.now_ms = 0
        self.written = 0

    def subscribe(self, call, filter=None, options=None, *, sub_id=None, connection=None):  # noqa: A002
        """Begin a subscription, as a client does."""
        how = CALLS[call]
        request = SubscriptionSpec(self.topic, filter, parse_options(options, **how), **how)
        connection = connection or self.subscriber
        subscription = connection.subscribe(request, sub_id)
        self.connection_of[subscription] = connection
        return subscription

    def close(self, subscription):
        """End a subscription, as a client does."""
        self.connection_of[subscription].unsubscribe(subscription)

    def put(self, key, /, **fields):
        """Write a record, as a worker does."""
        self.take(self.record(key, json.dumps({"id": key, **fields}).encode()))

    def delete(self, key, kind=b"delete"):
        """Write a tombstone, as a worker does."""
        self.take(self.record(key, None, kind=kind))

    def take(self, *records):
        """Let the engine take records, a batch for each partition."""
        for partition in range(len(self.offsets)):
            batch = [record for record in records if self.partition(record.key) == partition]
            self.engine.take(partition, batch, self.now_ms)

    def record(self, key, value, **headers):
        """A record of the SOW topic."""
        name = str(key).encode()
        partition = self.partition(name)
        self.versions[name] = version = self.versions.get(name, 0) + 1
        self.offsets[partition] += 1
        record_headers = [("version", b"%d" % version), *headers.items()]
        self.written += 1
        return Record(name, value, record_headers, self.offsets[partition], 1_700_000_000_000 + self.written)

    def partition(self, name):
        """The partition of a key."""
        return sum(name) % len(self.offsets)

    def pass_ms(self, interval_ms):
        """Let time pass, and punctuate the engine."""
        self.now_ms += interval_ms
        self.engine.punctuate(self.now_ms)

    def take_messages(self, connection=None):
        """Take the waiting messages of a subscriber, in the form of `short`."""
        return [short(message) for message in (connection or self.subscriber).take(10**9)]


def short(message):
    """The short form of a message: `publish {…}`, `delta {…} -/gone`, `oof match {…}`, and `@a,b` for ids."""
    parts = ["delta" if message.delta else message.command]
    if message.reason is not None:
        parts.append(message.reason)
    if message.data is not None:
        parts.append(json.dumps(message.data, separators=(",", ":"), sort_keys=True).replace('"', ""))
    parts += [f"-{path}" for path in message.removed]
    if message.sub_ids:
        parts.append(f"@{','.join(message.sub_ids)}")
    return " ".join(parts)
