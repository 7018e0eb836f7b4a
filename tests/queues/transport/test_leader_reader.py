"""Reading from a partition's leader, and the batches of records that it answers with."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import errors
from kafka.record import MemoryRecordsBuilder

from processor.queues.transport.record_batches import AcquiredRange, read_acquired
from processor.wire.headers import UNREADABLE_NAME
from tests.endtoend.raw_batch import raw_batch, raw_record
from tests.queues.transport.fake_broker import FakeBroker, answer, part

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


def test_outcomes_are_sent_in_time_without_a_fetch(broker: FakeBroker):
    """A reader that may fetch nothing now, as it is another broker's turn, acknowledges when the time has come."""
    broker.book.settle(broker.take()[0], "accept")
    broker.reader.send_within(60.0)
    broker.run()
    assert broker.waits_s[0] is None
    assert 0 < broker.waits_s[1] <= 60
    assert broker.epochs() == [0], "nothing is due"
    broker.reader.send_within(0.0)
    broker.run()
    [batch] = broker.requests[0].topics[0].partitions[0].acknowledgement_batches
    assert (batch.first_offset, batch.acknowledge_types) == (5, [1])
    assert broker.waits_s[2] is None


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


HEAD_SIZE = 61
ATTRIBUTES_AT = 21


def batch(base: int, values: list[bytes | None], compression: int = 0, headers=()) -> bytes:
    """A batch whose first record has the offset `base`."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=compression, batch_size=1 << 20)
    for at, value in enumerate(values):
        builder.append(timestamp=1000 + at, key=b"k%d" % at, value=value, headers=list(headers))
    builder.close()
    data = bytearray(builder.buffer())
    data[:8] = base.to_bytes(8, "big")
    return bytes(data)


def marker(base: int) -> bytes:
    """The marker of a transaction: a control batch with one record."""
    data = bytearray(batch(base, [b"\0\0\0\0\0\0"]))
    data[ATTRIBUTES_AT + 1] |= 0x20
    return bytes(data)


def offsets(acquired) -> list[tuple[int, int]]:
    """The offset and the deliveries of each record."""
    return [(record.offset, deliveries) for record, deliveries in acquired.records]


def test_the_leased_records_of_a_batch_come_with_all_they_have():
    """Key, value, headers, time and number of deliveries; those that others hold are stepped over."""
    data = batch(10, [b"a", None, b"c"], headers=[("h", b"1"), ("h", None)])
    acquired = read_acquired(data, [AcquiredRange(10, 10, 1), AcquiredRange(11, 11, 3)])
    assert [(record.key, record.value, record.timestamp_ms, n) for record, n in acquired.records] == [
        (b"k0", b"a", 1000, 1),
        (b"k1", None, 1001, 3),
    ]
    assert acquired.records[0][0].headers == [("h", b"1"), ("h", None)]
    assert (acquired.gaps, acquired.unseen) == ([], [])


def test_a_lone_marker_is_a_gap():
    """A fetch with the marker of a transaction alone has no record, and an offset that has to be acknowledged."""
    acquired = read_acquired(marker(7), [AcquiredRange(7, 7, 1)])
    assert (acquired.records, acquired.gaps, acquired.unseen) == ([], [(7, 7)], [])


def test_compacted_offsets_are_gaps_and_those_behind_the_last_batch_are_unseen():
    """Offsets without a record before the end of the data are gaps; the rest did not come, and is given back."""
    data = batch(0, [b"a"]) + marker(1) + batch(5, [b"b"])
    acquired = read_acquired(data, [AcquiredRange(0, 9, 1)])
    assert offsets(acquired) == [(0, 1), (5, 1)]
    assert acquired.gaps == [(1, 4)]
    assert acquired.unseen == [(6, 9)]


def test_a_batch_that_is_cut_off_is_left_to_a_later_fetch():
    """Brokers cut the last batch at the limit of bytes."""
    data = batch(0, [b"a"]) + batch(1, [b"b"])[:-1]
    acquired = read_acquired(data, [AcquiredRange(0, 1, 1)])
    assert (offsets(acquired), acquired.gaps, acquired.unseen) == ([(0, 1)], [], [(1, 1)])


def test_a_header_name_that_is_not_utf_8_does_not_end_the_batch():
    """It is replaced, as other readers replace it, and a name ends at its first NUL; values and later records stay."""
    headers = [(b"a", b"1"), (b"\xff\xfe", b"2"), (b"c\0\xff", None)]
    data = raw_batch(raw_record(0, b"k", b"v", headers) + raw_record(1, b"k", b"w"), 2)
    first, second = read_acquired(data, [AcquiredRange(0, 1, 1)]).records
    (one, bad, cut) = first[0].headers or []
    assert (one, UNREADABLE_NAME in bad[0], bad[1], cut) == (("a", b"1"), True, b"2", ("c", None))
    assert (second[0].value, second[0].headers) == (b"w", None)


@pytest.mark.parametrize("compression", [1, 2, 3, 4])
def test_compressed_batches_are_read(compression):
    """Gzip, Snappy, LZ4 and Zstandard."""
    acquired = read_acquired(batch(0, [b"x" * 1000] * 3, compression), [AcquiredRange(0, 2, 1)])
    assert [record.value for record, _ in acquired.records] == [b"x" * 1000] * 3


@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
def test_a_damaged_batch_is_told_apart_from_gaps_and_the_next_one_is_read(compression):
    """Its leased offsets are returned with the reason; those behind it come as records."""
    data = bytearray(batch(5, [b"x" * 100] * 3, compression))
    data[HEAD_SIZE:] = b"\x7f" * (len(data) - HEAD_SIZE)
    acquired = read_acquired(bytes(data) + batch(8, [b"good"]), [AcquiredRange(6, 9, 1)])
    ((first, last, why),) = acquired.unreadable
    assert (first, last) == (6, 7)
    assert re.search(r"at offset 5.* cannot be read", why)
    assert (offsets(acquired), acquired.gaps, acquired.unseen) == ([(8, 1)], [], [(9, 9)])


@given(st.data())
def test_any_leases_of_any_batches(data):
    """Records, gaps and unseen offsets are just the leased offsets, each once, and the records are those of the log."""
    log, records, at = b"", {}, 0
    for size in data.draw(st.lists(st.integers(0, 4), max_size=5)):
        at += data.draw(st.integers(0, 2))
        if not size:
            log += marker(at)
            at += 1
            continue
        values = [b"%d" % (at + n) for n in range(size)]
        log += batch(at, values, data.draw(st.sampled_from([0, 1])))
        records |= {at + n: value for n, value in enumerate(values)}
        at += size
    leased = data.draw(st.sets(st.integers(0, at + 2)))
    acquired = read_acquired(log, [AcquiredRange(offset, offset, 1) for offset in sorted(leased)])
    found = {record.offset: record.value for record, _ in acquired.records}
    assert found == {offset: value for offset, value in records.items() if offset in leased}
    others = [offset for first, last in acquired.gaps + acquired.unseen for offset in range(first, last + 1)]
    assert sorted([*found, *others]) == sorted(leased)
    assert all(first >= at for first, _ in acquired.unseen)
