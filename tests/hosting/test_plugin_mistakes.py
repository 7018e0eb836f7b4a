"""The usual mistakes of a plug-in's author fail in the author's own tests, with a sentence that has the remedy."""

import subprocess
import sys
from pathlib import Path

import pytest

from processor.api import Input, Output, RecordProcessor, Stored
from processor.builtin.conflate import Conflate
from processor.config import TopicConfig
from processor.errors import ConfigurationError, RecordRejected
from processor.hosting.plugins import check_declaration
from processor.testing import ProcessorTestChain, ProcessorTestDriver


class Counting(RecordProcessor):
    """Counts the records of each key with the batch calls; the subclasses make one mistake each."""

    input = Input("publish")
    outputs = (Output("sow"),)

    def process_record(self, record):
        """Count one record."""
        old = self.context.state.get_many([record.key])[record.key]
        version = 1 if old is None else old.version + 1
        self.write(record.key, version, self.context.codec.encode({"count": version}))

    def write(self, key, version, value):
        """Write the state and the SOW record, as it should be."""
        self.context.state.put_many({key: Stored(version, value)})
        self.context.forward("sow", key, value, [("version", b"%d" % version)])


class ForgetsSow(Counting):
    """Writes the state without a SOW record."""

    def write(self, key, version, value):
        """Forget the SOW record."""
        self.context.state.put_many({key: Stored(version, value)})


class ForgetsLater(Counting):
    """Writes the SOW record of the first update alone."""

    def write(self, key, version, value):
        """Forget the SOW records behind the first."""
        if version == 1:
            super().write(key, version, value)
        else:
            self.context.state.put_many({key: Stored(version, value)})


class OtherValue(Counting):
    """Writes another value to SOW than to the state."""

    def write(self, key, version, value):
        """Forward another value."""
        self.context.state.put_many({key: Stored(version, value)})
        self.context.forward("sow", key, b'{"count":"oops"}', [("version", b"%d" % version)])


class OtherVersion(Counting):
    """Writes another version to SOW than to the state."""

    def write(self, key, version, value):
        """Forward another version."""
        self.context.state.put_many({key: Stored(version, value)})
        self.context.forward("sow", key, value, [("version", b"%d" % (version + 1))])


class ForgetsVersion(Counting):
    """Writes SOW records without a version."""

    def write(self, key, version, value):
        """Forget the header."""
        self.context.state.put_many({key: Stored(0, value)})
        self.context.forward("sow", key, value, [])


class OddVersion(Counting):
    """Writes a version that its readers read differently."""

    def write(self, key, version, value):
        """Write a sign before the number."""
        self.context.state.put_many({key: Stored(version, value)})
        self.context.forward("sow", key, value, [("version", b"+%d" % version)])


class ForgetsDelete(Counting):
    """Deletes the state without a tombstone."""

    def write(self, key, version, value):
        """Delete the state at the second record."""
        if version == 1:
            super().write(key, version, value)
        else:
            self.context.state.put_many({key: None})


class ForgetsState(Counting):
    """Writes the state of the first update alone, and all SOW records."""

    def write(self, key, version, value):
        """Forget the state behind the first record."""
        if version == 1:
            super().write(key, version, value)
        else:
            self.context.forward("sow", key, value, [("version", b"%d" % version)])


MISTAKES = {
    ForgetsSow: r"ForgetsSow \(visits\): the state of key b'k' is version 2, .*, but no SOW record was forwarded with "
    r"it: after a crash it would be gone; write both with one call: self\.put\(key, record\)",
    ForgetsLater: r"is version 2, b'\{\"count\":2\}', but no SOW record .*after a crash it would be version 1, ",
    OtherValue: r"its SOW record has another value: after a crash it would be version 2, b'\{\"count\":\"oops\"\}'",
    OtherVersion: r"the state of key b'k' is version 2, .*: after a crash it would be version 3",
    ForgetsVersion: r"the SOW record of key b'k' has no header `version` with a decimal number, but \[\]: a",
    OddVersion: r"no header `version` with a decimal number, but \[\('version', b'\+1'\)\]: a crash would",
    ForgetsDelete: r"the state of key b'k' is gone, but no SOW record .*it would be version 1",
    ForgetsState: r"the state of key b'k' is version 1, .*, but its SOW record has another value",
}


