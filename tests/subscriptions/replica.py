"""A naive model of a topic, of the messages that each subscriber may receive, and of the subscriber's records."""

from __future__ import annotations

import copy
import re

from processor.merge import apply_delta, strictly_equal
from processor.subscriptions.request.record_order import SortOrder
from processor.subscriptions.request.select import Select
from tests.subscriptions.desk import CALLS


class World:
    """Every current and past record of a topic."""

    def __init__(self, topic):
        self.topic = topic
        self.now = {}
        self.ever = {}
        self.replicas = {}

    def take(self, record, value):
        """Take a record from a worker; the value None is a tombstone."""
        key, version = record.key.decode(), int(dict(record.headers)["version"])
        self.ever[key, version] = value
        if value is None:
            self.now.pop(key, None)
        else:
            self.now[key] = (version, record, value)
        for replica in self.replicas.values():
            replica.look(key)


class Replica:
    """The copy of one subscriber, updated by the messages of one subscription and checked against the world."""

    def __init__(self, world, call, request, interval_ms, now_ms):
        self.world, self.request, self.options = world, request, request.options
        self.has_snapshot, self.is_live, self.is_delta = CALLS[call].values()
        self.select = (
            Select(self.options.select, world.topic.key).project if self.options.select else lambda value: value
        )
        self.interval_ms, self.began_ms = interval_ms, now_ms
        self.may_see = set()
        self.updated = set()
        self.message_counts = {}
        self.versions = {}
        self.received = set()
        self.is_over = False
        self.snapshot = None
        self.was_in_snapshot = [(key, self.select(value)) for key, _, value in self.focus()]
        # Without a snapshot a delta subscriber is supposed to have the existing records.
        supposed = self.is_delta and not self.has_snapshot
        self.holds = copy.deepcopy(dict(self.was_in_snapshot)) if supposed else {}
        self.look(None)

    def focus(self):
        """The records in focus: key, version, record and value, in order."""
        topic, request = self.world.topic, self.request
        rows = [
            (key, version, record, value)
            for key, (version, record, value) in self.world.now.items()
            if request.filter is None or request.filter.matches(value, topic.metadata_of(record))
        ]
        if self.options.order_by or self.options.is_window:
            order = SortOrder(self.options.order_by)
            rows.sort(key=lambda row: order.key(row[2].key, row[3], topic.metadata_of(row[2])))
            end = None if self.options.top_n is None else self.options.skip_n + self.options.top_n
            if self.options.is_window:
                rows = rows[self.options.skip_n : end]
        return [(key, version, value) for key, version, _, value in rows]

    def look(self, key):
        """Add the records in focus to the messages that are allowed from now on."""
        focus = [(name, version) for name, version, _ in self.focus()]
        entered = [name for name, version in focus if (name, version) not in self.may_see]
        self.may_see.update(focus)
        if key is not None:
            self.updated.update(entered)

    def hear(self, message, now_ms):
        """Apply a message and check it."""
        assert not self.is_over
        if message.command in ("group_begin", "group_end"):
            self._mark(message.command)
            return
        key, version = message.sow_key, message.version
        if key is None:
            assert self.options.no_sowkey
            key = str(message.data["id"])
        self._time(key, message.command, now_ms)
        getattr(self, f"_{message.command}")(key, version, message)

    def _mark(self, command):
        assert self.has_snapshot
        if command == "group_begin":
            assert self.snapshot is None
            self.snapshot = []
            return
        wanted = self.was_in_snapshot
        if not self.options.order_by and not self.options.is_window:
            self.snapshot, wanted = sorted(self.snapshot, key=repr), sorted(wanted, key=repr)
        assert self.snapshot == wanted
        self.snapshot = "over"
        self.is_over = not self.is_live

    def _time(self, key, command, now_ms):
        """Check that an interval passes between two messages of a key, and before the first one."""
        if command != "sow" and self.interval_ms is not None:
            self.message_counts[key] = self.message_counts.get(key, 0) + 1
            assert self.message_counts[key] <= (now_ms - self.began_ms) // self.interval_ms

    def _sow(self, key, version, message):
        assert isinstance(self.snapshot, list)
        assert not message.delta
        self.snapshot.append((key, message.data))
        self._publish(key, version, message)

    def _publish(self, key, version, message):
        assert self.is_live or message.command == "sow"
        if self.has_snapshot and message.command == "publish":
            assert self.snapshot == "over"
        assert (key, version) in self.may_see
        before = self.versions.get(key, -1)
        assert version >= before if self.options.is_window else version > before
        if message.delta:
            assert self.is_delta
            assert key in self.holds, "a delta of a record that the subscriber cannot know"
            if self.options.no_empties:
                assert message.removed or set(message.data) != {"id"}
            if (held := self.versions.get(key)) is not None:
                assert message.delta_base == held if len(message.sub_ids) == 1 else message.delta_base <= held
            self.holds[key] = apply_delta(self.holds[key], copy.deepcopy(message.data), message.removed)
        else:
            self.holds[key] = copy.deepcopy(message.data)
        self.versions[key] = version
        self.received.add(key)
        # A message for several subscriptions has more fields than this one requested.
        assert strictly_equal(self.select(self.holds[key]), self.select(self.world.ever[key, version]))

    def _oof(self, key, version, message):
        assert self.options.oof
        assert key in self.received, "an oof of a record that was never received"
        assert version >= self.versions[key]
        self.versions[key] = version
        self.received.remove(key)
        now = self.world.ever[key, version]
        held = self.select(self.holds.pop(key))
        data = self.select(message.data)
        assert (message.reason == "match") == (now is not None)
        assert strictly_equal(data, held) or (now is not None and strictly_equal(data, self.select(now)))

    def settle(self):
        """Check that the copy equals the records in focus, after all messages were released and taken."""
        if self.is_over:
            return
        assert self.snapshot == ("over" if self.has_snapshot else None)
        focus = {key: self.select(value) for key, _, value in self.focus()}
        for key, value in focus.items():
            if self.has_snapshot or self.is_delta or key in self.updated:
                assert key in self.holds
            assert key not in self.holds or strictly_equal(self.select(self.holds[key]), value)
        if self.options.oof:
            assert self.received <= set(focus)
            assert not self.has_snapshot or set(self.holds) == set(focus)


def ended(error):
    """The id of the subscription that was too slow."""
    return re.match(r"subscription (\S+) to", str(error))[1]
