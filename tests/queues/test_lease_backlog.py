"""The decisions of one consumer about the messages that are leased to it (queues.md, rules 3 and 4)."""

import json

import pytest

from processor.config import QueueConfig
from processor.errors import RecordRejected, SowstreamError, Stop
from processor.queues.lease_backlog import Backlog
from tests.queues.fake_leases import FakeLeases, Letters

LEASE_S = 30.0


def values(*numbers: int) -> list[bytes]:
    """Records with these numbers."""
    return [b'{"id":%d}' % number for number in numbers]


def decode(lease):
    """Parse JSON; a text that is none is rejected as a message type does it."""
    try:
        return json.loads(lease.record.value)
    except ValueError as error:
        raise RecordRejected("undecodable", str(error)) from None


def backlog_of(leases: FakeLeases, letters: Letters | None = None, leases_max: int = 10, **settings) -> Backlog:
    """A consumer of a queue with a lease of 30 seconds."""
    queue = QueueConfig(underlying="orders", lease=LEASE_S, **settings)
    return Backlog("jobs", queue, leases, letters or Letters(), decode, leases_max, lambda: leases.now_s)


def backlog_ahead(leases: FakeLeases, letters: Letters | None = None, count: int = 1) -> Backlog:
    """A consumer that has taken so many messages, all there are, and leases several next."""
    backlog = backlog_of(leases, letters)
    for _ in range(count):
        backlog.next(0).ack()
    assert backlog.next(0) is None
    return backlog


def test_an_acknowledged_message_is_accepted_and_the_next_one_comes():
    """Each message comes once, in order, with its data; its outcome reaches Kafka before the next fetch."""
    leases = FakeLeases(values(1, 2, 3))
    backlog, seen = backlog_of(leases), []
    while (message := backlog.next(0)) is not None:
        seen.append(message.data["id"])
        message.ack()
    assert seen == [1, 2, 3]
    assert leases.verdicts == {0: "accept", 1: "accept", 2: "accept"}
    assert backlog.counts == {"delivered": 3, "delivered_again": 0, "acknowledged": 3}


def test_a_program_may_gather_messages_before_their_outcomes():
    """It gets so many as it may hold, from the first one on; the next one comes once another has an outcome."""
    leases = FakeLeases(values(*range(1, 13)))
    backlog = backlog_of(leases)
    messages = [backlog.next(0) for _ in range(10)]
    assert [message.data["id"] for message in messages] == [*range(1, 11)]
    assert (backlog.next(0), backlog.leased) == (None, 10)
    messages[4].ack()
    assert backlog.next(0).data == {"id": 11}
    assert (backlog.next(0), backlog.leased) == (None, 10)
    assert max(leases.asked) == 10


def test_a_released_message_comes_again_and_counts_its_deliveries():
    """A released message is delivered again, with the number of deliveries."""
    leases = FakeLeases(values(1))
    backlog = backlog_of(leases)
    for deliveries in (1, 2, 3):
        message = backlog.next(0)
        assert (message.data, message.deliveries) == ({"id": 1}, deliveries)
        message.release()
    assert backlog.next(0).deliveries == 4
    assert (backlog.counts["delivered_again"], backlog.counts["released"]) == (3, 3)


def test_a_rejected_message_is_a_dead_letter_with_its_reason():
    """The letter is written before Kafka learns of the rejection, and the message never comes again."""
    leases, letters = FakeLeases(values(1, 2)), Letters()
    backlog = backlog_of(leases, letters)
    backlog.next(0).reject("no such customer")
    assert leases.sent == []
    assert backlog.next(0).data == {"id": 2}
    assert letters.written == [(0, "rejected", "no such customer")]
    backlog.close()
    assert leases.verdicts[0] == "reject"


