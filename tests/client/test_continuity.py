"""Missing deltas are noticed, and the subscriber's records are corrected."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.client.feeds.continuity import Continuity, RereadRecords
from processor.client.feeds.delta_feed import DeltaFeed
from processor.client.feeds.snapshot_boundary import FetchedBatches
from processor.codec.json import JsonCodec
from processor.errors import BrokerUnavailable, Stop
from processor.merge import KeyFields, apply_delta
from processor.record import Record
from processor.subscriptions import Options, Topic
from processor.wire.subscriber_headers import read_delta_headers
from tests.client.family import Whole

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from processor.subscriptions import Message

PROVED = settings(max_examples=200, deadline=None, print_blob=True)
ORDERS = Topic("orders", JsonCodec(), KeyFields(("/id",)))


@dataclass
class World:
    """One partition of a SOW topic and of its delta topic; the records of one update have one offset in both."""

    sow: list[Record] = field(default_factory=list)
    deltas: list[Record] = field(default_factory=list)
    records: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    """By key: version and record."""

    def update(self, key: str, /, step: int = 1, **fields: object) -> None:
        """Insert or update a record; one that conflates several has a higher version, or, over a delete, a lower."""
        before, record = self.records.get(key, (0, {}))
        version = max(1, before + step)
        headers = {"version": version} | ({} if before else {"kind": "insert"})
        base = {"delta_base": before} if before and before != version - 1 else {}
        body = {"id": key, "base": before, "base_at": record.get("at"), "at": len(self.sow), **fields}
        self.records[key] = version, record | body
        self._write(key, record | body, body, headers, base)

    def delete(self, key: str) -> None:
        """A delete, which takes the next version."""
        before, _ = self.records.pop(key)
        self._write(key, None, {"id": key}, {"version": before + 1, "kind": "delete"}, {})

    def _write(self, key: str, record: object, delta: object, headers: dict[str, Any], more: dict[str, Any]) -> None:
        offset = len(self.sow)
        for topic, body, named in ((self.sow, record, headers), (self.deltas, delta, headers | more)):
            data = None if body is None else json.dumps(body).encode()
            said = [(name, str(value).encode()) for name, value in named.items()]
            topic.append(Record(key.encode(), data, said, offset, 1_000 + offset))

    def state(self, end: int, keys: Collection[bytes]) -> dict[bytes, Record]:
        """The last SOW record of these keys before an offset."""
        return {record.key: record for record in self.sow[:end] if record.key in keys}  # type: ignore[misc]


class Subscriber:
    """Applies its messages, and checks each delta independently."""

    def __init__(self) -> None:
        self.records: dict[str, tuple[int | None, dict[str, Any]]] = {}

    def take(self, messages: list[Message]) -> None:
        """Apply messages; every delta must apply to the subscriber's version."""
        for message in messages:
            key, data = str(message.sow_key), deepcopy(message.data)
            if message.delta:
                held, record = self.records[key]
                assert (held, record["at"]) == (data["base"], data["base_at"]), message
                data = apply_delta(record, data, message.removed)
            self.records[key] = message.version, data


class Lossy:
    """A fake boundary of the delta topic that returns the deltas chosen by a test, in parts."""

    def __init__(self, partition: int = 0) -> None:
        self.ends = {partition: 0}
        self.partition = partition
        self.next: list[Record] = []
        self.end: int | None = None

    def follow(self) -> None:
        """Do nothing: it starts at the beginning."""

    def after(self, _wait_s: float) -> FetchedBatches:
        """The deltas that the test has put there."""
        batch, self.next = self.next, []
        end, self.end = self.end, None
        return FetchedBatches([(self.partition, batch)] if batch else [], {} if end is None else {self.partition: end})


def feed_of(boundary: Lossy, read_again: Callable[..., RereadRecords], **options: Any) -> DeltaFeed:
    """The feed of a plain delta subscription."""
    return DeltaFeed(ORDERS, boundary, Options(), read_again, **options)  # type: ignore[arg-type]


STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["update"] * 4 + ["fold", "delete", "anew"]), st.booleans()),
    max_size=24,
)


