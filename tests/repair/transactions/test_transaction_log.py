"""The coordinators' log, as Kafka 4.3 writes it."""

import pytest

from processor.errors import Stop
from processor.repair.transactions.transaction_log import (
    Decision,
    TransactionLogEntry,
    decisions,
    partition_of,
    read_entry,
)

ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE = 1, 2, 3, 4
PLACES = frozenset({("orders.sow", 1)})
# From a real broker: producer 1, epoch 0, PREPARE_COMMIT of four partitions of SOW and delta, and the group's offsets.
SEEN = (
    b"\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x13\x88\x02\x04\x0borders.sow\x05\x00\x00\x00\x03\x00"
    b"\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x00\x00\x13__consumer_offsets\x02\x00\x00\x00\x02\x00\rorders.delta\x05"
    b"\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x01\xa2\x07+!\x83\x00\x00\x01\xa2"
    b"\x07+!\x00\x01\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01"
)


def entry(status: int, epoch: int = 3, producer_id: int = 7) -> TransactionLogEntry:
    """An entry of one producer."""
    return TransactionLogEntry("id", producer_id, epoch, status, PLACES, 1000 * status, 1)


def test_an_entry_of_a_real_broker_is_read():
    """An entry of a real broker is read: producer, epoch, state, partitions and time."""
    read = read_entry("id", SEEN)
    assert (read.producer_id, read.epoch, read.status, read.updated_ms) == (1, 0, PREPARE_COMMIT, 1795416596867)
    assert read.places == {
        *((f"orders.{role}", partition) for role in ("sow", "delta") for partition in range(4)),
        ("__consumer_offsets", 2),
    }
    assert read.transaction_version == 0


def test_the_version_of_the_protocol_is_read_where_it_is_told():
    """The protocol version is read from its tagged field, here after that of the former producer id."""
    tagged = SEEN[:-11] + b"\x02\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01\x02\x02\x00\x02"
    assert read_entry("id", tagged).transaction_version == 2


@pytest.mark.parametrize("value", [b"", SEEN[:40], b"\x00\x02" + SEEN[2:]])
def test_an_entry_that_is_not_understood_is_an_error(value):
    """An entry that is cut off, or of a newer version, is an error: it decides nothing."""
    with pytest.raises(Stop, match="__transaction_state"):
        read_entry("id", value)


def test_a_decision_has_the_epoch_of_the_records_and_that_of_the_markers():
    """A decision has the epoch of the records and that of the markers, which differ after a timeout."""
    entries = [entry(ONGOING), entry(PREPARE_COMMIT), entry(COMPLETE), entry(ONGOING), entry(PREPARE_ABORT, epoch=4)]
    assert list(decisions(entries)) == [
        Decision(7, 3, 3, 1, True, PLACES, 2000),
        Decision(7, 3, 4, 1, False, PLACES, 3000),
    ]


def test_what_another_producer_had_open_says_nothing_of_an_end():
    """The open transaction of a former producer does not affect an end: an id gets a new one after its last epoch."""
    assert [one.epoch for one in decisions([entry(ONGOING, producer_id=6), entry(PREPARE_COMMIT, epoch=0)])] == [0]


@pytest.mark.parametrize(
    ("name", "partitions", "partition"),
    [
        ("", 50, 0),
        ("a", 50, 47),
        ("app-orders.orders.vm-cbc28aa8-0", 4, 1),
        ("grüße", 7, 4),
        ("polygenelubricants", 7, 0),
    ],
)
def test_a_name_has_the_partition_that_java_gives_it(name, partitions, partition):
    """The partition of a transactional id or a group is `abs(hashCode) % partitions`, as in Java."""
    assert partition_of(name, partitions) == partition
