"""The steps that heal a key, in a model of copies that carries the commands out as workers do."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, cast

import pytest

from processor.config import Config
from processor.config.kafka_names import KafkaNames
from processor.errors import Stop
from processor.kafka.partitioner import partition_for
from processor.merge import KeyFields
from processor.repair.fenced_move import FencedMove
from processor.repair.heal import Case, describe_step, joins_over, next_step
from processor.repair.misplaced_keys import Copy, Homes

if TYPE_CHECKING:
    from processor.kafka.clients.log_reader import LogReader
    from processor.kafka.clients.transactional_producer import TransactionalProducer


PARTITIONS = 3
KEY = b"7"
HOME = partition_for(KEY, PARTITIONS)
FIRST, SECOND = (partition for partition in range(PARTITIONS) if partition != HOME)


class World:
    """The SOW topic of one key, and its workers."""

    def __init__(self, *copies: Copy) -> None:
        self.copies = {(copy.key, copy.partition): copy for copy in copies}
        self.now_ms = 1000
        self.offset = 100
        self.told: dict[bytes, bytes | None] = {}
        self.deletes = 0

    def put(self, key: bytes, partition: int, value: bytes, version: int, timestamp_ms: int | None = None) -> None:
        """Write a record as a worker does."""
        self.offset += 1
        self.now_ms += 1
        time_ms = self.now_ms if timestamp_ms is None else timestamp_ms
        self.copies[key, partition] = Copy(key, partition, self.offset, time_ms, version, value, [])

    def carry_out(self, commands, *, rejects: bool = False) -> None:
        """Carry commands out if the version is the expected one."""
        for command in commands:
            headers = dict(command.headers)
            old = self.copies.get((command.key, command.partition))
            if int(headers["expect_version"]) != (0 if old is None else old.version) or rejects:
                continue
            if headers["command"] == b"sow_delete":
                assert command.value is None
                del self.copies[command.key, command.partition]
                self.told[KEY] = None
                self.deletes += 1
            else:
                self.put(command.key, command.partition, command.value, 1 if old is None else old.version + 1)
                self.told[KEY] = command.value

    def heal(self, case: Case, *, between=lambda _: None) -> int:
        """Take steps until there are none; returns their number."""
        for step in range(20):
            commands = next_step(case, list(self.copies.values()))
            if not commands:
                return step
            between(step)
            self.carry_out(commands)
        raise AssertionError("no end")


def copy(partition: int, version: int, timestamp_ms: int, value: bytes = b"", key: bytes = KEY, headers=()) -> Copy:
    """A record of the key."""
    return Copy(key, partition, partition * 10, timestamp_ms, version, value or b"of %d" % partition, list(headers))


@pytest.mark.parametrize(
    ("copies", "stays"),
    [
        ([(HOME, 3, 500), (FIRST, 9, 400)], HOME),
        ([(HOME, 3, 400), (FIRST, 9, 500)], FIRST),
        ([(HOME, 3, 500), (FIRST, 9, 500)], HOME),
        ([(FIRST, 1, 400)], FIRST),
        ([(FIRST, 1, 400), (SECOND, 1, 401)], SECOND),
        ([(HOME, 2, 402), (FIRST, 1, 403), (SECOND, 1, 401)], FIRST),
    ],
)
def test_the_newest_record_is_left_alone_at_home(copies, stays):
    """One record is left, in the key's own partition, with the value of the newest copy."""
    world = World(*(copy(*each) for each in copies))
    world.heal(Case(KEY, HOME))
    (left,) = world.copies.values()
    assert (left.partition, left.value) == (HOME, b"of %d" % stays)


def test_a_subscriber_by_key_has_the_record_in_the_end():
    """The last message about the key is the record, not the deletion of a copy."""
    world = World(copy(HOME, 3, 500), copy(FIRST, 9, 400))
    world.heal(Case(KEY, HOME))
    assert world.told[KEY] == b"of %d" % HOME


def test_no_copy_is_deleted_before_the_newest_is_at_home():
    """A publish that the worker rejects costs nothing: the copy stays, and the case has a problem."""
    world, case = World(copy(HOME, 3, 400), copy(FIRST, 9, 500)), Case(KEY, HOME)
    commands = next_step(case, list(world.copies.values()))
    assert [dict(command.headers)["command"] for command in commands] == [b"publish"]
    world.carry_out(commands, rejects=True)
    assert next_step(case, list(world.copies.values())) == []
    assert "publish was rejected" in case.problem
    assert len(world.copies) == 2


def test_a_deletion_that_is_rejected_is_a_problem():
    """A deletion that is rejected is a problem, and not retried for ever."""
    world, case = World(copy(HOME, 3, 500), copy(FIRST, 9, 400)), Case(KEY, HOME)
    world.carry_out(next_step(case, list(world.copies.values())), rejects=True)
    assert next_step(case, list(world.copies.values())) == []
    assert "deletion was rejected" in case.problem


def test_clocks_that_differ_do_not_make_it_go_round():
    """A copy that was published at home is superseded, even if the worker there has a clock that is behind."""
    world, case = World(copy(HOME, 3, 400), copy(FIRST, 9, 5000, b"newest")), Case(KEY, HOME)
    assert world.heal(case) == 3
    assert [left.value for left in world.copies.values()] == [b"newest"]


