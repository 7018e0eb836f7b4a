import inspect
import math
import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.client import Client
from processor.client.publish.command_sender import publishable
from processor.client.publish.outbox import DeleteArguments, Outbox, PublishArguments, PublishOptions
from processor.codec import codec_of, load_codec
from processor.config import Config, TopicConfig
from processor.errors import ConfigurationError, RecordRejected
from processor.record import Command, Value
from processor.testing import ProcessorTestDriver
from processor.wire.publisher_headers import GATEWAY_ARGUMENTS, HEADER_ARGUMENTS
from tests.client.family import Framed

CONFIG = Config.model_validate(
    {
        "topics": {
            "orders": {"key": ["/id"]},
            "full": {"key": ["/a", "/b/c"], "default_command": "publish"},
            "keyed": {"key": "explicit"},
        },
        "conflated": {"slow": {"underlying": "orders"}},
    }
)


def outbox(topic: str = "orders") -> Outbox:
    """The outbox of a configured topic."""
    return Outbox(topic, CONFIG.topic(topic), load_codec("json"))


def test_the_key_comes_from_the_body():
    """Without a key argument, it is computed from the key fields; several make a JSON array of strings."""
    assert outbox().record("delta_publish", {"id": 7, "n": 1}, None, None) == (b"7", b'{"id":7,"n":1}', None)
    key, _, _ = outbox("full").record("publish", {"a": True, "b": {"c": "x"}}, None, None)
    assert key == b'["true","x"]'


def test_a_reserved_key_is_refused():
    """A key that only Sowstream writes is refused at the call, given, computed and for a delete."""
    key = "\0sowstream/moved/x"
    for arguments in (("publish", {"id": key}, None), ("publish", {"id": 7}, key), ("sow_delete", None, key)):
        with pytest.raises(RecordRejected, match="reserved"):
            outbox().record(*arguments, None)


VALUES = st.one_of(
    st.text(), st.integers(-(2**63), 2**64 - 1), st.booleans(), st.sampled_from(['a"b\\', "\n\x00", "é𝄞"])
)


@given(st.lists(VALUES, min_size=1, max_size=3))
def test_the_key_is_the_one_that_a_worker_makes(values: list[Value]):
    """The client and the worker compute the same key bytes, for one key field or several."""
    pointers = tuple(f"/{name}" for name in "abc"[: len(values)])
    topic = TopicConfig(key=pointers)
    key, value, _ = Outbox("orders", topic, load_codec("json")).record(
        "delta_publish", dict(zip("abc", values, strict=False)), None, None
    )
    driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
    driver.pipe_input(None, value)
    driver.pipe_input(key, value)
    [again] = driver.pending_output("publish")
    [merged] = driver.pending_output("sow")
    assert again.key == merged.key == key


def test_a_message_that_is_bytes_travels_as_it_is():
    """Bytes are sent unchanged; they are parsed only if the key argument is missing."""
    assert outbox().record("delta_publish", b'{ "id" : "k" }', None, None) == (b"k", b'{ "id" : "k" }', None)
    assert outbox().record("delta_publish", b"not JSON", "k", None) == (b"k", b"not JSON", None)


def test_the_default_command_needs_no_header():
    """A topic's default command needs no header, and neither does a tombstone."""
    said = [("command", b"publish")]
    assert outbox().record("publish", {"id": 1}, None, None)[2] == said
    assert outbox().record("delta_publish", {"id": 1}, None, None)[2] is None
    assert outbox("full").record("publish", {"id": 1}, "k", None)[2] is None
    assert outbox("full").record("delta_publish", {"id": 1}, "k", None)[2] == [("command", b"delta_publish")]
    assert outbox().record("sow_delete", None, "k", None) == (b"k", None, None)


def test_headers_of_the_publisher_go_along():
    """Own headers are sent as UTF-8; those of workers are rejected; `remove` is allowed."""
    given = {"correlation_id": "abc", "trace": "é", "remove": '["/x"]'}
    assert outbox().record("delta_publish", {"id": 1}, None, given)[2] == [
        ("correlation_id", b"abc"),
        ("trace", "é".encode()),
        ("remove", b'["/x"]'),
    ]
    for name in ("version", "kind", "dlq_reason"):
        with pytest.raises(ConfigurationError, match=f"'{name}' is Sowstream's own"):
            outbox().record("delta_publish", {"id": 1}, None, {name: "1"})


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("command", "call publish"),
        ("sow_key", "key="),
        ("client", "sequence="),
        ("sequence", "sequence="),
        ("ack_type", "ack="),
        ("command_id", "command_id="),
    ],
)
def test_headers_with_an_argument_are_rejected_by_name(name: str, way: str):
    """A header with its own argument, such as a sequence that must match a future, is rejected by name."""
    with pytest.raises(ConfigurationError, match=f"{name!r} is not given by name; .*{way}"):
        outbox().record("delta_publish", {"id": 1}, None, {name: "1"})


def test_headers_may_be_bytes():
    """A header of another system, such as a schema id, need not be text."""
    assert outbox().record("delta_publish", {"id": 1}, None, {"x": b"\xff"})[2] == [("x", b"\xff")]