def test_a_letter_that_kafka_does_not_take_leaves_the_message():
    """Where the dead letter cannot be written, the message is not rejected: it stays on the queue."""

    class NoLetters(Letters):
        def write(self, lease, reason, detail):
            raise Stop("Kafka is away")

    leases = FakeLeases(values(1))
    backlog = backlog_of(leases, NoLetters())
    backlog.next(0).reject("bad")
    with pytest.raises(Stop, match="Kafka is away"):
        backlog.next(0)
    backlog.close()
    assert leases.verdicts == {}


def test_the_last_delivery_that_is_released_makes_a_dead_letter():
    """After `max_deliveries` deliveries without an acknowledgement a message is dead, and is not delivered again."""
    leases, letters = FakeLeases(values(1)), Letters()
    backlog = backlog_of(leases, letters, max_deliveries=2)
    backlog.next(0).release()
    backlog.next(0).release()
    assert backlog.next(0) is None
    assert letters.written == [(0, "max_deliveries", "released at delivery 2, the last one")]
    backlog.close()
    assert leases.verdicts == {0: "reject"}


def test_a_message_whose_consumers_died_too_often_is_a_dead_letter_and_not_handed_out():
    """A message that was delivered `max_deliveries` times and never acknowledged becomes a dead letter."""
    leases, letters = FakeLeases(), Letters()
    leases.append(b'{"id":1}', deliveries=5)
    leases.append(b'{"id":2}', deliveries=4)
    backlog = backlog_of(leases, letters)
    assert backlog.next(0).data == {"id": 2}
    assert letters.written == [(0, "max_deliveries", "delivered 5 times, and never acknowledged")]


def test_an_unreadable_message_is_a_dead_letter_with_the_reason_of_its_type():
    """A message that cannot be parsed goes to the dead letters, and the next one is handed out."""
    leases, letters = FakeLeases([b"{", *values(2)]), Letters()
    backlog = backlog_of(leases, letters)
    assert backlog.next(0).data == {"id": 2}
    assert [(at, reason) for at, reason, _ in letters.written] == [(0, "undecodable")]


def test_a_message_whose_lease_is_over_is_not_handed_out():
    """Messages whose turn comes too late may be with another consumer: they are given up, and counted."""
    leases = FakeLeases(values(0))
    backlog = backlog_ahead(leases)
    for value in values(1, 2):
        leases.append(value)
    first = backlog.next(0)
    leases.now_s = LEASE_S * 0.96
    first.ack()
    message = backlog.next(0)
    assert (message.data, message.deliveries) == ({"id": 2}, 2), "it was given back, and leased anew"
    assert backlog.counts["lapsed"] == 1


@pytest.mark.parametrize("late_s", [LEASE_S - 0.1, LEASE_S + 1])
def test_an_outcome_at_the_end_of_the_lease_is_not_sent(late_s: float):
    """Kafka refuses all outcomes of a partition for one that comes after its lease, so it is left out in time."""
    leases = FakeLeases(values(0))
    backlog = backlog_ahead(leases)
    for value in values(1, 2):
        leases.append(value)
    first, second = backlog.next(0), backlog.next(0)
    first.ack()
    backlog.settle_decided()
    leases.now_s = late_s
    second.ack()
    backlog.settle_decided()
    assert leases.verdicts == {0: "accept", 1: "accept"}
    assert backlog.counts["lapsed"] == 1
    assert backlog.counts["acknowledged"] == 2


def test_as_many_are_leased_ahead_as_are_handled_well():
    """The number of leases doubles up to the limit, and begins with one again after a release."""
    leases = FakeLeases(values(*range(40)))
    backlog = backlog_of(leases)
    seen = []
    for turn in range(28):
        message = backlog.next(0)
        seen.append((message.data["id"], message.deliveries))
        if turn == 20:
            message.release()
        else:
            message.ack()
    assert leases.asked == [1, 2, 4, 8, 10, 1, 2]
    assert seen == [(number, 1) for number in range(25)] + [(20, 2), (25, 1), (26, 1)]