@PROVED
@given(STEPS, st.data())
def test_after_any_losses_the_subscriber_has_the_sow_records(steps: list[tuple[str, str, bool]], data: Any):
    """Random losses with records read again at any later time, also after deletes, end with the SOW records.

    At the end the subscriber has the records in SOW, and each delta applied to the record that it had. Losses that
    cannot be noticed are left out: of a delete and all versions up to one that was delivered before.
    """
    world = World()
    lost: set[int] = set()
    for key in "ab":
        world.update(key, n=-1)
    for number, (key, kind, is_lost) in enumerate(steps):
        if is_lost and kind in ("update", "fold") and key in world.records:
            lost.add(len(world.sow))
        if kind == "delete" and key in world.records:
            world.delete(key)
        else:
            step = {"fold": 3, "anew": -2}.get(kind, 1)
            world.update(key, step, **{f"f{number % 3}": number})
    for key in "ab":  # A lost last delta is noticed only with the next one.
        world.update(key, n=1)
    end = len(world.sow)
    boundary, subscriber, reached = Lossy(), Subscriber(), 0

    def read_again(partition: int, keys: Collection[bytes], since_ms: int) -> RereadRecords:
        assert partition == 0
        at = data.draw(st.integers(reached, end), label="records read at")
        records = world.state(at, keys)
        assert all(record.timestamp_ms >= since_ms for record in records.values())
        return RereadRecords(records, data.draw(st.integers(at, end), label="end of the deltas then"))

    feed = feed_of(boundary, read_again)
    while reached < end:
        begin, reached = reached, data.draw(st.integers(reached + 1, end), label="next batch up to")
        boundary.next = [record for record in world.deltas[begin:reached] if record.offset not in lost]
        boundary.end = reached if data.draw(st.booleans(), label="end is said") else None
        subscriber.take(feed.fetch(0))
    for _ in range(4):
        boundary.end = end
        subscriber.take(feed.fetch(0))
    assert {key: subscriber.records[key] for key in world.records} == world.records
    if not lost:
        assert feed.healed == 0


def deltas_of(*updates: dict[str, Any]) -> World:
    """A world with updates of key 1."""
    world = World()
    for each in updates:
        world.update("1", **each)
    return world


def test_a_gap_is_healed_with_a_full_record():
    """The delta after a gap is replaced by the record; deltas that it contains are dropped, newer ones follow."""
    world = deltas_of({"a": 1}, {"b": 2}, {"c": 3}, {"a": 4}, {"b": 5})
    asked = []

    def read_again(partition: int, keys: Collection[bytes], since_ms: int) -> RereadRecords:
        asked.append((partition, list(keys), since_ms))
        return RereadRecords(world.state(4, keys), 5)

    boundary = Lossy(2)
    feed = feed_of(boundary, read_again)
    boundary.next = [world.deltas[0], world.deltas[2]]
    insert, healed = feed.fetch(0)
    assert (insert.delta, insert.version) == (False, 1)
    assert (healed.command, healed.delta, healed.version) == ("publish", False, 4)
    assert {name: healed.data[name] for name in "abc"} == {"a": 4, "b": 2, "c": 3}
    assert asked == [(2, [b"1"], 1_002)]
    boundary.next, boundary.end = world.deltas[3:], 5
    [newer] = feed.fetch(0)
    assert (newer.delta, newer.version, newer.data["b"]) == (True, 5, 5)
    assert (feed.healed, feed.unchecked) == (1, 0)


@pytest.mark.parametrize(("read_at", "versions"), [(4, [1, 2]), (5, [1])])
def test_a_key_that_was_deleted_must_begin_again(read_at: int, versions: list[int]):
    """An update after a delete shows that an insert is missing; a record that is gone makes no message."""
    world = deltas_of({"n": 1})
    world.delete("1")
    for n in (2, 3):
        world.update("1", n=n)
    world.delete("1")
    world.update("1", n=4)
    ends = iter([read_at, 5])

    def read_again(_partition: int, keys: Collection[bytes], _since_ms: int) -> RereadRecords:
        return RereadRecords(world.state(next(ends), keys), 5)

    boundary = Lossy()
    feed = feed_of(boundary, read_again)
    boundary.next = [world.deltas[0], world.deltas[1], world.deltas[3]]
    assert [message.version for message in feed.fetch(0)] == versions
    boundary.next, boundary.end = [world.deltas[4]], 5
    assert feed.fetch(0) == []
    boundary.next = [world.deltas[5]]
    assert [(message.version, message.delta) for message in feed.fetch(0)] == [(1, False)]


