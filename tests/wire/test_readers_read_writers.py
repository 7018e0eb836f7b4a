"""Every reader reads the headers that every writer writes, and all readers agree on values that no worker writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.builtin.conflate.delivery import Delivery, Read
from processor.builtin.conflate.pending import Pending
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.client.feeds import stored_partition
from processor.client.feeds.compact_records import CompactRecords
from processor.codec.json import JsonCodec
from processor.config import TopicConfig
from processor.errors import RecordRejected
from processor.hosting.commit_metadata import Redelivered
from processor.merge import KeyFields
from processor.record import Header, Headers, Record, Stored
from processor.runtime.recovery.log_replay import EncodedHeads
from processor.store.layout import decode_record
from processor.testing import ProcessorTestDriver
from processor.wire import record_headers
from processor.wire.ack import ACK_TYPES, read_ack, write_ack
from processor.wire.command import CommandReader
from processor.wire.dead_letter import read_leniently, read_letter
from processor.wire.headers import Name, last_value, read_number
from processor.wire.partition_marks import InputPosition
from processor.wire.publisher_headers import (
    ack_type_header,
    command_id_header,
    correlation_header,
    expect_version_header,
    sequence_headers,
    time_to_live_header,
)
from processor.wire.record_headers import (
    expires_at_ms_of,
    kind_of_update,
    plain_versions,
    read_sow_headers,
    source_offset,
    stored_from,
    version_of,
)
from processor.wire.subscriber_headers import iso, metadata, read_delta_headers, read_removed

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.record import Kind

NUMBERS = st.one_of(st.integers(1, 5_000), st.integers(4_000, 4_200), st.integers(1, 2**63 - 1))
TIMES_MS = st.integers(1, 253_402_300_799_999)
TEXTS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=20)
KINDS: tuple[Kind, ...] = ("insert", "update", "delete", "expire")

DAMAGED = (
    b"", b" 7", b"7 ", b"+7", b"-7", b"1_000", b"7.0", b"1e3", b"0x7", b"one", b"\xff", b"\xd9\xa7", b"7\n",
    b"9223372036854775808", b"9" * 19, b"9" * 20, b"0" * 19 + b"7", b"9" * 5_000, None,
)  # fmt: skip
"""Numbers that no worker writes."""


def record(headers: Headers, value: bytes | None = b'{"id":"7"}') -> Record:
    """Return a SOW record with some headers."""
    return Record(b"7", value, headers, 5, 6)


def restored(headers: Headers) -> Stored | None:
    """Return a restored record, the same in both ways of a restore; None where they refuse the headers."""
    try:
        stored = stored_from(record(headers))
    except ValueError:
        with pytest.raises(ValueError, match="none that a worker writes"):
            EncodedHeads()[tuple(headers)]
        return None
    assert stored is not None
    assert decode_record(EncodedHeads()[tuple(headers)] + b'{"id":"7"}') == stored
    return stored


def conflated_version(headers: Headers) -> int | None:
    """Return the version that a conflated topic reads, in the same way from packed heads; None: it rejects."""
    try:
        version = read_sow_headers(headers).version
    except RecordRejected:
        version = None
    [plain] = plain_versions([record(headers)])
    if plain:
        assert int(plain) == version
    return version


def kept_version(headers: Headers) -> int | None:
    """Return the version of a record that went through the compact records and the disk of a client's view."""
    row = stored_partition._row(record(headers))
    read = stored_partition._record(b"7", decode_record(row))
    return version_of(read.headers)


VERSION_READERS: dict[str, Callable[[Headers], int | None]] = {
    "a restore": lambda headers: None if (stored := restored(headers)) is None else stored.version,
    "a conflated topic": conflated_version,
    "a subscriber": lambda headers: metadata(headers).version,
    "a subscriber of deltas": lambda headers: read_delta_headers(headers).version,
    "a kept view": kept_version,
    "a tool, Spark's repair and Spark's rows": version_of,
}


@pytest.mark.parametrize("other", [[], [("trace", b"t")]], ids=["alone", "with another header"])
@given(NUMBERS)
def test_every_reader_reads_the_version_that_every_writer_writes(other: Headers, version: int):
    """The version of an insert, an update, a removal and a delivery is the same number for all readers."""
    written = [
        record_headers.headers_of_version(version),
        record_headers.headers_of_digits(b"%d" % version),
        record_headers.insert_headers(version),
        record_headers.removal_headers(version, "delete"),
        record_headers.conflated_headers(version, None, 3, 9, record_headers.source_header(b"orders.sow/0/", 4)),
        record_headers.renumbered(record_headers.headers_of_version(1), version),
    ]
    for headers in written:
        assert {name: read([*headers, *other]) for name, read in VERSION_READERS.items()} == dict.fromkeys(
            VERSION_READERS, version
        )


