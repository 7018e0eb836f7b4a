"""Preprocessors and enrichers of plug-ins: their calls, their failures, and the values that they may return."""

import datetime as dt
import math
from decimal import Decimal

import msgpack
import pytest

from processor.builtin.delta_merge.messages import Messages, PreprocessAll
from processor.codec import load_codec
from processor.errors import ConfigurationError, RecordRejected
from processor.record import Record
from processor.wire.command import CommandReader
from tests.builtin.installed import install
from tests.builtin.merging import bodies, merging, rejected


@pytest.fixture(autouse=True)
def plugins(tmp_path, monkeypatch):
    """The plug-ins of `tests/builtin/installed.py` are installed."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def use(name, **settings):
    """A step with settings."""
    return {"use": name, "settings": settings}


BYTES = {"message_type": "binary", "key": "explicit"}
"""Settings of a topic whose messages have no fields."""


class TestPreprocess:
    """Preprocessors run before the key is made."""

    def test_a_preprocessor_makes_the_message_and_with_it_the_key(self):
        """A record whose key agrees only after preprocessing is merged; one that agrees only before it is not."""
        driver = merging(preprocess=["upper_id"])
        driver.pipe_batch([("A", {"id": "a", "n": 1}, None), ("a", {"id": "a"}, None)])
        assert bodies(driver.pending_output("sow")) == [{"id": "A", "n": 1}]
        assert rejected(driver) == [("key_mismatch", "/id is 'A', but the record's key says 'a'")]

    def test_a_record_without_kafka_key_is_sent_again_under_the_key_it_makes(self):
        """The record is sent unchanged, and preprocessed in its own partition."""
        driver = merging(preprocess=["upper_id", use("tag", text="x")])
        driver.pipe_input(None, {"id": "a"}, {"trace": "1"})
        [again] = driver.pending_output("publish")
        assert (again.key, again.value, again.headers) == (b"A", b'{"id":"a"}', [("trace", b"1")])
        driver.commit()
        assert bodies(driver.pending_output("sow")) == [{"id": "A", "tags": ["x"]}]

    def test_preprocessors_run_in_order_with_their_settings(self):
        """Preprocessors run in the order of the settings, each on the result of the one before it."""
        driver = merging(preprocess=[use("tag", text="x"), use("tag", text="y"), use("tag", field="more", text="z")])
        driver.pipe_input("7", {"id": 7})
        assert bodies(driver.pending_output("sow")) == [{"id": 7, "tags": ["x", "y"], "more": ["z"]}]

    def test_a_delete_is_not_preprocessed(self):
        """A delete has no message to preprocess: the Kafka key names the record."""
        driver = merging(preprocess=["fails"])
        driver.pipe_batch([("7", {"id": 7}, None), ("7", {"bad": 1}, {"command": "sow_delete"})])
        assert bodies(driver.pending_output("sow")) == [{"id": 7}, None]

    def test_a_duplicate_is_skipped_before(self):
        """A duplicate is dropped before it is preprocessed."""
        driver = merging(preprocess=["fails"])
        driver.pipe_batch([("7", body, {"client": "c", "sequence": "1"}) for body in ({"id": 7}, {"bad": 1})])
        assert rejected(driver) == []

    def test_a_message_without_fields_is_rejected(self):
        """A preprocessor that cannot see a message must not let it pass: it may be there to take a secret out."""
        codec = load_codec("binary")
        messages = Messages(codec, PreprocessAll([]))
        request = CommandReader("publish", codec.header_names).plain
        with pytest.raises(RecordRejected, match=r"not_an_object: the message is .*; a preprocessor changes an object"):
            messages.read(Record(b"7", b"secret", None, 0, 0), request)


class TestEnrich:
    """Enrichers run after the key check and before the merge."""

    def test_an_enricher_sees_the_message_and_the_record_before(self):
        """An enricher gets the delta and the record before; its result is merged, compared and sent."""
        driver = merging(enrich=["total"])
        driver.pipe_batch([("7", {"id": 7, "price": 3, "qty": 2}, None), ("7", {"qty": 5}, None)])
        assert bodies(driver.pending_output("sow"))[1] == {"id": 7, "price": 3, "qty": 5, "total": 15}
        assert bodies(driver.pending_output("delta"))[1] == {"id": 7, "qty": 5, "total": 15}

    def test_an_enricher_sees_the_records_of_earlier_commands_of_its_batch(self):
        """An enricher sees the record as earlier commands of the batch left it, and none after a delete."""
        driver = merging(enrich=["total"])
        records = [{"price": 3, "qty": 2}, {"price": 4}, None, {"price": 1, "qty": 1}, {"qty": 9}]
        driver.pipe_batch([("7", body, None) for body in records])
        assert [body and body["total"] for body in bodies(driver.pending_output("sow"))] == [6, 8, None, 1, 9]

    def test_enrichers_run_after_preprocessors(self):
        """An enricher sees the message that the preprocessors made."""
        driver = merging(preprocess=[use("tag", field="price", text="x")], enrich=[use("total")])
        driver.pipe_input("7", {"id": 7, "qty": 2, "price": []})
        assert rejected(driver) == []
        assert bodies(driver.pending_output("sow"))[0]["total"] == ["x", "x"]

    def test_a_change_to_the_record_before_has_no_effect(self):
        """Every enricher has a copy of its own."""
        driver = merging(enrich=["spoil", "total"])
        driver.pipe_batch([("7", {"id": 7, "price": 3, "qty": 2}, None), ("7", {"qty": 5}, None)])
        assert bodies(driver.pending_output("sow"))[1] == {"id": 7, "price": 3, "qty": 5, "total": 15}

    @pytest.mark.parametrize("command", ["publish", "delta_publish"])
    def test_an_enricher_cannot_change_the_key(self, command):
        """A record stays on the partition of its key, so a changed key is rejected."""
        driver = merging(enrich=["rename"])
        driver.pipe_input("7", {"id": 7}, {"command": command})
        assert [reason for reason, _ in rejected(driver)] == ["key_mismatch"]

    def test_a_publish_meets_the_record_before_too(self):
        """A publish is enriched with the record that it replaces."""
        driver = merging(enrich=["total"])
        driver.pipe_batch([("7", {"price": 3, "qty": 2, "a": 1}, None), ("7", {"qty": 5}, {"command": "publish"})])
        assert bodies(driver.pending_output("sow"))[1] == {"qty": 5, "total": 15, "id": "7"}


class TestFailures:
    """A plug-in that fails rejects its record only."""

    @pytest.mark.parametrize("stage", ["preprocess", "enrich"])
    def test_a_hook_that_raises_rejects_its_record(self, stage):
        """Other records of the batch are merged; the dead letter has the plug-in's name and its error."""
        driver = merging(**{stage: ["fails"]})
        driver.pipe_batch([("7", body, None) for body in ({"id": 7, "n": 1}, {"bad": 1}, {"n": 2})])
        assert bodies(driver.pending_output("sow")) == [{"id": 7, "n": 1}, {"id": 7, "n": 2}]
        assert rejected(driver) == [("plugin_failed", "fails raised ValueError: it is bad")]

    @pytest.mark.parametrize("stage", ["preprocess", "enrich"])
    def test_a_hook_that_returns_no_object_rejects_the_record(self, stage):
        """A hook that returns another value than an object rejects the record."""
        driver = merging(**{stage: ["nothing"]})
        driver.pipe_input("7", {"id": 7})
        assert rejected(driver) == [("plugin_failed", "nothing returned null; a message is an object")]

    def test_a_hook_that_rejects_gives_the_reason(self):
        """The dead letter has the reason and the detail of the plug-in."""
        driver = merging(preprocess=["refuses"])
        driver.pipe_input("7", {"id": 7})
        assert rejected(driver) == [("schema_mismatch", "not today")]

    @pytest.mark.parametrize("command", ["delete", "Publish", None, ["publish"]])
    def test_a_command_that_there_is_not_rejects_the_record(self, command):
        """A row that a preprocessor deletes by a wrong word is not merged, but a dead letter with the right ones."""
        driver = merging(preprocess=["commands"])
        driver.pipe_batch([("7", {"id": 7, "op": op}, None) for op in ("publish", command, "sow_delete")])
        assert bodies(driver.pending_output("sow")) == [{"id": 7}, None]
        detail = f"commands returned the command {command!r}; known: publish, delta_publish, sow_delete"
        assert rejected(driver) == [("plugin_failed", detail)]

    def test_a_value_that_cannot_be_written(self):
        """A value that the message type cannot write rejects the record with the message type's reason."""
        driver = merging(enrich=["unwritable"])
        driver.pipe_batch([("7", {"id": 7}, None), ("8", {"id": 8}, None)])
        assert [reason for reason, _ in rejected(driver)] == ["schema_mismatch"] * 2
        assert driver.state.get_many([b"7"]) == {b"7": None}

    def test_without_a_kafka_key_too(self):
        """A record without a Kafka key whose hook raises is rejected: its key cannot be known."""
        driver = merging(preprocess=["fails"])
        driver.pipe_input(None, {"id": 7, "bad": 1})
        assert [reason for reason, _ in rejected(driver)] == ["plugin_failed"]


