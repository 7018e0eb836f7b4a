"""A topic without a SOW: messages are checked and delivered as they were published."""

from __future__ import annotations

from typing import Any

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.builtin.pass_through import PassThrough
from processor.config import Config, TopicConfig
from processor.errors import ConfigurationError, UndeclaredOutput
from processor.hosting.context import TaskContext
from processor.hosting.pipeline import family_of
from processor.installation.configured_pipelines import pipelines
from processor.testing import ProcessorTestDriver
from tests.builtin.installed import install
from tests.builtin.merging import acks, bodies, rejected, told
from tests.codec.specimens import PROTO_FILE


def passing(**settings: Any) -> ProcessorTestDriver:
    """A driver of a topic `ticks` with such settings."""
    topic = TopicConfig.model_validate({"sow": False, "dlq_max_ratio": 1, **settings})
    return ProcessorTestDriver(PassThrough, topic, name="ticks", topic=topic)


@pytest.fixture
def driver() -> ProcessorTestDriver:
    """A topic of plain settings."""
    return passing()


def test_a_message_is_delivered_byte_for_byte(driver):
    """Blanks, nulls and doubled members stay with every command, and there is no version and no kind."""
    literal = b'{"id": 7, "n": null, "n": 2 }'
    for headers in (
        {},
        {"command": "publish"},
        {"trace": "t", "correlation_id": "abc", "client": "d", "sequence": "1"},
    ):
        driver.pipe_input("7", literal, headers)
    records = driver.pending_output("delta")
    assert [(record.key, record.value) for record in records] == [(b"7", literal)] * 3
    assert [told(record) for record in records] == [
        {},
        {"command": "publish"},
        {"trace": "t", "correlation_id": "abc", "client": "d", "sequence": "1"},
    ]


@pytest.mark.parametrize(
    ("settings", "data"),
    [
        ({"message_type": "json"}, b'{"id": 7}'),
        ({"message_type": "protobuf", "schema": {"file": PROTO_FILE, "message": "test.Row"}}, b"\x0a\x017"),
    ],
)
def test_the_id_of_a_schema_is_delivered_in_the_message_or_in_its_header(settings, data):
    """The frame of Confluent's clients stays before a message, and in header `__value_schema_id`, where it came."""
    driver, frame = passing(**settings), b"\0\0\0\0\5" + b"\0" * (settings["message_type"] == "protobuf")
    driver.pipe_input("7", frame + data)
    driver.pipe_input("7", data, {"__value_schema_id": frame})
    assert rejected(driver) == []
    records = driver.pending_output("delta")
    assert [(record.value, record.headers) for record in records] == [
        (frame + data, []),
        (data, [("__value_schema_id", frame)]),
    ]


def test_a_reserved_key_is_a_dead_letter(driver):
    """A key that only Sowstream writes is refused, with a message and as a tombstone, keyed and not."""
    key = "\0sowstream/moved/x"
    driver.pipe_batch([(key, {"id": key}, None), (key, None, {"version": "1"}), (None, {"id": key}, None)])
    assert [reason for reason, _ in rejected(driver)] == ["missing_key"] * 3
    assert driver.pending_output("delta") == driver.pending_output("publish") == []


def test_nothing_is_remembered_of_a_key(driver):
    """No record is kept: a repeated delta is delivered each time as it came."""
    driver.pipe_batch([("7", {"id": 7, "n": 1}, None)] * 2)
    assert bodies(driver.pending_output("delta")) == [{"id": 7, "n": 1}] * 2
    with pytest.raises(LookupError, match="PassThrough declares no output of role 'sow'"):
        driver.state.get_many([b"7"])


def test_a_delete_has_nothing_to_do_and_is_accounted_for(driver):
    """A delete by key, message or filter is acknowledged with the count 0, and no record is delivered."""
    asks = {"command": "sow_delete", "ack_type": "processed,stats"}
    driver.pipe_batch([("7", None, asks), (None, {"id": 7}, asks), (None, None, asks | {"filter": "/n > 1"})])
    assert [ack.get("records_deleted") for ack in acks(driver)] == [None, 0] * 3
    assert {ack["status"] for ack in acks(driver)} == {"success"}
    assert driver.pending_output("delta") == driver.pending_output("publish") == []
    driver.commit()
    assert driver.events == {"delete_of_nothing": 3}