def test_other_keys_go_on_while_a_record_is_read_again():
    """While Kafka does not answer, the broken key waits, other keys are delivered, and the next turn asks again."""
    world = World()
    for key in ("1", "2"):
        for n in range(4):
            world.update(key, n=n)
    answers = [BrokerUnavailable("not now"), None]

    def read_again(_partition: int, keys: Collection[bytes], _since_ms: int) -> RereadRecords:
        if (error := answers.pop(0)) is not None:
            raise error
        return RereadRecords(world.state(8, keys), 8)

    boundary = Lossy()
    feed = feed_of(boundary, read_again)
    boundary.next = [world.deltas[0], *world.deltas[2:]]
    assert [(message.sow_key, message.version) for message in feed.fetch(0)] == [
        ("1", 1), *[("2", version) for version in (1, 2, 3, 4)]
    ]  # fmt: skip
    assert [(message.sow_key, message.version, message.delta) for message in feed.fetch(0)] == [("1", 4, False)]


def test_a_record_that_cannot_be_read_again_ends_the_subscription():
    """Earlier messages are delivered first; then the error has the reason why the gap stays."""
    world = deltas_of({}, {}, {})

    def read_again(*_: object) -> RereadRecords:
        raise Stop("orders.sow: not allowed")

    boundary = Lossy()
    feed = feed_of(boundary, read_again)
    boundary.next = [world.deltas[0], world.deltas[2]]
    assert [message.version for message in feed.fetch(0)] == [1]
    with pytest.raises(Stop, match="not allowed"):
        feed.fetch(0)


def test_of_too_many_keys_the_oldest_are_forgotten_and_counted():
    """The next delta of a forgotten key is accepted; keys delivered recently are still checked."""
    check = Continuity(4)

    def admits(key: bytes, version: int) -> bool:
        record = Record(key, b"{}", [("version", b"%d" % version)], 0, 0)
        return check.admits(record, read_delta_headers(record.headers))

    for key in (b"a", b"b", b"c", b"d"):
        assert admits(key, 5)
    assert check.forgotten == 2
    assert admits(b"a", 9)
    assert not admits(b"d", 9)
    assert list(check.broken) == [b"d"]


def test_full_records_need_no_check():
    """A message type without deltas carries full records: a missing version has no effect."""
    world = deltas_of({"a": 1}, {"b": 2}, {"c": 3})
    topic = Topic("orders", Whole(), KeyFields(("/id",)))
    boundary = Lossy()
    feed = DeltaFeed(topic, boundary, Options(), lambda *_: pytest.fail("read again"))  # type: ignore[arg-type]
    boundary.next = [world.deltas[0], world.deltas[2]]
    assert [message.version for message in feed.fetch(0)] == [1, 3]
    assert feed.healed == 0


def test_deltas_without_a_version_are_not_checked():
    """Deltas without versions, as a third-party processor may write them, are delivered as they arrive."""
    boundary = Lossy()
    feed = feed_of(boundary, lambda *_: pytest.fail("read again"))
    boundary.next = [
        Record(b"1", b'{"id":1}', headers, 0, 0) for headers in ([], [("version", b"x")], [("version", None)])
    ]
    assert [message.version for message in feed.fetch(0)] == [None, None, None]


@pytest.mark.parametrize(
    ("headers", "base", "begins_life"),
    [
        ([("version", b"3")], 2, False),
        ([("version", b"9"), ("delta_base", b"4")], 4, False),
        ([("version", b"1"), ("kind", b"insert")], 0, True),
        ([("version", b"2"), ("delta_base", b"7")], 7, True),
        ([("version", b"8"), ("kind", b"expire")], 7, True),
        ([("kind", b"update"), ("version", b"1"), ("version", b"2")], 1, False),
    ],
)
def test_headers_have_the_base_of_a_delta(headers: list[tuple[str, bytes]], base: int, begins_life: bool):
    """Without `delta_base` the base is the previous version; a version that does not grow starts a new life."""
    said = read_delta_headers(headers)
    assert (said.base, said.begins_life) == (base, begins_life)


def test_each_healed_key_waits_for_its_own_position():
    """Keys that were read again at different times settle at different positions of the delta topic."""
    check = Continuity(100)

    def admits(key: bytes, version: int, offset: int) -> bool:
        record = Record(key, b"{}", [("version", b"%d" % version)], offset, 0)
        return check.admits(record, read_delta_headers(record.headers))

    for key, until in ((b"a", 5), (b"b", 9)):
        assert admits(key, 1, 0)
        assert not admits(key, 3, 1)
        check.heal(key, 3, until)
    assert check.settles_at == 5
    assert check.settle(5) == []
    assert check.settles_at == 9
    assert admits(b"a", 4, 6)
    assert not admits(b"b", 4, 7)
    assert [record.offset for record in check.settle(9)] == [7]
