"""A call of a plug-in with a wrong type fails, and its record becomes a dead letter."""

from typing import ClassVar

import pytest

from processor.api import Input, Output, RecordProcessor, Stored
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.errors import PartitionHeld
from processor.hosting.forwarded import is_ours
from processor.testing import ProcessorTestDriver

GOOD = [("version", b"1")]


class Handing(RecordProcessor):
    """Calls its context as the test defines for the key of a record."""

    input = Input("publish", from_underlying=False)
    outputs = (Output("sow"), Output("delta"), Output("mark"))
    acts: ClassVar = {}

    def process_record(self, record):
        """Do the act of the key, else copy the record."""
        if record.key in self.acts:
            self.acts[record.key](self.context)
        else:
            self.context.state.put_many({record.key: Stored(1, record.value)})
            self.context.forward("sow", record.key, record.value, GOOD)

    def punctuate(self, now_ms):
        """Do the act of the clock."""
        if b"clock" in self.acts:
            self.acts[b"clock"](self.context)


WRONG = {
    "a key that is text": (
        lambda context: context.forward("delta", "a", b"1", []),
        "copies forwards to 'delta': the key is str 'a'; it should be bytes",
    ),
    "no key": (lambda context: context.forward("sow", None, b"1", []), "the key is NoneType None"),
    "a value that is a dict": (
        lambda context: context.forward("sow", b"a", {"id": 1}, GOOD),
        "forwards to 'sow': the value of key b'a' is dict {'id': 1}; it should be bytes, or None for a tombstone",
    ),
    "a value that is text": (lambda context: context.forward("sow", b"a", "1", []), "is str '1'"),
    "headers that are a dict": (
        lambda context: context.forward("sow", b"a", b"1", {"version": b"1"}),
        "headers of key b'a' is dict {'version': b'1'}; it should be a list of (name, bytes)",
    ),
    "no headers": (lambda context: context.forward("sow", b"a", b"1", None), "headers of key b'a' is NoneType"),
    "a header of a number": (lambda context: context.forward("sow", b"a", b"1", [("version", 1)]), "('version', 1)"),
    "a header of text": (lambda context: context.forward("sow", b"a", b"1", [("version", "1")]), "a header of key"),
    "a header named in bytes": (lambda context: context.forward("sow", b"a", b"1", [(b"n", b"1")]), "a header of key"),
    "a header of half a surrogate pair": (
        lambda context: context.forward("sow", b"a", b"1", [("\ud800", b"1")]),
        "a header of key",
    ),
    "a record that is no tuple": (lambda context: context.forward_many("sow", ["abc"]), "a record is str 'abc'"),
    "a record of two": (lambda context: context.forward_many("sow", [(b"a", b"1")]), "a record is tuple"),
    "one wrong of many": (
        lambda context: context.forward_many("sow", [(b"a", b"1", []), (b"b", 2, [])]),
        "the value of key b'b' is int 2",
    ),
    "a state that is a dict": (
        lambda context: context.state.put_many({b"a": {"id": 1}}),
        "copies puts dict {'id': 1} under the key b'a'; a state is None or Stored(version: int, value: bytes)",
    ),
    "a state of text": (lambda context: context.state.put_many({b"a": Stored(1, "x")}), "a state is None or Stored"),
    "a state of no version": (lambda context: context.state.put_many({b"a": Stored(None, b"")}), "Stored(version=None"),
    "a state under a text": (lambda context: context.state.put_many({"a": None}), "under the key str 'a'; a key is"),
    "a mark of text": (lambda context: context.marks.put(b"a", "1"), "puts the mark bytes b'a' to str '1'"),
    "a mark of ours": (
        lambda context: context.marks.put(b"\0sowstream/input", b"1"),
        "names that begin with a NUL are reserved",
    ),
    "a mark under a text": (lambda context: context.marks.put("a", b"1"), "a mark's name and value are bytes"),
}


@pytest.fixture(params=WRONG)
def wrong(request, monkeypatch):
    """A wrong act on records with the key `bad`; returns a part of the error's text."""
    act, problem = WRONG[request.param]
    monkeypatch.setattr(Handing, "acts", {b"bad": act})
    return problem


def test_the_record_of_a_wrong_call_is_a_dead_letter_and_the_others_pass(wrong):
    """The dead letter names the wrong value and the right type; nothing of the call is sent or stored."""
    driver = ProcessorTestDriver(Handing, {}, name="copies")
    driver.pipe_batch([("a", b"1", None), ("bad", b"2", None), ("c", b"3", None)])
    driver.commit()
    assert [(record.key, record.value) for record in driver.read_output("sow")] == [(b"a", b"1"), (b"c", b"3")]
    assert driver.read_output("delta") == driver.read_output("mark") == []
    [letter] = driver.read_output("dlq")
    headers = dict(letter.headers)
    assert headers["dlq_reason"] == b"plugin_failed"
    detail = headers["dlq_detail"].decode()
    assert detail.startswith("Handing raised TypeError: ")
    assert wrong in detail
    assert driver.state.get_many([b"bad"]) == {b"bad": None}


def test_a_wrong_call_of_the_clock_holds_the_partition(monkeypatch):
    """No record is at fault, so none is rejected: the partition waits, in the driver as in a worker."""
    monkeypatch.setattr(Handing, "acts", {b"clock": lambda context: context.forward("sow", b"a", {"id": 1}, [])})
    driver = ProcessorTestDriver(Handing, {}, name="copies")
    with pytest.raises(PartitionHeld, match=r"punctuate raised TypeError.*value of key b'a' is dict") as caught:
        driver.advance_time(1000)
    assert caught.value.reason == "plugin_failed"


def test_records_may_come_from_a_generator(monkeypatch):
    """Records of a generator are checked once and sent once."""
    many = lambda context: context.forward_many("delta", ((b"k", b"%d" % n, ()) for n in range(3)))  # noqa: E731
    monkeypatch.setattr(Handing, "acts", {b"many": many})
    driver = ProcessorTestDriver(Handing, {}, name="copies")
    driver.pipe_input("many", b"")
    driver.commit()
    assert [record.value for record in driver.read_output("delta")] == [b"0", b"1", b"2"]


def test_built_in_processors_are_not_checked_and_subclasses_of_them_are():
    """The hot path of a built-in processor pays nothing; a third party's subclass of one is checked as any plug-in."""

    class Mine(DeltaMerge):
        """Another's."""

    assert is_ours(DeltaMerge)
    assert not is_ours(Mine)
    assert not is_ours(Handing)