def test_other_spellings_are_copies_too():
    """A key of several fields with spaces becomes the canonical one, in its own partition."""
    homes = Homes(KeyFields(("/a", "/b")), PARTITIONS)
    spaced, compact = b'["x", "y"]', b'["x","y"]'
    assert homes.own_key(spaced) == compact
    home = homes.partition(compact)
    assert not homes.has(spaced, homes.partition(spaced))
    assert not homes.has(spaced, home)
    assert homes.has(compact, home)
    world = World(copy(home, 1, 400, b"value", spaced))
    world.heal(Case(compact, home))
    assert {place: left.value for place, left in world.copies.items()} == {(compact, home): b"value"}


def test_what_travels_with_the_record():
    """The publisher's headers and the record's time to live are kept, those of the former update are not."""
    headers = [
        ("version", b"9"),
        ("kind", b"insert"),
        ("trace", b"t"),
        ("expiration", b"60"),
        ("group_stamps", b"{}"),
        ("client", b"feed"),
        ("sequence", b"4"),
        ("correlation_id", b"abc"),
        ("frame", b"1"),
    ]
    (command,) = next_step(Case(KEY, HOME), [copy(FIRST, 9, 500, headers=headers)], {"frame"})
    assert command.headers == [
        ("command", b"publish"),
        ("expect_version", b"0"),
        ("trace", b"t"),
        ("expiration", b"60"),
        ("group_stamps", b"{}"),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_updates_in_between_lose_nothing_that_came_last(seed):
    """With updates at home and deletes of copies between the steps, the last update at home is left."""
    chance = random.Random(seed)
    world = World(copy(HOME, 3, chance.choice([400, 500])), copy(FIRST, 9, 450), copy(SECOND, 2, 460))
    last: list[bytes] = []

    def between(step: int) -> None:
        if step < 6 and chance.random() < 0.5:
            old = world.copies.get((KEY, HOME))
            last[:] = [b"update %d" % step]
            world.put(KEY, HOME, last[0], 1 if old is None else old.version + 1)
        if chance.random() < 0.2:
            world.copies.pop((KEY, chance.choice([FIRST, SECOND])), None)

    case = Case(KEY, HOME)
    world.heal(case, between=between)
    assert not case.problem
    assert [left.partition for left in world.copies.values()] == [HOME]
    if last:
        assert world.copies[KEY, HOME].value == last[0]


def test_the_line_for_people_says_which_stays():
    """The line for people has the key, the partitions, the versions and the outcome for each copy."""
    case = Case(KEY, HOME)
    assert describe_step(case, [copy(HOME, 3, 500), copy(FIRST, 9, 400)]) == (
        f"7: partition {HOME} version 3 stays; partition {FIRST} version 9 is deleted"
    )
    assert describe_step(case, [copy(HOME, 3, 400), copy(FIRST, 9, 500), copy(SECOND, 1, 1)]) == (
        f"7: partition {FIRST} version 9 is moved to partition {HOME}, over partition {HOME} version 3; "
        f"partition {SECOND} version 1 is deleted"
    )
    assert describe_step(case, [copy(FIRST, 9, 500)]) == f"7: partition {FIRST} version 9 is moved to partition {HOME}"


class Connection:
    """A connection that notes its end."""

    def __init__(self, problem: str = "") -> None:
        self._problem = problem
        self.is_closed = False

    def start(self) -> None:
        """Fail, as where Kafka does not answer."""
        raise Stop(self._problem)

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


def test_a_move_that_cannot_fence_earlier_ones_closes_its_connections() -> None:
    """A producer that stays open would go on asking Kafka until the end of the process."""
    move = FencedMove(
        {"bootstrap.servers": "127.0.0.1:9"},
        KafkaNames(),
        "sowstream",
        "orders",
        1,
        group="sowstream.orders",
        command="resharding",
        producer="reshard",
        transaction_timeout_s=10.0,
        remedy="",
    )
    move._reader.close()
    producer, reader = Connection("no coordinator"), Connection()
    move._producer = cast("TransactionalProducer", producer)
    move._reader = cast("LogReader", reader)
    with pytest.raises(Stop, match="no coordinator"), move:
        pytest.fail("the move begins without its fence")
    assert (producer.is_closed, reader.is_closed) == (True, True)


def test_the_joins_over_a_healed_topic_are_named():
    """Also one over a copy or a projection of it, and one with its records as partners; no groups, and no others."""
    join = {"join": [{"topic": "people", "on": {"/a": "/id"}}], "fields": {"/id": "/id"}}
    config = Config.model_validate({
        "topics": {"orders": {}, "people": {}, "others": {}},
        "conflated": {"slow": {"underlying": "short", "interval": "1s"}},
        "views": {
            "short": {"underlying": "orders", "fields": {"/id": "/id", "/a": "/a"}},
            "named": {"underlying": "slow", **join},
            "also": {"underlying": "others", **join},
            "counts": {"underlying": "orders", "group_by": ["/a"], "fields": {"/n": "COUNT(*)"}},
        },
    })  # fmt: skip
    assert joins_over(config, "orders") == ["named"]
    assert joins_over(config, "people") == ["also", "named"]