def two_visits(processor_type, **options):
    """A driver with two records of one key, and one commit between them for processors whose first write is right."""
    driver = ProcessorTestDriver(processor_type, {}, name="visits", **options)
    driver.pipe_input("k", {})
    if processor_type in {ForgetsLater, ForgetsDelete, ForgetsState}:
        driver.commit()
    driver.pipe_input("k", {})
    return driver


@pytest.mark.parametrize(("processor_type", "sentence"), MISTAKES.items(), ids=[kind.__name__ for kind in MISTAKES])
def test_a_state_that_a_crash_would_change_fails_at_the_commit(processor_type, sentence):
    """The driver compares each changed state with its SOW record, and names the key and both values."""
    with pytest.raises(AssertionError, match=sentence):
        two_visits(processor_type).commit()


@pytest.mark.parametrize("processor_type", [ForgetsSow, OtherValue, OtherVersion])
def test_the_failing_state_is_indeed_changed_by_a_crash(processor_type):
    """Without the comparison such a processor commits without an error, and its state changes with the crash."""
    driver = two_visits(processor_type, checks_state=False)
    driver.commit()
    before = driver.state.get_many([b"k"])[b"k"]
    driver.crash()
    assert driver.state.get_many([b"k"])[b"k"] != before


def test_a_right_state_passes_before_and_after_rollbacks_and_crashes():
    """States that were rolled back are not compared."""
    driver = two_visits(Counting)
    driver.abort()
    driver.commit()
    driver.pipe_input("k", {})
    driver.crash(keep_store=True)
    driver.commit()
    assert driver.state.get_many([b"k"]) == {b"k": Stored(3, b'{"count":3}')}


class WritesSowOnly(RecordProcessor):
    """Uses SOW as an output like another, and no state."""

    input = Input("publish")
    outputs = (Output("sow"),)

    def process_record(self, record):
        """Copy the record."""
        self.context.forward("sow", record.key, record.value, [("version", b"1")])


def test_a_processor_that_never_writes_state_may_write_sow_records():
    """A write-only SOW topic has no state that could differ from it."""
    driver = ProcessorTestDriver(WritesSowOnly, {}, name="copies")
    driver.pipe_input("k", {})
    driver.commit()
    assert len(driver.read_output("sow")) == 1


class Putting(RecordProcessor):
    """Counts the records of each key with `put`."""

    input = Input("publish")
    outputs = (Output("sow"),)

    def process_record(self, record):
        """Count one record."""
        self.put(record.key, {"count": (self.get(record.key) or {"count": 0})["count"] + 1})


@pytest.mark.parametrize(("processor_type", "rejected"), [(Putting, {}), (ForgetsVersion, {"bad_header": 1})])
def test_a_conflated_topic_over_a_plug_in_takes_records_with_a_version(processor_type, rejected):
    """`put` writes the version; without one the conflated topic rejects every record."""
    source = ProcessorTestDriver(processor_type, {}, name="visits", checks_state=False)
    source.pipe_input("k", {})
    source.commit()
    copy = ProcessorTestDriver(Conflate, {"underlying": "visits", "interval": "1s"}, name="slow", underlying="visits")
    for record in source.read_output("sow"):
        copy.pipe_input(record.key, record.value, record.headers)
    copy.advance_time(2_000)
    copy.commit()
    assert copy.rejections == rejected
    assert len(copy.read_output("sow")) == (0 if rejected else 1)


