"""Tests of the group watcher: the partitions that a worker may get, and the members at its address."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from processor.errors import StateLocked
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.descriptions import ConsumerGroup, Member
from processor.kafka.clients.log_reader import LogReader, Position
from processor.runtime.recovery.log_replay import SowReplay
from processor.runtime.standby.group_watcher import GroupWatcher
from processor.runtime.standby.standbys import Standbys, _Standby
from processor.store.layered_state import LayeredState
from processor.store.rocksdb import RocksStore
from processor.store.rocksdb_memory import RocksMemory

if TYPE_CHECKING:
    from pathlib import Path

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