def test_a_message_without_a_key_goes_to_its_own_partition_first(driver):
    """A record without a key is sent to its own partition unchanged, with its key; `source` has its first place."""
    driver.pipe_batch([(None, b'{"id": 7 }', None), (None, {"id": 8}, {"client": "d", "sequence": "1", "trace": "t"})])
    assert driver.pending_output("delta") == []
    driver.commit()
    assert [(record.key, record.value) for record in driver.pending_output("delta")] == [
        (b"7", b'{"id": 7 }'),
        (b"8", b'{"id":8}'),
    ]
    assert told(driver.read_output("publish")[1])["source"] == "ticks.publish/0/1"


def test_repeats_are_dropped_over_crashes(driver):
    """The mark is restored from its topic, the only one that such a topic reads back."""
    numbered = {"client": "d", "sequence": "5", "ack_type": "processed"}
    driver.pipe_input("7", {"id": 7}, numbered)
    driver.commit()
    driver.crash()
    driver.pipe_input("7", {"id": 7}, numbered)
    assert [ack["reason"] for ack in acks(driver)] == ["duplicate"]
    driver.commit()
    assert len(driver.read_output("delta")) == 1
    assert driver.events == {"duplicate": 1}


def test_an_uncommitted_message_is_delivered_again_once(driver):
    """An abort and a crash leave each message once for readers of committed records."""
    driver.pipe_batch([("7", {"id": 7, "n": n}, None) for n in range(3)])
    driver.abort()
    driver.crash()
    driver.commit()
    driver.abort()
    assert [body["n"] for body in bodies(driver.read_output("delta"))] == [0, 1, 2]
    assert driver.committed_offset == 3


@pytest.mark.parametrize(
    ("key", "value", "headers", "reason"),
    [
        ("7", b"{", {}, "undecodable"),
        ("7", b"[1]", {}, "not_an_object"),
        ("7", {"id": 8}, {}, "key_mismatch"),
        ("7", {"id": 7}, {"sow_key": "8"}, "key_mismatch"),
        (None, {"n": 8}, {}, "missing_key"),
        ("7", {"id": 7, "n": "x" * 200}, {}, "too_large"),
        ("7" * 70_000, {}, {}, "too_large"),
        ("7", b'{"id":7,"n":{"a":{"b":{}}}}', {}, "too_deep"),
        ("7", {"id": 7}, {"remove": '["/n"]'}, "bad_header"),
        ("7", {"id": 7}, {"expiration": "soon"}, "bad_header"),
        ("7", {"id": 7}, {"expect_version": "1"}, "bad_header"),
        ("7", {"id": 7}, {"command": "sow"}, "unknown_command"),
    ],
)
def test_bad_input_goes_to_the_dead_letters(key, value, headers, reason):
    """The reasons are those of a topic with records; other messages are delivered, and the publisher is answered."""
    driver = passing(max_record_bytes=150, max_depth=3)
    driver.pipe_batch([(key, value, {**headers, "ack_type": "processed"}), ("7", {"id": 7}, None)])
    assert [found for found, _ in rejected(driver)] == [reason]
    assert acks(driver)[0]["reason"].startswith(f"{reason}: ")
    assert bodies(driver.pending_output("delta")) == [{"id": 7}]


def test_plug_ins_see_each_message_and_no_record_before_it(tmp_path, monkeypatch):
    """The result of the plug-ins is delivered; preprocessing may make the key."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    driver = passing(preprocess=["upper_id"], enrich=["total"])
    driver.pipe_batch([(None, {"id": "a", "price": 2, "qty": 3}, None)])
    driver.commit()
    driver.pipe_batch([("B", {"id": "b", "price": 2, "qty": 4}, None), ("B", {"id": "b", "price": 5}, None)])
    assert bodies(driver.pending_output("delta")) == [
        {"id": "A", "price": 2, "qty": 3, "total": 6},
        {"id": "B", "price": 2, "qty": 4, "total": 8},
    ]
    assert [reason for reason, _ in rejected(driver)] == ["plugin_failed"]


def test_headers_that_are_a_part_of_the_message_go_with_it(tmp_path, monkeypatch):
    """A message type with its fields in a header can be read from the delta topic."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    driver = passing(message_type="labelled")
    driver.pipe_input("7", b"[7,1]", {"labels": '["id","n"]', "trace": "t"})
    (record,) = driver.pending_output("delta")
    assert (record.value, told(record)) == (b"[7,1]", {"labels": '["id","n"]', "trace": "t"})