def test_a_chain_runs_a_conflated_topic_over_a_plug_in():
    """The copy has the last count of each key."""
    chain = ProcessorTestChain()
    chain.add(Putting, name="visits")
    chain.add(Conflate, {"underlying": "visits", "interval": "1s"}, name="slow", underlying="visits")
    for _ in range(3):
        chain.pipe_input("visits", "k", {})
    chain.commit()
    chain.advance_time(2_000)
    chain.commit()
    assert [record.value for record in chain.read_output("slow", "sow")] == [b'{"count":3}']


class ByCustomer(RecordProcessor):
    """Counts the orders of each customer, under a key made of the name."""

    input = Input("publish")
    outputs = (Output("sow"),)

    def process_record(self, record):
        """Count one order."""
        name = self.context.codec.decode(record.value)["customer"]
        key = KEYS[self.context.name](self.context, record, name.encode())
        self.put(key, {"count": (self.get(key) or {"count": 0})["count"] + 1})


KEYS = {
    "by_customer": lambda _, __, name: name,
    "of_order": lambda _, record, name: record.key + b"/" + name,
    "of_partition": lambda context, _, name: name + b"/%d" % context.partition,
}


def test_a_key_that_several_partitions_would_write_fails_at_the_commit():
    """The driver has one partition, in which the counts are right; with several each one has a count of its own."""
    sentence = r"ByCustomer \(by_customer\): the SOW record of key b'ann' is under no key of an input record"
    for partition in (0, 3):
        driver = ProcessorTestDriver(ByCustomer, {}, name="by_customer", partition=partition)
        driver.pipe_input("order7", {"customer": "ann"})
        with pytest.raises(AssertionError, match=sentence):
            driver.commit()


@pytest.mark.parametrize("name", KEYS)
def test_a_key_of_one_partition_passes(name):
    """One that is made of the record's, or names the partition, and any key in a topic of one partition."""
    topic = TopicConfig(partitions=1) if name == "by_customer" else None
    driver = ProcessorTestDriver(ByCustomer, {}, name=name, topic=topic, partition=3)
    driver.pipe_input("order7", {"customer": "ann"})
    driver.pipe_input("order7", {"customer": "ann"})
    driver.commit()
    assert [record.value for record in driver.read_output("sow")] == [b'{"count":1}', b'{"count":2}']


class NoSuper(RecordProcessor):
    """Has an `init` that does not call its base."""

    input = Input("publish")
    outputs = (Output("sow"),)

    def init(self, context, settings):
        """Begin with a count of its own."""
        self.step = 2

    def process_record(self, record):
        """Write the step."""
        self.put(record.key, {"step": self.step})


def test_an_init_need_not_call_its_base():
    """Context and settings are set before `init`; no record fails for a forgotten `super().init`."""
    driver = ProcessorTestDriver(NoSuper, {}, name="steps")
    driver.pipe_input("k", {})
    driver.commit()
    assert driver.rejections == {}
    assert [record.value for record in driver.read_output("sow")] == [b'{"step":2}']


@pytest.mark.parametrize("call", ["put", "delete", "get"])
def test_a_state_without_a_sow_output_is_refused_at_load(call):
    """The declaration is compared with the calls of the plug-in's own methods."""
    calls = {
        "put": lambda self, record: self.put(record.key, {}),
        "delete": lambda self, record: self.delete(record.key),
        "get": lambda self, record: self.get(record.key),
    }
    members = {"process_record": calls[call], "outputs": (Output("delta"),), "input": Input("publish")}
    wrong = type("Wrong", (RecordProcessor,), members)
    sentence = rf"`process_record` calls `{call}`, and `outputs` declares no Output\('sow'\) to restore it from"
    with pytest.raises(ConfigurationError, match=sentence):
        check_declaration(wrong, "'mine'")


def test_a_state_that_is_read_through_the_context_is_refused_too():
    """`self.context.state` needs the output as `put` does; an attribute that has only the name of a call does not."""
    with pytest.raises(ConfigurationError, match="`process_record` uses the state, and"):
        check_declaration(type("Wrong", (Counting,), {"outputs": (), "process_record": Counting.process_record}), "'a'")

    class Own(RecordProcessor):
        """Has a `put` of its own."""

        input = Input("publish")
        outputs = (Output("delta"),)

        def put(self, key):
            """Count."""
            self.context.count("put")

        def process_record(self, record):
            """Call it, and others of the same name."""
            self.put(record.key)
            {}.get(record.key)

    check_declaration(Own, "'own'")


