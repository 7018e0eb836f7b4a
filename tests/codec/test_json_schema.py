"""The message type `json-schema`: messages are checked by the schema that they name, records by the topic's."""

import itertools
import json
import time

import jsonschema
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.codec import CodecOptions
from processor.codec.json_schema.codec import JsonSchemaCodec, partial_schema_text
from processor.codec.json_schema.schema_check import SchemaCheck
from processor.codec.schema_registry.schemas import Registry
from processor.config import SchemaConfig, TopicConfig
from processor.errors import ConfigurationError, RecordRejected
from processor.testing import ProcessorTestDriver
from tests.builtin.merging import rejected, told

_numbers = itertools.count()
DRAFT = "http://json-schema.org/draft-07/schema#"
ADDRESS = {"type": "object", "properties": {"zip": {"type": "string"}, "street": {"type": "string"}},
           "required": ["zip"], "additionalProperties": False}  # fmt: skip
ORDER = {
    "$schema": DRAFT,
    "type": "object",
    "properties": {"id": {"type": "integer"}, "qty": {"type": "integer", "minimum": 0}, "address": ADDRESS,
                   "side": {"enum": ["BUY", "SELL"]}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["id", "qty"],
    "additionalProperties": False,
}  # fmt: skip
CONTEXT = SerializationContext("orders.publish", MessageField.VALUE, [])


class World:
    """A mock registry and a topic of orders under a delta merge."""

    def __init__(self, schema=ORDER, **topic):
        self.settings = {"url": f"mock://json{next(_numbers)}"}
        self.client = Registry(self.settings)._client
        if schema is not None:
            self.register(schema, "orders.publish-value")
            config = TopicConfig(message_type="json-schema", **topic)
            self.driver = ProcessorTestDriver(DeltaMerge, config, name="orders", topic=config, registry=self.settings)

    def register(self, schema, subject):
        """Register a schema and return its id."""
        return self.client.register_schema(subject, Schema(json.dumps(schema), "JSON"))

    def framed(self, value, schema=ORDER, **conf):
        """A message by Confluent's serializer, which checks it itself unless told otherwise."""
        return JSONSerializer(json.dumps(schema), self.client, conf=conf)(value, CONTEXT)

    def send(self, data, headers=None):
        """Publish to key 7; return the number of records and dead letters so far."""
        self.driver.pipe_input("7", data, headers)

    def read(self, role):
        """The values of a topic's records, read by Confluent's deserializer, which validates them."""
        read = JSONDeserializer(None, schema_registry_client=self.client)
        return [read(record.value, CONTEXT) for record in self.driver.pending_output(role)]


def test_publishes_and_deltas_of_confluents_serializer_are_merged_and_read_by_its_deserializer():
    """Records and deltas are written in Confluent's format; its deserializer reads and validates both."""
    world = World()
    part = {"$schema": DRAFT, "type": "object", "properties": {"id": {"type": "integer"}, "qty": {"type": "integer"}}}
    world.send(world.framed({"id": 7, "qty": 1, "address": {"zip": "8"}}), {"command": "publish"})
    world.send(world.framed({"id": 7, "qty": 2}, part))
    assert world.read("sow") == [{"id": 7, "qty": 1, "address": {"zip": "8"}},
                                 {"id": 7, "qty": 2, "address": {"zip": "8"}}]  # fmt: skip
    assert world.read("delta")[1] == {"id": 7, "qty": 2}
    assert rejected(world.driver) == []


def test_a_delta_of_the_records_own_schema_need_not_be_complete():
    """A delta that names the schema of full records may lack what they require; the types of its fields are checked."""
    world = World()
    world.send(world.framed({"id": 7, "qty": 1, "address": {"zip": "8"}}), {"command": "publish"})
    world.send(world.framed({"id": 7, "address": {"street": "s"}}, validate=False))
    assert world.read("sow")[-1] == {"id": 7, "qty": 1, "address": {"zip": "8", "street": "s"}}
    world.send(world.framed({"id": 7, "qty": "many"}, validate=False))
    [letter] = rejected(world.driver)
    assert letter == ("schema_mismatch", '/qty does not fit its schema: type is "integer"')


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ({"id": 7}, "'qty' is a required property"),
        ({"id": 7, "qty": -1}, "/qty does not fit its schema: minimum is 0"),
        ({"id": 7, "qty": 1, "x": 1}, "'x' was unexpected"),
        ({"id": 7, "qty": 1, "side": "secret-value"}, '/side does not fit its schema: enum is ["BUY", "SELL"]'),
        ({"id": 7, "qty": 1, "address": {}}, "/address: 'zip' is a required property"),
        ({"id": 7, "qty": 1, "tags": ["a", 1]}, '/tags/1 does not fit its schema: type is "string"'),
    ],
)
def test_a_publish_that_its_schema_does_not_allow_is_a_dead_letter_with_the_place(value, detail):
    """A violation is a `schema_mismatch` with the place and the keyword, and without the record's data."""
    world = World()
    world.send(world.framed(value, validate=False), {"command": "publish"})
    [(reason, text)] = rejected(world.driver)
    assert reason == "schema_mismatch"
    assert detail in text
    assert "secret" not in text
    assert world.driver.pending_output("sow") == []