def test_a_fetch_that_brings_one_message_does_not_lower_the_number_of_leases():
    """Messages that come one by one, and are handled at once, say nothing against leasing all there are."""
    leases = FakeLeases(values(*range(1023)))
    backlog = backlog_of(leases, leases_max=2_000)
    for _ in range(3):
        while (message := backlog.next(0)) is not None:
            message.ack()
        leases.append(values(1)[0])
    assert leases.asked[-1] == 2_000


@pytest.mark.parametrize(("deliveries", "asked"), [(2, [1, 2, 4]), (3, [1, 1, 1])])
def test_a_message_with_more_than_half_of_its_deliveries_is_leased_alone(deliveries: int, asked: list[int]):
    """The messages of one consumer that died are leased ahead; those of several are not, as one may be the reason."""
    leases = FakeLeases()
    for value in values(1, 2, 3):
        leases.append(value, deliveries=deliveries - 1)
    backlog = backlog_of(leases)
    while (message := backlog.next(0)) is not None:
        message.ack()
    assert leases.asked[:3] == asked


@pytest.mark.parametrize("job_s", [0.1, 4.0, 10.0, 20.0, 28.0])
def test_no_lease_ends_before_the_turn_of_its_message(job_s: float):
    """A consumer that needs a part of the lease for each message leases no more than it handles in time."""
    leases, letters = FakeLeases(values(*range(30))), Letters()
    backlog = backlog_of(leases, letters)
    for _ in range(30):
        message = backlog.next(0)
        leases.now_s += job_s
        message.ack()
    assert backlog.next(0) is None
    assert (letters.written, backlog.counts["lapsed"], backlog.counts["delivered_again"]) == ([], 0, 0)


@pytest.mark.parametrize("is_closed", [True, False], ids=["is closed", "is killed"])
def test_messages_that_one_consumer_lost_come_in_their_order(is_closed: bool):
    """The only consumer ends with eight messages leased: the next one gets them in the order of their offsets."""
    leases = FakeLeases(values(*range(15)))
    backlog = backlog_of(leases)
    for _ in range(7):
        backlog.next(0).ack()
    assert (backlog.next(0).data, backlog.leased) == ({"id": 7}, 8)
    (backlog if is_closed else leases).close()
    backlog, seen = backlog_of(leases), []
    while (message := backlog.next(0)) is not None:
        seen.append(message.data["id"])
        message.ack()
    assert seen == list(range(7, 15))


def test_of_messages_with_more_than_half_of_their_deliveries_the_first_one_comes_last():
    """A consumer that leases ahead hands out, after all others, those that were lost often: the one in hand last."""
    leases = FakeLeases(values(0, 1, 2))
    backlog = backlog_ahead(leases, count=3)
    for number, deliveries in enumerate((2, 2, 0, 3), 3):
        leases.append(b'{"id":%d}' % number, deliveries=deliveries)
    seen = []
    while (message := backlog.next(0)) is not None:
        seen.append((message.data["id"], message.deliveries))
        message.ack()
    assert seen == [(5, 1), (4, 3), (3, 3), (6, 4)]


def handle(backlog: Backlog, poison: int) -> None:
    """Acknowledge messages until this one, which ends the consumer, comes, or none."""
    while (message := backlog.next(0)) is not None:
        if message.data["id"] == poison:
            return
        message.ack()


@pytest.mark.parametrize("is_released", [True, False], ids=["raises", "is killed"])
@pytest.mark.parametrize("poison", [0, 5])
def test_a_poison_message_takes_no_other_one_to_the_dead_letters(poison: int, is_released: bool):
    """A program that ends at one message each time it is started gets all others; this one is a dead letter."""
    leases, letters = FakeLeases(values(*range(30))), Letters()
    for _ in range(6):
        backlog = backlog_of(leases, letters)
        handle(backlog, poison)
        (backlog if is_released else leases).close()
    assert [(offset, reason) for offset, reason, _ in letters.written] == [(poison, "max_deliveries")]
    accepted = {offset for offset, verdict in leases.verdicts.items() if verdict == "accept"}
    assert accepted == set(range(30)) - {poison}


