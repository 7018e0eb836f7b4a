"""`put` and `delete` write state, SOW record, version and delta of a record in one call."""

import json
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.api import Input, Output, RecordProcessor, Stored
from processor.config import TopicConfig
from processor.errors import UndeclaredOutput
from processor.hosting import record_writer
from processor.merge import apply_delta
from processor.testing import ProcessorTestDriver
from tests.builtin.merging import told


class Putting(RecordProcessor):
    """Puts each message as it is; a tombstone deletes."""

    input = Input("publish")
    outputs = (Output("sow"), Output("delta"), Output("mark"))
    acts: ClassVar = {}

    def process_record(self, record):
        """Do the act of the key, else put the message."""
        if record.key in self.acts:
            self.acts[record.key](self)
        else:
            self.put(record.key, None if record.value is None else self.context.codec.decode(record.value))


def driver_of(processor_type=Putting, topic=None):
    """The only partition of it, unless a topic has more."""
    return ProcessorTestDriver(processor_type, {}, name="copies", topic=topic or TopicConfig(partitions=1))


def outputs(driver, output):
    """Value and headers of each record of an output."""
    return [(record.value, told(record)) for record in driver.read_output(output)]


def test_put_counts_versions_and_writes_the_difference():
    """The SOW record is the full record, the delta has the changed and removed paths; an insert has its kind."""
    driver = driver_of()
    for value in ({"id": 7, "a": 1, "b": {"c": 2}}, {"id": 7, "a": 2, "b": {}}, {"id": 7, "a": 2, "b": {}}, None):
        driver.pipe_input("7", value)
    driver.commit()
    assert outputs(driver, "sow") == [
        (b'{"id":7,"a":1,"b":{"c":2}}', {"version": "1", "kind": "insert"}),
        (b'{"id":7,"a":2,"b":{}}', {"version": "2"}),
        (b'{"id":7,"a":2,"b":{}}', {"version": "3"}),
        (None, {"version": "4", "kind": "delete"}),
    ]
    assert outputs(driver, "delta") == [
        (b'{"id":7,"a":1,"b":{"c":2}}', {"version": "1", "kind": "insert"}),
        (b'{"id":7,"a":2}', {"version": "2", "removed": '["/b/c"]'}),
        (b'{"id":7}', {"version": "3", "empty": "true"}),
        (b'{"id":7}', {"version": "4", "kind": "delete"}),
    ]


def test_a_record_that_comes_after_a_delete_is_an_insert():
    """Its version follows from the input offset, as in the built-in merge; a delete of nothing writes nothing."""
    driver = driver_of()
    for value in (None, {"a": 1}, None, None, {"a": 2}):
        driver.pipe_input("7", value)
    driver.commit()
    assert [headers for _, headers in outputs(driver, "sow")] == [
        {"version": "3", "kind": "insert"},
        {"version": "4", "kind": "delete"},
        {"version": "9", "kind": "insert"},
    ]


def test_many_lives_for_one_record_have_versions_of_their_own():
    """A plug-in may put and delete a key often for one record; later lives begin above, also after a crash."""

    def lives(plug_in):
        for number in range(3):
            plug_in.put(b"7", {"n": number})
            plug_in.put(b"7", {"n": -number})
            plug_in.delete(b"7")

    class Living(Putting):
        acts: ClassVar = {b"many": lives}

    driver = driver_of(Living)
    for _ in range(2):
        driver.pipe_input("many", {})
        driver.commit()
        driver.crash()
    driver.pipe_input("7", {"n": 9})
    driver.commit()
    versions = [int(told(record)["version"]) for record in driver.read_output("sow")]
    assert versions == [1, 2, 3, 4, 5, 6, 7, 8, 9, *range(10, 19), 19]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc/~"), inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["1", "2"]), st.none() | st.dictionaries(st.sampled_from(["a", "b", "", "/"]), JSON, max_size=4)
    ),
    max_size=12,
)


@settings(max_examples=40)
@given(RECORDS, st.booleans())
def test_replaying_the_deltas_gives_the_sow_records(records, crashes):
    """The law of deltas holds for any sequence of puts and deletes, after a crash in the middle too."""
    driver = driver_of()
    for number, (key, value) in enumerate(records):
        driver.pipe_input(key, value)
        driver.commit()
        if crashes and number == len(records) // 2:
            driver.crash()
    replayed, kept = {}, {}
    for record in driver.read_output("delta"):
        headers = told(record)
        if headers.get("kind") == "delete":
            del replayed[record.key]
            continue
        before = None if headers.get("kind") == "insert" else replayed[record.key]
        removed = json.loads(headers.get("removed", "[]"))
        replayed[record.key] = apply_delta(before, json.loads(record.value), removed)
    for record in driver.read_output("sow"):
        if record.value is None:
            del kept[record.key]
        else:
            kept[record.key] = json.loads(record.value)
    assert repr_of(replayed) == repr_of(kept)
    states = driver.state.get_many([b"1", b"2"])
    assert {key: json.loads(stored.value) for key, stored in states.items() if stored} == kept