TYPED = """
from processor.api import Input, Output, Record, RecordProcessor, RecordRejected, Settings


class AlertSettings(Settings):
    at_least: int


class Alert(RecordProcessor[AlertSettings]):
    input = Input("publish")
    outputs = (Output("sow"), Output("delta"), Output("alerts"))

    def setup(self, settings: AlertSettings) -> None:
        self.limit: int = settings.at_least

    def process_record(self, record: Record) -> None:
        reveal_type(self.settings)
        if record.value is None:
            raise RecordRejected("no_visit", "a visit has a value")
        count = (self.get(record.key) or {"count": 0})["count"] + 1
        self.put(record.key, {"count": count})
        if count == self.settings.at_least:
            self.forward("alerts", record.key, {"count": count})


class Plain(RecordProcessor):
    input = Input("publish")
    outputs = (Output("sow"),)

    def process_record(self, record: Record) -> None:
        reveal_type(self.settings)
        self.delete(record.key, [("correlation_id", b"7")])


class DictHeaders(Plain):
    def process_record(self, record: Record) -> None:
        self.put(record.key, {}, {"correlation_id": b"7"})
"""


def test_types_of_outputs_settings_and_headers_under_strict_mypy(tmp_path):
    """Own outputs, own reasons and typed settings pass; headers as a dict do not."""
    file = tmp_path / "typed.py"
    file.write_text(TYPED)
    arguments = [sys.executable, "-m", "mypy", "--strict", str(file)]
    done = subprocess.run(arguments, cwd=Path.cwd(), capture_output=True, text=True, check=False, timeout=170)
    notes = [line.partition(": ")[2] for line in done.stdout.splitlines() if "typed.py" in line]
    assert [note for note in notes if note.startswith("note: Revealed")] == [
        'note: Revealed type is "typed.AlertSettings"',
        'note: Revealed type is "processor.api.record_processor.Settings"',
    ], done.stdout
    errors = [note for note in notes if note.startswith("error")]
    assert len(errors) == 1, done.stdout
    assert 'Argument 3 to "put" of "RecordProcessor" has incompatible type "dict[str, bytes]"' in errors[0]


def test_an_output_and_a_reason_of_its_own_run(tmp_path, monkeypatch):
    """The same plug-in runs: alerts go to a topic of their own, and the dead letter has the plug-in's reason."""
    (tmp_path / "typed_plugin.py").write_text(TYPED.replace("        reveal_type(self.settings)\n", ""))
    monkeypatch.syspath_prepend(tmp_path)
    import typed_plugin

    driver = ProcessorTestDriver(typed_plugin.Alert, {"at_least": 2}, name="visits")
    driver.pipe_batch([("k", {}, None), ("k", None, None), ("k", {}, None), (None, {}, None)])
    driver.commit()
    assert driver.pipeline.output("alerts") == "visits.alerts"
    assert [(record.key, record.value) for record in driver.read_output("alerts")] == [(b"k", b'{"count":2}')]
    assert driver.rejections == {"no_visit": 1, "missing_key": 1}
    assert typed_plugin.Alert.settings_type is typed_plugin.AlertSettings


class Transfer(RecordProcessor):
    """Moves an amount from one account to another, with a memo for the second one, or does as the record orders."""

    input = Input("publish")
    outputs = (Output("sow"), Output("delta"), Output("mark"), Output("alerts"))

    def process_record(self, record):
        """Move the amount."""
        order = self.context.codec.decode(record.value)
        if act := order.get("act"):
            ACTS[act](self, record)
            raise RecordRejected("too_late", f"after {act}")
        for account, amount in ((b"ann", -order["amount"]), (b"bob", order["amount"])):
            balance = (self.get(account) or {"balance": 0})["balance"] + amount
            self.put(account, {"balance": balance, "memo": order.get("memo") if amount > 0 else None})


