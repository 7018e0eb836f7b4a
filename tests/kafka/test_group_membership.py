"""Commits, assignments and waits of group members, in both protocols of consumer groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from processor.errors import Stop, TransactionAborted
from processor.kafka.admin.admin import Admin
from processor.kafka.clients import transactional_producer
from processor.kafka.clients.group_consumer import GroupConsumer
from processor.kafka.clients.transactional_producer import TransactionalProducer
from processor.topics.family import TopicSpec
from tests.waiting import until

pytestmark = pytest.mark.broker

# Members of the new protocol send a heartbeat every 5 s, and each step of a rebalance waits for one of them.
PROTOCOLS = ["classic", pytest.param("consumer", marks=pytest.mark.long)]


class Member:
    """One member of a group."""

    def __init__(self, group: Group, instance: str | None) -> None:
        self.owned: set[int] = set()
        self.events: list[tuple[str, set[int]]] = []
        self.consumer = GroupConsumer(
            group.kafka | {"group.protocol": group.protocol},
            group=group.topic,
            topic=group.topic,
            session_timeout_s=30.0,
            listener=self,
            instance=instance,
        )

    def on_assigned(self, partitions: list[int]) -> None:
        """Remember the partitions."""
        self.owned |= set(partitions)
        self.events.append(("assigned", set(partitions)))

    def on_revoked(self, partitions: list[int]) -> None:
        """Forget the partitions."""
        self.owned -= set(partitions)
        self.events.append(("revoked", set(partitions)))

    def on_lost(self, partitions: list[int]) -> None:
        """Forget the partitions."""
        self.owned -= set(partitions)
        self.events.append(("lost", set(partitions)))


class Group:
    """A topic of two partitions and the members of a group that reads it."""

    def __init__(self, bootstrap: str, topic: str, protocol: str) -> None:
        self.topic = topic
        self.protocol = protocol
        self.kafka = {"bootstrap.servers": bootstrap}
        self.members: list[Member] = []
        self.producer = TransactionalProducer(self.kafka, transactional_id=topic, transaction_timeout_s=60.0)
        Admin(self.kafka).create([TopicSpec(topic, "publish", 2, {})])
        self.producer.start()

    def join(self, instance: str | None = None) -> Member:
        """Add a member."""
        member = Member(self, instance)
        self.members.append(member)
        return member

    def leave(self, member: Member) -> None:
        """Close a member."""
        self.members.remove(member)
        member.consumer.close()

    def wait(self, reached: Callable[[], bool]) -> None:
        """Let every member poll until a condition holds."""

        def is_reached() -> bool:
            for member in self.members:
                member.consumer.poll(10, 0.02)
            return reached()

        until(is_reached, lambda: [member.events for member in self.members], pause_s=0)

    def commit(self, metadata: object) -> None:
        """Commit one record and an input offset with these group metadata."""
        self.producer.send(self.topic, 0, [(None, b"x", [])])
        self.producer.commit(self.topic, {0: 0, 1: 0}, metadata)

    def close(self) -> None:
        """Close all members."""
        for member in list(self.members):
            self.leave(member)
        self.producer.close()
        Admin(self.kafka).delete([self.topic])


@pytest.fixture(params=PROTOCOLS)
def group(
    bootstrap: str, unique: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Group]:
    """A group without members, of either protocol."""
    monkeypatch.setattr(transactional_producer, "_SLOW_S", 600.0)  # A slow commit costs the producer.
    made = Group(bootstrap, f"{unique}.publish", request.param)
    yield made
    made.close()


def test_a_commit_proves_that_its_author_is_a_member_now(group):
    """A commit with group metadata of an earlier generation is refused, and the producer stays, to abort and go on."""
    first = group.join()
    group.wait(lambda: first.owned == {0, 1})
    before = first.consumer.group_metadata()
    group.commit(before)
    second = group.join()
    group.wait(lambda: len(first.owned) == len(second.owned) == 1)
    with pytest.raises(TransactionAborted) as caught:
        group.commit(before)
    assert type(caught.value) is TransactionAborted
    group.producer.abort()
    group.commit(first.consumer.group_metadata())
    assert group.producer.renewals == 0


@pytest.mark.long
def test_only_what_moves_is_revoked(group):
    """A joining member takes one of two partitions; the other one is not revoked, at its start or at its end."""
    first = group.join()
    group.wait(lambda: first.owned == {0, 1})
    second = group.join()
    group.wait(lambda: len(first.owned) == len(second.owned) == 1)
    (kept,) = first.owned
    group.leave(second)
    group.wait(lambda: first.owned == {0, 1})
    moves = [(kind, partitions) for kind, partitions in first.events if partitions]
    assert moves == [("assigned", {0, 1}), ("revoked", {1 - kept}), ("assigned", {1 - kept})]


@pytest.mark.long
def test_a_static_member_comes_back_to_its_partitions(group):
    """A static member that closes and comes back gets its partitions; the other members do not notice."""
    first, second = group.join("first"), group.join("second")
    group.wait(lambda: len(first.owned) == len(second.owned) == 1)
    owned, events = set(first.owned), len(second.events)
    group.leave(first)
    again = group.join("first")
    group.wait(lambda: bool(again.owned))
    assert again.owned == owned
    assert [event for event in second.events[events:] if event[1]] == []


def test_of_two_processes_with_one_name_one_stops_or_waits(group):
    """Of two processes with one name, the classic protocol fences the older, and the new one makes the younger wait."""
    older = group.join("same")
    group.wait(lambda: older.owned == {0, 1})
    younger = group.join("same")
    if group.protocol == "classic":
        with pytest.raises(Stop, match=r"another process is a member.*runtime\.static_membership"):
            group.wait(lambda: False)
        group.members.remove(older)
        older.consumer.close()
        assert ("revoked", {0, 1}) not in older.events, "what was fenced must not commit"
    else:
        deadline_s = time.monotonic() + 3.0
        group.wait(lambda: time.monotonic() > deadline_s)
        assert (older.owned, younger.owned) == ({0, 1}, set())
        group.leave(older)
    group.wait(lambda: younger.owned == {0, 1})
