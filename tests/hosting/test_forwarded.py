"""Forwarded records that are refused, and the dead letters of rejected ones."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import ClassVar, get_args

import pytest

from processor.api import Input, Output, RecordProcessor, Stored
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.cli.dlq import as_json
from processor.config import TopicConfig
from processor.errors import PartitionHeld
from processor.hosting.forwarded import is_ours
from processor.hosting.output_limits import KEPT_BYTES_MAX, dead_letter, size_of
from processor.record import Record, RejectReason
from processor.testing import ProcessorTestDriver
from processor.wire.dead_letter import input_record, read_letter

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
    "a gauge of nothing": (lambda context: context.gauge("pending", None), "not 'NoneType'"),
    "a gauge of a text": (lambda context: context.gauge("pending", "many"), "to float: 'many'"),
    "a negative count": (
        lambda context: context.count("left", -1),
        "copies counts -1 of 'left'; an event occurs 0 times or more",
    ),
    "a count of no number": (lambda context: context.count("left", float("nan")), "copies counts nan of 'left'"),
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
    assert detail.startswith(("Handing raised TypeError: ", "Handing raised ValueError: "))
    assert wrong in detail
    assert driver.state.get_many([b"bad"]) == {b"bad": None}


class Tabling(Handing):
    """The same with a table of its input."""

    input = Input("parts", from_underlying=False)
    keeps_table = True


@pytest.mark.parametrize("state", [{"id": 1}, Stored(1, {"id": 1})], ids=str)
def test_a_wrong_state_in_the_table_is_refused_in_the_call(monkeypatch, state):
    """It failed at the write-back only, seconds after the commit, and ended the pipeline."""
    put = lambda context: context.table.put_many({b"a": state})  # noqa: E731
    monkeypatch.setattr(Handing, "acts", {b"bad": put})
    driver = ProcessorTestDriver(Tabling, {}, name="copies")
    driver.pipe_batch([("a", b"1", None), ("bad", b"2", None), ("c", b"3", None)])
    driver.commit()
    assert [record.key for record in driver.read_output("sow")] == [b"a", b"c"]
    [letter] = driver.read_output("dlq")
    assert b"under the key b'a'; a state is None or Stored(" in dict(letter.headers)["dlq_detail"]


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


@pytest.mark.parametrize(("settings", "key"), [({"key_format": "json"}, '{"id":7}'), ({}, None)], ids=str)
def test_the_driver_takes_the_keys_and_headers_of_a_subclass_of_a_built_in_processor(settings, key):
    """The merge makes keys of JSON keys and of records without a key, and names no source in a transaction."""

    class Mine(DeltaMerge):
        """Another's."""

    driver = ProcessorTestDriver(Mine, TopicConfig.model_validate(settings), name="orders")
    driver.pipe_input(key, {"id": 7})
    for _ in range(2):
        driver.commit()
    assert [record.key for record in driver.read_output("sow")] == [b"7"]


MIB = 1024 * 1024
ROOT = Path(__file__).parents[2]
SOURCE = "orders.publish/3/17"


def letter_of(record: Record, bytes_max: int = 16 * MIB, detail: str = "no"):
    """Return the dead letter as it is written and as it is read."""
    key, value, headers = dead_letter(record, "too_large", detail, SOURCE, bytes_max)
    assert size_of((key, value, headers)) <= bytes_max
    return read_letter(3, Record(key, value, headers, 5, 0))


def test_a_record_that_fits_is_kept_as_it_was() -> None:
    """A record that fits is complete in its dead letter, also where its publisher used our header names."""
    theirs = [("dlq_bytes", b"7"), ("dlq_sha256", b"x"), ("dlq_truncated", b"true")]
    letter = letter_of(Record(b"k", b"x" * 15 * MIB, theirs, 17, 0))
    assert letter.is_whole
    assert (letter.record.key, len(letter.record.value or b"")) == (b"k", 15 * MIB)
    assert letter.headers == theirs


def test_of_a_large_value_the_first_mebibyte_is_kept() -> None:
    """The dead letter of a large value has its beginning, size and checksum; key and headers stay."""
    value = bytes(range(256)) * 80_000
    letter = letter_of(Record(b"k", value, [("trace", b"1")], 17, 0))
    assert letter.record.value == value[:KEPT_BYTES_MAX]
    assert (letter.whole_bytes, letter.sha256) == (len(value), hashlib.sha256(value).hexdigest())
    assert (letter.record.key, letter.headers, letter.source) == (b"k", [("trace", b"1")], SOURCE)
    assert '"dlq_truncated":true' in as_json(letter)
    whole = Record(b"k", value, [("trace", b"1")], 17, 0)
    assert input_record(letter, "orders.dlq", whole) == (b"k", value, [("trace", b"1"), ("replay_of", SOURCE.encode())])


@pytest.mark.parametrize("bytes_max", [16 * 1024, 100_000, MIB, 17 * MIB])
@pytest.mark.parametrize("key_bytes", [1, 18 * MIB])
@pytest.mark.parametrize("header_bytes", [0, 18 * MIB])
@pytest.mark.parametrize("value_bytes", [None, 0, 18 * MIB])
def test_no_part_of_a_record_makes_it_too_large(
    bytes_max: int, key_bytes: int, header_bytes: int, value_bytes: int | None
) -> None:
    """Large headers are left out and a large key is cut, as the detail mentions; `letter_of` checks the size."""
    headers = [("blob", b"h" * header_bytes)] if header_bytes else None
    value = None if value_bytes is None else b"v" * value_bytes
    letter = letter_of(Record(b"k" * key_bytes, value, headers, 17, 0), bytes_max, "d" * 100_000)
    assert (letter.detail or "").count("headers are left out") == (header_bytes > 0)
    assert (letter.detail or "").count("its key") == (key_bytes > 1)
    assert (letter.record.value is None) == (value_bytes is None)
    assert letter.is_whole == (key_bytes == 1 and not header_bytes and not value_bytes)


def test_many_small_headers_are_counted() -> None:
    """The bytes of Kafka's format around each header are part of the size."""
    letter = letter_of(Record(b"k", b"v", [("a", None)] * 100_000, 17, 0), 64 * 1024)
    assert letter.headers == []
    assert not letter.is_whole


def test_the_product_rejects_records_for_its_own_reasons_only() -> None:
    """Every reason in the code is in `RejectReason`: types accept any word, for the sake of plug-ins."""
    reasons = set()
    for folder in ("processor", "spark_integration"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if "docs" not in file.parts:
                reasons |= set(re.findall(r'RecordRejected\(\s*"([^"]*)"', file.read_text(encoding="utf-8")))
    assert reasons
    assert reasons <= set(get_args(RejectReason))