def test_a_merged_record_that_the_topics_schema_does_not_allow_is_a_dead_letter():
    """A delta that is valid by its own schema is refused if the record would not be valid by the topic's."""
    world = World()
    anything = {"$schema": DRAFT, "type": "object"}
    world.send(world.framed({"id": 7, "qty": 1}), {"command": "publish"})
    world.send(world.framed({"id": 7, "qty": 2, "mood": "x"}, anything))
    assert rejected(world.driver)[0][0] == "schema_mismatch"
    world.send(world.framed({"id": 7, "qty": 3}, anything))
    assert world.read("sow") == [{"id": 7, "qty": 1}, {"id": 7, "qty": 3}]


@pytest.mark.parametrize(
    ("data", "headers", "reason"),
    [
        (b'{"id":7,"qty":1}', {}, "undecodable"),
        (b"\0\0\x7f\0\0{}", {}, "schema_not_found"),
        (b"\0\0\0", {}, "undecodable"),
        (b"{}", {"__value_schema_id": b"xx"}, "bad_header"),
    ],
)
def test_a_message_without_a_usable_schema_is_a_dead_letter(data, headers, reason):
    """A missing frame, an unknown id and a bad header each have their reason."""
    world = World()
    world.send(data, headers)
    assert [letter[0] for letter in rejected(world.driver)] == [reason]


def test_a_schema_of_another_type_is_a_mismatch():
    """A frame that names an Avro schema is refused."""
    world = World()
    number = world.client.register_schema("avro", Schema('"long"', "AVRO"))
    world.send(b"\0" + number.to_bytes(4) + b"{}")
    assert rejected(world.driver) == [("schema_mismatch", "the schema is of the type AVRO, not JSON")]


def test_the_id_in_a_header_stands_for_the_frame_and_does_not_travel():
    """Header `__value_schema_id` names the schema of a bare message."""
    world = World()
    framed = world.framed({"id": 7, "qty": 1})
    world.send(framed[5:], {"__value_schema_id": framed[:5], "command": "publish"})
    assert world.read("sow") == [{"id": 7, "qty": 1}]
    assert "__value_schema_id" not in told(world.driver.pending_output("sow")[0])


def test_a_removed_field_that_is_required_is_a_dead_letter():
    """Header `remove` cannot take away what the schema requires; other fields go."""
    world = World()
    world.send(world.framed({"id": 7, "qty": 1, "side": "BUY"}), {"command": "publish"})
    world.send(world.framed({"id": 7}, validate=False), {"remove": '["/qty"]'})
    assert "'qty' is a required property" in rejected(world.driver)[0][1]
    world.send(world.framed({"id": 7}, validate=False), {"remove": '["/side"]'})
    assert world.read("sow")[-1] == {"id": 7, "qty": 1}


def test_references_to_other_subjects_are_followed_in_records_and_deltas():
    """A schema that refers to another one by name checks with it; the schema of deltas contains it."""
    world = World(None)
    world.register({"$schema": DRAFT, **ADDRESS}, "address")
    order = {
        **ORDER,
        "$id": "http://test/order.json",
        "properties": ORDER["properties"] | {"address": {"$ref": "address.json"}},
    }
    world.client.register_schema(
        "orders.publish-value",
        Schema(json.dumps(order), "JSON", [SchemaReference(name="address.json", subject="address", version=1)]),
    )
    codec = JsonSchemaCodec(CodecOptions(topic="orders", registry=world.settings))
    frame = codec.encode({"id": 1, "qty": 1})[:5]
    with pytest.raises(RecordRejected, match="/address: 'zip' is a required property"):
        codec.decode(frame + b'{"id":1,"qty":1,"address":{}}')
    assert codec.decode_command(frame + b'{"address":{}}', [], is_delta=True) == {"address": {}}
    with pytest.raises(RecordRejected, match="/address/zip does not fit"):
        codec.decode_command(frame + b'{"address":{"zip":1}}', [], is_delta=True)


