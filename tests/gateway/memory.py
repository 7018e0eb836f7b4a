"""Topics in memory, for a gateway without Kafka: the same engines, fed by the test, and a merge as workers do it."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future

from processor.codec.contract import CodecOptions
from processor.codec.json import JsonCodec
from processor.config import Config
from processor.errors import VersionConflict
from processor.filter import compile_filter
from processor.merge import KeyFields, MergePolicy, compile_merge
from processor.record import Record
from processor.subscriptions import Engine, MemoryRecords, Topic
from processor.subscriptions.history import HISTORY_BYTES, UpdateHistory
from processor.wire.ack import Ack
from tests.gateway.running import RunningGateway

PARTITIONS = 3


class MemoryFeed:
    """The feed of a topic that a test writes; `restart` gives it a new engine, `wipe` another topic too."""

    def __init__(self, name, *, key="/id", history_bytes=HISTORY_BYTES, indexes=(), orders=()):
        self.topic = Topic(name, JsonCodec(CodecOptions()), KeyFields((key,)))
        self.topic_id = "AAAA"
        self.generation = 0
        self.updates = self.lag_records = self.last_update_ms = 0
        self.history_bytes, self.indexes, self.orders = history_bytes, indexes, orders
        self.on_begin = lambda feed: None
        self.records = {}
        self.versions = {}
        self.offsets = dict.fromkeys(range(PARTITIONS), 0)
        self.engine = None
        self.begin()

    is_ready = True

    def begin(self):
        """A new engine with the records of now."""
        view = MemoryRecords()
        history = UpdateHistory(self.history_bytes)
        self.engine = Engine(self.topic, view, history=history, indexes=self.indexes, orders=self.orders)
        for partition, offset in self.offsets.items():
            view.put(partition, [record for record in self.records.values() if self.partition(record.key) == partition])
            self.engine.open(partition, offset)
        self.engine.index()
        self.generation += 1

    def start(self):
        """Nothing is read."""

    async def ready(self, timeout_s):
        """The engine."""
        return self.engine

    async def stop(self):
        """Nothing is closed."""

    def punctuate(self, now_ms):
        """Send conflated updates that are due."""
        if self.engine.due_ms is not None and self.engine.due_ms <= now_ms:
            self.engine.punctuate(now_ms)

    def restart(self):
        """Begin again with a new engine, as after a lost position."""
        self.begin()
        self.on_begin(self)

    @staticmethod
    def partition(key):
        """The partition of a key."""
        return sum(key) % PARTITIONS

    def write(self, key, value, **headers):
        """Write a record, or a tombstone, on the event loop."""
        name = str(key).encode()
        partition = self.partition(name)
        version = self.versions[name] = self.versions.get(name, 0) + 1
        kind = [("kind", b"insert")] if version == 1 else []
        if value is None:
            kind = [("kind", headers.pop("kind", b"delete"))]
            self.versions.pop(name)
        record = Record(
            name,
            None if value is None else json.dumps(value).encode(),
            [("version", b"%d" % version), *kind, *headers.items()],
            self.offsets[partition],
            int(time.time() * 1000),
        )
        self.offsets[partition] += 1
        if value is None:
            self.records.pop(name, None)
        else:
            self.records[name] = record
        self.updates += 1
        self.last_update_ms = record.timestamp_ms
        self.engine.take(partition, [record], time.monotonic_ns() // 1_000_000)
        return version


class MemoryWorld:
    """A gateway over topics in memory."""

    def __init__(self, *topics, history_bytes=HISTORY_BYTES, **settings):
        names = topics or ("orders",)
        self.config = Config(topics={name: {"key": ["/id"], "partitions": PARTITIONS} for name in names})
        declared = {name: settings.get(name, {}) for name in ("indexes", "orders")}
        self.feeds = {
            name: MemoryFeed(
                name,
                history_bytes=history_bytes,
                **{kind: of_topics.get(name, ()) for kind, of_topics in declared.items()},
            )
            for name in names
        }
        self.gateway = RunningGateway(self.config, feeds=self.feeds, publishing=self._publish, **settings)
        self.connect = self.gateway.connect
        self.sequence = 0

    def put(self, key, _topic="orders", /, **fields):
        """Write a record."""
        return self.gateway.call(lambda: self.feeds[_topic].write(key, {"id": key, **fields}))

    def delete(self, key, topic="orders"):
        """Delete a record."""
        return self.gateway.call(lambda: self.feeds[topic].write(key, None))

    def close(self):
        """End the gateway."""
        self.gateway.stop()

    def _publish(self, name, op, topic, arguments):
        """Merge a command, as a worker does, and acknowledge it."""
        feed = self.feeds[topic]
        future = Future()
        keys = arguments.get("keys")
        if arguments.get("filter") is not None:
            asked = compile_filter(arguments["filter"])
            keys = [key.decode() for key, one in feed.records.items() if asked.matches(json.loads(one.value))]
        key = None if keys is not None else arguments.get("key") or feed.topic.key.text(arguments.get("data"))

        kind = (arguments.get("ack") or "persisted").split(",")[-1]

        def work():
            expected, version = arguments.get("expect_version"), feed.versions.get((key or "").encode(), 0)
            if expected not in (None, version):
                reason = f"conflict: the record has version {version}"
                ack = Ack("failure", reason, kind, topic, key, name, self.sequence, None, version=version)
                if (on_ack := arguments.get("on_ack")) is not None:
                    on_ack(ack)
                future.set_exception(VersionConflict(reason, version))
                return
            if op == "sow_delete":
                for one in keys or [key]:
                    feed.write(one, None)
            else:
                data = arguments["data"]
                if op == "delta_publish" and (old := feed.records.get(key.encode())) is not None:
                    data = compile_merge(MergePolicy())(json.loads(old.value), data).record
                feed.write(key, data)
            self.sequence += 1
            deleted = len(keys or [key]) if op == "sow_delete" and "stats" in kind else None
            ack = Ack("success", None, kind, topic, key, name, self.sequence, None, deleted)
            if (on_ack := arguments.get("on_ack")) is not None:
                on_ack(ack)
            future.set_result(ack)

        self.gateway._loop.call_soon_threadsafe(work)
        return future if arguments.get("ack") else None