def test_arguments_become_headers():
    """Expiration, correlation id and command id add a header only if they are passed."""
    headers = outbox().record(
        "publish", {"id": 1}, None, {"trace": "t"}, expiration=0, correlation_id="YWJj", command_id="c1"
    )[2]
    assert headers == [
        ("trace", b"t"),
        ("expiration", b"0"),
        ("correlation_id", b"YWJj"),
        ("command_id", b"c1"),
        ("command", b"publish"),
    ]


@pytest.mark.parametrize("key_format", ["json", "int"])
def test_a_worker_reads_the_clients_keys_as_texts(key_format: str):
    """The client's Kafka keys are text, also on a topic where other publishers use another key format."""
    from processor.builtin.delta_merge.delta_merge import DeltaMerge
    from processor.testing import ProcessorTestDriver

    topic = TopicConfig(key_format=key_format)
    driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
    for key in ("ab", "1234"):
        driver.pipe_input(*Outbox("orders", topic, load_codec("json")).record("publish", {"id": key}, None, None))
    assert [record.key for record in driver.pending_output("sow")] == [b"ab", b"1234"]
    assert driver.pending_output("dlq") == []


@given(st.floats(0, 3_000_000_000) | st.integers(0, 3_000_000_000))
def test_a_worker_reads_the_same_expiration(seconds: float):
    """A worker reads any number of seconds as the same time, to the next millisecond; only 0 means never."""
    from processor.wire.command import CommandReader, ttl_ms_of

    ((_, text),) = outbox().record("delta_publish", {"id": 1}, None, None, expiration=seconds)[2]
    ttl_ms = ttl_ms_of(CommandReader("delta_publish").read([("expiration", text)]).expiration)
    assert abs(ttl_ms - seconds * 1000) <= 1
    assert (ttl_ms == 0) == (seconds == 0)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("expiration", value) for value in (-1, float("nan"), float("inf"), 1e12)),
        *(("correlation_id", value) for value in ("", "a b", "é", "x" * 1025)),
        *(("command_id", value) for value in ("", "x" * 1025)),
    ],
)
def test_an_argument_without_meaning_is_rejected_here(argument: str, value: object):
    """An argument that a worker would reject as `bad_header` is not sent at all."""
    with pytest.raises(RecordRejected, match=f"bad_header: {argument}"):
        outbox().record("delta_publish", {"id": 1}, None, None, **{argument: value})


SCHEMA = str(Path(__file__).parents[2] / "schemas" / "order.avsc")
ORDER = {"id": 7, "customer": "c", "item": "tea", "qty": 1, "state": "new"}


@pytest.mark.parametrize("command", ["publish", "delta_publish"])
@pytest.mark.parametrize(
    ("message_type", "settings", "data"),
    [
        ("msgpack", {}, {"id": "1", "n": {"m": None}}),
        ("bson", {}, {"id": "1", "n": {"m": None}}),
        ("nvfix", {}, {"id": "1", "n": "2"}),
        ("fix", {"key": ["/11"]}, {"11": "1", "55": "x"}),
        ("xml", {"key": ["/order/id"]}, {"order": {"id": "1"}}),
        ("composite-local", {"key": ["/0/id"], "parts": ["json", "json"]}, {"0": {"id": "1"}, "1": {"n": 2}}),
        ("composite-global", {"key": ["/0/id"], "parts": ["json", "json"]}, {"0": {"id": "1"}, "1": {"n": 2}}),
        ("avro", {"schema": SCHEMA}, ORDER),
    ],
)
def test_a_value_is_written_in_the_topics_message_type(
    message_type: str, settings: dict[str, Value], data: Value, command: str
):
    """A published value is encoded so that the topic's codec reads the same value, with its key."""
    config = Config.model_validate({"topics": {"t": {"message_type": message_type, **settings}}})
    codec = codec_of(config, "t")
    sender = Outbox("t", config.topic("t"), codec)
    key, value, headers = sender.record(command, data, None, None)
    assert value is not None
    read = codec.decode_command(value, headers or [], is_delta=command == "delta_publish")
    assert {name: read[name] for name in data} == data
    assert key == (b"7" if message_type == "avro" else b"1")
    assert (
        sender.record(command, value, None, {name: said for name, said in headers or [] if name != "command"})[0] == key
    )


def test_an_avro_delta_has_its_fields_only():
    """A partial record is encoded as a delta; as a full record it does not fit the schema, and is not sent."""
    config = Config.model_validate({"topics": {"t": {"message_type": "avro", "schema": SCHEMA}}})
    codec = codec_of(config, "t")
    sender = Outbox("t", config.topic("t"), codec)
    _, value, headers = sender.record("delta_publish", {"id": 7, "qty": 2}, None, None)
    assert value is not None
    assert codec.decode_command(value, headers or [], is_delta=True) == {"id": 7, "qty": 2}
    with pytest.raises(RecordRejected, match="schema_mismatch"):
        sender.record("publish", {"id": 7, "qty": 2}, None, None)