@pytest.mark.parametrize("damaged", DAMAGED, ids=lambda value: repr(value)[:24])
@pytest.mark.parametrize("other", [[], [("trace", b"t")]], ids=["alone", "with another header"])
def test_all_readers_agree_on_a_version_that_no_worker_writes(damaged: bytes | None, other: Headers):
    """A damaged version is none for every reader: a restore refuses it, a conflated topic rejects it."""
    headers: Headers = [(Name.VERSION, damaged), *other]
    assert {name: read(headers) for name, read in VERSION_READERS.items()} == dict.fromkeys(VERSION_READERS)


@given(st.one_of(st.binary(max_size=22), st.from_regex(rb"[0-9_+ -]{0,21}", fullmatch=True)))
def test_all_readers_agree_on_any_version(value: bytes):
    """For any bytes all readers read the same number, or none reads one."""
    read = {reader([(Name.VERSION, value)]) or None for reader in VERSION_READERS.values()}
    assert read == {read_number(value) or None}  # Versions count from 1: a store keeps 0 for a record without one.


@given(TIMES_MS, NUMBERS, NUMBERS)
def test_every_reader_reads_the_end_and_the_source_of_a_sow_record(expires_at_ms: int, version: int, offset: int):
    """The restore, the conflated topic, the subscriber and the tools read the time and source that the merge writes."""
    headers = [
        record_headers.expiration_header(b"0.5"),
        record_headers.expires_at_header(expires_at_ms),
        *record_headers.headers_of_version(version),
        record_headers.source_header(b"orders.publish/3/", offset),
    ]
    assert restored(headers) == Stored(version, b'{"id":"7"}', expires_at_ms, offset, b"0.5")
    assert read_sow_headers(headers).expires_at_ms == expires_at_ms_of(headers) == expires_at_ms
    assert metadata(headers).expires_at == iso(expires_at_ms)
    redelivered = Redelivered(0, 0, 0)
    redelivered.take([record(headers)])
    assert (
        list(redelivered.applied)
        == [source_offset(headers)]
        == [source_offset(headers, b"orders.publish/3/")]
        == [offset]
    )
    assert source_offset(headers, b"orders.publish/4/") is None


@pytest.mark.parametrize("damaged", DAMAGED, ids=lambda value: repr(value)[:24])
def test_all_readers_agree_on_an_end_that_no_worker_writes(damaged: bytes | None):
    """A damaged `expires_at` is none: a restore refuses it, a conflated topic rejects it, a subscriber has no time."""
    headers = [*record_headers.headers_of_version(3), (Name.EXPIRES_AT, damaged)]
    assert restored(headers) is None
    with pytest.raises(RecordRejected, match="no time"):
        read_sow_headers(headers)
    assert metadata(headers).expires_at is expires_at_ms_of(headers) is None


@pytest.mark.parametrize("damaged", [b"", b"orders/0/", b"orders/0/-1", b"orders/0/1_0", b"x", b"\xff/1/+2", None])
def test_all_readers_agree_on_a_source_that_no_worker_writes(damaged: bytes | None):
    """A damaged `source` names no input record: a restore refuses it, a recovery and a tool pass over it."""
    headers = [*record_headers.headers_of_version(3), (Name.SOURCE, damaged)]
    assert restored(headers) is None
    redelivered = Redelivered(0, 0, 0)
    redelivered.take([record(headers)])
    assert redelivered.applied == {}
    assert source_offset(headers) is None


@pytest.mark.parametrize("kind", KINDS)
def test_every_reader_reads_the_kind_that_every_writer_writes(kind: Kind):
    """Subscribers, conflated topics and tools read the kinds of removals and deliveries."""
    source = record_headers.source_header(b"orders.sow/0/", 4)
    for headers in (record_headers.removal_headers(7, kind), record_headers.conflated_headers(7, kind, 1, 9, source)):
        assert kind_of_update(headers) == read_delta_headers(headers).kind == kind
        assert read_sow_headers(headers).is_expiry is (kind == "expire")


@pytest.mark.parametrize("damaged", [b"", b"Insert", b"delete ", b"expired", None])
def test_all_readers_agree_on_a_kind_that_no_worker_writes(damaged: bytes | None):
    """A kind that none of the four words is stands for an ordinary update."""
    headers = [*record_headers.headers_of_version(7), (Name.KIND, damaged)]
    assert kind_of_update(headers) is read_delta_headers(headers).kind is None
    assert not read_sow_headers(headers).is_expiry
    assert not read_delta_headers(headers).begins_life


