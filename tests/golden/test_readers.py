"""The readers of this checkout read the golden bytes of every release."""

from __future__ import annotations

import pytest

from processor.builtin.view.aggregate import ViewAggregate
from processor.client.feeds.bookmark import begins
from processor.client.feeds.snapshot_boundary import SnapshotBoundary
from processor.config import TopicConfig, ViewConfig
from processor.gateway.feeds.bookmark_text import query_hash, read_bookmark
from processor.hosting.commit_metadata import CommitMetadata, Ends
from processor.store.marks import POSITION_NAME
from processor.testing import ProcessorTestDriver
from processor.wire.ack import read_ack
from processor.wire.control import Failure, Fence, Notice, Order, decode, decode_key
from processor.wire.dead_letter import input_record, read_letter
from processor.wire.partition_marks import InputPosition
from processor.wire.subscriber_headers import metadata, read_delta_headers
from processor.wire.topic_description import Description, describe, topic_section
from processor.wire.view_parts import group_of_route, split_key
from tests.builtin.merging import bodies, seen, told
from tests.codec.specimens import strict
from tests.endtoend.oracle import last_per_key, replay
from tests.golden.golden_files import BEFORE_LIVES, VERSIONS, golden_messages, golden_texts, golden_topic
from tests.golden.messages import MESSAGES, decoded
from tests.golden.test_writers import comparable
from tests.golden.texts import BOOKMARK, TOPIC_ID, spec
from tests.golden.topics import CONFIG, NOW_MS, VIEW, conflated, merge_driver, merged

pytestmark = pytest.mark.parametrize("version", VERSIONS)


def resumed(version: str) -> ProcessorTestDriver:
    """Return a merge that begins with the SOW records and marks of a release."""
    driver = merge_driver()
    for role in ("sow", "mark"):
        log = driver._logs[role]
        log.committed = golden_topic(version, f"orders.{role}")
        log.end = log.committed[-1].offset + 1
    driver.crash()
    return driver


def test_commands_are_merged_as_the_release_merged_them(version: str) -> None:
    """SOW records, deltas, acks, dead letters, marks and messages follow from the golden commands byte by byte."""
    if version in BEFORE_LIVES:
        pytest.skip("its lives have other versions, which its commands expect")
    outputs = merged(golden_topic(version, "orders.publish")[:-1])  # The last one is the worker's own.
    for role in ("sow", "delta", "ack", "dlq", "publish"):
        assert comparable(outputs[role]) == comparable(golden_topic(version, f"orders.{role}"))
    assert comparable(outputs["to_ship.queue"]) == comparable(golden_topic(version, "to_ship.queue"))


def test_a_worker_goes_on_from_the_records_of_the_release(version: str) -> None:
    """After a restore from golden SOW records a delta gets the next version, and each other record is unchanged."""
    driver = resumed(version)
    driver.pipe_input("7", {"id": 7, "qty": 1})
    driver.pipe_input("8", {"id": 8})
    [update, insert] = driver.pending_output("sow")
    assert (told(update)["version"], told(insert)["version"], told(insert)["kind"]) == ("5", "3", "insert")
    assert bodies([update]) == [{"id": 7, "customer": "acme", "qty": 1, "px": {"bid": 1.5}}]
    assert told(update)["expiration"] == "60"  # The record's own time to live is restored, too.


def test_a_worker_knows_the_sequences_of_the_release(version: str) -> None:
    """A command that the release accepted is a duplicate; the next sequence is merged."""
    driver = resumed(version)
    for sequence in ("2", "3"):
        driver.pipe_input("9", {"id": 9, "n": int(sequence)}, {"client": "desk-1", "sequence": sequence})
    assert bodies(driver.pending_output("sow")) == [{"id": 9, "n": 3}]


def test_the_input_position_of_the_release_is_read(version: str) -> None:
    """The last mark is the input position, with its note."""
    mark = golden_topic(version, "orders.mark")[-1]
    assert mark.key == POSITION_NAME
    assert InputPosition.read(mark.value) == InputPosition("desk", "KyVL8zLdTQa1Xz0v1cVw3A", 17, "seen 4800")


def test_replayed_deltas_of_the_release_are_its_records(version: str) -> None:
    """The deltas of merge, conflated topic and view each add up to the SOW records."""
    for family in ("orders", "orders_5s", "by_customer"):
        sow, deltas = golden_topic(version, f"{family}.sow"), golden_topic(version, f"{family}.delta")
        assert replay(seen(deltas)) == last_per_key(seen(sow))
    bases = [read_delta_headers(record.headers).base for record in golden_topic(version, "orders_5s.delta")]
    assert bases == [0, 0, 0, 1 if version in BEFORE_LIVES else 23, 0]


def test_messages_are_made_of_the_release_s_headers(version: str) -> None:
    """Version, kind, correlation id, expiry and conflation of a message are those that the release wrote."""
    [_, copy, *_] = golden_topic(version, "orders_5s.sow")
    read = metadata(copy.headers or [])
    assert (read.version, read.correlation_id, read.conflated) == (4, "abc=", 4)
    assert read.expires_at == "2023-11-14T22:14:20.000Z"
    [message, *_] = golden_topic(version, "to_ship.queue")
    assert metadata(message.headers or []).version == 1