def test_without_a_registry_messages_are_bare_and_checked_by_the_file(tmp_path):
    """A schema in a file checks messages without frames."""
    file = tmp_path / "order.json"
    file.write_text(json.dumps(ORDER))
    codec = JsonSchemaCodec(CodecOptions(topic="orders", schema=SchemaConfig(file=file)))
    assert codec.decode(codec.encode({"id": 1, "qty": 1})) == {"id": 1, "qty": 1}
    assert codec.encode({"id": 1, "qty": 1}) == b'{"id":1,"qty":1}'
    with pytest.raises(RecordRejected, match="required"):
        codec.decode(b'{"id":1}')
    with pytest.raises(TypeError, match="required"):
        codec.encode({"id": 1})


@pytest.mark.parametrize(
    ("text", "why"), [("{", "not JSON"), ('{"type": "intejer"}', "not a JSON Schema"), ('{"pattern": 1}', "pattern")]
)
def test_a_schema_that_cannot_be_used_is_a_configuration_error(text, why):
    """A bad schema is refused at the start, with its place."""
    with pytest.raises(ConfigurationError, match=why):
        JsonSchemaCodec(CodecOptions(topic="orders", schema=SchemaConfig(text=text)))


def test_no_reference_is_fetched():
    """A schema that refers to an address is refused where it is needed; nothing is asked over the network."""
    codec = JsonSchemaCodec(
        CodecOptions(topic="o", schema=SchemaConfig(text='{"properties": {"a": {"$ref": "http://127.0.0.1:1/x"}}}'))
    )
    assert codec.decode(b"{}") == {}
    with pytest.raises(RecordRejected, match="which it does not contain"):
        codec.decode(b'{"a":1}')


def test_large_numbers_and_decimals_are_numbers():
    """Numbers beyond 64 bits are integers, and `multipleOf` is exact."""
    schema = {"properties": {"n": {"type": "integer"}, "p": {"type": "number", "multipleOf": 0.01}}}
    codec = JsonSchemaCodec(CodecOptions(topic="o", schema=SchemaConfig(text=json.dumps(schema))))
    for good in (b'{"n":18446744073709551616}', b'{"p":0.3}', b'{"p":1234567890123456789.25}', b'{"n":1.0}'):
        codec.decode(good)
    for bad in (b'{"n":18446744073709551616.5}', b'{"p":0.305}', b'{"p":1e99999}'):
        with pytest.raises(RecordRejected):
            codec.decode(bad)


@pytest.mark.parametrize("data", [b'{"p":0.%s}', b'{"p":%s}', b'{"p":1.%se9}'])
def test_a_multiple_takes_linear_time(data):
    """A number of a hundred thousand digits is no multiple, as far as that is computed; it is refused at once."""
    codec = JsonSchemaCodec(
        CodecOptions(topic="o", schema=SchemaConfig(text='{"properties":{"p":{"multipleOf":0.01}}}'))
    )
    begin_s = time.thread_time()
    with pytest.raises(RecordRejected, match="multipleOf"):
        codec.decode(data % (b"12" * 100_000))
    assert time.thread_time() - begin_s < 0.5


def test_unique_items_take_linear_time():
    """A hundred thousand items of mixed types are compared at once; true is not 1, and 1 is 1.0."""
    codec = JsonSchemaCodec(
        CodecOptions(topic="o", schema=SchemaConfig(text='{"properties":{"a":{"uniqueItems":true}}}'))
    )
    items = [kind for number in range(50_000) for kind in (number, [number], {"a": number}, str(number))]
    assert len(codec.decode(json.dumps({"a": items}).encode())["a"]) == 200_000
    codec.decode(b'{"a":[1,true,[1],[true]]}')
    for bad in (b'{"a":[1,1.0]}', b'{"a":[{"b":[1]},{"b":[1]}]}'):
        with pytest.raises(RecordRejected, match="uniqueItems"):
            codec.decode(bad)


def _parts(value):
    """Values that a record becomes if members are left out at any depth of objects."""
    if not isinstance(value, dict):
        return st.just(value)
    return st.sets(st.sampled_from(sorted(value)) if value else st.nothing()).flatmap(
        lambda names: st.fixed_dictionaries({name: _parts(value[name]) for name in names})
    )