@given(st.integers(0, 2**62), st.integers(1, 2**62))
def test_subscribers_read_the_base_of_every_delta(base: int, version: int):
    """A delta without `delta_base` applies to the version before its own, and one with it to that version."""
    headers = [*record_headers.headers_of_version(version), *record_headers.delta_base_headers(base, version)]
    assert read_delta_headers(headers).base == base
    assert metadata(headers).delta_base == (None if base == version - 1 else base)
    assert read_delta_headers([*headers, record_headers.NO_BASE]).base == 0


@given(st.lists(st.text(max_size=8), max_size=5))
def test_subscribers_read_the_removed_paths_that_a_worker_writes(pointers: list[str]):
    """The header `removed` comes back as the same paths, and an empty delta as empty."""
    headers = read_delta_headers(
        [*record_headers.headers_of_version(2), record_headers.removed_header(pointers), record_headers.EMPTY]
    )
    assert read_removed(headers.removed) == tuple(pointers)
    assert headers.is_empty


@given(NUMBERS, st.integers(1, 10**6), TIMES_MS, NUMBERS)
def test_a_subscriber_reads_a_delivery_of_a_conflated_topic(version: int, updates: int, first_ms: int, offset: int):
    """Number and first time of the updates that became one are those of the delivery."""
    headers = record_headers.conflated_headers(
        version, None, updates, first_ms, record_headers.source_header(b"orders.sow/0/", offset)
    )
    message = metadata(headers)
    assert message.conflated == (updates if updates > 1 else None)
    assert message.first_timestamp == iso(first_ms)
    stored = restored(headers)
    assert stored is not None
    assert stored.source_offset == offset


@given(TEXTS)
def test_every_reader_reads_the_correlation_id_of_a_publisher(text: str):
    """A correlation id goes from the publisher's header by way of the merge to subscribers and copies."""
    header = correlation_header(text)
    command = CommandReader("publish").read([header])
    headers = [*record_headers.headers_of_version(1), record_headers.correlation_id_header(command.correlation_id)]
    assert metadata(headers).correlation_id == text
    assert read_sow_headers(headers).correlation_id == text.encode()


@given(TEXTS, st.integers(0, 2**63 - 1), st.sets(st.sampled_from(ACK_TYPES)), st.integers(0, 2**63 - 1))
def test_a_worker_reads_the_commands_that_a_publisher_writes(client: str, sequence: int, acks: set[str], version: int):
    """Number, name, acks, id and expected version of a command are those that the publisher wrote."""
    types = tuple(name for name in ACK_TYPES if name in acks)
    headers: list[Header] = [
        *sequence_headers(client, sequence),
        command_id_header(client),
        expect_version_header(version),
        time_to_live_header(0.25),
        record_headers.command_header("sow_delete"),
        *([ack_type_header(types)] if types else []),
    ]
    command = CommandReader("publish").read(headers)
    assert (command.client, command.sequence, command.acks) == (client.encode(), sequence, types)
    assert (command.command_id, command.expect_version) == (client.encode(), version)
    assert (command.command, command.expiration) == ("sow_delete", b"0.250000000")
    readable = read_leniently(Record(b"7", b"{}", headers, 0, 0))
    assert readable == ((types, client.encode(), client.encode(), sequence, True, None) if types else None)


@given(TEXTS, st.integers(0, 2**63 - 1), st.sampled_from(ACK_TYPES), st.none() | TEXTS, st.none() | st.integers(0, 9))
def test_a_client_reads_the_acks_that_a_worker_writes(
    client: str, sequence: int, ack_type: str, reason: str | None, deleted: int | None
):
    """An ack comes back field by field."""
    key, value, headers = write_ack(
        ack_type, "failure", reason, client=client.encode(), sequence=sequence, sow_key=b"7", records_deleted=deleted
    )
    assert (key, headers) == (client.encode(), [])
    assert value is not None
    ack = read_ack("orders", value)
    assert (ack.status, ack.reason, ack.ack_type, ack.sow_key) == ("failure", reason, ack_type, "7")
    assert (ack.client, ack.sequence, ack.records_deleted) == (client, sequence, deleted)


@given(TEXTS, TEXTS, st.integers(0, 2**62), st.text(max_size=20))
def test_a_worker_reads_the_input_position_that_a_worker_writes(application: str, topic: str, offset: int, note: str):
    """The input position in the mark topic comes back field by field."""
    position = InputPosition(application, topic, offset, note)
    assert InputPosition.read(bytes(position)) == position