def test_an_explicit_key_is_the_publishers_to_give():
    """If the topic's key is explicit, the body has no key, and a message without the argument is not sent."""
    assert outbox("keyed").record("delta_publish", {"id": 1}, "k", None)[0] == b"k"
    for data in ({"id": 1}, b'{"id":1}'):
        with pytest.raises(RecordRejected, match=r"missing_key: .*explicit.* key="):
            outbox("keyed").record("delta_publish", data, None, None)


def test_a_message_type_with_headers_is_written_as_the_worker_reads_it():
    """A delta has its codec's headers; a full record needs none; encoded bytes are parsed with their own headers."""
    framed = Outbox("orders", CONFIG.topic("orders"), Framed())
    whole = framed.record("publish", {"id": 1, "n": None}, None, None)
    assert whole == (b"1", b'{"id":1,"n":null}', [("command", b"publish")])
    delta = framed.record("delta_publish", {"id": 1, "n": 2}, None, {"trace": "t"})
    assert delta == (b"1", b"[1,2]", [("trace", b"t"), ("fields", b'["id","n"]')])
    assert framed.record("delta_publish", b"[1,2]", None, {"fields": '["id","n"]'})[0] == b"1"


@pytest.mark.parametrize(
    ("data", "reason"),
    [({"n": 1}, "missing_key"), ([1], "not_an_object"), (b"{", "undecodable"), ({"id": 1, "x": {1}}, "undecodable")],
)
def test_messages_without_a_key_or_encoding_are_rejected(data: object, reason: str):
    """A message that cannot be keyed or encoded is not sent; the reason is that of the dead-letter topic."""
    with pytest.raises(RecordRejected) as caught:
        outbox().record("delta_publish", data, None, None)
    assert caught.value.reason == reason


@pytest.mark.parametrize(("data", "key"), [({"id": 1}, "\udcff"), ({"id": "\udcff"}, None)])
def test_a_key_that_is_not_utf8_is_rejected(data: Value, key: str | None):
    """A key with half a surrogate pair rejects its own record, whether the caller has it or the message."""
    with pytest.raises(RecordRejected, match="undecodable: the key is not UTF-8 text"):
        outbox().record("publish", data, key, None)


@pytest.mark.parametrize("value", [math.nan, math.inf, Decimal("NaN"), [{"deep": -math.inf}]], ids=repr)
@pytest.mark.parametrize("command", ["publish", "delta_publish"])
def test_a_value_that_json_lacks_is_rejected_before_anything_is_sent(command: Command, value: Value):
    """A NaN is an error at the publisher, with its place, and never a null that a worker would ignore."""
    with pytest.raises(RecordRejected, match=r"undecodable: /px\b.* is not a JSON value"):
        outbox().record(command, {"id": 1, "px": value}, None, None)


@pytest.mark.parametrize("value", [2**64, -(2**200), Decimal("0.1234567890123456789")], ids=repr)
def test_a_number_of_any_length_reaches_the_record(value: Value):
    """An int beyond 64 bits and a Decimal are published and merged with every digit."""
    topic = CONFIG.topic("orders")
    driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
    for data in ({"id": 7, "n": 1}, {"id": 7, "x": value}, {"id": 7, "n": 2}):
        key, message, _ = outbox().record("delta_publish", data, None, None)
        driver.pipe_input(key, message)
    [*_, record] = driver.pending_output("sow")
    assert (record.value or b"").rstrip() == b'{"id":7,"n":2,"x":%b}' % str(value).encode()


def test_only_a_sow_topic_is_published_to():
    """A derived topic is rejected with the name of its source, an unknown one with a suggestion."""
    assert publishable(CONFIG, "orders") == CONFIG.topics["orders"]
    with pytest.raises(ConfigurationError, match="publish to 'orders'"):
        publishable(CONFIG, "slow")
    with pytest.raises(ConfigurationError, match="did you mean 'orders'"):
        publishable(CONFIG, "oders")


def test_every_way_to_publish_has_the_same_options():
    """The calls, their typed arguments, the options of a command and the JavaScript client name the same options."""
    options = set(PublishOptions._fields)
    arguments = {
        "publish": set(PublishArguments.__annotations__),
        "delta_publish": set(PublishArguments.__annotations__),
        "sow_delete": set(DeleteArguments.__annotations__) - {"keys", "data", "filter"},
    }
    for call, of_call in arguments.items():
        parameters = inspect.signature(getattr(Client, call)).parameters.keys()
        assert parameters & options == of_call | {"headers", "ack", "expect_version"}
        missing = {name for name, argument in HEADER_ARGUMENTS.items() if not argument.is_for_deletes}
        assert options - parameters == (missing if call == "sow_delete" else set())
    assert HEADER_ARGUMENTS.keys() <= options
    script = Path("processor/gateway/web/sowstream.js").read_text()
    types = Path("processor/gateway/web/sowstream.d.ts").read_text()
    for name in GATEWAY_ARGUMENTS:
        camel = re.sub("_(.)", lambda match: match[1].upper(), name)
        assert f"  {camel}?: " in types
        assert name == camel or f"{name}: {camel}" in script