RECORDS = st.fixed_dictionaries(
    {"id": st.integers(0, 9)},
    optional={
        "kind": st.sampled_from(["a", "b"]),
        "n": st.one_of(st.integers(-5, 5), st.text("xy", max_size=3)),
        "o": st.fixed_dictionaries({}, optional={"p": st.integers(0, 3), "q": st.booleans(), "id": st.integers(0, 2)}),
        "list": st.lists(st.fixed_dictionaries({}, optional={"p": st.integers(0, 2)}), max_size=3),
    },
)
SUBSCHEMAS = st.sampled_from(
    [
        {"required": ["id", "kind"]}, {"minProperties": 2}, {"maxProperties": 3}, {"not": {"required": ["kind"]}},
        {"if": {"required": ["kind"]}, "then": {"required": ["n"]}, "else": {"required": ["o"]}},
        {"oneOf": [{"required": ["n"]}, {"required": ["o"]}]}, {"anyOf": [{"required": ["n"]}, {"required": ["o"]}]},
        {"oneOf": [{"properties": {"n": {"type": "integer"}}, "required": ["n"]},
                   {"properties": {"n": {"type": "string"}}}]},
        {"dependencies": {"n": ["o"]}}, {"properties": {"o": {"enum": [{"p": 1, "q": True}, {"p": 0}]}}},
        {"properties": {"o": {"const": {"p": 1, "id": 2}}}}, {"properties": {"o": {"$ref": "#/definitions/o"}},
        "definitions": {"o": {"required": ["p"], "properties": {"p": {"minimum": 1}}}}},
        {"additionalProperties": {"type": ["integer", "string", "object", "array"]}},
        {"properties": {"list": {"contains": {"required": ["p"]}}}},
        {"patternProperties": {"^o": {"minProperties": 1}}},
        {"properties": {"o": {"$ref": "#/components/o"}}, "components": {"o": {"required": ["p"]}}},
        {"oneOf": [{"properties": {"o": {"required": ["p"]}}}],
         "properties": {"o": {"$ref": "#/oneOf/0/properties/o"}}},
        {"not": {"required": ["kind"], "minProperties": 2}, "properties": {"o": {"$ref": "#/not"}}},
    ]
)  # fmt: skip


REFERRING = {
    "components": {"components": {"schemas": {"T": {"$ref": "#/components/schemas/U"}, "U": ADDRESS}}},
    "a name with escapes": {"a/b ~": {"T": ADDRESS}},
    "the name of a definition": {"T": ADDRESS, "definitions": {"T": {"type": "string"}}},
    "a choice": {"oneOf": [{"properties": {"x": ADDRESS}}]},
    "a negation": {"not": {"required": ["y"], "properties": {"x": ADDRESS}}},
    "definitions": {"definitions": {"T": ADDRESS}},
    "itself": {"types": {"T": {**ADDRESS, "properties": {"zip": {"type": "string"}, "in": {"$ref": "#/types/T"}}}}},
}
POINTERS = {
    "components": "#/components/schemas/T", "a name with escapes": "#/a~1b%20~0/T", "the name of a definition": "#/T",
    "a choice": "#/oneOf/0/properties/x", "a negation": "#/not/properties/x", "definitions": "#/definitions/T",
    "itself": "#/types/T",
}  # fmt: skip


@pytest.mark.parametrize("draft", [DRAFT, "https://json-schema.org/draft/2020-12/schema"])
@pytest.mark.parametrize("place", REFERRING)
def test_a_schema_may_refer_to_any_place_in_itself(place, draft):
    """Records and deltas are checked by schemas in any member, of which those of deltas lack what records require."""
    schema = {"$schema": draft, "properties": {"address": {"$ref": POINTERS[place]}}, **REFERRING[place]}
    codec = JsonSchemaCodec(CodecOptions(topic="o", schema=SchemaConfig(text=json.dumps(schema))))
    value = {"address": {"zip": "8"}}
    assert codec.decode(codec.encode(value)) == value
    assert codec.encode_delta({"address": {}}) == (b'{"address":{}}', [])
    with pytest.raises(RecordRejected, match="'zip' is a required property"):
        codec.decode(b'{"address":{}}')
    with pytest.raises(TypeError, match="/address/zip does not fit its schema"):
        codec.encode_delta({"address": {"zip": 8}})


@pytest.mark.parametrize("target", [{"properties": 1}, {"$ref": 1}, {"allOf": [{"$id": 1}]}, {"items": [{"enum": 1}]}])
def test_a_reference_to_what_is_no_schema_is_refused_at_the_start(target):
    """A member that no draft describes, and that is referred to, must be a schema."""
    text = json.dumps({"properties": {"a": {"$ref": "#/components/T"}}, "components": {"T": target}})
    with pytest.raises(ConfigurationError, match=r"no(t a)? JSON Schema"):
        JsonSchemaCodec(CodecOptions(topic="o", schema=SchemaConfig(text=text)))


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.data())
def test_each_part_of_a_valid_record_is_a_valid_delta(data):
    """The derived schema accepts every record of a schema with any members left out."""
    schema = data.draw(SUBSCHEMAS)
    record = data.draw(RECORDS)
    if not jsonschema.Draft7Validator(schema).is_valid(record):
        return
    part = data.draw(_parts(record))
    derived = partial_schema_text(json.dumps(schema), {})
    assert SchemaCheck(derived, {}).violation(part) is None