@pytest.mark.parametrize(("settings", "message"), [
    ({"preprocess": ["upper-id"]}, r"orders: there is no preprocessor 'upper-id'; did you mean 'upper_id'\?"),
    ({"enrich": ["upper_id"]}, r"orders: there is no enricher 'upper_id'; known: expressions, fails, nothing, rename"),
    ({"preprocess": [use("tag", word="x")]}, r"orders: preprocessor 'tag' does not take its settings: .*'word'"),
    ({"preprocess": ["fussy"]}, r"orders: preprocessor 'fussy' does not take its settings: no such table"),
    ({"preprocess": ["gone"]}, r"orders: preprocessor 'gone': tests\.builtin\.installed:not_there cannot be loaded: "),
    ({"preprocess": ["upper_id"], **BYTES}, r"orders: .* have no fields to change; take out its preprocess"),
    ({"enrich": ["rename"], **BYTES}, r"orders: messages of type 'binary' .* take out its enrich"),
    ({"preprocess": ["no_function"]}, r"orders: preprocessor 'no_function' \(.*\) made no function of its settings"),
])  # fmt: skip
def test_a_hook_that_cannot_be_made_stops_the_start(settings, message):
    """The error has the problem, and the name that was probably meant."""
    with pytest.raises(ConfigurationError, match=message):
        merging(**settings)


