"""A reader of one broker: what it does about each error that the broker may answer with."""

from __future__ import annotations

import pytest
from kafka import errors

from tests.queues.transport.fake_broker import FakeBroker, answer, part
from tests.queues.transport.test_record_batches import batch, marker

SESSION_NOT_FOUND, INVALID_EPOCH, SESSION_LIMIT = 122, 123, 133
NOT_LEADER, STORAGE_ERROR, UNKNOWN_TOPIC_ID = 6, 56, 100
INVALID_RECORD_STATE, TOPIC_FORBIDDEN, SERVER_ERROR = 121, 29, -1


@pytest.fixture
def broker() -> FakeBroker:
    """A broker with a record in each of two partitions, whose leases the reader holds."""
    made = FakeBroker()
    made.run(
        answer(part(0, records=batch(5, [b"a"]), leased=((5, 5),)), part(1, records=batch(7, [b"b"]), leased=((7, 7),)))
    )
    return made


def lost(broker: FakeBroker) -> list[tuple[int, int]]:
    """The places whose outcomes were reported as lost."""
    return [place for each in broker.book.take_lost() for place in each.places]


def test_outcomes_travel_with_the_next_fetch_of_the_session(broker: FakeBroker):
    """The second request has the next epoch, and acknowledges the records that were decided since."""
    for lease in broker.take():
        broker.book.settle(lease, "accept")
    broker.run(answer())
    assert broker.requests[1].share_session_epoch == 1
    acknowledged = broker.requests[1].topics[0].partitions
    assert [(one.partition_index, one.acknowledgement_batches[0].first_offset) for one in acknowledged] == [
        (0, 5),
        (1, 7),
    ]
    assert broker.epochs() == [0, 1]
    assert (lost(broker), broker.pauses_s) == ([], [])


def test_a_lone_marker_is_acknowledged_at_once(broker: FakeBroker):
    """A fetch that brings nothing but the marker of a transaction is followed by an acknowledgement of it as a gap."""
    broker.run(answer(part(0, records=marker(6), leased=((6, 6),))))
    [gap] = broker.requests[2].topics[0].partitions[0].acknowledgement_batches
    assert (gap.first_offset, gap.last_offset, gap.acknowledge_types) == (6, 6, [0])


@pytest.mark.parametrize("code", [SESSION_NOT_FOUND, INVALID_EPOCH])
def test_a_session_that_the_broker_has_lost_begins_again_at_once(broker: FakeBroker, code: int):
    """The outcomes in the request are lost, its leases have ended, and the next fetch opens a session at once."""
    first, second = broker.take()
    broker.book.settle(first, "accept")
    broker.run(answer(error_code=code), answer())
    assert broker.epochs() == [0, 1, 0]
    assert lost(broker) == [(0, 5)]
    assert not broker.book.settle(second, "accept"), "its lease has ended with the session"
    assert broker.pauses_s == []


def test_a_broker_without_room_for_sessions_is_asked_again_later(broker: FakeBroker):
    """Each refusal makes the pause longer, up to a second; a success ends that."""
    broker.run(*[answer(error_code=SESSION_LIMIT)] * 7)
    assert broker.pauses_s == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    broker.run(answer(), answer(error_code=SESSION_LIMIT))
    assert broker.pauses_s[7:] == [0.05]


@pytest.mark.parametrize("code", [NOT_LEADER, STORAGE_ERROR, UNKNOWN_TOPIC_ID])
def test_a_partition_that_has_moved_loses_its_leases_alone(broker: FakeBroker, code: int):
    """The leader is asked for; the leases of the other partition stay, and so does the session."""
    first, second = broker.take()
    broker.run(answer(part(0, error_code=code)), answer())
    assert broker.refreshes == 1
    assert not broker.book.settle(first, "accept")
    assert broker.book.settle(second, "accept")
    assert broker.epochs() == [0, 1, 2]


def test_outcomes_that_the_broker_refuses_are_lost(broker: FakeBroker):
    """A refusal of one partition's acknowledgements loses these, and no others."""
    for lease in broker.take():
        broker.book.settle(lease, "accept")
    broker.run(answer(part(1, acknowledge_error_code=INVALID_RECORD_STATE)))
    assert lost(broker) == [(1, 7)]


def test_a_broken_connection_ends_the_session_and_loses_what_was_under_way(broker: FakeBroker):
    """It is not known whether the broker has taken the outcomes: they count as lost, and a pause follows."""
    first, second = broker.take()
    broker.book.settle(first, "accept")
    broker.run(errors.KafkaConnectionError("reset"), answer())
    assert broker.epochs() == [0, 1, 0]
    assert lost(broker) == [(0, 5)]
    assert not broker.book.settle(second, "accept")
    assert broker.pauses_s == [0.05]


def test_another_connection_is_another_session(broker: FakeBroker):
    """Brokers tie a session to its connection: over a new one it is opened, and the leases of the former are gone."""
    first, _ = broker.take()
    broker.link = object()
    broker.run(answer())
    assert broker.epochs() == [0, 0]
    assert not broker.book.settle(first, "accept")


def test_an_unknown_error_of_a_partition_is_tried_again(broker: FakeBroker):
    """A passing error of the broker ends nothing: the leases stay, and the next fetch follows after a pause."""
    broker.run(answer(part(0, error_code=SERVER_ERROR)), answer())
    assert broker.epochs() == [0, 1, 2]
    assert broker.pauses_s == [0.05]
    assert all(broker.book.settle(lease, "accept") for lease in broker.take())


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (answer(error_code=TOPIC_FORBIDDEN), "reading t: Kafka refuses: this user lacks a right to the topic: Read"),
        (answer(part(0, error_code=TOPIC_FORBIDDEN)), "reading t, partition 0: Kafka refuses: this user lacks a right"),
        (errors.IncompatibleBrokerVersion("api 78"), "queues need Kafka 4.2"),
        (errors.SaslAuthenticationFailedError("password"), "password"),
        (ValueError("a defect"), "ValueError: a defect"),
    ],
    ids=["session", "partition", "old broker", "credentials", "defect"],
)
def test_what_a_repetition_cannot_mend_ends_the_queue_with_its_reason(broker: FakeBroker, reply, text: str):
    """A missing right, an old broker, wrong credentials and a defect are failures, not an empty queue."""
    broker.run(reply)
    assert broker.failure is not None
    assert text in str(broker.failure)


def test_the_last_request_has_the_outcomes_and_closes_the_session(broker: FakeBroker):
    """`close` sends what was decided with epoch -1: the broker gives the other leases to other members at once."""
    broker.book.settle(broker.take()[0], "accept")
    broker.reader.close()
    broker.run()
    assert broker.epochs() == [0, -1]
    assert not broker.book.has_outcomes()


def test_a_silent_broker_does_not_hold_the_end_up(broker: FakeBroker):
    """If the last request fails, the reader ends without another one."""
    broker.reader.close()
    broker.run(errors.KafkaConnectionError("gone"))
    assert broker.epochs() == [0, -1]
    assert broker.pauses_s == []
