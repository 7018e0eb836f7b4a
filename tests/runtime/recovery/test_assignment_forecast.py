"""Tests of the forecast of a partition's next owners, and of the group watcher that asks for it."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.errors import StateLocked
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.groups import ConsumerGroup, Member
from processor.kafka.clients.log_reader import LogReader, Position
from processor.runtime.recovery.assignment_forecast import GroupWatcher, after_death, standby_partitions, successors
from processor.runtime.recovery.log_replay import SowReplay
from processor.runtime.recovery.standbys import Standbys, _Standby
from processor.store.layered_state import LayeredState
from processor.store.rocksdb import RocksStore
from processor.store.rocksdb_memory import RocksMemory

if TYPE_CHECKING:
    from pathlib import Path


PROVED = settings(deadline=None, print_blob=True)
ASSIGNORS = ["cooperative-sticky", "uniform"]
DNY, PI5 = "DnYWwIKfRzqF0o+Ou4wY2g", "pi5xvAj9Q/eorb/8gK+Qqg"  # Member ids as they were on that day.


@st.composite
def groups(draw: st.DrawFn) -> dict[str, frozenset[int]]:
    """Generate members with partitions, as evenly as an assignor leaves them."""
    members = [f"member-{number}" for number in draw(st.sets(st.integers(0, 99), min_size=2, max_size=6))]
    partitions = list(range(draw(st.integers(0, 24))))
    draw(st.randoms(use_true_random=False)).shuffle(partitions)
    return {member: frozenset(partitions[number :: len(members)]) for number, member in enumerate(members)}


def owner_of(assigned: dict[str, frozenset[int]], partition: int) -> str:
    """Return the owner of a partition."""
    [owner] = [member for member, partitions in assigned.items() if partition in partitions]
    return owner


@PROVED
@given(groups(), st.sampled_from(ASSIGNORS), st.integers(0, 8))
def test_each_partition_has_as_many_successors_as_there_can_be(assigned, assignor, length):
    """Successors are distinct members, never the owner, and fewer only if there are not enough members."""
    by_partition = successors(assigned, assignor, length)
    assert by_partition.keys() == frozenset().union(*assigned.values())
    for partition, heirs in by_partition.items():
        assert len(heirs) == len(set(heirs)) == min(length, len(assigned) - 1)
        assert owner_of(assigned, partition) not in heirs


@PROVED
@given(groups(), st.sampled_from(ASSIGNORS), st.integers(1, 4), st.randoms())
def test_the_forecast_does_not_depend_on_the_order_of_members(assigned, assignor, length, random):
    """Every worker computes the same forecast."""
    members = list(assigned)
    random.shuffle(members)
    assert successors({member: assigned[member] for member in members}, assignor, length) == successors(
        assigned, assignor, length
    )


@PROVED
@given(groups(), st.sampled_from(ASSIGNORS), st.data())
def test_after_a_death_the_rest_of_the_chain_stands(assigned, assignor, data):
    """After the owner's death the first successor owns the partition, and the others remain successors."""
    dead = data.draw(st.sampled_from(sorted(assigned)))
    before, left = successors(assigned, assignor, 3), after_death(assigned, [dead], assignor)
    after = successors(left, assignor, 2)
    for partition in assigned[dead]:
        assert owner_of(left, partition) == before[partition][0]
        assert after[partition] == before[partition][1:]


@PROVED
@given(groups(), st.sampled_from(ASSIGNORS), st.data())
def test_a_death_loses_nothing_and_moves_nothing_else(assigned, assignor, data):
    """Survivors keep their partitions, and those of the dead member are shared evenly."""
    dead = data.draw(st.sampled_from(sorted(assigned)))
    left = after_death(assigned, [dead], assignor)
    assert sorted(partition for partitions in left.values() for partition in partitions) == sorted(
        partition for partitions in assigned.values() for partition in partitions
    )
    sizes = [len(partitions) for partitions in left.values()]
    assert max(sizes) - min(sizes) <= 1
    for member, partitions in left.items():
        assert assigned[member] <= partitions


@PROVED
@given(groups(), st.sampled_from(ASSIGNORS), st.integers(1, 4), st.booleans())
def test_standby_partitions_are_those_of_the_successors(assigned, assignor, length, together):
    """All members together keep as many standbys of a partition as it has successors."""
    hosts = {member: "one" if together else member for member in assigned}
    kept = [
        partition for member in assigned for partition in standby_partitions(assigned, assignor, member, length, hosts)
    ]
    told = [partition for partition, chain in successors(assigned, assignor, length).items() for _ in chain]
    assert sorted(kept) == sorted(told)


@PROVED
@given(groups(), st.sampled_from(ASSIGNORS), st.data())
def test_a_partition_has_a_standby_on_another_machine(assigned, assignor, data):
    """Two processes of a machine die together, and a copy on the same disk would be lost, too."""
    dead = data.draw(st.lists(st.sampled_from(sorted(assigned)), min_size=1, max_size=len(assigned) - 1, unique=True))
    hosts = {member: "dead" if member in dead else "alive" for member in assigned}
    left = after_death(assigned, dead, assignor)
    for partition in frozenset().union(*(assigned[member] for member in dead)):
        successor = owner_of(left, partition)
        assert partition in standby_partitions(assigned, assignor, successor, 1, hosts)