VALUES = {
    "nan": math.nan,
    "infinity": {"deep": [1, -math.inf]},
    "decimal_nan": Decimal("NaN"),
    "datetime": dt.datetime(2024, 2, 29, tzinfo=dt.UTC),
    "long": 2**64,
    "tuple": (1, None),
    "object": {"n": 1, "kept": None},
}
"""The values that the plug-ins below put into a message, by the setting `kind`."""


def put(*, kind):
    """A preprocessor and enricher that adds a value to every message, at /a/px."""
    return lambda message, previous=None: message | {"a": {"px": VALUES[kind]}}


def to_nan(one, other):
    """A merge rule without a result."""
    return math.nan


@pytest.fixture
def value_plugins(tmp_path, monkeypatch):
    """The functions of this file are installed as plug-ins."""
    info = tmp_path / "values-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: values\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[sowstream.preprocessors]\nput = {__name__}:put\n[sowstream.enrichers]\nput = {__name__}:put\n"
        f"[sowstream.merge_rules]\nto_nan = {__name__}:to_nan\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("value_plugins")
@pytest.mark.parametrize("stage", ["preprocess", "enrich"])
@pytest.mark.parametrize("command", ["publish", "delta_publish"])
@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        ("nan", "/a/px: nan is not a JSON value; leave it out, or publish null"),
        ("infinity", "/a/px/deep/1: -inf is not a JSON value; leave it out, or publish null"),
        ("decimal_nan", "/a/px: NaN is not a JSON value; leave it out, or publish null"),
        ("datetime", "/a/px: datetime is not a JSON value: "),
    ],
)
def test_a_value_that_json_lacks_rejects_the_record_with_its_place(stage, command, kind, detail):
    """The record stays as it was, and the dead letter has the place of the plug-in's value."""
    driver = merging(**{stage: [{"use": "put", "settings": {"kind": kind}}]})
    driver.pipe_input("7", {"id": 7, "px": 5}, {"command": command})
    [(reason, said)] = rejected(driver)
    assert (reason, said[: len(detail)]) == ("schema_mismatch", detail)
    assert not driver.pending_output("sow")
    assert not driver.pending_output("delta")


