"""A stored record that a change of its schema made unreadable can be replaced by a full publish, or deleted."""

import json

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.testing import ProcessorTestDriver
from tests.builtin.merging import told


class Topic:
    """A topic of JSON records, of which one cannot be read any more."""

    def __init__(self, **settings):
        topic = TopicConfig(key=["/id"], **settings)
        self.driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        self.driver.pipe_input("7", {"id": 7, "px": 1, "old": True}, {"command": "publish"})
        self.driver.pipe_input("7", {"id": 7, "qty": 2})
        self.driver.commit()
        # As after a change of the schema: the bytes are there, and the message type cannot read them.
        state = self.driver._task.state
        stored = state.get_many([b"7"])[b"7"]
        state.put_many({b"7": stored._replace(value=b"\xc1 of an old schema")})

    def last(self, role):
        """The last record of an output, parsed, with its headers."""
        record = self.driver.pending_output(role)[-1]
        return None if record.value is None else json.loads(record.value), told(record)


def test_a_full_publish_replaces_it_and_versions_go_on():
    """The delta is the full record with base 0: a subscriber that applies deltas then has the SOW record."""
    topic = Topic()
    topic.driver.pipe_input("7", {"id": 7, "px": 3}, {"command": "publish"})
    assert topic.last("sow") == ({"id": 7, "px": 3}, {"version": "3"})
    assert topic.last("delta") == ({"id": 7, "px": 3}, {"version": "3", "delta_base": "0"})
    assert topic.driver.pending_output("dlq") == []
    topic.driver.pipe_input("7", {"id": 7, "qty": 1})
    assert topic.last("sow") == ({"id": 7, "px": 3, "qty": 1}, {"version": "4"})
    assert topic.last("delta") == ({"id": 7, "qty": 1}, {"version": "4"})
    topic.driver.commit()
    assert topic.driver.events["unreadable_replaced"] == 1


def test_a_delta_of_it_is_rejected_with_the_way_out():
    """A delta of a record that cannot be read is rejected with advice; the record stays as it is."""
    topic = Topic()
    topic.driver.pipe_input("7", {"id": 7, "px": 3})
    assert topic.driver.pending_output("sow") == topic.driver.pending_output("delta") == []
    [letter] = topic.driver.pending_output("dlq")
    assert told(letter)["dlq_reason"] == "undecodable"
    assert "version 2, cannot be read any more" in told(letter)["dlq_detail"]
    assert "publish it in full, or delete it" in told(letter)["dlq_detail"]


def test_a_delete_removes_it():
    """After a delete the key is free, and a new record begins above the versions of the one before."""
    topic = Topic()
    topic.driver.pipe_input("7", {"id": 7}, {"command": "sow_delete"})
    assert topic.last("sow") == (None, {"version": "3", "kind": "delete"})
    topic.driver.pipe_input("7", {"id": 7, "px": 3})
    assert topic.last("sow") == ({"id": 7, "px": 3}, {"version": "7", "kind": "insert"})


@pytest.mark.parametrize(
    "settings",
    [
        {"merge_rules": {"/px": "sum"}},
        {"key_in_body": "required"},
        {"default_command": "publish"},
        {"sequence_groups": [{"by": "/at", "fields": ["/px"]}]},
    ],
)
def test_settings_that_look_at_the_record_before_do_not_keep_it(settings):
    """Rules, groups and the key field of a full publish are handled as for a new record."""
    topic = Topic(**settings)
    topic.driver.pipe_input("7", {"id": 7, "px": 3, "at": 5}, {"command": "publish"})
    assert topic.last("sow") == ({"id": 7, "px": 3, "at": 5}, {"version": "3"})
    assert topic.last("delta") == ({"id": 7, "px": 3, "at": 5}, {"version": "3", "delta_base": "0"})


def test_a_removal_of_a_full_publish_is_done_as_well():
    """The header `remove` applies to the new record."""
    topic = Topic()
    topic.driver.pipe_input("7", {"id": 7, "px": 3, "x": 1}, {"command": "publish", "remove": '["/x"]'})
    assert topic.last("delta") == ({"id": 7, "px": 3}, {"version": "3", "delta_base": "0"})