def repr_of(records):
    """The records with their members in order, so that 1 and 1.0 differ."""
    return {key: json.dumps(record, sort_keys=True) for key, record in records.items()}


def test_the_caller_may_go_on_changing_the_record_that_it_put():
    """A tuple is an array like a list; later changes of the object are no part of the record."""
    record = {"id": 1, "n": (1, 2)}

    def act(processor):
        processor.put(b"k", record)
        record["n"] = [1, 2]
        processor.put(b"k", record)

    driver = acting(act)
    assert outputs(driver, "delta")[1] == (b'{"id":1}', {"version": "2", "empty": "true"})


def acting(act, processor_type=Putting, topic=None):
    """A driver after the commit of one record with the key `act`."""
    mine = type(processor_type.__name__, (processor_type,), {"acts": {b"act": act}})
    driver = driver_of(mine, topic)
    driver.pipe_input("act", {})
    driver.commit()
    return driver


def test_more_headers_go_to_both_outputs_and_into_the_state():
    """The state is read from the SOW record's headers, as by a restore: `expires_at` makes it one that expires."""
    more = [("expires_at", b"99"), ("correlation_id", b"c")]
    driver = acting(lambda processor: processor.put(b"k", {"id": 1}, more))
    both = {"version": "1", "kind": "insert", "correlation_id": "c"}
    assert [headers for _, headers in outputs(driver, "sow")] == [both | {"expires_at": "99"}]
    assert [headers for _, headers in outputs(driver, "delta")] == [both]
    assert driver.state.get_many([b"k"]) == {b"k": Stored(1, b'{"id":1}', 99)}


WRONG = {
    "a key of text": (lambda processor: processor.put("k", {}), "the key is str 'k'; it should be bytes"),
    "headers of a dict": (
        lambda processor: processor.put(b"k", {}, {"expires_at": b"1"}),
        "headers of key b'k' is dict {'expires_at': b'1'}; it should be a list of (name, bytes)",
    ),
    "a header of text": (lambda processor: processor.put(b"k", {}, [("expires_at", "1")]), "a header of key b'k'"),
    "the version": (
        lambda processor: processor.put(b"k", {}, [("version", b"7")]),
        "puts key b'k' with the header 'version', which `put` writes itself",
    ),
    "a time that is none": (lambda processor: processor.put(b"k", {}, [("expires_at", b"soon")]), "ValueError"),
    "a value that JSON lacks": (lambda processor: processor.put(b"k", {"a": {1}}), "TypeError"),
    "a delete with a wrong header": (lambda processor: processor.delete(b"k", [("kind", b"x")]), "'kind'"),
    "a long note": (lambda processor: processor.put_note(b"k", b"x" * 1001), "a note of 1,001 bytes; a key has room"),
}


@pytest.mark.parametrize(("act", "sentence"), WRONG.values(), ids=WRONG)
def test_a_wrong_put_writes_nothing_and_its_record_is_a_dead_letter(act, sentence):
    """The sentence is in the dead letter; state, SOW and delta are as before."""
    driver = acting(act)
    [letter] = driver.read_output("dlq")
    assert told(letter)["dlq_reason"] == "plugin_failed"
    assert sentence in told(letter)["dlq_detail"]
    assert driver.read_output("sow") == driver.read_output("delta") == []
    assert driver.state.get_many([b"k"]) == {b"k": None}


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda processor: processor.put(b"k", {"a": "x" * 2000}), "too_large"),
        (lambda processor: processor.put(b"k" * 70_000, {}), "too_large"),
        (lambda processor: processor.put(b"k", [1]), "not_an_object"),
        (lambda processor: processor.put(None, {}), "missing_key"),
        (lambda processor: processor.get(None), "missing_key"),
    ],
)
def test_a_record_that_the_topic_does_not_take_rejects_its_input(act, reason):
    """The limits of the topic's settings hold for records of plug-ins too."""
    driver = acting(act, topic=TopicConfig(max_record_bytes=1024))
    assert driver.rejections == {reason: 1}
    assert driver.read_output("sow") == []


def test_a_message_type_without_deltas_sends_the_full_record():
    """The delta of such a type is the message, and a delete has an empty body."""

    class Bytes(Putting):
        """Puts the bytes themselves."""

    driver = driver_of(Bytes, TopicConfig(message_type="binary", key="explicit"))
    driver.pipe_batch([("k", b"\xff", None), ("k", b"\xfe", None), ("k", None, None)])
    driver.commit()
    assert [value for value, _ in outputs(driver, "sow")] == [b"\xff", b"\xfe", None]
    assert [value for value, _ in outputs(driver, "delta")] == [b"\xff", b"\xfe", b""]


def test_a_stored_record_that_cannot_be_read_is_replaced():
    """The versions go on; the delta is the full record, and its base is no record."""
    driver = acting(
        lambda processor: (
            processor.context.state.put_many({b"k": Stored(4, b"{")}),
            processor.put(b"k", {"id": 1}),
        )
    )
    assert outputs(driver, "delta") == [(b'{"id":1}', {"version": "5", "delta_base": "0"})]