COMMANDS = st.lists(
    st.tuples(
        st.sampled_from([b"1", b"2"]),
        st.sampled_from(['{"id":%d}', '{"id":%d,"a":1}', '{"id":%d,"a":{"b":2}}', '{"id":%d,"a":null}', ""]),
        st.sampled_from([[], [("command", b"publish")], [("expiration", b"9")], [("correlation_id", b"c")]]),
    ),
    max_size=12,
)


@pytest.mark.parametrize("source_header", [False, True], ids=["without source", "with source"])
@given(COMMANDS)
def test_every_reader_reads_every_record_that_the_merge_writes(
    source_header: bool, commands: list[tuple[bytes, str, Any]]
):
    """Versions count on over the lives of a key, and all readers agree on each SOW record and its delta."""
    topic = TopicConfig(source_header=source_header)
    driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
    for key, body, headers in commands:
        driver.pipe_input(key, (body % int(key)).encode() if body else None, headers)
    assert driver.pending_output("dlq") == []
    for role in ("sow", "delta"):
        versions: dict[bytes | None, int] = {}
        ended: dict[bytes | None, int] = {}
        for written in driver.pending_output(role):
            headers = list(written.headers or ())
            readers = {name: read(headers) for name, read in VERSION_READERS.items()}
            version = readers["a restore"]
            assert readers == dict.fromkeys(VERSION_READERS, version)
            delta = read_delta_headers(headers)
            before = versions.get(written.key, 0)
            assert version == before + 1 if before else version > ended.get(written.key, 0)
            assert delta.base == before
            assert (delta.kind == "insert") is (before == 0)
            is_gone = delta.kind in ("delete", "expire")
            versions[written.key] = 0 if is_gone else version
            ended[written.key] = version if is_gone else 0
            assert (last_value(headers, Name.SOURCE) is not None) is source_header


@given(st.integers(1, 2**62), st.integers(1, 9), st.booleans(), st.booleans())
def test_every_reader_reads_every_record_that_conflate_writes(version: int, step: int, is_new: bool, is_gone: bool):
    """The delivery of an interval has the underlying version and the base that the last delivery left."""
    base = 0 if is_new else version
    old = None if is_new else Stored(base, b'{"id":"7","a":1}', 0, 3)
    delivery = Delivery(JsonCodec(), KeyFields(("/id",)), b"orders.sow/0/")
    pending = Pending(b"7", 0, 5)
    pending.count, pending.first_timestamp_ms = step, 9
    value = None if is_gone else b'{"id":"7","a":2}'
    last = Record(b"7", value, record_headers.headers_of_version(version + step), 5, 9)
    if is_new and is_gone:
        return
    state = None if value is None else json.loads(value)
    delivery.add(b"7", pending, last, Read(state, None if old is None else json.loads(old.value)), old)
    for _, _, headers in (*delivery.sow, *delivery.delta):
        assert {name: read(headers) for name, read in VERSION_READERS.items()} == dict.fromkeys(
            VERSION_READERS, version + step
        )
        assert kind_of_update(headers) == ("delete" if is_gone else "insert" if is_new else None)
    [(_, _, headers)] = delivery.delta
    assert read_delta_headers(headers).base == base


def test_a_dead_letter_is_read_as_it_is_written():
    """Reason, detail and source come back, and the publisher's headers of the same names stay the publisher's."""
    from processor.hosting.output_limits import dead_letter

    theirs: Headers = [(Name.DLQ_REASON, b"mine"), ("trace", b"t")]
    for size, is_whole in ((10, True), (3_000_000, False)):
        rejected = Record(b"7", b"x" * size, theirs, 4, 5)
        key, value, headers = dead_letter(rejected, "undecodable", "no JSON", "orders.publish/0/4", 1_000_000)
        letter = read_letter(0, Record(key, value, headers, 0, 0))
        assert (letter.reason, letter.detail, letter.source) == ("undecodable", "no JSON", "orders.publish/0/4")
        assert letter.headers == theirs
        assert letter.is_whole is is_whole
        assert letter.whole_bytes == (None if is_whole else size)


def test_compact_records_keep_all_headers_that_messages_are_made_of():
    """The message of a record is the same whether its headers were compacted or not."""
    headers = [
        *record_headers.conflated_headers(7, "insert", 3, 9, record_headers.source_header(b"orders.sow/0/", 4)),
        record_headers.expires_at_header(10_000),
        record_headers.correlation_id_header(b"c"),
        ("trace", b"t"),
    ]
    kept = CompactRecords()._headers[tuple(headers)]
    assert metadata(list(kept)) == metadata(headers)
