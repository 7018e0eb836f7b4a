"""The commands of a delete, and the combined ack for all of them; without Kafka."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from processor.client.publish.deleting import CombinedAcks, DeleteRecord, Selection, check, deletes
from processor.client.publish.outbox import Outbox, PublishOptions
from processor.codec import load_codec
from processor.config import TopicConfig
from processor.errors import ConfigurationError, PublishRejected, RecordRejected
from processor.wire.ack import Ack


def commands(selection: Selection, **settings: object) -> list[DeleteRecord]:
    """The records sent for a selection, on a topic of three partitions."""
    topic = TopicConfig.model_validate(settings)
    outbox = Outbox("orders", topic, load_codec("json"))
    return deletes(selection, outbox, lambda: 3, PublishOptions({"trace": "t"}, correlation_id="abc", command_id="c"))


HEADERS = [("trace", b"t"), ("correlation_id", b"abc"), ("command_id", b"c")]


def test_a_key_is_one_tombstone():
    """A delete by key is one tombstone, which needs no command header."""
    assert commands(Selection(key="7")) == [DeleteRecord((b"7", None, HEADERS))]


def test_keys_are_a_tombstone_each():
    """A delete of several keys is one tombstone for each key, in order, without repetitions."""
    assert [command.record[0] for command in commands(Selection(keys=["b", "a", "b"]))] == [b"b", b"a"]
    assert commands(Selection(keys=[])) == []


def test_a_key_that_may_be_anywhere_is_deleted_in_every_partition():
    """Under `foreign_partition: accept` each partition gets the tombstone, as any of them may have the record."""
    outbox = Outbox("orders", TopicConfig(foreign_partition="accept"), load_codec("json"))
    sent = deletes(Selection(keys=["7", "8"]), outbox, lambda: 2, PublishOptions(), is_anywhere=True)
    assert [(command.record[0], command.partition) for command in sent] == [(b"7", 0), (b"7", 1), (b"8", 0), (b"8", 1)]


def test_the_key_is_computed_from_data():
    """The key is computed from the key fields as workers do; all other fields are ignored."""
    assert commands(Selection(data={"id": 7, "n": 1})) == [DeleteRecord((b"7", None, HEADERS))]
    (command,) = commands(Selection(data=b'{"b":{"c":2},"a":1}'), key=["/a", "/b/c"])
    assert command.record[0] == b'["1","2"]'
    with pytest.raises(RecordRejected, match="the message lacks a key field"):
        commands(Selection(data={"n": 1}))


def test_a_filter_goes_to_every_partition():
    """A delete by filter has no key or value; command and filter are headers."""
    headers = [*HEADERS, ("command", b"sow_delete"), ("filter", "/état = 'né'".encode())]
    assert commands(Selection(filter="/état = 'né'")) == [
        DeleteRecord((None, None, headers), number) for number in range(3)
    ]


@pytest.mark.parametrize("selection", [Selection(), Selection("1", ["1"]), Selection(data={}, filter="/a = 1")])
def test_exactly_one_argument_selects_records(selection):
    """No selection, or two of them, is rejected before anything is sent."""
    with pytest.raises(ConfigurationError, match="exactly one of key, keys, data and filter; this call has"):
        check(selection, has_sequence=False)


def answered(*outcomes: int | Exception | None) -> Future[Ack]:
    """The future of commands with these counts or failures; None: an ack without a count."""
    gathered = CombinedAcks("orders", "stats", "c")
    futures: list[Future[Ack]] = [Future() for _ in outcomes]
    for future in futures:
        gathered.add(future)
    done = gathered.sent()
    for number, (future, outcome) in enumerate(zip(futures, outcomes, strict=True)):
        assert not done.done()
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(Ack("success", None, "stats", "orders", "k", "desk", number, "c", outcome))
    return done


def test_the_answer_has_the_sum_and_comes_with_the_last_command():
    """The combined ack has neither key nor sequence."""
    assert answered(2, 0, 5).result(0) == Ack("success", None, "stats", "orders", None, "desk", None, "c", 7)
    assert answered(2, None, 5).result(0).records_deleted is None


def test_a_delete_of_no_keys_is_done_at_once():
    """A delete of no keys sends nothing and deletes nothing."""
    assert answered().result(0).records_deleted == 0


def test_a_delete_fails_with_its_first_error_when_all_have_finished():
    """Deletes of other commands remain, so the future fails only after all have finished."""
    first, second = PublishRejected("bad_header", "first"), PublishRejected("bad_header", "second")
    assert answered(1, first, 2, second).exception(0) is first