ACTS = {
    "put": lambda self, _: self.put(b"ann", {"balance": 7}),
    "delete": lambda self, _: self.delete(b"ann"),
    "forward": lambda self, record: self.forward("alerts", record.key, {}),
    "note": lambda self, record: self.put_note(record.key, b"1"),
    "state": lambda self, _: self.context.state.put_many({b"ann": None}),
    "mark": lambda self, record: self.context.marks.put(record.key, b"1"),
    "hold": lambda self, record: self.context.hold(None, "7"),
    "reject": lambda self, record: self.context.reject(record, "first", "rejected twice"),
    "pause": lambda self, record: self.context.pause(record.offset),
    "stop": lambda self, record: self.context.stop(record.offset),
}
"""What a record can do before it is rejected."""


@pytest.mark.parametrize("bad", [{"amount": 100, "memo": "m" * 1020}, *({"act": act} for act in ACTS)], ids=str)
def test_nothing_stays_of_a_record_that_is_rejected_half_way(bad):
    """Its outputs, states, marks and note are taken back, and it is one dead letter with its reason."""
    driver = ProcessorTestDriver(Transfer, {}, name="accounts", topic=TopicConfig(max_record_bytes=1024, partitions=1))
    driver.pipe_batch([("x", {"amount": 1}, None), ("x", bad, None), ("x", {"amount": 1}, None)])
    driver.commit()
    assert [(record.key, record.value) for record in driver.read_output("sow")] == [
        (b"ann", b'{"balance":-1,"memo":null}'),
        (b"bob", b'{"balance":1,"memo":null}'),
        (b"ann", b'{"balance":-2,"memo":null}'),
        (b"bob", b'{"balance":2,"memo":null}'),
    ]
    assert driver.read_output("alerts") == []
    assert (driver.noted, driver.marks.get(b"x"), driver.marks.get(b"note/x")) == ("", None, None)
    assert driver.rejections == {"too_late" if "act" in bad else "too_large": 1}
    [letter] = driver.read_output("dlq")
    assert letter.value == driver.input[1].value


def test_a_record_that_is_rejected_at_once_rolls_nothing_back():
    """The instance goes on, and the records before it keep their outputs: a topic may have many such records."""
    driver = ProcessorTestDriver(Transfer, {}, name="accounts", topic=TopicConfig(partitions=1))
    began = driver._task.processor
    driver.pipe_batch([("x", {"amount": 1}, None), ("x", b"{", None), (None, {"amount": 1}, None)])
    driver.commit()
    assert driver._task.processor is began
    assert driver.rejections == {"undecodable": 1}


@pytest.mark.parametrize("reason", ["Too Angry", "", "a" * 65, "ärger", 7, None])
@pytest.mark.parametrize("raises", [False, True])
def test_a_reason_that_is_no_label_costs_its_record_alone(reason, raises):
    """The reason is a label of metrics; another one is the plug-in's failure, and the other records pass."""

    class Odd(Putting):
        """Rejects records without a value for an odd reason."""

        def process_record(self, record):
            """Count or reject."""
            if record.value is None:
                if raises:
                    self.put(record.key, {})
                    raise RecordRejected(reason, "as it came")
                self.context.reject(record, reason, "as it came")
            else:
                super().process_record(record)

    driver = ProcessorTestDriver(Odd, {}, name="visits")
    driver.pipe_batch([("a", {}, None), ("b", None, None), ("c", {}, None)])
    driver.commit()
    assert driver.rejections == {"plugin_failed": 1}
    assert [record.key for record in driver.read_output("sow")] == [b"a", b"c"]
    [letter] = driver.read_output("dlq")
    assert (b"raised RecordRejected: " if raises else b"is no reject reason") in dict(letter.headers)["dlq_detail"]