def test_a_conflated_topic_reads_the_release_s_records(version: str) -> None:
    """A conflated topic over golden SOW records writes the golden copies."""
    outputs = conflated(golden_topic(version, "orders.sow"))
    for role, records in outputs.items():
        assert comparable(records) == comparable(golden_topic(version, f"orders_5s.{role}"))


def test_a_view_reads_the_release_s_parts(version: str) -> None:
    """The second stage of a view computes the golden rows from golden contributions, and reads the first stage's."""
    settings = ViewConfig.model_validate({"underlying": "orders", **VIEW})
    rows = settings.topic(TopicConfig(partitions=1))
    driver = ProcessorTestDriver(ViewAggregate, settings, name="v", topic=rows, now_ms=NOW_MS)
    for record in golden_topic(version, "by_customer.parts"):
        driver.append_input(record.key, record.value, record.headers)
        assert record.key is not None
        group, member = split_key(record.key)
        assert (group in (b"acme", b""), member in (b"7", b"8")) == (True, True)
    driver.feed()
    driver.advance_time(1)
    driver.commit()
    assert last_per_key(seen(driver.read_output("sow"))) == last_per_key(seen(golden_topic(version, "by_customer.sow")))
    routes = golden_topic(version, "by_customer.split.sow")
    assert [group_of_route(record.value) for record in routes if record.value] == [b"acme", b"acme", b""]


def test_acks_of_the_release_are_read(version: str) -> None:
    """Each ack has its command, its outcome and its reason."""
    acks = [read_ack("orders", record.value or b"") for record in golden_topic(version, "orders.ack")]
    # Before lives, only a refusal for its version had one.
    first, second, conflict = (None, None, 1) if version in BEFORE_LIVES else (11, 13, 13)
    assert [(ack.ack_type, ack.status, ack.sequence, ack.version) for ack in acks] == [
        ("processed", "success", 1, first),
        ("processed", "success", 2, second),
        ("processed", "failure", 3, conflict),
        ("persisted", "failure", 3, conflict),
        ("processed", "success", 2, second),
        ("persisted", "success", 2, second),
        ("persisted", "success", 2, None),
    ]
    assert (acks[0].command_id, acks[0].sow_key, acks[4].reason) == ("c2", "é", "duplicate")


def test_dead_letters_of_the_release_are_read_and_sent_again(version: str) -> None:
    """A dead letter has its reason and place, and its input record is the publisher's."""
    [record] = golden_topic(version, "orders.dlq")
    letter = read_letter(0, record)
    assert (letter.reason, letter.source, letter.is_whole) == ("undecodable", "orders.publish/0/9", True)
    replayed = [("trace", b"t"), ("replay_of", b"orders.publish/0/9")]
    assert input_record(letter, "orders.dlq") == (b"10", b"{not json", replayed)


def test_the_control_topic_of_the_release_is_read(version: str) -> None:
    """Notice, failure, order and fence come back field by field."""
    records = golden_topic(version, "_sowstream.control")
    keys = [decode_key(record.key) for record in records]
    assert [key and key.kind for key in keys] == ["held", "failed", "resume", "fence"]
    values = [record.value or b"" for record in records]
    notice, failure, order, fence = map(decode, (Notice, Failure, Order, Fence), values)
    assert notice is not None
    assert failure is not None
    assert order is not None
    assert fence is not None
    assert (notice.reason, notice.offset, notice.order_ms, failure.version) == ("open_transaction", 12, 0, "0.1.0")
    assert (order.by, fence.offsets, fence.is_up) == ("ann@a", {0: 7}, True)


def test_the_topic_directory_of_the_release_is_read(version: str) -> None:
    """Each description gives the settings of its topic."""
    records = golden_topic(version, "_sowstream.topics")
    read = {(record.key or b"").decode(): Description.from_json(record.value or b"") for record in records}
    assert read == describe(CONFIG)
    assert topic_section(read["fills"]).key_fields == ("/id", "/leg")


def test_messages_of_each_type_are_read(version: str) -> None:
    """The codec of each message type reads the value that the release wrote; protobuf adds defaults of other fields."""
    for record in golden_messages(version):
        assert record.key is not None
        expected, value = MESSAGES[record.key.decode()], decoded(record)
        if record.key == b"protobuf":
            value = {name: value[name] for name in expected}
        assert strict(value) == strict(expected)


def test_bookmarks_of_the_release_are_resumed(version: str) -> None:
    """A client's bookmark gives its offsets, and one of the gateway its place in the same query."""
    texts = golden_texts(version)
    boundary = SnapshotBoundary.__new__(SnapshotBoundary)
    boundary.ends = {0: 2000, 1: 2000, 2: 2000}
    boundary.oldest = lambda _: 0  # type: ignore[method-assign]
    assert begins(texts["client bookmark"], boundary, TOPIC_ID) == {0: 1042, 1: 998, 2: 1003}
    for name in ("all", "filter", "window"):
        text, query = texts[f"gateway bookmark, {name}"], query_hash(spec(name))
        assert read_bookmark(text, query, TOPIC_ID, {0: 2000, 1: 2000}) == BOOKMARK


def test_offset_metadata_of_the_release_is_read(version: str) -> None:
    """The metadata of a committed offset gives the ends of the outputs and the note."""
    texts = golden_texts(version)
    read = [CommitMetadata.read(texts[name]) for name in texts if name.startswith("offset metadata")]
    assert read == [(None, "seen 4800"), (Ends(60, 7), ""), (Ends(60, 7), "seen 4800")]