@pytest.mark.parametrize(
    ("assignor", "assigned", "dead", "left"),
    [
        (
            "cooperative-sticky",
            {"a": {0, 3, 6}, "b": {1, 4, 7}, "c": {2, 5}},
            "a",
            {"b": {1, 4, 7, 3}, "c": {2, 5, 6, 0}},
        ),
        ("cooperative-sticky", {"a": {0, 1, 2}, "b": set(), "c": set()}, "a", {"b": {0, 2}, "c": {1}}),
        (
            "uniform",
            {"++1x8thSTMavlI3hP7MlKw": {4, 5}, DNY: {6, 7}, PI5: {0, 1}, "6KruLaD+RDywUuiCraf0Ow": {2, 3}},
            "++1x8thSTMavlI3hP7MlKw",
            {DNY: {4, 6, 7}, PI5: {0, 1, 5}, "6KruLaD+RDywUuiCraf0Ow": {2, 3}},
        ),
        (
            "uniform",
            {"uTqfh3p1S6e7hLLCx12WYw": {6, 7}, DNY: {4, 5}, PI5: {0, 1}, "6KruLaD+RDywUuiCraf0Ow": {2, 3}},
            "6KruLaD+RDywUuiCraf0Ow",
            {"uTqfh3p1S6e7hLLCx12WYw": {3, 6, 7}, DNY: {4, 5}, PI5: {0, 1, 2}},
        ),
    ],
    ids=["the highest goes first", "where nobody has any the lowest does", "seen at Kafka 4.3", "and once more"],
)
def test_orphans_go_where_the_assignor_puts_them(assignor, assigned, dead, left):
    """The forecasts agree with assignments observed on a real broker after a kill."""
    assert after_death(assigned, [dead], assignor) == left


NOBODY = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}


def group(owner: str, *, is_stable: bool = True) -> ConsumerGroup:
    """Describe a group: a is this worker, b has its address, c another one; the owner has partition 9 in addition."""
    assigned = {name: frozenset({number}) for number, name in enumerate(("a", "b", "c"), 1)}
    assigned[owner] |= {9}
    hosts = {"a": "1", "b": "1", "c": "2"}
    members = tuple(
        Member(name, name, hosts[name], None, frozenset(("t", number) for number in numbers))
        for name, numbers in assigned.items()
    )
    return ConsumerGroup("stable" if is_stable else "preparing_rebalance", "cooperative-sticky", members)


@pytest.fixture
def group_watcher() -> GroupWatcher:
    """Create a group watcher that sends no requests."""
    return GroupWatcher(Admin(NOBODY), group="g", topic="t", replicas=1)


def test_the_partitions_of_members_at_the_same_address_are_known(group_watcher: GroupWatcher) -> None:
    """They are known with their owners, without the worker's own ones."""
    group_watcher._take(group("c"), "a")
    assert group_watcher.colocated == {(2, "b")}
    group_watcher._take(group("b"), "a")
    assert group_watcher.colocated == {(2, "b"), (9, "b")}


def test_the_forecast_stays_during_a_rebalance(group_watcher: GroupWatcher) -> None:
    """An assignment that is not settled may lack partitions."""
    group_watcher._take(group("c"), "a")
    before = group_watcher.partitions, group_watcher.colocated
    group_watcher._take(group("b", is_stable=False), "a")
    group_watcher._take(group("b"), "nobody")
    assert (group_watcher.partitions, group_watcher.colocated) == before


def test_a_standby_makes_room_for_an_owner_at_the_same_address(group_watcher: GroupWatcher, tmp_path: Path) -> None:
    """An owner on the same disk gets the directory at once, although this worker would succeed it."""
    memory = RocksMemory(1 << 20)

    def opened() -> LayeredState:
        store = RocksStore(tmp_path / "9", identity="t.sow/9", memory=memory)
        return LayeredState(store, cache_bytes=1_000)

    standbys = Standbys(
        processor="t",
        sow="t.sow",
        group_watcher=group_watcher,
        admin=Admin(NOBODY),
        open_reader=partial(LogReader, NOBODY, group="g"),
        open_state=lambda _: opened(),
    )
    group_watcher._take(group("c"), "a")
    group_watcher._next_s = time.monotonic() + 3600  # What it is told here is all that it knows.
    assert 9 in group_watcher.partitions
    standbys._reader = LogReader(NOBODY, group="g")
    standbys._reader.add([Position("t.sow", 9, 0)])
    state = opened()
    standbys._kept[9] = _Standby(SowReplay("t.sow", 9, state), state, 0, time.monotonic())
    with pytest.raises(StateLocked):
        opened()
    group_watcher._take(group("b"), "a")
    assert 9 in group_watcher.partitions
    standbys.turn(lambda: "a", (), is_idle=True, is_restoring=True)
    opened().close(0)
    assert 9 not in standbys._kept
    standbys.close()