def test_bytes_are_delivered_under_their_explicit_key():
    """A message type without fields works on a topic without a SOW."""
    driver = passing(message_type="binary", key="explicit")
    driver.pipe_batch([("a", b"\xff\x00", None), (None, b"\x01", {"sow_key": "b"})])
    driver.commit()
    found = driver.read_output("delta") + driver.pending_output("delta")
    assert [(record.key, record.value) for record in found] == [(b"a", b"\xff\x00"), (b"b", b"\x01")]


def test_the_source_is_written_where_it_is_asked_for():
    """The header `source` is written as on topics with records."""
    driver = passing(source_header=True)
    driver.pipe_input("7", {"id": 7})
    assert told(driver.pending_output("delta")[0]) == {"source": "ticks.publish/0/0"}


def test_the_setting_chooses_the_plug_in_and_its_topics():
    """With `sow: false` there is no SOW topic; topics with records are unchanged."""
    config = Config(topics={"ticks": {"sow": False}, "orders": {}})
    ticks, orders = pipelines(config, ["ticks", "orders"])
    assert (ticks.processor_type, orders.processor_type) == (PassThrough, DeltaMerge)
    assert (ticks.has_state, orders.has_state) == (False, True)
    assert [spec.name for spec in family_of(ticks)] == [
        f"ticks.{role}" for role in ("publish", "delta", "ack", "mark", "dlq")
    ]


def test_at_least_once_it_runs_exactly_once_and_needs_no_source():
    """Repeats after a crash cannot be recognised by a record, so it runs in transactions."""
    config = Config(topics={"ticks": {"sow": False}}, guarantee="at_least_once")
    assert not config.topics["ticks"].source_header
    assert not PassThrough.is_repeatable


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"topics": {"t": {"sow": False, "expiration": "5s"}}}, "sow: false keeps no records that expiration could be"),
        ({"topics": {"t": {"sow": False, "merge_rules": {"/n": "sum"}}}}, "that merge_rules could be about"),
        ({"topics": {"t": {"sow": False, "preset": "um"}}}, "keeps no records that merge_depth could be about"),
        (
            {"topics": {"t": {"sow": False}}, "conflated": {"c": {"underlying": "t"}}},
            "conflated.c: 't' keeps no records to copy",
        ),
        (
            {"processors": {"p": {"use": "delta_merge", "topic": {"sow": False}}}},
            "processors.p.topic.sow: its outputs say",
        ),
    ],
)
def test_settings_that_need_records_are_refused(settings, said):
    """Settings that need records are refused at the start, with the setting's name."""
    with pytest.raises(ValueError, match=said):
        Config.model_validate(settings)


def test_a_processor_that_reads_records_cannot_read_such_a_topic():
    """A processor whose input is a SOW topic is refused on a topic without one: it would wait for ever."""
    config = Config(topics={"t": {"sow": False}}, processors={"p": {"use": "conflate", "underlying": "t"}})
    with pytest.raises(ConfigurationError, match=r"processors\.p: 't' keeps no records to read"):
        pipelines(config, ["p"])


def test_a_processor_without_state_gets_advice_on_its_declaration(driver):
    """Every access to its state is refused, as the state would be gone with the process."""
    context = driver._task._context
    assert isinstance(context, TaskContext)
    for use in (
        lambda: context.state.get_many([b"a"]),
        lambda: context.state.put_many({b"a": None}),
        lambda: context.state.due(1, 1),
        lambda: context.state.scan(None, 1),
    ):
        with pytest.raises(UndeclaredOutput, match="ticks uses its state, and its `outputs` declare no output of role"):
            use()