class NoSow(Putting):
    """Declares no state, and hides its `put` behind a function."""

    outputs = (Output("delta"),)

    def process_record(self, record):
        """Put."""
        self.acts[b"act"](self)


def test_put_without_a_sow_output_stops_the_processor():
    """No record is at fault: the declaration is wrong."""
    driver = driver_of(type("NoSow", (NoSow,), {"acts": {b"act": lambda processor: processor.put(b"k", {})}}))
    with pytest.raises(UndeclaredOutput, match="puts a record, and its `outputs` declare no output of role 'sow'"):
        driver.pipe_input("act", {})


def test_a_private_note_lasts_with_its_record_and_is_in_no_output():
    """Notes are rolled back and restored with the records; an empty one is none."""
    notes = []

    def act(processor):
        notes.append(processor.note(b"k"))
        processor.put_note(b"k", b"%d" % len(notes))
        processor.put(b"k", {})

    driver = acting(act)
    driver.crash()
    driver.pipe_input("act", {})
    driver.abort()
    driver.commit()
    assert notes == [None, b"1", b"1"]
    assert [value for value, _ in outputs(driver, "sow") + outputs(driver, "delta")] == [b"{}"] * 4


class Repeatable(RecordProcessor):
    """Sums numbers by key; may run at least once."""

    input = Input("publish")
    outputs = (Output("sow"), Output("delta"))
    is_repeatable = True

    def process_record(self, record):
        """Add one number."""
        number = self.context.codec.decode(record.value)["n"]
        self.put(record.key, {"sum": (self.get(record.key) or {"sum": 0})["sum"] + number})


def test_a_repeatable_processor_names_the_source_of_each_record():
    """The SOW record has the input record's place, and the state its offset."""
    driver = driver_of(Repeatable)
    driver.pipe_batch([("a", {"n": 1}, None), ("b", {"n": 2}, None)])
    driver.commit()
    assert [told(record)["source"] for record in driver.read_output("sow")] == [
        "copies.publish/0/0",
        "copies.publish/0/1",
    ]
    assert driver.state.get_many([b"b"])[b"b"].source_offset == 1


class RepeatableFlush(Repeatable):
    """The same with one result for each key and commit."""

    def setup(self, settings):
        """Begin with nothing."""
        self.sums = {}

    def process_record(self, record):
        """Keep one number."""
        number = self.context.codec.decode(record.value)["n"]
        self.sums[record.key] = self.sums.get(record.key, 0) + number

    def flush(self):
        """Put the sums."""
        for key, number in self.sums.items():
            self.put(key, {"sum": (self.get(key) or {"sum": 0})["sum"] + number})
        self.sums = {}


def test_a_repeatable_processor_that_puts_without_a_record_fails_at_the_commit():
    """Such a record names no source, so that a redelivered record would be added again."""
    driver = driver_of(RepeatableFlush)
    driver.pipe_input("a", {"n": 1})
    sentence = r"RepeatableFlush \(copies\): the SOW record of key b'a' has no header `source`, and .* is repeatable"
    with pytest.raises(AssertionError, match=sentence):
        driver.commit()


def test_a_change_that_sow_has_already_is_not_made_again():
    """Redelivered records of a key are skipped up to the last one that SOW has of it."""
    driver = driver_of(Repeatable)
    driver.pipe_batch([("a", {"n": 1}, None), ("b", {"n": 2}, None), ("a", {"n": 4}, None)])
    driver.commit()
    # As after a crash without transactions: the outputs are there, and the input position is not.
    driver._begin(driver._store, 0)
    driver._task._context.applied = {0: [b"a"], 2: [b"a"]}
    driver.feed()
    driver.commit()
    states = driver.state.get_many([b"a", b"b"])
    assert states[b"a"].value == b'{"sum":5}'
    assert states[b"b"].value == b'{"sum":4}'


_VALUES = st.one_of(
    st.sampled_from((None, True, 0, 1, 1.0, 1.5, -1, 10**17, 10**20, 1e300, "", "a", "1", "é", 'q"')),
    st.sampled_from(({}, {"a": 1}, {"a": 1, "b": [1]}, {"b": [1], "a": 1}, [], [1], [{"a": 1}])),
)
_RECORDS = st.dictionaries(st.sampled_from(("id", "b", "c", "é", "d/e")), _VALUES, max_size=5)


@pytest.mark.skipif(not record_writer.has_compiled, reason="it was not compiled here")
@given(st.lists(_RECORDS, min_size=1, max_size=4), st.sampled_from((("/id",), ("/id", "/b"), ("/é",), ())))
@settings(max_examples=300, deadline=None)
def test_compiled_and_python_deltas_are_the_same_bytes(records, key):
    """Of any records the compiled difference has the delta, value and headers, that the merge's own has, or none."""
    written = []
    for has_compiled in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(record_writer, "has_compiled", has_compiled)
            driver = driver_of(topic=TopicConfig(key=key or "explicit"))
            for record in records:
                driver.pipe_input("7", record)
            driver.commit()
            written.append(driver.read_output("delta"))
    assert written[0] == written[1]