@pytest.mark.usefixtures("value_plugins")
def test_a_merge_rule_that_makes_no_number_rejects_the_delta():
    """The first value of a field meets no rule; the second makes NaN, which JSON lacks, and the first stays."""
    driver = merging(merge_rules={"/px": "to_nan"})
    driver.pipe_batch([("7", {"id": 7, "px": 1}, None), ("7", {"px": 2}, None), ("7", {"n": 1}, None)])
    assert rejected(driver) == [("schema_mismatch", "/px: nan is not a JSON value; leave it out, or publish null")]
    assert bodies(driver.pending_output("sow")) == [{"id": 7, "px": 1}, {"id": 7, "px": 1, "n": 1}]


@pytest.mark.usefixtures("value_plugins")
@pytest.mark.parametrize(("kind", "text"), [("long", b"18446744073709551616"), ("tuple", b"[1,null]")])
def test_a_value_that_json_has_in_another_form_is_written(kind, text):
    """An int of any length is written with every digit, and a tuple as an array."""
    driver = merging(enrich=[{"use": "put", "settings": {"kind": kind}}])
    driver.pipe_batch([("7", {"id": 7}, None), ("7", {"n": 1}, None)])
    assert rejected(driver) == []
    [*_, record] = driver.pending_output("sow")
    assert record.value.rstrip() == b'{"id":7,"a":{"px":' + text + b'},"n":1}'


@pytest.mark.usefixtures("value_plugins")
def test_values_of_a_message_type_are_written_by_it():
    """MessagePack has NaN: a plug-in's is kept, in the record and in the delta."""
    driver = merging(enrich=[{"use": "put", "settings": {"kind": "nan"}}], message_type="msgpack")
    driver.pipe_input("7", {"id": 7})
    [record] = driver.pending_output("sow")
    [delta] = driver.pending_output("delta")
    assert rejected(driver) == []
    assert record.value == delta.value == msgpack.packb({"id": 7, "a": {"px": math.nan}})


@pytest.mark.usefixtures("value_plugins")
@pytest.mark.parametrize("stage", ["preprocess", "enrich"])
def test_an_object_of_the_plug_ins_own_is_not_changed(stage):
    """Rules and null policies change a message in place, but not an object that a plug-in puts into many of them."""
    driver = merging(**{stage: [{"use": "put", "settings": {"kind": "object"}}]}, merge_rules={"/a/px/n": "sum"})
    for key in (7, 7, 7, 8):
        driver.pipe_input(f"{key}", {"id": key})
    assert [body["a"]["px"]["n"] for body in bodies(driver.pending_output("sow"))] == [1, 2, 3, 1]
    assert VALUES["object"] == {"n": 1, "kept": None}