def test_a_poison_message_that_ends_many_consumers_takes_no_other_one_with_it():
    """Eight consumers have leased ahead for long when a message kills one after the other: it alone is dead."""
    leases, letters = FakeLeases(values(*range(4))), Letters()
    fleet = [backlog_ahead(leases, letters, count=4)]
    for _ in range(7):
        for value in values(*range(4)):
            leases.append(value)
        fleet.append(backlog_ahead(leases, letters, count=4))
    first = len(leases.verdicts)
    for value in values(99, *range(4)):
        leases.append(value)
    for backlog in fleet:
        handle(backlog, 99)
        leases.close()
    assert [offset for offset, _, _ in letters.written] == [first]
    assert [leases.verdicts[first + at] for at in range(5)] == ["reject", *["accept"] * 4]


def test_a_message_with_one_delivery_is_leased_alone():
    """Where `max_deliveries` is 1, no message waits for its turn: it would be dead when its consumer dies."""
    leases = FakeLeases(values(1, 2, 3))
    backlog = backlog_of(leases, max_deliveries=1)
    while (message := backlog.next(0)) is not None:
        message.ack()
    assert leases.asked == [1, 1, 1, 1]


def test_an_outcome_does_not_wait_for_the_rest_of_its_fetch():
    """The member has the outcome of a message, which it sends in time, before the next one is handed out."""
    leases = FakeLeases(values(0))
    backlog = backlog_ahead(leases)
    for value in values(1, 2):
        leases.append(value)
    backlog.next(0).ack()
    assert backlog.next(0).data == {"id": 2}
    assert leases.verdicts == {0: "accept", 1: "accept"}


def test_close_releases_what_has_no_outcome():
    """Closing acknowledges what was acknowledged, and gives back the message in hand and those that wait."""
    leases = FakeLeases(values(1, 2, 3))
    backlog = backlog_of(leases)
    backlog.next(0).ack()
    backlog.next(0)
    backlog.close()
    assert leases.verdicts == {0: "accept", 1: "release", 2: "release"}
    assert leases.is_closed


@pytest.mark.parametrize("second", ["ack", "release", "reject"])
def test_the_first_outcome_counts(second):
    """A second, different decision about a message is an error, and changes nothing."""
    leases = FakeLeases(values(1))
    message = backlog_of(leases).next(0)
    message.ack()
    if second == "ack":
        message.ack()
    else:
        with pytest.raises(SowstreamError, match="has the outcome ack already"):
            message.release() if second == "release" else message.reject("bad")
    assert message.outcome == "ack"


def test_a_message_has_the_facts_of_its_record():
    """Key, version, headers, source and time come from the record on the queue."""
    leases = FakeLeases()
    leases.append(b'{"id":1}')
    record = leases._records[0]
    headers = [("version", b"7"), ("trace", b"t"), ("correlation_id", b"abc="), ("source", b"orders.publish/0/9")]
    leases._records[0] = record._replace(headers=headers, timestamp_ms=1_700_000_000_000)
    message = backlog_of(leases).next(0)
    assert (message.sow_key, message.version, message.source) == ("k", 7, "orders.publish/0/9")
    assert (dict(message.headers), message.correlation_id) == ({"trace": "t"}, "abc=")
    assert json.loads(message.to_json()) == {
        "queue": "jobs", "topic": "orders", "sow_key": "k", "data": {"id": 1}, "version": 7, "deliveries": 1,
        "timestamp": "2023-11-14T22:13:20.000Z", "correlation_id": "abc=", "source": "orders.publish/0/9",
        "headers": {"trace": "t"},
    }  # fmt: skip
