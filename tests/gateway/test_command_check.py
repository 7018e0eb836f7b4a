"""The decision about a command looks at the message as the worker reads it, in every message type."""

import pytest

from processor.codec import codec_of
from processor.config import Config
from processor.filter import compile_filter
from processor.gateway.access.entitlements import Rights
from processor.gateway.access.requests import BadRequest
from processor.gateway.commands.command_check import (
    NO_RECORD,
    Command,
    CommandCheck,
    CurrentRecord,
    Permission,
    encoded,
)
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Topic
from processor.subscriptions.request.entitlement import Entitlement
from processor.subscriptions.request.select import Select


def decide(data, right, *, message_type="json", key=("/id",), op="publish", before=None, select=None, **settings):
    """The decision about one message of a user whose rights to read and to publish are the same filter."""
    config = Config(topics={"t": {"key": list(key), "message_type": message_type, **settings}})
    topic, current = Topic("t", codec_of(config, "t"), KeyFields(key)), NO_RECORD
    own = compile_filter(right)
    rights = Rights(Entitlement(own, Select(select, topic.key) if select else None), may_publish=True, publish=own)
    if before is not None:
        record = Record(b"k", topic.codec.encode(before), [("version", b"3")], 0, 0)
        current = CurrentRecord(3, topic.value(record), topic.metadata_of(record), record)
    command = Command(op, topic.key.text(data) or "k", *encoded(topic, op, data))
    return CommandCheck(topic, config.topic("t")).decide("bob", rights, command, current)


@pytest.mark.parametrize(
    ("message_type", "key", "mine", "other"),
    [
        ("json", ("/id",), {"id": 1, "desk": "x"}, {"id": 1, "desk": "y"}),
        ("json", ("/id", "/b/c"), {"id": 1, "b": {"c": "z"}, "desk": "x"}, {"id": 1, "b": {"c": "z"}, "desk": "y"}),
        ("nvfix", ("/id",), {"id": "1", "desk": "x"}, {"id": "1", "desk": "y"}),
        ("msgpack", ("/id",), {"id": 1, "desk": "x"}, {"id": 1, "desk": "y"}),
        ("bson", ("/id",), {"id": 1, "desk": "x"}, {"id": 1, "desk": "y"}),
    ],
)
def test_records_before_and_after_are_checked_in_each_message_type(message_type, key, mine, other):
    """A record of the user's own is changed, and none is taken over or given away."""
    kind = {"message_type": message_type, "key": key}
    assert decide(mine, "/desk = 'x'", **kind) == Permission(0)
    assert decide(mine, "/desk = 'x'", before=mine, op="delta_publish", **kind) == Permission(3)
    for data, before in ((other, None), (other, mine), (mine, other)):
        for op in ("publish", "delta_publish"):
            with pytest.raises(BadRequest, match="may not publish this record"):
                decide(data, "/desk = 'x'", before=before, op=op, **kind)


def test_a_value_is_checked_as_it_will_be_stored():
    """A number in a message type of texts is stored as its text, and matches the filter as that."""
    assert decide({"id": "1", "qty": 5}, "/qty = '5'", message_type="nvfix") == Permission(0)


@pytest.mark.parametrize("right", ["SOW_KEY() NOT IN ('1', '2')", "NOT (SOW_KEY() = '1')", "NOT (TOPIC_NAME() = 't')"])
def test_a_right_on_the_key_or_the_topic_is_checked(right):
    """A filter of `publish` knows the key and the topic of a message, and no key that it excludes is written."""
    for op in ("publish", "delta_publish"):
        with pytest.raises(BadRequest, match="may not publish this record"):
            decide({"id": 1}, right, op=op)
    assert decide({"id": 3}, "SOW_KEY() NOT IN ('1', '2') AND TOPIC_NAME() = 't'") == Permission(0)


def test_the_policy_of_a_topic_decides_what_a_delta_changes():
    """A null that removes a field, and an object that replaces another one, count as what they do to the record."""
    own = {"id": 1, "desk": "x", "o": {"open": 1, "secret": 2}}
    with pytest.raises(BadRequest, match="may not publish"):
        decide({"id": 1, "desk": None}, "/desk = 'x'", before=own, op="delta_publish", null_policy="remove")
    assert decide({"id": 1, "desk": None}, "/desk = 'x'", before=own, op="delta_publish") == Permission(3)
    merges = {"before": own, "op": "delta_publish", "select": "-/o/secret"}
    assert decide({"id": 1, "o": {"open": 2}}, "/desk = 'x'", **merges) == Permission(3)
    with pytest.raises(BadRequest, match="may not see every field"):
        decide({"id": 1, "o": {"open": 2}}, "/desk = 'x'", merge_depth=1, **merges)


@pytest.mark.parametrize(
    ("select", "before", "delta", "is_refused"),
    [
        ("-/,+/o/open", {"o": {"open": 1, "secret": 2}}, {"o": {"open": 2}}, False),
        ("-/,+/o/open", {"o": {"secret": 2}}, {"o": {"open": 2}}, True),
        ("-/,+/o/open", {"o": 5}, {"o": {"open": 2}}, True),
        ("-/legs/secret", {"legs": [{"secret": 1}]}, {"legs": [{"open": 1}]}, True),
        ("-/legs/secret", {"legs": [{"secret": 1}]}, {"legs": {"open": 1}}, True),
        ("-/o/secret", {"o": 5}, {"o": {"open": 1}}, False),
        ("-/o/secret", {}, {"o": {"open": 1}}, False),
        ("-/o/secret", {}, {"o": {"open": 1, "secret": 1}}, True),
    ],
)
def test_what_is_hidden_is_never_replaced(select, before, delta, is_refused):
    """Each value that has a hidden part, or may have one, keeps it: an object, an array, a value in their place."""
    record, message = {"id": 1, "desk": "x", **before}, {"id": 1, **delta}
    shown = f"{select},+/desk" if select.startswith("-/,") else select
    if is_refused:
        with pytest.raises(BadRequest, match="may not see every field"):
            decide(message, "/desk = 'x'", before=record, op="delta_publish", select=shown)
    else:
        assert decide(message, "/desk = 'x'", before=record, op="delta_publish", select=shown) == Permission(3)
