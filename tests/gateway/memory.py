"""Topics in memory, for a gateway without Kafka: the same engines, fed by the test, and a merge as workers do it."""

from __future__ import annotations

import asyncio
import tempfile
import time
from concurrent.futures import Future

import yaml

from processor.codec.contract import CodecOptions
from processor.codec.json import JsonCodec
from processor.codec.value_checks import DEPTH_MAX
from processor.config import Config
from processor.errors import BrokerUnavailable, VersionConflict
from processor.filter import compile_filter
from processor.merge import KeyFields, MergePolicy, compile_merge
from processor.record import Record
from processor.subscriptions import Engine, MemoryRecords, Topic
from processor.subscriptions.records.update_history import HISTORY_BYTES, UpdateHistory
from processor.subscriptions.request.turn import Turn
from processor.wire.ack import Ack, ack_types, conflict_detail
from tests.gateway.running import RunningGateway

PARTITIONS = 3


class MemoryFeed:
    """The feed of a topic that a test writes; `restart` gives it a new engine, `hold` none until then."""

    def __init__(self, name, *, key=("/id",), history_bytes=HISTORY_BYTES, indexes=(), orders=()):
        self.topic = Topic(name, JsonCodec(CodecOptions(max_depth=DEPTH_MAX)), KeyFields(key))
        self.topic_id = "AAAA"
        self.updates = self.lag_records = self.last_update_ms = 0
        self.history_bytes, self.indexes, self.orders = history_bytes, indexes, orders
        self.on_begin = lambda feed: None
        self.records = {}
        self.versions = {}
        self.offsets = dict.fromkeys(range(PARTITIONS), 0)
        self.engine = None
        self.behind = None
        self.moved = None
        self._ready = asyncio.Event()
        self.begin()

    @property
    def is_ready(self):
        """True if there is an engine."""
        return self.engine is not None

    def view(self):
        """The view of a new engine."""
        return MemoryRecords()

    def begin(self):
        """A new engine with the records of now."""
        view = self.view()
        history = UpdateHistory(self.history_bytes)
        self.engine = Engine(self.topic, view, history=history, indexes=self.indexes, orders=self.orders, turn=Turn())
        for partition, offset in self.offsets.items():
            view.put(partition, [record for record in self.records.values() if self.partition(record.key) == partition])
            self.engine.open(partition, offset)
        self.engine.index()
        self._ready.set()

    def start(self):
        """Nothing is read."""

    async def ready(self, timeout_s):
        """The engine, as the feed of Kafka gives it."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            raise BrokerUnavailable(f"the view of {self.topic.name} has not caught up yet; try again later") from None
        return self.engine

    async def stop(self):
        """Nothing is closed."""

    def punctuate(self, now_ms):
        """Send conflated updates that are due."""
        if self.engine is not None and self.engine.due_ms is not None and self.engine.due_ms <= now_ms:
            self.engine.punctuate(now_ms)
        if self.engine is not None:
            self.engine.advance()

    def hold(self):
        """The view has not caught up, until `restart`."""
        self.engine = None
        self._ready.clear()

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
            None if value is None else self.topic.codec.encode(value),
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
        if self.behind is not None:
            self.behind.append((partition, record))
        elif self.engine is not None:
            self.engine.take(partition, [record], time.monotonic_ns() // 1_000_000)
        return version

    def fall_behind(self):
        """The view gets no records, until `catch_up`."""
        self.behind = []

    def catch_up(self):
        """The view gets the records that it lacks."""
        waiting, self.behind = self.behind, None
        for partition, record in waiting:
            self.engine.take(partition, [record], time.monotonic_ns() // 1_000_000)


class MemoryWorld:
    """A gateway over topics in memory."""

    def __init__(self, *topics, history_bytes=HISTORY_BYTES, keys=None, **settings):
        names = topics or ("orders",)
        keys = dict.fromkeys(names, ("/id",)) | (keys or {})
        self.config = Config(topics={name: {"key": list(keys[name]), "partitions": PARTITIONS} for name in names})
        declared = {name: settings.get(name, {}) for name in ("indexes", "orders")}
        self.feeds = {
            name: MemoryFeed(
                name,
                key=keys[name],
                history_bytes=history_bytes,
                **{kind: of_topics.get(name, ()) for kind, of_topics in declared.items()},
            )
            for name in names
        }
        self._directory = tempfile.TemporaryDirectory(prefix="sowstream-gateway-")
        settings.setdefault("state_dir", self._directory.name)
        self._started = lambda: RunningGateway(self.config, feeds=self.feeds, publishing=self._publish, **settings)
        self.gateway = self._started()
        self.connect = self.gateway.connect
        self.sequence = 0
        self.marks = {}
        self.refused = set()

    def put(self, key, _topic="orders", /, **fields):
        """Write a record."""
        return self.gateway.call(lambda: self.feeds[_topic].write(key, {"id": key, **fields}))

    def delete(self, key, topic="orders"):
        """Delete a record."""
        return self.gateway.call(lambda: self.feeds[topic].write(key, None))

    def close(self):
        """End the gateway."""
        self.gateway.stop()
        self._directory.cleanup()

    def restart(self):
        """End the gateway, and start another one on the same topics, at another port."""
        self.gateway.stop()
        for feed in self.feeds.values():
            feed._ready = asyncio.Event()  # That of the other event loop may not be waited for.
            feed.begin()
        self.gateway = self._started()
        self.connect = self.gateway.connect

    def _publish(self, name, op, topic, arguments):
        """Merge a command, as a worker does, and acknowledge it."""
        feed = self.feeds[topic]
        future = Future()
        types = ack_types(arguments.get("ack"), is_delete=op == "sow_delete") or ("persisted",)

        def selected():
            """The key of a command, or the keys of a delete of several records."""
            keys = arguments.get("keys")
            if arguments.get("filter") is not None:
                asked = compile_filter(arguments["filter"])
                keys = [key.decode() for key, one in feed.records.items() if asked.matches(feed.topic.value(one))]
            key = None if keys is not None else arguments.get("key") or feed.topic.key.text(arguments.get("data"))
            return key, keys

        def acknowledge(key, status, reason, version=None, deleted=None):
            self.sequence += 1
            number = arguments.get("sequence", self.sequence)
            for kind in types:
                ack = Ack(status, reason, kind, topic, key, name, number, None, version=version)
                if kind == "stats" or kind == types[-1]:
                    ack = ack._replace(records_deleted=deleted if "stats" in types else None)
                if (on_ack := arguments.get("on_ack")) is not None:
                    on_ack(ack)
            return ack

        def work():
            key, keys = selected()
            expected, version = arguments.get("expect_version"), feed.versions.get((key or "").encode(), 0)
            sequence = arguments.get("sequence")
            number, mark = (name, topic, sequence), self.marks.get((name, topic), -1)
            if sequence is not None and sequence <= mark and number not in self.refused:
                future.set_result(
                    acknowledge(key, "success", "duplicate", version or None, 0 if op == "sow_delete" else None)
                )
                return
            if sequence is not None:
                self.marks[name, topic] = max(mark, sequence)
                self.refused.discard(number)
            if expected not in (None, version):
                self.refused.add(number)
                detail = conflict_detail(version, expected)
                acknowledge(key, "failure", f"conflict: {detail}", version)
                future.set_exception(VersionConflict(detail, version))
                return
            deleted = None
            if op == "sow_delete":
                gone = [one for one in ([key] if keys is None else keys) if one.encode() in feed.records]
                deleted, version = len(gone), None
                for one in gone:
                    version = feed.write(one, None)
            else:
                data = arguments["data"]
                if op == "delta_publish":
                    old = feed.records.get(key.encode())
                    data = compile_merge(MergePolicy())(
                        {} if old is None else feed.topic.codec.decode(old.value), data
                    ).record
                version = feed.write(key, data)
            future.set_result(acknowledge(key, "success", None, version, deleted))

        self.gateway._loop.call_soon_threadsafe(work)
        return future if arguments.get("ack") else None


TOKENS = {"t-ann": {"user": "ann"}, "t-bob": {"user": "bob", "roles": ["desk"]}, "t-eve": {"user": "eve"}}
RIGHTS = {
    "roles": {
        "desk": {"orders": {"read": "/desk = 'x'", "select": "-/secret", "publish": "/desk = 'x'", "delete": False}}
    },
    "users": {"ann": {"orders": {"read": True, "publish": True, "delete": True}}},
}


class Guarded:
    """A gateway with tokens and entitlements in files."""

    def __init__(self, directory, **settings):
        self.tokens, self.rights = directory / "tokens.yaml", directory / "entitlements.yaml"
        self.write(self.tokens, TOKENS)
        self.write(self.rights, RIGHTS)
        self.world = MemoryWorld(auth={"tokens_file": self.tokens}, entitlements=self.rights, **settings)
        self.world.put(1, desk="x", secret=1, qty=1)
        self.world.put(2, desk="y", secret=2, qty=2)

    @staticmethod
    def write(path, tree):
        """Write a file in one step."""
        new = path.with_suffix(".new")
        new.write_text(yaml.safe_dump(tree))
        new.replace(path)
